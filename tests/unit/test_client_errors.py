"""Statuses become errors of ours: by reason, else by code; nothing of gRPC is left in their text."""

import inspect

import grpc
import pytest
from google.rpc import status_pb2

import slateboard
from slateboard import errors
from slateboard._status import from_status
from slateboard.v1 import commit_pb2, error_reason_pb2
from tests.client.fake import status

REASONS = {
    "KEY_INVALID": ("INVALID_ARGUMENT", errors.Invalid),
    "REQUEST_ID_REUSED": ("INVALID_ARGUMENT", errors.Invalid),
    "TOKEN_MISSING": ("UNAUTHENTICATED", errors.Unauthenticated),
    "DENIED": ("PERMISSION_DENIED", errors.Denied),
    "BOARD_NOT_FOUND": ("NOT_FOUND", errors.NotFound),
    "BOARD_EXISTS": ("ALREADY_EXISTS", errors.AlreadyExists),
    "VERSION_CONFLICT": ("ABORTED", errors.Conflict),
    "GUARD_CHANGED": ("ABORTED", errors.Conflict),
    "KEY_LOCKED": ("ABORTED", errors.LockHeld),
    "LOCK_WAIT_TIMEOUT": ("ABORTED", errors.LockHeld),
    "DEADLOCK": ("ABORTED", errors.Deadlock),
    "LOCK_LOST": ("FAILED_PRECONDITION", errors.LockLost),
    "LOCK_EXPIRED": ("FAILED_PRECONDITION", errors.LockLost),
    "LOCK_REVOKED": ("FAILED_PRECONDITION", errors.LockLost),
    "SESSION_DEAD": ("FAILED_PRECONDITION", errors.SessionDead),
    "TRUST_TOO_LOW": ("FAILED_PRECONDITION", errors.TrustTooLow),
    "SOURCE_PURGED": ("FAILED_PRECONDITION", errors.SourcePurged),
    "SCHEMA_MISMATCH": ("FAILED_PRECONDITION", errors.SchemaMismatch),
    "POLICY_FORBIDS": ("FAILED_PRECONDITION", errors.PolicyForbids),
    "COMPACTED": ("OUT_OF_RANGE", errors.Compacted),
    "FUTURE_REVISION": ("OUT_OF_RANGE", errors.FutureRevision),
    "BOARD_REINCARNATED": ("OUT_OF_RANGE", errors.Reincarnated),
    "QUOTA": ("RESOURCE_EXHAUSTED", errors.QuotaExceeded),
    "RATE_LIMITED": ("RESOURCE_EXHAUSTED", errors.RateLimited),
    "WATCH_TOO_SLOW": ("RESOURCE_EXHAUSTED", errors.WatchTooSlow),
    "DRAINING": ("UNAVAILABLE", errors.Unavailable),
    "DEADLINE": ("DEADLINE_EXCEEDED", errors.DeadlineExceeded),
    "NOT_SUPPORTED": ("UNIMPLEMENTED", errors.Unsupported),
    "STORAGE_CORRUPT": ("DATA_LOSS", errors.ServerFault),
    "INTERNAL": ("INTERNAL", errors.ServerFault),
}


def make(code: str, reason: str, domain: str = "slateboard") -> errors.SlateError:
    details = status_pb2.Status()
    details.ParseFromString(status(code, reason, {"k": "v"}, retry_after=0.5, domain=domain))
    return from_status(grpc.StatusCode[code], "what happened", details)


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_chooses_its_error(reason: str) -> None:
    code, kind = REASONS[reason]
    error = make(code, reason)
    assert type(error) is kind
    assert (error.reason, error.metadata) == (reason, {"k": "v"})
    assert error.retry_after is not None
    assert error.retry_after.total_seconds() == 0.5
    assert f"ERROR_REASON_{reason}" in set(error_reason_pb2.ErrorReason.keys())


def test_an_unknown_reason_becomes_the_class_of_its_code() -> None:
    error = make("FAILED_PRECONDITION", "MOON_IN_THE_WRONG_PHASE")
    assert type(error) is errors.Refused
    assert error.reason == "MOON_IN_THE_WRONG_PHASE"


def test_reasons_of_others_are_not_taken_for_ours() -> None:
    error = make("ABORTED", "RATE_LIMITED", domain="proxy.example")
    assert type(error) is errors.Conflict
    assert error.reason == ""


def test_a_status_without_details_is_still_an_error() -> None:
    assert type(from_status(grpc.StatusCode.INTERNAL, "", None)) is errors.ServerFault
    assert type(from_status(grpc.StatusCode.UNKNOWN, "x", None)) is errors.ServerFault


def test_a_lost_connection_by_any_name_may_be_retried() -> None:
    text = "Received RST_STREAM with error code 2"
    assert type(from_status(grpc.StatusCode.INTERNAL, text, None)) is errors.Unavailable


def test_a_conflict_lists_its_violations() -> None:
    detail = commit_pb2.ConflictDetail(conflict_id="c-1", omitted=3, revision=9)
    detail.violations.add(reason="VERSION_CONFLICT", key="k", current_version=4, current_principal="ann")
    details = status_pb2.Status()
    details.ParseFromString(status("ABORTED", "VERSION_CONFLICT", conflict=detail))
    error = from_status(grpc.StatusCode.ABORTED, "", details)
    assert isinstance(error, errors.Conflict)
    assert (error.conflict_id, error.omitted, error.revision) == ("c-1", 3, 9)
    assert error.current_versions == {"k": 4}
    assert error.violations[0].current_principal == "ann"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every error class is drawn, and everything drawn exists, below its base."""
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    path: dict[int, str] = {}
    for line in errors.__doc__.splitlines():
        before, mark, rest = line.partition("── ")
        name = rest.split()[0] if mark else line.strip().split("  ")[0]
        if name in vars(errors):
            depth = len(before) // 4 if mark else 0
            path[depth] = name
            drawn[name] = path[depth - 1] if depth > 1 else "SlateError" if depth else "Exception"
    real = {
        name: kind.__base__.__name__
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.SlateError) and kind.__base__ is not None
    }
    assert drawn == real
    assert set(real) <= set(slateboard.__all__)
