"""The server as a process: crashes, churn, slow and silent clients."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from slateboard.v1 import board_service_pb2, entry_service_pb2, types_pb2
from tests.fix_server import MakeServer, Server
from tests.grpc.conftest import Api, append, put

Connect = Callable[[Server, str, str], Api]


async def new_board(server: Server, connect: Connect) -> Api:
    api = connect(server, server.local_token, f"b-{uuid.uuid4().hex[:12]}")
    await api.boards.CreateBoard(
        board_service_pb2.CreateBoardRequest(name=api.board, request_id=str(uuid.uuid4())), metadata=api.auth
    )
    return api


def rss_kib(server: Server) -> int:
    """Resident memory of the server process."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


async def commits_of(api: Api) -> list[entry_service_pb2.CommitResponse | object]:
    found: list[object] = []
    token = ""
    while True:
        page = await api.entries.ListCommits(
            entry_service_pb2.ListCommitsRequest(board=api.board, page_size=1_000, page_token=token),
            metadata=api.auth,
        )
        found += page.commits
        token = page.next_page_token
        if not token:
            return found


@pytest.mark.parametrize("round_", range(2))
async def test_a_kill_in_the_middle_of_64_writers_loses_and_tears_nothing(
    make_server: MakeServer, connect: Connect, round_: int
) -> None:
    """ruflo#2878 (M10): after kill -9 every acknowledged commit is there whole, and revisions have no gap."""
    server = make_server()
    api = await new_board(server, connect)
    acknowledged: dict[str, int] = {}
    stop = asyncio.Event()

    async def writer(number: int) -> None:
        for count in range(10_000):
            name = f"w{number:02}/{count:05}"
            try:
                answer = await api.commit(put(f"{name}/a", name.encode()), put(f"{name}/b", name.encode()))
            except grpc.aio.AioRpcError:
                return
            acknowledged[name] = answer.header.revision
            if len(acknowledged) >= 600:
                stop.set()

    writers = [asyncio.create_task(writer(number)) for number in range(64)]
    await asyncio.wait_for(stop.wait(), 40)
    server.kill()
    await asyncio.gather(*writers)
    server.start()
    again = connect(server, server.local_token, api.board)
    present: dict[str, int] = {}
    token = ""
    while True:
        page = await again.list("", page_size=1_000, page_token=token)
        present |= {entry.key: entry.mod_revision for entry in page.entries}
        token = page.next_page_token
        if not token:
            break
    for name, revision in acknowledged.items():
        assert present[f"{name}/a"] == present[f"{name}/b"] == revision
    whole = {key[:-2] for key in present}
    assert all(f"{name}/a" in present and f"{name}/b" in present for name in whole)
    head = page.header.revision
    revisions = sorted(set(present.values()))
    assert revisions == list(range(1, head + 1))
    assert len(await commits_of(again)) == head


async def test_an_acknowledged_request_is_replayed_after_a_crash(
    make_server: MakeServer, connect: Connect
) -> None:
    """jetcd#1444 (T21): a client that never heard the answer sends again, to a new process, and nothing doubles."""
    server = make_server()
    api = await new_board(server, connect)
    request_id = str(uuid.uuid4())
    first = await api.commit(append("log/"), request_id=request_id)
    server.kill()
    server.start()
    again = connect(server, server.local_token, api.board)
    answer = await again.commit(append("log/"), request_id=request_id)
    assert answer.replayed
    assert answer.header.revision == first.header.revision
    assert len((await again.list("log/")).entries) == 1


