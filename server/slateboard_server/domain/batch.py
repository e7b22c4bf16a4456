"""The picture as the commits accepted so far in a batch have changed it.

A later commit of a batch is judged on what the earlier ones left, as if they had come one by one. What they changed is
kept here, over the picture, in the form it is written in anyway; indices over it are built only when a commit asks.
"""

from __future__ import annotations

from typing import TypeAlias

from slateboard_server.domain.commit import CommitItem
from slateboard_server.domain.entry import LoggedCommit, SourceRef, VersionRecord
from slateboard_server.domain.picture import KeyState, Picture, PrefixChange, SourceState, StoredAnswer
from slateboard_server.domain.policy import CounterKey, Usage
from slateboard_server.domain.values import Key, PrincipalId, Region, Revision

State: TypeAlias = KeyState | VersionRecord
"""The present state of a key: as it was loaded, or as this batch made it."""


class Batch:
    """One batch being judged. Of the picture only `board` is moved on."""

    __slots__ = (
        "_indexed",
        "_keys",
        "_newest_under",
        "_records",
        "_replays",
        "_sources",
        "batch_id",
        "board",
        "now",
        "picture",
    )

    def __init__(self, picture: Picture, batch_id: str) -> None:
        """Begin with the picture as it was loaded."""
        self.picture = picture
        self.board = picture.board
        self.now = picture.now
        self.batch_id = batch_id
        self._records: list[VersionRecord] = []
        self._keys: dict[tuple[Region, Key], VersionRecord] = {}
        self._replays: dict[tuple[PrincipalId, str], StoredAnswer] = {}
        self._indexed = 0
        """How many of the records are in the two indices below."""
        self._sources: dict[SourceRef, SourceState] = {}
        self._newest_under: dict[tuple[Region, str], VersionRecord] = {}

    def state(self, region: Region, key: Key) -> State | None:
        """Return the present state of a key; None for one that never existed."""
        place = (region, key)
        return self._keys.get(place) or self.picture.keys.get(place)

    def source(self, ref: SourceRef) -> SourceState | None:
        """Return what matters of a version named as a source; None for one that does not exist."""
        loaded = self.picture.sources.get(ref)
        if loaded is None and self._records:
            self._index()
            return self._sources.get(ref)
        return loaded

    def replay(self, principal: PrincipalId, request_id: str) -> StoredAnswer | None:
        """Return the answer an earlier commit with this request_id was given."""
        call = (principal, request_id)
        return self._replays.get(call) or self.picture.replays.get(call)

    def change_under(self, region: Region, prefix: str, since: Revision) -> PrefixChange | None:
        """Return the newest change under a prefix after a revision."""
        if self._records:
            self._index()
            record = self._newest_under.get((region, prefix))
            if record is not None and record.mod_revision > since:
                return PrefixChange(
                    key=record.key,
                    revision=record.mod_revision,
                    version=record.version,
                    principal=record.principal,
                    session_id=record.session_id,
                    commit_time=record.commit_time,
                )
        return self.picture.prefix_changes.get((region, prefix, since))

    def accept(
        self,
        item: CommitItem,
        logged: LoggedCommit,
        usage: dict[CounterKey, Usage],
        stored: StoredAnswer | None,
    ) -> None:
        """Move on: later commits of the batch come after this one."""
        board = self.board
        board.head = logged.commit.revision
        board.last_commit_time = self.now
        board.usage.update(usage)
        for record in logged.versions:
            self._keys[record.region, record.key] = record
        self._records += logged.versions
        if stored is not None:
            self._replays[item.principal, item.request_id] = stored

    def _index(self) -> None:
        """Catch up with the records; each goes in once, under each of its at most 16 ancestors."""
        for record in self._records[self._indexed :]:
            ref = SourceRef(record.region, record.key, record.version)
            self._sources[ref] = SourceState(record.trust, record.tombstone)
            self._newest_under[record.region, ""] = record
            end = record.key.find("/") + 1
            while end:
                self._newest_under[record.region, record.key[:end]] = record
                end = record.key.find("/", end) + 1
        self._indexed = len(self._records)
