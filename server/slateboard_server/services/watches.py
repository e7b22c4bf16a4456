"""Following a board: every visible change, one batch a revision, in order, each once.

A watcher holds no more than a position and the event it is about to hand over: what it has not taken yet stays in the
feed's ring, which all share and which is bounded, or in the store, where one that falls behind reads it in chunks. So
memory does not grow with slow watchers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slateboard_server.domain.entry import LoggedCommit, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.limits import MAX_WATCH_BATCH_BYTES
from slateboard_server.domain.values import Incarnation, Region, Revision
from slateboard_server.ports import At, Clock, ReadMode, Store
from slateboard_server.services.directory import BoardDirectory, BoardHandle, draining
from slateboard_server.services.feed import BoardFeed
from slateboard_server.services.model import (
    BatchEvent,
    Caller,
    GoingAwayEvent,
    ProgressEvent,
    SnapshotEvent,
    Stamp,
    WatchEvent,
    WatchSpec,
)
from slateboard_server.services.reads import future_revision, reply_size
from slateboard_server.services.scope import Scope, watched_regions, without_covered

_RING_CHUNK = 64
_STORE_COMMITS = 128
_STORE_BYTES = 1 << 20
_SNAPSHOT_CHUNK = 256


@dataclass(eq=False, slots=True)
class _Follower:
    """Wakes one watcher."""

    _future: asyncio.Future[None] | None = field(default=None)
    _timer: asyncio.TimerHandle | None = field(default=None)
    _woken: bool = False

    def wake(self) -> None:
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _ring(self) -> None:
        self._timer = None
        self.wake()

    async def wait(self, timeout: float) -> None:
        """Wait until woken since the last wait, or until at most `timeout` seconds have passed.

        A timer that an earlier wait set goes on running, so a busy board sets one every now and then, not one a commit.
        """
        if not self._woken:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            if self._timer is None or self._timer.when() > loop.time() + timeout:
                self.close()
                self._timer = loop.call_later(timeout, self._ring)
            try:
                await self._future
            finally:
                self._future = None
        self._woken = False

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Cuts:
    """Commits as watchers see them, cut once for all who see and ask for the same.

    Most watchers of a board do: workers of one role follow one prefix.
    """

    _KEPT = 512
    _SMALL = 32 << 10
    """Bytes; larger commits are cut anew for each watcher, so that what is kept stays below 16 MiB."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], int] = {}
        self._cuts: OrderedDict[tuple[int, int, int], tuple[BatchEvent, ...]] = OrderedDict()

    def kind_of(self, scope: Scope, spec: WatchSpec, prefixes: tuple[tuple[Region, str], ...]) -> int:
        """Return the number of a way to see and ask."""
        if len(self._kinds) >= 4 * self._KEPT:
            self._kinds.clear()
            self._cuts.clear()
        what = (scope.principal, scope.floor, spec.values, prefixes)
        return self._kinds.setdefault(what, next(_NUMBERS))

    def events(
        self,
        kind: int,
        feed: BoardFeed,
        logged: LoggedCommit,
        scope: Scope,
        spec: WatchSpec,
        prefixes: tuple[tuple[Region, str], ...],
    ) -> tuple[BatchEvent, ...]:
        """Return what a watcher of that kind hears of a commit."""
        place = (feed.board_id, logged.commit.revision, kind)
        cut = self._cuts.get(place)
        if cut is None or (
            cut and (cut[0].commit is not logged or cut[0].stamp.oldest_revision != feed.floor)
        ):
            cut = tuple(_events(feed.floor, feed.incarnation, logged, scope, spec, prefixes))
            if logged.size > self._SMALL:
                return cut
            self._cuts[place] = cut
            if len(self._cuts) > self._KEPT:
                self._cuts.popitem(last=False)
        return cut


_NUMBERS = itertools.count()
"""Kinds are never numbered alike, also after they were forgotten."""


