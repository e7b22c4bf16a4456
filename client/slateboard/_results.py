"""What calls other than plain reads answer."""

from dataclasses import dataclass
from datetime import datetime

from slateboard._entries import Entry
from slateboard._enums import DiffKind, SessionState, Trust
from slateboard.errors import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class OpResult:
    """What one op of a commit did."""

    region: str
    key: str
    """The key, also of an append."""
    version: int
    """The version it made; 0 where nothing changed."""
    etag: str
    trust: Trust
    """The trust that was stored."""
    changed: bool
    """False only for a delete of an absent key under `any_state`."""
    expire_time: datetime | None = None
    revision: int = 0
    create_revision: int = 0
    """Revision of the first version since the key last came into being; 0 where nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitWarning:
    """A limit is near; nothing was refused."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """An accepted commit."""

    revision: int
    commit_id: str
    commit_time: datetime | None
    results: tuple[OpResult, ...]
    """One an op, in order."""
    request_id: str
    incarnation: str
    replayed: bool = False
    """An earlier attempt had already been accepted; this is its answer."""
    attempts: int = 1
    """How many calls it took."""
    warnings: tuple[CommitWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """A commit as recorded. Holds no values."""

    revision: int
    commit_id: str
    principal: str
    session_id: str
    request_id: str
    commit_time: datetime | None
    note: str
    results: tuple[OpResult, ...]
    """Of the keys the caller may see."""
    hidden_ops: bool
    """There were others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictInfo:
    """A refused commit, as kept for inspection."""

    conflict_id: str
    time: datetime | None
    principal: str
    session_id: str
    request_id: str
    reason: str
    revision: int
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffChange:
    """One difference between two JSON values."""

    kind: DiffKind
    pointer: str
    """JSON Pointer (RFC 6901); empty for the whole value."""
    before: str
    """JSON text; empty where there was none."""
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two versions of a key, compared."""

    from_entry: Entry | None
    """Without its value; None where that version is an absence."""
    to_entry: Entry | None
    changes: tuple[DiffChange, ...]
    """For two JSON values."""
    unified: str
    """For two texts."""
    equal: bool
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """A version in a lineage graph; `entry` is None for the one node that stands for all the caller may not see."""

    id: int
    depth: int
    """Distance from the root; the root is 0."""
    hidden: bool
    entry: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEdge:
    """`derived` was made from `source`; both are node ids. Edges of one `derivation` were used together."""

    derived: int
    source: int
    derivation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a version came from, or what became of it."""

    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    truncated: bool
    """True where max_depth or max_nodes cut the graph."""
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session, by the server's clock."""

    session_id: str
    principal: str
    start_time: datetime | None
    last_seen_time: datetime | None
    ttl: float
    """Seconds it lives without a heartbeat."""
    state: SessionState
    task: str
    purpose: str
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a board object did so far; counts of this process."""

    commits: int = 0
    """Accepted."""
    conflicts: int = 0
    """Refused for contention: each attempt counts."""
    merged: int = 0
    """Updates that took in somebody else's concurrent change."""
    retries: int = 0
    """Calls sent again after a failure that was not contention."""
    replayed: int = 0
    """Commits whose first reply was lost and whose retry found them done."""
    reconnects: int = 0
    """Watches resumed."""
