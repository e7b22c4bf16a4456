"""One suite over both ways to keep locks alive: leases in this process, leases in etcd."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from slateboard_server.domain.values import BoardId, LockId
from slateboard_server.liveness import EtcdLiveness, LocalLiveness
from slateboard_server.ports import Lease, Liveness
from slateboard_server.services.locks import new_lock_id


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()


def fresh(board: int = 1) -> Lease:
    return Lease(BoardId(board), new_lock_id())


@pytest.fixture(params=["local", "etcd"])
async def liveness(request: pytest.FixtureRequest) -> AsyncIterator[Liveness]:
    made: Liveness
    if request.param == "local":
        made = LocalLiveness(SystemClock())  # type: ignore[arg-type]
    else:
        cluster = request.getfixturevalue("etcd")
        made = EtcdLiveness(cluster.endpoints, prefix=request.getfixturevalue("etcd_prefix"))
    await made.start()
    yield made
    await made.close()


async def died(liveness: Liveness, lease: Lease, seconds: float) -> float:
    """Wait until a lease is gone; returns how long that took."""
    begin = time.monotonic()
    while lease in await liveness.alive([lease]):
        assert time.monotonic() - begin < seconds
        await asyncio.sleep(0.05)
    return time.monotonic() - begin


async def test_a_granted_lease_lives_for_its_ttl_and_no_longer(liveness: Liveness) -> None:
    lease = fresh()
    assert await liveness.alive([lease]) == set()
    assert await liveness.grant(lease, 2) >= 2
    assert await liveness.alive([lease]) == {lease}
    assert await died(liveness, lease, 8) > 1.5
    assert await liveness.renew([lease]) == {}


async def test_renewing_lengthens_a_lease_to_its_full_ttl(liveness: Liveness) -> None:
    lease = fresh()
    await liveness.grant(lease, 2)
    for _ in range(6):
        await asyncio.sleep(0.5)
        left = await liveness.renew([lease])
        assert 1.5 <= left[lease] <= 2.5
    assert await liveness.alive([lease]) == {lease}


async def test_what_is_gone_cannot_be_renewed(liveness: Liveness) -> None:
    alive, gone, never = fresh(), fresh(), fresh(2)
    for lease in (alive, gone):
        await liveness.grant(lease, 30)
    await liveness.revoke([gone, never])
    await liveness.revoke([gone])
    assert set(await liveness.renew([alive, gone, never])) == {alive}
    assert await liveness.alive([alive, gone, never]) == {alive}
    assert set(await liveness.time_left([alive, gone, never])) == {alive}


async def test_the_granted_ttl_is_told_and_never_shorter(liveness: Liveness) -> None:
    for ttl in (2, 7, 3_600):
        lease = fresh()
        granted = await liveness.grant(lease, ttl)
        assert ttl <= granted <= ttl + 2
        left = (await liveness.time_left([lease]))[lease]
        assert granted - 2 <= left <= granted


async def test_granting_a_living_lease_answers_like_renewing_it(liveness: Liveness) -> None:
    lease = fresh()
    await liveness.grant(lease, 2)
    await asyncio.sleep(1.2)
    assert await liveness.grant(lease, 2) >= 2
    await asyncio.sleep(1.2)
    assert await liveness.alive([lease]) == {lease}


async def test_granting_a_living_lease_never_cuts_it_short(liveness: Liveness) -> None:
    lease = fresh()
    await liveness.grant(lease, 30)
    assert await liveness.grant(lease, 2) >= 30
    assert (await liveness.time_left([lease]))[lease] > 20
    assert (await liveness.renew([lease]))[lease] > 20


async def test_deaths_are_told_soon_after_they_happen(liveness: Liveness) -> None:
    heard: asyncio.Queue[Lease] = asyncio.Queue()

    async def follow() -> None:
        async for lease in liveness.deaths():
            heard.put_nowait(lease)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.3)
    revoked, expiring, living = fresh(), fresh(7), fresh()
    await liveness.grant(revoked, 30)
    await liveness.grant(living, 30)
    await liveness.grant(expiring, 2)
    await liveness.revoke([revoked])
    async with asyncio.timeout(10):
        assert await heard.get() == revoked
        assert await heard.get() == expiring
    assert heard.empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_thousand_leases_are_renewed_and_asked_about_at_once(liveness: Liveness) -> None:
    leases = [fresh(number % 3) for number in range(1_000)]
    for start in range(0, 1_000, 100):
        await asyncio.gather(*(liveness.grant(lease, 60) for lease in leases[start : start + 100]))
    halves: Sequence[Sequence[Lease]] = (leases[:600], leases[400:])
    answers = await asyncio.gather(*(liveness.renew(half) for half in halves))
    assert [set(answer) for answer in answers] == [set(half) for half in halves]
    await liveness.revoke(leases[:10])
    assert await liveness.alive(leases) == set(leases[10:])
    assert await liveness.alive(leases[5:15]) == set(leases[10:15])


async def test_cancelled_calls_leave_nothing_running(liveness: Liveness) -> None:
    lease = fresh()
    await liveness.grant(lease, 30)
    await liveness.renew([lease])  # opens the stream that renewals share
    await asyncio.sleep(0.1)
    before = len(asyncio.all_tasks())
    for delay in range(20):
        task = asyncio.create_task(liveness.renew([lease, fresh()]))
        await asyncio.sleep(delay / 10_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert set(await liveness.renew([lease])) == {lease}
    await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) <= before


class HandClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.time


async def test_a_process_that_was_away_gives_every_lease_that_time(request: pytest.FixtureRequest) -> None:
    """Its holders could not renew meanwhile: nobody is declared dead for the server's own absence."""
    clock = HandClock()
    leases = LocalLiveness(clock)  # type: ignore[arg-type]
    lease = Lease(BoardId(1), LockId("l-1"))
    await leases.grant(lease, 4)
    for _ in range(8):
        clock.time += 0.25
        leases.tick()
    assert await leases.time_left([lease]) == {lease: 2.0}
    clock.time += 60.25  # stopped for a minute between two ticks
    assert await leases.alive([lease]) == {lease}
    assert 1.5 < (await leases.time_left([lease]))[lease] <= 2.25
    for _ in range(8):
        clock.time += 0.25
        leases.tick()
    clock.time += 0.3
    assert await leases.alive([lease]) == set()


