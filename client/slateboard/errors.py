"""What can go wrong, as one tree.

    SlateError                  everything below; `reason`, `metadata`, `retry_after`, `cause`
    ├── Invalid                 the request makes no sense; found here or by the server
    ├── Unauthenticated         no credential, or one that does not count (any more)
    ├── Denied                  the principal has no right to do this
    ├── NotFound                no such board, key, commit, conflict, principal or session
    ├── AlreadyExists           the board's name or the principal's id is taken
    ├── Conflict                a precondition or guard did not hold: read again, decide again
    ├── LockHeld                somebody's lock is in the way; `holder`, `mode`, `waiting`, `retry_after`
    │   └── Deadlock            waiting for it would never end
    ├── Refused                 the state of things forbids it; repeating it changes nothing
    │   ├── LockLost            the claimed lock is not held any more
    │   ├── SessionDead         the session ended or missed its heartbeats
    │   ├── TrustTooLow         below the region's floor
    │   ├── SourcePurged        derived from something that was purged
    │   ├── SchemaMismatch      the value does not fit the region's schema
    │   └── PolicyForbids       read-only region, or `any_state` where it is not allowed
    ├── OutOfRange
    │   ├── Compacted           the revision lies below the board's floor
    │   ├── FutureRevision      the revision lies above the board's head
    │   └── Reincarnated        the board began a new life since
    ├── Exhausted
    │   ├── QuotaExceeded
    │   ├── RateLimited         slow down; `retry_after`
    │   └── WatchTooSlow        a watch was not read for too long
    ├── Unavailable             no server could answer in time
    │   └── OutcomeUnknown      ... to a write, which may or may not have happened
    ├── DeadlineExceeded        a read took longer than its timeout
    ├── Cancelled
    ├── Unsupported             this server does not do that
    └── ServerFault             a fault of the server; its log has the incident

An error is chosen by the documented reason the server gives; a reason that this client does not know yet becomes the
class of the status code, with the `reason` kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


class SlateError(Exception):
    """The base of every error of this package."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """What happened, why, and what to do next, for people."""
        self.reason = reason
        """A documented word of error_reason.proto, e.g. `VERSION_CONFLICT`; empty where there is none."""
        self.metadata = dict(metadata or {})
        """Details the reason documents, e.g. `limit`."""
        self.retry_after = retry_after
        """How long the server asks to wait before the next try, where it does."""

    @property
    def cause(self) -> BaseException | None:
        """What this error was made from: a gRPC error, or the error of the last attempt."""
        return self.__cause__

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]" if self.reason else self.message


class Invalid(SlateError):
    """The request makes no sense. Mend what `metadata["field"]` names."""


class Unauthenticated(SlateError):
    """No credential was sent, or the server does not accept it."""


class Denied(SlateError):
    """The principal has no right to do this."""


class NotFound(SlateError):
    """There is no such thing, or the caller may not see it: the two look the same."""


class AlreadyExists(SlateError):
    """The name or id is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One precondition or guard that did not hold."""

    reason: str
    """`VERSION_CONFLICT`, `GUARD_CHANGED` or `KEY_LOCKED`."""
    index: int
    """Which op, or which guard where `guard` is true."""
    guard: bool
    region: str
    key: str
    """The key, or the prefix of a prefix guard."""
    expected: str
    """In words: `version 3`, `absent`, `unchanged since 41`."""
    current_version: int
    """0: absent."""
    current_mod_revision: int
    current_principal: str
    """Who wrote the current version; empty where the caller may not see it."""
    current_session_id: str
    current_commit_time: datetime | None
    lock_holder: str
    lock_id: str


class Conflict(SlateError):
    """Somebody else was faster: a precondition or guard did not hold, and nothing was written."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "VERSION_CONFLICT",
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
        violations: Sequence[Violation] = (),
        conflict_id: str = "",
        omitted: int = 0,
        revision: int = 0,
        overlaps: Sequence[str] = (),
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata, retry_after=retry_after)
        self.violations = tuple(violations)
        """What did not hold. Long lists are cut: see `omitted`."""
        self.conflict_id = conflict_id
        """For `board.get_conflict()`, which has it whole."""
        self.omitted = omitted
        """How many violations are not listed here."""
        self.revision = revision
        """The board's head when the commit was judged."""
        self.overlaps = tuple(overlaps)
        """From `board.update()`: JSON pointers that both sides changed; `""` is the whole value."""

    @property
    def current_versions(self) -> dict[str, int]:
        """Key to current version (0: absent) of every violation listed."""
        return {violation.key: violation.current_version for violation in self.violations}


