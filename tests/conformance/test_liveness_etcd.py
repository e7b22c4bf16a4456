"""What only etcd can do to us: members that die, stop or forget, history that is compacted, TLS and users."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.liveness import EtcdLiveness
from slateboard_server.liveness.connection import COMPACT, PUT, EtcdConnection
from slateboard_server.liveness.etcdpb import etcd_pb2 as pb
from slateboard_server.ports import Lease
from tests.conformance.test_liveness import fresh
from tests.fix_etcd import EtcdCluster, MakeEtcd

Open = Callable[..., Any]


@pytest.fixture
async def connect() -> AsyncIterator[Open]:
    made: list[EtcdLiveness] = []

    async def make(endpoints: Sequence[str], **options: Any) -> EtcdLiveness:
        liveness = EtcdLiveness(endpoints, **options)
        await liveness.start()
        made.append(liveness)
        return liveness

    yield make
    for liveness in made:
        await liveness.close()


async def until(check: Callable[[], bool]) -> None:
    """Wait until something holds, up to 10 s."""
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110 -- asked of another program
            await asyncio.sleep(0.02)


async def eventually(liveness: EtcdLiveness, lease: Lease, seconds: float = 20) -> None:
    """Wait until a renewal succeeds."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(SlateboardError):
                if await liveness.renew([lease]):
                    return
            await asyncio.sleep(0.1)


async def test_the_version_is_told(etcd: EtcdCluster, connect: Open) -> None:
    liveness: EtcdLiveness = await connect(etcd.endpoints)
    await until(lambda: liveness.describe() != "etcd")
    assert liveness.describe().startswith("etcd 3.")


async def test_a_killed_member_costs_a_moment_and_no_lease(make_etcd: MakeEtcd, connect: Open) -> None:
    """T10: also where it was the leader."""
    cluster = make_etcd(3)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    lease = fresh()
    await liveness.grant(lease, 10)
    leader = cluster.leader()
    assert leader is not None
    leader.kill()
    begin = time.monotonic()
    await eventually(liveness, lease)
    assert time.monotonic() - begin < 10
    assert await liveness.alive([lease]) == {lease}
    cluster.restart(leader)
    other = fresh()
    await liveness.grant(other, 10)
    assert await liveness.alive([lease, other]) == {lease, other}


async def test_a_stopped_member_costs_a_moment_once(make_etcd: MakeEtcd, connect: Open) -> None:
    cluster = make_etcd(3)
    leader = cluster.leader()
    follower = next(member for member in cluster.members if member is not leader)
    others = [member.endpoint for member in cluster.members if member is not follower]
    liveness: EtcdLiveness = await connect([follower.endpoint, *others])
    lease = fresh()
    await liveness.grant(lease, 30)
    await liveness.renew([lease])
    follower.send(signal.SIGSTOP)
    begin = time.monotonic()
    await liveness.renew([lease])
    await liveness.alive([lease])
    assert time.monotonic() - begin < 5
    begin = time.monotonic()
    for _ in range(20):
        await liveness.renew([lease])
        await liveness.alive([lease])
    assert time.monotonic() - begin < 10  # twenty times the moment would be thirty seconds
    follower.send(signal.SIGCONT)


