"""Load: closed loops of N calls in flight over grpc.aio, in a process of its own; the same for ours and a yardstick.

Messages go out and come in as bytes where their content does not matter, so that the client takes as little of the
shared processors as it can.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import grpc.aio

from slateboard.v1 import entry_service_pb2
from tests.bench.processes import Child, Target, receive
from tests.bench.yardsticks import run

_SERVICE = "/slateboard.v1.EntryService/"
_CALL_TIMEOUT = 30.0
_JOB_TIMEOUT = 1_800.0
"""Seconds; a bound for the longest preload, so that nothing hangs for ever."""

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Job(Protocol[T_co]):
    """Something for a load process to do; it is pickled there and its result pickled back."""

    async def run(self) -> T_co:
        """Do it."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a closed loop achieved. Latencies in seconds, sorted."""

    calls: int
    seconds: float
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds

    def percentile(self, share: float) -> float:
        """The latency that `share` (0 to 1) of the calls did not exceed."""
        return percentile(self.latencies, share)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted numbers; NaN of none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class LoadProcess(Child):
    """A process that runs jobs, one after the other."""

    def __init__(self) -> None:
        """Describe it; the context starts and stops it."""
        super().__init__(_obey)

    def run(self, job: Job[T]) -> T:
        """Have a job run and wait for its result; what it raised is raised here."""
        self.pipe.send(job)
        result: T = receive(self.pipe, _JOB_TIMEOUT)
        return result


def _obey(pipe: Connection[Any, Any]) -> None:
    run(_obey_async(pipe))


async def _obey_async(pipe: Connection[Any, Any]) -> None:
    pipe.send("ready")
    while True:
        try:
            job: Job[object] = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return
        try:
            result: object = await job.run()
        except Exception as error:  # noqa: BLE001 -- travels to the process that gave the job, as plain text
            result = RuntimeError(f"{type(job).__name__}: {_first_cause(error)}")
        pipe.send(result)


