"""Duplicates and cancellations: the same answer however the work is shared."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents_demo import cleaning, orders
from agents_demo.cleaning import Duplicate
from agents_demo.orders import RawRow
from agents_demo.rows import RowRange

# Few different texts, so that copies are frequent.
fields = st.tuples(*[st.sampled_from(["", "a", "ab", "b"])] * 3)
files = st.lists(fields, max_size=60)


def _rows(texts: Sequence[tuple[str, ...]]) -> list[RawRow]:
    return [RawRow(row, row + 2, text) for row, text in enumerate(texts)]


@given(files, st.integers(1, 7))
def test_shares_of_several_workers_are_the_whole(texts: list[tuple[str, ...]], parts: int) -> None:
    """Copies always meet in one share, however far apart they stand."""
    found = [cleaning.find_duplicates(_rows(texts), part=part, parts=parts) for part in range(parts)]
    assert cleaning.join_duplicates(found[::-1]) == cleaning.find_duplicates(_rows(texts))


@given(files)
def test_the_first_occurrence_stays_and_every_copy_names_it(texts: list[tuple[str, ...]]) -> None:
    """What is kept is each text once, in order of first appearance."""
    found = cleaning.find_duplicates(_rows(texts))
    dropped = {duplicate.dropped for duplicate in found}
    kept = [text for row, text in enumerate(texts) if row not in dropped]
    assert kept == list(dict.fromkeys(texts))
    assert all(texts.index(texts[duplicate.dropped]) == duplicate.kept for duplicate in found)


def test_a_share_given_twice_counts_once() -> None:
    """Two workers may have done the same share when one was thought dead."""
    share = [Duplicate(5, 1)]
    assert cleaning.join_duplicates([share, [Duplicate(3, 0)], share]) == [Duplicate(3, 0), Duplicate(5, 1)]


def test_fields_do_not_run_into_each_other() -> None:
    """Also where a field holds what could pass for a border."""
    texts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("a,b", "c"), ("a\0b", "c")]
    assert cleaning.find_duplicates(_rows(texts)) == []


@pytest.mark.parametrize(("part", "parts"), [(1, 1), (-1, 2), (0, 0)])
def test_a_share_that_does_not_exist_is_refused(part: int, parts: int) -> None:
    """Rather than found empty, which would lose duplicates in silence."""
    with pytest.raises(ValueError, match="part"):
        cleaning.find_duplicates([], part=part, parts=parts)


def test_duplicates_go_through_json() -> None:
    """As [dropped, kept] pairs."""
    found = [Duplicate(3, 0), Duplicate(5, 1)]
    assert cleaning.duplicates_to_json(found) == [[3, 0], [5, 1]]
    assert cleaning.duplicates_from_json([[3, 0], [5, 1]]) == found


@pytest.mark.parametrize("value", [None, {}, "3", [3], [[3]], [[3, 0, 1]], [["3", 0]], [[0, 3]], [[3, -1]]])
def test_duplicates_of_another_shape_are_refused(value: object) -> None:
    """They come off the board, from another agent."""
    with pytest.raises(ValueError, match="pair of row numbers"):
        cleaning.duplicates_from_json(value)


def test_lines_are_cleaned_and_separated_by_range() -> None:
    """On real rows: what is dropped may name rows of other ranges; cancellations begin with a capital C."""
    found = cleaning.find_duplicates(orders.read_raw(orders.BUNDLED))
    dropped = {duplicate.dropped for duplicate in found}
    part = RowRange(1_000, 3_000)
    left = cleaning.without_duplicates(orders.read_orders(orders.BUNDLED, part), dropped)
    apart = cleaning.separate(left)
    assert len(left) == len(part) - sum(row in part for row in dropped)
    assert sorted([*cleaning.rows_of(apart.sales), *cleaning.rows_of(apart.cancellations)]) == [
        line.row for line in left
    ]
    assert apart.cancellations
    assert all(line.invoice_no[0] == "C" for line in apart.cancellations)
    assert not any(line.invoice_no[0] == "C" for line in apart.sales)
    assert not cleaning.is_cancellation("c536379")
