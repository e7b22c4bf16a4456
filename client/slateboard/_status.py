"""From a gRPC status to an error of ours: the one place that knows how they correspond."""

from datetime import timedelta
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from slateboard import errors
from slateboard._wire import violation
from slateboard.v1 import commit_pb2

_DETAILS = "grpc-status-details-bin"
DOMAIN = "slateboard"

_BY_REASON: dict[str, type[errors.SlateError]] = {
    "VERSION_CONFLICT": errors.Conflict,
    "GUARD_CHANGED": errors.Conflict,
    "KEY_LOCKED": errors.LockHeld,
    "LOCK_WAIT_TIMEOUT": errors.LockHeld,
    "DEADLOCK": errors.Deadlock,
    "LOCK_LOST": errors.LockLost,
    "LOCK_EXPIRED": errors.LockLost,
    "LOCK_REVOKED": errors.LockLost,
    "SESSION_DEAD": errors.SessionDead,
    "TRUST_TOO_LOW": errors.TrustTooLow,
    "SOURCE_PURGED": errors.SourcePurged,
    "SCHEMA_MISMATCH": errors.SchemaMismatch,
    "POLICY_FORBIDS": errors.PolicyForbids,
    "COMPACTED": errors.Compacted,
    "FUTURE_REVISION": errors.FutureRevision,
    "BOARD_REINCARNATED": errors.Reincarnated,
    "QUOTA": errors.QuotaExceeded,
    "RATE_LIMITED": errors.RateLimited,
    "WATCH_TOO_SLOW": errors.WatchTooSlow,
}

# What a reason without an entry above becomes: those whose class is their code's, and those of a newer server.
_BY_CODE: dict[grpc.StatusCode, type[errors.SlateError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.Invalid,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Denied,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Refused,
    grpc.StatusCode.OUT_OF_RANGE: errors.OutOfRange,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Exhausted,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unsupported,
}

# gRPC's words where no connection came about, so that the request never left. Should they change, an error only
# becomes more careful: OutcomeUnknown instead of Unavailable.
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed", "name resolution failure")

# What gRPC calls INTERNAL or UNKNOWN although only the connection was lost.
_CONNECTION_LOST = ("RST_STREAM", "Stream removed", "GOAWAY")


def from_rpc_error(error: grpc.RpcError) -> errors.SlateError:
    """The error that a failed call stands for. It has the gRPC error as its `cause`."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    text = (error.details() if hasattr(error, "details") else None) or ""
    made = from_status(code, text, _status_of(error))
    made.__cause__ = error
    return made


def from_status(code: grpc.StatusCode, text: str, status: status_pb2.Status | None) -> errors.SlateError:
    """The error for a status code, its text and, where the server sent them, its details."""
    reason, metadata = "", {}
    retry_after: timedelta | None = None
    conflict: commit_pb2.ConflictDetail | None = None
    for detail in status.details if status is not None else ():
        if detail.Unpack(info := error_details_pb2.ErrorInfo()):
            if info.domain == DOMAIN and not reason:  # a proxy between us may add reasons of its own
                reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry := error_details_pb2.RetryInfo()):
            retry_after = retry.retry_delay.ToTimedelta()
        elif detail.Unpack(found := commit_pb2.ConflictDetail()):
            conflict = found
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, errors.ServerFault)
    if not reason and kind is errors.ServerFault and any(words in text for words in _CONNECTION_LOST):
        kind = errors.Unavailable
    fields: dict[str, Any] = {"reason": reason, "metadata": metadata, "retry_after": retry_after}
    if issubclass(kind, errors.Conflict):
        fields["conflict_id"] = metadata.get("conflict_id", "")
        if conflict is not None:
            fields |= {
                "conflict_id": conflict.conflict_id or fields["conflict_id"],
                "violations": [violation(item) for item in conflict.violations],
                "omitted": conflict.omitted,
                "revision": conflict.revision,
            }
    elif issubclass(kind, errors.LockHeld) and conflict is not None:
        fields["violations"] = [violation(item) for item in conflict.violations]
    elif kind is errors.Unavailable:
        fields["sent"] = bool(reason) or not text.startswith(_NEVER_SENT)
    return kind(text or f"the server answered {code.name}", **fields)


def _status_of(error: grpc.RpcError) -> status_pb2.Status | None:
    # Sync and async errors give their trailers as different types; both are pairs.
    trailers: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key == _DETAILS and isinstance(value, bytes):
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except (
                ValueError
            ):  # protobuf's DecodeError is one; a garbled detail must not hide the error itself
                return None
            return status
    return None
