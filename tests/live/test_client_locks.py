"""The Python client's locks against a real server: held, renewed, lost, handed on."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slateboard
from slateboard import aio
from tests.fix_server import MakeServer, Server


@pytest.fixture
def own(make_server: MakeServer) -> Server:
    """A server that this test may stop."""
    return make_server()


@pytest.fixture
def board(server: Server, request: pytest.FixtureRequest) -> Iterator[slateboard.Board]:
    with slateboard.connect(server.address, token=server.local_token) as client:
        yield client.create_board(f"l-{os.urandom(6).hex()}")


def test_a_held_lock_is_renewed_and_carries_its_claim(board: slateboard.Board) -> None:
    with board.lock("data/", ttl=2, purpose="dedupe") as held:
        entry = held.put("data/a", 1, absent=True)
        with pytest.raises(slateboard.LockHeld) as caught:
            board.put("data/b", 1, absent=True)
        assert caught.value.lock_id == held.lock_id
        assert caught.value.violations[0].lock_holder
        time.sleep(3)  # beyond the ttl
        held.put("data/a", 2, expect=entry)
        held.update("data/a", lambda value: value + 1)
        held.run(lambda tx: tx.put("data/a", tx.get("data/a").value + 1))
        held.append("data/log/", "x")
        assert 0 < held.gate() <= 2
        [listed] = board.locks("data/a")
        assert (listed.lock_id, listed.purpose) == (held.lock_id, "dedupe")
        assert listed.holder.endswith(f"/{os.getpid()}")
    assert board.get("data/a").value == 4
    board.put("data/b", 1, absent=True)
    assert [lock.state for lock in board.locks(include_ended=True)] == [slateboard.LockState.RELEASED]
    with pytest.raises(slateboard.LockLost):
        held.put("data/c", 1, absent=True)


def test_a_try_a_timeout_and_a_wait(board: slateboard.Board) -> None:
    with board.lock("k") as held:
        for wait in (0, 0.3):
            begin = time.monotonic()
            with pytest.raises(slateboard.LockHeld) as caught, board.lock("k", wait=wait):
                pass
            assert wait <= time.monotonic() - begin < wait + 5
            assert caught.value.lock_id == held.lock_id
            assert caught.value.retry_after is not None
        got = threading.Event()

        def ask() -> None:
            with board.lock("k", wait=20, ttl=2) as later:
                assert later.token > held.token
                time.sleep(2.5)
                later.gate()
                got.set()

        thread = threading.Thread(target=ask)
        thread.start()
        while not board.waiters().all():
            time.sleep(0.02)
    assert got.wait(10)
    thread.join()


def test_shared_locks_and_several_scopes(board: slateboard.Board) -> None:
    with (
        board.lock("a/", shared=True),
        board.lock("a/", shared=True) as one,
        pytest.raises(slateboard.LockHeld),
    ):
        one.put("a/x", 1, absent=True)
    with board.lock(["a/", "b"]) as held:
        held.put("a/x", 1, absent=True)
        held.put("b", 1, absent=True)
        assert {scope.path for scope in held.granted.scopes} == {"a/", "b"}
    with board.lock("c") as first, board.lock("d") as second:
        ops = [slateboard.Put("c", 1, absent=True), slateboard.Put("d", 1, absent=True)]
        board.commit(ops, claims=[first, second])
        assert second.token > first.token


def test_a_lock_ended_by_force_is_said_within_a_renewal_and_at_the_end(board: slateboard.Board) -> None:
    """T16 consul#9788: an event, an exception at the next call, an exception at the end of the body."""
    with pytest.raises(slateboard.LockLost) as caught, board.lock("k", ttl=3) as held:
        board.force_release(held.lock_id, expected_token=held.token, reason="it hangs")
        assert held.lost.wait(3)
        for call in (lambda: held.get("k", None), lambda: held.put("k", 1, absent=True), held.gate):
            with pytest.raises(slateboard.LockLost):
                call()
        assert held.time_left == 0
    assert caught.value.reason == "LOCK_REVOKED"
    assert "it hangs" in caught.value.message
    assert board.get("k", None) is None


def test_a_server_that_goes_silent_loses_the_lock_here_no_later_than_its_ttl(own: Server) -> None:
    """T09 etcd#6922: renewals are not answered; the client says so by itself, never later than ttl."""
    with slateboard.connect(own.address, token=own.local_token, timeout=2) as client:
        board = client.create_board("b")
        begin = 0.0
        try:
            with pytest.raises(slateboard.LockLost) as caught, board.lock("k", ttl=3) as held:
                time.sleep(1.2)
                own.send(signal.SIGSTOP)
                begin = time.monotonic()
                assert held.lost.wait(5)
                assert time.monotonic() - begin <= 3.5  # what was left of its ttl, and a busy machine
                with pytest.raises(slateboard.LockLost):
                    held.put("k", 1, absent=True)
        finally:
            own.send(signal.SIGCONT)
        assert caught.value.reason == "LOCK_EXPIRED"
        assert board.get("k", None) is None


