"""Filters: each documented field and operator, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.entry import Annotations, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.filters import FilterSpec, canonical, matches, parse_filter, parse_time
from slateboard_server.domain.values import (
    Key,
    Kind,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    Trust,
    Version,
)

CHOICES = ["equals", "not_equals", "in"]
ORDERED = [*CHOICES, "greater_or_equal", "less"]
RECORD = VersionRecord(
    region=Region("shared"),
    key=Key("k"),
    version=Version(3),
    create_revision=Revision(10),
    mod_revision=Revision(20),
    op_index=0,
    commit_time=Micros(1_767_225_600_000_000),  # 2026-01-01T00:00:00Z
    principal=PrincipalId("worker"),
    session_id=SessionId("s-1"),
    trust=Trust.AGENT,
    value=b"12345",
    size=5,
    content_type="text/plain",
    kind=Kind.SEMANTIC,
    annotations=Annotations(
        subject="bob",
        attribute="city",
        topics=("home", "travel"),
        labels=(("stage", "done"),),
        confidence=0.75,
        importance=0.5,
        tool="web",
    ),
)
# field -> (its value in RECORD, another one)
TEXTS = {
    "kind": ("semantic", "working"),
    "trust": ("agent", "user"),
    "subject": ("bob", "Bob"),
    "attribute": ("city", ""),
    "topic": ("travel", "work"),
    "label.stage": ("done", "open"),
    "principal": ("worker", "rival"),
    "session_id": ("s-1", ""),
    "tool": ("web", "mail"),
    "content_type": ("text/plain", "text"),
}
NUMBERS = {  # one below, equal, one above
    "mod_revision": ("19", "20", "21"),
    "create_revision": ("9", "10", "11"),
    "version": ("2", "3", "4"),
    "size": ("4", "5", "6"),
    "confidence": ("0.5", "0.75", "1"),
    "importance": ("0", "5e-1", "0.51"),
    "commit_time": (
        "2025-12-31T23:59:59.999999Z",
        "2026-01-01T08:00:00+08:00",
        "2026-01-01T00:00:00.000001Z",
    ),
}


def _met(field: str, operator: str, *values: str) -> bool:
    return matches([parse_filter(field, operator, values, "filters[0]")], RECORD)


def _refused(field: str, operator: str, *values: str) -> SlateboardError:
    with pytest.raises(SlateboardError) as caught:
        parse_filter(field, operator, values, "filters[3]")
    assert caught.value.metadata["field"].startswith("filters[3].")
    return caught.value


def test_the_fields_tested_here_are_those_the_api_documents() -> None:
    """A field that is added to one list only would be refused, or not be tested."""
    proto = Path(__file__).parents[2] / "protos" / "slateboard" / "v1" / "entry_service.proto"
    text = proto.read_text(encoding="utf-8")
    comment = text[text.index("message Filter {") : text.index("string field = 1;")]
    documented = set(re.findall(r"`([a-z_.<>]+)`", comment))
    assert documented == {*(set(TEXTS) - {"label.stage"}), "label.<name>", *NUMBERS}


@pytest.mark.parametrize("field", TEXTS)
def test_text_and_names_are_compared_whole(field: str) -> None:
    """Equal, not equal, one of."""
    same, other = TEXTS[field]
    assert _met(field, "equals", same)
    assert not _met(field, "equals", other)
    assert not _met(field, "not_equals", same)
    assert _met(field, "not_equals", other)
    assert _met(field, "in", other, same)
    assert not _met(field, "in", other)
    for operator in ("greater_or_equal", "less"):
        assert _refused(field, operator, same).reason is Reason.UNKNOWN_FILTER


@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_and_times_are_compared_by_order_too(field: str) -> None:
    """The edge belongs to GREATER_OR_EQUAL."""
    below, same, above = NUMBERS[field]
    assert [_met(field, "greater_or_equal", value) for value in (below, same, above)] == [True, True, False]
    assert [_met(field, "less", value) for value in (below, same, above)] == [False, False, True]
    assert [_met(field, "equals", value) for value in (below, same, above)] == [False, True, False]
    assert [_met(field, "not_equals", value) for value in (below, same, above)] == [True, False, True]
    assert _met(field, "in", below, same)
    assert not _met(field, "in", below, above)


def test_conditions_are_joined_by_and() -> None:
    """And none at all is met by everything."""
    good = parse_filter("subject", "equals", ["bob"], "filters[0]")
    bad = parse_filter("version", "less", ["3"], "filters[1]")
    assert matches([], RECORD)
    assert matches([good, good], RECORD)
    assert not matches([good, bad], RECORD)


def test_what_an_entry_does_not_have_equals_nothing() -> None:
    """An entry without topics, labels or session is not equal to any; NOT_EQUALS is always the contrary of EQUALS."""
    bare = replace(RECORD, annotations=Annotations(), session_id=None)
    for field, value in (
        ("topic", "home"),
        ("label.stage", "done"),
        ("label.other", ""),
        ("session_id", "s-1"),
    ):
        for operator, expected in (("equals", False), ("not_equals", True), ("in", False)):
            assert matches([parse_filter(field, operator, [value], "f")], bare) is expected
    assert not _met("label.stag", "equals", "done")
    assert not _met("label.stage ", "equals", "done")


@pytest.mark.parametrize(
    "field",
    [
        "",
        "value",
        "Kind",
        "kind ",
        "label",
        "label.",
        "labels.stage",
        "metadata.tenant",
        "key",
        "region",
        "expire_time",
    ],
)
def test_an_unknown_field_is_an_error_and_never_ignored(field: str) -> None:
    """mem0#6423: a filter that was dropped in silence returned other tenants' memories."""
    error = _refused(field, "equals", "x")
    assert error.reason is Reason.UNKNOWN_FILTER
    assert error.metadata["field"] == "filters[3].field"


