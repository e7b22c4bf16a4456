"""What a replica knows of a board: how far it has applied the log, recent commits, and who waits for more.

One feed per board and replica. Commits come in through `apply`, from this replica's own commit queue or from the tail
reader in `directory.py`, always in revision order without a gap. Entries in the cache are those at `applied`, so several
of them are one snapshot. Watchers share the ring; one that falls behind it reads the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from slateboard_server.domain.entry import LoggedCommit, VersionRecord
from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.values import BoardId, Incarnation, Key, Micros, Region, Revision
from slateboard_server.ports import Head, KeysRead
from slateboard_server.services.cache import ABSENT, Absent, EntryCache
from slateboard_server.services.model import Stamp


class Follower(Protocol):
    """Somebody who wants to know that a feed moved."""

    def wake(self) -> None:
        """Look again; called on the event loop, must not block."""
        ...


class Load:
    """A read of keys under way: remembers which of them changed meanwhile."""

    __slots__ = ("changed", "keys")

    def __init__(self, keys: Iterable[tuple[Region, Key]]) -> None:
        """Note the keys."""
        self.keys = frozenset(keys)
        self.changed: set[tuple[Region, Key]] = set()


class BoardFeed:
    """The state of a board as this replica has applied it."""

    def __init__(self, board_id: BoardId, head: Head, cache: EntryCache, ring_bytes: int) -> None:
        """Begin at `head`, with nothing cached."""
        self.board_id = board_id
        self.applied: Revision = head.revision
        self.floor: Revision = head.floor
        self.incarnation: Incarnation = head.incarnation
        self.commit_time: Micros = head.commit_time
        self.suspect = False
        """Set while the outcome of a commit is unknown: the cache may lag behind the database and must not answer."""
        self.ended: SlateboardError | None = None
        """Why nothing more will come: the board was deleted, or began a new life."""
        self._cache = cache
        self._epoch = 0
        self._ring: deque[LoggedCommit] = deque()
        self._ring_bytes = 0
        self._ring_limit = ring_bytes
        self._loads: set[Load] = set()
        self._followers: set[Follower] = set()
        self._waiters: list[tuple[Revision, asyncio.Future[None]]] = []

    def stamp(self) -> Stamp:
        """Return where the board stands, for a reply made from what was applied."""
        return Stamp(self.applied, self.floor, self.incarnation)

    # Moving on

    def apply(self, commits: Sequence[LoggedCommit]) -> bool:
        """Apply commits in revision order; those applied already are skipped. False where one is missing in between."""
        moved = False
        for logged in commits:
            revision = logged.commit.revision
            if revision <= self.applied:
                continue
            if revision != self.applied + 1:
                break
            self._remember(logged)
            moved = True
        if moved:
            self._tell()
        return not commits or commits[-1].commit.revision <= self.applied

    def _remember(self, logged: LoggedCommit) -> None:
        self.applied = logged.commit.revision
        self.commit_time = logged.commit.commit_time
        for record in logged.versions:
            place = (record.region, record.key)
            for load in self._loads:
                if place in load.keys:
                    load.changed.add(place)
            self._cache.put(
                (self.board_id, self._epoch, record.region, record.key), record if record.is_value else ABSENT
            )
        if self._followers:
            self._ring.append(logged)
            self._ring_bytes += logged.size
            while self._ring_bytes > self._ring_limit and len(self._ring) > 1:
                self._ring_bytes -= self._ring.popleft().size

    def jump(self, head: Head) -> None:
        """Go to `head` without applying what lies between: everything cached is forgotten, watchers read the store."""
        if head.revision <= self.applied:
            return
        self._epoch += 1
        for load in self._loads:
            load.changed.update(load.keys)
        self._ring.clear()
        self._ring_bytes = 0
        self.applied = head.revision
        self.commit_time = head.commit_time
        self.observe(head)
        self._tell()

    def observe(self, head: Head) -> None:
        """Take note of a floor; floors only rise within an incarnation."""
        self.floor = max(self.floor, head.floor)

    def forget_entries(self) -> None:
        """Forget everything cached: a purge changed what past versions say."""
        self._epoch += 1
        for load in self._loads:
            load.changed.update(load.keys)

    def end(self, error: SlateboardError) -> None:
        """Say why nothing more will come; whoever waits hears it."""
        self.ended = error
        self._tell()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()

    def nudge(self) -> None:
        """Have everybody who follows look again: a policy changed, or the server is draining."""
        for follower in self._followers:
            follower.wake()

    def _tell(self) -> None:
        self.nudge()
        if self._waiters:
            left = []
            for revision, waiter in self._waiters:
                if revision > self.applied:
                    left.append((revision, waiter))
                elif not waiter.done():
                    waiter.set_result(None)
            self._waiters = left

    # Entries

    def lookup(self, region: Region, key: Key) -> VersionRecord | Absent | None:
        """Return the entry at `applied`, ABSENT, or None where it must be read from the store. Expiry is the caller's."""
        return self._cache.get((self.board_id, self._epoch, region, key))

    def begin_load(self, keys: Iterable[tuple[Region, Key]]) -> Load:
        """Announce a read of keys from the store; always followed by `end_load`."""
        load = Load(keys)
        self._loads.add(load)
        return load

    def end_load(self, load: Load, read: KeysRead | None) -> None:
        """Keep what a read found, as far as it is known to be true at `applied`. None: the read failed.

        The read's revision may lie below `applied` (then keys changed meanwhile are left out) or above it (then only
        values that are at least as old as `applied` are kept: an absence could be newer).
        """
        self._loads.discard(load)
        if read is None or self.ended is not None:
            return
        for region, key in load.keys - load.changed:
            record = read.found.get((region, key))
            if record is None:
                # An expired value reads as absent as well, and stays absent until a commit that `apply` will see.
                if read.revision <= self.applied:
                    self._cache.put((self.board_id, self._epoch, region, key), ABSENT)
            elif record.mod_revision <= self.applied and record.value is not None:
                self._cache.put((self.board_id, self._epoch, region, key), record)

    # Waiting

    async def reached(self, revision: Revision) -> None:
        """Wait until `revision` is applied. Callers bound the wait."""
        if self.ended is not None:
            raise self.ended
        if revision <= self.applied:
            return
        waiter = asyncio.get_running_loop().create_future()
        entry = (revision, waiter)
        self._waiters.append(entry)
        try:
            await waiter
        finally:
            if not waiter.done() or waiter.cancelled():
                self._waiters = [other for other in self._waiters if other is not entry]

    @property
    def waiting(self) -> int:
        """Return how many wait for a revision."""
        return len(self._waiters)

    # Followers

    @property
    def followers(self) -> int:
        """Return how many follow."""
        return len(self._followers)

    def follow(self, follower: Follower) -> None:
        """Begin to be woken. From here on the ring is kept."""
        self._followers.add(follower)

    def unfollow(self, follower: Follower) -> None:
        """Stop being woken; the last one to leave takes the ring along."""
        self._followers.discard(follower)
        if not self._followers:
            self._ring.clear()
            self._ring_bytes = 0

    def recent(self, after: Revision, limit: int) -> Sequence[LoggedCommit] | None:
        """Return up to `limit` commits after a revision from the ring; None where the store must be read."""
        if after >= self.applied:
            return ()
        if not self._ring or self._ring[0].commit.revision > after + 1:
            return None
        start = after + 1 - self._ring[0].commit.revision
        stop = min(start + limit, len(self._ring))
        return [self._ring[index] for index in range(start, stop)]
