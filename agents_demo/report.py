"""The weekly report on a terminal, and what the board did for the team, as tables that the HTML report shows too.

`tables` decides what is said, `plain_text` lays it out without colour, `print_report` writes to a stream:
with rich on a terminal, plainly anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from agents_demo import money
from agents_demo.aggregate import Figures
from agents_demo.weekly import Row, WeeklyReport

TOP_COUNTRIES: Final = 10
"""Countries listed by name; the others are summed up in one line."""

# What would move the cursor or recolour the terminal if it came out of a data file; and lone surrogates, which a file
# name can hold and no stream can write.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A task whose worker died and that another one finished."""

    task: str
    left_by: str
    taken_by: str


@dataclass(frozen=True, slots=True)
class LineageStep:
    """One entry version on the way from a figure to its source rows."""

    depth: int
    """Distance from the figure: 0 is the entry that holds it."""
    key: str
    version: int
    principal: str
    """Who committed it."""
    rows: str
    """The source rows it speaks of, for people: `rows 0 to 2,443`."""


@dataclass(frozen=True, slots=True)
class LockStory:
    """What became of the lock, as the board tells it."""

    held_by: str
    paused: float
    """Seconds for which its holder was stopped."""
    taken_by: str
    waited: float
    """Seconds that the other one waited for it."""
    refused: str
    """Why the late commit was refused: a reason of the API."""
    tokens: tuple[int, int]
    """The fencing tokens of both."""
    written_by: str
    """Who wrote what is there now."""


