"""Conditions on the fields of a version: what List's filters mean, and that an unknown one is never ignored.

The fields and operators are those documented on `Filter` in `entry_service.proto`. A condition that cannot be
understood is refused: a filter that is silently dropped returns what the caller asked not to see.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from slateboard_server.domain.entry import VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid, too_many
from slateboard_server.domain.limits import MAX_FILTER_VALUES, MAX_TAG_BYTES
from slateboard_server.domain.values import Kind, Micros, Trust

Scalar: TypeAlias = str | int | float

EQUALS: Final = "equals"
NOT_EQUALS: Final = "not_equals"
IN: Final = "in"
GREATER_OR_EQUAL: Final = "greater_or_equal"
LESS: Final = "less"

_CHOICES: Final = frozenset({EQUALS, NOT_EQUALS, IN})
_ORDERED: Final = frozenset({EQUALS, NOT_EQUALS, IN, GREATER_OR_EQUAL, LESS})
_LABEL: Final = "label."
_MAX_INT64: Final = (1 << 63) - 1

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,32}(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\.([0-9]+))?"
    r"([Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """One condition that was understood.

    `values` are in the field's own type: text, a number, an enum's number, micros since the epoch. A field that holds
    several values (`topic`) equals a value where one of them does; NOT_EQUALS is always the contrary of EQUALS, so a
    version without a label is not equal to any.
    """

    field: str
    operator: str
    values: tuple[Scalar, ...]


def parse_filter(field: str, operator: str, values: Sequence[str], path: str) -> FilterSpec:
    """Understand one condition; `path` names it in the request, e.g. `filters[0]`.

    Raises UNKNOWN_FILTER for a field or operator that does not exist or does not fit, FIELD_INVALID for a value that
    is not one of the field, TOO_MANY for more than 100. The metadata `field` is `path` with the part that is wrong.
    """
    kind = _kind_of(field)
    if kind is None:
        raise _unknown(f"{path}.field", f"there is no filter field {field[:80]!r}; see Filter for the list")
    if operator not in kind.operators:
        fit = ", ".join(sorted(kind.operators))
        raise _unknown(
            f"{path}.operator", f"the field {field} has no operator {operator[:80]!r}; it has {fit}"
        )
    place = f"{path}.values"
    if not values:
        raise field_invalid(place, "a filter needs a value")
    if operator == IN:
        if len(values) > MAX_FILTER_VALUES:
            raise too_many(place, len(values), MAX_FILTER_VALUES)
    elif len(values) != 1:
        raise field_invalid(place, f"{operator} takes one value, not {len(values)}; use IN for a choice")
    return FilterSpec(field, operator, tuple(kind.parse(value, place) for value in values))


def matches(filters: Iterable[FilterSpec], record: VersionRecord) -> bool:
    """Tell whether a version satisfies every condition."""
    return all(_matches(spec, record) for spec in filters)


def canonical(filters: Iterable[FilterSpec]) -> str:
    """Write conditions in one way, whatever their order and spelling: two lists that mean the same give one text.

    For page tokens: a token is bound to the filters of its first page.
    """
    written = {
        json.dumps([spec.field, spec.operator, sorted(set(spec.values), key=repr)], separators=(",", ":"))
        for spec in filters
    }
    return "[" + ",".join(sorted(written)) + "]"


def _matches(spec: FilterSpec, record: VersionRecord) -> bool:
    values = spec.values
    if spec.field == "topic":
        met = any(topic in values for topic in record.annotations.topics)
    elif spec.field.startswith(_LABEL):
        name = spec.field[len(_LABEL) :]
        met = any(label == name and value in values for label, value in record.annotations.labels)
    else:
        actual = _READERS[spec.field](record)
        if spec.operator == GREATER_OR_EQUAL:
            return actual >= values[0]  # type: ignore[operator]  # both of the field's own type
        if spec.operator == LESS:
            return actual < values[0]  # type: ignore[operator]  # both of the field's own type
        met = actual in values
    return met is not (spec.operator == NOT_EQUALS)


def _unknown(field: str, message: str) -> SlateboardError:
    return SlateboardError(Reason.UNKNOWN_FILTER, f"{field}: {message}", field=field)


# How the text of a value becomes the field's own type.


def _text(value: str, _field: str) -> Scalar:
    return value


def _choice(names: Mapping[str, int], what: str) -> Callable[[str, str], Scalar]:
    def parse(value: str, field: str) -> Scalar:
        number = names.get(value)
        if number is None:
            raise field_invalid(field, f"{value[:80]!r} is no {what}; one of {', '.join(names)}")
        return number

    return parse


def _integer(value: str, field: str) -> Scalar:
    if not _INTEGER.fullmatch(value) or abs(int(value)) > _MAX_INT64:
        raise field_invalid(field, f"{value[:80]!r} is not a whole number of 64 bits")
    return int(value)


def _number(value: str, field: str) -> Scalar:
    if not _DECIMAL.fullmatch(value) or not math.isfinite(float(value)):
        raise field_invalid(field, f"{value[:80]!r} is not a number")
    return float(value) + 0.0  # one spelling of zero


def _time(value: str, field: str) -> Scalar:
    return parse_time(value, field)


def parse_time(text: str, field: str) -> Micros:
    """Read an RFC 3339 time with its offset. Raises FIELD_INVALID, above all for a naive time: whose day is it?

    More than six digits of a second are accepted where those past the sixth are zero: nothing here is finer than a
    microsecond, and rounding would move an edge.
    """
    found = _RFC_3339.fullmatch(text)
    if found is None:
        raise field_invalid(
            field, f"{text[:80]!r} is not an RFC 3339 time with an offset, like 2026-01-31T12:00:00Z"
        )
    day, clock, fraction, offset = found[1], found[2], found[3] or "", found[4]
    if fraction[6:].strip("0"):
        raise field_invalid(field, f"{text[:80]!r} is finer than a microsecond")
    zone = "+00:00" if offset in {"Z", "z"} else offset
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}.{fraction[:6]:0<6}{zone}")
    except ValueError as error:
        raise field_invalid(field, f"{text[:80]!r} is not a day of the calendar") from error
    return Micros((moment - _EPOCH) // _MICROSECOND)


@dataclass(frozen=True, slots=True)
class _FieldKind:
    operators: frozenset[str]
    parse: Callable[[str, str], Scalar]


_TEXT: Final = _FieldKind(_CHOICES, _text)
_INT: Final = _FieldKind(_ORDERED, _integer)
_REAL: Final = _FieldKind(_ORDERED, _number)
_FIELDS: Final[dict[str, _FieldKind]] = {
    "kind": _FieldKind(_CHOICES, _choice({kind.name.lower(): int(kind) for kind in Kind}, "kind")),
    "trust": _FieldKind(_CHOICES, _choice({trust.name.lower(): int(trust) for trust in Trust}, "trust")),
    "subject": _TEXT,
    "attribute": _TEXT,
    "topic": _TEXT,
    "principal": _TEXT,
    "session_id": _TEXT,
    "tool": _TEXT,
    "content_type": _TEXT,
    "mod_revision": _INT,
    "create_revision": _INT,
    "version": _INT,
    "size": _INT,
    "confidence": _REAL,
    "importance": _REAL,
    "commit_time": _FieldKind(_ORDERED, _time),
}
_READERS: Final[dict[str, Callable[[VersionRecord], Scalar]]] = {
    "kind": lambda record: record.kind,
    "trust": lambda record: record.trust,
    "subject": lambda record: record.annotations.subject,
    "attribute": lambda record: record.annotations.attribute,
    "principal": lambda record: record.principal,
    "session_id": lambda record: record.session_id or "",
    "tool": lambda record: record.annotations.tool,
    "content_type": lambda record: record.content_type,
    "mod_revision": lambda record: record.mod_revision,
    "create_revision": lambda record: record.create_revision,
    "version": lambda record: record.version,
    "size": lambda record: record.size,
    "confidence": lambda record: record.annotations.confidence,
    "importance": lambda record: record.annotations.importance,
    "commit_time": lambda record: record.commit_time,
}


def _kind_of(field: str) -> _FieldKind | None:
    if field.startswith(_LABEL):
        name = field[len(_LABEL) :]
        return _TEXT if name and len(name.encode("utf-8", "surrogatepass")) <= MAX_TAG_BYTES else None
    return _FIELDS.get(field)
