"""Three-way merge of JSON values. Pure.

A change is a place where a side differs from the base. Changes in different members of an object merge by themselves.
Everything else that both sides changed is one place: a number, a text, a list (what the items of two edited lists have
to do with each other cannot be known), a member that one side removed and the other changed.

Numbers are compared with their type: 1, 1.0 and true are three values, although Python says they are equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Absent(Enum):
    """The type of a member that is not there."""

    ABSENT = 0


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class Merge:
    """What came of a merge."""

    value: Any
    """Both sides' changes together; where they overlap, theirs."""
    overlaps: tuple[str, ...]
    """JSON pointers of the places that both changed, differently. Empty: the merge is clean."""
    agreed: tuple[str, ...]
    """Places that both changed to the same value. Two people who both set `done` agree; two who both made 5 a 6 may
    have meant 7: the caller has to know."""


def merge(base: Any, theirs: Any, mine: Any) -> Merge:
    """Merges two changes of a base. Each value may be ABSENT.

    merge(b, b, m) is m, merge(b, t, b) is t, merge(b, x, x) is x; disjoint changes merge the same way round either
    way. Members keep the order of theirs, those only mine has follow in their own order. Nothing is copied: the
    result shares parts with its arguments, which are not changed.
    """
    overlaps: list[str] = []
    agreed: list[str] = []
    value = _merge(base, theirs, mine, "", overlaps, agreed)
    return Merge(value, tuple(overlaps), tuple(agreed))


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same, the order of members aside."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and one == 0.0 == other:
        return str(one) == str(other)  # -0.0 is written differently
    return bool(one == other)


def changes(base: Any, other: Any) -> tuple[str, ...]:
    """JSON pointers of the places where a value differs from the base, as deep as objects go."""
    found: list[str] = []
    _changes(base, other, "", found)
    return tuple(found)


def _changes(base: Any, other: Any, place: str, found: list[str]) -> None:
    if same(base, other):
        return
    if isinstance(base, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*base, *other)):
            _changes(base.get(key, ABSENT), other.get(key, ABSENT), _inner(place, key), found)
    else:
        found.append(place)


def at(value: Any, pointer: str) -> Any:
    """The part of a value at a JSON pointer (RFC 6901); ABSENT where there is none."""
    if pointer == "":
        return value
    for token in pointer[1:].split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, Mapping) or key not in value:
            return ABSENT
        value = value[key]
    return value


def _merge(base: Any, theirs: Any, mine: Any, place: str, overlaps: list[str], agreed: list[str]) -> Any:
    if same(base, mine):
        return theirs
    if same(base, theirs):
        return mine
    if isinstance(theirs, dict) and isinstance(mine, dict) and isinstance(base, dict):
        merged: dict[str, Any] = {}
        for key in (*theirs, *(key for key in mine if key not in theirs)):
            value = _merge(
                base.get(key, ABSENT),
                theirs.get(key, ABSENT),
                mine.get(key, ABSENT),
                _inner(place, key),
                overlaps,
                agreed,
            )
            if value is not ABSENT:
                merged[key] = value
        gone = (key for key in base if key not in theirs and key not in mine)
        agreed.extend(_inner(place, key) for key in gone)
        return merged
    (agreed if same(theirs, mine) else overlaps).append(place)
    return theirs


def _inner(place: str, key: str) -> str:
    return f"{place}/{key.replace('~', '~0').replace('/', '~1')}"
