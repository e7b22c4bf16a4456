"""Every error has a documented reason."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid, too_large, too_many

PROTO = Path(__file__).parents[2] / "protos" / "slateboard" / "v1" / "error_reason.proto"
TEXT = PROTO.read_text(encoding="utf-8")
DOCUMENTED = re.findall(r"((?:^  //.*\n)+)  ERROR_REASON_([A-Z_]+) = \d+;", TEXT, re.MULTILINE)
STATUS_CODES = {
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "ABORTED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "UNIMPLEMENTED",
    "DATA_LOSS",
    "INTERNAL",
}


def test_the_reasons_of_the_core_are_exactly_those_of_the_api() -> None:
    """A reason that is not in the proto would cross the wire undocumented."""
    names = re.findall(r"^  ERROR_REASON_([A-Z_]+) = \d+;", TEXT, re.MULTILINE)
    assert [name for name in names if name != "UNSPECIFIED"] == [reason.value for reason in Reason]
    assert [reason.name for reason in Reason] == [reason.value for reason in Reason]


@pytest.mark.parametrize(("comment", "name"), DOCUMENTED, ids=[name for _, name in DOCUMENTED])
def test_each_reason_states_its_status_code_and_an_example_of_itself(comment: str, name: str) -> None:
    """What a client programmer reads first."""
    lines = [line.strip().removeprefix("//").strip() for line in comment.splitlines()]
    assert lines[0].split(".")[0] in STATUS_CODES
    [example] = [json.loads(line) for line in lines if line.startswith('{"')]
    assert example["reason"] == name
    assert example["domain"] == "slateboard"
    assert all(isinstance(value, str) for value in example.get("metadata", {}).values())


def test_every_reason_is_documented() -> None:
    """The pattern above must not have passed over one."""
    assert [name for _, name in DOCUMENTED] == [reason.value for reason in Reason]


def test_an_error_carries_its_figures_as_text_and_drops_those_that_are_unknown() -> None:
    """ErrorInfo's metadata is a map of strings."""
    error = SlateboardError(
        Reason.QUOTA, "the board is full", retry_after=timedelta(seconds=1), limit=3, actual=None, key="k"
    )
    assert error.metadata == {"limit": "3", "key": "k"}
    assert str(error) == error.message == "the board is full"
    assert "QUOTA" in repr(error)


def test_refusals_of_fields_name_the_field_and_the_limit() -> None:
    """And what was sent."""
    assert field_invalid("page_size", "is too large", limit=7).metadata == {
        "field": "page_size",
        "limit": "7",
    }
    assert too_many("ops", 129, 128).metadata == {"field": "ops", "limit": "128", "actual": "129"}
    assert too_large("value", 9, 8).metadata == {"field": "value", "limit": "8", "actual": "9"}
    for error in (field_invalid("a", "b"), too_many("a", 2, 1), too_large("a", 2, 1)):
        assert error.message.startswith("a")
