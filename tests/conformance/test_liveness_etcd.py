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
from slateboard_server.liveness.etcd import _Watched
from slateboard_server.liveness.etcdpb import etcd_pb2 as pb
from slateboard_server.liveness.keepalive import _Asks
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


async def test_a_stopped_leader_costs_an_election_and_deaths_go_on_elsewhere(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """Its connections stay open and say nothing: calls, renewals and the watch all have to leave it."""
    cluster = make_etcd(3)
    leader = cluster.leader()
    assert leader is not None
    others = [member.endpoint for member in cluster.members if member is not leader]
    liveness: EtcdLiveness = await connect([leader.endpoint, *others])
    heard: list[Lease] = []

    async def follow() -> None:
        async for lease in liveness.deaths():
            heard.append(lease)  # noqa: PERF401 -- a stream without end

    task = asyncio.create_task(follow())
    lease = fresh()
    await liveness.grant(lease, 60)
    await liveness.renew([lease])
    leader.send(signal.SIGSTOP)
    begin = time.monotonic()
    await eventually(liveness, lease)
    assert time.monotonic() - begin < 12
    await liveness.revoke([lease])
    begin = time.monotonic()
    await until(lambda: lease in heard)
    assert time.monotonic() - begin < 8
    leader.send(signal.SIGCONT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_deaths_go_on_where_the_first_member_is_stopped_before_the_watch_begins(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """Nothing else is asked of etcd meanwhile that would find out."""
    cluster = make_etcd(3)
    leader = cluster.leader()
    stopped = next(member for member in cluster.members if member is not leader)
    others = [member.endpoint for member in cluster.members if member is not stopped]
    stopped.send(signal.SIGSTOP)
    liveness: EtcdLiveness = await connect([stopped.endpoint, *others])
    other: EtcdLiveness = await connect(others)
    heard: list[Lease] = []

    async def follow() -> None:
        async for lease in liveness.deaths():
            heard.append(lease)  # noqa: PERF401 -- a stream without end

    task = asyncio.create_task(follow())
    await asyncio.sleep(4)
    lease = fresh()
    await other.grant(lease, 60)
    await other.revoke([lease])
    await until(lambda: lease in heard)
    stopped.send(signal.SIGCONT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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


def _told(**fields: Any) -> pb.WatchResponse:
    at = fields.pop("at")
    return pb.WatchResponse(header=pb.ResponseHeader(revision=at), **fields)


def test_a_watch_goes_on_from_what_was_told_and_not_from_where_etcd_stands() -> None:
    """A watch that catches up is told in several replies, each with etcd's present revision in its header."""
    watched = _Watched()
    assert watched.take(_told(at=100, created=True))
    assert watched.revision == 101
    assert watched.take(_told(at=900, events=[pb.Event(kv=pb.KeyValue(mod_revision=150))]))
    assert watched.revision == 151
    assert watched.take(_told(at=950, created=True))  # opened again; 151 to 950 are still to come
    assert watched.revision == 151
    part = _told(at=950, fragment=True, events=[pb.Event(kv=pb.KeyValue(mod_revision=200))])
    assert watched.take(part)  # the rest of 200 may be in the next part
    assert watched.revision == 151
    assert watched.take(_told(at=950))  # a progress message: all up to here was told
    assert watched.revision == 951


def test_a_watch_begins_anew_where_history_was_compacted_or_lost() -> None:
    watched = _Watched()
    watched.take(_told(at=100, created=True))
    assert not watched.take(_told(at=500, canceled=True, compact_revision=400))
    assert watched.revision == 0
    watched.take(_told(at=500, created=True))
    assert not watched.take(_told(at=3, created=True))  # restored from nothing: 501 is far away
    assert watched.revision == 0


async def test_many_questions_to_an_etcd_that_is_stopped_are_all_answered_within_seconds(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """However many leases a call is about, and however many calls wait: and nothing of them is left running."""
    cluster = make_etcd(1)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    leases = [fresh(number) for number in range(500)]
    await asyncio.gather(*(liveness.grant(lease, 600) for lease in leases))
    await liveness.renew(leases[:1])
    before = len(asyncio.all_tasks())
    [member] = cluster.members
    member.send(signal.SIGSTOP)
    begin = time.monotonic()
    calls: list[Any] = [liveness.alive(leases[:1]), liveness.alive(leases[1:2]), liveness.alive(leases)]
    calls += [liveness.time_left(leases), liveness.revoke(leases[100:]), liveness.renew(leases)]
    calls += [liveness.grant(fresh(), 5)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begin < 7
    assert [getattr(answer, "reason", answer) for answer in answers] == [Reason.LOCK_BACKEND_DOWN] * 7
    member.send(signal.SIGCONT)
    await eventually(liveness, leases[0])
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_who_gave_up_on_a_renewal_does_not_have_it_done_later(
    make_etcd: MakeEtcd, connect: Open
) -> None:
    """A holder that is gone must not live longer because etcd was away when it asked last."""
    cluster = make_etcd(1)
    liveness: EtcdLiveness = await connect(cluster.endpoints)
    given_up, wanted = fresh(), fresh()
    await liveness.grant(given_up, 600)
    await liveness.grant(wanted, 600)
    [member] = cluster.members
    member.kill()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await liveness.renew([given_up])
    cluster.restart(member)
    cluster.wait()
    await asyncio.sleep(2)
    asks = liveness._keep_alive._asks
    await eventually(liveness, wanted)
    assert not asks.unsent
    assert not asks.sent


async def test_a_renewal_is_not_answered_with_one_that_was_sent_before_it() -> None:
    """The lease may have ended in between: only what is sent after the question can answer it."""
    asks = _Asks()
    first = asks.ask(7)
    first.waiting = 1
    assert asks.ask(7) is first
    assert asks.next() is first
    second = asks.ask(7)
    assert second is not first
    second.waiting = 1
    assert asks.next() is second
    asks.answered(7, 30)
    assert 29 < first.answer.result() <= 30
    assert not second.answer.done()
    asks.answered(7, 0)
    assert second.answer.result() == 0


async def test_renewals_that_a_broken_stream_left_open_are_asked_once_more_and_answer_all() -> None:
    asks = _Asks()
    first = asks.ask(7)
    first.waiting = 1
    asks.next()
    second = asks.ask(7)
    second.waiting = 1
    dropped = asks.ask(8)
    asks.ask_again()
    assert asks.next() is first
    assert asks.next() is None
    asks.answered(7, 30)
    assert second.answer.result() == first.answer.result()
    assert not dropped.answer.done()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ca": Path("/nowhere/ca.pem")}, "/nowhere/ca.pem"),
        ({"ca": Path(__file__)}, "not a PEM file"),
        ({"cert": Path(__file__)}, "belong together"),
    ],
)
async def test_certificates_that_cannot_be_used_are_refused_at_the_start(
    options: dict[str, Path], named: str
) -> None:
    liveness = EtcdLiveness(["127.0.0.1:1"], **options)  # type: ignore[arg-type]
    with pytest.raises(SlateboardError, match=named):
        await liveness.start()
    await liveness.close()


async def test_an_etcd_that_is_not_there_yet_does_not_keep_the_start(connect: Open) -> None:
    liveness: EtcdLiveness = await connect(["127.0.0.1:1"])
    assert liveness.describe() == "etcd"
    await liveness.close()
    with pytest.raises(SlateboardError):
        await liveness.alive([fresh()])
    with pytest.raises(SlateboardError):
        await liveness.renew([fresh()])


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
    # A watch alone, on a token that has ended: nobody else's call gets it a new one.
    assert liveness._etcd._token
    idle: EtcdLiveness = await connect(cluster.endpoints, username="root", password="secret")
    idle._etcd._token = "stale.1"
    alone = idle.deaths()
    follower = asyncio.ensure_future(anext(alone))
    await until(lambda: idle._etcd._token not in {None, "stale.1"})
    await asyncio.sleep(0.5)
    lease = fresh()
    await liveness.grant(lease, 30)
    await liveness.revoke([lease])
    async with asyncio.timeout(10):
        assert await follower == lease
    await alone.aclose()  # type: ignore[attr-defined]
    stranger: EtcdLiveness = await connect(cluster.endpoints, username="root", password="guessed")
    with pytest.raises(SlateboardError) as caught:
        await stranger.grant(fresh(), 10)
    assert caught.value.reason is Reason.LOCK_BACKEND_DOWN
    assert "guessed" not in caught.value.message
