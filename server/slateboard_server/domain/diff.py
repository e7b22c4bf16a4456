"""What changed between two values: JSON by place, text by line, anything else only whether it is equal.

Everything is bounded, in size and in time, for any input: both values may come from an agent that was told to be
difficult.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NoReturn, TypeAlias

from slateboard_server.domain.textdiff import unified_diff

MAX_CHANGES: Final = 1_000
MAX_CHANGES_BYTES: Final = 3 << 20
"""Of pointers and JSON texts together. Two whole values of 1 MiB fit; 1,000 pointers through a huge key do not."""
MAX_UNIFIED_BYTES: Final = 256 << 10


class DiffKind(IntEnum):
    """What happened at a place. Numbers are those of the API."""

    ADDED = 1
    REMOVED = 2
    CHANGED = 3


@dataclass(frozen=True, slots=True)
class JsonChange:
    """One place where two JSON values differ.

    Applied in order, the changes turn the first value into the second (elements are removed from the end of an array
    first). Arrays are compared place by place. `before` and `after` are compact JSON, empty where there was nothing.
    """

    kind: DiffKind
    pointer: str
    """RFC 6901; empty for the whole value."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ValueDiff:
    """`equal` is about bytes: two spellings of one JSON value are not equal and have no changes."""

    equal: bool
    changes: tuple[JsonChange, ...] = ()
    unified: str = ""
    truncated: bool = False


class _Number(str):
    """A JSON number as it was written: 1, 1.0 and 1e0 are three, and none is rounded or too long."""

    __slots__ = ()


_Json: TypeAlias = "bool | str | _Number | list[_Json] | dict[str, _Json] | None"
_Path: TypeAlias = "tuple[_Path, str | int] | None"
"""Innermost step last; spelled out only for a change, since keys may be long and siblings many."""


def diff_values(before: bytes | None, before_type: str, after: bytes | None, after_type: str) -> ValueDiff:
    """Compare two values by their content types; None is an absence, and takes the other's type."""
    if before == after:
        return ValueDiff(equal=True)
    before_type = _media_type(before_type if before is not None else after_type)
    after_type = _media_type(after_type if after is not None else before_type)
    if _is_json(before_type) and _is_json(after_type):
        try:
            old = None if before is None else _parse(before)
            new = None if after is None else _parse(after)
            return _json_diff(before is not None, old, after is not None, new)
        except (ValueError, RecursionError):
            pass  # not checked to be JSON when it was written, or nested past reading: compared as text
    if _is_text(before_type) and _is_text(after_type):
        try:
            lines_before = None if before is None else before.decode()
            lines_after = None if after is None else after.decode()
        except UnicodeDecodeError:
            return ValueDiff(equal=False)
        unified, cut = unified_diff(lines_before, lines_after, MAX_UNIFIED_BYTES)
        return ValueDiff(equal=False, unified=unified, truncated=cut)
    return ValueDiff(equal=False)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or media_type.endswith("+json")


def _is_text(media_type: str) -> bool:
    return media_type.startswith("text/") or _is_json(media_type)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _parse(value: bytes) -> _Json:
    parsed: _Json = json.loads(
        value.decode(), parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
    )
    return parsed


def _json_diff(has_before: bool, before: _Json, has_after: bool, after: _Json) -> ValueDiff:
    changes: list[JsonChange] = []
    room = MAX_CHANGES_BYTES
    for kind, path, old, new in _compare(has_before, before, has_after, after):
        if len(changes) == MAX_CHANGES:
            return ValueDiff(equal=False, changes=tuple(changes), truncated=True)
        change = JsonChange(
            kind,
            _pointer(path),
            "" if kind is DiffKind.ADDED else _to_text(old),
            "" if kind is DiffKind.REMOVED else _to_text(new),
        )
        room -= sum(_utf8_size(text) for text in (change.pointer, change.before, change.after))
        if room < 0:
            return ValueDiff(equal=False, changes=tuple(changes), truncated=True)
        changes.append(change)
    return ValueDiff(equal=False, changes=tuple(changes))


_Place: TypeAlias = tuple[DiffKind | None, _Path, _Json, _Json]
"""A difference, or (kind None) a pair that is still to be compared."""


def _compare(
    has_before: bool, before: _Json, has_after: bool, after: _Json
) -> Iterator[tuple[DiffKind, _Path, _Json, _Json]]:
    """Yield differences in document order: lazily, so that the bound on changes bounds the time too."""
    if not has_before or not has_after:
        yield (DiffKind.ADDED if has_after else DiffKind.REMOVED), None, before, after
        return
    first: _Place = (None, None, before, after)
    stack: list[Iterator[_Place]] = [iter((first,))]
    while stack:
        place = next(stack[-1], None)
        if place is None:
            stack.pop()
            continue
        found, path, old, new = place
        if found is not None:
            yield found, path, old, new
        elif isinstance(old, dict) and isinstance(new, dict):
            stack.append(_object_pairs(path, old, new))
        elif isinstance(old, list) and isinstance(new, list):
            stack.append(_array_pairs(path, old, new))
        elif type(old) is not type(new) or old != new:
            yield DiffKind.CHANGED, path, old, new


def _object_pairs(path: _Path, old: dict[str, _Json], new: dict[str, _Json]) -> Iterator[_Place]:
    for name, value in old.items():
        if name in new:
            yield None, (path, name), value, new[name]
        else:
            yield DiffKind.REMOVED, (path, name), value, None
    for name, value in new.items():
        if name not in old:
            yield DiffKind.ADDED, (path, name), None, value


def _array_pairs(path: _Path, old: list[_Json], new: list[_Json]) -> Iterator[_Place]:
    shared = min(len(old), len(new))
    for index in range(shared):
        yield None, (path, index), old[index], new[index]
    for index in range(len(old) - 1, shared - 1, -1):
        yield DiffKind.REMOVED, (path, index), old[index], None
    for index in range(shared, len(new)):
        yield DiffKind.ADDED, (path, index), None, new[index]


def _pointer(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
    return _encodable("".join(f"/{step}" for step in reversed(steps)))


def _encodable(text: str) -> str:
    """Spell lone surrogates out (JSON can name them, UTF-8 cannot)."""
    return text.encode("utf-8", "backslashreplace").decode()


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _to_text(value: _Json) -> str:
    """Write compact JSON, numbers as they were written. Raises RecursionError."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        members = [f"{_scalar(name)}:{_to_text(member)}" for name, member in value.items()]
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join([_to_text(member) for member in value])}]"
    return _scalar(value)


def _scalar(value: str | bool | None) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)  # a lone surrogate stays an escape
    return text
