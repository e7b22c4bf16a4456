"""Recipes over commits and locks: tasks, inbox, election, barrier, with agents that race and die."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import slateboard
from slateboard import Barrier, Election, Inbox, TaskQueue, aio
from tests.fix_server import Server


@pytest.fixture
def board(server: Server) -> Iterator[slateboard.Board]:
    with slateboard.connect(server.address, token=server.local_token) as client:
        yield client.create_board(f"r-{os.urandom(6).hex()}")


def test_each_task_goes_to_one_of_many_agents_and_is_done_once(board: slateboard.Board) -> None:
    """M51 beads#4657: eight race for every task; each is begun once, and done once."""
    queue = TaskQueue(board, "tasks/", ttl=5)
    for number in range(12):
        queue.add({"n": number}, id=f"t{number}")
    began: Counter[str] = Counter()
    guard = threading.Lock()

    def work(agent: int) -> None:
        while True:
            claimed = queue.claim_next()
            if claimed is None:
                if not queue.list():
                    return
                time.sleep(0.02)
                continue
            with claimed:
                with guard:
                    began[claimed.task.id] += 1
                claimed.done({"by": agent})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert began == Counter({f"t{number}": 1 for number in range(12)})
    done = queue.list("done")
    assert len(done) == 12
    assert all(task.attempts == 1 and task.result for task in done)


_DIES = """
import sys, time
import slateboard
with slateboard.connect(sys.argv[1], token=sys.argv[2]) as client:
    queue = slateboard.TaskQueue(client.board(sys.argv[3]), "tasks/", ttl=2)
    claimed = queue.claim_next()
    print(claimed.task.id, flush=True)
    sys.stdin.readline()
    try:
        claimed.done("late")
        print("done", flush=True)
    except slateboard.LockLost:
        print("refused", flush=True)
"""


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_claimers_task_goes_to_another_and_its_late_word_is_refused(
    board: slateboard.Board, server: Server, tmp_path: Path, fate: signal.Signals
) -> None:
    """M16: taken over after the ttl, with `attempts` risen; the stale predecessor completes nothing."""
    queue = TaskQueue(board, "tasks/", ttl=2)
    queue.add("work", id="t")
    script = tmp_path / "dies.py"
    script.write_text(_DIES)
    arguments = [sys.executable, str(script), server.address, server.local_token, board.name]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "t\n"
        holder.send_signal(fate)
        assert queue.claim_next() is None
        claimed = queue.claim_next(wait=10)
        assert claimed is not None
        with claimed:
            assert claimed.task.attempts == 2
            if fate == signal.SIGSTOP:
                holder.send_signal(signal.SIGCONT)
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert holder.stdout.readline() == "refused\n"
            claimed.done("mine")
        holder.kill()
    assert queue.get("t").result == "mine"


def test_order_delay_failure_and_the_dead_letter(board: slateboard.Board) -> None:
    queue = TaskQueue(board, "tasks/")
    queue.add(1, id="low")
    queue.add(2, id="high", priority=5)
    queue.add(3, id="later", not_before=time.time() + 3_600)
    again = queue.add(1, id="low")
    assert again.entry.version == 1
    with pytest.raises(slateboard.Conflict):
        queue.add(9, id="low")
    with queue.claim_next() or pytest.fail("nothing was due") as first:
        assert first.task.id == "high"
        first.fail("not today", retry_after=60)
    with pytest.raises(RuntimeError), queue.claim_next() or pytest.fail("nothing was due") as second:
        assert second.task.id == "low"
        raise RuntimeError("broken")
    assert queue.claim_next() is None
    assert queue.get("low").error == "RuntimeError: broken"

    queue.add("bad", id="bad", max_attempts=2)
    for attempt in (1, 2):
        with queue.claim_next(wait=5) or pytest.fail("nothing was due") as claimed:
            assert claimed.task.attempts == attempt
            claimed.fail("again", retry_after=0.01)
    assert queue.get("bad").state == "dead"
    assert [task.id for task in queue.list("dead")] == ["bad"]


def test_a_cancelled_task_is_not_done(board: slateboard.Board) -> None:
    queue = TaskQueue(board, "tasks/")
    queue.add(1, id="a")
    queue.add(2, id="b")
    assert queue.cancel("b")
    assert queue.get("b").state == "cancelled"
    with queue.claim_next() or pytest.fail("nothing was due") as claimed:
        assert not claimed.cancelled()
        assert queue.cancel("a")
        assert claimed.cancelled()
        with pytest.raises(slateboard.Cancelled):
            claimed.done("too late")
    assert queue.get("a").state == "cancelled"
    assert queue.claim_next() is None
    assert not queue.list()


def test_an_inbox_hands_out_each_message_until_it_is_acknowledged(board: slateboard.Board) -> None:
    inbox = Inbox(board, "inbox/analyst/")
    assert inbox.receive() is None
    for number in range(3):
        inbox.send({"n": number})
    first = inbox.receive()
    assert first is not None
    assert first.value == {"n": 0}
    assert [message.value["n"] for message in inbox.unread()] == [0, 1, 2]
    inbox.acknowledge(first)
    restarted = Inbox(board, "inbox/analyst/")
    assert [message.value["n"] for message in restarted.unread()] == [1, 2]
    timer = threading.Timer(0.5, lambda: inbox.send("late"))
    inbox.acknowledge(inbox.unread()[-1])
    timer.start()
    late = restarted.receive(wait=10)
    assert late is not None
    assert late.value == "late"
    timer.join()


def test_one_leads_and_the_next_takes_over(board: slateboard.Board) -> None:
    election = Election(board, "leaders/indexer", ttl=2)
    assert election.leader() is None
    terms: list[int] = []

    def lead(_: int) -> None:
        with election.campaign(wait=30) as term:
            found = election.leader()
            assert found is not None
            assert found.lock_id == term.lock_id
            terms.append(term.token)
            time.sleep(0.05)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lead, range(4)))
    assert terms == sorted(terms)
    assert len(set(terms)) == 4


def test_nobody_passes_a_barrier_before_all_are_there(board: slateboard.Board) -> None:
    barrier = Barrier(board, "meet/1/", 3)
    passed: list[float] = []

    def come(number: int) -> None:
        time.sleep(number * 0.3)
        assert barrier.wait(f"agent-{number}", timeout=20)
        passed.append(time.monotonic())

    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(come, range(3)))
    assert min(passed) - begin >= 0.6
    assert not Barrier(board, "meet/2/", 2).wait("alone", timeout=0.3)
    barrier.reset()
    assert barrier.arrive("agent-0") == 1


async def test_the_async_twins_do_the_same(server: Server) -> None:
    async with aio.connect(server.address, token=server.local_token) as client:
        board = await client.create_board(f"r-{os.urandom(6).hex()}")
        queue = aio.TaskQueue(board, "tasks/")
        await queue.add("x", id="t")
        claimed = await queue.claim_next()
        assert claimed is not None
        async with claimed:
            assert claimed.payload == "x"
            await claimed.done()
        assert (await queue.get("t")).state == "done"
