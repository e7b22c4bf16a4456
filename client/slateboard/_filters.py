"""Conditions of a list."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal, TypeAlias

from slateboard import _values
from slateboard.errors import Invalid
from slateboard.v1 import entry_service_pb2

Operator: TypeAlias = Literal["=", "!=", "in", ">=", "<"]
Operand: TypeAlias = str | int | float | Enum | datetime

_OPERATORS = {
    "=": entry_service_pb2.FILTER_OPERATOR_EQUALS,
    "!=": entry_service_pb2.FILTER_OPERATOR_NOT_EQUALS,
    "in": entry_service_pb2.FILTER_OPERATOR_IN,
    ">=": entry_service_pb2.FILTER_OPERATOR_GREATER_OR_EQUAL,
    "<": entry_service_pb2.FILTER_OPERATOR_LESS,
}


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition; several are joined by AND.

    `Filter("kind", "=", Kind.SEMANTIC)`, `Filter("label.lang", "in", ["en", "zh"])`, `Filter("mod_revision", ">=", 41)`.
    A field or operator the server does not know is an error, never ignored.
    """

    field: str
    operator: Operator
    value: Operand | Iterable[Operand]

    def message(self) -> entry_service_pb2.Filter:
        """The wire form.

        Raises:
            Invalid: an operator that does not exist, or a time without a zone.
        """
        if self.operator not in _OPERATORS:
            raise Invalid(
                f"no filter operator {self.operator!r}; there are {', '.join(_OPERATORS)}",
                reason="UNKNOWN_FILTER",
                metadata={"field": "filters"},
            )
        many = not isinstance(self.value, (str, int, float, Enum, datetime))
        values = list(self.value) if many else [self.value]  # type: ignore[arg-type]
        return entry_service_pb2.Filter(
            field=self.field, operator=_OPERATORS[self.operator], values=[_text(value) for value in values]
        )


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, datetime):
        return _values.aware(value, "filters").isoformat()
    return str(value)