class LockHeld(SlateError):
    """A lock is in the way: wait for it, or present its claim."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "KEY_LOCKED",
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
        violations: Sequence[Violation] = (),
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata, retry_after=retry_after)
        self.violations = tuple(violations)
        """Which keys are locked, by whom."""

    @property
    def holder(self) -> str:
        """Whose lock is in the way; empty where that may not be seen."""
        found = (violation.lock_holder for violation in self.violations if violation.lock_holder)
        return self.metadata.get("holder", "") or next(found, "")

    @property
    def lock_id(self) -> str:
        """Which lock is in the way; empty where that may not be seen."""
        return self.metadata.get("lock_id", "")

    @property
    def mode(self) -> str:
        """How it is held, `exclusive` or `shared`; empty where that may not be seen, or for a commit."""
        return self.metadata.get("mode", "")

    @property
    def waiting(self) -> int:
        """How many wait before this caller would."""
        text = self.metadata.get("waiting", "")
        return int(text) if text.isascii() and text.isdigit() else 0


class Deadlock(LockHeld):
    """Waiting for the lock would never end: who holds it waits for the caller. Release what you hold, begin again."""

    @property
    def cycle(self) -> str:
        """Who waits for whom, e.g. `analyst -> cleaner -> analyst`."""
        return self.metadata.get("cycle", "")


class Refused(SlateError):
    """The state of things forbids it; repeating it as it is changes nothing."""


class LockLost(Refused):
    """The lock is not held any more. Stop the protected work."""

    @property
    def lock_id(self) -> str:
        """Which lock."""
        return self.metadata.get("lock_id", "")


class SessionDead(Refused):
    """The session ended or missed its heartbeats; others may have taken over its work."""


class TrustTooLow(Refused):
    """The write's trust would be below the region's floor."""


class SourcePurged(Refused):
    """A source was purged. Derive again from what is left."""


class SchemaMismatch(Refused):
    """The value does not fit the region's schema."""


class PolicyForbids(Refused):
    """The region's policy forbids this kind of write."""


class OutOfRange(SlateError):
    """A revision is not one that this board can answer for."""


class Compacted(OutOfRange):
    """The revision lies below the board's floor. Read the present state and follow from there."""

    @property
    def oldest_revision(self) -> int:
        """The oldest revision that can still be read; 0 where the server did not say."""
        text = self.metadata.get("oldest_revision", "")
        return int(text) if text.isascii() and text.isdigit() else 0


class FutureRevision(OutOfRange):
    """The revision lies above the board's head: it comes from another board or another life of this one."""


class Reincarnated(OutOfRange):
    """The board began a new life. Forget versions and revisions of the old one; read the present state."""

    @property
    def incarnation(self) -> str:
        """The present incarnation; empty where the server did not say."""
        return self.metadata.get("incarnation", "")


class Exhausted(SlateError):
    """A bound was reached."""


class QuotaExceeded(Exhausted):
    """A quota of the board or region is used up."""


class RateLimited(Exhausted):
    """Too many commits. Slow down by `retry_after`."""


class WatchTooSlow(Exhausted):
    """The watch was not read for too long. `watch()` resumes by itself; it surfaces only when that fails."""


class Unavailable(SlateError):
    """No server could answer in time. Nothing is known to be wrong with the request."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata, retry_after=retry_after)
        self.sent = sent
        """False where the request certainly never left: no connection could be made."""


class OutcomeUnknown(Unavailable):
    """A write may or may not have happened. Sending it again with the same `request_id` is safe."""

    def __init__(
        self,
        message: str,
        *,
        request_id: str,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.request_id = request_id
        """For `board.get_commit(request_id=...)`, or to send the write again."""


class DeadlineExceeded(SlateError):
    """The timeout passed before an answer came."""


class Cancelled(SlateError):
    """The call was cancelled."""


class Unsupported(SlateError):
    """This server does not do that; `client.server_info()` says what it is."""


class ServerFault(SlateError):
    """A fault of the server. Report `metadata["incident"]`."""
