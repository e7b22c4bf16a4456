"""LockService's calls that only look: one lock, lists, who waits for whom, and what changes.

A lock is shown to whoever can read something of what it covers, and to its owner; of its scopes those alone. Any other
lock answers like one that never was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.locking import lost, may_see
from slateboard_server.domain.locks import LockRecord, LockScope, LockState
from slateboard_server.domain.principal import Principal
from slateboard_server.domain.values import SECOND, LockId, Micros, PrincipalId
from slateboard_server.ports import Clock, Lease, Store
from slateboard_server.services.directory import BoardDirectory, BoardHandle
from slateboard_server.services.lock_keeper import LockKeeper
from slateboard_server.services.model import (
    Caller,
    LockChanges,
    LocksPage,
    LockView,
    WaitersPage,
    WaiterView,
)
from slateboard_server.services.page_tokens import PageTokens, page_size

_HELD: Final = (LockState.HELD,)
_WAITING: Final = (LockState.WAITING,)
_ALL: Final = tuple(state for state in LockState if state is not LockState.WAITING)
_MAX_LOOKED_AT: Final = 10_000
_CHANGES: Final = 500


class LockViews:
    """LockService's reading half."""

    def __init__(self, directory: BoardDirectory, store: Store, keeper: LockKeeper, clock: Clock) -> None:
        """Look at the locks of the boards of `directory`."""
        self._directory = directory
        self._store = store
        self._keeper = keeper
        self._clock = clock

    async def get(self, caller: Caller, board: str, lock_id: LockId) -> tuple[BoardHandle, LockView]:
        """Read one lock, live or ended in the last 24 h. LOCK_LOST for one that is unknown or not to be seen."""
        handle = await self._directory.open(caller, board)
        lock = await self._store.find_lock(handle.board_id, lock_id)
        shown = None if lock is None else visible(caller.principal, lock)
        if shown is None:
            raise lost(None, lock_id)
        return handle, (await self._with_time_left(handle, [shown]))[0]

    async def list(
        self,
        caller: Caller,
        board: str,
        size: int,
        page_token: str,
        covering: LockScope | None,
        principal: PrincipalId | None,
        *,
        include_ended: bool,
    ) -> LocksPage:
        """List held locks, and with `include_ended` those that ended in the last 24 h, in the order of asking."""
        states = _ALL if include_ended else _HELD
        handle = await self._directory.open(caller, board)
        tokens = PageTokens(
            handle.meta.secret, handle.feed.incarnation, "locks", caller.principal.id, covering, principal,
            include_ended,
        )  # fmt: skip
        locks, token = await self._page(handle, caller, tokens, size, page_token, covering, principal, states)
        views = await self._with_time_left(handle, locks)
        return LocksPage(handle.stamp(), views, token, self._now(handle))

    async def waiters(
        self, caller: Caller, board: str, size: int, page_token: str, covering: LockScope | None
    ) -> WaitersPage:
        """List who waits, in the order of asking, each with what is in its way."""
        handle = await self._directory.open(caller, board)
        tokens = PageTokens(
            handle.meta.secret, handle.feed.incarnation, "waiters", caller.principal.id, covering
        )
        waiting, token = await self._page(handle, caller, tokens, size, page_token, covering, None, _WAITING)
        scopes = list(dict.fromkeys(scope for lock in waiting for scope in lock.scopes))
        near = await self._store.overlapping_locks(handle.board_id, scopes) if scopes else []
        shown = {
            lock.lock_id: view
            for lock in near
            if (cut := visible(caller.principal, lock)) is not None
            for view in [LockView(cut, None)]
        }
        views = await self._with_time_left(handle, waiting)
        waiters = [
            WaiterView(
                view,
                [
                    shown[other.lock_id]
                    for other in near
                    if other.lock_id in shown
                    and other.lock_id != view.lock.lock_id
                    and (other.state is LockState.HELD or other.number < view.lock.number)
                    and other.conflicts(view.lock.mode, view.lock.scopes)
                ],
            )
            for view in views
        ]
        return WaitersPage(handle.stamp(), waiters, token, self._now(handle))

    async def watch(
        self,
        caller: Caller,
        board: str,
        covering: LockScope | None,
        after: int,
        progress_interval: float,
        still_allowed: Callable[[], Awaitable[Caller]],
    ) -> AsyncIterator[LockChanges]:
        """Follow locks: those that live (`after` 0) or changed since, then every change; the latest state of each.

        A sign of life every `progress_interval` seconds. Ends with a going-away where the server drains, and with the
        error where the board or the right to look is gone.
        """
        handle = await self._directory.open(caller, board)
        settings = self._directory.settings
        first = after == 0
        said_at = self._clock.monotonic()
        checked_at = said_at
        while True:
            # Asked for before reading: what changes from here on is not missed.
            changed = self._keeper.changed(handle.board_id)
            now = self._clock.monotonic()
            if now - checked_at >= settings.recheck_interval:
                checked_at = now
                caller = await still_allowed()
                handle = await self._directory.open(caller, board)
            locks, sequence = await self._store.lock_changes(
                handle.board_id, after, _CHANGES, live_only=first
            )
            more = len(locks) == _CHANGES
            after = locks[-1].sequence if more else max(sequence, after)
            shown = [
                cut
                for lock in locks
                if (covering is None or lock.overlaps([covering]))
                and (cut := visible(caller.principal, lock)) is not None
            ]
            if shown or first or now - said_at >= progress_interval:
                said_at = now
                views = await self._with_time_left(handle, shown)
                yield LockChanges(handle.stamp(), views, after)
            if more:
                continue
            first = False
            if self._directory.draining:
                yield LockChanges(handle.stamp(), (), after, going_away=True)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    min(settings.recheck_interval, settings.poll_interval, progress_interval)
                ):
                    await changed.wait()

    async def _page(
        self,
        handle: BoardHandle,
        caller: Caller,
        tokens: PageTokens,
        size: int,
        page_token: str,
        covering: LockScope | None,
        principal: PrincipalId | None,
        states: Sequence[LockState],
    ) -> tuple[Sequence[LockRecord], str]:
        limit = page_size(size)
        position = tokens.read(page_token)
        after = 0 if position is None else int(position["after"])
        shown: list[LockRecord] = []
        looked_at = 0
        more = True
        while more and len(shown) < limit and looked_at < _MAX_LOOKED_AT:
            chunk = await self._store.list_locks(handle.board_id, after, limit, principal, states)
            looked_at += len(chunk)
            more = len(chunk) == limit
            for lock in chunk:
                if len(shown) == limit:
                    more = True
                    break
                after = lock.number
                if covering is not None and not lock.overlaps([covering]):
                    continue
                if (cut := visible(caller.principal, lock)) is not None:
                    shown.append(cut)
        return shown, tokens.make(after=after) if more else ""

    async def _with_time_left(self, handle: BoardHandle, locks: Sequence[LockRecord]) -> Sequence[LockView]:
        leases = [Lease(handle.board_id, lock.lock_id) for lock in locks if lock.state.live]
        left: dict[Lease, float] = {}
        # Liveness that cannot be asked must not keep anybody from seeing who owns what.
        with contextlib.suppress(SlateboardError):
            left = await self._keeper.liveness.time_left(leases) if leases else {}
        views = []
        for lock in locks:
            seconds = left.get(Lease(handle.board_id, lock.lock_id))
            views.append(LockView(lock, None if seconds is None else round(seconds * SECOND)))
        return views

    def _now(self, handle: BoardHandle) -> Micros:
        return max(self._clock.now(), handle.feed.commit_time)


def visible(principal: Principal, lock: LockRecord) -> LockRecord | None:
    """Cut a lock down to what a principal may see of it; None if that is nothing."""
    if lock.principal == principal.id:
        return lock
    scopes = tuple(scope for scope in lock.scopes if may_see(principal, scope))
    return replace(lock, scopes=scopes) if scopes else None
