"""What a board costs as it grows: reads, commits, start-up and memory on a small and a large one, side by side."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.load import GetLoad, Job, LoadProcess, Outcome, Preload, ReplaceLoad, entry_key
from tests.bench.measure import Sample, loaded, median, side_by_side
from tests.bench.processes import SlateboardServer, Target, rss_bytes, scratch
from tests.bench.report import Figure, Quantity
from tests.bench.report import Target as Bound
from tests.bench.settings import VALUE, Settings

_IN_FLIGHT = 4
"""Few, so that the median is the cost of a call and not of a queue."""
_WORKING_SET = 1_000
_ONCE = 400
"""Keys of one round that are read, or replaced, for the first time."""
_STARTS = 3
_WITHIN = Bound(1.3, at_most=True)


class _Board:
    """A running server with one filled board, and keys of it that nobody has touched yet."""

    def __init__(self, server: SlateboardServer, target: Target, entries: int) -> None:
        self.server = server
        self.target = target
        self.entries = entries
        self._order = random.Random(1).sample(range(entries), min(entries, 10_000))

    def untouched(self, count: int) -> tuple[str, ...]:
        """Return keys that no call has returned before."""
        taken, self._order = self._order[:count], self._order[count:]
        assert len(taken) == count, "more rounds than the small board has keys"
        return tuple(entry_key(number) for number in taken)


class _Boards:
    """A large and a small board, to be compared."""

    def __init__(self, load: LoadProcess, large: _Board, small: _Board, rounds: int) -> None:
        self._load = load
        self._large = large
        self._small = small
        self._rounds = rounds

    def compare(self, name: str, what: str, job: Callable[[_Board], Job[Outcome]]) -> Figure:
        """Compare the median latencies of the same load on both."""
        pair = side_by_side(
            loaded(self._load, self._large.target, lambda _: job(self._large)),
            loaded(self._load, self._small.target, lambda _: job(self._small)),
            self._rounds,
        )
        return Figure(
            name,
            f"{what}, median, board of {self._large.entries:,} against {self._small.entries:,} entries",
            Quantity(1e3 * median(pair.ours, _p50), "ms"),
            Quantity(1e3 * median(pair.yardstick, _p50), "ms"),
            pair.ratios(_p50),
            _WITHIN,
            notes={"cpu": pair.cpu_note()},
        )


def _p50(sample: Sample) -> float:
    return sample.p50


def growth(settings: Settings) -> Iterator[Figure]:
    """Compare a board of 10,000 entries with one of 1,000,000 (`--quick`: 100,000)."""
    small, large = settings.board_sizes
    # Twice `_ONCE` fresh keys a round, and the warm-up: more rounds than this would run out of keys on the small board.
    rounds = min(settings.rounds, (small - _WORKING_SET) // (2 * _ONCE) - 1)
    with scratch() as folder, LoadProcess() as load:
        preload = [_fill(load, folder / str(entries), entries) for entries in (small, large)]
        yield _start_up(folder, small, large)
        with _running(folder, small) as small_board, _running(folder, large) as large_board:
            idle = [rss_bytes(board.server.pid) for board in (small_board, large_board)]
            boards = _Boards(load, large_board, small_board, rounds)
            warm = {board.entries: board.untouched(_WORKING_SET) for board in (small_board, large_board)}
            yield boards.compare(
                "growth_get",
                f"Get within a working set of {_WORKING_SET:,} keys",
                lambda board: GetLoad(
                    board.target, warm[board.entries], _IN_FLIGHT, settings.seconds / 2, len(VALUE)
                ),
            )
            yield boards.compare(
                "growth_get_cold",
                "Get of keys that are in no cache",
                lambda board: GetLoad(
                    board.target, board.untouched(_ONCE), _IN_FLIGHT, math.inf, len(VALUE), each_once=True
                ),
            )
            yield boards.compare(
                "growth_commit",
                "Commit of one put over a random key",
                lambda board: ReplaceLoad(board.target, board.untouched(_ONCE), _IN_FLIGHT, VALUE),
            )
            used = [rss_bytes(board.server.pid) for board in (small_board, large_board)]
    yield Figure(
        "growth_rss",
        f"resident memory after the start, board of {large:,} against {small:,} entries",
        Quantity(idle[1] / 2**20, "MiB"),
        Quantity(idle[0] / 2**20, "MiB"),
        (idle[1] / idle[0],),
        _WITHIN,
        notes={
            "MiB after the same reads and commits": f"{used[1] / 2**20:.0f} against {used[0] / 2**20:.0f}",
            "preload entries/s": f"{large / preload[1]:,.0f}",
        },
    )


def _fill(load: LoadProcess, data: Path, entries: int) -> float:
    with SlateboardServer(data) as server:
        return load.run(Preload(server.create_board(), entries, VALUE))


@contextmanager
def _running(folder: Path, entries: int) -> Iterator[_Board]:
    with SlateboardServer(folder / str(entries)) as server:
        yield _Board(server, server.target(), entries)


def _start_up(folder: Path, small: int, large: int) -> Figure:
    times: dict[int, list[float]] = {small: [], large: []}
    for _ in range(_STARTS):
        for entries, seconds in times.items():
            with SlateboardServer(folder / str(entries)) as server:
                seconds.append(server.start_seconds)
    return Figure(
        "growth_start",
        f"start-up, board of {large:,} against {small:,} entries",
        Quantity(statistics.median(times[large]), "s"),
        Quantity(statistics.median(times[small]), "s"),
        tuple(big / little for big, little in zip(times[large], times[small], strict=True)),
        _WITHIN,
    )
