"""Three-way merge: nothing is invented, nothing is lost in silence."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard._merge import ABSENT, at, changes, merge, same

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab/~", max_size=2)
keys = st.text("abc/~", max_size=2)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(keys, values, max_size=4)


@given(values, values)
def test_one_who_changed_nothing_takes_what_the_other_made(base: Any, other: Any) -> None:
    assert same(merge(base, base, other).value, other)
    assert same(merge(base, other, base).value, other)
    assert merge(base, base, other).overlaps == merge(base, other, base).overlaps == ()


@given(values, values)
def test_two_who_made_the_same_agree(base: Any, other: Any) -> None:
    merged = merge(base, other, copy.deepcopy(other))
    assert same(merged.value, other)
    assert merged.overlaps == ()
    assert bool(merged.agreed) != same(base, other)


@given(objects, objects, objects)
def test_disjoint_changes_merge_the_same_way_round_either_way(base: Any, theirs: Any, mine: Any) -> None:
    one, other = merge(base, theirs, mine), merge(base, mine, theirs)
    assert set(one.overlaps) == set(other.overlaps)
    assert set(one.agreed) == set(other.agreed)
    if not one.overlaps:
        assert same(one.value, other.value)


@given(objects, objects, objects)
def test_a_clean_merge_holds_every_change_of_both(base: Any, theirs: Any, mine: Any) -> None:
    merged = merge(base, theirs, mine)
    if merged.overlaps:
        return
    for side in (theirs, mine):
        for place in changes(base, side):
            wanted, found = at(side, place), at(merged.value, place)
            # A member that one side turned into an object may hold what the other put below it: never here.
            assert same(wanted, found)


@given(objects, objects, objects)
def test_a_clean_merge_holds_nothing_nobody_wrote(base: Any, theirs: Any, mine: Any) -> None:
    merged = merge(base, theirs, mine)
    for place in changes(base, merged.value):
        assert same(at(merged.value, place), at(theirs, place)) or same(
            at(merged.value, place), at(mine, place)
        )


@given(objects, objects, objects)
def test_where_both_changed_a_place_theirs_stands_and_it_is_named(base: Any, theirs: Any, mine: Any) -> None:
    merged = merge(base, theirs, mine)
    for place in merged.overlaps:
        assert same(at(merged.value, place), at(theirs, place))
        assert not same(at(base, place), at(theirs, place))
        assert not same(at(base, place), at(mine, place))


@given(values, values, values)
def test_arguments_are_not_changed(base: Any, theirs: Any, mine: Any) -> None:
    before = json.dumps([base, theirs, mine])
    merge(base, theirs, mine)
    assert json.dumps([base, theirs, mine]) == before


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "value", "overlaps"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}, ()),
        (
            {"a": {"x": 1, "y": 1}},
            {"a": {"x": 2, "y": 1}},
            {"a": {"x": 1, "y": 3}},
            {"a": {"x": 2, "y": 3}},
            (),
        ),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 2}, ("/a",)),
        ({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2}, ()),
        ({"a": 1}, {}, {"a": 2}, {}, ("/a",)),
        ({"l": [1]}, {"l": [1, 2]}, {"l": [1, 3]}, {"l": [1, 2]}, ("/l",)),
        ({"l": [1]}, {"l": [1, 2]}, {"l": [1], "m": 1}, {"l": [1, 2], "m": 1}, ()),
        ({"a": {"x": 1}}, {"a": 7}, {"a": {"x": 2}}, {"a": 7}, ("/a",)),
        ({"a/b": 1, "~": 1}, {"a/b": 2, "~": 2}, {"a/b": 3, "~": 3}, {"a/b": 2, "~": 2}, ("/a~1b", "/~0")),
        (1, 2, 3, 2, ("",)),
        (ABSENT, {"a": 1}, {"b": 1}, {"a": 1}, ("",)),
    ],
)
def test_merges_by_example(base: Any, theirs: Any, mine: Any, value: Any, overlaps: tuple[str, ...]) -> None:
    merged = merge(base, theirs, mine)
    assert same(merged.value, value)
    assert merged.overlaps == overlaps


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ([1], [True]), (None, 0)]
)
def test_numbers_are_compared_with_their_type(one: Any, other: Any) -> None:
    """Python's 1 == True == 1.0 would take a change of type for none."""
    assert not same(one, other)
    assert same(merge({"a": one}, {"a": one}, {"a": other}).value, {"a": other})
    assert merge({"a": "x"}, {"a": one}, {"a": other}).overlaps == ("/a",)


def test_two_increments_that_look_alike_are_named() -> None:
    """Agreement of two who set a word is one thing, two counts of one are another: the caller decides."""
    assert merge({"n": 5}, {"n": 6}, {"n": 6}).agreed == ("/n",)
    assert merge({"a": 1}, {}, {}).agreed == ("/a",)


def test_members_keep_their_order() -> None:
    merged = merge({"z": 1, "a": 1}, {"z": 1, "a": 2, "q": 1}, {"m": 1, "z": 1, "a": 1})
    assert list(merged.value) == ["z", "a", "q", "m"]
