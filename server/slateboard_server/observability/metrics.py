"""What a replica counts, for Prometheus. Optional: without a listener nothing is exported, and counting costs little."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from slateboard_server.services.directory import BoardDirectory

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one replica, in a registry of their own."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "slateboard_calls", "Finished calls.", ("method", "code", "reason"), registry=self.registry
        )
        self._seconds = Histogram(
            "slateboard_call_seconds",
            "How long unary calls took.",
            ("method",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._streams = Gauge("slateboard_open_watches", "Watches open now.", registry=self.registry)
        self._server: tuple[WSGIServer, threading.Thread] | None = None

    def call(self, method: str, code: str, reason: str, seconds: float) -> None:
        """Count a finished unary call; `code` and `reason` are `OK` and empty if it went well."""
        self._calls.labels(method, code, reason).inc()
        self._seconds.labels(method).observe(seconds)

    def stream_opened(self) -> None:
        """Count a watch that began."""
        self._streams.inc()

    def stream_closed(self, method: str, code: str, reason: str) -> None:
        """Count a watch that ended."""
        self._streams.dec()
        self._calls.labels(method, code, reason).inc()

    def follow(self, directory: BoardDirectory) -> None:
        """Export what the entry cache holds."""
        used = Gauge(
            "slateboard_cache_bytes", "Bytes accounted for by the entry cache.", registry=self.registry
        )
        used.set_function(lambda: directory.cache.used_bytes)

    def listen(self, host: str, port: int) -> int:
        """Serve /metrics on a thread of its own; returns the port. OSError where it is taken."""
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
