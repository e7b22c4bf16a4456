"""`make bench`: measures, prints a table of ratios and writes JSON. Exits 0 unless something breaks."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console

from tests.bench import figures, figures_growth, figures_locks, figures_watch
from tests.bench.report import Figure, machine_facts, print_table, write_json
from tests.bench.settings import Settings

_FIGURES: dict[str, Callable[[Settings], Iterable[Figure]]] = {
    "get": figures.get,
    "commit": figures.commit,
    "commit64": figures.commit64,
    "pg_commit": figures.pg_commit,
    "fanout": figures_watch.fanout,
    "watch_latency": figures_watch.watch_latency,
    "idle_rss": figures.idle_rss,
    "lock_pairs": figures_locks.lock_pairs,
    "lock_handover": figures_locks.lock_handover,
    "locks": figures_locks.lock_server_mode,
    "growth": figures_growth.growth,
}
_QUICK_SECONDS, _QUICK_ROUNDS = 1.0, 3


def measure(names: Sequence[str], settings: Settings, progress: Console) -> tuple[list[Figure], bool]:
    """Measure figures one after the other; one that breaks does not stop the others. Tells whether any broke."""
    found: list[Figure] = []
    broke = False
    for name in names:
        progress.print(f"measuring {name} ...", highlight=False)
        try:
            found.extend(_FIGURES[name](settings))
        except Exception as error:  # noqa: BLE001 -- reported in its line of the table and by the exit code
            traceback.print_exc()
            found.append(Figure(name, "", skipped=f"broke: {_first_line(error)}"))
            broke = True
    return found, broke


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:100]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = _options(arguments)
    usual = Settings(_QUICK_SECONDS, _QUICK_ROUNDS, quick=True) if options.quick else Settings()
    settings = dataclasses.replace(
        usual, seconds=options.seconds or usual.seconds, rounds=options.rounds or usual.rounds
    )
    names = list(dict.fromkeys(options.only)) or list(_FIGURES)
    progress = Console(stderr=True)
    if options.profile:
        names = [options.profile]
        settings = dataclasses.replace(settings, profiler=options.profiler)
    machine = machine_facts()
    report = settings.profile_folder / f"{options.profile}.txt"
    report.unlink(missing_ok=True)
    found, broke = measure(names, settings, progress)
    if options.profile:
        print(report.read_text() if report.exists() else "the server left no profile")
    else:
        print_table(found)
        shown = dataclasses.asdict(settings) | {"profile_folder": str(settings.profile_folder)}
        write_json(found, machine, shown, options.json)
        progress.print(f"written to {options.json}", highlight=False)
    return 1 if broke else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    choices = sorted(_FIGURES)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=choices,
        help="measure this figure only; may be repeated",
    )
    parser.add_argument("--seconds", type=float, help="of one measurement (default 3, with --quick 1)")
    parser.add_argument("--rounds", type=int, help="measurements of each side (default 5, with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="smaller boards, fewer watchers, shorter")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the JSON goes")
    parser.add_argument(
        "--profile", choices=choices, help="run our server under a profiler; prints where time goes"
    )
    parser.add_argument(
        "--profiler",
        choices=("sample", "calls"),
        default="sample",
        help="sample: looks at the stacks; calls: cProfile of the event loop",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
