"""What the verification of a chain is fed with, and what it finds: plain values that storage builds from its rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slateboard_server.domain.checkpoint import Checkpoint
from slateboard_server.domain.entry import CommitRecord, VersionRecord
from slateboard_server.domain.integrity import NO_HASH, Amendment, PolicyStamp, ScreeningFields, genesis
from slateboard_server.domain.values import BoardId, Incarnation, Key, Region, Revision, Version


@dataclass(frozen=True, slots=True)
class ChainedVersion:
    """A version as its row has it now."""

    written: VersionRecord
    """With trust and tombstone **as written**; value and annotations where they are still there."""
    trust: int
    """The trust that readers are told: as written, or what amendments made of it."""
    content: bytes | None
    """The stored content commitment. None only where a purge took even that."""
    salt: bytes | None
    """None where a purge deleted it; compaction may keep it."""
    screening: ScreeningFields | None = None
    purged: bool = False
    """Readers are told that it was purged. Its content is not looked at: it may not all be erased yet."""


@dataclass(frozen=True, slots=True)
class ChainedCommit:
    """A commit as its row has it now, with its versions in op order."""

    commit: CommitRecord
    hash: bytes
    policy: PolicyStamp
    commitments: tuple[bytes, ...]
    """Of its versions, in op order, as they are kept beside the commit: a missing row is then told from a changed one."""
    amendments: tuple[Amendment, ...] = ()
    note: bytes | None = None
    """The stored commitment to the note; None where the commit never had one."""
    note_salt: bytes | None = None
    note_purged: bool = False
    """Readers are told that the note was purged."""
    lineage: bytes | None = None
    audit: bytes | None = None
    versions: tuple[ChainedVersion, ...] | None = None
    """None: only the links of the chain are checked, from the rows of commits alone."""
    unreadable: str = ""
    """Why a row of the commit cannot even be read; empty where all can. The other fields then do not matter, but
    `commit.revision`."""


@dataclass(frozen=True, slots=True)
class ChainStart:
    """Where a verification begins: what it takes for granted."""

    board_id: BoardId
    name: str
    incarnation: Incarnation
    revision: Revision
    hash: bytes
    """The chain at `revision`."""

    @classmethod
    def of_board(
        cls, board_id: BoardId, name: str, incarnation: Incarnation, revision: Revision = Revision(0)
    ) -> ChainStart:
        """Begin where the board's chain does: the first incarnation that has one, and the head it began at."""
        return cls(
            board_id, name, incarnation, revision, genesis(incarnation, board_id, name, revision, NO_HASH)
        )

    @classmethod
    def at_checkpoint(cls, checkpoint: Checkpoint) -> ChainStart:
        """Begin at a checkpoint that is trusted; what lies before it is taken for granted."""
        return cls(
            checkpoint.board_id,
            checkpoint.name,
            checkpoint.incarnation,
            checkpoint.revision,
            checkpoint.hash,
        )


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Where the board's own row says the chain ends."""

    revision: Revision
    hash: bytes
    floor: Revision


@dataclass(frozen=True, slots=True)
class CurrentPlace:
    """Which version is the newest of its key, by the table that reads go through."""

    region: Region
    key: Key
    version: Version
    revision: Revision
    op_index: int


class Problem(StrEnum):
    """What is wrong. Names are stable: scripts match on them."""

    UNREADABLE = "UNREADABLE"
    """A row holds what no server writes."""
    GAP = "GAP"
    """A commit is missing, or is there twice."""
    COMMIT_CHANGED = "COMMIT_CHANGED"
    """The commit's hash is not that of its fields and of the commit before."""
    NOTE_CHANGED = "NOTE_CHANGED"
    VERSION_CHANGED = "VERSION_CHANGED"
    """A version is not the one its commit made."""
    VERSION_MISSING = "VERSION_MISSING"
    VERSION_EXTRA = "VERSION_EXTRA"
    """A version that its commit did not make."""
    CONTENT_MISSING = "CONTENT_MISSING"
    """A value, note or salt is gone, though neither compaction nor a purge took it."""
    COMPACTED_TOO_EARLY = "COMPACTED_TOO_EARLY"
    """Content is gone as if compacted, where compaction leaves it."""
    AMENDMENT_NOT_SHOWN = "AMENDMENT_NOT_SHOWN"
    """The chain lowered or purged a version, and its row does not show it."""
    LOWERED_WITHOUT_AMENDMENT = "LOWERED_WITHOUT_AMENDMENT"
    RAISED = "RAISED"
    """A version shows more trust than it was written with: nothing ever does that."""
    PURGED_WITHOUT_AMENDMENT = "PURGED_WITHOUT_AMENDMENT"
    CURRENT_WRONG = "CURRENT_WRONG"
    """Readers are shown another version of a key than its newest."""
    HEAD_MISMATCH = "HEAD_MISMATCH"
    """The board's row does not say what its last commit is."""
    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    """The chain holds together, but is not the one that was signed: it was written anew."""
    TRUNCATED = "TRUNCATED"
    """The board ends before a checkpoint that was signed: commits were cut off, or an older copy was put back."""
    OTHER_BOARD = "OTHER_BOARD"
    OTHER_INCARNATION = "OTHER_INCARNATION"
    BAD_CHECKPOINT = "BAD_CHECKPOINT"
    """The checkpoint is none, or its signature is wrong or of a key that is not trusted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first thing that is wrong."""

    revision: Revision
    """The first bad revision; 0 where the problem lies in no commit."""
    problem: Problem
    detail: str
    """A sentence for people. Names keys; never quotes values or notes."""
    region: Region = Region("")
    key: Key = Key("")
    version: Version = Version(0)
    """Of the version that is wrong; 0 where it is the commit itself."""


@dataclass(slots=True)
class Coverage:
    """How much of the chain could be computed again: what a report has to say beside "nothing found"."""

    commits: int = 0
    versions: int = 0
    recomputed: int = 0
    """With their content."""
    compacted: int = 0
    """All but their content."""
    purged: int = 0
    """All but their content."""
    opaque: int = 0
    """Only their place in the chain: even the content commitment is gone."""
    amendments: int = 0
    checkpoints: int = 0
