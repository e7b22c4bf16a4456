"""Partial aggregates: a merge that is exact in any order, and that never counts a row twice."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents_demo.aggregate import (
    EMPTY,
    Aggregate,
    Cell,
    Figures,
    Overlap,
    aggregate,
    by_country,
    by_week,
    from_json,
    merge,
    merge_all,
    three_way,
    to_json,
)
from agents_demo.orders import OrderLine
from agents_demo.rows import RowRange

START = datetime(2010, 12, 28)  # noqa: DTZ001  # the file's times are naive by definition
prices = st.decimals(allow_nan=False, allow_infinity=False, min_value=-9999, max_value=10**9, places=9)
quantities = st.integers(-(10**9), 10**9).map(Decimal)


@st.composite
def lines_and_drops(draw: st.DrawFn) -> tuple[list[OrderLine], set[int]]:
    """A file of up to 40 lines, and which of them are duplicates."""
    count = draw(st.integers(0, 40))
    lines = [
        OrderLine(
            row,
            draw(st.sampled_from(["536365", "C536379", "A563185"])),
            "85123A",
            "",
            draw(quantities),
            START + timedelta(days=draw(st.integers(0, 20))),
            draw(prices),
            draw(st.sampled_from(["", "17850.0"])),
            draw(st.sampled_from(["France", "EIRE", "", "__proto__"])),
        )
        for row in range(count)
    ]
    return lines, draw(st.sets(st.integers(0, 60), max_size=10))


@st.composite
def parted(draw: st.DrawFn) -> tuple[Aggregate, list[Aggregate]]:
    """The aggregate of a whole file, and those of its parts in any order."""
    lines, dropped = draw(lines_and_drops())
    if not lines:
        return EMPTY, []
    cuts = draw(st.sets(st.integers(1, len(lines)), max_size=6)) | {0, len(lines)}
    ranges = [RowRange(start, stop) for start, stop in pairwise(sorted(cuts))]
    parts = [aggregate(lines[part.start : part.stop], part, dropped) for part in ranges]
    return aggregate(lines, RowRange(0, len(lines)), dropped), draw(st.permutations(parts))


def _figures(value: Aggregate) -> object:
    return to_json(value)["weeks"]


@given(parted())
def test_parts_in_any_order_make_the_whole(given_parts: tuple[Aggregate, list[Aggregate]]) -> None:
    """To the last digit, whoever finished first."""
    whole, parts = given_parts
    merged = merge_all(parts)
    assert _figures(merged) == _figures(whole)
    assert (merged.rows, merged.duplicates) == (whole.rows, whole.duplicates)


@given(parted(), st.integers(0, 10), st.integers(0, 10))
def test_merge_is_associative_and_commutative(
    given_parts: tuple[Aggregate, list[Aggregate]], first: int, second: int
) -> None:
    """With the empty aggregate as its neutral element; compared as the JSON an entry would hold."""
    _, parts = given_parts
    first, second = sorted((min(first, len(parts)), min(second, len(parts))))
    a, b, c = (merge_all(some) for some in (parts[:first], parts[first:second], parts[second:]))
    assert to_json(merge(merge(a, b), c)) == to_json(merge(a, merge(b, c)))
    assert to_json(merge(a, b)) == to_json(merge(b, a))
    assert to_json(merge(a, EMPTY)) == to_json(a) == to_json(merge(EMPTY, a))


@given(parted(), st.integers(0, 10), st.integers(0, 10))
def test_two_changes_to_one_base_become_both(
    given_parts: tuple[Aggregate, list[Aggregate]], first: int, second: int
) -> None:
    """What the board's three-way merge needs: theirs + mine - base, from either side."""
    _, parts = given_parts
    first, second = sorted((min(first, len(parts)), min(second, len(parts))))
    base = merge_all(parts[:first])
    theirs = merge_all([base, *parts[first:second]])
    mine = merge_all([base, *parts[second:]])
    assert to_json(three_way(base, theirs, mine)) == to_json(merge_all(parts))
    assert to_json(three_way(base, mine, theirs)) == to_json(merge_all(parts))


