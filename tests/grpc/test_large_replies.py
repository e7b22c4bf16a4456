"""Replies and streams that would grow too large or take too long: cut, told by name, or ended with a word."""

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable

import grpc

from slateboard.v1 import (
    admin_service_pb2,
    board_service_pb2,
    entry_service_pb2,
    provenance_service_pb2,
    types_pb2,
)
from tests.fix_server import MakeServer, Server
from tests.grpc.conftest import Api, NewApi, append, put, refused

LIMIT = 3_670_016
LONG = "k" * 440


async def test_commits_of_many_ops_come_in_pages_below_the_message_limit(api: Api) -> None:
    """grpc.io#1254 (T43): 40 commits of 128 ops with long keys pass 4 MiB; asked for at once they come in pages."""
    for number in range(40):
        await api.commit(*(append(f"{LONG}/{number}/") for _ in range(128)))
    seen: list[int] = []
    token = ""
    while True:
        request = entry_service_pb2.ListCommitsRequest(board=api.board, page_size=1_000, page_token=token)
        page = await api.entries.ListCommits(request, metadata=api.auth, timeout=30)
        assert page.ByteSize() <= LIMIT
        assert page.commits
        seen += [commit.revision for commit in page.commits]
        token = page.next_page_token
        if not token:
            break
    assert seen == list(range(40, 0, -1))


async def test_an_entry_as_large_as_a_request_can_make_it_can_be_read(api: Api) -> None:
    """langgraph-style trap: what was accepted must not become unreadable because its reply passes a limit."""
    await api.commit(put(LONG))
    source = types_pb2.Source(key=LONG, version=1)
    derivations = [types_pb2.Derivation(sources=[source] * 256) for _ in range(21)]
    large = put("large", b"x" * (1 << 20), provenance=types_pb2.Provenance(derivations=derivations))
    assert large.ByteSize() > LIMIT - (300 << 10)
    await api.commit(large)
    reply = await api.get("large")
    assert len(reply.entries[0].content.value) == 1 << 20
    listed = await api.list()
    while listed.next_page_token and not any(entry.key == "large" for entry in listed.entries):
        listed = await api.list(page_token=listed.next_page_token)
    assert any(entry.key == "large" for entry in listed.entries)


async def test_a_lineage_of_long_annotations_is_answered_by_name_and_trust(api: Api) -> None:
    """Every node is there; where annotations do not fit the later ones are told without them."""
    uris = [f"https://example.org/{'u' * 1_900}/{number}" for number in range(16)]
    for start in range(0, 120, 40):
        notes = types_pb2.Provenance(source_uris=uris)
        await api.commit(*(put(f"row/{start + number}", provenance=notes) for number in range(40)))
    sources = [types_pb2.Source(key=f"row/{number}", version=1) for number in range(120)]
    derived = types_pb2.Provenance(derivations=[types_pb2.Derivation(sources=sources)])
    await api.commit(put("sum", provenance=derived))
    request = provenance_service_pb2.TraceRequest(board=api.board, key=types_pb2.KeyRef(key="sum"))
    graph = await api.lineage.Trace(request, metadata=api.auth, timeout=20)
    assert graph.ByteSize() <= LIMIT
    assert len(graph.nodes) == 121
    assert all(node.entry.key and node.entry.content.trust for node in graph.nodes)
    assert not graph.truncated


async def slow_server(
    make_server: MakeServer, connect: Callable[[Server, str, str], Api]
) -> tuple[Server, Api]:
    """A server that gives a follower two seconds, with a board."""
    server = make_server(env={"SLATEBOARD_WATCH_WRITE_TIMEOUT": "2"})
    api = connect(server, server.local_token, f"b-{uuid.uuid4().hex[:12]}")
    made = board_service_pb2.CreateBoardRequest(name=api.board, request_id=str(uuid.uuid4()))
    await api.boards.CreateBoard(made, metadata=api.auth)
    return server, api


async def wait_for_log(server: Server, words: str, timeout: float = 15.0) -> None:
    """Wait until the server has said something."""
    deadline = time.monotonic() + timeout
    while words not in server.log():
        assert time.monotonic() < deadline, f"the log never said {words}"
        await asyncio.sleep(0.05)


