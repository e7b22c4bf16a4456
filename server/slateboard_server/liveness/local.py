"""Leases that live in this process, on a monotonic clock: what an embedded server needs, which is the only one there is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from slateboard_server.ports import Clock, Lease

_TICK: Final = 0.25
_STALL: Final = 1.0
"""Seconds a tick may be late; later than that, the process itself was away, and its holders could not renew."""
_DEATHS: Final = 10_000
"""How many deaths are kept for whoever listens; where nobody does for long, the oldest are dropped: they are hints."""


class LocalLiveness:
    """Leases of one process. A process that was stopped gives every lease the time that it was away."""

    def __init__(self, clock: Clock) -> None:
        """Count on `clock`."""
        self._clock = clock
        self._ends: dict[Lease, float] = {}
        self._ttls: dict[Lease, int] = {}
        self._ticked = clock.monotonic()
        self._dead: dict[Lease, None] = {}
        """Ended and not yielded yet: each once, however slow who listens is."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to tick."""
        self._ticked = self._clock.monotonic()
        self._task = asyncio.create_task(self._run(), name="lease-ticks")

    async def close(self) -> None:
        """Stop ticking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def describe(self) -> str:
        """Say what it is."""
        return "in-process leases"

    async def grant(self, lease: Lease, ttl: int) -> int:
        """Begin a lease."""
        now = self.tick()
        ttl = max(ttl, self._ttls.get(lease, 0))  # one that lives is lengthened, never cut short
        self._ttls[lease] = ttl
        self._ends[lease] = now + ttl
        return ttl

    async def renew(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Lengthen those that live."""
        now = self.tick()
        left: dict[Lease, float] = {}
        for lease in leases:
            if lease in self._ends:
                ttl = self._ttls[lease]
                self._ends[lease] = now + ttl
                left[lease] = float(ttl)
        return left

    async def revoke(self, leases: Sequence[Lease]) -> None:
        """End leases."""
        for lease in leases:
            self._end(lease)

    async def alive(self, leases: Sequence[Lease]) -> set[Lease]:
        """Tell which live."""
        self.tick()
        return {lease for lease in leases if lease in self._ends}

    def steady(self) -> bool:
        """Asking costs nothing here, so that there is no need to remember."""
        return False

    async def time_left(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Return the seconds left."""
        now = self.tick()
        return {lease: self._ends[lease] - now for lease in leases if lease in self._ends}

    async def deaths(self) -> AsyncIterator[Lease]:
        """Yield leases that ended."""
        while True:
            await self._wake.wait()
            while self._dead:
                lease = next(iter(self._dead))
                del self._dead[lease]
                yield lease
            self._wake.clear()

    async def adopt(self, leases: Sequence[tuple[Lease, int]]) -> None:
        """Give locks of the process before this one a fresh ttl."""
        for lease, ttl in leases:
            await self.grant(lease, ttl)

    def tick(self) -> float:
        """Look at the clock, end what is past its time; returns monotonic seconds.

        Also called by whatever asks, so that a process that was away does not find its leases dead before it notices.
        """
        now = self._clock.monotonic()
        away = now - self._ticked - _TICK
        self._ticked = now
        if away > _STALL:
            for lease in self._ends:
                self._ends[lease] += away
        for lease in [lease for lease, end in self._ends.items() if end <= now]:
            self._end(lease)
        return now

    def _end(self, lease: Lease) -> None:
        if self._ends.pop(lease, None) is not None:
            del self._ttls[lease]
            self._dead[lease] = None
            if len(self._dead) > _DEATHS:
                del self._dead[next(iter(self._dead))]
            self._wake.set()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.tick()
