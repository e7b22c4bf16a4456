"""What a version of a key is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from slateboard_server.domain.values import (
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


@dataclass(frozen=True, slots=True)
class SourceRef:
    """A version that was used to make another."""

    region: Region
    key: Key
    version: Version


@dataclass(frozen=True, slots=True)
class OpRef:
    """An earlier op of the same commit, used as a source; the judge resolves it to a `SourceRef`."""

    op: int


Derivation: TypeAlias = tuple[SourceRef, ...]
"""Sources that were all used. Several derivations are independent statements."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """What is said about a value, beside the value. Written once, never interpreted by the judge."""

    subject: str = ""
    attribute: str = ""
    topics: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted by name."""
    confidence: float = 1.0
    importance: float = 0.5
    valid_from: Micros | None = None
    valid_to: Micros | None = None
    turn: str = ""
    tool: str = ""
    source_uris: tuple[str, ...] = ()
    traceparent: str = ""
    note: str = ""
    derivation_waived: bool = False


NO_ANNOTATIONS = Annotations()


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """An immutable past or present state of a key, as the store keeps it.

    A tombstone has no value. A compacted version (`compacted`) has lost value and annotations, but keeps key, version,
    trust and derivations. `value` is also None where the reader asked for no values; `size` tells its bytes all the same.
    """

    region: Region
    key: Key
    version: Version
    create_revision: Revision
    mod_revision: Revision
    op_index: int
    """Place among the versions of its commit; (mod_revision, op_index) is the order of the log."""
    commit_time: Micros
    principal: PrincipalId
    session_id: SessionId | None
    trust: Trust
    tombstone: Tombstone = Tombstone.NONE
    compacted: bool = False
    value: bytes | None = None
    size: int = 0
    content_type: str = ""
    kind: Kind = Kind.WORKING
    expire_time: Micros | None = None
    annotations: Annotations = NO_ANNOTATIONS
    derivations: tuple[Derivation, ...] = ()
    memo: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    """A place for the edge to keep its encoding of this immutable record."""

    @property
    def is_value(self) -> bool:
        """Tell a value from a tombstone."""
        return self.tombstone is Tombstone.NONE

    def present_at(self, now: Micros) -> bool:
        """Tell whether the version is a value that has not expired at `now`."""
        return self.tombstone is Tombstone.NONE and (self.expire_time is None or self.expire_time > now)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit as the log keeps it; its versions carry its revision."""

    revision: Revision
    commit_id: str
    batch_id: str
    """Names the database transaction that wrote it: how an unknown COMMIT is resolved."""
    principal: PrincipalId
    session_id: SessionId | None
    request_id: str
    """Empty for the server's own commits."""
    commit_time: Micros
    note: str = ""


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit with its versions in op order: the unit of the log and of watch."""

    commit: CommitRecord
    versions: tuple[VersionRecord, ...]

    @property
    def size(self) -> int:
        """Bytes of its values plus a constant per version: what a ring or cache accounts for it."""
        return 256 + sum(512 + record.size for record in self.versions)
