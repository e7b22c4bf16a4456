"""Exact decimals: amounts are read, added and multiplied without ever being rounded.

Python's default context rounds to 28 digits in silence, which would make a sum depend on the order of its
terms, and with it on which worker finished first. Here every operation is exact or raises
`decimal.Inexact`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import (
    ROUND_HALF_UP,
    Context,
    Decimal,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
)
from typing import Final

MAX_WHOLE_DIGITS: Final = 15
"""Digits before the point that a number from outside may have."""
MAX_DECIMALS: Final = 12
"""Digits after the point that a number from outside may have."""

# A product of two numbers from outside has at most 54 digits; the rest is room for sums.
_EXACT: Final = Context(prec=120, traps=[InvalidOperation, DivisionByZero, Overflow, Inexact])
_ROUNDING: Final = Context(prec=120, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
# What sums of products can reach, with room; bounded, so that a hostile text cannot push a sum past exactness.
_AMOUNT: Final = re.compile(r"-?[0-9]{1,50}(?:\.[0-9]{1,30})?", re.ASCII)
_CENT: Final = Decimal("0.01")

ZERO: Final = Decimal(0)


def parse(text: str) -> Decimal:
    """A number as a CSV file spells it: `6`, `-2`, `2.95`, `1e-3`.

    Raises:
        ValueError: Not a finite number of at most 15 digits before and 12 after the point; the text says which.
    """
    if len(text) > 64 or _NUMBER.fullmatch(text) is None:
        raise ValueError("is not a number")
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # the pattern lets neither infinity nor NaN through
    if value and value.adjusted() >= MAX_WHOLE_DIGITS:
        raise ValueError(f"has more than {MAX_WHOLE_DIGITS} digits before the point")
    if exponent < -MAX_DECIMALS:
        raise ValueError(f"has more than {MAX_DECIMALS} digits after the point")
    return value


def add(left: Decimal, right: Decimal) -> Decimal:
    """The exact sum."""
    return _EXACT.add(left, right)


def subtract(left: Decimal, right: Decimal) -> Decimal:
    """The exact difference."""
    return _EXACT.subtract(left, right)


def multiply(left: Decimal, right: Decimal) -> Decimal:
    """The exact product."""
    return _EXACT.multiply(left, right)


def total(values: Iterable[Decimal]) -> Decimal:
    """The exact sum of all values; 0 of none."""
    result = ZERO
    for value in values:
        result = _EXACT.add(result, value)
    return result


def ratio(part: Decimal, whole: Decimal) -> Decimal:
    """`part / whole`, rounded: for display only. 0 where the whole is 0."""
    return _ROUNDING.divide(part, whole) if whole else ZERO


def to_text(value: Decimal) -> str:
    """The one spelling of a value: no exponent, no trailing zeros, no minus zero. Equal values, equal texts."""
    if not value:
        return "0"
    return format(_EXACT.normalize(value), "f")


def from_text(text: str) -> Decimal:
    """What `to_text` wrote.

    Raises:
        ValueError: Not such a text.
    """
    if _AMOUNT.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not an amount")
    return Decimal(text)


def cents(value: Decimal) -> Decimal:
    """The value at two decimals, halves away from zero: for display only."""
    rounded = _ROUNDING.quantize(value, _CENT)
    return rounded or abs(rounded)


def show(value: Decimal) -> str:
    """An amount for people: `235,481.80`."""
    return f"{cents(value):,}"


def show_units(value: Decimal) -> str:
    """A count of units for people: `1,204`; decimals only where there are any."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_percent(share: Decimal) -> str:
    """A share for people, at one decimal: `0.0312` gives `3.1 %`."""
    percent = _ROUNDING.quantize(_ROUNDING.multiply(share, Decimal(100)), Decimal("0.1"))
    return f"{percent or abs(percent):,} %"
