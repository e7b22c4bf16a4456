"""Between leases and ownership: ends the locks whose leases are gone, keeps those alive that calls here wait for.

etcd (or this process) says who is alive, the store who owns. What is seen to be dead here is ended under the board's row
lock, together with the grant to whoever is next; several replicas doing so at once do no harm, since lock ids are never
reused and a lease that is gone is gone for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from slateboard_server.domain.commit import Claim
from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.locks import LockRecord, LockState, ReapLocks
from slateboard_server.domain.values import BoardId, LockId, Micros, SessionId
from slateboard_server.ports import Clock, Lease, LiveLock, Liveness, Store
from slateboard_server.services.directory import BoardDirectory, BoardHandle

log = structlog.get_logger(__name__)

_TOGETHER: Final = 0.02
"""Seconds in which leases that end are looked at together."""
_SLACK: Final = 0.25
"""Seconds by which a lease is taken to be shorter than was promised: clocks do not run quite alike."""
_TICK: Final = 0.25
"""Seconds between looks at which waiters' leases are due."""


@dataclass(eq=False, slots=True)
class Wait:
    """A call that waits for a lock."""

    lease: Lease
    board: str
    ttl: int
    renew_at: float
    """Monotonic seconds."""
    dead_at: float
    """Monotonic seconds at which the lease has ended, unless it is renewed before."""
    record: LockRecord | None = None
    """Its state once that is no longer WAITING."""
    poked: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, record: LockRecord) -> None:
        """Hear how the wait ended."""
        if record.state is not LockState.WAITING:
            self.record = record
            self.poked.set()


