"""What changed between two values: JSON by place, text by line, bytes not at all; bounded for any input."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.diff import (
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    MAX_UNIFIED_BYTES,
    DiffKind,
    JsonChange,
    ValueDiff,
    diff_values,
)
from slateboard_server.domain.textdiff import edits, unified_diff

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
ABSENT = object()


def _json_diff(before: object, after: object) -> ValueDiff:
    def encode(value: object) -> bytes | None:
        return None if value is ABSENT else json.dumps(value, ensure_ascii=False).encode()

    return diff_values(encode(before), JSON, encode(after), JSON)


def _apply(value: object, changes: tuple[JsonChange, ...]) -> object:
    """Do to a value what the changes say, in order, the way JSON Patch would."""
    root: list[object] = [value]
    for change in changes:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in change.pointer.split("/")[1:]]
        parent: object = root
        path: list[str | int] = [0, *steps]
        for step in path[:-1]:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]  # type: ignore[index]  # by path
        last = path[-1]
        if isinstance(parent, list):
            place = int(last)
            if change.kind is DiffKind.ADDED and parent is not root:
                parent.insert(place, json.loads(change.after))
            elif change.kind is DiffKind.REMOVED and parent is not root:
                assert parent.pop(place) == json.loads(change.before)
            else:
                parent[place] = json.loads(change.after) if change.after else ABSENT
        else:
            assert isinstance(parent, dict)
            assert (last in parent) is (change.kind is not DiffKind.ADDED)
            if change.kind is DiffKind.REMOVED:
                assert parent.pop(last) == json.loads(change.before)
            else:
                parent[last] = json.loads(change.after)
    return root[0]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab~/é", max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES | st.just(ABSENT), VALUES | st.just(ABSENT))
def test_the_changes_applied_to_one_json_value_give_the_other(before: object, after: object) -> None:
    """Nothing is left out, and every pointer leads where it says."""
    diff = _json_diff(before, after)
    if before is ABSENT and after is ABSENT:
        assert diff == ValueDiff(equal=True)
        return
    copy = ABSENT if before is ABSENT else json.loads(json.dumps(before))
    result = _apply(copy, diff.changes)
    if after is ABSENT:
        assert result is ABSENT
    else:
        assert json.dumps(result, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert diff.unified == ""
    assert not diff.truncated


@given(VALUES)
def test_a_value_spelled_otherwise_is_not_equal_and_has_no_changes(value: object) -> None:
    """`equal` is about bytes, changes are about meaning."""
    compact = json.dumps(value, separators=(",", ":")).encode()
    spaced = b" " + json.dumps(value, indent=1).encode()
    assert diff_values(compact, JSON, spaced, JSON) == ValueDiff(equal=False)
    assert diff_values(compact, JSON, compact, JSON) == ValueDiff(equal=True)


@pytest.mark.parametrize(
    "before", ["1", "1.0", "true", '"1"', "null", "[1]", '{"0":1}', "false", "0", "-0", '""', "[]", "{}"]
)
@pytest.mark.parametrize(
    "after", ["1", "1.0", "true", '"1"', "null", "[1]", '{"0":1}', "false", "0", "-0", '""', "[]", "{}"]
)
def test_values_of_different_types_are_never_taken_for_the_same(before: str, after: str) -> None:
    """Python says 1 == 1.0 == True; JSON does not."""
    diff = diff_values(f"[{before}]".encode(), JSON, f"[{after}]".encode(), JSON)
    assert bool(diff.changes) is (before != after)
    assert diff.equal is (before == after)


def test_numbers_are_reported_as_they_were_written() -> None:
    """A large integer is not rounded, not even one of 5,000 digits; an exponent stays one."""
    big = "9" * 5_000
    diff = diff_values(
        b'{"n":9007199254740993,"e":1e400,"d":%s}' % big.encode(), JSON, b'{"n":9007199254740992}', JSON
    )
    assert diff.changes == (
        JsonChange(DiffKind.CHANGED, "/n", "9007199254740993", "9007199254740992"),
        JsonChange(DiffKind.REMOVED, "/e", "1e400", ""),
        JsonChange(DiffKind.REMOVED, "/d", big, ""),
    )


def test_pointers_escape_as_rfc_6901_says() -> None:
    """`~` before `/`; the empty key is a key; the whole value is the empty pointer."""
    before = {"a/b": {"m~n": 1}, "": {"": 2}, "~1": 3}
    changes = _json_diff(before, {"a/b": {"m~n": 0}, "": {"": 0}, "~1": 0}).changes
    assert [change.pointer for change in changes] == ["/a~1b/m~0n", "//", "/~01"]
    assert _json_diff(1, 2).changes[0].pointer == ""
    assert _json_diff(ABSENT, {"a": 1}).changes == (JsonChange(DiffKind.ADDED, "", "", '{"a":1}'),)
    assert _json_diff([1], ABSENT).changes == (JsonChange(DiffKind.REMOVED, "", "[1]", ""),)


def test_half_characters_in_json_can_be_sent_on() -> None:
    """JSON can name a lone surrogate; UTF-8, and so the wire, cannot carry it."""
    diff = diff_values(b'{"\\ud800":1}', JSON, b'{"\\ud800":"\\udfff"}', JSON)
    [change] = diff.changes
    (change.pointer + change.before + change.after).encode()
    assert json.loads(change.after) == "\udfff"


def test_more_than_a_thousand_changes_are_cut_and_said_to_be() -> None:
    """Exactly a thousand are not."""
    for count, cut in ((MAX_CHANGES, False), (MAX_CHANGES + 1, True)):
        diff = _json_diff([0] * count, [1] * count)
        assert len(diff.changes) == MAX_CHANGES
        assert diff.truncated is cut


def test_long_pointers_do_not_multiply() -> None:
    """A thousand changes below one huge key would be half a gigabyte of pointers."""
    diff = _json_diff({"k" * 500_000: [0] * 2_000}, {"k" * 500_000: [1] * 2_000})
    assert diff.truncated
    size = sum(len(change.pointer) + len(change.before) + len(change.after) for change in diff.changes)
    assert 0 < size <= MAX_CHANGES_BYTES


@pytest.mark.parametrize(("before", "after"), [(b"[NaN]", b"[1]"), (b"{", b"{}"), (b"[" * 300_000, b"]")])
def test_what_is_labelled_json_and_is_none_is_compared_as_text(before: bytes, after: bytes) -> None:
    """`+json` types are not checked when they are written, and nesting may pass what can be read."""
    diff = diff_values(before, "application/x+json", after, JSON)
    assert diff.changes == ()
    assert diff.unified.startswith("--- before\n+++ after\n")


# Text


@given(
    st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=12),
    st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=12),
)
@pytest.mark.parametrize("max_steps", [0, 5, 400_000])
def test_edits_applied_to_one_text_give_the_other(
    max_steps: int, before: list[str], after: list[str]
) -> None:
    """Also where the search for the shortest way is given up."""
    made: list[str] = []
    at = 0
    found = edits(before, after, max_steps)
    for edit in found:
        made += before[at : edit.before_start] + after[edit.after_start : edit.after_end]
        at = edit.before_end
    assert made + before[at:] == after
    if max_steps > 1_000:
        cost = sum(e.before_end - e.before_start + e.after_end - e.after_start for e in found)
        assert cost == len(before) + len(after) - 2 * _common_length(before, after)


def _common_length(one: list[str], other: list[str]) -> int:
    """Length of the longest common subsequence, by the textbook table."""
    row = [0] * (len(other) + 1)
    for left in one:
        above, row = row, [0]
        for column, right in enumerate(other):
            row.append(above[column] + 1 if left == right else max(above[column + 1], row[-1]))
    return row[-1]


LINES = st.lists(st.sampled_from(["a", "b", "", "x\u2028y", "\r"]), max_size=30).map("\n".join)


@given(LINES, LINES)
def test_a_unified_diff_applied_to_one_text_gives_the_other(before: str, after: str) -> None:
    """With hunks, context, and files that do not end with a line feed."""
    patch, cut = unified_diff(before, after, 1 << 20)
    assert not cut
    assert _patched(before, patch) == after


def _patched(before: str, patch: str) -> str:
    """Apply a unified diff strictly: every line of context and every removed line must be where it says."""
    if not patch:
        return before
    old = before.split("\n")
    lines = patch.split("\n")
    assert lines[:2] == ["--- before", "+++ after"]
    made: list[str] = []
    at = 0
    ends_bare = {" ": False, "-": False, "+": False}
    mark = " "
    for line in lines[2:-1]:
        if line.startswith("@@"):
            start, _, length = line.split(" ")[1][1:].partition(",")
            first = int(start) - (0 if length == "0" else 1)
            made += old[at:first]
            at = first
        elif line.startswith("\\"):
            ends_bare[mark] = True
        else:
            mark, text = line[0], line[1:]
            if mark != "+":
                assert old[at] == text
                at += 1
            if mark != "-":
                made.append(text)
    rest = old[at:]
    if rest in ([], [""]) and (ends_bare["+"] or ends_bare[" "] or not made):
        return "\n".join(made)
    return "\n".join([*made, *(rest or [""])])


def test_a_unified_diff_reads_like_that_of_diff() -> None:
    """People and tools know the form."""
    before = "".join(f"{number}\n" for number in range(1, 21))
    after = before.replace("3\n4\n", "3\nfour\n", 1).replace("\n20\n", "\n20")
    diff = diff_values(before.encode(), TEXT, after.encode(), "TEXT/markdown")
    assert diff.unified == (
        "--- before\n+++ after\n@@ -1,7 +1,7 @@\n 1\n 2\n 3\n-4\n+four\n 5\n 6\n 7\n"
        "@@ -17,4 +17,4 @@\n 17\n 18\n 19\n-20\n+20\n\\ No newline at end of file\n"
    )
    assert diff_values(None, "", b"a\n", TEXT).unified == "--- /dev/null\n+++ after\n@@ -0,0 +1 @@\n+a\n"
    assert diff_values(b"a\n", TEXT, None, "").unified == "--- before\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"


def test_a_unified_diff_is_cut_at_its_limit_between_characters() -> None:
    """And says so."""
    diff = diff_values(b"", TEXT, "é".encode() * 200_000, TEXT)
    assert diff.truncated
    assert MAX_UNIFIED_BYTES - 2 <= len(diff.unified.encode()) <= MAX_UNIFIED_BYTES


def test_bytes_and_mixed_types_are_only_equal_or_not() -> None:
    """Nothing readable can be said."""
    octets = "application/octet-stream"
    assert diff_values(b"a", octets, b"b", octets) == ValueDiff(equal=False)
    assert diff_values(b"a", octets, b"a", octets) == ValueDiff(equal=True)
    assert diff_values(b"a", octets, b"b", TEXT) == ValueDiff(equal=False)
    assert diff_values(b"\xff", TEXT, b"b", TEXT) == ValueDiff(equal=False)
    assert diff_values(None, "", b"b", octets) == ValueDiff(equal=False)
    assert diff_values(None, "", None, "") == ValueDiff(equal=True)
    assert diff_values(b"", octets, None, "") == ValueDiff(equal=False)
    assert diff_values(b'{"a":1}', JSON, b"text", TEXT).unified != ""


def _hostile() -> list[tuple[str, bytes, bytes]]:
    few = [b"a\n", b"b\n", b"c\n"]
    noise = b"".join(few[number * number * 7 % 11 % 3] for number in range(300_000))
    other = b"".join(few[number * number * 5 % 13 % 3] for number in range(300_000))
    ones = b"[" + b",".join([b"1"] * 400_000) + b"]"
    return [
        ("text/plain", noise, other),
        ("text/plain", b"a\n" * 500_000, b"a\n" * 250_000 + b"b\n" + b"a\n" * 249_000),
        ("text/plain", b"\n" * 1_000_000, b"x" * 1_000_000),
        (JSON, ones, ones.replace(b"1", b"2")),
        (JSON, b'{"a":' * 100_000, b"[" * 500_000),
        (JSON, ones, b'{"a":%s}' % ones),
    ]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", range(6))
def test_no_input_of_a_megabyte_takes_long(number: int) -> None:
    """Under a second each; the timeout leaves room, but difflib would be at it for hours."""
    content_type, before, after = _hostile()[number]
    diff = diff_values(before, content_type, after, content_type)
    assert len(diff.unified.encode()) <= MAX_UNIFIED_BYTES
