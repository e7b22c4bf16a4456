"""Figures for Prometheus. Optional: without a listener nothing is exported, and counting costs next to nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slateboard_server.observability.stats import BUCKETS, CallStats


class MetricsListener:
    """Serves a replica's counters as /metrics, from a thread of its own."""

    def __init__(self, stats: CallStats, cache_bytes: Callable[[], int]) -> None:
        """Export `stats` and what the entry cache holds."""
        self.registry = CollectorRegistry()
        self.registry.register(_Collector(stats, cache_bytes))
        self._server: tuple[WSGIServer, threading.Thread] | None = None

    def listen(self, host: str, port: int) -> int:
        """Begin to serve; returns the port. OSError where it is taken."""
        self._server = start_http_server(port, host, registry=self.registry)
        return int(self._server[0].server_port)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)
            self._server = None


class _Collector(Collector):
    def __init__(self, stats: CallStats, cache_bytes: Callable[[], int]) -> None:
        self._stats = stats
        self._cache_bytes = cache_bytes

    def collect(self) -> Iterator[Metric]:
        """Read the counters; they are written by the event loop meanwhile, so each table is copied at once."""
        calls = CounterMetricFamily(
            "slateboard_calls", "Finished calls by method and reason.", labels=["method", "reason"]
        )
        seconds = HistogramMetricFamily(
            "slateboard_call_seconds", "How long calls took, watches included.", labels=["method"]
        )
        bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
        for name, method in list(self._stats.methods.items()):
            calls.add_metric([name, "OK"], method.ok)
            for reason, count in list(method.failures.items()):
                calls.add_metric([name, reason], count)
            sums = accumulate(list(method.buckets))
            seconds.add_metric([name], list(zip(bounds, sums, strict=True)), method.seconds)
        yield calls
        yield seconds
        yield GaugeMetricFamily("slateboard_open_calls", "Calls open now.", self._stats.open_calls)
        yield GaugeMetricFamily("slateboard_open_streams", "Watches open now.", self._stats.open_streams)
        yield GaugeMetricFamily(
            "slateboard_cache_bytes", "What the entry cache accounts for.", self._cache_bytes()
        )