def _first_cause(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


@asynccontextmanager
async def connected(target: Target, connections: int = 1) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Open connections of their own and wait until they are up."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 8 << 20)]
    channels = [grpc.aio.insecure_channel(target.address, options=options) for _ in range(connections)]
    try:
        await asyncio.wait_for(
            asyncio.gather(*(channel.channel_ready() for channel in channels)), _CALL_TIMEOUT
        )
        yield channels
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


def bytes_call(channel: grpc.aio.Channel, method: str) -> Callable[..., Awaitable[bytes]]:
    """Return an EntryService call that takes and gives bytes."""
    call: Callable[..., Awaitable[bytes]] = channel.unary_unary(_SERVICE + method)
    return call


async def closed_loop(in_flight: int, seconds: float, once: Callable[[int], Awaitable[bool]]) -> Outcome:
    """Keep `in_flight` slots busy: `once(slot)` makes one call, and False says that the slot has nothing left to do."""
    latencies: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def slot(number: int) -> None:
        clock = time.perf_counter
        at = clock()
        while at < until:
            if not await once(number):
                return
            done = clock()
            latencies.append(done - at)
            at = done

    async with asyncio.TaskGroup() as group:
        for number in range(in_flight):
            group.create_task(slot(number))
    elapsed = time.perf_counter() - began
    latencies.sort()
    return Outcome(len(latencies), elapsed, tuple(latencies))


@dataclass(frozen=True, slots=True)
class GetLoad:
    """Get of one key, LATEST. Of several keys each call takes a random one; with `each_once` every key is read once."""

    target: Target
    keys: tuple[str, ...]
    in_flight: int
    seconds: float
    value_bytes: int
    """Size of the values; a shorter answer means that an entry is missing."""
    each_once: bool = False

    async def run(self) -> Outcome:
        """Read until the time is over or, with `each_once`, the keys are."""
        requests = [_get(self.target.board, key) for key in self.keys]
        source = iter(requests) if self.each_once else _at_random(requests)
        async with connected(self.target) as (channel,):
            call = bytes_call(channel, "Get")
            metadata = self.target.metadata

            async def once(slot: int) -> bool:
                request = next(source, None)
                if request is None:
                    return False
                answer = await call(request, metadata=metadata, timeout=_CALL_TIMEOUT)
                if len(answer) < self.value_bytes:
                    raise RuntimeError("an entry that was written is not there")
                return True

            return await closed_loop(self.in_flight, self.seconds, once)


@dataclass(frozen=True, slots=True)
class CommitLoad:
    """Commits of `ops` puts. Every slot has keys of its own under `prefix`: made first, then replaced by version."""

    target: Target
    prefix: str
    in_flight: int
    seconds: float
    value: bytes
    ops: int = 1

    async def run(self) -> Outcome:
        """Commit until the time is over."""
        slots = [
            SlotCommits(self.target.board, f"{self.prefix}/{slot}", self.ops, self.value)
            for slot in range(self.in_flight)
        ]
        async with connected(self.target) as (channel,):
            call = bytes_call(channel, "Commit")
            metadata = self.target.metadata

            async def once(slot: int) -> bool:
                await call(slots[slot].next_request(), metadata=metadata, timeout=_CALL_TIMEOUT)
                return True

            return await closed_loop(self.in_flight, self.seconds, once)


class SlotCommits:
    """The commits of one slot: always the same keys, each time at the version its last commit made."""

    def __init__(self, board: str, prefix: str, ops: int, value: bytes) -> None:
        """Prepare the message; only what changes is set later."""
        self._version = 0
        self._request = entry_service_pb2.CommitRequest(board=board)
        for index in range(ops):
            put = self._request.ops.add().put
            put.key.key = f"{prefix}/{index}"
            put.content.value = value

    def next_request(self) -> bytes:
        """Return the next commit; call it only after the last one was accepted."""
        self._request.request_id = request_id()
        for op in self._request.ops:
            if self._version:
                op.put.precondition.version_equals = self._version
            else:
                op.put.precondition.must_not_exist = True
        self._version += 1
        return self._request.SerializeToString()


@dataclass(frozen=True, slots=True)
class ReplaceLoad:
    """Commits that replace each key once, at version 1."""

    target: Target
    keys: tuple[str, ...]
    in_flight: int
    value: bytes

    async def run(self) -> Outcome:
        """Go through the keys."""
        source = iter(self.keys)
        async with connected(self.target) as (channel,):
            call = bytes_call(channel, "Commit")
            metadata = self.target.metadata

            async def once(slot: int) -> bool:
                key = next(source, None)
                if key is None:
                    return False
                request = entry_service_pb2.CommitRequest(board=self.target.board, request_id=request_id())
                put = request.ops.add().put
                put.key.key = key
                put.precondition.version_equals = 1
                put.content.value = self.value
                await call(request.SerializeToString(), metadata=metadata, timeout=_CALL_TIMEOUT)
                return True

            return await closed_loop(self.in_flight, math.inf, once)


@dataclass(frozen=True, slots=True)
class Preload:
    """Fills a board with `count` entries, `entry_key(0)` to `entry_key(count - 1)`, by commits of many puts."""

    target: Target
    count: int
    value: bytes
    ops: int = 128
    in_flight: int = 4

    async def run(self) -> float:
        """Return the seconds it took."""
        starts = iter(range(0, self.count, self.ops))
        async with connected(self.target) as (channel,):
            call = bytes_call(channel, "Commit")
            metadata = self.target.metadata

            async def once(slot: int) -> bool:
                start = next(starts, None)
                if start is None:
                    return False
                request = entry_service_pb2.CommitRequest(board=self.target.board, request_id=request_id())
                for number in range(start, min(start + self.ops, self.count)):
                    put = request.ops.add().put
                    put.key.key = entry_key(number)
                    put.precondition.must_not_exist = True
                    put.content.value = self.value
                await call(request.SerializeToString(), metadata=metadata, timeout=_CALL_TIMEOUT)
                return True

            return (await closed_loop(self.in_flight, math.inf, once)).seconds


@dataclass(frozen=True, slots=True)
class PutAndGet:
    """Puts one new entry and returns the bytes of the GetResponse for it."""

    target: Target
    key: str
    value: bytes

    async def run(self) -> bytes:
        """Put, then get."""
        async with connected(self.target) as (channel,):
            metadata = self.target.metadata
            commit = SlotCommits(self.target.board, self.key, 1, self.value)
            await bytes_call(channel, "Commit")(
                commit.next_request(), metadata=metadata, timeout=_CALL_TIMEOUT
            )
            get = bytes_call(channel, "Get")
            return await get(
                _get(self.target.board, f"{self.key}/0"), metadata=metadata, timeout=_CALL_TIMEOUT
            )


def entry_key(number: int) -> str:
    """Name a preloaded entry."""
    return f"data/{number // 1_000:04d}/{number % 1_000:03d}"


def request_id() -> str:
    """Make a UUID."""
    return str(uuid.UUID(bytes=os.urandom(16), version=4))


def _get(board: str, key: str) -> bytes:
    request = entry_service_pb2.GetRequest(board=board)
    request.keys.add().key = key
    return request.SerializeToString()


def _at_random(requests: Sequence[bytes]) -> Iterator[bytes]:
    if len(requests) == 1:
        return itertools.repeat(requests[0])
    shuffled = list(requests)
    random.Random(2).shuffle(shuffled)
    return itertools.cycle(shuffled)
