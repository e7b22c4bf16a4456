"""Load with watchers: deliveries of one commit to many streams, and how long after a commit its watchers hear of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from slateboard.v1 import entry_service_pb2
from tests.bench.load import Outcome, SlotCommits, bytes_call, closed_loop, connected
from tests.bench.processes import Target

_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class FanOutLoad:
    """One commit at a time to `watchers` streams; the next one goes out when all have the last. Calls: deliveries."""

    target: Target
    prefix: str
    watchers: int
    connections: int
    seconds: float
    value: bytes

    async def run(self) -> Outcome:
        """Return deliveries, and the latencies from a commit's start to its last delivery."""
        all_have = asyncio.Event()
        left = 0

        def delivered(message: entry_service_pb2.WatchResponse) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                all_have.set()

        async with connected(self.target, self.connections) as channels:
            commit = bytes_call(channels[0], "Commit")
            commits = SlotCommits(self.target.board, self.prefix, 1, self.value)
            metadata = self.target.metadata
            streams = _Streams(self.target, channels, self.watchers, delivered)
            async with streams.open():

                async def once(slot: int) -> bool:
                    nonlocal left
                    left = self.watchers
                    all_have.clear()
                    await commit(commits.next_request(), metadata=metadata, timeout=_TIMEOUT)
                    await streams.wait_for(all_have.wait())
                    return True

                rounds = await closed_loop(1, self.seconds, once)
        return Outcome(rounds.calls * self.watchers, rounds.seconds, rounds.latencies)


@dataclass(frozen=True, slots=True)
class WatchLatencyOutcome:
    """Latencies in seconds, sorted: of commits, and from a commit's start to each watcher's having it."""

    commits: tuple[float, ...]
    watches: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WatchLatencyLoad:
    """Commits of one put at a steady rate, at random moments, seen by `watchers` streams in the same process.

    One process, so one clock. Every commit begins when its moment has come, however the ones before it fare, and is
    measured from that moment: a stall is charged to all that had to wait for it.
    """

    target: Target
    prefix: str
    rate: float
    """Commits a second."""
    watchers: int
    seconds: float
    value: bytes

    async def run(self) -> WatchLatencyOutcome:
        """Commit until the time is over, then wait until every watcher has everything."""
        began: list[float] = []
        commits: list[float] = []
        heard: list[float] = []
        everything = asyncio.Event()
        moments = list(_moments(self.rate, self.seconds))

        def delivered(message: entry_service_pb2.WatchResponse) -> None:
            now = time.perf_counter()
            numbers = [int(entry.key.rsplit("/", 2)[1]) for entry in message.batch.entries]
            heard.extend(now - began[number] for number in numbers)
            if len(heard) == self.watchers * len(moments):
                everything.set()

        async with connected(self.target, 2) as channels:
            commit = bytes_call(channels[0], "Commit")
            streams = _Streams(self.target, channels[1:], self.watchers, delivered)

            async def one(number: int) -> None:
                request = SlotCommits(
                    self.target.board, f"{self.prefix}/{number}", 1, self.value
                ).next_request()
                await commit(request, metadata=self.target.metadata, timeout=_TIMEOUT)
                commits.append(time.perf_counter() - began[number])

            async with streams.open(), asyncio.TaskGroup() as group:
                start = time.perf_counter()
                began.extend(start + moment for moment in moments)
                for number, moment in enumerate(began):
                    await asyncio.sleep(max(0.0, moment - time.perf_counter()))
                    group.create_task(one(number))
                await streams.wait_for(everything.wait())
        return WatchLatencyOutcome(tuple(sorted(commits)), tuple(sorted(heard)))


def _moments(rate: float, seconds: float) -> Iterator[float]:
    """Yield moments at random (a Poisson process), the same in every run."""
    order = random.Random(3)
    moment = order.expovariate(rate)
    while moment < seconds:
        yield moment
        moment += order.expovariate(rate)


@dataclass(frozen=True, slots=True)
class CaptureWatch:
    """Returns the bytes of the two messages a watcher gets first: where it stands, and the batch of one commit."""

    target: Target
    prefix: str
    value: bytes

    async def run(self) -> tuple[bytes, bytes]:
        """Watch, commit, return what came."""
        got: list[entry_service_pb2.WatchResponse] = []
        there = asyncio.Event()

        def delivered(message: entry_service_pb2.WatchResponse) -> None:
            got.append(message)
            there.set()

        async with connected(self.target) as channels:
            commit = bytes_call(channels[0], "Commit")
            commits = SlotCommits(self.target.board, self.prefix, 1, self.value)
            streams = _Streams(self.target, channels, 1, delivered)
            async with streams.open():
                await commit(commits.next_request(), metadata=self.target.metadata, timeout=_TIMEOUT)
                await streams.wait_for(there.wait())
        return streams.first.SerializeToString(), got[0].SerializeToString()


class _Streams:
    """Watch streams that hand every batch to a function."""

    def __init__(
        self,
        target: Target,
        channels: list[grpc.aio.Channel],
        count: int,
        delivered: Callable[[entry_service_pb2.WatchResponse], None],
    ) -> None:
        self._target = target
        self._channels = channels
        self._count = count
        self._delivered = delivered
        self._tasks: list[asyncio.Task[None]] = []
        self.first = entry_service_pb2.WatchResponse()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open all streams and return once every one has said where it stands."""
        opened = [asyncio.Event() for _ in range(self._count)]
        self._tasks = [
            asyncio.create_task(self._follow(self._channels[number % len(self._channels)], event))
            for number, event in enumerate(opened)
        ]
        try:
            await self.wait_for(asyncio.gather(*(event.wait() for event in opened)))
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, channel: grpc.aio.Channel, opened: asyncio.Event) -> None:
        watch = channel.unary_stream(
            "/slateboard.v1.EntryService/Watch",
            request_serializer=entry_service_pb2.WatchRequest.SerializeToString,
            response_deserializer=entry_service_pb2.WatchResponse.FromString,
        )
        request = entry_service_pb2.WatchRequest(board=self._target.board)
        async for message in watch(request, metadata=self._target.metadata):
            if message.WhichOneof("event") == "batch":
                self._delivered(message)
            elif not opened.is_set():
                self.first = message
                opened.set()
        raise RuntimeError("a watch ended")

    async def wait_for(self, awaited: Awaitable[object]) -> None:
        """Wait for something the streams bring; if one of them breaks, or a minute passes, say so."""
        waiting = asyncio.ensure_future(awaited)
        done, _ = await asyncio.wait(
            {waiting, *self._tasks}, timeout=_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting in done:
            return
        waiting.cancel()
        for task in done:
            await task
        raise TimeoutError("the watchers did not get everything within a minute")
