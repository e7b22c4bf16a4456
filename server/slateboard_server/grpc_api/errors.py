"""From a refusal to a gRPC status: the one place that knows how they correspond.

The details travel in the trailer `grpc-status-details-bin`. A client drops a reply whose trailers pass 16 KiB and may
drop one past 8 KiB (grpc/grpc#37852), and binary trailers grow by a third on the wire; so details are kept below 5 KiB
and the text below 600 bytes, whatever the keys in a conflict are.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from slateboard.v1 import commit_pb2
from slateboard_server.domain.conflict import Conflict, Violation
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.grpc_api.times import set_time

DOMAIN: Final = "slateboard"
DETAILS_KEY: Final = "grpc-status-details-bin"
MAX_DETAILS: Final = 5 << 10
"""Bytes of all details together; 6.7 KiB as they travel."""
MAX_TEXT: Final = 400
"""Bytes of the sentence for people. It travels percent-encoded, at worst three bytes for each."""
_MAX_WORDS: Final = 160
"""Bytes of a text in a violation or in the metadata; longer ones are cut."""

_CODE = grpc.StatusCode
STATUS: Final[dict[Reason, grpc.StatusCode]] = {
    Reason.KEY_INVALID: _CODE.INVALID_ARGUMENT,
    Reason.PRECONDITION_REQUIRED: _CODE.INVALID_ARGUMENT,
    Reason.ETAG_INVALID: _CODE.INVALID_ARGUMENT,
    Reason.REQUEST_ID_INVALID: _CODE.INVALID_ARGUMENT,
    Reason.REQUEST_ID_REUSED: _CODE.INVALID_ARGUMENT,
    Reason.TOO_MANY: _CODE.INVALID_ARGUMENT,
    Reason.DUPLICATE_KEY: _CODE.INVALID_ARGUMENT,
    Reason.TOO_LARGE: _CODE.INVALID_ARGUMENT,
    Reason.FIELD_INVALID: _CODE.INVALID_ARGUMENT,
    Reason.UNKNOWN_FILTER: _CODE.INVALID_ARGUMENT,
    Reason.PAGE_TOKEN_INVALID: _CODE.INVALID_ARGUMENT,
    Reason.TOKEN_MISSING: _CODE.UNAUTHENTICATED,
    Reason.TOKEN_INVALID: _CODE.UNAUTHENTICATED,
    Reason.DENIED: _CODE.PERMISSION_DENIED,
    Reason.BOARD_NOT_FOUND: _CODE.NOT_FOUND,
    Reason.KEY_NOT_FOUND: _CODE.NOT_FOUND,
    Reason.COMMIT_NOT_FOUND: _CODE.NOT_FOUND,
    Reason.CONFLICT_NOT_FOUND: _CODE.NOT_FOUND,
    Reason.PRINCIPAL_NOT_FOUND: _CODE.NOT_FOUND,
    Reason.SESSION_NOT_FOUND: _CODE.NOT_FOUND,
    Reason.SOURCE_NOT_FOUND: _CODE.INVALID_ARGUMENT,
    Reason.BOARD_EXISTS: _CODE.ALREADY_EXISTS,
    Reason.PRINCIPAL_EXISTS: _CODE.ALREADY_EXISTS,
    Reason.VERSION_CONFLICT: _CODE.ABORTED,
    Reason.GUARD_CHANGED: _CODE.ABORTED,
    Reason.KEY_LOCKED: _CODE.ABORTED,
    Reason.LOCK_WAIT_TIMEOUT: _CODE.ABORTED,
    Reason.DEADLOCK: _CODE.ABORTED,
    Reason.LOCK_LOST: _CODE.FAILED_PRECONDITION,
    Reason.LOCK_EXPIRED: _CODE.FAILED_PRECONDITION,
    Reason.LOCK_REVOKED: _CODE.FAILED_PRECONDITION,
    Reason.SESSION_DEAD: _CODE.FAILED_PRECONDITION,
    Reason.TRUST_TOO_LOW: _CODE.FAILED_PRECONDITION,
    Reason.SOURCE_PURGED: _CODE.FAILED_PRECONDITION,
    Reason.SCHEMA_MISMATCH: _CODE.FAILED_PRECONDITION,
    Reason.POLICY_FORBIDS: _CODE.FAILED_PRECONDITION,
    Reason.COMPACTED: _CODE.OUT_OF_RANGE,
    Reason.FUTURE_REVISION: _CODE.OUT_OF_RANGE,
    Reason.BOARD_REINCARNATED: _CODE.OUT_OF_RANGE,
    Reason.QUOTA: _CODE.RESOURCE_EXHAUSTED,
    Reason.RATE_LIMITED: _CODE.RESOURCE_EXHAUSTED,
    Reason.WATCH_TOO_SLOW: _CODE.RESOURCE_EXHAUSTED,
    Reason.STORAGE_DOWN: _CODE.UNAVAILABLE,
    Reason.DRAINING: _CODE.UNAVAILABLE,
    Reason.REPLICA_BEHIND: _CODE.UNAVAILABLE,
    Reason.INDEX_BEHIND: _CODE.UNAVAILABLE,
    Reason.LOCK_BACKEND_DOWN: _CODE.UNAVAILABLE,
    Reason.DEADLINE: _CODE.DEADLINE_EXCEEDED,
    Reason.CANCELLED: _CODE.CANCELLED,
    Reason.NOT_SUPPORTED: _CODE.UNIMPLEMENTED,
    Reason.STORAGE_CORRUPT: _CODE.DATA_LOSS,
    Reason.INTERNAL: _CODE.INTERNAL,
}

FAULTS: Final = frozenset(
    {Reason.STORAGE_DOWN, Reason.STORAGE_CORRUPT, Reason.INTERNAL, Reason.LOCK_BACKEND_DOWN}
)
"""Reasons that are about the server rather than about the call: the log calls them warnings."""


def details_of(error: SlateboardError) -> bytes:
    """Encode the google.rpc.Status that goes with an error."""
    status = status_pb2.Status(code=STATUS[error.reason].value[0], message=_cut(error.message, MAX_TEXT))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for name, value in error.metadata.items():
        info.metadata[name] = _cut(value, _MAX_WORDS)
    if error.conflict is not None:
        _describe(info, error.conflict)
    _pack(status, info)
    if error.retry_after is not None:
        _pack(status, error_details_pb2.RetryInfo(retry_delay=_duration(error.retry_after)))
    if error.conflict is not None:
        detail = conflict_detail(error.conflict, MAX_DETAILS - status.ByteSize() - 128)
        _pack(status, detail)
        # ErrorInfo first, then the details that clients look for, RetryInfo last.
        if error.retry_after is not None:
            status.details.append(status.details.pop(1))
    return status.SerializeToString()


def text_of(error: SlateboardError) -> str:
    """Return the text of the status: a sentence or two, bounded, on one line."""
    return _cut(" ".join(error.message.split()), MAX_TEXT)


def write_violation(violation: Violation, *, cut: bool = False) -> commit_pb2.Violation:
    """Convert a violation; with `cut` its long texts are shortened for the status details."""
    key, expected = violation.key, violation.expected
    made = commit_pb2.Violation(
        index=violation.index,
        guard=violation.guard,
        region=violation.region,
        key=key,
        expected=_cut(expected, _MAX_WORDS) if cut else expected,
        current_version=violation.current_version,
        current_mod_revision=violation.current_mod_revision,
        current_principal=violation.current_principal or "",
        current_session_id=violation.current_session_id or "",
        lock_holder=violation.lock_holder,
        lock_id=violation.lock_id,
        reason=violation.reason,
    )
    if violation.current_commit_time is not None:
        set_time(made.current_commit_time, violation.current_commit_time)
    return made


def conflict_detail(conflict: Conflict, room: int) -> commit_pb2.ConflictDetail:
    """Convert a conflict into at most `room` bytes; what does not fit is counted in `omitted`."""
    detail = commit_pb2.ConflictDetail(
        conflict_id=conflict.conflict_id if conflict.kept else "", revision=conflict.revision
    )
    used = detail.ByteSize() + 16
    for number, violation in enumerate(conflict.violations):
        made = write_violation(violation, cut=True)
        size = made.ByteSize() + 3
        if used + size > room:
            detail.omitted = len(conflict.violations) - number
            break
        detail.violations.append(made)
        used += size
    return detail


def _describe(info: error_details_pb2.ErrorInfo, conflict: Conflict) -> None:
    """Put the first violation into the metadata, for clients that look no further."""
    if conflict.kept:
        info.metadata["conflict_id"] = conflict.conflict_id
    if conflict.violations:
        first = conflict.violations[0]
        info.metadata["region"] = first.region
        info.metadata["key"] = _cut(first.key, _MAX_WORDS)
        if not first.hidden and first.reason != Reason.KEY_LOCKED:
            info.metadata["current_version"] = str(first.current_version)


def _duration(delay: timedelta) -> Duration:
    made = Duration()
    made.FromTimedelta(delay)
    return made


def _pack(status: status_pb2.Status, detail: Message) -> None:
    packed = Any()
    packed.Pack(detail)
    status.details.append(packed)


def _cut(text: str, limit: int) -> str:
    """Cut a text to `limit` bytes of UTF-8, at a character."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return text if text.isascii() else raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "..."
