"""Locks without gRPC, where leases can be made to end at the moment that matters."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slateboard_server.domain.commit import Claim
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.locks import LockMode, LockScope, LockState
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.values import SECOND, BoardId
from slateboard_server.ports import Lease
from slateboard_server.services.boards import Boards
from slateboard_server.services.janitor import Janitor
from slateboard_server.services.locks import Locks
from slateboard_server.services.model import LockAsk
from tests.services.conftest import BOARD, Team, put


@pytest.fixture
def locks(team: Team) -> Locks:
    return Locks(team.directory, team.store, team.keeper, team.clock)


def ask(path: str = "k", wait: float = 0, ttl: int = 2) -> LockAsk:
    scopes = (LockScope(SHARED, path),)
    return LockAsk(
        str(uuid.uuid4()), scopes, LockMode.EXCLUSIVE, ttl * SECOND, round(wait * SECOND), None, "", "", None
    )


async def test_a_grant_after_the_waiters_own_lease_has_ended_is_never_answered_ok(
    team: Team, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T01 etcd#11456: B waits with ttl 2 s, its renewals do not get through, A releases at 4 s: B hears LOCK_EXPIRED."""
    _, held, _ = await locks.acquire(team["ann"], BOARD, ask(ttl=60))

    async def blocked(_: Sequence[Lease]) -> dict[Lease, float]:
        raise SlateboardError(Reason.LOCK_BACKEND_DOWN, "blocked by the test")

    async def nothing_dies(_: object) -> None:
        return None

    monkeypatch.setattr(team.keeper.liveness, "renew", blocked)
    monkeypatch.setattr(team.keeper, "reap", nothing_dies)  # nobody else notices either
    waiting = asyncio.create_task(locks.acquire(team["bob"], BOARD, ask(wait=20, ttl=2)))
    await asyncio.sleep(4)
    lock = held.lock
    await locks.release(team["ann"], BOARD, str(uuid.uuid4()), Claim(lock.lock_id, lock.token), None)
    with pytest.raises(SlateboardError) as caught:
        await waiting
    assert caught.value.reason is Reason.LOCK_EXPIRED


async def test_a_dead_waiter_that_was_promoted_gives_way_to_the_next(team: Team, locks: Locks) -> None:
    """Its lease is gone by the time of the grant: the lock goes on to whoever is alive, at once."""
    _, held, _ = await locks.acquire(team["ann"], BOARD, ask(ttl=60))
    dead = asyncio.create_task(locks.acquire(team["bob"], BOARD, ask(wait=20, ttl=30)))
    while not (waiting := await team.store.list_locks(_board(team), 0, 10, None, [LockState.WAITING])):  # noqa: ASYNC110 -- asked of the store
        await asyncio.sleep(0.01)
    alive = asyncio.create_task(locks.acquire(team["lead"], BOARD, ask(wait=20, ttl=30)))
    await asyncio.sleep(0.2)
    await team.keeper.liveness.revoke([Lease(_board(team), waiting[0].lock_id)])
    lock = held.lock
    await locks.release(team["ann"], BOARD, str(uuid.uuid4()), Claim(lock.lock_id, lock.token), None)
    _, granted, _ = await asyncio.wait_for(alive, 5)
    assert granted.lock.state is LockState.HELD
    with pytest.raises(SlateboardError):
        await dead