class Watches:
    """EntryService's Watch."""

    def __init__(self, directory: BoardDirectory, store: Store, clock: Clock) -> None:
        """Follow the feeds of `directory`."""
        self._directory = directory
        self._store = store
        self._clock = clock
        self._cuts = _Cuts()

    async def watch(
        self, caller: Caller, board: str, spec: WatchSpec, still_allowed: Callable[[], Awaitable[Caller]]
    ) -> AsyncIterator[WatchEvent]:
        """Follow a board until the caller leaves or an error ends it.

        `still_allowed` re-authenticates the credential: it is asked every `recheck_interval` and whenever the policy
        changes, and raises once the right to watch is gone.
        """
        scope = Scope(caller, spec.min_trust)
        prefixes = without_covered(spec.prefixes)
        handle = await self._directory.enter(caller, board, scope, watched_regions(prefixes))
        self._admit(handle)
        follower = _Follower()
        handle.watches += 1
        handle.feed.follow(follower)
        try:
            feed = handle.feed
            position = await self._start(handle, spec)
            if spec.snapshot:
                async for snapshot in self._snapshot(handle, scope, spec, prefixes, position):
                    yield snapshot
            else:
                # Tells at once where the stream begins: without it a follower of a silent board would not know.
                yield ProgressEvent(Stamp(position, feed.floor, feed.incarnation))
            clock, recheck = self._clock, self._directory.settings.recheck_interval
            policy = handle.meta.policy.version
            kind = self._cuts.kind_of(scope, spec, prefixes)
            checked = told = clock.monotonic()
            while True:
                if feed.ended is not None:
                    raise feed.ended
                now = clock.monotonic()
                if now - checked >= recheck or handle.meta.policy.version != policy:
                    scope = await self._scope_again(handle, spec, still_allowed)
                    kind = self._cuts.kind_of(scope, spec, prefixes)
                    policy = handle.meta.policy.version
                    checked = clock.monotonic()
                commits = feed.recent(position, _RING_CHUNK)
                if commits is None:
                    commits = await self._from_store(handle, position)
                for logged in commits:
                    for event in self._cuts.events(kind, feed, logged, scope, spec, prefixes):
                        yield event
                        told = now
                    position = logged.commit.revision
                if commits:
                    continue
                if self._directory.draining:
                    stamp = Stamp(position, feed.floor, feed.incarnation)
                    yield GoingAwayEvent(stamp, "the server is shutting down")
                    raise draining()
                idle = now - told
                if idle >= spec.progress_interval:
                    yield ProgressEvent(Stamp(position, feed.floor, feed.incarnation))
                    told, idle = now, 0.0
                await follower.wait(min(spec.progress_interval - idle, recheck))
        finally:
            follower.close()
            handle.feed.unfollow(follower)
            handle.watches -= 1

    async def _scope_again(
        self, handle: BoardHandle, spec: WatchSpec, still_allowed: Callable[[], Awaitable[Caller]]
    ) -> Scope:
        caller = await still_allowed()
        if not caller.principal.has_board(handle.meta.name):
            raise SlateboardError(Reason.DENIED, "the right to watch this board is gone; ask an operator")
        return Scope(caller, spec.min_trust)

    def _admit(self, handle: BoardHandle) -> None:
        if self._directory.draining:
            raise draining()
        limit = handle.meta.policy.quota.max_watches
        if limit and handle.watches >= limit:
            raise SlateboardError(
                Reason.QUOTA,
                f"{handle.watches} watches follow this board on this replica, the policy allows {limit}; close one",
                quota="max_watches",
                limit=limit,
            )

    async def _start(self, handle: BoardHandle, spec: WatchSpec) -> Revision:
        feed = handle.feed
        if spec.incarnation is not None and spec.incarnation != feed.incarnation:
            raise SlateboardError(
                Reason.BOARD_REINCARNATED,
                "the board began a new life since this cursor was handed out; read the present state and follow from"
                " there",
                incarnation=feed.incarnation,
            )
        if self._directory.settings.exclusive and not feed.suspect:
            head, floor = feed.applied, feed.floor
        else:
            primary = await self._directory.head(handle)
            head, floor = primary.revision, primary.floor
        if spec.after is None:
            return head
        if spec.after > head:
            raise future_revision(spec.after, head)
        if spec.after + 1 < floor:
            raise _compacted(spec.after, floor)
        return spec.after

    async def _from_store(self, handle: BoardHandle, position: Revision) -> Sequence[LoggedCommit]:
        """Return commits after `position`, for a watcher that fell behind the ring."""
        page = await self._store.read_log(handle.board_id, position, _STORE_COMMITS, _STORE_BYTES)
        if page.head.incarnation != handle.feed.incarnation:
            await self._directory.refresh(handle.board_id)
            return ()
        handle.feed.observe(page.head)
        if position + 1 < page.head.floor:
            # Compaction overtook this watcher: it must hear so, rather than find a gap.
            raise _compacted(position, page.head.floor)
        return page.commits

    async def _snapshot(
        self,
        handle: BoardHandle,
        scope: Scope,
        spec: WatchSpec,
        prefixes: tuple[tuple[Region, str], ...],
        revision: Revision,
    ) -> AsyncIterator[SnapshotEvent]:
        feed = handle.feed
        stamp = Stamp(revision, feed.floor, feed.incarnation)
        gathered: list[VersionRecord] = []
        size = 0
        at = At(ReadMode.EXACT, revision)
        # EXACT judges expiry by the revision's own time; what has expired since then is absent as well.
        now = max(self._clock.now(), feed.commit_time)
        for region, prefix in prefixes if revision else ():
            if not scope.may_read_some(region, prefix):
                continue
            after, more = "", True
            while more:
                scan = await self._store.scan(
                    handle.board_id, region, prefix, after, _SNAPSHOT_CHUNK, at, values=spec.values
                )
                more = scan.more
                for record in scan.records:
                    after = record.key
                    if not scope.visible(record) or not record.present_at(now):
                        continue
                    cost = reply_size(record, spec.values)
                    if gathered and size + cost > MAX_WATCH_BATCH_BYTES:
                        yield SnapshotEvent(stamp, gathered, last=False)
                        gathered, size = [], 0
                    gathered.append(record)
                    size += cost
        yield SnapshotEvent(stamp, gathered, last=True)


