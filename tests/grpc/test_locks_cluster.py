"""Locks of several replicas over one PostgreSQL and one etcd, and what happens when parts of that die or stop."""

import asyncio
import contextlib
import json
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from slateboard.v1 import board_service_pb2, error_reason_pb2, lock_service_pb2
from slateboard_server.domain.values import BoardId, LockId
from slateboard_server.liveness import EtcdLiveness
from slateboard_server.ports import Lease
from tests.fix_etcd import EtcdCluster, MakeEtcd
from tests.fix_server import MakeServer, Server
from tests.grpc.conftest import Api, claim, put, refused

Connect = Callable[[Server, str, str], Api]
HELD = lock_service_pb2.LOCK_STATE_HELD
RENEWED = error_reason_pb2.ERROR_REASON_UNSPECIFIED


@dataclass
class Cluster:
    """Replicas, and the same supervisor through each of them."""

    servers: list[Server]
    apis: list[Api]
    etcd: EtcdCluster


@pytest.fixture
async def start(
    make_server: MakeServer, make_etcd: MakeEtcd, postgres_dsn: str, connect: Connect
) -> Callable[..., "asyncio.Future[Cluster]"]:
    """Start replicas over an etcd of so many members."""

    async def make(replicas: int = 2, members: int = 1) -> Cluster:
        etcd = make_etcd(members)
        env = {"SLATEBOARD_ETCD_ENDPOINTS": json.dumps(etcd.endpoints)}
        servers = [make_server(database_url=postgres_dsn, env=env) for _ in range(replicas)]
        token = servers[0].local_token
        apis = [connect(server, token, "team") for server in servers]
        await apis[0].boards.CreateBoard(
            board_service_pb2.CreateBoardRequest(name="team", request_id=str(uuid.uuid4())),
            metadata=apis[0].auth,
        )
        return Cluster(servers, apis, etcd)

    return make  # type: ignore[return-value]


Start = Callable[..., "asyncio.Future[Cluster]"]


async def renewed(api: Api, lock: lock_service_pb2.Lock, seconds: float = 20) -> None:
    """Wait until a renewal succeeds."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                [renewal] = await api.renew(lock)
                assert renewal.reason == RENEWED
                return
            await asyncio.sleep(0.1)


async def test_a_lock_of_one_replica_binds_and_is_renewed_and_released_through_another(start: Start) -> None:
    cluster = await start()
    one, two = cluster.apis
    lock = await one.acquire("k")
    assert (await refused(two.commit(put("k")))).reason == "KEY_LOCKED"
    await two.commit(put("k"), claims=[claim(lock)])
    assert (await two.renew(lock))[0].reason == RENEWED
    waiting = asyncio.create_task(two.acquire("k", wait=10))
    while not await one.list_waiters():  # noqa: ASYNC110 -- asked of the server
        await asyncio.sleep(0.02)
    begin = time.monotonic()
    await one.release(lock)
    granted = await waiting
    assert time.monotonic() - begin < 2
    assert granted.fencing_token > lock.fencing_token


async def test_a_retried_acquire_keeps_its_place_on_another_replica(start: Start) -> None:
    """The replica that a waiter was on is killed: the retry elsewhere stands where it stood, ahead of who came later."""
    cluster = await start(replicas=2)
    one, two = cluster.apis
    lock = await two.acquire("k", ttl=60)
    request_id = str(uuid.uuid4())
    early = asyncio.create_task(one.acquire("k", wait=30, ttl=15, request_id=request_id))
    while not await two.list_waiters():  # noqa: ASYNC110 -- asked of the server
        await asyncio.sleep(0.02)
    [first] = await two.list_waiters()
    late = asyncio.create_task(two.acquire("k", wait=30))
    cluster.servers[0].kill()
    await asyncio.gather(early, return_exceptions=True)
    retried = asyncio.create_task(two.acquire("k", wait=30, ttl=15, request_id=request_id))
    await asyncio.sleep(1)
    await two.release(lock)
    granted = await retried
    assert granted.lock_id == first.lock.lock_id
    assert not late.done()
    await two.release(granted)
    await late


async def test_after_kill_9_of_the_holder_the_next_one_has_it_within_ttl_and_3_seconds(start: Start) -> None:
    """T07 python-etcd3#109: nobody renews any more, also where the holder's replica died with it."""
    cluster = await start()
    one, two = cluster.apis
    await one.acquire("k", ttl=2)
    cluster.servers[0].kill()
    begin = time.monotonic()
    granted = await two.acquire("k", wait=20)
    assert granted.state == HELD
    assert time.monotonic() - begin < 2 + 3 + 2  # the call itself, on a busy machine


