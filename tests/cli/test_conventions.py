"""What every command has in common."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import slateboard
from slateboard.cli import options
from tests.cli.running import Slate
from tests.cli.test_documentation import COMMANDS, DOCS
from tests.fix_server import MakeServer, Server


def test_every_command_takes_the_global_options() -> None:
    wanted = {"--server", "--board", "--token", "--region", "--json"}
    for name, command in COMMANDS.items():
        assert isinstance(command, options.Command), name
        assert wanted <= {word for parameter in command.params for word in parameter.opts}, name


def test_no_option_is_documented_that_does_not_exist() -> None:
    there = {word for command in COMMANDS.values() for parameter in command.params for word in parameter.opts}
    there |= {"--help", "--version", "--install-completion", "--show-completion"}
    assert set(re.findall(r"--[a-z][a-z-]+", DOCS)) <= there


@pytest.mark.parametrize("order", ["before", "after"])
def test_global_options_stand_before_or_after_the_command(slate: Slate, order: str) -> None:
    slate.ok("put", "k", "1")
    board = slate.env["SLATE_BOARD"]
    given = ["--board", board, "--json"]
    line = [*given, "get", "k"] if order == "before" else ["get", "k", *given]
    assert slate.with_env(SLATE_BOARD="another").ok(*line).json["board"] == board


def test_a_reader_that_leaves_early_is_no_reason_to_complain(
    slate: Slate, server: Server, board_name: str
) -> None:
    with slateboard.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        board.put("large", "x" * 1_000_000, absent=True)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "slateboard.cli", "get", "large"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, **slate.env},
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_only_board_is_used_and_named_on_standard_error(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(tmp_path / "data")
    slate = Slate({"SLATE_SERVER": server.address, "SLATE_DATA": str(server.data_dir)})
    assert slate("ls").code == 4
    slate.ok("board", "create", "one")
    listed = slate.ok("ls", "--json")
    assert listed.json == []
    assert "'one'" in listed.stderr
    slate.ok("board", "create", "two")
    undecided = slate("ls")
    assert undecided.code == 2
    assert "one, two" in undecided.stderr
