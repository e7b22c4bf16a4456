"""Page tokens are opaque, bound to their request, and never mean something else."""

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import Incarnation
from slateboard_server.services.page_tokens import PageTokens, page_size

SECRET = b"s" * 32


def tokens(*request: object, incarnation: str = "inc-1", secret: bytes = SECRET) -> PageTokens:
    return PageTokens(secret, Incarnation(incarnation), *request)


def reason_of(reader: PageTokens, token: str) -> Reason:
    with pytest.raises(SlateboardError) as refused:
        reader.read(token)
    return refused.value.reason


def test_a_token_gives_its_position_back() -> None:
    """Any text can stand in a position, also what JSON would escape."""
    token = tokens("list", "plan/").make(after='plan/日本"\\', at=7)
    assert tokens("list", "plan/").read(token) == {"after": 'plan/日本"\\', "at": 7}


def test_no_token_means_the_first_page() -> None:
    """An absent token is the start, not an error."""
    assert tokens("list").read("") is None


@pytest.mark.parametrize("garbled", ["x", "%%%", "AAAA", "a" * 500, "é"])
def test_a_garbled_token_is_refused(garbled: str) -> None:
    """It never silently starts at the first page."""
    assert reason_of(tokens("list"), garbled) is Reason.PAGE_TOKEN_INVALID


def test_a_token_of_another_request_is_refused() -> None:
    """Neither another prefix nor another board's secret nor a flipped bit goes through."""
    token = tokens("list", "plan/").make(after="plan/a")
    assert reason_of(tokens("list", "plans/"), token) is Reason.PAGE_TOKEN_INVALID
    assert reason_of(tokens("list", "plan/", secret=b"t" * 32), token) is Reason.PAGE_TOKEN_INVALID
    flipped = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert reason_of(tokens("list", "plan/"), flipped) is Reason.PAGE_TOKEN_INVALID


def test_a_token_of_an_earlier_life_says_so() -> None:
    """A board that began a new life answers BOARD_REINCARNATED, never a page of other things."""
    token = tokens("list").make(after="a")
    assert reason_of(tokens("list", incarnation="inc-2"), token) is Reason.BOARD_REINCARNATED


def test_page_sizes_are_bounded() -> None:
    """0 is the default; what lies outside is refused with the limit."""
    assert page_size(0) == 100
    assert page_size(1_000) == 1_000
    for bad in (-1, 1_001):
        with pytest.raises(SlateboardError) as refused:
            page_size(bad)
        assert refused.value.metadata["limit"] == "1000"
