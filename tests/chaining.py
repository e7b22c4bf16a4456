"""A board's chain made by hand: what a server would have written, as rows that a test then changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeAlias

from hypothesis import strategies as st

from slateboard_server.domain.chained import (
    ChainedCommit,
    ChainedVersion,
    ChainHead,
    ChainStart,
    CurrentPlace,
    Finding,
)
from slateboard_server.domain.checkpoint import Checkpoint, key_id_of
from slateboard_server.domain.entry import Annotations, CommitRecord, SourceRef, VersionRecord
from slateboard_server.domain.integrity import (
    NO_HASH,
    Amended,
    Amendment,
    PolicyStamp,
    commit_hash,
    content_commitment,
    note_commitment,
    policy_digest,
    version_commitment,
)
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
    Kind,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    Tombstone,
    Trust,
    Version,
)
from slateboard_server.domain.verifying import ChainVerifier

BOARD = BoardId(7)
NAME = "demo"
LIFE = Incarnation("0f3k5w8m2q7v1x9z4b6n0c5d8j")
SHARED = Region("shared")
BEGAN = 1_770_000_000_000_000
POLICY = PolicyStamp(1, policy_digest('{"version":1}'))
Ref: TypeAlias = tuple[Region, Key, Version]


@dataclass(frozen=True, slots=True)
class Screened:
    """Says what a screening said."""

    verdict: int = 1
    score: float = 0.0
    rules: tuple[str, ...] = ()
    rule_set: str = "2026-01"


def salt_of(*what: object) -> bytes:
    """Return a salt that is the same in every run, and no other's."""
    return sha256(repr(what).encode()).digest()


@dataclass(slots=True)
class Board:
    """Commits like a server: each call of `commit` makes one, with one version a key."""

    commits: list[ChainedCommit] = field(default_factory=list)
    floor: Revision = Revision(1)
    incarnation: Incarnation = LIFE
    start: ChainStart = field(default_factory=lambda: ChainStart.of_board(BOARD, NAME, LIFE))

    @property
    def head(self) -> Revision:
        return Revision(self.start.revision + len(self.commits))

    @property
    def hash(self) -> bytes:
        return self.commits[-1].hash if self.commits else self.start.hash

    def commit(
        self, *puts: tuple[str, bytes | None], note: str = "", amendments: tuple[Amendment, ...] = ()
    ) -> Revision:
        """Write values (None: a tombstone), amend earlier versions."""
        revision = Revision(self.head + 1)
        versions = tuple(
            self._version(revision, index, key, value) for index, (key, value) in enumerate(puts)
        )
        salt = salt_of("note", revision) if note else None
        made = ChainedCommit(
            commit=CommitRecord(
                revision,
                f"{self.incarnation}-{revision}",
                "batch",
                PrincipalId(f"worker-{revision % 3}"),
                SessionId("s-1") if revision % 2 else None,
                f"request-{revision}",
                Micros(BEGAN + revision),
                note,
            ),
            hash=b"",
            policy=POLICY,
            commitments=tuple(
                version_commitment(each.content, each.written) for each in versions if each.content
            ),
            amendments=amendments,
            note=None if salt is None else note_commitment(salt, note),
            note_salt=salt,
            versions=versions,
        )
        self.commits.append(rehash(made, self.hash))
        for amendment in amendments:
            self._amend(amendment)
        return revision

    def lower(self, ref: Ref, trust: Trust) -> Revision:
        return self.commit(amendments=(Amendment(*ref, Amended.LOWERED, trust),))

    def purge(self, ref: Ref) -> Revision:
        return self.commit(amendments=(Amendment(*ref, Amended.PURGED),))

    def purge_note(self, revision: int) -> Revision:
        return self.commit(
            amendments=(Amendment(Region(""), Key(""), Version(revision), Amended.NOTE_PURGED),)
        )

    def compact(self, floor: int) -> None:
        """Drop what the server drops: contents superseded up to the floor, and notes of old tombstones."""
        self.floor = Revision(max(floor, self.floor))
        newest = {
            (each.written.region, each.written.key): each.written.version
            for chained in self.commits
            if chained.commit.revision <= self.floor
            for each in chained.versions or ()
        }
        for place, chained in enumerate(self.commits):
            if chained.commit.revision > self.floor:
                continue
            self.commits[place] = replace(
                chained,
                versions=tuple(
                    _compacted(each)
                    if not each.written.is_value
                    or each.written.version < newest[each.written.region, each.written.key]
                    else each
                    for each in chained.versions or ()
                ),
            )

    def refs(self) -> list[Ref]:
        return [
            (each.written.region, each.written.key, each.written.version)
            for chained in self.commits
            for each in chained.versions or ()
        ]

    def current(self) -> list[CurrentPlace]:
        newest: dict[Key, VersionRecord] = {}
        for chained in self.commits:
            for each in chained.versions or ():
                newest[each.written.key] = each.written
        return [
            CurrentPlace(record.region, record.key, record.version, record.mod_revision, record.op_index)
            for record in newest.values()
            if record.is_value or record.mod_revision > self.floor
        ]

    def chain_head(self) -> ChainHead:
        return ChainHead(self.head, self.hash, self.floor)

    def checkpoint(self, public_key: bytes = bytes(32)) -> Checkpoint:
        return Checkpoint(
            BOARD,
            NAME,
            self.incarnation,
            self.head,
            self.floor,
            self.hash,
            3,
            NO_HASH,
            Micros(BEGAN + self.head),
            key_id_of(public_key),
        )

    def change(self, revision: int, changed: ChainedCommit) -> None:
        self.commits[revision - self.start.revision - 1] = changed

    def at(self, revision: int) -> ChainedCommit:
        return self.commits[revision - self.start.revision - 1]

    def change_version(self, ref: Ref, **changes: object) -> None:
        """Change the row of a version; names of `VersionRecord` are changed there."""
        revision, place, row = self.find(ref)
        rows = list(self.at(revision).versions or ())
        own = {name: value for name, value in changes.items() if hasattr(row, name)}
        record = {name: value for name, value in changes.items() if name not in own}
        rows[place] = replace(row, **own, written=replace(row.written, **record))  # type: ignore[arg-type]
        self.change(revision, replace(self.at(revision), versions=tuple(rows)))

    def find(self, ref: Ref) -> tuple[Revision, int, ChainedVersion]:
        for chained in self.commits:
            for place, each in enumerate(chained.versions or ()):
                if (each.written.region, each.written.key, each.written.version) == ref:
                    return chained.commit.revision, place, each
        raise KeyError(ref)

    def verify(self, *checkpoints: Checkpoint, start: ChainStart | None = None) -> Finding | None:
        """Verify what the rows say, from the start or another place, up to the head."""
        verifier = ChainVerifier(start or self.start, floor=self.floor, checkpoints=checkpoints)
        begin = 0 if start is None else start.revision - self.start.revision
        for chained in self.commits[begin:]:
            if finding := verifier.feed(chained):
                return finding
        return verifier.finish(self.chain_head(), self.current())

    def _version(self, revision: Revision, index: int, key: str, value: bytes | None) -> ChainedVersion:
        before = sum(ref[1] == key for ref in self.refs())
        sources = self.refs()[-2:]
        written = VersionRecord(
            region=SHARED,
            key=Key(key),
            version=Version(before + 1),
            create_revision=revision,
            mod_revision=revision,
            op_index=index,
            commit_time=Micros(BEGAN + revision),
            principal=PrincipalId("worker"),
            session_id=SessionId("s-1") if revision % 2 else None,
            trust=Trust.USER,
            tombstone=Tombstone.DELETED if value is None else Tombstone.NONE,
            value=value,
            size=len(value or b""),
            content_type="" if value is None else "text/plain",
            kind=Kind.SEMANTIC,
            expire_time=Micros(BEGAN * 2) if revision % 3 == 0 else None,
            annotations=Annotations(subject="alice", topics=("a", "b"), labels=(("l", "v"),), note="why"),
            derivations=(tuple(SourceRef(*ref) for ref in sources),) if sources else (),
        )
        salt, screening = salt_of(key, revision), Screened(score=0.25, rules=("r1",))
        return ChainedVersion(
            written, written.trust, content_commitment(salt, written, screening), salt, screening
        )

    def _amend(self, amendment: Amendment) -> None:
        ref = amendment.region, amendment.key, amendment.version
        if amendment.action is Amended.LOWERED:
            self.change_version(ref, trust=min(self.find(ref)[2].trust, amendment.trust))
        elif amendment.action is Amended.PURGED:
            self.change_version(
                ref,
                purged=True,
                salt=None,
                screening=None,
                value=None,
                size=0,
                content_type="",
                annotations=Annotations(),
            )
        else:
            at = self.at(amendment.version)
            self.change(
                amendment.version,
                replace(at, commit=replace(at.commit, note=""), note_salt=None, note_purged=True),
            )


