"""Refusals on the wire: every reason has a status, and no trailer grows past what clients accept."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from slateboard.v1 import commit_pb2
from slateboard_server.domain.conflict import Conflict, Violation
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import Micros, PrincipalId, Region, Revision, SessionId, Version
from slateboard_server.grpc_api.errors import DETAILS_KEY, STATUS, conflict_detail, details_of, text_of

LIMIT = 8 << 10
"""Bytes of trailers past which a client may drop a reply."""
LONG_KEYS = ["k" * 512, "\u65e5" * 170, "/".join(["\U0001f600" * 7] * 16), "a\\'\"" * 128]


def unpack(error: SlateboardError) -> tuple[status_pb2.Status, error_details_pb2.ErrorInfo]:
    status = status_pb2.Status.FromString(details_of(error))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return status, info


def detail_of(error: SlateboardError) -> commit_pb2.ConflictDetail:
    status, _ = unpack(error)
    detail = commit_pb2.ConflictDetail()
    [found] = [one for one in status.details if one.Is(commit_pb2.ConflictDetail.DESCRIPTOR)]
    assert found.Unpack(detail)
    return detail


def violation(index: int, key: str, guard: bool = False) -> Violation:
    return Violation(
        index=index,
        guard=guard,
        region=Region("private/" + "p" * 64),
        key=key,
        expected=f"prefix {key}/ unchanged since 41",
        reason="GUARD_CHANGED",
        current_version=Version((1 << 63) - 1),
        current_mod_revision=Revision((1 << 63) - 1),
        current_principal=PrincipalId("p" * 64),
        current_session_id=SessionId("s" * 32),
        current_commit_time=Micros(253_402_300_799_999_999),
    )


def conflict(count: int, key: str) -> SlateboardError:
    violations = tuple(violation(index, key) for index in range(count))
    return SlateboardError(
        Reason.VERSION_CONFLICT,
        f"shared:{key}: expected {violations[0].expected}, found version 3; read it again and decide again",
        conflict=Conflict(
            "c" * 32,
            Micros(1),
            PrincipalId("p" * 64),
            SessionId("s" * 32),
            "r" * 36,
            "VERSION_CONFLICT",
            Revision((1 << 63) - 1),
            violations,
        ),
        retry_after=timedelta(milliseconds=20),
    )


def on_the_wire(error: SlateboardError) -> int:
    """Count the trailers as HTTP/2 does: name, value and 32 a field; base64 of the details, percent-encoded text."""
    details = -(-len(details_of(error)) // 3) * 4
    text = len(quote(text_of(error), safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    return details + len(DETAILS_KEY) + text + len("grpc-message") + len("grpc-status10") + 3 * 32


def test_every_reason_has_a_status_and_none_is_ok() -> None:
    """A reason without a code could only be told as INTERNAL."""
    assert set(STATUS) == set(Reason)
    assert grpc.StatusCode.OK not in STATUS.values()
    assert grpc.StatusCode.UNKNOWN not in STATUS.values()


@pytest.mark.parametrize("reason", list(Reason))
def test_the_details_carry_code_reason_domain_and_figures(reason: Reason) -> None:
    """What clients decide by; the code is the same in the status and in the details."""
    status, info = unpack(SlateboardError(reason, "why", field="ops[3].put", limit=128, gone=None))
    assert status.code == STATUS[reason].value[0]
    assert (info.reason, info.domain) == (reason, "slateboard")
    assert dict(info.metadata) == {"field": "ops[3].put", "limit": "128"}
    assert len(status.details) == 1


def test_a_time_to_try_again_is_a_retry_info() -> None:
    """The details begin with the reason."""
    status, _ = unpack(SlateboardError(Reason.RATE_LIMITED, "slow down", retry_after=timedelta(seconds=1.5)))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToTimedelta() == timedelta(seconds=1.5)


def test_a_small_conflict_is_told_whole() -> None:
    """With the first violation in the metadata, for clients that look no further."""
    error = conflict(3, "plan")
    detail = detail_of(error)
    assert [one.index for one in detail.violations] == [0, 1, 2]
    assert detail.omitted == 0
    assert detail.violations[0].expected == "prefix plan/ unchanged since 41"
    _, info = unpack(error)
    assert (info.metadata["key"], info.metadata["conflict_id"]) == ("plan", "c" * 32)


@pytest.mark.parametrize("key", LONG_KEYS, ids=["ascii", "cjk", "emoji", "quotes"])
def test_a_conflict_over_128_long_keys_says_how_many_it_leaves_out(key: str) -> None:
    """The rest is read with GetConflict; keys are told whole, so that they can be used."""
    detail = detail_of(conflict(128, key))
    assert 1 <= len(detail.violations) < 128
    assert detail.omitted == 128 - len(detail.violations)
    assert all(one.key == key for one in detail.violations)
    assert detail.ByteSize() <= 6 << 10


@pytest.mark.parametrize("count", [1, 2, 128])
@pytest.mark.parametrize("key", LONG_KEYS, ids=["ascii", "cjk", "emoji", "quotes"])
def test_the_trailers_of_a_conflict_stay_below_what_clients_accept(count: int, key: str) -> None:
    """grpc/grpc#37852: past 8 KiB a client may drop the reply."""
    assert on_the_wire(conflict(count, key)) < LIMIT


def test_room_for_nothing_leaves_everything_out() -> None:
    """Not even a negative room is an error."""
    found = conflict(5, "k").conflict
    assert found is not None
    assert conflict_detail(found, -1).omitted == 5


def test_a_conflict_that_was_not_kept_has_no_id_to_look_up() -> None:
    """What validate_only met is written nowhere."""
    found = conflict(1, "k").conflict
    assert found is not None
    assert conflict_detail(replace(found, kept=False), 4096).conflict_id == ""


@given(st.text(max_size=2_000), st.text(max_size=2_000))
def test_long_texts_are_cut_at_a_character_and_stay_on_one_line(message: str, figure: str) -> None:
    """Whatever a user put into a name."""
    error = SlateboardError(Reason.FIELD_INVALID, message, field=figure)
    status, info = unpack(error)
    assert len(text_of(error).encode()) <= 600
    assert "\n" not in text_of(error)
    assert len(status.message.encode()) <= 600
    assert len(info.metadata["field"].encode()) <= 160