async def test_losing_a_lock_cancels_an_async_body(server: Server) -> None:
    async with aio.connect(server.address, token=server.local_token) as client:
        board = await client.create_board(f"l-{os.urandom(6).hex()}")
        reached = False
        with pytest.raises(slateboard.LockLost):
            async with board.lock("k", ttl=2) as held:
                await board.force_release(held.lock_id, expected_token=held.token, reason="test")
                await asyncio.sleep(30)
                reached = True
        assert not reached
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        with pytest.raises(slateboard.LockLost):
            async with board.lock("k", ttl=2, cancel_on_loss=False, wait=5) as held:
                await board.force_release(held.lock_id, expected_token=held.token, reason="test")
                await asyncio.wait_for(held.lost.wait(), 3)
                with pytest.raises(slateboard.LockLost):
                    await held.gate()
                reached = True  # the body runs on, and hears of it at its end
        assert reached


async def test_a_cancelled_ask_leaves_nothing(server: Server) -> None:
    async with aio.connect(server.address, token=server.local_token) as client:
        board = await client.create_board(f"l-{os.urandom(6).hex()}")

        async def ask() -> None:
            async with board.lock("k", wait=30, ttl=2):
                pass

        async with board.lock("k"):
            task = asyncio.create_task(ask())
            while not await board.waiters().all():  # noqa: ASYNC110 -- asked of the server
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with board.lock("k", wait=10):
            pass
        async with asyncio.timeout(10):
            while await board.waiters().all():  # noqa: ASYNC110 -- asked of the server
                await asyncio.sleep(0.05)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("slateboard-lock")]


def test_a_lock_is_handed_to_another_agent(board: slateboard.Board, server: Server) -> None:
    with slateboard.connect(server.address, token=server.operator_token) as operator:
        name = f"p-{os.urandom(4).hex()}"
        made = operator.admin.create_principal(name, role=slateboard.Role.WORKER, boards=[board.info().name])
    with slateboard.connect(server.address, token=made.token) as client:
        theirs = client.board(board.info().name)
        with board.lock("k", ttl=3) as held:
            held.put("k", 1, absent=True)
            handed = held.transfer(name)
            with pytest.raises(slateboard.LockLost):
                held.put("k", 2, exists=True)
        with theirs.adopt_lock(handed.lock_id, handed.token) as taken:
            time.sleep(4)
            taken.update("k", lambda value: value + 1)
        with pytest.raises(slateboard.LockLost), theirs.adopt_lock(handed.lock_id, handed.token):
            pass
    assert board.get("k").value == 2


def test_no_thread_is_left_behind(board: slateboard.Board) -> None:
    for _ in range(5):
        with board.lock("k"):
            assert [thread for thread in threading.enumerate() if thread.name.startswith("slateboard-lock")]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("slateboard-lock")]


_PAUSED = """
import sys, time
import slateboard
with slateboard.connect(sys.argv[1], token=sys.argv[2]) as client:
    board = client.board(sys.argv[3])
    with board.lock("k", ttl=2) as held:
        entry = held.get("k")
        print("held", flush=True)
        sys.stdin.readline()
        try:
            board.commit([slateboard.Put("k", "late", expect=entry)], claims=[held])
            print("written", flush=True)
        except slateboard.LockLost as error:
            print("refused here", error.reason, flush=True)
        held.check = lambda: None
        try:
            held.put("k", "late", any_state=False, expect=entry)
            print("written", flush=True)
        except slateboard.LockLost as error:
            print("refused there", error.reason, flush=True)
"""


def test_a_holder_that_was_stopped_beyond_its_ttl_writes_nothing(
    board: slateboard.Board, server: Server, tmp_path: Path
) -> None:
    """T02 etcd#10811: SIGSTOP the holder, another acquires and reads; SIGCONT: its late commit is refused.

    By the client, which looks at its clock, and by the server, where the client would not look.
    """
    board.put("k", "first", absent=True)
    script = tmp_path / "paused.py"
    script.write_text(_PAUSED)
    name = board.info().name
    with subprocess.Popen(
        [sys.executable, str(script), server.address, server.local_token, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        with board.lock("k", wait=20) as held:
            assert held.get("k").version == 1  # the version is as the old holder knows it
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write("go\n")
            holder.stdin.flush()
            assert holder.stdout.readline().startswith("refused here LOCK_")
            assert holder.stdout.readline().startswith("refused there LOCK_")
            held.put("k", "second", expect=1)
        holder.wait(timeout=10)
    assert board.get("k").value == "second"
