"""Measuring two things side by side, so that what else the machine does falls on both."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.load import Job, LoadProcess, Outcome
from tests.bench.processes import Target, cpu_seconds

Measured = Callable[[str], "Sample"]
"""Measures once; the argument is unlike that of any other round, for keys nobody has used yet."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: a rate, latencies in seconds (NaN where there are none) and the server's CPU time a call."""

    rate: float
    p50: float = float("nan")
    p99: float = float("nan")
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Rounds of ours and the yardstick, taken in turn."""

    ours: tuple[Sample, ...]
    yardstick: tuple[Sample, ...]

    def ratios(self, value: Callable[[Sample], float] = lambda sample: sample.rate) -> tuple[float, ...]:
        """Ours over the yardstick, round by round."""
        return tuple(
            value(mine) / value(other) for mine, other in zip(self.ours, self.yardstick, strict=True)
        )

    def cpu_note(self) -> str:
        """Say what a call costs each server: where the clients are what is slow, the rates alone flatter."""
        mine, other = (1e6 * median(side, lambda sample: sample.cpu) for side in (self.ours, self.yardstick))
        share = f" (ratio {other / mine:.2f})" if mine and other else ""
        return f"{mine:.0f} against {other:.0f} us of the server's CPU a call{share}"


def median(samples: tuple[Sample, ...], value: Callable[[Sample], float]) -> float:
    """The median of a property of samples."""
    return statistics.median(value(sample) for sample in samples)


def side_by_side(ours: Measured, yardstick: Measured, rounds: int, *, warm_up: bool = True) -> Pair:
    """Measure in turn, A B, B A, A B ..., so that a drift of the machine falls on both. A first round is thrown away."""
    if warm_up:
        ours("w")
        yardstick("w")
    mine: list[Sample] = []
    theirs: list[Sample] = []
    for number in range(rounds):
        first_ours = number % 2 == 0
        for turn_ours in (first_ours, not first_ours):
            samples, measured = (mine, ours) if turn_ours else (theirs, yardstick)
            samples.append(measured(str(number)))
    return Pair(tuple(mine), tuple(theirs))


def loaded(load: LoadProcess, target: Target, job: Callable[[str], Job[Outcome]]) -> Measured:
    """Return a measurement by a load process that also looks at what the server behind `target` spent."""

    def measured(mark: str) -> Sample:
        before = cpu_seconds(target.pid)
        outcome = load.run(job(mark))
        spent = cpu_seconds(target.pid) - before
        return Sample(
            outcome.rate, outcome.percentile(0.5), outcome.percentile(0.99), spent / max(outcome.calls, 1)
        )

    return measured
