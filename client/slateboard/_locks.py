"""Locks as values."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from slateboard._enums import LockMode, LockState
from slateboard._wire import enum, moment
from slateboard.errors import Invalid
from slateboard.v1 import commit_pb2, lock_service_pb2


@dataclass(frozen=True, slots=True)
class LockScope:
    """What a lock covers: a key, or a subtree."""

    path: str
    """A key, or a prefix ending with `/`, which covers all below it; empty covers the region."""
    region: str = "shared"


@dataclass(frozen=True, slots=True)
class LockClaim:
    """What a write presents to show that a lock is held."""

    lock_id: str
    token: int
    """The fencing token."""

    def message(self) -> commit_pb2.Claim:
        """The claim for the wire."""
        return commit_pb2.Claim(lock_id=self.lock_id, fencing_token=self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """A lock as the server described it."""

    lock_id: str
    token: int
    """The fencing token: rises with every grant on a board; 0 until granted."""
    state: LockState
    mode: LockMode
    scopes: tuple[LockScope, ...]
    """Those that may be seen."""
    principal: str
    session_id: str
    holder: str
    """What its owner said of itself, by default host and process."""
    purpose: str
    ttl: float
    """Seconds it lives without a renewal."""
    ttl_left: float | None
    """Seconds; None where it ended, or the server cannot tell now."""
    max_hold: float | None
    """Seconds from the grant to its end, renewed or not."""
    ask_time: datetime | None
    grant_time: datetime | None
    end_time: datetime | None
    ended_by: str
    end_reason: str
    successor: str
    """The lock that a transfer made of it."""
    sequence: int
    """Rises with every change of a lock on the board: what `watch_locks` resumes after."""

    @property
    def age(self) -> timedelta | None:
        """Time from its grant to its end, if it has both."""
        if self.grant_time is None or self.end_time is None:
            return None
        return self.end_time - self.grant_time


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterInfo:
    """Somebody who waits for a lock."""

    lock: LockInfo
    blockers: tuple[LockInfo, ...]
    """Held locks in its way, and earlier waits that it must not pass."""


def lock_info(message: lock_service_pb2.Lock) -> LockInfo:
    """A lock from the wire."""
    return LockInfo(
        lock_id=message.lock_id,
        token=message.fencing_token,
        # A state we do not know is no reason to take a lock for a held one.
        state=enum(LockState, message.state, LockState.EXPIRED),
        mode=enum(LockMode, message.mode, LockMode.EXCLUSIVE),
        scopes=tuple(LockScope(scope.path, scope.region) for scope in message.scopes),
        principal=message.principal,
        session_id=message.session_id,
        holder=message.holder,
        purpose=message.purpose,
        ttl=message.ttl.ToTimedelta().total_seconds(),
        ttl_left=message.ttl_left.ToTimedelta().total_seconds() if message.HasField("ttl_left") else None,
        max_hold=message.max_hold.ToTimedelta().total_seconds() if message.HasField("max_hold") else None,
        ask_time=moment(message.ask_time) if message.HasField("ask_time") else None,
        grant_time=moment(message.grant_time) if message.HasField("grant_time") else None,
        end_time=moment(message.end_time) if message.HasField("end_time") else None,
        ended_by=message.ended_by,
        end_reason=message.end_reason,
        successor=message.successor,
        sequence=message.sequence,
    )


def waiter_info(message: lock_service_pb2.Waiter) -> WaiterInfo:
    """A waiter from the wire."""
    return WaiterInfo(
        lock=lock_info(message.lock), blockers=tuple(lock_info(blocker) for blocker in message.blockers)
    )


def scope_message(scope: str | LockScope, region: str) -> lock_service_pb2.LockScope:
    """A scope for the wire."""
    if isinstance(scope, LockScope):
        return lock_service_pb2.LockScope(region=scope.region, path=scope.path)
    if not isinstance(scope, str):
        raise Invalid(
            f"a lock covers keys and prefixes, not {type(scope).__name__}", metadata={"field": "scopes"}
        )
    return lock_service_pb2.LockScope(region=region, path=scope)