@pytest.mark.parametrize("operator", ["", "EQUALS", "=", "like", "greater", "unspecified"])
def test_an_unknown_operator_is_an_error(operator: str) -> None:
    """Also on a field that has all operators."""
    assert _refused("version", operator, "1").reason is Reason.UNKNOWN_FILTER
    assert _refused("subject", operator, "1").metadata["field"] == "filters[3].operator"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "SEMANTIC"),
        ("kind", "unspecified"),
        ("trust", "TRUST_USER"),
        ("trust", ""),
        ("version", ""),
        ("version", "1.0"),
        ("version", "0x1"),
        ("version", "1_000"),
        ("version", "٣"),
        ("version", " 1"),
        ("version", "9223372036854775808"),
        ("version", "9" * 5_000),
        ("confidence", "nan"),
        ("confidence", "inf"),
        ("confidence", "1e999"),
        ("confidence", "0,5"),
        ("confidence", "high"),
        ("commit_time", "2026-01-01"),
        ("commit_time", "2026-01-01T00:00:00"),
        ("commit_time", "2026-01-01 00:00:00Z"),
        ("commit_time", "2026-01-01T00:00Z"),
        ("commit_time", "2026-02-30T00:00:00Z"),
        ("commit_time", "2026-01-01T24:00:00Z"),
        ("commit_time", "2026-01-01T00:00:60Z"),
        ("commit_time", "2026-01-01T00:00:00+0800"),
        ("commit_time", "2026-01-01T00:00:00+24:00"),
        ("commit_time", "2026-01-01T00:00:00.Z"),
        ("commit_time", "2026-01-01T00:00:00.0000001Z"),
        ("commit_time", "20260101T000000Z"),
        ("commit_time", "0000-01-01T00:00:00Z"),
        ("commit_time", "0001-01-01T00:00:00+01:00x"),
        ("commit_time", "1767225600"),
    ],
)
def test_a_value_that_is_none_of_the_field_is_refused(field: str, value: str) -> None:
    """A naive time above all: whose midnight is it?"""
    error = _refused(field, "equals", value)
    assert error.reason is Reason.FIELD_INVALID
    assert error.metadata["field"] == "filters[3].values"


def test_one_value_is_needed_and_with_in_up_to_a_hundred() -> None:
    """None is no condition, two are no equality."""
    assert _refused("subject", "equals").reason is Reason.FIELD_INVALID
    assert _refused("subject", "in").reason is Reason.FIELD_INVALID
    assert _refused("subject", "equals", "a", "b").reason is Reason.FIELD_INVALID
    assert _met("subject", "in", *["a"] * 99, "bob")
    assert _refused("subject", "in", *["a"] * 101).reason is Reason.TOO_MANY


MOMENTS = st.datetimes(datetime(1900, 1, 2), datetime(9000, 1, 1))  # noqa: DTZ001  # the zone is drawn apart
OFFSETS = st.integers(-23 * 60, 23 * 60)


@given(MOMENTS, OFFSETS)
def test_times_are_moments_whatever_offset_they_are_written_with(moment: datetime, offset: int) -> None:
    """mem0#4402: a server in another zone was off by a day at the edges."""
    there = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    micros = (there - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_time(there.isoformat(), "f") == micros
    assert parse_time(there.astimezone(UTC).isoformat().replace("+00:00", "Z"), "f") == micros
    assert (
        parse_time(there.isoformat(timespec="microseconds")[:26] + "000" + there.isoformat()[-6:], "f")
        == micros
    )


SPECS = st.lists(
    st.sampled_from(
        [
            ("subject", "equals", ["a"]),
            ("subject", "equals", ["b"]),
            ("subject", "in", ["a", "b"]),
            ("subject", "in", ["b", "a", "b"]),
            ("topic", "in", ['a","b']),
            ("label.equals", "equals", ["a"]),
            ("version", "less", ["7"]),
            ("version", "equals", ["7"]),
            ("confidence", "equals", ["7"]),
            ("confidence", "equals", ["7.0"]),
            ("commit_time", "less", ["2026-01-01T00:00:00Z"]),
            ("commit_time", "less", ["2026-01-01T01:00:00+01:00"]),
        ]
    ),
    max_size=4,
)


@given(SPECS, SPECS)
def test_the_canonical_form_is_the_same_for_the_same_conditions_and_only_for_them(
    one: list[tuple[str, str, list[str]]], other: list[tuple[str, str, list[str]]]
) -> None:
    """A page token goes with its filters, however they are ordered or spelled."""
    first = [parse_filter(*spec, "f") for spec in one]
    second = [parse_filter(*spec, "f") for spec in other]

    def meaning(specs: list[FilterSpec]) -> set[tuple[str, str, frozenset[str]]]:
        return {(spec.field, spec.operator, frozenset(map(repr, spec.values))) for spec in specs}

    assert (canonical(first) == canonical(second)) is (meaning(first) == meaning(second))
    assert canonical(first) == canonical(reversed(first))


def test_the_canonical_form_is_what_it_always_was() -> None:
    """A page token survives a restart of the server."""
    specs = [
        parse_filter("trust", "in", ["user", "agent"], "f"),
        parse_filter("commit_time", "less", ["1970-01-01T00:00:01Z"], "f"),
    ]
    assert canonical(specs) == '[["commit_time","less",[1000000]],["trust","in",[3,4]]]'
    assert canonical([]) == "[]"
