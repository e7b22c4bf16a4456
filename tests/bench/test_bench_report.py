"""The table and the JSON of the bench, on made-up figures."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.load import Outcome, percentile
from tests.bench.measure import Sample, side_by_side
from tests.bench.report import Figure, Quantity, Target, machine_facts, plain_table, print_table, write_json

MET = Figure(
    "get",
    "one key",
    Quantity(7_100.4, "/s"),
    Quantity(10_000, "/s"),
    (0.69, 0.71, 0.74),
    Target(0.7),
    notes={"cpu": "a sentence", "p50 ms": 1.25},
)
MISSED = Figure("commit", "one put", Quantity(400, "/s"), Quantity(1_000, "/s"), (0.4,), Target(0.5))
MEMORY = Figure("idle_rss", "idle", Quantity(83.25, "MiB"), target=Target(120, at_most=True))
SKIPPED = Figure("pg_commit", "", target=Target(0.5), skipped="PostgreSQL is not here")


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    """One noisy round does not decide."""
    assert MET.ratio == 0.71
    assert MET.met is True
    assert MISSED.met is False


def test_a_figure_without_a_yardstick_is_judged_by_itself() -> None:
    """Memory has a bound and nothing to be compared with."""
    assert MEMORY.ratio is None
    assert MEMORY.met is True


def test_a_skipped_figure_is_neither_met_nor_missed() -> None:
    """What was not measured says nothing, and the table says why."""
    assert SKIPPED.met is None
    assert "skipped: PostgreSQL is not here" in SKIPPED.cells()[1]


def test_the_plain_table_is_aligned() -> None:
    """Every line is as long as every other, so that a log shows columns."""
    lines = plain_table([MET, MISSED, MEMORY, SKIPPED]).splitlines()
    assert len(lines) == 6
    assert len({len(line) for line in lines}) == 1
    assert "7,100 /s" in lines[2]
    assert "0.71" in lines[2]
    assert "0.69-0.74" in lines[2]
    assert lines[3].rstrip(" |").endswith("NO")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_the_table_is_printed_with_its_notes(terminal: bool) -> None:
    """The same content, whether a person or a log reads it."""
    out = io.StringIO()
    print_table([MET, MISSED], Console(file=out, force_terminal=terminal, width=140))
    text = out.getvalue()
    assert "get: cpu a sentence, p50 ms 1.25" in text
    assert "NO" in text
    assert ("against its yardsticks" in text) is terminal  # the title of the table for people


def test_the_json_holds_every_round_and_the_machine(tmp_path: Path) -> None:
    """Somebody else can judge the spread, and compare machines."""
    path = tmp_path / "new" / "bench.json"
    write_json([MET, SKIPPED], machine_facts(), {"seconds": 1.0}, path)
    document = json.loads(path.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["versions"]["grpcio"]
    assert document["figures"][0]["ratios"] == [0.69, 0.71, 0.74]
    assert document["figures"][0]["ratio"] == 0.71
    assert document["figures"][0]["met"] is True
    assert document["figures"][1]["skipped"] == "PostgreSQL is not here"


def test_percentiles_are_of_the_nearest_rank() -> None:
    """A percentile is a latency that occurred."""
    ordered = [float(number) for number in range(1, 101)]
    assert percentile(ordered, 0.5) == 50
    assert percentile(ordered, 0.99) == 99
    assert percentile([3.0], 0.99) == 3
    assert math.isnan(percentile([], 0.5))
    assert Outcome(100, 4.0, tuple(ordered)).rate == 25


def test_sides_take_turns() -> None:
    """A drift of the machine falls on both sides; the first round is thrown away."""
    order: list[str] = []

    def side(name: str, rate: float) -> Sample:
        order.append(name)
        return Sample(rate)

    pair = side_by_side(lambda mark: side("A" + mark, 1.0), lambda mark: side("B" + mark, 2.0), 3)
    assert order == ["Aw", "Bw", "A0", "B0", "B1", "A1", "A2", "B2"]
    assert pair.ratios() == (0.5, 0.5, 0.5)
