"""The one error of the server's core, and the reasons it can carry.

Everything the core refuses is a `SlateboardError` with a `Reason`; the edge maps the reason to a status code and puts
the fields into the status details. Reasons are the names of `ErrorReason` in `error_reason.proto`, which documents each;
a test holds the two lists together.

```
SlateboardError
  .reason      Reason        what kind of failure, stable
  .message     str           what happened, why, what to do; one or two sentences, no driver text
  .metadata    {str: str}    the figures behind it: field, limit, key ...
  .conflict    Conflict      with ABORTED reasons: every violated precondition and guard
  .retry_after timedelta     when it makes sense to try again
```
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slateboard_server.domain.conflict import Conflict


class Reason(StrEnum):
    """Why something was refused. See `error_reason.proto`."""

    KEY_INVALID = "KEY_INVALID"
    PRECONDITION_REQUIRED = "PRECONDITION_REQUIRED"
    ETAG_INVALID = "ETAG_INVALID"
    REQUEST_ID_INVALID = "REQUEST_ID_INVALID"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    TOO_MANY = "TOO_MANY"
    DUPLICATE_KEY = "DUPLICATE_KEY"
    TOO_LARGE = "TOO_LARGE"
    FIELD_INVALID = "FIELD_INVALID"
    UNKNOWN_FILTER = "UNKNOWN_FILTER"
    PAGE_TOKEN_INVALID = "PAGE_TOKEN_INVALID"
    TOKEN_MISSING = "TOKEN_MISSING"
    TOKEN_INVALID = "TOKEN_INVALID"
    DENIED = "DENIED"
    BOARD_NOT_FOUND = "BOARD_NOT_FOUND"
    KEY_NOT_FOUND = "KEY_NOT_FOUND"
    COMMIT_NOT_FOUND = "COMMIT_NOT_FOUND"
    CONFLICT_NOT_FOUND = "CONFLICT_NOT_FOUND"
    PRINCIPAL_NOT_FOUND = "PRINCIPAL_NOT_FOUND"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    SOURCE_NOT_FOUND = "SOURCE_NOT_FOUND"
    BOARD_EXISTS = "BOARD_EXISTS"
    PRINCIPAL_EXISTS = "PRINCIPAL_EXISTS"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    GUARD_CHANGED = "GUARD_CHANGED"
    KEY_LOCKED = "KEY_LOCKED"
    LOCK_WAIT_TIMEOUT = "LOCK_WAIT_TIMEOUT"
    DEADLOCK = "DEADLOCK"
    LOCK_LOST = "LOCK_LOST"
    LOCK_EXPIRED = "LOCK_EXPIRED"
    LOCK_REVOKED = "LOCK_REVOKED"
    SESSION_DEAD = "SESSION_DEAD"
    TRUST_TOO_LOW = "TRUST_TOO_LOW"
    SOURCE_PURGED = "SOURCE_PURGED"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    POLICY_FORBIDS = "POLICY_FORBIDS"
    COMPACTED = "COMPACTED"
    FUTURE_REVISION = "FUTURE_REVISION"
    BOARD_REINCARNATED = "BOARD_REINCARNATED"
    QUOTA = "QUOTA"
    RATE_LIMITED = "RATE_LIMITED"
    WATCH_TOO_SLOW = "WATCH_TOO_SLOW"
    STORAGE_DOWN = "STORAGE_DOWN"
    DRAINING = "DRAINING"
    REPLICA_BEHIND = "REPLICA_BEHIND"
    INDEX_BEHIND = "INDEX_BEHIND"
    LOCK_BACKEND_DOWN = "LOCK_BACKEND_DOWN"
    DEADLINE = "DEADLINE"
    CANCELLED = "CANCELLED"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    STORAGE_CORRUPT = "STORAGE_CORRUPT"
    INTERNAL = "INTERNAL"


class SlateboardError(Exception):
    """A refusal or failure with a documented reason; safe to show to the caller."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        conflict: Conflict | None = None,
        retry_after: timedelta | None = None,
        **metadata: object,
    ) -> None:
        """Keep the reason, the sentence for people and the figures behind it (`None` values are dropped)."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.conflict = conflict
        self.retry_after = retry_after
        self.metadata = {name: str(value) for name, value in metadata.items() if value is not None}

    def __repr__(self) -> str:
        """Show the reason first: logs are read by it."""
        return f"SlateboardError({self.reason}, {self.message!r})"


def field_invalid(field: str, message: str, *, limit: int | None = None) -> SlateboardError:
    """Build the refusal of a request field: FIELD_INVALID with the field's path."""
    return SlateboardError(Reason.FIELD_INVALID, f"{field}: {message}", field=field, limit=limit)


def too_many(field: str, actual: int, limit: int) -> SlateboardError:
    """Build the refusal of a list that is longer than its limit."""
    return SlateboardError(
        Reason.TOO_MANY,
        f"{field} has {actual} elements, the limit is {limit}; split the request",
        field=field,
        limit=limit,
        actual=actual,
    )


def too_large(field: str, actual: int, limit: int) -> SlateboardError:
    """Build the refusal of a value that is larger than its limit in bytes."""
    return SlateboardError(
        Reason.TOO_LARGE,
        f"{field} has {actual} bytes, the limit is {limit}; keep large artifacts elsewhere and store"
        " {uri, sha256, size}",
        field=field,
        limit=limit,
        actual=actual,
    )


def board_not_found(name: str) -> SlateboardError:
    """Build the answer for a board that does not exist or that the caller has no part in: the two must not differ."""
    return SlateboardError(
        Reason.BOARD_NOT_FOUND,
        f"there is no board {name!r}, or this principal has no part in it; `slate board ls` lists yours",
        board=name,
    )
