"""Locks as values: what they cover, who owns them, what can be asked of them.

Who is alive is decided elsewhere (leases); what is here decides who owns, and is only ever changed under the board's row
lock, in the same order as commits. `locking.py` holds the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from slateboard_server.domain.commit import SessionClaim
from slateboard_server.domain.values import (
    SECOND,
    FencingToken,
    LockId,
    Micros,
    PrincipalId,
    Region,
    SessionId,
    TokenId,
)


class LockMode(IntEnum):
    """Whether others may hold it too. Numbers are those of the API."""

    EXCLUSIVE = 1
    SHARED = 2


class LockState(IntEnum):
    """Where a lock stands. Numbers are those of the API."""

    WAITING = 1
    HELD = 2
    RELEASED = 3
    EXPIRED = 4
    REVOKED = 5
    TRANSFERRED = 6
    ABANDONED = 7

    @property
    def live(self) -> bool:
        """Tell whether it is in anybody's way."""
        return self in _LIVE


_LIVE: Final = frozenset({LockState.WAITING, LockState.HELD})


class LockScope(NamedTuple):
    """A key, or a subtree (`path` empty or ending with '/')."""

    region: Region
    path: str

    @property
    def is_subtree(self) -> bool:
        """Tell whether it covers more than a key."""
        return is_subtree(self.path)

    def covers(self, region: Region, path: str) -> bool:
        """Tell whether a key, or the whole of a subtree, lies within."""
        return self.region == region and (
            path.startswith(self.path) if is_subtree(self.path) else path == self.path
        )

    def overlaps(self, other: LockScope) -> bool:
        """Tell whether some key lies in both."""
        return self.covers(*other) or other.covers(*self)


def is_subtree(path: str) -> bool:
    """Tell a subtree from a key."""
    return path == "" or path.endswith("/")


def ancestors(path: str) -> Iterator[str]:
    """Yield every path that covers a key or subtree, from the whole region down to itself."""
    yield ""
    end = path.find("/") + 1
    while end and end < len(path):
        yield path[:end]
        end = path.find("/", end) + 1
    if path:
        yield path


class Owner(NamedTuple):
    """Who waits for whom: a session, or what a sessionless caller says of itself."""

    principal: PrincipalId
    session_id: SessionId | None
    holder: str

    @property
    def one_at_a_time(self) -> bool:
        """Tell whether it is one agent at work, who cannot give up a lock while it waits for another.

        Processes that share a principal and threads of one process can: waiting for a lock of "their own" is no deadlock.
        """
        return self.session_id is not None


@dataclass(frozen=True, slots=True)
class LockRecord:
    """A lock, asked for, held or ended. Kept for a day after its end."""

    lock_id: LockId
    number: int
    """Its place in the queue: rises with every ask on a board."""
    state: LockState
    mode: LockMode
    scopes: tuple[LockScope, ...]
    principal: PrincipalId
    session_id: SessionId | None
    holder: str
    purpose: str
    ttl: int
    """Seconds its lease was granted for."""
    asked: Micros
    request_id: str = ""
    fingerprint: bytes = b""
    attempt: str = ""
    """Which of the calls with this request_id came last: what an earlier one leaves behind is not its to clear up."""
    max_hold: int | None = None
    """Micros from the grant to its end, renewed or not."""
    token: FencingToken = FencingToken(0)
    granted: Micros | None = None
    ended: Micros | None = None
    ended_by: str = ""
    end_reason: str = ""
    end_request_id: str = ""
    successor: str = ""
    sequence: int = 0
    """Rises with every change of a lock on the board."""

    @property
    def owner(self) -> Owner:
        """Return who waits, or is waited for."""
        return Owner(self.principal, self.session_id, "" if self.session_id else self.holder)

    def overdue_at(self, now: Micros) -> bool:
        """Tell whether it was held for as long as it may be."""
        return self.max_hold is not None and self.granted is not None and now >= self.granted + self.max_hold

    def overlaps(self, scopes: Iterable[LockScope]) -> bool:
        """Tell whether some key lies in both."""
        return any(mine.overlaps(other) for other in scopes for mine in self.scopes)

    def conflicts(self, mode: LockMode, scopes: Iterable[LockScope]) -> bool:
        """Tell whether it cannot be held together with a lock like that."""
        return not (self.mode is LockMode.SHARED and mode is LockMode.SHARED) and self.overlaps(scopes)


# What can be asked


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, proved outside; checked again where the lock is changed."""

    principal: PrincipalId
    token_id: TokenId | None = None
    session: SessionClaim | None = None


@dataclass(frozen=True, slots=True)
class AcquireLock:
    """Grant a lock whose lease is alive already, or queue for it."""

    asker: Asker
    request_id: str
    fingerprint: bytes
    attempt: str
    lock_id: LockId
    """A fresh one, with a lease; not used where the request has a lock already."""
    mode: LockMode
    scopes: tuple[LockScope, ...]
    ttl: int
    max_hold: int | None = None
    purpose: str = ""
    holder: str = ""
    wait: bool = True
    """False: leave nothing behind where it cannot be granted at once."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """End one's own lock, held or waited for."""

    asker: Asker
    request_id: str
    lock_id: LockId
    token: FencingToken
    attempt: str | None = None
    """Of a call that ended before its lock was granted: it clears up only what no later call has taken up."""


@dataclass(frozen=True, slots=True)
class RevokeLock:
    """End a lock of somebody else's."""

    asker: Asker
    request_id: str
    lock_id: LockId
    expected_token: FencingToken
    reason: str


@dataclass(frozen=True, slots=True)
class TransferLock:
    """Hand a held lock on; the receiver's lease is alive already."""

    asker: Asker
    request_id: str
    lock_id: LockId
    token: FencingToken
    to_principal: PrincipalId
    to_session: SessionId | None
    to_holder: str
    new_lock_id: LockId
    ttl: int


@dataclass(frozen=True, slots=True)
class ReapLocks:
    """End locks whose leases are gone, who were held too long, or whose session ended. The server's own."""

    dead: frozenset[LockId] = frozenset()
    """Locks whose leases were seen to be gone: for good, since ids are never reused."""
    overdue: frozenset[LockId] = frozenset()
    session: SessionId | None = None


LockOp: TypeAlias = AcquireLock | ReleaseLock | RevokeLock | TransferLock | ReapLocks


class ReleaseOutcome(IntEnum):
    """How a lock ended. Numbers are those of the API."""

    RELEASED = 1
    ALREADY_RELEASED = 2
    EXPIRED = 3
    REVOKED = 4
    TRANSFERRED = 5


@dataclass(frozen=True, slots=True)
class LockVerdict:
    """What became of a lock op that was not refused."""

    lock: LockRecord | None = None
    """The lock asked for, ended or handed on; None for ReapLocks."""
    blockers: tuple[LockRecord, ...] = ()
    """What a lock that is not held waits for, or would have."""
    outcome: ReleaseOutcome | None = None
    replayed: bool = False
    changed: tuple[LockRecord, ...] = ()
    """Every lock that is not as it was before, promoted waiters included."""


def seconds_of(ttl: int) -> int:
    """Return whole seconds of a length in Micros, rounded up."""
    return -(-ttl // SECOND)
