"""Reading entries: Get, List, ListVersions, and the two versions of a Diff."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from slateboard_server.domain.entry import SourceRef, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.filters import FilterSpec, canonical, matches
from slateboard_server.domain.limits import MAX_MESSAGE_BYTES
from slateboard_server.domain.principal import Role
from slateboard_server.domain.values import Key, Micros, Region, Revision, Trust, Version
from slateboard_server.ports import At, Clock, Head, KeysRead, ReadMode, Store
from slateboard_server.services.cache import Absent
from slateboard_server.services.directory import BoardDirectory, BoardHandle
from slateboard_server.services.model import Caller, Consistency, GetResult, Mode, RecordsPage, Stamp, Want
from slateboard_server.services.page_tokens import PageTokens, page_size
from slateboard_server.services.scope import Scope

_REPLY_BUDGET = MAX_MESSAGE_BYTES - (64 << 10)
_RECORD_OVERHEAD = 1_024
"""Bytes an entry may take on the wire besides key, value and annotations; annotations are counted on top."""
_SCAN_CHUNK = 256
_APPLY_GRACE = 0.1
"""Seconds in which a commit that the store shows is normally applied."""


def reply_size(record: VersionRecord, values: bool) -> int:
    """Estimate from above what an entry takes in a reply."""
    notes = record.annotations
    size = _RECORD_OVERHEAD + 4 * len(record.key) + (record.size if values else 0)
    size += 4 * (
        len(notes.subject) + len(notes.attribute) + len(notes.turn) + len(notes.tool) + len(notes.note)
    )
    size += sum(4 * len(text) + 8 for text in (*notes.topics, *notes.source_uris))
    size += sum(4 * (len(name) + len(value)) + 16 for name, value in notes.labels)
    size += sum(4 * len(source.key) + 96 for derivation in record.derivations for source in derivation)
    return size


class Reads:
    """Reads of one replica, cut down to what their callers may see."""

    def __init__(self, directory: BoardDirectory, store: Store, clock: Clock) -> None:
        """Read through the feeds of `directory`, else from `store`."""
        self._directory = directory
        self._store = store
        self._clock = clock
        self._exclusive = directory.settings.exclusive

    # Get

    def try_get(
        self, caller: Caller, board: str, keys: Sequence[tuple[Region, Key]], want: Want
    ) -> GetResult | None:
        """Answer from the cache without waiting; None where `get` must be asked.

        Linearizable where this process makes every commit: the feed is moved on before a commit is acknowledged.
        """
        mode = want.consistency.mode
        handle = self._directory.peek(caller, board)
        if handle is None or mode is Mode.EXACT:
            return None
        feed = handle.feed
        if (
            feed.suspect
            or feed.ended is not None
            or (not self._exclusive and mode is not Mode.STALE)
            or want.consistency.revision > feed.applied
            or (want.incarnation is not None and want.incarnation != feed.incarnation)
        ):
            return None
        scope = Scope(caller, want.min_trust)
        if caller.principal.role is Role.OPERATOR and scope.enters_foreign([region for region, _ in keys]):
            return None  # to be audited first
        return self._from_feed(handle, scope, keys, want)

    def _from_feed(
        self, handle: BoardHandle, scope: Scope, keys: Sequence[tuple[Region, Key]], want: Want
    ) -> GetResult | None:
        feed = handle.feed
        now = self._now(feed.commit_time)
        found: dict[tuple[Region, Key], VersionRecord] = {}
        for region, key in keys:
            if not scope.may_read(region, key):
                continue
            record = feed.lookup(region, key)
            if record is None:
                return None
            if not isinstance(record, Absent) and record.present_at(now):
                found[region, key] = record
        return _fit(feed.stamp(), keys, found, scope, want)

    async def get(
        self, caller: Caller, board: str, keys: Sequence[tuple[Region, Key]], want: Want
    ) -> GetResult:
        """Read keys in one snapshot; what does not fit into one reply is named as unread."""
        scope = Scope(caller, want.min_trust)
        handle = await self._directory.enter(caller, board, scope, [region for region, _ in keys])
        _check_incarnation(handle, want)
        readable = [(region, key) for region, key in keys if scope.may_read(region, key)]
        mode = want.consistency.mode
        if not self._exclusive and mode is not Mode.EXACT:
            head = await self._head_for(handle, want.consistency)
            feed = handle.feed
            if head is None or (feed.applied >= head.revision and not feed.suspect):
                cached = self._from_feed(handle, scope, keys, want)
                if cached is not None:
                    return cached
        elif mode is Mode.AT_LEAST:
            await self._wait_for(handle, want.consistency.revision)
        at = self._at(want.consistency)
        if mode is Mode.EXACT:
            read = await self._store.read_keys(handle.board_id, readable, at, values=want.values)
            handle.feed.observe(read.head)
        else:
            read = await self._load(handle, readable, at)
            await self._not_before(handle, read.revision)
        stamp = Stamp(read.revision, read.head.floor, read.head.incarnation)
        return _fit(stamp, keys, read.found, scope, want)

    async def _load(self, handle: BoardHandle, keys: Sequence[tuple[Region, Key]], at: At) -> KeysRead:
        load = handle.feed.begin_load(keys)
        try:
            read = await self._store.read_keys(handle.board_id, keys, at)
        except BaseException:
            handle.feed.end_load(load, None)
            raise
        handle.feed.end_load(load, read)
        return read

    # List

    async def list(
        self,
        caller: Caller,
        board: str,
        region: Region,
        prefix: str,
        filters: tuple[FilterSpec, ...],
        size: int,
        page_token: str,
        want: Want,
    ) -> RecordsPage:
        """List a subtree in key order; every page is of the revision of the first one.

        A page ends early, with a token, before the reply gets too large and after `scan_limit` entries looked at.
        """
        scope = Scope(caller, want.min_trust)
        handle = await self._directory.enter(caller, board, scope, [region])
        _check_incarnation(handle, want)
        limit = page_size(size)
        tokens = PageTokens(
            handle.meta.secret, handle.feed.incarnation, "list", caller.principal.id, region, prefix,
            canonical(filters), want.values, want.min_trust,
        )  # fmt: skip
        position = tokens.read(page_token)
        if position is None:
            at, after, now = await self._first_page(handle, want.consistency), "", Micros(0)
            if want.consistency.mode is not Mode.EXACT:
                now = at.now
        else:
            at = At(ReadMode.EXACT, Revision(position["at"]))
            after, now = str(position["after"]), Micros(position["now"])
        if not scope.may_read_some(region, prefix):
            return RecordsPage(handle.stamp(), (), "")
        page = _Page(limit, want.values)
        scanned = 0
        while True:
            scan = await self._store.scan(
                handle.board_id, region, prefix, after, min(_SCAN_CHUNK, limit + 1), at, values=want.values
            )
            if at.mode is ReadMode.LATEST:
                await self._not_before(handle, scan.revision)
                at = At(ReadMode.EXACT, scan.revision)
            stamp = Stamp(scan.revision, scan.head.floor, scan.head.incarnation)
            for record in scan.records:
                # Later pages read EXACT, where expiry is judged by the revision's time; the first page's moment rules.
                if now and record.expire_time is not None and record.expire_time <= now:
                    shown = False
                else:
                    shown = scope.visible(record) and matches(filters, record)
                if shown and not page.add(record):
                    return RecordsPage(
                        stamp, page.records, tokens.make(at=stamp.revision, after=after, now=now)
                    )
                after = record.key
            scanned += len(scan.records)
            if not scan.more:
                return RecordsPage(stamp, page.records, "")
            if scanned >= self._directory.settings.scan_limit:
                return RecordsPage(stamp, page.records, tokens.make(at=stamp.revision, after=after, now=now))

    async def _first_page(self, handle: BoardHandle, consistency: Consistency) -> At:
        if consistency.mode is Mode.AT_LEAST:
            if self._exclusive:
                await self._wait_for(handle, consistency.revision)
            else:
                await self._head_for(handle, consistency)
        return self._at(consistency)

    # History

    async def list_versions(
        self, caller: Caller, board: str, region: Region, key: Key, size: int, page_token: str, want: Want
    ) -> RecordsPage:
        """List the versions of a key, newest first, tombstones and compacted ones included."""
        scope = Scope(caller, want.min_trust)
        handle = await self._directory.enter(caller, board, scope, [region])
        limit = page_size(size)
        tokens = PageTokens(
            handle.meta.secret, handle.feed.incarnation, "versions", caller.principal.id, region, key, want.values,
            want.min_trust,
        )  # fmt: skip
        position = tokens.read(page_token)
        if not scope.may_read(region, key):
            return RecordsPage(handle.stamp(), (), "")
        below = None if position is None else Version(position["below"])
        read = await self._store.versions(handle.board_id, region, key, below, limit, values=want.values)
        await self._not_before(handle, read.head.revision)
        stamp = Stamp(read.head.revision, read.head.floor, read.head.incarnation)
        page = _Page(limit, want.values)
        last: Version | None = None
        more = read.more
        for record in read.records:
            if scope.visible(record) and not page.add(record):
                more = True
                break
            last = record.version
        token = tokens.make(below=last) if more and last is not None else ""
        return RecordsPage(stamp, page.records, token)

    async def two_versions(
        self,
        caller: Caller,
        board: str,
        region: Region,
        key: Key,
        from_version: int,
        to_version: int,
        min_trust: Trust | None,
    ) -> tuple[Stamp, VersionRecord | None, VersionRecord | None]:
        """Read two versions with values: `to` 0 is the current one, `from` 0 the one before it; None: an absence.

        KEY_NOT_FOUND where the key never was (or may not be seen), or a named version does not exist.
        """
        if from_version < 0 or to_version < 0:
            raise field_invalid(
                "from_version" if from_version < 0 else "to_version", "a version is 1 or more"
            )
        scope = Scope(caller, min_trust)
        handle = await self._directory.enter(caller, board, scope, [region])
        if not scope.may_read(region, key):
            raise key_not_found(region, key)
        newest = await self._store.versions(handle.board_id, region, key, None, 1, values=False)
        await self._not_before(handle, newest.head.revision)
        if not newest.records:
            raise key_not_found(region, key)
        to = to_version or newest.records[0].version
        wanted = [version for version in (from_version or to - 1, to) if version > 0]
        refs = [SourceRef(region, key, Version(version)) for version in wanted]
        found = await self._store.read_versions(handle.board_id, refs, values=True)
        stamp = Stamp(newest.head.revision, newest.head.floor, newest.head.incarnation)
        for named in (from_version, to_version):
            if named and SourceRef(region, key, Version(named)) not in found:
                raise key_not_found(region, key, named)
        before = found.get(SourceRef(region, key, Version(from_version or to - 1)))
        after = found.get(SourceRef(region, key, Version(to)))
        return stamp, _shown(before, scope), _shown(after, scope)

    # Consistency

    def _now(self, commit_time: Micros) -> Micros:
        return max(self._clock.now(), commit_time)

    def _at(self, consistency: Consistency) -> At:
        if consistency.mode is Mode.EXACT:
            return At(ReadMode.EXACT, consistency.revision)
        return At(ReadMode.LATEST, now=self._clock.now())

    async def _head_for(self, handle: BoardHandle, consistency: Consistency) -> Head | None:
        """Return the head a read must not be older than; None where what was applied will do."""
        feed = handle.feed
        if consistency.mode is Mode.STALE or (
            consistency.mode is Mode.AT_LEAST and feed.applied >= consistency.revision
        ):
            return None
        head = await self._directory.head(handle)
        if consistency.mode is Mode.AT_LEAST and consistency.revision > head.revision:
            raise future_revision(consistency.revision, head.revision)
        return head

    async def _wait_for(self, handle: BoardHandle, revision: Revision) -> None:
        """Wait until this replica has applied a revision of its own board."""
        if revision <= handle.feed.applied and not handle.feed.suspect:
            return
        heads = await self._store.heads([handle.board_id])
        head = heads.get(handle.board_id)
        if head is None or revision > head.revision:
            raise future_revision(revision, head.revision if head else handle.feed.applied)
        await self._not_before(handle, revision)

    async def _not_before(self, handle: BoardHandle, revision: Revision) -> None:
        """Hold back an answer made at `revision` until the feed got there, so that no later cached read is older."""
        if not self._exclusive or revision <= handle.feed.applied:
            return
        try:
            # The commit is being applied right now. Should it have come in by another way, the log is asked for it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_APPLY_GRACE):
                    await handle.feed.reached(revision)
                    return
            async with asyncio.timeout(self._directory.settings.at_least_timeout):
                await self._directory.catch_up(handle)
                await handle.feed.reached(revision)
        except TimeoutError as error:
            raise SlateboardError(
                Reason.REPLICA_BEHIND,
                f"this replica has not reached revision {revision} yet; retry",
                revision=handle.feed.applied,
            ) from error


class _Page:
    """Records gathered for one reply."""

    def __init__(self, limit: int, values: bool) -> None:
        self.records: list[VersionRecord] = []
        self._limit = limit
        self._values = values
        self._left = _REPLY_BUDGET

    def add(self, record: VersionRecord) -> bool:
        """Take a record; False where it must wait for the next page. The first one always fits."""
        size = reply_size(record, self._values)
        if self.records and (len(self.records) >= self._limit or size > self._left):
            return False
        self.records.append(record)
        self._left -= size
        return True


def _fit(
    stamp: Stamp,
    keys: Sequence[tuple[Region, Key]],
    found: dict[tuple[Region, Key], VersionRecord],
    scope: Scope,
    want: Want,
) -> GetResult:
    shown: list[VersionRecord] = []
    absent: list[tuple[Region, Key]] = []
    unread: list[tuple[Region, Key]] = []
    left = _REPLY_BUDGET
    for place in keys:
        record = found.get(place)
        if record is None or not scope.visible(record):
            absent.append(place)
            continue
        size = reply_size(record, want.values)
        if shown and size > left:
            unread.append(place)
            continue
        shown.append(record)
        left -= size
    return GetResult(stamp, shown, absent, unread)


def _shown(record: VersionRecord | None, scope: Scope) -> VersionRecord | None:
    return record if record is not None and scope.visible(record) else None


def _check_incarnation(handle: BoardHandle, want: Want) -> None:
    if want.incarnation is not None and want.incarnation != handle.feed.incarnation:
        raise SlateboardError(
            Reason.BOARD_REINCARNATED,
            "the board began a new life since this revision was handed out; read the present state",
            incarnation=handle.feed.incarnation,
        )


def future_revision(revision: int, head: int) -> SlateboardError:
    """Build the refusal of a revision above the head."""
    return SlateboardError(
        Reason.FUTURE_REVISION,
        f"revision {revision} lies above the board's head {head}; check which board and incarnation it came from",
        revision=head,
    )


def key_not_found(region: Region, key: Key, version: int | None = None) -> SlateboardError:
    """Build the answer for a key or version that does not exist or may not be seen: the two must not differ."""
    which = f" version {version}" if version else ""
    return SlateboardError(
        Reason.KEY_NOT_FOUND,
        f"there is no {region}:{key}{which}, or it may not be seen; check region, key and version",
        region=region,
        key=key,
    )
