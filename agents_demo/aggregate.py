"""Weekly figures that several workers build in parts: partial aggregates, and a merge that is exact in any order.

An `Aggregate` speaks of some row ranges of one file and holds, for each (ISO week, country), only figures
that add up. How many different invoices or customers there were is left out on purpose: an invoice can lie
across the border of two ranges, so the counts of two parts do not add up to the count of the whole.

`merge` is associative and commutative, with `EMPTY` as its neutral element: decimals are exact (`money`),
and an aggregate names the ranges it covers, so that the same part merged twice is an error (`Overlap`), not
a doubled figure. `three_way` is the merge of two changes to one common base, for an entry that several
workers update at once.

As JSON (`to_json`), decimals as strings, spelled in one way:

    {"parts": {"<row range>": {"duplicates": 12}},
     "weeks": {"2011-W06": {"France": {"lines": 90, "cancelled_lines": 2, "unknown_customer": 0, "units": "812",
                                       "cancelled_units": "-9", "gross": "1530.2", "cancelled": "-20.4"}}}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

from agents_demo import money
from agents_demo.cleaning import is_cancellation
from agents_demo.orders import OrderLine
from agents_demo.rows import RowRange, first_overlap

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_WEEK: Final = re.compile(r"[0-9]{4}-W[0-9]{2}", re.ASCII)


class Overlap(ValueError):
    """Two aggregates cover the same row: merging them would count it twice."""


class Cell(NamedTuple):
    """What a figure is about. Sorts by week, then country."""

    week: str
    """ISO year and week, `2011-W06`."""
    country: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Additive figures of some order lines, duplicates left out. The default is of no lines."""

    lines: int = 0
    """All lines, cancellations included."""
    cancelled_lines: int = 0
    """Those on a cancellation invoice."""
    unknown_customer: int = 0
    """Lines without a customer."""
    units: Decimal = money.ZERO
    """Units on sales lines; goods that came back without a cancellation invoice are subtracted."""
    cancelled_units: Decimal = money.ZERO
    """Units on cancellation lines; as a rule not above 0."""
    gross: Decimal = money.ZERO
    """Sum of quantity x unit price over sales lines, in the currency of the file."""
    cancelled: Decimal = money.ZERO
    """The same over cancellation lines; as a rule not above 0."""

    @property
    def net(self) -> Decimal:
        """Net revenue: gross plus cancelled, that is over all lines."""
        return money.add(self.gross, self.cancelled)

    @property
    def cancelled_share(self) -> Decimal:
        """Cancelled value as a share of gross, rounded, 0 where nothing was sold: for display."""
        return money.ratio(abs(self.cancelled), self.gross) if self.gross > 0 else money.ZERO

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.lines + other.lines,
            self.cancelled_lines + other.cancelled_lines,
            self.unknown_customer + other.unknown_customer,
            money.add(self.units, other.units),
            money.add(self.cancelled_units, other.cancelled_units),
            money.add(self.gross, other.gross),
            money.add(self.cancelled, other.cancelled),
        )

    def __sub__(self, other: Figures) -> Figures:
        return Figures(
            self.lines - other.lines,
            self.cancelled_lines - other.cancelled_lines,
            self.unknown_customer - other.unknown_customer,
            money.subtract(self.units, other.units),
            money.subtract(self.cancelled_units, other.cancelled_units),
            money.subtract(self.gross, other.gross),
            money.subtract(self.cancelled, other.cancelled),
        )


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Figures of the row ranges in `parts`.

    Raises:
        Overlap: Two parts share a row.
        ValueError: The lines of all cells and the duplicates are not as many as the rows covered.
    """

    parts: Mapping[RowRange, int] = field(default_factory=dict)
    """Row ranges covered, each with how many duplicate rows in it were left out."""
    cells: Mapping[Cell, Figures] = field(default_factory=dict)
    """Cells without lines are left out."""

    def __post_init__(self) -> None:
        both = first_overlap(self.parts)
        if both is not None:
            raise Overlap(f"rows {both[0].label} and {both[1].label} overlap")
        counted = sum(figures.lines for figures in self.cells.values()) + self.duplicates
        if counted != self.rows:
            raise ValueError(f"{self.rows} rows are covered, but {counted} are counted")

    @property
    def rows(self) -> int:
        """Rows of the file covered, duplicates included."""
        return sum(len(part) for part in self.parts)

    @property
    def duplicates(self) -> int:
        """Duplicate rows left out."""
        return sum(self.parts.values())

    @property
    def total(self) -> Figures:
        """All cells added."""
        return _added(self.cells.values())


EMPTY: Final = Aggregate()


def aggregate(lines: Iterable[OrderLine], rows: RowRange, dropped: Collection[int]) -> Aggregate:
    """The figures of one row range.

    Args:
        lines: The order lines of exactly these rows, duplicates included, in file order.
        rows: The range.
        dropped: Rows to leave out; may name rows outside the range.

    Raises:
        ValueError: The lines are not those of the range: the file is another one.
    """
    cells: dict[Cell, Figures] = {}
    duplicates = 0
    expected = rows.start
    for line in lines:
        if line.row != expected or line.row not in rows:
            raise ValueError(f"row {line.row} where row {expected} of {rows.label} was expected")
        expected += 1
        if line.row in dropped:
            duplicates += 1
        else:
            cell = Cell(line.week, line.country)
            cells[cell] = cells.get(cell, _NOTHING) + _of_line(line)
    if expected != rows.stop:
        raise ValueError(f"the lines end at row {expected}, rows {rows.label} go on")
    return Aggregate({rows: duplicates}, cells)


def merge(left: Aggregate, right: Aggregate) -> Aggregate:
    """Both together.

    Raises:
        Overlap: They cover the same row.
    """
    return three_way(EMPTY, left, right)


def merge_all(aggregates: Iterable[Aggregate]) -> Aggregate:
    """All together; `EMPTY` of none.

    Raises:
        Overlap: Two cover the same row.
    """
    return reduce(merge, aggregates, EMPTY)


def three_way(base: Aggregate, theirs: Aggregate, mine: Aggregate) -> Aggregate:
    """What both sides made of a common base: `theirs + mine - base`.

    A part that both sides added with the same range is an error rather than one part, since their figures may differ; who
    finds its part in `theirs` has nothing left to add.

    Raises:
        Overlap: Both sides added the same row.
        ValueError: A side lost a part of the base.
    """
    for side in (theirs, mine):
        if any(side.parts.get(part) != duplicates for part, duplicates in base.parts.items()):
            raise ValueError("a side lacks a part of the common base")
    added = {part: duplicates for part, duplicates in mine.parts.items() if part not in base.parts}
    twice = sorted(part.label for part in added if part in theirs.parts)
    if twice:
        raise Overlap(f"rows {twice[0]} were added by both sides")
    cells = {
        cell: figures
        for cell in sorted({*theirs.cells, *mine.cells})
        if (figures := _three_way_cell(base, theirs, mine, cell)).lines
    }
    return Aggregate({**theirs.parts, **added}, cells)


def by_week(whole: Aggregate) -> dict[str, Figures]:
    """Figures of each ISO week, in order."""
    return _grouped(whole, lambda cell: cell.week)


def by_country(whole: Aggregate) -> dict[str, Figures]:
    """Figures of each country, by name."""
    return _grouped(whole, lambda cell: cell.country)


def to_json(value: Aggregate) -> dict[str, Json]:
    """The aggregate as JSON, spelled in one way: equal aggregates give equal JSON, keys in order."""
    weeks: dict[str, Json] = {}
    for cell in sorted(value.cells):
        countries = weeks.setdefault(cell.week, {})
        assert isinstance(countries, dict)
        countries[cell.country] = _figures_to_json(value.cells[cell])
    parts: dict[str, Json] = {part.label: {"duplicates": value.parts[part]} for part in sorted(value.parts)}
    return {"parts": parts, "weeks": weeks}


def from_json(value: object) -> Aggregate:
    """What `to_json` wrote. What comes off a board is another agent's word, so all of it is checked.

    Raises:
        ValueError: Not of that shape; the text says where.
        Overlap: Two parts share a row.
    """
    whole = _object(value, "the aggregate")
    parts: dict[RowRange, int] = {}
    for label, part in _object(whole.get("parts"), "parts").items():
        parts[RowRange.parse(label)] = _count(_object(part, label).get("duplicates"), f"{label}: duplicates")
    cells: dict[Cell, Figures] = {}
    for week, countries in _object(whole.get("weeks"), "weeks").items():
        if _WEEK.fullmatch(week) is None:
            raise ValueError(f"{week!r:.40} is not an ISO week")
        for country, figures in _object(countries, week).items():
            cells[Cell(week, country)] = _figures_from_json(figures, f"{week}, {country}")
    return Aggregate(parts, cells)


_NOTHING: Final = Figures()
_COUNTS: Final = ("lines", "cancelled_lines", "unknown_customer")
_AMOUNTS: Final = tuple(item.name for item in fields(Figures) if item.name not in _COUNTS)


def _of_line(line: OrderLine) -> Figures:
    unknown = 0 if line.customer_id else 1
    if is_cancellation(line.invoice_no):
        return Figures(1, 1, unknown, cancelled_units=line.quantity, cancelled=line.amount)
    return Figures(1, 0, unknown, units=line.quantity, gross=line.amount)


def _added(figures: Iterable[Figures]) -> Figures:
    return reduce(Figures.__add__, figures, _NOTHING)


def _three_way_cell(base: Aggregate, theirs: Aggregate, mine: Aggregate, cell: Cell) -> Figures:
    here, there = mine.cells.get(cell, _NOTHING), theirs.cells.get(cell, _NOTHING)
    return there + (here - base.cells.get(cell, _NOTHING))


def _grouped(whole: Aggregate, name: Callable[[Cell], str]) -> dict[str, Figures]:
    groups: dict[str, Figures] = {}
    for cell, figures in whole.cells.items():
        groups[name(cell)] = groups.get(name(cell), _NOTHING) + figures
    return dict(sorted(groups.items()))


def _figures_to_json(figures: Figures) -> dict[str, Json]:
    counts: dict[str, Json] = {name: getattr(figures, name) for name in _COUNTS}
    return counts | {name: money.to_text(getattr(figures, name)) for name in _AMOUNTS}


def _figures_from_json(value: object, where: str) -> Figures:
    given = _object(value, where)

    def count(name: str) -> int:
        return _count(given.get(name), f"{where}: {name}")

    def amount(name: str) -> Decimal:
        return _amount(given.get(name), f"{where}: {name}")

    figures = Figures(
        lines=count("lines"),
        cancelled_lines=count("cancelled_lines"),
        unknown_customer=count("unknown_customer"),
        units=amount("units"),
        cancelled_units=amount("cancelled_units"),
        gross=amount("gross"),
        cancelled=amount("cancelled"),
    )
    if not 0 < figures.lines >= max(figures.cancelled_lines, figures.unknown_customer):
        raise ValueError(f"{where:.80}: the counts of lines contradict each other")
    return figures


def _object(value: object, where: str) -> dict[str, object]:
    match value:
        case dict():
            return value
        case _:
            raise ValueError(f"{where:.80}: not a JSON object")


def _count(value: object, where: str) -> int:
    match value:
        case bool():
            pass
        case int() if value >= 0:
            return value
    raise ValueError(f"{where:.80}: {value!r:.40} is not a count")


def _amount(value: object, where: str) -> Decimal:
    match value:
        case str():
            return money.from_text(value)
        case _:
            raise ValueError(f"{where:.80}: {value!r:.40} is not an amount")
