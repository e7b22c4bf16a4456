"""What the rows of a board show, held against what its chain has made of them.

An amendment comes later than the version it amends, and a superseding version later than the compacted one it excuses:
so this remembers what has been fed, and is asked when all has been.

Memory: 16 bytes a version and about 300 a key, nothing of what they hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from slateboard_server.domain.chained import ChainedCommit, ChainedVersion, CurrentPlace, Finding, Problem
from slateboard_server.domain.integrity import Amended, Amendment
from slateboard_server.domain.values import Key, Region, Revision, Tombstone, Version

_Place: TypeAlias = tuple[Region, Key]
_Ref: TypeAlias = tuple[Region, Key, Version]


@dataclass(slots=True)
class _KeyLog:
    """The versions of a key that were fed, from `first` on without a gap."""

    first: Version
    revisions: array[int]
    trusts: array[int]
    """As written."""
    op_index: int
    tombstone: Tombstone

    @property
    def last(self) -> Version:
        return Version(self.first + len(self.revisions) - 1)


@dataclass(slots=True)
class _Shown:
    """What the row of a version shows, beside what was written."""

    revision: Revision
    written: int
    trust: int
    purged: bool


@dataclass(slots=True)
class _Amended:
    """What the chain has made of a version."""

    revision: Revision
    """Of the last amendment."""
    trust: int | None = None
    purged: bool = False


class ChainState:
    """Takes in commits that are as they were committed, in order; says which versions show something else."""

    def __init__(self, start: Revision, floor: Revision | None) -> None:
        """Begin after revision `start`; content may be compacted up to `floor`, None: that is not judged."""
        self._start = start
        self._end = start
        self._floor = floor
        self._keys: dict[_Place, _KeyLog] = {}
        self._shown: dict[_Ref, _Shown] = {}
        self._amended: dict[_Ref, _Amended] = {}
        self._notes_purged: set[Revision] = set()
        self._notes_amended: dict[Revision, Revision] = {}
        self._compacted: dict[_Place, tuple[Revision, Version]] = {}
        """Compacted values that nothing fed so far supersedes."""

    def accept(self, chained: ChainedCommit, versions: tuple[ChainedVersion, ...]) -> None:
        """Take in the next commit."""
        self._end = chained.commit.revision
        for version in versions:
            self._note_version(version)
        if chained.note_purged:
            self._notes_purged.add(self._end)
        for amendment in chained.amendments:
            self._note_amendment(amendment, self._end)

    def _note_version(self, version: ChainedVersion) -> None:
        written = version.written
        revision = written.mod_revision
        place = written.region, written.key
        log = self._keys.get(place)
        if log is None or written.version != log.last + 1:
            self._keys[place] = _KeyLog(
                written.version,
                array("q", [revision]),
                array("q", [written.trust]),
                written.op_index,
                written.tombstone,
            )
        else:
            log.revisions.append(revision)
            log.trusts.append(written.trust)
            log.op_index, log.tombstone = written.op_index, written.tombstone
        if self._floor is not None:
            if self._compacted and revision <= self._floor:
                self._compacted.pop(place, None)
            if written.compacted and not version.purged and written.is_value:
                self._compacted[place] = revision, written.version
        if version.purged or version.trust != written.trust:
            self._shown[written.region, written.key, written.version] = _Shown(
                revision, written.trust, version.trust, version.purged
            )

    def _note_amendment(self, amendment: Amendment, revision: Revision) -> None:
        if amendment.action is Amended.NOTE_PURGED:
            self._notes_amended[Revision(amendment.version)] = revision
            return
        made = self._amended.setdefault(
            (amendment.region, amendment.key, amendment.version), _Amended(revision)
        )
        made.revision = revision
        if amendment.action is Amended.PURGED:
            made.purged = True
        else:
            made.trust = amendment.trust if made.trust is None else min(made.trust, amendment.trust)

    def findings(self) -> Iterable[Finding]:
        """Give every version and note that shows something else than the chain says, in no order."""
        for ref, shown in self._shown.items():
            finding = _shown_finding(ref, shown, self._amended.get(ref))
            if finding is not None:
                yield finding
        for ref, made in self._amended.items():
            as_written = None if ref in self._shown else self._as_written(*ref)
            if as_written is not None:
                finding = _shown_finding(ref, as_written, made)
                if finding is not None:
                    yield finding
        for revision in self._notes_purged - self._notes_amended.keys():
            yield Finding(
                revision, Problem.PURGED_WITHOUT_AMENDMENT, "its note shows as purged, no commit purged it"
            )
        for revision, by in self._notes_amended.items():
            if self._start < revision <= self._end and revision not in self._notes_purged:
                yield Finding(
                    revision, Problem.AMENDMENT_NOT_SHOWN, f"revision {by} purged its note, its row has it"
                )
        if self._floor is not None and self._end >= self._floor:
            for (region, key), (revision, version) in self._compacted.items():
                yield Finding(
                    revision,
                    Problem.COMPACTED_TOO_EARLY,
                    f"its content is gone, though nothing up to the floor {self._floor} supersedes it",
                    region,
                    key,
                    version,
                )

    def current_findings(self, current: Iterable[CurrentPlace]) -> Iterable[Finding]:
        """Give every key of which readers are shown another version than the newest that was fed."""
        left = dict(self._keys)
        for row in current:
            log = left.pop((row.region, row.key), None)
            if log is None:
                # A key last written before the start is not known here; one that no commit made is.
                if row.revision <= self._start and (row.region, row.key) not in self._keys:
                    continue
                detail = "no commit made the version that readers are shown"
            elif (row.version, row.revision, row.op_index) == (log.last, log.revisions[-1], log.op_index):
                continue
            else:
                detail = f"readers are shown version {row.version}, the newest is {log.last}"
            revision = row.revision if log is None else Revision(log.revisions[-1])
            yield Finding(revision, Problem.CURRENT_WRONG, detail, row.region, row.key, row.version)
        for (region, key), log in left.items():
            revision = Revision(log.revisions[-1])
            gone = log.tombstone is not Tombstone.NONE and self._floor is not None and revision <= self._floor
            if not gone:  # compaction forgets tombstones up to the floor, and nothing else
                detail = f"readers are told there is nothing, the newest is version {log.last}"
                yield Finding(revision, Problem.CURRENT_WRONG, detail, region, key, log.last)

    def _as_written(self, region: Region, key: Key, version: Version) -> _Shown | None:
        """Return what the row of a version shows that shows nothing else; None for one from before the start."""
        log = self._keys.get((region, key))
        if log is None or not log.first <= version <= log.last:
            return None
        place = version - log.first
        trust = log.trusts[place]
        return _Shown(Revision(log.revisions[place]), trust, trust, purged=False)


def _shown_finding(ref: _Ref, shown: _Shown, made: _Amended | None) -> Finding | None:
    lowered_to = None if made is None else made.trust
    trust = shown.written if lowered_to is None else min(shown.written, lowered_to)
    if shown.trust > shown.written:
        problem, detail = Problem.RAISED, f"written with trust {shown.written}, shown with {shown.trust}"
    elif shown.purged and (made is None or not made.purged):
        problem, detail = Problem.PURGED_WITHOUT_AMENDMENT, "shown as purged, no commit purged it"
    elif shown.trust < trust:
        problem = Problem.LOWERED_WITHOUT_AMENDMENT
        detail = f"shown with trust {shown.trust}, the chain has it at {trust}"
    elif shown.trust > trust:
        problem = Problem.AMENDMENT_NOT_SHOWN
        detail = f"shown with trust {shown.trust}, the chain has it at {trust}"
    elif made is not None and made.purged and not shown.purged:
        problem = Problem.AMENDMENT_NOT_SHOWN
        detail = f"revision {made.revision} purged it, its row does not show it"
    else:
        return None
    return Finding(shown.revision, problem, detail, *ref)
