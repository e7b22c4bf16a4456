"""What services take and give: plain values between the edge and the use cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from slateboard_server.domain.commit import CommitAnswer, SessionClaim
from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import LoggedCommit, VersionRecord
from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.locks import LockMode, LockRecord, LockScope
from slateboard_server.domain.principal import Principal
from slateboard_server.domain.values import Incarnation, Key, LockId, Micros, Region, Revision, TokenId, Trust


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a call comes from: the principal its credential stands for, never a request field."""

    principal: Principal
    token_id: TokenId | None
    """None where a client certificate was the credential."""


class Mode(Enum):
    """Which state a read may answer from; see `ConsistencyMode` in the API."""

    LATEST = "latest"
    AT_LEAST = "at_least"
    EXACT = "exact"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Consistency:
    """Mode and, with AT_LEAST and EXACT, revision."""

    mode: Mode = Mode.LATEST
    revision: Revision = Revision(0)


LATEST = Consistency()


@dataclass(frozen=True, slots=True)
class Want:
    """What a read asks for besides its keys."""

    consistency: Consistency = LATEST
    values: bool = True
    """False in the KEYS and META views: no value leaves the store."""
    min_trust: Trust | None = None
    incarnation: Incarnation | None = None


DEFAULT_WANT = Want()


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where the board stood when a reply was made; becomes the reply's header."""

    revision: Revision
    oldest_revision: Revision
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class GetResult:
    """Keys in the order asked: those found, those absent, and those that did not fit into one reply."""

    stamp: Stamp
    found: Sequence[VersionRecord]
    absent: Sequence[tuple[Region, Key]]
    unread: Sequence[tuple[Region, Key]]


@dataclass(frozen=True, slots=True)
class RecordsPage:
    """A page of records and the token of the next one; empty on the last."""

    stamp: Stamp
    records: Sequence[VersionRecord]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class CommitResult:
    """An accepted, validated or replayed commit."""

    stamp: Stamp
    answer: CommitAnswer
    replayed: bool


@dataclass(frozen=True, slots=True)
class VisibleCommit:
    """A commit as its reader may see it: `logged.versions` are those visible, `hidden_ops` says there were others."""

    logged: LoggedCommit
    hidden_ops: bool


@dataclass(frozen=True, slots=True)
class CommitsResult:
    """A page of commits, newest first."""

    stamp: Stamp
    commits: Sequence[VisibleCommit]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class ConflictsResult:
    """A page of conflicts, newest first, with only the violations the reader may see."""

    stamp: Stamp
    conflicts: Sequence[Conflict]
    next_page_token: str
    dropped: int


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """What to follow. `after` None: from the head (or, with `snapshot`, from the snapshot)."""

    prefixes: tuple[tuple[Region, str], ...]
    after: Revision | None = None
    snapshot: bool = False
    values: bool = True
    min_trust: Trust | None = None
    progress_interval: float = 10.0
    """Seconds."""
    incarnation: Incarnation | None = None


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """The visible changes of one revision, in op order; `complete` False where more of the same revision follow.

    A record below the watcher's min_trust comes without a value (`withheld` holds its place in `records`).
    """

    stamp: Stamp
    commit: LoggedCommit
    records: Sequence[VersionRecord]
    complete: bool
    withheld: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """Present entries at stamp.revision."""

    stamp: Stamp
    records: Sequence[VersionRecord]
    last: bool


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """All visible changes up to stamp.revision were sent."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class GoingAwayEvent:
    """The server is about to stop; resume elsewhere after stamp.revision."""

    stamp: Stamp
    reason: str


WatchEvent: TypeAlias = BatchEvent | SnapshotEvent | ProgressEvent | GoingAwayEvent


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key and how often it was written and fought over within the last minute."""

    region: Region
    key: Key
    writes: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class Activity:
    """A replica's live counters for a board, since the replica started."""

    commits: int
    conflicts: int
    replays: int
    watches: int
    queued_commits: int
    hot_keys: Sequence[HotKey]


@dataclass(frozen=True, slots=True)
class LockAsk:
    """What Acquire asks for, after its shape was checked. Durations in Micros."""

    request_id: str
    scopes: tuple[LockScope, ...]
    mode: LockMode
    ttl: int
    wait_timeout: int
    max_hold: int | None
    purpose: str
    holder: str
    session: SessionClaim | None


@dataclass(frozen=True, slots=True)
class LockView:
    """A lock as a caller may see it: `lock.scopes` are those it may."""

    lock: LockRecord
    ttl_left: int | None
    """Micros left of its lease; None where it ended, or liveness cannot be asked."""


@dataclass(frozen=True, slots=True)
class LockRenewal:
    """What became of one renewal: Micros left, or why not."""

    lock_id: LockId
    ttl_left: int | None
    error: SlateboardError | None = None


@dataclass(frozen=True, slots=True)
class LocksPage:
    """Locks in the order of asking; `now` is what ages are measured by."""

    stamp: Stamp
    locks: Sequence[LockView]
    next_page_token: str
    now: Micros


@dataclass(frozen=True, slots=True)
class WaiterView:
    """Somebody who waits, and what for."""

    lock: LockView
    blockers: Sequence[LockView]


@dataclass(frozen=True, slots=True)
class WaitersPage:
    """Waiters in the order of asking."""

    stamp: Stamp
    waiters: Sequence[WaiterView]
    next_page_token: str
    now: Micros


@dataclass(frozen=True, slots=True)
class LockChanges:
    """Locks that changed; empty for a sign of life."""

    stamp: Stamp
    locks: Sequence[LockView]
    sequence: int
    going_away: bool = False
