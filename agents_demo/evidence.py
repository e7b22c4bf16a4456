"""What the board did for the team, asked from the board itself once the work is done."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from agents_demo import board_keys, cleaning, money, orders
from agents_demo.aggregate import Aggregate, Cell
from agents_demo.board_keys import Claim
from agents_demo.report import LineageStep, LockStory, TakeOver, TeamStats
from agents_demo.rows import RowRange
from agents_demo.story import short, task_said
from agents_demo.supervisor import Outcome
from slateboard import Board, Entry, Lineage

_DEPTH: Final = 8
_ROWS_NAMED: Final = 6


class EvidenceError(Exception):
    """What the team says of itself and what the board recorded are not the same."""


def gather(board: Board, path: Path, outcome: Outcome, workers: int, lock: LockStory) -> TeamStats:
    """Commits, conflicts, take-overs, and the lineage of one figure.

    Raises:
        EvidenceError: The board's record contradicts what the workers said.
        slateboard.SlateError: The board cannot be read.
    """
    claims = list(board.list(board_keys.CLAIMS))
    refused = list(board.conflicts())
    on_report = sum(
        any(violation.key == board_keys.REPORT and not violation.guard for violation in conflict.violations)
        for conflict in refused
    )
    merged = sum(Claim.from_json(entry.value).merged for entry in claims)
    if merged > on_report:
        raise EvidenceError(
            f"the workers say they merged {merged} conflicts on {board_keys.REPORT}; the board knows of {on_report}"
        )
    figure, lineage = _lineage(board, path, outcome)
    return TeamStats(
        workers=workers,
        commits=sum(1 for _ in board.commits()),
        conflicts_met=len(refused),
        conflicts_merged=merged,
        takeovers=tuple(_take_overs(board, claims)),
        figure=figure,
        lineage=tuple(lineage),
        lock=lock,
    )


def _take_overs(board: Board, claims: Sequence[Entry]) -> Iterator[TakeOver]:
    """Claims that changed hands, by their history."""
    for entry in claims:
        if not Claim.from_json(entry.value).taken_from:
            continue
        versions = [version for version in board.history(entry.key) if version.present]
        holders = [Claim.from_json(version.value).worker for version in reversed(versions)]
        task = task_said(entry.key.removeprefix(board_keys.CLAIMS))
        for left, taken in itertools.pairwise(holders):
            if left != taken:
                yield TakeOver(task, left, taken)


def _lineage(board: Board, path: Path, outcome: Outcome) -> tuple[str, list[LineageStep]]:
    """One figure, and the way from the final report down to the rows of the file that make it."""
    chosen = _small_figure(outcome.parts)
    if chosen is None:
        return "", []
    cell, parts = chosen
    known = {board_keys.partial_key(rows): _rows_of(path, board, rows, cell, part) for rows, part in parts}
    net = money.total(part.cells[cell].net for _, part in parts)
    steps = list(_descend(board.trace(board_keys.FINAL, max_depth=_DEPTH), known, outcome.report.lines))
    return f"net revenue of {cell.country} in {cell.week}, {money.show(net)}", steps


def _small_figure(
    parts: Sequence[tuple[RowRange, Aggregate]],
) -> tuple[Cell, list[tuple[RowRange, Aggregate]]] | None:
    """The figure with the shortest story: from the fewest ranges, of the fewest lines but not of one, and earned."""
    where: dict[Cell, list[tuple[RowRange, Aggregate]]] = {}
    for rows, part in parts:
        for cell in part.cells:
            where.setdefault(cell, []).append((rows, part))

    def length(cell: Cell) -> tuple[int, bool, bool, int, Cell]:
        lines = sum(part.cells[cell].lines for _, part in where[cell])
        net = money.total(part.cells[cell].net for _, part in where[cell])
        return len(where[cell]), net <= 0, lines < 2, lines, cell

    best = min(where, key=length, default=None)
    return None if best is None else (best, where[best])


def _rows_of(path: Path, board: Board, rows: RowRange, cell: Cell, part: Aggregate) -> list[int]:
    """The rows of the file that make a figure, checked against it.

    Raises:
        EvidenceError: They add up to something else.
    """
    dropped = {copy.dropped for copy in cleaning.duplicates_from_json(board.get(board_keys.DUPLICATES).value)}
    lines = cleaning.without_duplicates(orders.read_orders(path, rows), dropped)
    found = [line for line in lines if Cell(line.week, line.country) == cell]
    if money.total(line.amount for line in found) != part.cells[cell].net:
        raise EvidenceError(f"the rows of {cell.week}, {cell.country} do not add up to its figure")
    return cleaning.rows_of(found)


def _descend(graph: Lineage, known: Mapping[str, Sequence[int]], lines: int) -> Iterator[LineageStep]:
    """The graph from its root, depth first, each entry once, without the parts of the report that are about others."""
    nodes = {node.id: node for node in graph.nodes}
    sources: dict[int, list[int]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.derived, []).append(edge.source)
    seen: set[int] = set()
    stack = [(node.id, 0) for node in graph.nodes if node.depth == 0]
    while stack:
        at, depth = stack.pop()
        entry = nodes[at].entry
        if at in seen or entry is None or not _belongs(entry, depth, known):
            continue
        seen.add(at)
        rows = board_keys.rows_said(entry.key, lines)
        if entry.key in known:
            rows = f"{rows}; the figure: {_named(known[entry.key])}"
        yield LineageStep(depth, entry.key, entry.version, short(entry.provenance.principal), rows)
        below = [(source, depth + 1) for source in sources.get(at, ())]
        stack += sorted(below, key=lambda item: _key(nodes[item[0]].entry), reverse=True)


def _belongs(entry: Entry, depth: int, known: Mapping[str, Sequence[int]]) -> bool:
    if entry.key.startswith("partial/"):
        return entry.key in known
    # The report's earlier versions hold less of the same.
    return entry.key != board_keys.REPORT or depth <= 1


def _key(entry: Entry | None) -> str:
    return "" if entry is None else entry.key


def _named(rows: Sequence[int]) -> str:
    shown = ", ".join(f"{row:,}" for row in rows[:_ROWS_NAMED])
    more = len(rows) - _ROWS_NAMED
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{f' and {more:,} more' if more > 0 else ''}"
