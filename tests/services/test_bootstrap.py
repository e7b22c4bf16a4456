"""The tokens of a first start: made once, private, replaced when they stop working."""

import asyncio
from pathlib import Path

import pytest

from slateboard_server.domain.principal import Role
from slateboard_server.domain.values import PrincipalId, TokenId, Trust
from slateboard_server.services.auth import Authenticator
from slateboard_server.services.bootstrap import LOCAL, OPERATOR, Bootstrap
from slateboard_server.services.model import Caller
from tests.services.conftest import Team


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def text(path: Path) -> str:
    return path.read_text().strip()


def names_in(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir())


async def bearer(team: Team, path: Path) -> Caller:
    auth = Authenticator(team.store, team.clock, {})
    return await auth.authenticate(f"Bearer {text(path)}", ())


async def test_a_first_start_on_loopback_leaves_two_private_tokens(team: Team, data: Path) -> None:
    files = await Bootstrap(team.store, team.clock, data).run(loopback=True)
    assert [path.name for path in files] == ["operator.token", "local.token"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert names_in(data) == ["local.token", "operator.token"]
    operator, local = [(await bearer(team, path)).principal for path in files]
    assert (operator.id, operator.role) == (OPERATOR, Role.OPERATOR)
    assert (local.id, local.role, local.trust_ceiling) == (LOCAL, Role.SUPERVISOR, Trust.USER)
    assert local.has_all_boards


async def test_a_second_start_leaves_them_alone(team: Team, data: Path) -> None:
    bootstrap = Bootstrap(team.store, team.clock, data)
    files = await bootstrap.run(loopback=True)
    before = [path.read_text() for path in files]
    assert await bootstrap.run(loopback=True) == files
    assert [path.read_text() for path in files] == before
    assert len(await team.store.list_tokens(OPERATOR)) == 1


async def test_a_token_that_stopped_working_is_replaced(team: Team, data: Path) -> None:
    bootstrap = Bootstrap(team.store, team.clock, data)
    operator, local = await bootstrap.run(loopback=True)
    await team.store.revoke_token(TokenId(operator.read_text().split("_")[1]))
    local.write_bytes(b"\xff garbage")
    await bootstrap.run(loopback=True)
    assert (await bearer(team, operator)).principal.id == OPERATOR
    assert (await bearer(team, local)).principal.id == LOCAL


async def test_a_disabled_principal_stays_out(team: Team, data: Path) -> None:
    bootstrap = Bootstrap(team.store, team.clock, data)
    await bootstrap.run(loopback=True)
    await team.store.disable_principal(PrincipalId("local"))
    files = await bootstrap.run(loopback=True)
    assert [path.name for path in files] == ["operator.token"]


async def test_beyond_loopback_only_the_first_operator_is_made(team: Team, tmp_path: Path) -> None:
    files = await Bootstrap(team.store, team.clock, tmp_path / "one").run(loopback=False)
    assert [path.name for path in files] == ["operator.token"]
    assert await team.store.find_principal(LOCAL) is None
    assert await Bootstrap(team.store, team.clock, tmp_path / "two").run(loopback=False) == []
    assert await Bootstrap(team.store, team.clock, tmp_path / "one").run(loopback=False) == files


async def test_several_servers_may_start_over_one_database_at_once(team: Team, tmp_path: Path) -> None:
    starts = [Bootstrap(team.store, team.clock, tmp_path / f"data{n % 2}") for n in range(6)]
    for files in await asyncio.gather(*(start.run(loopback=True) for start in starts)):
        assert [(await bearer(team, path)).principal.id for path in files] == [OPERATOR, LOCAL]