async def test_a_follower_that_takes_nothing_is_ended_and_can_resume(
    make_server: MakeServer, connect: Callable[[Server, str, str], Api]
) -> None:
    """etcd#16839 (T34): a blocked write ends the watch with WATCH_TOO_SLOW and the revision to resume after."""
    server, api = await slow_server(make_server, connect)
    follower = connect(server, api.token, api.board)
    stream = follower.watch(after_revision=0)
    await stream.read()
    for number in range(40):
        await api.commit(put(f"k/{number}", b"x" * 500_000))
    await wait_for_log(server, "WATCH_TOO_SLOW")
    seen: list[int] = []

    async def read_on() -> None:
        while (message := await asyncio.wait_for(stream.read(), 10)) is not grpc.aio.EOF:
            seen.append(message.batch.revision)

    said = await refused(read_on())
    assert (said.code, said.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WATCH_TOO_SLOW")
    last = int(said.metadata["last_revision"])
    # All up to it has come; what was on its way may have come, too.
    assert seen == list(range(1, len(seen) + 1))
    assert last <= len(seen) < 40
    again = api.watch(after_revision=last)
    got: list[int] = []
    while not got or got[-1] < 40:
        message = await asyncio.wait_for(again.read(), 10)
        got += [message.batch.revision] if message.WhichOneof("event") == "batch" else []
    assert got == list(range(last + 1, 41))
    again.cancel()


async def test_a_follower_that_vanishes_leaves_no_stack_trace(
    make_server: MakeServer, connect: Callable[[Server, str, str], Api]
) -> None:
    """grpc#28999: a client that dies while a message or a status is on its way is nothing to report."""
    server, api = await slow_server(make_server, connect)
    program = (
        "import sys, time, grpc\n"
        "from slateboard.v1 import entry_service_pb2 as pb, entry_service_pb2_grpc as stubs\n"
        "channel = grpc.insecure_channel(sys.argv[1])\n"
        "metadata = (('authorization', 'Bearer ' + sys.argv[2]),)\n"
        "watch = stubs.EntryServiceStub(channel).Watch(\n"
        "    pb.WatchRequest(board=sys.argv[3], after_revision=0), metadata=metadata)\n"
        "next(watch); print('following', flush=True); time.sleep(60)\n"
    )
    for moment in ("write", "status"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, server.address, api.token, api.board,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert await process.stdout.readline() == b"following\n"
        for number in range(40):
            await api.commit(put(f"{moment}/{number}", b"x" * 500_000))
        if moment == "status":
            await wait_for_log(server, "WATCH_TOO_SLOW")
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await asyncio.sleep(0.5)
    await api.commit(put("still/there"))
    assert "Traceback" not in server.log()
    assert "ExecuteBatchError" not in server.log()


async def test_nobody_changes_or_becomes_somebody_of_more_trust(
    api: Api, operator: Api, join: NewApi
) -> None:
    """A ceiling is only worth something if its owner cannot rotate the token of somebody above it."""
    low = await join(role=admin_service_pb2.ROLE_OPERATOR, trust_ceiling=types_pb2.TRUST_USER)
    rotate = admin_service_pb2.RotateTokenRequest(id="operator", request_id=str(uuid.uuid4()))
    said = await refused(low.admin.RotateToken(rotate, metadata=low.auth, timeout=10))
    assert (said.code, said.reason) == (grpc.StatusCode.PERMISSION_DENIED, "DENIED")
    lowered = admin_service_pb2.Principal(id="operator", role=admin_service_pb2.ROLE_OBSERVER)
    update = admin_service_pb2.UpdatePrincipalRequest(principal=lowered)
    said = await refused(low.admin.UpdatePrincipal(update, metadata=low.auth, timeout=10))
    assert said.reason == "DENIED"
    me = await operator.admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), metadata=operator.auth, timeout=10)
    assert me.principal.role == admin_service_pb2.ROLE_OPERATOR