async def test_after_a_restart_each_held_lock_gets_one_fresh_ttl() -> None:
    clock = HandClock()
    leases = LocalLiveness(clock)  # type: ignore[arg-type]
    held = Lease(BoardId(1), LockId("l-1"))
    await leases.adopt([(held, 5)])
    assert await leases.time_left([held]) == {held: 5.0}


async def test_a_lease_whose_time_is_up_cannot_be_renewed_before_the_next_tick_either() -> None:
    clock = HandClock()
    leases = LocalLiveness(clock)  # type: ignore[arg-type]
    lease = Lease(BoardId(1), LockId("l-1"))
    await leases.grant(lease, 2)
    for _ in range(2):
        clock.time += 1.0  # late, but not so late that the process was away
        await leases.alive([])
    assert await leases.renew([lease]) == {}
    assert await leases.alive([lease]) == set()
    assert await leases.time_left([lease]) == {}


@pytest.mark.parametrize("ask", ["renew", "grant", "alive", "time_left"])
async def test_whoever_asks_first_after_a_stop_finds_the_lease_alive(ask: str) -> None:
    """The call runs before the tick that would notice: it notices by itself."""
    clock = HandClock()
    leases = LocalLiveness(clock)  # type: ignore[arg-type]
    lease = Lease(BoardId(1), LockId("l-1"))
    await leases.grant(lease, 2)
    clock.time += 3_600
    if ask == "grant":
        assert await leases.grant(lease, 2) == 2
    else:
        assert lease in await getattr(leases, ask)([lease])
    clock.time += 0.25
    assert await leases.alive([lease]) == {lease}


async def test_deaths_that_nobody_listens_to_do_not_pile_up() -> None:
    clock = HandClock()
    leases = LocalLiveness(clock)  # type: ignore[arg-type]
    many = [Lease(BoardId(1), LockId(f"l-{number:016x}")) for number in range(1, 10_101)]
    for lease in many:
        await leases.grant(lease, 2)
    await leases.revoke(many)
    deaths = leases.deaths()
    kept = {await anext(deaths) for _ in range(10_000)}
    assert kept == set(many[100:])
    assert not leases._dead
    await deaths.aclose()  # type: ignore[attr-defined]
