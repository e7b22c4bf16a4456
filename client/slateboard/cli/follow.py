"""What goes on: `slate watch`, `slate top`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slateboard.cli import options, output, problems, state, text, values

if TYPE_CHECKING:
    from slateboard import Batch, Board, BoardInfo


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    options.command(slate)(watch)
    options.command(slate)(top)


def watch(
    prefix: Annotated[
        list[str] | None, typer.Argument(metavar="PREFIX", help="What is below it; default: all.")
    ] = None,
    after: Annotated[
        int | None, typer.Option(metavar="R", min=0, help="From revision R on; default: from now on.")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="First what is there, then what follows.")
    ] = False,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Leave after so many revisions.")
    ] = None,
) -> None:
    """Follow changes, in order, each once, over lost connections. With --json: a document a revision, one a line."""
    if after is not None and snapshot:
        raise problems.usage("give --after R or --snapshot, not both")
    from slateboard import SnapshotPage  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    prefixes = [values.prefix(one) for one in prefix or [""]]
    with (
        state.board() as (_, board),
        board.watch(prefixes, after=after, snapshot=snapshot, region=state.region()) as batches,
    ):
        seen = 0
        if after is None and not snapshot:
            output.err(f"watching {board.name!r} from revision {batches.revision} on")
        for batch in batches:
            if state.current().json:
                output.record(documents.batch(batch))
            else:
                _show_batch(batch)
            seen += not isinstance(batch, SnapshotPage)
            if count is not None and seen >= count:
                return


def _show_batch(batch: Batch) -> None:
    for entry in batch.entries:
        what = entry.tombstone.name.lower() if entry.tombstone else f"version {entry.version}"
        row = (
            entry.mod_revision,
            text.line(entry.key),
            what,
            text.line(batch.principal or entry.provenance.principal),
            values.preview(entry.raw, entry.content_type),
        )
        output.out("\t".join(str(cell) for cell in row))


@dataclass(frozen=True, slots=True)
class Sample:
    """What a board did during an interval."""

    info: BoardInfo
    commits: float
    """A second, as the rest."""
    conflicts: float
    replays: float


def top(
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Leave after N intervals.")] = None,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.1, max=3_600, help="Seconds between looks.")
    ] = 1.0,
) -> None:
    """Show live what a board does: commits and conflicts a second, watchers, hottest keys.

    With --json, and in a pipe: a JSON document an interval, one a line. The counters are those of the answering server.
    """
    with state.board(first_address=True) as (_, board):
        samples = itertools.islice(_samples(board, interval), count)
        if state.current().json or not output.on_terminal():
            for sample in samples:
                output.record(_sample_document(sample))
        else:
            _live(samples)


def _samples(
    board: Board,
    interval: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Sample]:
    before, began = board.info(), clock()
    while True:
        sleep(interval)
        info, now = board.info(), clock()
        yield _compare(before, info, max(now - began, 1e-6))
        before, began = info, now


def _compare(before: BoardInfo, info: BoardInfo, seconds: float) -> Sample:
    then, now = before.activity, info.activity
    if then is None or now is None:
        return Sample(info, 0.0, 0.0, 0.0)

    def rate(name: str) -> float:
        # A server that started again begins at nought.
        latest, grown = getattr(now, name), getattr(now, name) - getattr(then, name)
        return round(float(grown if grown >= 0 else latest) / seconds, 2)

    return Sample(info, rate("commits"), rate("conflicts"), rate("replays"))


def _sample_document(sample: Sample) -> dict[str, Any]:
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    info, active = sample.info, sample.info.activity
    return {
        "time": text.iso(datetime.now(UTC)),
        "board": info.name,
        "revision": info.revision,
        "entries": info.entries,
        "bytes": info.bytes,
        "commits_per_second": sample.commits,
        "conflicts_per_second": sample.conflicts,
        "replays_per_second": sample.replays,
        "watches": active.watches if active else 0,
        "queued_commits": active.queued_commits if active else 0,
        "hot_keys": documents.hot_keys(active) if active else [],
    }


def _live(samples: Iterator[Sample]) -> None:
    from rich.console import Console  # noqa: PLC0415 -- only terminals pay for rich
    from rich.live import Live  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    with Live(Text("..."), console=Console(highlight=False), auto_refresh=False) as live:
        for sample in samples:
            live.update(_screen(sample), refresh=True)


def _screen(sample: Sample) -> Any:
    from rich import box  # noqa: PLC0415 -- only terminals pay for rich
    from rich.console import Group  # noqa: PLC0415 -- as above
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    info, active = sample.info, sample.info.activity
    head = Text()
    head.append(f"{text.line(info.name)}  ", style="bold")
    head.append(f"revision {info.revision}  {info.entries} entries  {text.size(info.bytes)}\n")
    head.append(f"{sample.commits:.1f} commits/s  {sample.conflicts:.1f} conflicts/s  ")
    if active is not None:
        head.append(f"{active.watches} watchers  {active.queued_commits} queued")
    table = Table("hottest keys", "writes/min", "conflicts/min", box=box.SIMPLE_HEAD, pad_edge=False)
    for one in active.hot_keys[:15] if active else ():
        table.add_row(Text(text.line(one.key)), Text(str(one.writes)), Text(str(one.conflicts)))
    return Group(head, table)
