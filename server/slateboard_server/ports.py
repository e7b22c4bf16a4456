"""What the services need from the outside, as Protocols with their guarantees in prose.

Adapters live in one folder a port. A wrapper (retries, fault injection, metrics) has the same Protocol as what it wraps.
The conformance suite in `tests/conformance` holds every adapter to the sentences written here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from slateboard_server.domain.commit import CommitItem
from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import LoggedCommit, SourceRef, VersionRecord
from slateboard_server.domain.judge import Verdict
from slateboard_server.domain.locks import LockOp, LockRecord, LockScope, LockState, LockVerdict
from slateboard_server.domain.picture import StoredAnswer
from slateboard_server.domain.policy import Policy
from slateboard_server.domain.principal import Principal, SessionRecord, TokenRecord
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
    LockId,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    TokenId,
    Version,
)

BatchItem: TypeAlias = CommitItem | LockOp
"""What waits for the row of a board."""
BatchVerdict: TypeAlias = Verdict | LockVerdict
"""What became of it."""


class Clock(Protocol):
    """Time, so that tests can hold it."""

    def now(self) -> Micros:
        """Return the wall clock in UTC. May jump; the store never lets a board's time run backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only rise, for deadlines and intervals."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """Where a board stands, read in one snapshot with whatever comes along."""

    revision: Revision
    floor: Revision
    """Oldest revision that can be read EXACT or watched from (watch after floor - 1). 1 if never compacted."""
    incarnation: Incarnation
    commit_time: Micros
    policy_version: int


@dataclass(frozen=True, slots=True)
class BoardMeta:
    """A board without its entries."""

    board_id: BoardId
    name: str
    description: str
    created: Micros
    created_by: str
    secret: bytes
    """32 random bytes: keys etags, request fingerprints and counter rows. Never leaves the server."""
    head: Head
    policy: Policy
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class NewBoard:
    """What CreateBoard asks the store for."""

    name: str
    description: str
    created_by: PrincipalId
    policy: Policy
    request_id: str


class ReadMode(Enum):
    """LATEST reads the head; EXACT the board as it was at a revision, with that revision's time for expiry."""

    LATEST = "latest"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class At:
    """Which state a store read is made of. `revision` only with EXACT; `now` judges expiry with LATEST."""

    mode: ReadMode
    revision: Revision = Revision(0)
    now: Micros = Micros(0)


@dataclass(frozen=True, slots=True)
class KeysRead:
    """Keys read in one snapshot. Only present values appear: no tombstones, nothing expired at the read's time."""

    head: Head
    revision: Revision
    """The revision it was read at: the head's with LATEST."""
    found: dict[tuple[Region, Key], VersionRecord]