def _events(
    floor: Revision,
    incarnation: Incarnation,
    logged: LoggedCommit,
    scope: Scope,
    spec: WatchSpec,
    prefixes: tuple[tuple[Region, str], ...],
) -> Iterator[BatchEvent]:
    """Cut a commit down to what a watcher may see and asked for, in messages of at most 3 MiB."""
    shown = [
        record
        for record in logged.versions
        if any(record.region == region and record.key.startswith(prefix) for region, prefix in prefixes)
        and scope.may_read(record.region, record.key)
    ]
    if not shown:
        return
    stamp = Stamp(logged.commit.revision, floor, incarnation)
    part: list[VersionRecord] = []
    withheld: set[int] = set()
    size = 0
    for record in shown:
        # A value below the floor is told without content: else a follower would keep the one it replaced.
        below = scope.floor is not None and record.is_value and record.trust < scope.floor
        cost = reply_size(record, spec.values and not below)
        if part and size + cost > MAX_WATCH_BATCH_BYTES:
            yield BatchEvent(stamp, logged, part, complete=False, withheld=frozenset(withheld))
            part, withheld, size = [], set(), 0
        if below:
            withheld.add(len(part))
        part.append(record)
        size += cost
    yield BatchEvent(stamp, logged, part, complete=True, withheld=frozenset(withheld))


def _compacted(after: int, floor: int) -> SlateboardError:
    return SlateboardError(
        Reason.COMPACTED,
        f"changes after revision {after} are not kept any more, the oldest revision is {floor}; read the present state"
        " and follow from there",
        oldest_revision=floor,
    )
