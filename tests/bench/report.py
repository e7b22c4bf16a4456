"""What a run found: figures against their targets, as a table for people and as JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_PACKAGES = ("grpcio", "protobuf", "uvloop", "SQLAlchemy", "psycopg", "slateboard")
_HEADINGS = ("figure", "ours", "yardstick", "ratio", "spread", "target", "met")


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a ratio (or, where there is no yardstick, on our own number)."""

    bound: float
    at_most: bool = False

    def met_by(self, value: float) -> bool:
        """Tell whether a value keeps the bound."""
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        """Write it as in the requirements."""
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit."""

    value: float
    unit: str

    def __str__(self) -> str:
        """Write it with as many digits as a measurement deserves."""
        digits = 0 if abs(self.value) >= 100 else 1 if abs(self.value) >= 10 else 2
        return f"{self.value:,.{digits}f} {self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    `ratios` are those of the single rounds, each made of measurements taken one after the other; `ratio` is their
    median. Where there is no yardstick the target speaks of `ours`. `skipped` says why there is no measurement.
    """

    name: str
    what: str
    ours: Quantity | None = None
    yardstick: Quantity | None = None
    ratios: tuple[float, ...] = ()
    target: Target | None = None
    skipped: str = ""
    notes: dict[str, float | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The median of the rounds; None where there is no yardstick."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where it was not measured or has no target."""
        if self.target is None or self.ours is None:
            return None
        ratio = self.ratio
        return self.target.met_by(self.ours.value if ratio is None else ratio)

    def as_json(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its line in the table."""
        if self.skipped:
            return (self.name, f"skipped: {self.skipped}", "", "", "", str(self.target or ""), "")
        ratio = self.ratio
        spread = f"{min(self.ratios):.2f}-{max(self.ratios):.2f}" if len(self.ratios) > 1 else ""
        return (
            self.name,
            str(self.ours or ""),
            str(self.yardstick or ""),
            "" if ratio is None else f"{ratio:.2f}",
            spread,
            str(self.target or ""),
            {True: "yes", False: "NO", None: ""}[self.met],
        )


def machine_facts() -> dict[str, Any]:
    """Return what somebody needs to know to compare two files: machine, versions, how busy it was."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def print_table(figures: Sequence[Figure], console: Console | None = None) -> None:
    """Print the table: with rich on a terminal, else as plain aligned text; notes below it."""
    console = console or Console()
    if console.is_terminal:
        _print_rich(figures, console)
    else:
        console.file.write(plain_table(figures))
    for figure in figures:
        if figure.notes:
            notes = ", ".join(f"{name} {_note(value)}" for name, value in figure.notes.items())
            console.print(f"{figure.name}: {notes}", highlight=False, markup=False, soft_wrap=True)


def _print_rich(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title="Slateboard against its yardsticks")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for figure in figures:
        style = {True: "green", False: "bold red", None: ""}[figure.met]
        cells = figure.cells()
        table.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/{style}]" if style else cells[-1])
    console.print(table)


def plain_table(figures: Sequence[Figure]) -> str:
    """Return the table as aligned text, which is also valid Markdown."""
    rows = [_HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def _note(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def write_json(
    figures: Sequence[Figure], machine: dict[str, Any], options: dict[str, Any], path: Path
) -> None:
    """Write all rounds of all figures."""
    document = {
        "machine": machine,
        "load_average_at_end": [round(load, 2) for load in os.getloadavg()],
        "options": options,
        "command": ["python", "-m", "tests.bench", *sys.argv[1:]],
        "figures": [figure.as_json() for figure in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
