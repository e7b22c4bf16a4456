"""What happens when nobody asks: expiry is recorded, histories are compacted by policy, deleted boards are erased."""

from dataclasses import replace

import pytest

from slateboard_server.domain.names import SHARED
from slateboard_server.domain.policy import Policy
from slateboard_server.domain.values import SECOND, Key, Micros, Revision, Tombstone
from slateboard_server.ports import BoardMeta
from slateboard_server.services.janitor import Janitor
from slateboard_server.services.model import Want
from tests.services.conftest import BOARD, Team, put


@pytest.fixture
def janitor(team: Team) -> Janitor:
    return Janitor(team.directory, team.store, team.commits, team.clock)


async def meta_of(team: Team) -> BoardMeta:
    meta = await team.store.find_board(BOARD)
    assert meta is not None
    return meta


def soon(team: Team, seconds: float) -> Micros:
    return Micros(team.clock.now() + round(seconds * SECOND))


async def test_a_value_whose_time_has_passed_gets_a_tombstone_by_the_server(
    team: Team, janitor: Janitor
) -> None:
    await team.commit("ann", put("a", expire_time=soon(team, 60)), put("b"))
    assert await janitor.expire() == 0
    team.clock.advance(61)
    assert await janitor.expire() == 1
    assert await janitor.expire() == 0
    page = await team.reads.list_versions(team["ann"], BOARD, SHARED, Key("a"), 10, "", Want())
    newest = page.records[0]
    assert (newest.version, newest.tombstone, newest.principal) == (2, Tombstone.EXPIRED, "slateboard")


async def test_many_expired_values_go_in_few_commits(team: Team, janitor: Janitor) -> None:
    for start in range(0, 200, 100):
        await team.commit("ann", *(put(f"k/{start + n}", expire_time=soon(team, 60)) for n in range(100)))
    team.clock.advance(61)
    assert await janitor.expire() == 200
    assert (await meta_of(team)).head.revision == 2 + 4
    assert (await meta_of(team)).entries == 0


async def test_a_value_replaced_meanwhile_stays_and_does_not_hold_up_the_others(
    team: Team, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await team.commit("ann", *(put(f"k/{n}", expire_time=soon(team, 60)) for n in range(3)))
    team.clock.advance(61)
    found = await team.store.expired(team.clock.now(), 10)
    await team.commit("ann", put("k/1", b"new"))

    async def stale(now: Micros, limit: int) -> object:
        return found

    monkeypatch.setattr(team.store, "expired", stale)
    assert await janitor.expire() == 2
    read = await team.reads.get(team["ann"], BOARD, [(SHARED, Key("k/1"))], Want())
    assert [record.value for record in read.found] == [b"new"]


async def test_history_that_the_policy_does_not_retain_is_compacted(team: Team, janitor: Janitor) -> None:
    for version in range(4):
        await team.commit("ann", put("a", b"%d" % version, expect=version))
        team.clock.advance(100)
    assert await janitor.compact(await meta_of(team)) is None
    meta = await meta_of(team)
    retaining = replace(meta, policy=Policy(history_retention=250 * SECOND))
    assert await janitor.compact(retaining) == Revision(2)
    assert (await meta_of(team)).head.floor == 2
    page = await team.reads.list_versions(team["ann"], BOARD, SHARED, Key("a"), 10, "", Want())
    assert [record.compacted for record in page.records] == [False, False, False, True]
    assert await janitor.compact(replace(await meta_of(team), policy=retaining.policy)) is None
    team.clock.advance(10_000)
    assert await janitor.compact(replace(await meta_of(team), policy=retaining.policy)) == Revision(4)


async def test_an_empty_board_has_nothing_to_compact(team: Team, janitor: Janitor) -> None:
    meta = replace(await meta_of(team), policy=Policy(history_retention=0))
    assert await janitor.compact(meta) is None


async def test_a_sweep_erases_deleted_boards(team: Team, janitor: Janitor) -> None:
    await team.commit("ann", *(put(f"k/{n}") for n in range(100)))
    meta = await meta_of(team)
    await team.store.delete_board(meta.board_id, meta.head.incarnation)
    await janitor.sweep()
    assert await team.store.erase_deleted(10) == 0


async def test_a_step_that_fails_does_not_keep_the_others_from_running(
    team: Team, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[int] = []

    async def broken(now: Micros, limit: int) -> object:
        raise RuntimeError("no luck")

    async def prune(now: Micros, limit: int) -> int:
        pruned.append(limit)
        return 0

    monkeypatch.setattr(team.store, "expired", broken)
    monkeypatch.setattr(team.store, "prune", prune)
    await janitor.sweep()
    assert len(pruned) == 1


async def test_it_sweeps_by_itself_until_it_is_closed(team: Team) -> None:
    janitor = Janitor(team.directory, team.store, team.commits, team.clock, interval=0.01)
    await team.commit("ann", put("a", expire_time=soon(team, 60)))
    team.clock.advance(61)
    await janitor.start()
    handle = await team.directory.open(team["ann"], BOARD)
    await handle.feed.reached(Revision(2))
    await janitor.close()
    await janitor.close()
