"""The figures of locks: what a lock costs with leases in the process and in etcd, how fast it is handed over, and what claims cost."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from slateboard.v1 import (
    board_service_pb2,
    board_service_pb2_grpc,
    commit_pb2,
    entry_service_pb2,
    entry_service_pb2_grpc,
    lock_service_pb2,
    lock_service_pb2_grpc,
    types_pb2,
)
from slateboard_server.liveness.connection import GRANT, REVOKE, TXN, EtcdConnection
from slateboard_server.liveness.etcdpb import etcd_pb2
from tests.bench.postgres import PostgresUnavailable, postgres_cluster
from tests.bench.processes import SlateboardServer, scratch
from tests.bench.report import Figure, Quantity, Target
from tests.bench.settings import VALUE, Settings, our_server
from tests.fix_etcd import EtcdCluster, EtcdUnavailable

T = TypeVar("T")
_BOARD = "bench-locks"
_PAIRS_IN_FLIGHT = 32
_COMMITS_IN_FLIGHT = 32
_HANDOVERS = 200


@dataclass
class Caller:
    """Raw stubs of one caller."""

    channel: grpc.aio.Channel
    token: str

    def __post_init__(self) -> None:
        """Make the stubs."""
        self.locks: Any = lock_service_pb2_grpc.LockServiceStub(self.channel)
        self.entries: Any = entry_service_pb2_grpc.EntryServiceStub(self.channel)
        self.auth = (("authorization", f"Bearer {self.token}"),)

    async def acquire(self, path: str, wait: float = 0.0, ttl: int = 30) -> lock_service_pb2.Lock:
        """Acquire a lock on a key."""
        request = lock_service_pb2.AcquireRequest(
            board=_BOARD, request_id=str(uuid.uuid4()), scopes=[lock_service_pb2.LockScope(path=path)]
        )
        request.ttl.FromSeconds(ttl)
        request.wait_timeout.FromMilliseconds(round(wait * 1_000))
        reply: lock_service_pb2.AcquireResponse = await self.locks.Acquire(
            request, metadata=self.auth, timeout=wait + 30
        )
        return reply.lock

    async def release(self, lock: lock_service_pb2.Lock) -> None:
        """Release it."""
        claim = commit_pb2.Claim(lock_id=lock.lock_id, fencing_token=lock.fencing_token)
        request = lock_service_pb2.ReleaseRequest(board=_BOARD, request_id=str(uuid.uuid4()), claim=claim)
        await self.locks.Release(request, metadata=self.auth, timeout=30)

    async def commit(self, key: str, version: int, lock: lock_service_pb2.Lock | None = None) -> int:
        """Replace a key by version; returns the new one."""
        condition = (
            commit_pb2.Precondition(version_equals=version)
            if version
            else commit_pb2.Precondition(must_not_exist=True)
        )
        put = commit_pb2.PutOp(
            key=types_pb2.KeyRef(key=key), precondition=condition, content=types_pb2.Content(value=VALUE)
        )
        claims = (
            [commit_pb2.Claim(lock_id=lock.lock_id, fencing_token=lock.fencing_token)]
            if lock is not None
            else []
        )
        request = entry_service_pb2.CommitRequest(
            board=_BOARD, request_id=str(uuid.uuid4()), ops=[commit_pb2.Op(put=put)], claims=claims
        )
        answer = await self.entries.Commit(request, metadata=self.auth, timeout=30)
        return int(answer.results[0].version)


def _with_caller(server: SlateboardServer, work: Callable[[Caller], Awaitable[T]]) -> T:
    target = server.target(_BOARD)

    async def run() -> T:
        async with grpc.aio.insecure_channel(target.address) as channel:
            caller = Caller(channel, target.token)
            boards: Any = board_service_pb2_grpc.BoardServiceStub(channel)
            request = board_service_pb2.CreateBoardRequest(name=_BOARD, request_id=str(uuid.uuid4()))
            try:
                await boards.CreateBoard(request, metadata=caller.auth)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                    raise
            return await work(caller)

    return asyncio.run(run())


@contextmanager
def _server_mode(settings: Settings) -> Iterator[tuple[SlateboardServer, EtcdCluster]]:
    """Run our server over PostgreSQL and one etcd member."""
    with ExitStack() as stack:
        etcd = EtcdCluster(1)
        stack.callback(etcd.destroy)
        etcd.start()
        cluster = stack.enter_context(postgres_cluster())
        folder = stack.enter_context(scratch())
        (folder / "server.toml").write_text(
            f'etcd_endpoints = ["{etcd.endpoints[0]}"]\nauto_migrate = true\n', encoding="utf-8"
        )
        arguments = ["--database-url", cluster.create_database(), "--config", str(folder / "server.toml")]
        server = SlateboardServer(folder / "data", arguments=arguments, runner=settings.runner("locks"))
        yield stack.enter_context(server), etcd


async def _rate(work: Callable[[int], Awaitable[None]], in_flight: int, seconds: float) -> float:
    """Calls a second, `in_flight` at a time."""
    done = 0
    until = time.perf_counter() + seconds

    async def loop(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await work(number)
            done += 1

    begin = time.perf_counter()
    await asyncio.gather(*(loop(number) for number in range(in_flight)))
    return done / (time.perf_counter() - begin)


def lock_pairs(settings: Settings) -> Iterator[Figure]:
    """Acquire and release of uncontended locks, embedded."""

    async def measure(caller: Caller) -> list[float]:
        async def pair(number: int) -> None:
            await caller.release(await caller.acquire(f"k/{number}"))

        await _rate(pair, _PAIRS_IN_FLIGHT, 0.5)
        return [await _rate(pair, _PAIRS_IN_FLIGHT, settings.seconds) for _ in range(settings.rounds)]

    with our_server(settings, "lock_pairs") as server:
        rates = _with_caller(server, measure)
    yield Figure(
        "lock_pairs",
        f"acquire + release, uncontended, {_PAIRS_IN_FLIGHT} in flight, embedded",
        Quantity(statistics.median(rates), "pairs/s"),
        target=Target(1_000),
    )


def lock_handover(settings: Settings) -> Iterator[Figure]:
    """From sending a release to the waiter's having the lock, embedded."""

    async def measure(caller: Caller) -> list[float]:
        taken = []
        for _ in range(_HANDOVERS // (4 if settings.quick else 1)):
            lock = await caller.acquire("k")
            waiting = asyncio.create_task(caller.acquire("k", wait=20))
            await asyncio.sleep(0.01)
            begin = time.perf_counter()
            releasing = asyncio.create_task(caller.release(lock))
            granted = await waiting
            taken.append(time.perf_counter() - begin)
            await releasing
            await caller.release(granted)
        return taken

    with our_server(settings, "lock_handover") as server:
        taken = sorted(_with_caller(server, measure))
    p99 = taken[min(len(taken) - 1, round(0.99 * len(taken)))]
    yield Figure(
        "lock_handover",
        "p99 from sending a release to the waiter's having the lock, embedded",
        Quantity(1e3 * p99, "ms"),
        target=Target(50, at_most=True),
        notes={"p50 ms": 1e3 * statistics.median(taken)},
    )


def lock_server_mode(settings: Settings) -> Iterator[Figure]:
    """Locks with leases in etcd: their cost, that of claims, and what is left while etcd is down."""
    names = ("lock_etcd", "claimed_commit", "etcd_down")
    try:
        with _server_mode(settings) as (server, etcd):
            yield _lock_etcd(settings, server, etcd)
            yield _claimed_commit(settings, server)
            yield _etcd_down(settings, server, etcd)
    except (PostgresUnavailable, EtcdUnavailable) as error:
        for name in names:
            yield Figure(name, "", skipped=str(error).splitlines()[0][:100])


def _lock_etcd(settings: Settings, server: SlateboardServer, etcd: EtcdCluster) -> Figure:
    count = 40 if settings.quick else 150

    async def ours(caller: Caller) -> list[float]:
        taken = []
        for number in range(count):
            begin = time.perf_counter()
            await caller.release(await caller.acquire(f"k/{number}"))
            taken.append(time.perf_counter() - begin)
        return taken

    async def raw() -> list[float]:
        connection = EtcdConnection(etcd.endpoints)
        taken = []
        for number in range(count):
            lease = time.time_ns()
            key = b"raw/%d" % number
            put = etcd_pb2.PutRequest(key=key, value=b"x", lease=lease)
            look = etcd_pb2.RangeRequest(key=key)
            begin = time.perf_counter()
            await connection.call(GRANT, etcd_pb2.LeaseGrantRequest(ttl=30, id=lease))
            await connection.call(TXN, etcd_pb2.TxnRequest(success=[etcd_pb2.RequestOp(request_put=put)]))
            await connection.call(TXN, etcd_pb2.TxnRequest(success=[etcd_pb2.RequestOp(request_range=look)]))
            taken.append(time.perf_counter() - begin)
            await connection.call(REVOKE, etcd_pb2.LeaseRevokeRequest(id=lease))
        await connection.close()
        return taken

    _with_caller(server, ours)
    mine, bare, ratios = [], [], []
    for _ in range(settings.rounds):
        mine.append(statistics.median(_with_caller(server, ours)))
        bare.append(statistics.median(asyncio.run(raw())))
        ratios.append(mine[-1] / bare[-1])
    return Figure(
        "lock_etcd",
        "median acquire + release, uncontended, one at a time, PostgreSQL and etcd; yardstick: grant + txn + txn",
        Quantity(1e3 * statistics.median(mine), "ms"),
        Quantity(1e3 * statistics.median(bare), "ms"),
        tuple(ratios),
        Target(3, at_most=True),
    )


def _claimed_commit(settings: Settings, server: SlateboardServer) -> Figure:
    async def measure(caller: Caller) -> list[tuple[float, float]]:
        versions = [0] * (2 * _COMMITS_IN_FLIGHT)
        locks = [await caller.acquire(f"c/{number}", ttl=600) for number in range(_COMMITS_IN_FLIGHT)]

        async def plain(number: int) -> None:
            place = number + _COMMITS_IN_FLIGHT
            versions[place] = await caller.commit(f"p/{number}", versions[place])

        async def claimed(number: int) -> None:
            versions[number] = await caller.commit(f"c/{number}", versions[number], locks[number])

        await _rate(plain, _COMMITS_IN_FLIGHT, 0.5)
        await _rate(claimed, _COMMITS_IN_FLIGHT, 0.5)
        found = [
            (
                await _rate(claimed, _COMMITS_IN_FLIGHT, settings.seconds),
                await _rate(plain, _COMMITS_IN_FLIGHT, settings.seconds),
            )
            for _ in range(settings.rounds)
        ]
        for lock in locks:
            await caller.release(lock)
        return found

    rates = _with_caller(server, measure)
    return Figure(
        "claimed_commit",
        f"what a claimed commit costs in unclaimed ones, {_COMMITS_IN_FLIGHT} in flight, PostgreSQL and etcd",
        Quantity(statistics.median(claimed for claimed, _ in rates), "/s"),
        Quantity(statistics.median(plain for _, plain in rates), "/s"),
        tuple(plain / claimed for claimed, plain in rates),
        Target(1.5, at_most=True),
    )


def _etcd_down(settings: Settings, server: SlateboardServer, etcd: EtcdCluster) -> Figure:
    [member] = etcd.members

    async def measure(caller: Caller) -> list[tuple[float, float]]:
        versions = [0] * _COMMITS_IN_FLIGHT

        async def plain(number: int) -> None:
            versions[number] = await caller.commit(f"d/{number}", versions[number])

        await _rate(plain, _COMMITS_IN_FLIGHT, 0.5)
        found = []
        for _ in range(settings.rounds):
            up = await _rate(plain, _COMMITS_IN_FLIGHT, settings.seconds)
            member.kill()
            await asyncio.sleep(0.2)
            found.append((await _rate(plain, _COMMITS_IN_FLIGHT, settings.seconds), up))
            etcd.restart(member)
            await asyncio.to_thread(etcd.wait)
        return found

    rates = _with_caller(server, measure)
    return Figure(
        "etcd_down",
        f"unclaimed commits while etcd is down, against the same with etcd, {_COMMITS_IN_FLIGHT} in flight",
        Quantity(statistics.median(down for down, _ in rates), "/s"),
        Quantity(statistics.median(up for _, up in rates), "/s"),
        tuple(down / up for down, up in rates),
        Target(0.9),
    )
