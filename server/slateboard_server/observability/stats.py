"""Counters of calls: plain numbers on the hot path, turned into metrics only when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds; one more bucket holds what took longer."""


class MethodStats:
    """How often a method was called, how it ended and how long it took."""

    __slots__ = ("buckets", "failures", "name", "ok", "seconds")

    def __init__(self, name: str) -> None:
        """Begin at zero."""
        self.name = name
        self.ok = 0
        self.failures: Counter[str] = Counter()
        """By reason."""
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS) + 1)

    def succeeded(self, seconds: float) -> None:
        """Count a call that was answered."""
        self.ok += 1
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1

    def failed(self, reason: str, seconds: float) -> None:
        """Count a call that was refused or failed."""
        self.failures[reason] += 1
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1


class CallStats:
    """The counters of all methods, and how many calls are open."""

    def __init__(self) -> None:
        """Begin with no method."""
        self.methods: dict[str, MethodStats] = {}
        self.open_calls = 0
        self.open_streams = 0

    def method(self, name: str) -> MethodStats:
        """Return the counters of a method, made at first use."""
        return self.methods.setdefault(name, MethodStats(name))
