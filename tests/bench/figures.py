"""The figures of single calls: Get, Commit, commits of many ops, and what an idle server holds."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench import yardstick_postgres, yardsticks
from tests.bench.load import CommitLoad, GetLoad, LoadProcess, PutAndGet
from tests.bench.measure import Pair, Sample, loaded, median, side_by_side
from tests.bench.postgres import PostgresUnavailable, our_postgres_server, postgres_cluster
from tests.bench.processes import Child, receive, rss_bytes, scratch
from tests.bench.report import Figure, Quantity, Target
from tests.bench.settings import VALUE, Settings, our_server

_GET_IN_FLIGHT = 16
_COMMIT_IN_FLIGHT = 64
_BIG_COMMIT_OPS = 64
_BIG_COMMIT_IN_FLIGHT = 16
"""Enough that a batch gathers while the one before is written."""
_POSTGRES_IN_FLIGHT = 32


def rate_figure(name: str, what: str, pair: Pair, unit: str, bound: float, scale: float = 1.0) -> Figure:
    """Make a figure of two rates; `scale` turns calls into what `unit` counts."""
    return Figure(
        name,
        what,
        Quantity(scale * median(pair.ours, lambda sample: sample.rate), unit),
        Quantity(median(pair.yardstick, lambda sample: sample.rate), unit),
        pair.ratios(),
        Target(bound),
        notes={
            "ours p50/p99 ms": _latencies(pair.ours),
            "yardstick p50/p99 ms": _latencies(pair.yardstick),
            "cpu": pair.cpu_note(),
        },
    )


def _latencies(samples: tuple[Sample, ...]) -> str:
    p50, p99 = (1e3 * median(samples, value) for value in (lambda s: s.p50, lambda s: s.p99))
    return f"{p50:.2f}/{p99:.2f}"


def get(settings: Settings) -> Iterator[Figure]:
    """Get of one key, 200 bytes, LATEST, 16 in flight, against an echo of the very message."""
    with our_server(settings, "get") as server, LoadProcess() as load:
        ours = server.create_board()
        answer = load.run(PutAndGet(ours, "plan", VALUE))
        with Child(yardsticks.echo, answer) as echo:
            pair = side_by_side(
                loaded(
                    load,
                    ours,
                    lambda _: GetLoad(ours, ("plan/0",), _GET_IN_FLIGHT, settings.seconds, len(VALUE)),
                ),
                loaded(
                    load,
                    echo.target,
                    lambda _: GetLoad(echo.target, ("plan/0",), _GET_IN_FLIGHT, settings.seconds, len(VALUE)),
                ),
                settings.rounds,
            )
    yield rate_figure("get", "Get, one key, 200 bytes, LATEST, 16 in flight, embedded", pair, "/s", 0.7)


def commit(settings: Settings) -> Iterator[Figure]:
    """Commit of one put, 64 in flight, embedded, FULL, against a bare writer thread over SQLite FULL."""
    with (
        our_server(settings, "commit") as server,
        scratch() as folder,
        Child(yardsticks.writer, folder) as writer,
        LoadProcess() as load,
    ):
        ours, bare = server.create_board(), writer.target
        pair = side_by_side(
            loaded(
                load,
                ours,
                lambda mark: CommitLoad(ours, mark, _COMMIT_IN_FLIGHT, settings.seconds, VALUE),
            ),
            loaded(
                load,
                bare,
                lambda mark: CommitLoad(bare, mark, _COMMIT_IN_FLIGHT, settings.seconds, VALUE),
            ),
            settings.rounds,
        )
    yield rate_figure("commit", "Commit of one put, 64 in flight, embedded, FULL", pair, "/s", 0.5)


def commit64(settings: Settings) -> Iterator[Figure]:
    """Entries a second by commits of 64 puts, against our own commits of one put."""
    with our_server(settings, "commit64") as server, LoadProcess() as load:
        ours = server.create_board()
        pair = side_by_side(
            loaded(
                load,
                ours,
                lambda mark: CommitLoad(
                    ours, f"big/{mark}", _BIG_COMMIT_IN_FLIGHT, settings.seconds, VALUE, _BIG_COMMIT_OPS
                ),
            ),
            loaded(
                load,
                ours,
                lambda mark: CommitLoad(ours, f"one/{mark}", _COMMIT_IN_FLIGHT, settings.seconds, VALUE),
            ),
            settings.rounds,
        )
    ratios = tuple(_BIG_COMMIT_OPS * ratio for ratio in pair.ratios())
    yield Figure(
        "commit64",
        "entries a second, commits of 64 puts (16 in flight) against commits of one (64 in flight)",
        Quantity(_BIG_COMMIT_OPS * median(pair.ours, lambda sample: sample.rate), "entries/s"),
        Quantity(median(pair.yardstick, lambda sample: sample.rate), "entries/s"),
        ratios,
        Target(4.0),
        notes={"ours p50/p99 ms": _latencies(pair.ours), "cpu": pair.cpu_note()},
    )


def pg_commit(settings: Settings) -> Iterator[Figure]:
    """Commits of one put on PostgreSQL, 32 in flight, against psycopg's compare-and-set on 8 connections."""
    what = "Commit of one put, 32 in flight, PostgreSQL"
    target = Target(0.5)
    try:
        with (
            postgres_cluster() as cluster,
            scratch() as folder,
            Child(yardstick_postgres.compare_and_set, cluster.create_database(), VALUE) as bare,
            our_postgres_server(settings, folder / "data", cluster.create_database()) as server,
            Child(yardsticks.echo, b"") as echo,
            LoadProcess() as load,
        ):
            ours = server.create_board()

            def compare_and_set(_: str) -> Sample:
                bare.pipe.send(settings.seconds)
                return Sample(receive(bare.pipe, settings.seconds + 60))

            pair = side_by_side(
                loaded(
                    load,
                    ours,
                    lambda mark: CommitLoad(ours, mark, _POSTGRES_IN_FLIGHT, settings.seconds, VALUE),
                ),
                compare_and_set,
                settings.rounds,
            )
            ceiling = loaded(
                load,
                echo.target,
                lambda _: GetLoad(echo.target, ("plan",), _POSTGRES_IN_FLIGHT, settings.seconds, 0),
            )("")
    except PostgresUnavailable as reason:
        yield Figure("pg_commit", what, target=target, skipped=str(reason))
        return
    yield Figure(
        "pg_commit",
        what,
        Quantity(median(pair.ours, lambda sample: sample.rate), "/s"),
        Quantity(median(pair.yardstick, lambda sample: sample.rate), "/s"),
        pair.ratios(),
        target,
        notes={
            "ours p50/p99 ms": _latencies(pair.ours),
            # The yardstick has no RPC in it: no server of this kind can pass what an empty answer reaches.
            "empty answers over grpc.aio, the same clients, /s": ceiling.rate,
        },
    )


def idle_rss(settings: Settings) -> Iterator[Figure]:
    """Resident memory of an idle embedded server with one board."""
    with our_server(settings, "idle_rss") as server:
        started = rss_bytes(server.pid)
        server.create_board()
        time.sleep(1.0)
        idle = rss_bytes(server.pid)
        seconds = server.start_seconds
    yield Figure(
        "idle_rss",
        "resident memory of an idle embedded server with one board",
        Quantity(idle / 2**20, "MiB"),
        target=Target(120.0, at_most=True),
        notes={"MiB after the start": started / 2**20, "start-up s": seconds},
    )