async def test_with_the_holder_and_the_etcd_leader_killed_the_next_one_has_it_within_twice_the_ttl_and_an_election(
    start: Start,
) -> None:
    """A new leader gives every lease its whole ttl again: that bounds what a dead holder can cost."""
    cluster = await start(members=3)
    one, two = cluster.apis
    await one.acquire("k", ttl=3)
    leader = cluster.etcd.leader()
    assert leader is not None
    cluster.servers[0].kill()
    leader.kill()
    begin = time.monotonic()
    granted = lock_service_pb2.Lock()
    async with asyncio.timeout(40):
        while granted.state != HELD:
            with contextlib.suppress(grpc.aio.AioRpcError):  # LOCK_BACKEND_DOWN during the election
                granted = await two.acquire("k", wait=30)
    assert time.monotonic() - begin < 2 * 3 + 3 + 6  # an election, sweeps, and a busy machine


async def test_a_lease_revoked_under_a_live_holder_ends_its_lock_and_nothing_else(start: Start) -> None:
    """T10 etcd#15247: the next renewal says LOCK_EXPIRED, the next commit is refused."""
    cluster = await start(replicas=1)
    [api] = cluster.apis
    lock, other = await api.acquire("k"), await api.acquire("other")
    backdoor = EtcdLiveness(cluster.etcd.endpoints)
    await backdoor.revoke([Lease(BoardId(1), LockId(lock.lock_id))])
    await backdoor.close()
    [renewal] = await api.renew(lock)
    assert renewal.reason == error_reason_pb2.ERROR_REASON_LOCK_EXPIRED
    assert (await refused(api.commit(put("k"), claims=[claim(lock)]))).reason == "LOCK_EXPIRED"
    await api.commit(put("other"), claims=[claim(other)])
    assert (await api.renew(other))[0].reason == RENEWED


async def test_with_etcd_down_plain_work_goes_on_and_locks_say_so(start: Start) -> None:
    """Reads and unclaimed commits go on; Acquire, Renew and claimed commits are UNAVAILABLE; then all is as before."""
    cluster = await start(replicas=1)
    [api] = cluster.apis
    request_id = str(uuid.uuid4())
    lock = await api.acquire("k", ttl=60)
    first = await api.commit(put("k"), claims=[claim(lock)], request_id=request_id)
    [member] = cluster.etcd.members
    member.kill()

    async def down(call: object) -> None:
        refusal = await refused(call)  # type: ignore[arg-type]
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "LOCK_BACKEND_DOWN")

    async def plain() -> None:
        for number in range(20):
            await api.commit(put(f"free/{number}"))
            await api.get(f"free/{number}")
        assert (await refused(api.commit(put("k", version=1)))).reason == "KEY_LOCKED"

    begin = time.monotonic()
    await asyncio.gather(
        down(api.acquire("j")),
        down(api.renew(lock)),
        down(api.commit(put("k", version=1), claims=[claim(lock)])),
        plain(),
    )
    assert time.monotonic() - begin < 12
    again = await api.commit(put("k"), claims=[claim(lock)], request_id=request_id)
    assert (again.replayed, again.header.revision) == (True, first.header.revision)
    assert [one.lock_id for one in await api.list_locks()] == [lock.lock_id]
    cluster.etcd.restart(member)
    cluster.etcd.wait()
    await renewed(api, lock)
    await api.commit(put("k", version=1), claims=[claim(lock)])


