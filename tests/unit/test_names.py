"""What keys, prefixes and regions may be called; two spellings of one key would be two locks on one thing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain import names
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.limits import MAX_KEY_BYTES, MAX_KEY_SEGMENTS
from slateboard_server.domain.names import (
    SHARED,
    check_board_name,
    check_key,
    check_prefix,
    check_principal_id,
    check_region,
    covers,
    is_reserved,
    owner_of,
    prefix_end,
    private_region,
)
from slateboard_server.domain.values import PrincipalId


def _refused(text: str) -> SlateboardError:
    with pytest.raises(SlateboardError) as caught:
        check_key(text, "ops[0].put.key")
    assert caught.value.reason is Reason.KEY_INVALID
    assert caught.value.metadata["field"] == "ops[0].put.key"
    return caught.value


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "plan/current",
        "X200-07",
        "a%b_c/d e",
        "计划/当前",
        "żółw",
        "🏴‍☠️/flag",
        "..a",
        "...",
        ".hidden",
        "a..b",
        'q"uote',
        "back\\slash",
    ],
)
def test_ordinary_keys_of_any_language_are_taken_as_they_are(key: str) -> None:
    """Nothing is mended: what was written is what is read."""
    assert check_key(unicodedata.normalize("NFC", key)) == unicodedata.normalize("NFC", key)


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "../a", "a/.."])
def test_empty_segments_and_dots_are_refused(key: str) -> None:
    """Paths are not resolved here: `a/../b` would be a second name of `b`."""
    _refused(key)


@pytest.mark.parametrize(
    "bad",
    [
        "\0",
        "\n",
        "\r",
        "\t",
        "\x7f",
        "\x85",
        "\u2028",
        "\u2029",
        "\ud800",
        "\u202e",
        "\u2066",
        "\u200f",
        "\u200b",
        "\ufeff",
        "\u2060",
        "\u00ad",
    ],
)
@pytest.mark.parametrize("place", ["{}", "a{}b", "plan/{}x", "x{}/plan"])
def test_control_bidirectional_invisible_and_half_characters_are_refused(bad: str, place: str) -> None:
    """A key that reads like another one is a trap for people and agents alike."""
    assert f"U+{ord(bad):04X}" in _refused(place.format(bad)).message


@pytest.mark.parametrize("key", ["e\u0301", "\u212b", "a/\u1100\u1161", "plan/q\u0307\u0323"])
def test_what_is_not_in_nfc_is_refused(key: str) -> None:
    """é written in two ways would be two keys that look the same."""
    assert unicodedata.normalize("NFC", key) != key
    assert "NFC" in _refused(key).message


def test_length_is_counted_in_bytes_and_depth_in_segments() -> None:
    """And the limit is named."""
    check_key("k" * MAX_KEY_BYTES)
    check_key("é" * (MAX_KEY_BYTES // 2))
    check_key("/".join("s" * MAX_KEY_SEGMENTS))
    for key in ("k" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2) + "k"):
        error = _refused(key)
        assert error.metadata["limit"] == str(MAX_KEY_BYTES)
        assert error.metadata["actual"] == str(MAX_KEY_BYTES + 1)
    error = _refused("/".join("s" * (MAX_KEY_SEGMENTS + 1)))
    assert (error.metadata["limit"], error.metadata["actual"]) == ("16", "17")


@given(st.text(max_size=40))
def test_a_key_is_taken_if_and_only_if_it_keeps_the_documented_rules(text: str) -> None:
    """Worked out anew from the sentence in the API: also past the cache and the fast path for plain keys."""
    segments = text.split("/")
    lawful = (
        all(segment not in {"", ".", ".."} for segment in segments)
        and len(segments) <= MAX_KEY_SEGMENTS
        and len(text.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
        and unicodedata.normalize("NFC", text) == text
        and not any(
            unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}
            or unicodedata.bidirectional(char)
            in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
            or char in "\u061c\u200e\u200f\u00ad\u200b\u2060\ufeff"
            for char in text
        )
    )
    if lawful:
        assert check_key(text) == check_key(text) == text
        assert check_prefix(f"{text}/") == f"{text}/"
    else:
        _refused(text)
        _refused(text)


@pytest.mark.parametrize("prefix", ["plan", "plan/a", "/", "a//", "../", "a/./"])
def test_a_prefix_is_a_whole_subtree(prefix: str) -> None:
    """`plan` would cover `planner`."""
    with pytest.raises(SlateboardError) as caught:
        check_prefix(prefix, "prefix")
    assert caught.value.reason is Reason.KEY_INVALID


SEGMENTS = st.text("ab/é計🙂~\U0010ffff", min_size=1, max_size=6)


@given(SEGMENTS, SEGMENTS)
def test_the_end_of_a_prefix_bounds_exactly_what_it_covers(prefix: str, key: str) -> None:
    """A scan from the prefix to its end sees the subtree and nothing else, by code points and by UTF-8 bytes."""
    subtree = f"{prefix}/"
    end = prefix_end(subtree)
    assert end is not None
    assert covers(subtree, key) is (subtree <= key < end)
    assert covers(subtree, key) is (subtree.encode() <= key.encode() < end.encode())
    assert covers("", key)
    assert prefix_end("") is None


@pytest.mark.parametrize(
    "region",
    ["private/", "private/a/b", "private/../x", "other", "shared/", "Shared", " shared", "private/é"],
)
def test_a_region_is_shared_or_somebodys(region: str) -> None:
    """No third kind, and no second spelling."""
    with pytest.raises(SlateboardError) as caught:
        check_region(region, "region")
    assert caught.value.reason is Reason.KEY_INVALID


def test_regions_know_their_owners() -> None:
    """Empty means shared."""
    assert check_region("") == check_region("shared") == SHARED
    assert owner_of(SHARED) is None
    mine = private_region(PrincipalId("a.b-c_1"))
    assert check_region(mine) == mine
    assert owner_of(mine) == "a.b-c_1"


def test_huge_region_names_are_not_kept_in_memory() -> None:
    """A cache of refusals must not be as large as what requests can carry."""
    before = names._region.cache_info().currsize
    for number in range(3):
        with pytest.raises(SlateboardError):
            check_region("private/" + "x" * 100_000 + str(number))
    assert names._region.cache_info().currsize == before


@pytest.mark.parametrize("path", ["_slate", "_slate/", "_slate/x/y"])
def test_the_reserved_segment_is_reserved_whole(path: str) -> None:
    """The key itself, the prefix, and all below."""
    assert is_reserved(path)


@pytest.mark.parametrize("path", ["", "_slat", "_slated", "_slate.x", "a/_slate", "_Slate/x"])
def test_what_only_resembles_the_reserved_segment_is_free(path: str) -> None:
    """A segment is compared whole."""
    assert not is_reserved(path)


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "é", "a\n", "x" * 65])
def test_names_of_boards_and_principals_are_plain(name: str) -> None:
    """They go into paths, logs and command lines."""
    for check in (check_board_name, check_principal_id):
        with pytest.raises(SlateboardError) as caught:
            check(name)
        assert caught.value.reason is Reason.FIELD_INVALID
    assert check_principal_id("Agent.7_x") == "Agent.7_x"
    assert check_board_name("orders-2") == "orders-2"
    with pytest.raises(SlateboardError):
        check_board_name("Orders")
