"""The figures of watching: deliveries of one commit to many, and how long after a commit its watchers have it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench import yardsticks
from tests.bench.figures import rate_figure
from tests.bench.load import LoadProcess, percentile
from tests.bench.load_watch import CaptureWatch, FanOutLoad, WatchLatencyLoad, WatchLatencyOutcome
from tests.bench.measure import loaded, side_by_side
from tests.bench.processes import Child
from tests.bench.report import Figure, Quantity, Target
from tests.bench.settings import VALUE, Settings, our_server

_WATCHERS = 500
_CONNECTIONS = 20
"""The watchers share them evenly."""
_LATENCY_RATE = 200.0
"""Commits a second: well below what the machine can do, so that neither side is a queue that grows."""
_LATENCY_WATCHERS = 10


def fanout(settings: Settings) -> Iterator[Figure]:
    """One commit at a time to 500 watchers, against a bare fan-out of the very messages."""
    watchers = 50 if settings.quick else _WATCHERS
    with our_server(settings, "fanout") as server, LoadProcess() as load:
        ours = server.create_board()
        first, message = load.run(CaptureWatch(ours, "captured", VALUE))
        with Child(yardsticks.fan_out, first, message) as bare:
            pair = side_by_side(
                loaded(
                    load,
                    ours,
                    lambda mark: FanOutLoad(ours, mark, watchers, _CONNECTIONS, settings.seconds, VALUE),
                ),
                loaded(
                    load,
                    bare.target,
                    lambda mark: FanOutLoad(
                        bare.target, mark, watchers, _CONNECTIONS, settings.seconds, VALUE
                    ),
                ),
                settings.rounds,
            )
    yield rate_figure("fanout", f"one commit to {watchers} watchers", pair, "messages/s", 0.6)


def watch_latency(settings: Settings) -> Iterator[Figure]:
    """From a commit's start to its watchers, p99, against the p99 of the commits themselves."""
    with our_server(settings, "watch_latency") as server, LoadProcess() as load:
        ours = server.create_board()
        outcomes: list[WatchLatencyOutcome] = [
            load.run(
                WatchLatencyLoad(
                    ours, f"r{number}", _LATENCY_RATE, _LATENCY_WATCHERS, settings.seconds, VALUE
                )
            )
            for number in range(settings.rounds + 1)
        ][1:]
    commits = sorted(latency for outcome in outcomes for latency in outcome.commits)
    watches = sorted(latency for outcome in outcomes for latency in outcome.watches)
    yield Figure(
        "watch_latency",
        f"commit to watch, p99 ({_LATENCY_RATE:.0f} commits a second, {_LATENCY_WATCHERS} watchers)",
        Quantity(1e3 * percentile(watches, 0.99), "ms"),
        Quantity(1e3 * percentile(commits, 0.99), "ms"),
        tuple(percentile(outcome.watches, 0.99) / percentile(outcome.commits, 0.99) for outcome in outcomes),
        Target(3.0, at_most=True),
        notes={
            "commit p50 ms": 1e3 * percentile(commits, 0.5),
            "commit to watch p50 ms": 1e3 * percentile(watches, 0.5),
        },
    )
