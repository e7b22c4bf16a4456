"""Two servers over one PostgreSQL: one order, one answer, each sees what the other acknowledged."""

import asyncio
import uuid
from collections.abc import Callable

import grpc
import grpc.aio
import psycopg
import pytest

from slateboard.v1 import board_service_pb2, policy_pb2, types_pb2
from tests.fix_server import MakeServer, Server
from tests.grpc.conftest import Api, put, refused

Connect = Callable[[Server, str, str], Api]


@pytest.fixture
async def pair(make_server: MakeServer, postgres_dsn: str, connect: Connect) -> tuple[Api, Api]:
    """The same supervisor on the same board, through two servers."""
    first = make_server(database_url=postgres_dsn)
    second = make_server(database_url=postgres_dsn)
    board = f"b-{uuid.uuid4().hex[:12]}"
    one = connect(first, first.local_token, board)
    two = connect(second, first.local_token, board)
    await one.boards.CreateBoard(
        board_service_pb2.CreateBoardRequest(name=board, request_id=str(uuid.uuid4())), metadata=one.auth
    )
    return one, two


async def test_a_commit_acknowledged_by_one_is_read_through_the_other(pair: tuple[Api, Api]) -> None:
    """spicedb#3260 (T24): LATEST and AT_LEAST never give old data, whichever server is asked."""
    one, two = pair
    for number in range(1, 40):
        writer, reader = (one, two) if number % 2 else (two, one)
        made = await writer.commit(put("k", str(number).encode(), version=number - 1))
        latest = await reader.get("k")
        assert latest.entries[0].content.value == str(number).encode()
        at_least = types_pb2.Consistency(
            mode=types_pb2.CONSISTENCY_MODE_AT_LEAST, revision=made.header.revision
        )
        assert (await reader.get("k", consistency=at_least)).entries[0].version == number


async def test_racing_writers_on_two_servers_lose_nothing(pair: tuple[Api, Api]) -> None:
    """Revisions stay gap-free and increments add up across servers (T25, T35)."""
    await pair[0].commit(put("counter", b"0"))
    done = 0

    async def increment(api: Api) -> None:
        nonlocal done
        while True:
            entry = (await api.get("counter")).entries[0]
            value = str(int(entry.content.value) + 1).encode()
            try:
                await api.commit(put("counter", value, version=entry.version))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.ABORTED:
                    raise
                continue
            done += 1
            return

    await asyncio.gather(*(increment(api) for api in pair for _ in range(10)))
    entry = (await pair[1].get("counter")).entries[0]
    assert (entry.content.value, entry.mod_revision) == (b"20", 21)
    assert done == 20


async def test_a_retry_on_another_server_is_replayed(pair: tuple[Api, Api]) -> None:
    """jetcd#1444 (T21): the answer is found wherever the retry arrives."""
    one, two = pair
    request_id = str(uuid.uuid4())
    first = await one.commit(put("k"), request_id=request_id)
    again = await two.commit(put("k"), request_id=request_id)
    assert again.replayed
    assert again.header.revision == first.header.revision


async def test_a_watch_on_one_server_follows_commits_on_the_other(pair: tuple[Api, Api]) -> None:
    """In order, each once, promptly."""
    one, two = pair
    stream = two.watch(after_revision=0)
    await stream.read()
    for number in range(30):
        await one.commit(put(f"k/{number}"))
    seen: list[int] = []
    while len(seen) < 30:
        message = await asyncio.wait_for(stream.read(), 5)
        if message.WhichOneof("event") == "batch":
            seen.append(message.batch.revision)
    stream.cancel()
    assert seen == list(range(1, 31))


async def test_a_lost_wakeup_delays_a_watch_by_seconds_at_most(
    pair: tuple[Api, Api], postgres_dsn: str
) -> None:
    """dbos-transact-py#562 (T37): the LISTEN connections are killed around a commit; it is delivered all the same."""
    one, two = pair
    stream = two.watch(after_revision=0)
    await stream.read()
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        killed = admin.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = 'slateboard listen' AND datname = current_database()"
        ).fetchone()
        assert killed is not None
        assert killed[0] >= 1
        await one.commit(put("k"))
    while True:
        message = await asyncio.wait_for(stream.read(), 4)
        if message.WhichOneof("event") == "batch":
            break
    stream.cancel()
    assert message.batch.revision == 1


async def test_a_policy_set_through_one_server_binds_on_the_other_at_once(pair: tuple[Api, Api]) -> None:
    """Policies are read inside each commit's transaction."""
    one, two = pair
    assert (await refused(two.commit(put("k", version=None)))).reason == "POLICY_FORBIDS"
    rule = policy_pb2.RegionRule(any_state=policy_pb2.ANY_STATE_ALLOWED)
    await one.boards.SetPolicy(
        board_service_pb2.SetPolicyRequest(
            board=one.board, expected_version=1, policy=policy_pb2.Policy(rules=[rule])
        ),
        metadata=one.auth,
    )
    await two.commit(put("k", version=None))


async def test_a_board_deleted_through_one_server_is_gone_on_the_other(
    pair: tuple[Api, Api], make_server: MakeServer, postgres_dsn: str, connect: Connect
) -> None:
    """Reads, commits and watches end; a board of the same name made anew is another one."""
    one, two = pair
    await two.commit(put("k"))
    stream = two.watch(after_revision=0)
    await stream.read()
    third = make_server(database_url=postgres_dsn)
    info = await one.boards.GetBoard(board_service_pb2.GetBoardRequest(board=one.board), metadata=one.auth)
    operator = connect(third, third.operator_token, one.board)
    await operator.boards.DeleteBoard(
        board_service_pb2.DeleteBoardRequest(board=one.board, incarnation=info.header.incarnation),
        metadata=operator.auth,
    )
    assert (await refused(two.get("k"))).reason == "BOARD_NOT_FOUND"
    assert (await refused(two.commit(put("k2")))).reason == "BOARD_NOT_FOUND"

    async def until_ended() -> None:
        while True:
            await stream.read()

    assert (await refused(asyncio.wait_for(until_ended(), 10))).reason == "BOARD_NOT_FOUND"
