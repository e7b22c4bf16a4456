"""What keys, prefixes, regions, boards and principals may be called.

A key is a path. It is refused rather than mended: two spellings of one key would be two locks on one thing. Comparison
and order are by code point, which is the byte order of UTF-8 and what both databases use.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.limits import APPEND_SUFFIX_BYTES, MAX_KEY_BYTES, MAX_KEY_SEGMENTS
from slateboard_server.domain.values import Key, PrincipalId, Region

SHARED: Final = Region("shared")
PRIVATE_PREFIX: Final = "private/"
RESERVED_SEGMENT: Final = "_slate"
"""Keys below it are written by the server's own services only."""

_PLAIN = re.compile(r"[A-Za-z0-9_~:@=+,;!$&'()*#\[\]{}|^-][A-Za-z0-9._~:@=+,;!$&'()*#\[\]{}|^ -]*")
_BOARD = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = frozenset("\u00ad\u200b\u2060\ufeff")
"""Soft hyphen, zero-width space, word joiner, byte order mark: never part of a spelling. The joiners U+200C and U+200D
are, in Persian and Hindi, and stay."""
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_APPEND_NAME = re.compile(r"([0-9]{19})-[0-9]{3}", re.ASCII)
_MAX_REGION_BYTES = len(PRIVATE_PREFIX) + 64


def _bad(
    field: str, what: str, why: str, *, limit: int | None = None, actual: int | None = None
) -> SlateboardError:
    return SlateboardError(
        Reason.KEY_INVALID, f"{field}: {what} {why}", field=field, limit=limit, actual=actual
    )


def _check_path(path: str, field: str, what: str, max_bytes: int, max_segments: int) -> None:
    size = len(path) if path.isascii() else len(path.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise _bad(field, what, f"has {size} bytes, the limit is {max_bytes}", limit=max_bytes, actual=size)
    segments = path.split("/")
    if len(segments) > max_segments:
        raise _bad(
            field, what, f"has {len(segments)} segments, the limit is {max_segments}", limit=max_segments,
            actual=len(segments),
        )  # fmt: skip
    for segment in segments:
        if _PLAIN.fullmatch(segment):
            continue
        if segment == "":
            raise _bad(field, what, "has an empty segment; no leading, trailing or double '/'")
        if segment in {".", ".."}:
            raise _bad(field, what, f"has the segment {segment!r}; paths are not resolved here, spell it out")
        for char in segment:
            if unicodedata.category(char) in _FORBIDDEN_CATEGORIES or char in _BIDI_CONTROLS:
                raise _bad(field, what, f"has the control character U+{ord(char):04X}")
            if char in _INVISIBLE:
                raise _bad(field, what, f"has the invisible character U+{ord(char):04X}")
    if not unicodedata.is_normalized("NFC", path):
        raise _bad(field, what, "is not in Unicode normalization form NFC; normalise it before sending")


@lru_cache(maxsize=16_384)
def _valid_key(text: str) -> bool:
    _check_path(text, "key", "the key", MAX_KEY_BYTES, MAX_KEY_SEGMENTS)
    return True


def check_key(text: str, field: str = "key") -> Key:
    """Return `text` as a key, or raise KEY_INVALID naming `field` and the limit that was passed."""
    try:
        _valid_key(text)  # exceptions are not cached, so the error below is made with the right field name
    except SlateboardError:
        _check_path(text, field, "the key", MAX_KEY_BYTES, MAX_KEY_SEGMENTS)
        raise
    return Key(text)


def check_prefix(text: str, field: str = "prefix") -> str:
    """Return `text` as a subtree: empty for everything, else ending with '/'. Raises KEY_INVALID."""
    if text == "":
        return ""
    if not text.endswith("/"):
        raise _bad(
            field,
            f"the prefix {text[:80]!r}",
            "must be empty or end with '/': 'plan/' covers plan/a, not planner",
        )
    _check_path(text[:-1], field, "the prefix", MAX_KEY_BYTES - 1, MAX_KEY_SEGMENTS)
    return text


def check_append_prefix(text: str, field: str) -> str:
    """Return `text` as the place of an append: a non-empty prefix with room for the name the server adds."""
    if text == "":
        raise _bad(field, "the prefix", "must not be empty for an append")
    check_prefix(text, field)
    _check_path(
        text[:-1],
        field,
        "the prefix of an append",
        MAX_KEY_BYTES - APPEND_SUFFIX_BYTES - 1,
        MAX_KEY_SEGMENTS - 1,
    )
    return text


@lru_cache(maxsize=4_096)
def _region(text: str) -> Region | None:
    if text in {"", SHARED}:
        return SHARED
    if text.startswith(PRIVATE_PREFIX) and _PRINCIPAL.fullmatch(text[len(PRIVATE_PREFIX) :]):
        return Region(text)
    return None


def check_region(text: str, field: str = "region") -> Region:
    """Return the region; empty means `shared`. Raises KEY_INVALID."""
    # The length first: what is cached must not be as large as a request can make it.
    region = _region(text) if len(text) <= _MAX_REGION_BYTES else None
    if region is None:
        raise _bad(field, f"the region {text[:80]!r}", "must be `shared` or `private/<principal>`")
    return region


def private_region(principal: PrincipalId) -> Region:
    """Return the private region of a principal."""
    return Region(PRIVATE_PREFIX + principal)


def owner_of(region: Region) -> PrincipalId | None:
    """Return whose private region it is, None for the shared one."""
    return PrincipalId(region[len(PRIVATE_PREFIX) :]) if region.startswith(PRIVATE_PREFIX) else None


def is_reserved(path: str) -> bool:
    """Tell whether a key or prefix lies in what only the server's services write."""
    return path.startswith(RESERVED_SEGMENT) and path[len(RESERVED_SEGMENT) :][:1] in {"", "/"}


def check_board_name(text: str, field: str = "name") -> str:
    """Return `text` as the name of a board to be made. Raises FIELD_INVALID."""
    if not _BOARD.fullmatch(text):
        raise field_invalid(
            field, "a board's name is 1 to 64 of [a-z0-9._-], beginning with a letter or digit"
        )
    return text


def check_principal_id(text: str, field: str = "id") -> PrincipalId:
    """Return `text` as the id of a principal to be made. Raises FIELD_INVALID."""
    if not _PRINCIPAL.fullmatch(text):
        raise field_invalid(
            field, "a principal's id is 1 to 64 of [A-Za-z0-9._-], beginning with a letter or digit"
        )
    return PrincipalId(text)


def covers(prefix: str, key: str) -> bool:
    """Tell whether a prefix (empty, or ending with '/') covers a key or a longer prefix."""
    return key.startswith(prefix)


def prefix_end(prefix: str) -> str | None:
    """Return the smallest string above every string that begins with `prefix`; None for the empty prefix.

    A prefix ends with '/', so the successor of its last character always exists ('0').
    """
    if prefix == "":
        return None
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def append_key(prefix: str, revision: int, op_index: int) -> Key:
    """Return the key of an append: `<prefix><revision, 19 digits>-<op index, 3 digits>`, ordered by revision."""
    return Key(f"{prefix}{revision:019d}-{op_index:03d}")


def revision_of_append(key: str) -> int | None:
    """Return the revision in a key that has the form of `append_key`, None for any other key."""
    if key[-4:-3] != "-":
        return None
    name = _APPEND_NAME.fullmatch(key, key.rfind("/") + 1)
    return None if name is None else int(name[1])