@dataclass(frozen=True, slots=True)
class TeamStats:
    """What the board did for the team. Counts are of one run, on one board."""

    workers: int
    commits: int
    """Commits that succeeded."""
    conflicts_met: int
    """Commits refused because something had changed meanwhile."""
    conflicts_merged: int
    """Those of them whose change was merged with the other side's, and then succeeded."""
    takeovers: tuple[TakeOver, ...] = ()
    figure: str = ""
    """The figure whose lineage follows: `net revenue of 2011-W06`."""
    lineage: tuple[LineageStep, ...] = ()
    """From the figure down to source rows, depth first."""
    lock: LockStory | None = None
    """What became of the lock on the data set, whose holder was stopped."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under a title; the first `texts` columns are texts, the others numbers, set flush right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    foot: tuple[str, ...] | None = None
    """A last row of sums."""


FIGURE_COLUMNS: Final = ("lines", "units", "gross", "cancelled", "net", "cancelled share")


def tables(report: WeeklyReport, team: TeamStats | None) -> list[Table]:
    """The report as tables; those about the team only where there was one."""
    weeks = Table(
        "Revenue by ISO week",
        ("week", *FIGURE_COLUMNS),
        tuple(_row(row) for row in report.weeks),
        foot=("all", *_cells(report.total)),
    )
    named, others = report.countries[:TOP_COUNTRIES], report.countries[TOP_COUNTRIES:]
    country_rows = [_row(row) for row in named]
    if others:
        rest = sum((row.figures for row in others), Figures())
        country_rows.append((f"{len(others)} others", *_cells(rest)))
    countries = Table("Revenue by country", ("country", *FIGURE_COLUMNS), tuple(country_rows))
    cleaning = Table(
        "What was cleaned",
        ("step", "lines"),
        (
            ("order lines in the file", f"{report.lines:,}"),
            ("exact duplicates left out", f"{report.duplicates:,}"),
            ("cancellation lines set apart", f"{report.cancellations:,}"),
            ("lines without a customer", f"{report.total.unknown_customer:,}"),
        ),
    )
    return [weeks, countries, cleaning, *(team_tables(team) if team is not None else [])]


def team_tables(team: TeamStats) -> list[Table]:
    """What the board did for the team."""
    found = [
        Table(
            "What the board did for the team",
            ("", "times"),
            (
                ("workers", f"{team.workers:,}"),
                ("commits", f"{team.commits:,}"),
                ("conflicts met", f"{team.conflicts_met:,}"),
                ("conflicts merged", f"{team.conflicts_merged:,}"),
                ("tasks taken over from a dead worker", f"{len(team.takeovers):,}"),
            ),
        )
    ]
    if team.takeovers:
        found.append(
            Table(
                "Tasks taken over",
                ("task", "left by", "taken by"),
                tuple((take.task, take.left_by, take.taken_by) for take in team.takeovers),
                texts=3,
            )
        )
    if (lock := team.lock) is not None:
        rows = (
            (
                f"held by {lock.held_by}, which was stopped beyond its ttl",
                f"{lock.paused:g} s",
                str(lock.tokens[0]),
            ),
            (f"waited for and taken over by {lock.taken_by}", f"{lock.waited:g} s", str(lock.tokens[1])),
            (f"late commit of {lock.held_by}", f"refused: {lock.refused}", str(lock.tokens[0])),
            ("what is there now was written by", lock.written_by, str(lock.tokens[1])),
        )
        found.append(Table("The lock on the data set", ("what happened", "", "token"), rows, texts=2))
    if team.lineage:
        steps = tuple(
            ("· " * step.depth + step.key, step.principal, step.rows, f"{step.version:,}")
            for step in team.lineage
        )
        title = f"Where a figure comes from: {team.figure}"
        found.append(Table(title, ("entry", "written by", "source rows", "version"), steps, texts=3))
    return found


def plain_text(report: WeeklyReport, team: TeamStats | None, summary: str) -> str:
    """The whole report as text without colour; ends with a line end."""
    blocks = [headline(report), printable(summary)]
    blocks += ["\n".join(_plain_table(table)) for table in tables(report, team)]
    return "\n\n".join(blocks) + "\n"


def headline(report: WeeklyReport) -> str:
    """The first line: `Weekly report: orders.csv, 2011-W05 to 2011-W07`."""
    weeks = report.weeks
    if not weeks:
        span = "no weeks"
    else:
        span = weeks[0].name if len(weeks) == 1 else f"{weeks[0].name} to {weeks[-1].name}"
    return f"Weekly report: {printable(report.source)}, {span}"


def print_report(report: WeeklyReport, team: TeamStats | None, summary: str, stream: TextIO) -> None:
    """Write the report: with rich where the stream is a terminal and rich is installed, plainly elsewhere.

    Raises:
        OSError: The stream cannot be written.
    """
    if not (stream.isatty() and _print_rich(report, team, summary, stream)):
        text, encoding = plain_text(report, team, summary), stream.encoding or "utf-8"
        # A country's name must not end the demo on a terminal that cannot show it.
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


def printable(value: str) -> str:
    """Text that cannot steer a terminal: control characters become question marks."""
    return _CONTROL.sub("?", value)


def _row(row: Row) -> tuple[str, ...]:
    return (row.name or "(none)", *_cells(row.figures))


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        f"{figures.lines:,}",
        money.show_units(figures.units),
        money.show(figures.gross),
        money.show(figures.cancelled),
        money.show(figures.net),
        money.show_percent(figures.cancelled_share),
    )


def _plain_table(table: Table) -> Iterable[str]:
    body = [tuple(printable(cell) for cell in row) for row in table.rows]
    foot = [] if table.foot is None else [table.foot]
    widths = [max(len(cell) for cell in column) for column in zip(table.columns, *body, *foot, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    yield printable(table.title)
    yield _plain_row(table.columns, widths, table.texts)
    yield rule
    yield from (_plain_row(row, widths, table.texts) for row in body)
    if table.foot is not None:
        yield rule
        yield _plain_row(table.foot, widths, table.texts)


def _plain_row(cells: Sequence[str], widths: Sequence[int], texts: int) -> str:
    padded = [
        cell.ljust(width) if place < texts else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _print_rich(report: WeeklyReport, team: TeamStats | None, summary: str, stream: TextIO) -> bool:
    """False where rich is not installed. Texts go in as `Text`, which knows no markup."""
    try:
        from rich.console import Console  # noqa: PLC0415  # only a terminal needs it
        from rich.table import Table as RichTable  # noqa: PLC0415  # same
        from rich.text import Text  # noqa: PLC0415  # same
    except ImportError:
        return False
    console = Console(file=stream)
    console.print(Text(headline(report), style="bold"))
    console.print(Text(printable(summary)))
    for table in tables(report, team):
        title = Text(printable(table.title), style="bold")
        drawn = RichTable(title=title, title_justify="left", show_footer=table.foot is not None)
        for place, column in enumerate(table.columns):
            footer = "" if table.foot is None else table.foot[place]
            drawn.add_column(Text(column), footer, justify="left" if place < table.texts else "right")
        for row in table.rows:
            drawn.add_row(*(Text(printable(cell)) for cell in row))
        console.print()
        console.print(drawn)
    return True
