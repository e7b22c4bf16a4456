"""The bundled data: the team's pure steps against a computation that shares no code with them."""

import csv
import gzip
import hashlib
import io
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from agents_demo import cleaning, orders
from agents_demo.aggregate import Aggregate, aggregate, by_country, by_week, merge_all
from agents_demo.rows import split
from agents_demo.weekly import closing_line, weekly_report

LAST_LINE = (
    "demo ok: lines=12220 duplicates=79 cancellations=286 weeks=3 net_revenue=235481.80 conflicts_merged="
)


class _Plain:
    """One process, one pass, the csv module and Decimal: nothing of the demo's own code but the file's place."""

    def __init__(self) -> None:
        text = gzip.decompress(orders.BUNDLED.read_bytes()).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        unique = list(dict.fromkeys(tuple(row.items()) for row in rows))
        self.lines = len(rows)
        self.duplicates = len(rows) - len(unique)
        self.cancellations = 0
        self.net = Decimal(0)
        self.weeks: dict[str, Decimal] = defaultdict(Decimal)
        self.countries: dict[str, Decimal] = defaultdict(Decimal)
        for row in map(dict, unique):
            amount = Decimal(row["Quantity"]) * Decimal(row["UnitPrice"])
            when = datetime.strptime(row["InvoiceDate"], "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007  # naive in the file
            self.cancellations += row["InvoiceNo"][0] == "C"
            self.net += amount
            self.weeks[when.strftime("%G-W%V")] += amount
            self.countries[row["Country"]] += amount


def _team(workers: int, parts: int) -> Aggregate:
    """The steps of the team, one after the other."""
    shares = [
        cleaning.find_duplicates(orders.read_raw(orders.BUNDLED), part=part, parts=workers)
        for part in range(workers)
    ]
    dropped = {duplicate.dropped for duplicate in cleaning.join_duplicates(shares)}
    ranges = split(orders.count_rows(orders.BUNDLED), parts)
    done = [aggregate(orders.read_orders(orders.BUNDLED, rows), rows, dropped) for rows in ranges]
    return merge_all(done[::-1])


@pytest.mark.parametrize(("workers", "parts"), [(1, 1), (4, 7)])
def test_the_team_gets_what_a_single_pass_gets(workers: int, parts: int) -> None:
    """By week, by country and in total, however the work is cut."""
    plain, whole = _Plain(), _team(workers, parts)
    assert whole.rows == plain.lines
    assert whole.duplicates == plain.duplicates
    assert whole.total.cancelled_lines == plain.cancellations
    assert whole.total.net == plain.net
    assert {week: figures.net for week, figures in by_week(whole).items()} == plain.weeks
    assert {country: figures.net for country, figures in by_country(whole).items()} == plain.countries


def test_the_closing_line_is_the_published_one() -> None:
    """Computed, to the penny."""
    report = weekly_report(_team(1, 5), source="orders", lines=12_220)
    assert closing_line(report, 4) == LAST_LINE + "4"


def test_a_report_of_half_a_file_is_refused() -> None:
    """A missing part must not look like a bad week."""
    with pytest.raises(ValueError, match="the file has 12220"):
        weekly_report(Aggregate(), source="x", lines=12_220)


def test_the_bundled_file_is_the_documented_one() -> None:
    """Its digest and citation stand beside it, and it was packed without name and time."""
    packed = orders.BUNDLED.read_bytes()
    readme = Path(orders.BUNDLED.with_name("README.md")).read_text(encoding="utf-8")
    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() in readme
    assert orders.content_digest(orders.BUNDLED) in readme
    assert "Online Retail, UCI Machine Learning Repository, 2015" in readme
    assert "CC BY 4.0" in readme
    assert packed[3:8] == bytes(5)