class LockKeeper:
    """One a replica."""

    def __init__(
        self,
        directory: BoardDirectory,
        store: Store,
        liveness: Liveness,
        clock: Clock,
        *,
        sweep_interval: float = 2.0,
    ) -> None:
        """Look after the locks of `directory`'s boards; every `sweep_interval` (s) after all there are."""
        self.liveness = liveness
        self._directory = directory
        self._store = store
        self._clock = clock
        self._sweep_interval = sweep_interval
        self._waits: dict[Lease, set[Wait]] = {}
        self._sure: dict[Lease, float] = {}
        """Leases begun or lengthened here, with the monotonic second until which they cannot run out by themselves."""
        self._spare: list[Lease] = []
        """Leases of locks that have ended."""
        self._ended: dict[Lease, None] = {}
        """Leases that were heard to have ended and not looked at yet."""
        self._looking_at_ended = False
        self._unsure: set[BoardId] = set()
        """Boards whose locks another replica may have changed."""
        self._look = asyncio.Event()
        self._changed: dict[BoardId, asyncio.Event] = {}
        self._names: dict[BoardId, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._loose: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take over what was held when the process before this one ended; then look after it."""
        self._directory.on_locks_changed = self._on_changed
        if self._directory.settings.exclusive:
            held = [lock for lock in await self._store.live_locks() if lock.state is LockState.HELD]
            await self.liveness.adopt([(lock.lease, lock.ttl) for lock in held])
        self._tasks = [
            asyncio.create_task(self._follow_deaths(), name="lock-deaths"),
            asyncio.create_task(self._sweep_on(), name="lock-sweep"),
            asyncio.create_task(self._renew_waits(), name="lock-waits"),
            asyncio.create_task(self._look_on(), name="lock-looks"),
        ]

    def drain(self) -> None:
        """Send away who waits here; their places are kept for as long as their leases last."""
        for waits in self._waits.values():
            for wait in waits:
                wait.poked.set()
        for event in self._changed.values():
            event.set()

    async def close(self) -> None:
        """Stop. Leases live on."""
        tasks = [*self._tasks, *self._loose]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Have something done behind a call's back; failures are logged, and mended by the sweep."""

        async def quietly() -> None:
            try:
                await work
            except SlateboardError as error:
                log.info("lock upkeep interrupted", reason=error.reason)
            except Exception:
                log.exception("lock upkeep failed")

        task = asyncio.get_running_loop().create_task(quietly())
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    # Who hears of changes

    def _on_changed(self, board_id: BoardId, locks: Sequence[LockRecord]) -> None:
        for lock in locks:
            for wait in self._waits.get(Lease(board_id, lock.lock_id), ()):
                wait.tell(lock)
        if not locks:
            self._unsure.add(board_id)
            self._look.set()
        event = self._changed.pop(board_id, None)
        if event is not None:
            event.set()

    def changed(self, board_id: BoardId) -> asyncio.Event:
        """Return an event that the next change of a lock on the board sets: a hint, some may come unannounced."""
        return self._changed.setdefault(board_id, asyncio.Event())

    async def _look_on(self) -> None:
        """Read what others may have changed of what is waited for here, once for all who wait."""
        settings = self._directory.settings
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if settings.exclusive else settings.poll_interval):
                    await self._look.wait()
            poked = self._look.is_set()
            self._look.clear()
            unsure, self._unsure = self._unsure, set()
            by_board: dict[BoardId, list[LockId]] = {}
            for lease in self._waits:
                if not poked or lease.board_id in unsure:
                    by_board.setdefault(lease.board_id, []).append(lease.lock_id)
            for board_id, lock_ids in by_board.items():
                with contextlib.suppress(SlateboardError):
                    for lock in (await self._store.find_locks(board_id, lock_ids)).values():
                        for wait in self._waits.get(Lease(board_id, lock.lock_id), ()):
                            wait.tell(lock)

    # Leases

    async def grant(self, lease: Lease, ttl: int) -> int:
        """Begin a lease, and remember for how long it lasts; see `Liveness.grant`."""
        begun = self._clock.monotonic()
        granted = await self.liveness.grant(lease, ttl)
        self._sure[lease] = begun + granted - _SLACK
        return granted

    async def renew(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Lengthen leases, and remember for how long they last; see `Liveness.renew`."""
        begun = self._clock.monotonic()
        left = await self.liveness.renew(leases)
        for lease in leases:
            if lease in left:
                self._sure[lease] = begun + left[lease] - _SLACK
            else:
                self._sure.pop(lease, None)
        return left

    async def alive(self, leases: Sequence[Lease]) -> set[Lease]:
        """Tell which of these live: by what was promised here where that says it, otherwise by asking.

        A lease that was lengthened here does not run out before its time, unless it is ended: then its lock was ended
        before under the row lock, where every claim is checked anyway, or somebody did so behind our back, which the
        watch tells. So this is for claims and grants, and not for finding the dead.
        """
        now = self._clock.monotonic()
        steady = self.liveness.steady()
        sure = {lease for lease in leases if steady and now < self._sure.get(lease, now)}
        unsure = [lease for lease in leases if lease not in sure]
        return sure | await self.liveness.alive(unsure) if unsure else sure

    async def left(self, lease: Lease) -> float | None:
        """Return the seconds a lease has left, None for one that has ended; as for `alive`, asks only where it must."""
        if lease not in await self.alive([lease]):
            return None
        now = self._clock.monotonic()
        until = self._sure.get(lease, now)
        return until - now if until > now else (await self.renew([lease])).get(lease)

    # Waiting

    async def wait(self, handle: BoardHandle, lock: LockRecord, seconds: float) -> LockRecord | None:
        """Wait until a lock is granted or ended; None where it still waits after `seconds` or the server drains.

        Meanwhile its lease is renewed here; LOCK_EXPIRED where that failed for its whole ttl.
        """
        now = self._clock.monotonic()
        lease = Lease(handle.board_id, lock.lock_id)
        wait = Wait(lease, handle.meta.name, lock.ttl, now + lock.ttl / 3, now + lock.ttl)
        self._waits.setdefault(lease, set()).add(wait)
        try:
            # Granted between the answer that said "waiting" and now: nobody would say so again.
            known = await self._store.find_lock(handle.board_id, lock.lock_id)
            if known is not None:
                wait.tell(known)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await wait.poked.wait()
            return wait.record
        finally:
            waits = self._waits[lease]
            waits.discard(wait)
            if not waits:
                del self._waits[lease]

    async def _renew_waits(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            if self._spare:
                spare, self._spare = self._spare, []
                self.spawn(self.liveness.revoke(spare))
            now = self._clock.monotonic()
            due = [wait for waits in self._waits.values() for wait in waits if wait.renew_at <= now]
            if not due:
                continue
            try:
                left = await self.renew(list({wait.lease: None for wait in due}))
            except SlateboardError:
                # Until the lease's own end another try may go better; then it is gone, and so is the place.
                left = {wait.lease: wait.dead_at - now for wait in due if wait.dead_at > now}
                for wait in due:
                    wait.renew_at = now + 1
            else:
                for wait in due:
                    wait.renew_at = now + wait.ttl / 3
                    if wait.lease in left:
                        wait.dead_at = now + left[wait.lease]
            gone = [wait for wait in due if wait.lease not in left]
            if gone:
                self.spawn(self.reap({wait.lease: wait.board for wait in gone}))

    # The dead

    async def dead_claims(self, handle: BoardHandle, claims: Sequence[Claim]) -> frozenset[LockId]:
        """Tell which claimed locks' leases are gone. LOCK_BACKEND_DOWN where that cannot be said."""
        leases = [Lease(handle.board_id, claim.lock_id) for claim in claims]
        alive = await self.alive(leases)
        return frozenset(lease.lock_id for lease in leases if lease not in alive)

    async def reap_dead(self, handle: BoardHandle, lock_ids: Iterable[LockId]) -> bool:
        """End those of these locks whose leases are gone; tells whether there were any."""
        leases = [Lease(handle.board_id, lock_id) for lock_id in dict.fromkeys(lock_ids)]
        if not leases:
            return False
        alive = await self.liveness.alive(leases)
        dead = {lease: handle.meta.name for lease in leases if lease not in alive}
        if dead:
            await self.reap(dead)
        return bool(dead)

    async def reap(self, dead: dict[Lease, str]) -> None:
        """End locks whose leases are gone, and grant what waited for them. Leases come with their boards' names."""
        by_board: dict[tuple[BoardId, str], set[LockId]] = {}
        for lease, name in dead.items():
            self._sure.pop(lease, None)
            by_board.setdefault((lease.board_id, name), set()).add(lease.lock_id)
        for (board_id, name), lock_ids in by_board.items():
            await self._apply(board_id, name, ReapLocks(dead=frozenset(lock_ids)))

    async def session_ended(self, handle: BoardHandle, session_id: SessionId) -> None:
        """End the locks of a session that has ended."""
        await self._apply(handle.board_id, handle.meta.name, ReapLocks(session=session_id))

    async def _apply(self, board_id: BoardId, name: str, op: ReapLocks) -> None:
        handle = await self._directory.open_by_id(board_id, name)
        if handle is None:
            return
        verdict = await handle.queue.submit_lock(op, self._directory.settings.commit_timeout)
        self.verify_granted(handle, verdict.changed)

    def verify_granted(self, handle: BoardHandle, changed: Sequence[LockRecord]) -> None:
        """See that what was just granted to waiters went to somebody alive; otherwise the next one gets it."""
        granted = [lock.lock_id for lock in changed if lock.state is LockState.HELD]
        if granted:
            self.spawn(self._verify(handle, granted))
        # Nothing rests on it that a lease of an ended lock goes: a little later, and many together, costs others less.
        self._spare += [Lease(handle.board_id, lock.lock_id) for lock in changed if not lock.state.live]

    async def _verify(self, handle: BoardHandle, granted: Sequence[LockId]) -> None:
        await self.reap_dead(handle, granted)

    async def _follow_deaths(self) -> None:
        async for lease in self.liveness.deaths():
            self._sure.pop(lease, None)
            self._ended[lease] = None
            if not self._looking_at_ended:
                self._looking_at_ended = True
                self.spawn(self._look_at_ended())

    async def _look_at_ended(self) -> None:
        """See whose leases ended. Most did because their locks were released, and many do together: one read for all."""
        await asyncio.sleep(_TOGETHER)
        self._looking_at_ended = False
        ended, self._ended = self._ended, {}
        by_board: dict[BoardId, list[LockId]] = {}
        for lease in ended:
            by_board.setdefault(lease.board_id, []).append(lease.lock_id)
        for board_id, lock_ids in by_board.items():
            known = await self._store.find_locks(board_id, lock_ids)
            live = [Lease(board_id, lock.lock_id) for lock in known.values() if lock.state.live]
            name = await self._name_of(board_id) if live else None
            if name is not None:
                alive = await self.liveness.alive(live)
                await self.reap({lease: name for lease in live if lease not in alive})

    async def _name_of(self, board_id: BoardId) -> str | None:
        if board_id not in self._names:
            with contextlib.suppress(SlateboardError):
                for lock in await self._store.live_locks():
                    self._names[lock.lease.board_id] = lock.board
        return self._names.get(board_id)

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_interval)
            try:
                await self.sweep()
            except SlateboardError as error:
                log.info("lock sweep interrupted", reason=error.reason)
            except Exception:
                log.exception("lock sweep failed")

    async def sweep(self) -> None:
        """Look at every live lock there is: whether its lease lives, and whether it was held for too long."""
        now = self._clock.monotonic()
        self._sure = {lease: until for lease, until in self._sure.items() if until > now}
        locks = await self._store.live_locks()
        self._names = {lock.lease.board_id: lock.board for lock in locks}
        if not locks:
            return
        await self._end_overdue(locks)
        alive = await self.liveness.alive([lock.lease for lock in locks])
        dead = {lock.lease: lock.board for lock in locks if lock.lease not in alive}
        if dead:
            await self.reap(dead)

    async def _end_overdue(self, locks: Sequence[LiveLock]) -> None:
        now = Micros(self._clock.now())
        overdue: dict[tuple[BoardId, str], set[LockId]] = {}
        for lock in locks:
            if lock.due is not None and lock.due <= now:
                overdue.setdefault((lock.lease.board_id, lock.board), set()).add(lock.lease.lock_id)
        for (board_id, name), lock_ids in overdue.items():
            await self._apply(board_id, name, ReapLocks(overdue=frozenset(lock_ids)))