def rehash(chained: ChainedCommit, previous: bytes) -> ChainedCommit:
    """Give a commit the hash that its fields have, as an attacker can as well."""
    return replace(
        chained,
        hash=commit_hash(
            previous,
            chained.commit,
            chained.note,
            chained.policy,
            chained.commitments,
            chained.amendments,
            lineage=chained.lineage,
            audit=chained.audit,
        ),
    )


def _compacted(row: ChainedVersion) -> ChainedVersion:
    return replace(
        row,
        written=replace(row.written, compacted=True, value=None, content_type="", annotations=Annotations()),
    )


@st.composite
def boards(draw: st.DrawFn, *, least: int = 1, compacting: bool = True) -> Board:
    """A board with some commits: values, tombstones, notes, lowered and purged versions, purged notes, a compaction."""
    board = Board()
    for _ in range(draw(st.integers(least, 7))):
        what = draw(st.sampled_from(["put", "put", "put", "lower", "purge", "purge_note"]))
        refs = [ref for ref in board.refs() if not board.find(ref)[2].purged]
        noted = [
            each.commit.revision for each in board.commits if each.note is not None and not each.note_purged
        ]
        if what == "lower" and refs:
            board.lower(draw(st.sampled_from(refs)), draw(st.sampled_from([Trust.EXTERNAL, Trust.AGENT])))
        elif what == "purge" and refs:
            board.purge(draw(st.sampled_from(refs)))
        elif what == "purge_note" and noted:
            board.purge_note(draw(st.sampled_from(noted)))
        else:
            keys = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
            board.commit(
                *[(key, draw(st.sampled_from([b"", b"one", b"two", None]))) for key in keys],
                note=draw(st.sampled_from(["", "why"])),
            )
    if compacting and draw(st.booleans()):
        board.compact(draw(st.integers(1, board.head)))
    return board