async def test_a_commit_refused_by_a_lock_nobody_alive_holds_is_made_after_all(
    team: Team, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEY_LOCKED by a dead lease: it is ended at once, not at the next sweep, and the commit goes through."""
    _, held, _ = await locks.acquire(team["ann"], BOARD, ask(ttl=60))
    with pytest.raises(SlateboardError) as caught:
        await team.commit("bob", put("k"))
    assert caught.value.reason is Reason.KEY_LOCKED

    async def unnoticed(*_: object) -> None:
        return None

    monkeypatch.setattr(team.keeper, "_look_at_ended", unnoticed)
    await team.keeper.liveness.revoke([Lease(_board(team), held.lock.lock_id)])
    result = await team.commit("bob", put("k"))
    assert result.answer.outcomes[0].version == 1


async def test_expiry_keeps_off_what_is_locked_and_comes_back(team: Team, locks: Locks) -> None:
    """The server's own writes obey locks: a value that expires under one gets its tombstone after the lock's end."""
    await team.commit("ann", put("k", ttl=SECOND))
    _, held, _ = await locks.acquire(team["ann"], BOARD, ask(ttl=60))
    team.clock.advance(5)
    janitor = Janitor(team.directory, team.store, team.commits, team.clock)
    assert await janitor.expire() == 0
    lock = held.lock
    await locks.release(team["ann"], BOARD, str(uuid.uuid4()), Claim(lock.lock_id, lock.token), None)
    assert await janitor.expire() == 1


async def test_a_retry_of_a_granted_ask_is_told_what_its_lease_has_left(team: Team, locks: Locks) -> None:
    """The answer got lost, the client asks again 2 s later: the lease is not as long any more as it was granted for."""
    first = ask(ttl=60)
    _, fresh, again = await locks.acquire(team["ann"], BOARD, first)
    assert (fresh.ttl_left, again) == (60 * SECOND, False)
    lease = Lease(_board(team), fresh.lock.lock_id)
    before = await team.keeper.liveness.time_left([lease])
    _, retried, again = await locks.acquire(team["ann"], BOARD, first)
    assert again
    assert retried.ttl_left is not None
    after = await team.keeper.liveness.time_left([lease])
    assert retried.ttl_left <= after[lease] * SECOND + SECOND // 100
    assert before[lease] <= 60


async def test_a_grant_is_told_no_longer_than_it_may_be_held(team: Team, locks: Locks) -> None:
    """max_hold below the ttl: what is told is when the lock ends."""
    _, view, _ = await locks.acquire(team["ann"], BOARD, replace(ask(ttl=60), max_hold=5 * SECOND))
    assert view.ttl_left is not None
    assert 0 < view.ttl_left <= 5 * SECOND


async def test_a_retry_that_does_not_wait_leaves_nothing_behind(team: Team, locks: Locks) -> None:
    """The first try waited and was cut off, the second asks with wait_timeout 0: no place in the queue is left."""
    await locks.acquire(team["ann"], BOARD, ask(ttl=60))
    waits = ask(wait=20, ttl=60)
    cut_off = asyncio.create_task(locks.acquire(team["bob"], BOARD, waits))
    while not await team.store.list_locks(_board(team), 0, 10, None, [LockState.WAITING]):  # noqa: ASYNC110 -- asked of the store
        await asyncio.sleep(0.01)
    cut_off.cancel()
    with pytest.raises(SlateboardError) as caught:
        await locks.acquire(team["bob"], BOARD, replace(waits, wait_timeout=0))
    assert caught.value.reason is Reason.LOCK_WAIT_TIMEOUT
    assert not await team.store.list_locks(_board(team), 0, 10, None, [LockState.WAITING])


async def test_who_waits_on_a_board_that_begins_a_new_life_hears_of_it_at_once(
    team: Team, locks: Locks
) -> None:
    """All locks of the life before are revoked: waiting on would be for nothing."""
    await locks.acquire(team["ann"], BOARD, ask(ttl=60))
    waiting = asyncio.create_task(locks.acquire(team["bob"], BOARD, ask(wait=30, ttl=60)))
    while not await team.store.list_locks(_board(team), 0, 10, None, [LockState.WAITING]):  # noqa: ASYNC110 -- asked of the store
        await asyncio.sleep(0.01)
    boards = Boards(team.directory, team.store, team.clock)
    handle = await team.directory.open(team["op"], BOARD)
    await boards.reincarnate(team["op"], BOARD, handle.feed.incarnation)
    with pytest.raises(SlateboardError) as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.reason is Reason.LOCK_REVOKED


async def test_a_lease_is_vouched_for_only_while_who_decides_is_heard_and_it_is_not_told_dead(
    team: Team, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim costs no question while the lease was lengthened here and all is well; with any doubt it is asked."""
    _, held, _ = await locks.acquire(team["ann"], BOARD, ask(ttl=60))
    lease = Lease(_board(team), held.lock.lock_id)
    asked: list[Sequence[Lease]] = []
    really_alive = team.keeper.liveness.alive

    async def count(leases: Sequence[Lease]) -> set[Lease]:
        asked.append(leases)
        return await really_alive(leases)

    monkeypatch.setattr(team.keeper.liveness, "alive", count)
    assert await team.keeper.alive([lease]) == {lease}
    assert asked == [[lease]]  # not steady: asked
    monkeypatch.setattr(team.keeper.liveness, "steady", lambda: True)
    assert await team.keeper.alive([lease]) == {lease}
    assert len(asked) == 1
    monkeypatch.setattr(team.clock, "monotonic", lambda: time.monotonic() + 60)  # past what was promised
    await team.keeper.alive([lease])
    assert len(asked) == 2
    monkeypatch.undo()
    monkeypatch.setattr(team.keeper.liveness, "alive", count)
    monkeypatch.setattr(team.keeper.liveness, "steady", lambda: True)
    await team.keeper.renew([lease])
    await team.keeper.alive([lease])
    assert len(asked) == 2
    monkeypatch.setattr(team.keeper, "_look_at_ended", lambda: asyncio.sleep(0))
    await team.keeper.liveness.revoke([lease])
    async with asyncio.timeout(5):
        while await team.keeper.alive([lease]):  # noqa: ASYNC110 -- until its death is told
            await asyncio.sleep(0.01)


def _board(team: Team) -> BoardId:
    return next(iter(team.directory._by_id))