@dataclass(frozen=True, slots=True)
class Scan:
    """Part of a subtree in key order. `more` tells whether keys after the last one may follow."""

    head: Head
    revision: Revision
    records: tuple[VersionRecord, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class VersionsPage:
    """Versions of a key, newest first, tombstones and compacted ones included."""

    head: Head
    records: tuple[VersionRecord, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class LogPage:
    """A gap-free run of the log: commits `after + 1 .. after + n`; empty where `after` is the head.

    Read in one snapshot with `head`. Where `after + 1` lies below the floor, nothing is returned and head.floor tells.
    """

    head: Head
    commits: tuple[LoggedCommit, ...]


@dataclass(frozen=True, slots=True)
class CommitsPage:
    """Commits newest first, versions without values."""

    head: Head
    commits: tuple[LoggedCommit, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class ConflictsPage:
    """Conflicts newest first. `dropped` counts those the ring lost before their time."""

    head: Head
    conflicts: tuple[Conflict, ...]
    more: bool
    dropped: int


@dataclass(frozen=True, slots=True)
class Edge:
    """`derived` names `source` in its derivation number `derivation`."""

    derived: SourceRef
    source: SourceRef
    derivation: int


@dataclass(frozen=True, slots=True)
class Expiring:
    """A value whose time has passed and that no tombstone records yet."""

    region: Region
    key: Key
    version: Version


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """That something out of the ordinary happened. Holds no value and no secret."""

    time: Micros
    principal: PrincipalId
    action: str
    """e.g. `principal.create`, `private.read`, `board.delete`, `policy.set`, `derivation.waived`."""
    board: str = ""
    target: str = ""
    detail: str = ""


class BoardStore(Protocol):
    """Boards and their policies."""

    async def create_board(self, board: NewBoard) -> BoardMeta:
        """Make a board; durable on return. BOARD_EXISTS, unless the same principal made it with the same request_id."""
        ...

    async def find_board(self, name: str) -> BoardMeta | None:
        """Read a board from the primary. Deleted ones do not exist."""
        ...

    async def list_boards(self, after: str, limit: int) -> Sequence[BoardMeta]:
        """List boards by name, names above `after` only."""
        ...

    async def delete_board(self, board_id: BoardId, incarnation: Incarnation) -> bool:
        """Make a board disappear at once and for good; False where the incarnation is another. Waits for no erasure."""
        ...

    async def erase_deleted(self, limit: int) -> int:
        """Erase up to `limit` rows of deleted boards; return how many went. Short transactions."""
        ...

    async def reincarnate(self, board_id: BoardId, incarnation: Incarnation) -> BoardMeta | None:
        """Start a new incarnation under the row lock; None where the present one is another.

        Everything handed out before stops matching: etags, page tokens, cursors, claims (lock_seq jumps).
        """
        ...

    async def set_policy(
        self, board_id: BoardId, policy: Policy, expected_version: int, by: PrincipalId, now: Micros
    ) -> Policy | None:
        """Replace the policy under the row lock and count what its quotas speak of; None if the version is another."""
        ...

    async def compact(self, board_id: BoardId, revision: Revision, limit: int) -> tuple[Head, int, bool]:
        """Raise the floor to `revision` at once, then drop values of superseded versions, up to `limit` rows a call.

        Returns head, rows dropped, and whether more are left. Dropped are value, annotations of versions that a later
        version at or before the floor supersedes, and of tombstones' keys gone before it; key, version, trust,
        derivations stay as a stub. A key whose last version is a tombstone at or before the floor leaves the current
        table for a counter row (keyed digest, last version), so that its versions go on rising. Floor and data are
        changed so that no reader sees a dropped value under an old floor. FUTURE_REVISION above the head.
        """
        ...


class EntryStore(Protocol):
    """Commits and reads. Every read is one snapshot; no read transaction outlives a call."""

    async def commit(
        self, board_id: BoardId, items: Sequence[BatchItem], timeout: float
    ) -> list[BatchVerdict]:
        """Judge a batch under the board's row lock and write what was accepted, in one transaction.

        Lock ops of the batch come first, in order, then its commits: they were asked for at the same time.

        Verdicts come in the order of the items, after the fsync: an `Accepted` is durable. `now` is max(clock, last
        commit time). Conflicts of refused items are kept (ring of 10,000 or 24 h a board). On a database error the
        items are run again one by one, so that only the offender fails; an unknown COMMIT is resolved by its batch id
        before anything is answered; after an fsync error the store is closed and opened again. `timeout` (s) bounds
        the whole, STORAGE_DOWN past it. Not to be cancelled: callers shield it. Raises BOARD_NOT_FOUND for a board
        that is deleted meanwhile, STORAGE_DOWN, STORAGE_CORRUPT.
        """
        ...

    async def heads(self, boards: Sequence[BoardId]) -> dict[BoardId, Head]:
        """Read heads from the primary, at or above everything acknowledged before the call. Unknown boards are missing."""
        ...

    async def read_keys(
        self, board_id: BoardId, keys: Sequence[tuple[Region, Key]], at: At, *, values: bool = True
    ) -> KeysRead:
        """Read keys in one snapshot. EXACT below the floor: COMPACTED; above the head: FUTURE_REVISION."""
        ...

    async def scan(
        self,
        board_id: BoardId,
        region: Region,
        prefix: str,
        after: str,
        limit: int,
        at: At,
        *,
        values: bool = True,
    ) -> Scan:
        """Read present values under a prefix with keys above `after`, at most `limit` records and 4 MiB of values.

        Same errors as `read_keys`. At least one record is returned if there is one.
        """
        ...

    async def versions(
        self,
        board_id: BoardId,
        region: Region,
        key: Key,
        below: Version | None,
        limit: int,
        *,
        values: bool = True,
    ) -> VersionsPage:
        """Read the versions of a key, newest first, below a version (None: all); at most 4 MiB of values."""
        ...

    async def read_versions(
        self, board_id: BoardId, refs: Sequence[SourceRef], *, values: bool = False
    ) -> dict[SourceRef, VersionRecord]:
        """Read single versions; missing ones are left out."""
        ...

    async def read_log(
        self, board_id: BoardId, after: Revision, limit: int, max_bytes: int, *, values: bool = True
    ) -> LogPage:
        """Read the log after a revision: at most `limit` commits and about `max_bytes`, at least one commit if any."""
        ...

    async def find_commit(
        self,
        board_id: BoardId,
        *,
        request: tuple[PrincipalId, str] | None = None,
        revision: Revision | None = None,
    ) -> tuple[Head, LoggedCommit | None, StoredAnswer | None]:
        """Find a commit by (principal, request_id) or revision; versions without values. Reads the primary."""
        ...

    async def list_commits(
        self,
        board_id: BoardId,
        below: Revision | None,
        limit: int,
        principal: PrincipalId | None,
        region: Region | None,
        prefix: str,
    ) -> CommitsPage:
        """List commits newest first, below a revision (None: from the head); `region` None: any key."""
        ...

    async def list_conflicts(
        self, board_id: BoardId, before: int | None, limit: int, key: tuple[Region, Key] | None,
        principal: PrincipalId | None,
    ) -> tuple[ConflictsPage, int | None]:  # fmt: skip
        """List conflicts newest first; `before` and the returned number (None: no more) are the ring's own cursor."""
        ...

    async def find_conflict(self, board_id: BoardId, conflict_id: str) -> Conflict | None:
        """Find one conflict."""
        ...

    async def sources_of(self, board_id: BoardId, derived: Sequence[SourceRef]) -> Sequence[Edge]:
        """Return the edges from versions to what they were made from. Compacted versions keep theirs."""
        ...

    async def derived_from(
        self, board_id: BoardId, sources: Sequence[SourceRef], limit: int
    ) -> Sequence[Edge]:
        """Return up to `limit` edges from versions to what was made from them, oldest first."""
        ...

    async def expired(self, now: Micros, limit: int) -> Sequence[tuple[BoardId, Expiring]]:
        """List values of any board whose time has passed and that no tombstone records."""
        ...

    async def prune(self, now: Micros, limit: int) -> int:
        """Drop stored answers past their retention and conflicts past the ring; return rows dropped. Short transactions."""
        ...


class SessionStore(Protocol):
    """Who is at work on a board. Times are the database's `now`: max(clock, board's last commit time)."""

    async def start_session(
        self, board_id: BoardId, session: SessionRecord, request_id: str
    ) -> SessionRecord:
        """Keep a new session; durable on return.

        With the (principal, request_id) of a session that is alive, that one is returned and nothing is kept: its
        secret hash tells the caller whether its own token is the one that counts.
        """
        ...

    async def touch_session(
        self, board_id: BoardId, session_id: SessionId, now: Micros, task: str | None
    ) -> SessionRecord | None:
        """Record a heartbeat if the session is alive at `now`, atomically; returns its state after, None if unknown."""
        ...

    async def end_session(
        self, board_id: BoardId, session_id: SessionId, now: Micros
    ) -> SessionRecord | None:
        """End a session; an ended one stays as it was. None if unknown."""
        ...

    async def find_session(self, board_id: BoardId, session_id: SessionId) -> SessionRecord | None:
        """Read one session."""
        ...

    async def list_sessions(
        self, board_id: BoardId, before: tuple[Micros, str] | None, limit: int, principal: PrincipalId | None
    ) -> Sequence[SessionRecord]:
        """List sessions, newest first, started before the cursor (start time, id)."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Names the lease of a lock. Lock ids are never reused, so a lease that is gone is gone for good."""

    board_id: BoardId
    lock_id: LockId


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A lock that is held or waited for, as the keeper of leases needs it."""

    lease: Lease
    board: str
    state: LockState
    ttl: int
    """Seconds."""
    due: Micros | None
    """When a held one must end, renewed or not."""


class LockStore(Protocol):
    """Who owns which lock. Changes go through `EntryStore.commit`, in the same batches as commits."""

    async def find_lock(self, board_id: BoardId, lock_id: LockId) -> LockRecord | None:
        """Read one lock from the primary, live or ended in the last 24 h."""
        ...

    async def find_locks(self, board_id: BoardId, lock_ids: Sequence[LockId]) -> dict[LockId, LockRecord]:
        """Read locks from the primary; missing ones are left out."""
        ...

    async def overlapping_locks(self, board_id: BoardId, scopes: Sequence[LockScope]) -> list[LockRecord]:
        """List live locks that overlap any of `scopes`, in the order of asking."""
        ...

    async def list_locks(
        self,
        board_id: BoardId,
        after: int,
        limit: int,
        principal: PrincipalId | None,
        states: Sequence[LockState],
    ) -> list[LockRecord]:
        """List locks in the order of asking, those with numbers above `after` only."""
        ...

    async def lock_changes(
        self, board_id: BoardId, after: int, limit: int, *, live_only: bool
    ) -> tuple[list[LockRecord], int]:
        """List locks whose last change has a sequence above `after`, in that order; also where the sequence stands.

        One snapshot: what is not listed has not changed up to that sequence (unless the limit was reached).
        """
        ...

    async def live_locks(self) -> Sequence[LiveLock]:
        """List what is held or waited for, on all boards."""
        ...


class PrincipalStore(Protocol):
    """Principals and tokens of the server."""

    async def server_secret(self) -> bytes:
        """Return 32 random bytes that belong to the database for good; never leaves the server."""
        ...

    async def create_principal(self, principal: Principal, token: TokenRecord) -> None:
        """Keep a principal and its first token. PRINCIPAL_EXISTS also for ids that were disabled: never reused."""
        ...

    async def update_principal(self, principal: Principal) -> bool:
        """Replace everything but id, creation and `disabled`; False if unknown."""
        ...

    async def disable_principal(self, principal: PrincipalId) -> bool:
        """Disable for good; revokes its tokens in the same transaction. False if unknown."""
        ...

    async def find_principal(self, principal: PrincipalId) -> Principal | None:
        """Read one principal."""
        ...

    async def list_principals(self, after: str, limit: int) -> Sequence[Principal]:
        """List principals by id, ids above `after` only."""
        ...

    async def find_token(self, token_id: TokenId) -> tuple[TokenRecord, Principal] | None:
        """Read a token with its principal."""
        ...

    async def list_tokens(self, principal: PrincipalId) -> Sequence[TokenRecord]:
        """List a principal's tokens, oldest first."""
        ...

    async def add_token(self, token: TokenRecord, others_expire: Micros | None) -> None:
        """Keep a new token; with `others_expire`, older live ones expire then at the latest."""
        ...

    async def revoke_token(self, token_id: TokenId) -> bool:
        """Revoke a token at once; False if unknown."""
        ...

    async def audit(self, records: Sequence[AuditRecord]) -> None:
        """Keep audit records, durable on return."""
        ...

    async def list_audit(self, before: int | None, limit: int) -> Sequence[tuple[int, AuditRecord]]:
        """List audit records, newest first, below a number."""
        ...


class Liveness(Protocol):
    """Decides which locks are alive, and nothing else: who owns one is the store's to say.

    Every method answers within a few seconds or raises SlateboardError LOCK_BACKEND_DOWN; none retries for longer. Safe
    to call from one event loop.
    """

    async def start(self) -> None:
        """Connect; where it cannot yet, go on trying behind the scenes. Nothing is refused here but a bad configuration."""
        ...

    async def close(self) -> None:
        """Let connections go. Leases live on until their time is up. Idempotent."""
        ...

    def describe(self) -> str:
        """Say what it is, e.g. `in-process leases` or `etcd 3.6.5`."""
        ...

    async def grant(self, lease: Lease, ttl: int) -> int:
        """Begin a lease of `ttl` seconds, counted from no earlier than this call; returns the granted ttl, never shorter.

        Granting one that lives answers like `renew`.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Lengthen leases to their full ttl from now; returns the seconds left of those that live, leaves out the others."""
        ...

    async def revoke(self, leases: Sequence[Lease]) -> None:
        """End leases at once. Those that are gone already are no error."""
        ...

    async def alive(self, leases: Sequence[Lease]) -> set[Lease]:
        """Tell which of these live, linearizably: one that was seen to end before the call is not among them."""
        ...

    async def time_left(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Return the seconds left of those that live; for listings only."""
        ...

    def steady(self) -> bool:
        """Tell whether what `grant` and `renew` promised may stand in for a call of `alive`.

        True while who decides answered within the last half second, without a sign of trouble since, and `deaths` tells
        of leases as they end. False where asking costs nothing anyway.
        """
        ...

    def deaths(self) -> AsyncIterator[Lease]:
        """Yield leases that ended, soon after they did, as a hint only: some may be missing, some may come twice.

        Never ends and never raises: connections that are lost, and history that was compacted meanwhile, are taken up
        again from the present.
        """
        ...

    async def adopt(self, leases: Sequence[tuple[Lease, int]]) -> None:
        """Give locks that were held when the process before this one ended one fresh ttl (seconds) each.

        Only where leases live in this process; elsewhere they live on by themselves and this does nothing.
        """
        ...


class Store(BoardStore, EntryStore, SessionStore, LockStore, PrincipalStore, Protocol):
    """The truth. One object per replica; safe to call from one event loop.

    Promised: what was acknowledged is on disk; the commits of a board form one gap-free order; every read is a snapshot
    of it. No driver exception leaves an adapter: they become SlateboardError with STORAGE_DOWN (try again),
    STORAGE_CORRUPT (do not) or DEADLINE.
    """

    async def start(self) -> None:
        """Open, check and (embedded) migrate the database. Refuses a newer schema, and a directory in use."""
        ...

    async def close(self) -> None:
        """Finish what runs, checkpoint and close. Idempotent."""
        ...

    def describe(self) -> str:
        """Say what it is, e.g. `sqlite 3.51.3` or `postgresql 17.2`."""
        ...

    def warnings(self) -> Sequence[str]:
        """Sentences for `slate doctor` about this installation; empty: all is well."""
        ...

    async def ping(self) -> None:
        """Answer if the database can be reached; STORAGE_DOWN otherwise."""
        ...

    def wakeups(self) -> AsyncIterator[BoardId]:
        """Yield boards that other replicas changed, as a hint only: some may be missing, some may come twice.

        Where several replicas share a database (LISTEN/NOTIFY); what this store wrote itself its callers know.
        """
        ...
