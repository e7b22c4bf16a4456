"""Runs the demo as a process, computes its figures in a second way, and finds processes it has left behind."""

import csv
import gzip
import io
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"
_MARK = "DEMO_TEST_MARK"


class Run:
    """One run of the demo in a directory of its own; what it starts can be told by a mark in the environment."""

    def __init__(self, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self._mark = uuid.uuid4().hex
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLATE_", "OPENAI_"))
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agents_demo", *options],
            cwd=folder,
            # Scratch space inside the folder: a run that is killed cannot tidy up after itself.
            env={**kept, _MARK: self._mark, "TMPDIR": str(folder), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self.out = self.err = ""

    def finish(self, timeout: float = 50.0) -> int:
        """Wait for the end; returns the exit code."""
        try:
            self.out, self.err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"the demo hung:\n{self.out}\n{self.err}") from None
        return self.process.returncode

    def read_until(self, words: str) -> None:
        """Read what it prints until a line has these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"the demo ended before it said {words!r}")

    def others(self) -> list[int]:
        """Processes it has started and that are still there."""
        mark = f"{_MARK}={self._mark}".encode()
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marked and int(folder.name) != self.process.pid:
                found.append(int(folder.name))
        return found

    def gone(self, timeout: float) -> bool:
        """Whether all that it has started is gone within `timeout` seconds."""
        until = time.monotonic() + timeout
        while self.others() and time.monotonic() < until:
            time.sleep(0.05)  # the ends of processes that are not our children send no event
        return not self.others()


def closing(path: Path) -> str:
    """The demo's last line up to the conflicts, from one pass over the file: csv and Decimal, none of the demo's own code."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    unique = [dict(row) for row in dict.fromkeys(tuple(row.items()) for row in rows)]
    weeks = {date.fromisoformat(row["InvoiceDate"][:10]).strftime("%G-W%V") for row in unique}
    net = sum((Decimal(row["Quantity"]) * Decimal(row["UnitPrice"]) for row in unique), Decimal(0))
    cancelled = sum(row["InvoiceNo"].startswith("C") for row in unique)
    return (
        f"demo ok: lines={len(rows)} duplicates={len(rows) - len(unique)} cancellations={cancelled} "
        f"weeks={len(weeks)} net_revenue={net.quantize(Decimal('0.01'), ROUND_HALF_UP)} conflicts_merged="
    )


def write_orders(path: Path, rows: Sequence[str]) -> Path:
    """A file of order lines under the header."""
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path


def small_orders(path: Path) -> Path:
    """Forty lines over a turn of the year, with copies far apart and cancellations of its own, a copied one among them."""
    rows = [
        f'{"C" if number % 7 == 3 else ""}{600 + number // 3},S{number % 5},"Lamp, {number}",'
        f"{-1 if number % 7 == 3 else number % 4 + 1},{2010 + number // 20}-{'12-30' if number < 20 else '01-04'} "
        f"1{number % 10}:00:00,{number % 6}.255,{number or ''},{('Japan', 'EIRE', 'France')[number % 3]}"
        for number in range(36)
    ]
    return write_orders(path, [*rows, rows[0], rows[3], rows[3], rows[20]])