async def test_memory_stays_flat_under_cancelled_watches(make_server: MakeServer, connect: Connect) -> None:
    """grpc/grpc#43360 (T42), etcd#20655 (T34): watches that come and go leave nothing; 20,000 of them in the long run."""
    server = make_server()
    api = await new_board(server, connect)
    await api.commit(put("k", b"x" * 10_000))

    async def churn(count: int) -> None:
        async def one() -> None:
            stream = api.watch(after_revision=0)
            await stream.read()
            await stream.read()
            stream.cancel()

        for _ in range(count // 50):
            await asyncio.gather(*(one() for _ in range(50)))

    await churn(1_000)
    before = rss_kib(server)
    await churn(2_000)
    grown = rss_kib(server) - before
    assert grown < 8 * 1024, f"{grown} KiB more after 2,000 watches"
    info = await api.boards.GetBoard(
        board_service_pb2.GetBoardRequest(board=api.board), metadata=api.auth, timeout=10
    )
    assert info.activity.watches == 0


@pytest.mark.robustness
@pytest.mark.timeout(600)
async def test_memory_stays_flat_under_twenty_thousand_cancelled_watches(
    make_server: MakeServer, connect: Connect
) -> None:
    """The same, whole: 20,000 cancelled watches."""
    server = make_server()
    api = await new_board(server, connect)
    await api.commit(put("k", b"x" * 10_000))

    async def one() -> None:
        stream = api.watch(after_revision=0)
        await stream.read()
        stream.cancel()

    async def churn(count: int) -> None:
        for _ in range(count // 50):
            await asyncio.gather(*(one() for _ in range(50)))

    await churn(4_000)
    before = rss_kib(server)
    await churn(20_000)
    grown = rss_kib(server) - before
    assert grown < 16 * 1024, f"{grown} KiB more after 20,000 watches"


async def test_followers_that_never_read_cost_a_bounded_amount_and_slow_nobody(
    make_server: MakeServer, connect: Connect
) -> None:
    """etcd#16839 (T34): 40 silent followers of 20 MB of changes; memory stays bounded and others are served."""
    server = make_server()
    api = await new_board(server, connect)
    silent = [api.watch(after_revision=0) for _ in range(40)]
    for stream in silent:
        await stream.read()
    before = rss_kib(server)
    reader = api.watch(after_revision=0)
    for number in range(80):
        await api.commit(put(f"k/{number}", b"x" * 250_000))
    seen = 0
    while seen < 80:
        message = await asyncio.wait_for(reader.read(), 10)
        if message.WhichOneof("event") == "batch":
            seen = message.batch.revision
    grown = rss_kib(server) - before
    # The cache keeps these values in any case, each encoded once beside it.
    assert grown < 130 * 1024, f"{grown} KiB"
    for stream in silent:
        stream.cancel()


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/Los_Angeles"])
async def test_all_times_are_utc_whatever_the_servers_zone(
    make_server: MakeServer, connect: Connect, zone: str
) -> None:
    """mem0#4402 (M26): the zone of the machine shifts no stamp and no filter."""
    server = make_server(env={"TZ": zone})
    api = await new_board(server, connect)
    made = await api.commit(put("k"))
    seconds = made.commit_time.seconds
    entry = (await api.get("k")).entries[0]
    assert entry.commit_time.seconds == seconds
    at = made.commit_time.ToDatetime().isoformat() + "+00:00"
    for operator, expected in (
        (entry_service_pb2.FILTER_OPERATOR_GREATER_OR_EQUAL, 1),
        (entry_service_pb2.FILTER_OPERATOR_LESS, 0),
    ):
        wanted = entry_service_pb2.Filter(field="commit_time", operator=operator, values=[at])
        assert len((await api.list(filters=[wanted])).entries) == expected


async def test_a_read_at_a_revision_of_the_future_or_the_dropped_past_is_an_error(api: Api) -> None:
    """NVIDIA/OpenShell PR#3209 (M20), etcd#8668 (T31): explicit OUT_OF_RANGE with the oldest revision."""
    for number in range(5):
        await api.commit(put("k", str(number).encode(), version=number))
    await api.boards.CompactBoard(
        board_service_pb2.CompactBoardRequest(board=api.board, revision=4), metadata=api.auth
    )
    for revision, reason in ((3, "COMPACTED"), (9, "FUTURE_REVISION")):
        at = types_pb2.Consistency(mode=types_pb2.CONSISTENCY_MODE_EXACT, revision=revision)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.get("k", consistency=at)
        assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
        assert reason in str(refused.value.trailing_metadata())
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.watch(after_revision=2).read()
    assert "COMPACTED" in str(refused.value.trailing_metadata())
    history = await api.entries.ListVersions(
        entry_service_pb2.ListVersionsRequest(board=api.board, key=types_pb2.KeyRef(key="k")),
        metadata=api.auth,
    )
    assert [entry.compacted for entry in history.versions] == [False, False, True, True, True]
