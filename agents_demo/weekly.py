"""What the report says, before anybody decides how it looks: figures by week and country, and the closing line."""

from __future__ import annotations

from dataclasses import dataclass

from agents_demo import money
from agents_demo.aggregate import Aggregate, Figures, by_country, by_week


@dataclass(frozen=True, slots=True)
class Row:
    """Figures under a name: a week or a country."""

    name: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class WeeklyReport:
    """The figures of a whole file."""

    source: str
    """What the file is called; for people."""
    lines: int
    """Order lines in the file, duplicates included."""
    duplicates: int
    """Exact copies left out."""
    total: Figures
    weeks: tuple[Row, ...]
    """By ISO week, in order; weeks without lines are left out."""
    countries: tuple[Row, ...]
    """By net revenue, the highest first; equal ones by name."""

    @property
    def cancellations(self) -> int:
        """Lines on cancellation invoices, duplicates left out."""
        return self.total.cancelled_lines


def weekly_report(whole: Aggregate, *, source: str, lines: int) -> WeeklyReport:
    """The report of a file that has been aggregated completely.

    Args:
        whole: All parts merged.
        source: What the file is called.
        lines: How many rows the file has.

    Raises:
        ValueError: Parts of the file are missing, or there are parts beyond its end.
    """
    if whole.rows != lines or any(part.stop > lines for part in whole.parts):
        raise ValueError(f"the parts cover {whole.rows} rows, the file has {lines}")
    countries = sorted(by_country(whole).items(), key=lambda item: (-item[1].net, item[0]))
    return WeeklyReport(
        source=source,
        lines=lines,
        duplicates=whole.duplicates,
        total=whole.total,
        weeks=tuple(Row(name, figures) for name, figures in by_week(whole).items()),
        countries=tuple(Row(name, figures) for name, figures in countries),
    )


def closing_line(report: WeeklyReport, conflicts_merged: int) -> str:
    """The last line the demo prints: its proof, in one line that a script can read."""
    return (
        f"demo ok: lines={report.lines} duplicates={report.duplicates} "
        f"cancellations={report.cancellations} weeks={len(report.weeks)} "
        f"net_revenue={money.cents(report.total.net)} conflicts_merged={conflicts_merged}"
    )
