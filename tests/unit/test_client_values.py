"""Values, options and preconditions are checked where they are given."""

import dataclasses
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slateboard
from slateboard import (
    Append,
    Delete,
    Derivation,
    Entry,
    Filter,
    Invalid,
    Put,
    Reincarnated,
    Source,
    Unchanged,
    _ops,
)
from slateboard._values import decode, encode, seconds

PUBLIC = Path(__file__).with_name("public_names.txt")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def entry(key: str = "k", version: int = 3, **fields: Any) -> Entry:
    return Entry(**{"board": "b", "region": "shared", "key": key, "version": version, **fields})


def test_the_public_names_are_these() -> None:
    """A name added or lost is a decision: write it into public_names.txt."""
    names = [f"slateboard.{name}" for name in slateboard.__all__]
    names += [f"slateboard.aio.{name}" for name in slateboard.aio.__all__]
    assert sorted(names) == PUBLIC.read_text(encoding="utf-8").split()


def test_no_generated_type_shows_in_public_names() -> None:
    for name in slateboard.__all__:
        assert not getattr(getattr(slateboard, name), "__module__", "").startswith("slateboard.v1")


@given(json_values)
def test_json_comes_back_as_it_was(value: Any) -> None:
    raw, content_type = encode({"value": value})
    assert decode(raw, content_type) == {"value": value}


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        {"a": float("inf")},
        {1: 2},
        {"a": {None: 1}},
        object(),
        {"a": {1, 2}},
        "\ud800",
        ["\ud800"],
    ],
)
def test_what_json_cannot_say_is_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        encode(bad)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Invalid):
        encode(loop)


def test_the_content_type_follows_the_value_or_says_how_to_encode_it() -> None:
    assert encode("a") == (b"a", "text/plain; charset=utf-8")
    assert encode(b"a") == (b"a", "application/octet-stream")
    assert encode({"ä": 1}) == ('{"ä":1}'.encode(), "application/json")
    assert encode("a", "application/json") == (b'"a"', "application/json")
    assert encode(b"{}", "application/json") == (b"{}", "application/json")
    with pytest.raises(Invalid):
        encode({"a": 1}, "text/plain")


def test_bytes_that_are_not_what_they_say_can_still_be_looked_at() -> None:
    assert decode(b"{", "application/json") == b"{"
    assert decode(b"\xff", "text/plain") == b"\xff"


def test_durations_are_spans_or_seconds() -> None:
    assert seconds(timedelta(minutes=1), "ttl") == 60
    assert seconds(1.5, "ttl") == 1.5
    for bad in (-1, float("inf"), float("nan")):
        with pytest.raises(Invalid):
            seconds(bad, "ttl")


@pytest.mark.parametrize("field", ["expire_time", "valid_from", "valid_to"])
def test_a_time_without_a_zone_is_refused(field: str) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 -- the point of the test
    options: Any = {field: naive}
    with pytest.raises(Invalid, match="time zone"):
        Put("k", 1, absent=True, **options)
    options = {field: naive.replace(tzinfo=UTC)}
    Put("k", 1, absent=True, **options)


def test_exactly_one_precondition() -> None:
    with pytest.raises(Invalid, match=r"exactly one.*none was given") as caught:
        Put("k", 1)
    assert caught.value.reason == "PRECONDITION_REQUIRED"
    with pytest.raises(Invalid, match="expect and absent were given"):
        Put("k", 1, expect=1, absent=True)
    for bad in (
        0,
        -1,
        True,
        "3",
        entry("other"),
        entry(tombstone=slateboard.Tombstone.DELETED),
        entry(version=0),
    ):
        with pytest.raises(Invalid):
            Put("k", 1, expect=bad)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        Delete("k", etag="")
    assert Put("k", 1, expect=entry()).precondition.version_equals == 3


def test_an_entry_is_expected_only_where_it_was_read() -> None:
    with pytest.raises(Invalid, match="region"):
        _ops.make_op(Put("k", 1, expect=entry()), "private/ann")
    with pytest.raises(Invalid, match="board"):
        _ops.incarnation_of("other", [Put("k", 1, expect=entry())], [])
    with pytest.raises(Reincarnated):
        _ops.incarnation_of("b", [Put("k", 1, expect=entry(incarnation="1"))], [entry("x", incarnation="2")])


def test_an_unknown_option_is_no_option() -> None:
    with pytest.raises(TypeError, match="colour"):
        Put("k", 1, absent=True, colour="red")  # type: ignore[call-arg]


def test_an_append_goes_under_a_prefix() -> None:
    with pytest.raises(Invalid, match="'log/'"):
        Append("log", 1)
    with pytest.raises(Invalid):
        Append("", 1)


def test_a_guard_says_one_thing() -> None:
    Unchanged(key="k", version=0)
    Unchanged(prefix="", since=0)
    for bad in (
        {},
        {"key": "k"},
        {"key": "k", "since": 1},
        {"key": "k", "version": 1, "prefix": "p", "since": 1},
    ):
        with pytest.raises(Invalid):
            Unchanged(**bad)


def test_sources_are_named_once_and_bounded() -> None:
    op = _ops.make_op(
        Put("k", 1, absent=True, derived_from=[entry("a"), entry("a"), Source(key="z", version=1)]), "shared"
    )
    (derivation,) = op.put.content.provenance.derivations
    assert [(source.key, source.version) for source in derivation.sources] == [("a", 3), ("z", 1)]
    independent = [Derivation((Source(key="a", version=1),)), Derivation((Source(op=0),))]
    op = _ops.make_op(Put("k", 1, absent=True, derived_from=independent), "shared")
    assert len(op.put.content.provenance.derivations) == 2
    with pytest.raises(Invalid):
        _ops.make_op(Put("k", 1, absent=True, derived_from=[*independent, entry()]), "shared")
    with pytest.raises(Invalid, match="256"):
        _ops.make_op(Put("k", 1, absent=True, derived_from=[entry(f"a{n}") for n in range(257)]), "shared")


def test_filters_speak_the_servers_words() -> None:
    made = Filter("kind", "in", [slateboard.Kind.SEMANTIC, slateboard.Kind.WORKING]).message()
    assert list(made.values) == ["semantic", "working"]
    assert list(Filter("trust", "=", slateboard.Trust.AGENT).message().values) == ["agent"]
    with pytest.raises(Invalid):
        Filter("kind", "~", "x").message()  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        Filter("commit_time", "<", datetime(2026, 1, 1)).message()  # noqa: DTZ001 -- the point of the test


def test_secrets_are_not_shown() -> None:
    assert "s3cret" not in repr(slateboard.NewToken("t-1", "s3cret"))
    principal = slateboard.Principal(id="ann", role=slateboard.Role.WORKER)
    assert "s3cret" not in repr(slateboard.NewPrincipal(principal, "s3cret"))


def test_an_entry_cannot_be_changed() -> None:
    read = entry(raw=b'{"a":1}', content_type="application/json", size=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.version = 4  # type: ignore[misc]
    assert read.value is read.value
    assert hash(read) == hash(dataclasses.replace(read))


def test_importing_the_client_needs_no_server_and_no_command_line() -> None:
    code = "import sys, slateboard; print([m for m in sys.modules if m in ('slateboard_server', 'typer', 'sqlalchemy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
