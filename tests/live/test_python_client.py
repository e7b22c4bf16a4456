"""The client against a real server: contention, restarts, unknown outcomes, sessions."""

import asyncio
import threading
import uuid
from typing import Any

import pytest

import slateboard
from slateboard import aio
from tests.fix_server import MakeServer, Server


@pytest.fixture
def board_name(server: Server) -> str:
    """A fresh board on the shared server."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    with slateboard.connect(server.address, token=server.local_token) as client:
        client.create_board(name)
    return name


async def test_fifty_contenders_on_one_key_all_get_through(server: Server, board_name: str) -> None:
    """ksonnet#787, kubernetes#15493 (T26): update re-reads each time, jittered and bounded; nothing is lost."""
    async with aio.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        await board.put("counter", {"n": 0}, absent=True)

        async def increment() -> None:
            await board.update("counter", lambda value: {"n": value["n"] + 1})

        async with asyncio.timeout(30):
            await asyncio.gather(*(increment() for _ in range(50)))
        assert (await board.get("counter")).value == {"n": 50}


def test_disjoint_changes_of_many_threads_merge_by_themselves(server: Server, board_name: str) -> None:
    """odysseus#1940 (M09): twelve threads each add a key of their own to one JSON entry."""
    with slateboard.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        board.put("report", {}, absent=True)
        failures: list[BaseException] = []
        barrier = threading.Barrier(12)

        def add(number: int) -> None:
            try:
                barrier.wait()
                board.update("report", lambda value: {**value, f"part {number}": number})
            except BaseException as error:  # noqa: BLE001 -- shown below
                failures.append(error)

        threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failures == []
        assert board.get("report").value == {f"part {number}": number for number in range(12)}


async def test_a_watch_lives_through_three_restarts_of_the_server(make_server: MakeServer) -> None:
    """python-etcd3 PR#377, #1227 (T39): it resumes without gap or duplicate, and closes clean."""
    server = make_server()
    async with aio.connect(server.address, token=server.local_token) as client:
        await client.create_board("orders")
        board = client.board("orders")
        seen: list[int] = []
        arrived = asyncio.Condition()

        async def follow() -> None:
            async with board.watch("k/", after=0) as watch:
                async for batch in watch:
                    seen.append(batch.revision)
                    async with arrived:
                        arrived.notify_all()

        follower = asyncio.create_task(follow())
        for round_ in range(1, 4):
            for number in range(5):
                await board.put(f"k/{round_}/{number}", number, absent=True)
            async with arrived, asyncio.timeout(30):
                await arrived.wait_for(lambda: len(seen) >= 5 * round_)  # noqa: B023 -- awaited in this round
            if round_ == 2:
                server.kill()
                await asyncio.to_thread(server.start)
            else:
                await asyncio.to_thread(server.restart)
        await board.put("k/last", 1, absent=True)
        async with arrived, asyncio.timeout(30):
            await arrived.wait_for(lambda: len(seen) >= 16)
        follower.cancel()
        with pytest.raises(asyncio.CancelledError):
            await follower
        assert seen == list(range(1, 17))


async def test_a_compacted_follower_reads_the_state_again_and_agrees_with_the_server(
    server: Server, board_name: str
) -> None:
    """etcd#8668, cilium#3011 (T31): resume below the floor gives a snapshot, and the merged state is the server's."""
    async with aio.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        for number in range(3):
            await board.put(f"k/{number}", number, absent=True)
        for number in range(3):
            await board.put(f"k/{number}", number + 3, exists=True)
        await board.delete("k/2", exists=True)
        await board.compact(7)
        state: dict[str, Any] = {}
        async with board.watch("k/", after=1, resnapshot=True) as watch:
            async for batch in watch:
                if isinstance(batch, slateboard.SnapshotPage) and batch.first:
                    state.clear()
                for entry in batch.entries:
                    if entry.tombstone is None:
                        state[entry.key] = entry.value
                    else:
                        state.pop(entry.key, None)
                if not isinstance(batch, slateboard.SnapshotPage) or batch.last:
                    break
        assert state == {entry.key: entry.value for entry in await board.list("k/").all()}
        async with board.watch("k/", after=1) as strict:
            with pytest.raises(slateboard.Compacted):
                await anext(aiter(strict))


def test_deleting_what_is_not_there_is_not_success(server: Server, board_name: str) -> None:
    """agentmemory#833 (M30): an unknown key is a conflict or not found, and any_state says that nothing changed."""
    with slateboard.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        with pytest.raises(slateboard.Conflict):
            board.delete("nothing", exists=True)
        mine = board.private
        result = mine.delete("nothing", any_state=True)
        assert not result.changed
        assert result.version == 0


def test_a_dead_session_cannot_write(server: Server, board_name: str) -> None:
    """codedb#411 (M15), as far as commits go: a session that ended must be started anew."""
    with slateboard.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        with board.session(task="one", ttl=2) as session:
            board.put("k", 1, absent=True)
            token = session.token
    with slateboard.connect(server.address, token=server.local_token, session=token) as other:
        late = other.board(board_name)
        with pytest.raises(slateboard.SessionDead):
            late.put("k2", 1, absent=True)


def test_an_agent_that_writes_by_old_knowledge_is_told_what_is_there(server: Server, board_name: str) -> None:
    """ironclaw#7776 (M08): the typed conflict carries version, writer and key."""
    with slateboard.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        old = board.put("plan", {"step": 1}, absent=True)
        board.put("plan", {"step": 2}, expect=old)
        with pytest.raises(slateboard.Conflict) as conflict:
            board.put("plan", {"step": 9}, expect=old)
        violation = conflict.value.violations[0]
        assert (violation.key, violation.current_version, violation.current_principal) == ("plan", 2, "local")
