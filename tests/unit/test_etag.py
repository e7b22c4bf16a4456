"""Etags: opaque, of one version of one key of one life of one board."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.etag import check_etag, make_etag, of_other_incarnation
from slateboard_server.domain.values import Incarnation, Version

SECRET = bytes(range(32))
FIRST = Incarnation("0a1b2c3d4e5f60718293a4b5c6d7e8f9")
SECOND = Incarnation("ffffffff4e5f60718293a4b5c6d7e8f9")


def test_an_etag_is_what_it_always_was() -> None:
    """Fixed: clients keep etags across upgrades of the server."""
    assert make_etag(SECRET, FIRST, "shared", "plan/current", Version(3)) == "0a1b2c3d.Lxwvi2YKaLuO"


PARTS = st.tuples(
    st.sampled_from([FIRST, SECOND]),
    st.sampled_from(["shared", "private/a"]),
    st.text("ab/", max_size=4),
    st.integers(1, 99),
)


@given(PARTS, PARTS)
def test_etags_are_equal_only_for_the_same_version_of_the_same_key_and_life(
    one: tuple[Incarnation, str, str, int], other: tuple[Incarnation, str, str, int]
) -> None:
    """No shifting of characters between region, key and version."""
    first = make_etag(SECRET, one[0], one[1], one[2], Version(one[3]))
    second = make_etag(SECRET, other[0], other[1], other[2], Version(other[3]))
    assert (first == second) is (one == other)
    assert check_etag(first, "etag") == first


def test_etags_of_other_boards_differ() -> None:
    """The key of the digest is the board's."""
    assert make_etag(SECRET, FIRST, "shared", "k", Version(1)) != make_etag(
        b"x", FIRST, "shared", "k", Version(1)
    )


def test_an_etag_tells_which_life_it_belongs_to() -> None:
    """So that one of an earlier life is told apart from a mismatch; upper-case incarnations included."""
    etag = make_etag(SECRET, FIRST, "shared", "k", Version(1))
    assert not of_other_incarnation(etag, FIRST)
    assert of_other_incarnation(etag, SECOND)
    upper = Incarnation("01J9ZC3X5T")
    assert not of_other_incarnation(
        check_etag(make_etag(SECRET, upper, "shared", "k", Version(1)), "e"), upper
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        '"1"',
        "*",
        "0a1b2c3d",
        "0a1b2c3d.",
        "0a1b2c3d.Lxwvi2YKaLuO\n",
        " 0a1b2c3d.Lxwvi2YKaLuO",
        "0a1b2c3d.é" + "a" * 11,
    ],
)
def test_an_empty_or_garbled_etag_never_means_no_condition(text: str) -> None:
    """dapr#2320: a blank etag was taken as none, and the write went through."""
    with pytest.raises(SlateboardError) as caught:
        check_etag(text, "ops[0].put.precondition.etag_equals")
    assert caught.value.reason is Reason.ETAG_INVALID
    assert caught.value.metadata["field"] == "ops[0].put.precondition.etag_equals"