@given(parted())
def test_an_aggregate_goes_through_json(given_parts: tuple[Aggregate, list[Aggregate]]) -> None:
    """Through text and back, without a float on the way."""
    whole, _ = given_parts
    text = json.dumps(to_json(whole), allow_nan=False)
    assert from_json(json.loads(text, parse_float=_no_float)) == whole


@given(parted())
def test_weeks_and_countries_add_up_to_the_total(given_parts: tuple[Aggregate, list[Aggregate]]) -> None:
    """Three ways to group the same lines."""
    whole, _ = given_parts
    assert _sum(by_week(whole).values()) == _sum(by_country(whole).values()) == whole.total
    assert whole.total.net == whole.total.gross + whole.total.cancelled


def _sum(figures: Iterable[Figures]) -> Figures:
    return list(accumulate(figures, initial=Figures()))[-1]


def _no_float(text: str) -> float:
    raise AssertionError(f"{text} would be read as a float")


def _part(start: int, stop: int) -> Aggregate:
    return Aggregate({RowRange(start, stop): 0}, {Cell("2011-W06", "France"): Figures(lines=stop - start)})


@pytest.mark.parametrize("other", [_part(0, 5), _part(3, 6), _part(4, 9)])
def test_a_row_is_never_counted_twice(other: Aggregate) -> None:
    """A part that comes again after a take-over, or one cut differently."""
    with pytest.raises(Overlap):
        merge(_part(0, 5), other)


def test_both_sides_adding_one_part_is_refused() -> None:
    """Even though the result would hold the range only once: the figures would be doubled."""
    base = _part(0, 5)
    both = merge(base, _part(5, 9))
    with pytest.raises(Overlap, match="added by both"):
        three_way(base, both, both)


def test_a_side_that_lost_a_part_of_the_base_is_refused() -> None:
    """A merge can only add."""
    with pytest.raises(ValueError, match="lacks a part"):
        three_way(_part(0, 5), _part(5, 9), _part(0, 5))


@pytest.mark.parametrize("rows", [RowRange(0, 1), RowRange(0, 3), RowRange(1, 3)])
def test_lines_that_are_not_those_of_the_range_are_refused(rows: RowRange) -> None:
    """The file has changed since it was cut into ranges."""
    lines = [OrderLine(row, "1", "2", "", Decimal(1), START, Decimal(1), "", "France") for row in range(2)]
    with pytest.raises(ValueError, match="row"):
        aggregate(lines, rows, ())


def _changed(path: str, value: object) -> object:
    whole = json.loads(json.dumps(to_json(merge(_part(0, 5), _part(5, 9)))))
    *way, last = path.split("/")
    place = whole
    for step in way:
        place = place[step]
    place[last] = value
    return whole


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"parts": {}, "weeks": []},
        _changed("parts/000000000000-000000000005", 3),
        _changed("parts/000000000000-000000000005", {"duplicates": 1}),
        _changed("parts/000000000000-000000000005", {"duplicates": True}),
        _changed("parts/000000000000-000000000005", {"duplicates": -1}),
        _changed("parts/000000000002-000000000004", {"duplicates": 2}),
        _changed("parts/somewhere", {"duplicates": 0}),
        _changed("weeks/soon", {}),
        _changed("weeks/2011-W06/France", "a lot"),
        _changed("weeks/2011-W06/France/lines", 9.0),
        _changed("weeks/2011-W06/France/lines", 8),
        _changed("weeks/2011-W06/France/cancelled_lines", 10),
        _changed("weeks/2011-W06/France/gross", 1.5),
        _changed("weeks/2011-W06/France/gross", "1e999999"),
        _changed("weeks/2011-W06/France/gross", None),
    ],
)
def test_json_of_another_shape_is_refused(value: object) -> None:
    """What another agent wrote is checked before it is added to anything."""
    with pytest.raises(ValueError, match=r".+"):
        from_json(value)
