import csv
import gzip
import io
import json
from collections import defaultdict
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

import slateboard
from agents_demo import orders
from tests.demo.running import Run
from tests.fix_server import Server

_SUMS = ("gross", "cancelled")


def _plain(path: Path) -> dict[tuple[str, str], list[Decimal]]:
    """Lines, gross and cancelled by week and country, in one pass, without any code of the demo's."""
    text = gzip.decompress(path.read_bytes()).decode()
    rows = dict.fromkeys(tuple(row.items()) for row in csv.DictReader(io.StringIO(text, newline="")))
    cells: dict[tuple[str, str], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    for row in map(dict, rows):
        week = date.fromisoformat(row["InvoiceDate"][:10]).strftime("%G-W%V")
        cell = cells[week, row["Country"]]
        cell[0] += 1
        cell[2 if row["InvoiceNo"].startswith("C") else 1] += Decimal(row["Quantity"]) * Decimal(
            row["UnitPrice"]
        )
    return dict(cells)


@pytest.mark.slow
def test_every_figure_is_right_and_leads_back_to_all_rows(tmp_path: Path, server: Server) -> None:
    """Five workers; what the board holds afterwards, not only what is printed."""
    run = Run(
        tmp_path,
        "--workers",
        "5",
        "--json",
        "--server",
        server.address,
        env={"SLATE_TOKEN": server.operator_token},
    )
    assert run.finish() == 0, run.out + run.err
    told = json.loads(run.out)
    with slateboard.connect(server.address, token=server.operator_token) as client:
        board = client.board(told["board"])
        weeks = board.get("report/final").value["report"]["weeks"]
        found = {
            (week, country): [Decimal(cell["lines"]), *(Decimal(cell[name]) for name in _SUMS)]
            for week, countries in weeks.items()
            for country, cell in countries.items()
        }
        assert found == _plain(orders.BUNDLED)

        keys = {node.entry.key for node in board.trace("report/final").nodes if node.entry is not None}
        for room in ("partial/", "dataset/cancellations/"):
            spans = sorted(
                tuple(map(int, key.removeprefix(room).split("-"))) for key in keys if key.startswith(room)
            )
            assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
            assert spans[-1][1] == 12_220
        assert {"report/weekly", "dataset/duplicates/all", "plan/current", "goal"} <= keys
        merged = [entry.value["merged"] for entry in board.list("claims/aggregate/")]
        assert sum(merged) == told["team"]["conflicts_merged"] >= 1
