"""A board of one's own on the shared server, and `slate` pointed at it."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import slateboard
from tests.cli.running import Slate, refusing
from tests.fix_server import Server


@pytest.fixture
def board_name(server: Server) -> str:
    name = f"cli-{uuid.uuid4().hex[:12]}"
    with slateboard.connect(server.address, token=server.operator_token) as client:
        client.create_board(name)
    return name


@pytest.fixture
def slate(server: Server, board_name: str) -> Slate:
    """`slate` as the local user, who finds the tokens in the data directory."""
    return Slate(
        {"SLATE_SERVER": server.address, "SLATE_DATA": str(server.data_dir), "SLATE_BOARD": board_name}
    )


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Slate]:
    """`slate` where no server runs, with an empty data directory."""
    with refusing() as address:
        yield Slate({"SLATE_DATA": str(tmp_path / "nothing"), "SLATE_SERVER": address})
