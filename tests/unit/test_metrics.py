"""Figures: what the counters say is what Prometheus reads."""

import urllib.request

from prometheus_client import generate_latest

from slateboard_server.observability.metrics import MetricsListener
from slateboard_server.observability.stats import CallStats


def sample() -> CallStats:
    stats = CallStats()
    method = stats.method("Get")
    method.succeeded(0.0004)
    method.succeeded(0.3)
    method.failed("DENIED", 60.0)
    stats.open_streams = 3
    return stats


def test_calls_are_counted_by_method_and_reason_and_times_add_up() -> None:
    text = generate_latest(MetricsListener(sample(), lambda: 42).registry).decode()
    for line in (
        'slateboard_calls_total{method="Get",reason="OK"} 2.0',
        'slateboard_calls_total{method="Get",reason="DENIED"} 1.0',
        'slateboard_call_seconds_bucket{le="0.0005",method="Get"} 1.0',
        'slateboard_call_seconds_bucket{le="0.25",method="Get"} 1.0',
        'slateboard_call_seconds_bucket{le="0.5",method="Get"} 2.0',
        'slateboard_call_seconds_bucket{le="+Inf",method="Get"} 3.0',
        'slateboard_call_seconds_count{method="Get"} 3.0',
        "slateboard_open_streams 3.0",
        "slateboard_cache_bytes 42.0",
    ):
        assert line in text, line


def test_they_are_served_until_the_listener_is_closed() -> None:
    listener = MetricsListener(sample(), lambda: 0)
    port = listener.listen("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"slateboard_calls_total" in answer.read()
    listener.close()
    listener.close()