async def test_deaths_go_on_after_all_members_restarted_three_times(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """T39 python-etcd3 PR#377, #1227: the watch resumes each time, and closing is clean."""
    cluster = make_etcd(1)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    heard: list[Lease] = []

    async def follow() -> None:
        async for lease in liveness.deaths():
            heard.append(lease)  # noqa: PERF401 -- a stream without end

    task = asyncio.create_task(follow())
    for _ in range(3):
        lease = fresh()
        await liveness.grant(lease, 60)
        [member] = cluster.members
        member.kill()
        cluster.restart(member)
        cluster.wait()
        await eventually(liveness, lease)
        await liveness.revoke([lease])
        await until(lambda: lease in heard)  # noqa: B023 -- awaited here
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_that_fell_behind_compaction_starts_again_from_the_present(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """Deaths after it are told; those in between are for the sweep to find."""
    cluster = make_etcd(1)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    heard: list[Lease] = []
    opened = asyncio.Event()
    stream = liveness._etcd.stream

    async def behind(method: Any) -> Any:
        opened.set()
        return await stream(method)

    async def follow() -> None:
        async for lease in liveness.deaths():
            heard.append(lease)  # noqa: PERF401 -- a stream without end

    request = liveness._watch_request
    asked: list[int] = []

    def from_long_ago(revision: int) -> pb.WatchRequest:
        asked.append(revision)
        return request(1 if len(asked) == 1 else revision)

    other = EtcdConnection(cluster.endpoints)
    put = await other.call(PUT, pb.PutRequest(key=b"x", value=b"1"))
    for number in range(5):
        put = await other.call(PUT, pb.PutRequest(key=b"x", value=b"%d" % number))
    await other.call(COMPACT, pb.CompactionRequest(revision=put.header.revision, physical=True))
    await other.close()
    liveness._etcd.stream = behind  # type: ignore[method-assign]
    liveness._watch_request = from_long_ago  # type: ignore[method-assign]
    task = asyncio.create_task(follow())
    await opened.wait()
    await until(lambda: len(asked) > 1)
    assert asked[1] == 0
    await asyncio.sleep(0.3)
    lease = fresh()
    await liveness.grant(lease, 60)
    await liveness.revoke([lease])
    await until(lambda: lease in heard)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_etcd_that_is_down_is_said_within_seconds_and_comes_back(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    cluster = make_etcd(1)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    lease = fresh()
    await liveness.grant(lease, 600)
    [member] = cluster.members
    member.kill()

    async def down(call: Any) -> None:
        begin = time.monotonic()
        with pytest.raises(SlateboardError) as caught:
            await call
        assert caught.value.reason is Reason.LOCK_BACKEND_DOWN
        assert "rpc" not in caught.value.message.lower()
        assert time.monotonic() - begin < 8

    await asyncio.gather(
        down(liveness.grant(fresh(), 5)), down(liveness.renew([lease])), down(liveness.alive([lease]))
    )
    cluster.restart(member)
    await eventually(liveness, lease)


async def test_an_etcd_that_lost_its_data_has_no_lease_left(make_etcd: MakeEtcd, connect: Open) -> None:
    """Every lock is then dead, and ends; new ones can be had."""
    cluster = make_etcd(1)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    lease = fresh()
    await liveness.grant(lease, 600)
    [member] = cluster.members
    member.kill()
    member.forget_data()
    cluster.restart(member)
    cluster.wait()
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(SlateboardError):
                assert await liveness.alive([lease]) == set()
                break
    assert await liveness.renew([lease]) == {}
    other = fresh()
    await liveness.grant(other, 10)
    assert await liveness.alive([other]) == {other}


def _certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "etcd.pem", folder / "etcd.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes certificates with openssl, which is not there"
)
async def test_connections_are_encrypted_and_show_a_certificate_where_that_is_asked_for(
    make_etcd: MakeEtcd, connect: Open, tmp_path: Path
) -> None:
    cert, key = await asyncio.to_thread(_certificate, tmp_path)
    extra = (f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={cert}", "--client-cert-auth")
    cluster = make_etcd(1, extra=extra, scheme="https")
    liveness: EtcdLiveness = await connect(cluster.endpoints, ca=cert, cert=cert, key=key)
    lease = fresh()
    await liveness.grant(lease, 10)
    assert await liveness.alive([lease]) == {lease}
    assert set(await liveness.renew([lease])) == {lease}
    nobody: EtcdLiveness = await connect(cluster.endpoints, ca=cert)
    with pytest.raises(SlateboardError) as caught:
        await nobody.alive([lease])
    assert caught.value.reason is Reason.LOCK_BACKEND_DOWN


def _strings(*fields: str) -> bytes:
    """A protobuf message of strings, numbered from 1."""
    return b"".join(
        bytes((number << 3 | 2, len(field))) + field.encode() for number, field in enumerate(fields, 1)
    )


async def test_a_user_logs_in_and_again_when_the_token_no_longer_counts(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """T39: auth refresh. Tokens end after two seconds here; calls, renewals and the watch go on with new ones."""
    cluster = make_etcd(1, extra=("--auth-token-ttl=2",))
    [endpoint] = cluster.endpoints
    async with grpc.aio.insecure_channel(endpoint) as channel:
        steps = [("UserAdd", _strings("root", "secret")), ("RoleAdd", _strings("root"))]
        steps += [("UserGrantRole", _strings("root", "root")), ("AuthEnable", b"")]
        for name, message in steps:
            call: Any = channel.unary_unary(f"/etcdserverpb.Auth/{name}")
            await call(message, timeout=10)
    liveness: EtcdLiveness = await connect(cluster.endpoints, username="root", password="secret")
    heard: list[Lease] = []

    async def follow() -> None:
        async for lease in liveness.deaths():
            heard.append(lease)  # noqa: PERF401 -- a stream without end

    task = asyncio.create_task(follow())
    for _ in range(3):
        lease = fresh()
        await liveness.grant(lease, 30)
        assert set(await liveness.renew([lease])) == {lease}
        assert await liveness.alive([lease]) == {lease}
        await liveness.revoke([lease])
        await until(lambda: lease in heard)  # noqa: B023 -- awaited here
        await asyncio.sleep(2.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    stranger: EtcdLiveness = await connect(cluster.endpoints, username="root", password="guessed")
    with pytest.raises(SlateboardError) as caught:
        await stranger.grant(fresh(), 10)
    assert caught.value.reason is Reason.LOCK_BACKEND_DOWN
    assert "guessed" not in caught.value.message