async def test_an_etcd_leader_that_stops_costs_no_lock(start: Start) -> None:
    """SIGSTOP of the leader: the others elect one; leases are lengthened, nobody is declared dead."""
    cluster = await start(replicas=1, members=3)
    [api] = cluster.apis
    lock = await api.acquire("k", ttl=10)
    leader = cluster.etcd.leader()
    assert leader is not None
    leader.send(signal.SIGSTOP)
    try:
        await renewed(api, lock)
        await api.commit(put("k"), claims=[claim(lock)])
        assert (await api.acquire("j", wait=10)).state == HELD
    finally:
        leader.send(signal.SIGCONT)
    await renewed(api, lock)


async def test_an_etcd_that_forgot_everything_ends_all_locks_and_grants_new_ones(start: Start) -> None:
    """Its data lost, no lease is alive: old claims are refused, tokens go on rising."""
    cluster = await start(replicas=1)
    [api] = cluster.apis
    lock = await api.acquire("k", ttl=60)
    [member] = cluster.etcd.members
    member.kill()
    member.forget_data()
    cluster.etcd.restart(member)
    cluster.etcd.wait()
    newer = await api.acquire("k", wait=20)
    assert newer.fencing_token > lock.fencing_token
    assert (await refused(api.commit(put("k"), claims=[claim(lock)]))).reason == "LOCK_EXPIRED"
    await api.commit(put("k"), claims=[claim(newer)])


async def test_a_stopped_replica_blocks_the_others_for_seconds_at_most(start: Start) -> None:
    """SIGSTOP at random moments under load, also inside a transaction: its row lock falls to a timeout."""
    cluster = await start()
    one, two = cluster.apis
    busy = True

    async def write(number: int) -> None:
        turn = 0
        while busy:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await one.commit(put(f"w/{number}/{turn}"))
            turn += 1

    load = [asyncio.create_task(write(number)) for number in range(8)]
    try:
        for turn in range(3):
            await asyncio.sleep(0.3)
            cluster.servers[0].send(signal.SIGSTOP)
            begin = time.monotonic()
            lock = await two.acquire(f"k{turn}")
            await two.commit(put(f"k{turn}"), claims=[claim(lock)])
            assert time.monotonic() - begin < 10
            cluster.servers[0].send(signal.SIGCONT)
    finally:
        busy = False
        cluster.servers[0].send(signal.SIGCONT)
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)


async def test_waiters_of_a_draining_replica_go_elsewhere_and_keep_their_place(start: Start) -> None:
    """SIGTERM answers who waits with DRAINING at once; its place lasts until its lease ends."""
    cluster = await start()
    one, two = cluster.apis
    lock = await two.acquire("k", ttl=60)
    request_id = str(uuid.uuid4())
    waiting = asyncio.create_task(refused(one.acquire("k", wait=30, request_id=request_id)))
    while not await two.list_waiters():  # noqa: ASYNC110 -- asked of the server
        await asyncio.sleep(0.02)
    [place] = await two.list_waiters()
    cluster.servers[0].send(signal.SIGTERM)
    assert (await waiting).reason == "DRAINING"
    retried = asyncio.create_task(two.acquire("k", wait=30, request_id=request_id))
    await asyncio.sleep(0.5)
    await two.release(lock)
    assert (await retried).lock_id == place.lock.lock_id
    assert cluster.servers[0].wait() == 0


async def test_a_server_without_etcd_refuses_locks_and_says_what_to_set(
    pg_server: Server, connect: Connect
) -> None:
    """Server mode without etcd_endpoints: everything but locks works."""
    api = connect(pg_server, pg_server.local_token, "b")
    await api.boards.CreateBoard(
        board_service_pb2.CreateBoardRequest(name="b", request_id=str(uuid.uuid4())), metadata=api.auth
    )
    await api.commit(put("k"))
    refusal = await refused(api.acquire("k"))
    assert refusal.reason == "LOCK_BACKEND_DOWN"
    assert "etcd_endpoints" in refusal.text
