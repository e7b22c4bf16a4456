"""Group commit: gathering, fairness, bounds, deadlines and failures of the queue, without a store."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from slateboard_server.domain.commit import Append, CommitAnswer, CommitItem, NewContent
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Replayed
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.values import Micros, PrincipalId, Revision
from slateboard_server.ports import BatchItem, BatchVerdict
from slateboard_server.services.commit_queue import CommitQueue
from slateboard_server.services.settings import DataPathSettings


class Wall:
    """The real clock."""

    def now(self) -> Micros:
        return Micros(time.time_ns() // 1_000)

    def monotonic(self) -> float:
        return time.monotonic()


class Writer:
    """Stands for the store: records batches, and holds each until it is let go."""

    def __init__(self, *, held: bool = True) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        if not held:
            self.gate.set()

    async def run(self, items: Sequence[BatchItem], timeout: float) -> list[BatchVerdict]:
        assert timeout > 0
        requests = [item.request_id for item in items if isinstance(item, CommitItem)]
        self.batches.append(requests)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [
            Replayed(CommitAnswer(Revision(len(self.batches)), request_id, Micros(0), ()))
            for request_id in requests
        ]


def item(request_id: str, principal: str = "worker", size: int = 1) -> CommitItem:
    return CommitItem(
        principal=PrincipalId(principal),
        ops=(Append(SHARED, "log/", NewContent(b"x" * size)),),
        request_id=request_id,
    )


def queue_of(writer: Writer, settings: DataPathSettings | None = None) -> CommitQueue:
    return CommitQueue(writer.run, Wall(), settings or DataPathSettings())


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_commit_does_not_wait_for_company() -> None:
    """There is no gathering timer."""
    writer = Writer(held=False)
    verdict = await asyncio.wait_for(queue_of(writer).submit(item("a"), 5), 5)
    assert isinstance(verdict, Replayed)
    assert writer.batches == [["a"]]


async def test_what_gathers_during_a_batch_goes_into_the_next_one() -> None:
    """While one batch is being written, the others wait for its end and are written together."""
    writer = Writer()
    queue = queue_of(writer)
    tasks = [asyncio.create_task(queue.submit(item(name), 5)) for name in "abcd"]
    await settle()
    first = len(writer.batches[0])
    tasks += [asyncio.create_task(queue.submit(item(name), 5)) for name in "efgh"]
    await settle()
    writer.gate.set()
    await asyncio.gather(*tasks)
    assert sum(len(batch) for batch in writer.batches) == 8
    assert len(writer.batches) == 2 if first == 4 else len(writer.batches) <= 3


async def test_one_busy_principal_does_not_starve_the_others() -> None:
    """Commits are taken in turn between principals, not by who came first."""
    writer = Writer()
    queue = queue_of(writer, DataPathSettings(batch_items=4))
    blocker = asyncio.create_task(queue.submit(item("blocker", "other"), 5))
    await settle()
    busy = [asyncio.create_task(queue.submit(item(f"busy{n}", "busy"), 5)) for n in range(20)]
    await settle()
    quiet = asyncio.create_task(queue.submit(item("quiet", "quiet"), 5))
    await settle()
    writer.gate.set()
    await asyncio.gather(blocker, quiet, *busy)
    assert "quiet" in writer.batches[1]


async def test_commits_of_one_principal_keep_their_order() -> None:
    """Fairness between principals never reorders one principal's own commits."""
    writer = Writer(held=False)
    queue = queue_of(writer, DataPathSettings(batch_items=3))
    tasks = [
        asyncio.create_task(queue.submit(item(f"{name}{n:02}", name), 5)) for n in range(10) for name in "xyz"
    ]
    await asyncio.gather(*tasks)
    order = [request for batch in writer.batches for request in batch]
    for name in "xyz":
        mine = [request for request in order if request.startswith(name)]
        assert mine == sorted(mine)


async def test_a_full_queue_says_so_at_once() -> None:
    """The queue is bounded in items and bytes; the refusal tells when to try again."""
    writer = Writer()
    queue = queue_of(writer, DataPathSettings(queue_items=3, queue_bytes=100_000, batch_items=1))
    tasks = [asyncio.create_task(queue.submit(item("running"), 5))]
    await settle()
    tasks += [asyncio.create_task(queue.submit(item(str(n)), 5)) for n in range(3)]
    await settle()
    with pytest.raises(SlateboardError) as refused:
        await queue.submit(item("too many"), 5)
    assert refused.value.reason is Reason.RATE_LIMITED
    assert refused.value.retry_after is not None
    writer.gate.set()
    await asyncio.gather(*tasks)
    writer.gate.clear()
    big = [asyncio.create_task(queue.submit(item("running big", size=60_000), 5))]
    await settle()
    big.append(asyncio.create_task(queue.submit(item("waiting big", size=60_000), 5)))
    await settle()
    with pytest.raises(SlateboardError) as too_big:
        await queue.submit(item("bytes", size=60_000), 5)
    assert too_big.value.reason is Reason.RATE_LIMITED
    writer.gate.set()
    await asyncio.gather(*big)
    assert len(queue) == 0


async def test_a_commit_past_its_deadline_is_dropped_before_its_batch_begins() -> None:
    """It is answered DEADLINE and never reaches the store."""
    writer = Writer()
    queue = queue_of(writer, DataPathSettings(batch_items=1))
    first = asyncio.create_task(queue.submit(item("first"), 5))
    await settle()
    with pytest.raises(SlateboardError) as late:
        await queue.submit(item("late"), 0.01)
    assert late.value.reason is Reason.DEADLINE
    writer.gate.set()
    await first
    await queue.settled()
    assert writer.batches == [["first"]]


async def test_a_cancelled_commit_is_dropped_while_it_waits_and_left_alone_once_it_runs() -> None:
    """Cancelling never tears a transaction; what has not begun does not begin."""
    writer = Writer()
    queue = queue_of(writer, DataPathSettings(batch_items=1))
    running = asyncio.create_task(queue.submit(item("running"), 5))
    await settle()
    waiting = asyncio.create_task(queue.submit(item("waiting"), 5))
    await settle()
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    after = asyncio.create_task(queue.submit(item("after"), 5))
    writer.gate.set()
    await after
    assert writer.batches == [["running"], ["after"]]
    assert queue.idle or len(queue) == 0


async def test_a_failed_batch_fails_its_callers_and_nobody_else() -> None:
    """After a store failure the queue goes on."""
    writer = Writer(held=False)
    queue = queue_of(writer)
    writer.error = SlateboardError(Reason.STORAGE_DOWN, "the disk is full")
    with pytest.raises(SlateboardError, match="disk is full"):
        await queue.submit(item("a"), 5)
    writer.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        await queue.submit(item("b"), 5)
    writer.error = None
    assert isinstance(await queue.submit(item("c"), 5), Replayed)


async def test_the_outcome_of_a_commit_is_known_once_its_batch_ended() -> None:
    """GetCommit after a lost answer must not say "not found" while the commit is still on its way."""
    writer = Writer()
    queue = queue_of(writer, DataPathSettings(batch_items=1))
    await queue.outcome_known(PrincipalId("worker"), "never sent")
    lost = asyncio.create_task(queue.submit(item("lost"), 5))
    await settle()
    lost.cancel()
    asked = asyncio.create_task(queue.outcome_known(PrincipalId("worker"), "lost"))
    await settle()
    assert not asked.done()
    # Other commits go on all the time; the question is about this one only.
    others = [asyncio.create_task(queue.submit(item(str(number)), 5)) for number in range(3)]
    writer.gate.set()
    await asyncio.wait_for(asked, 5)
    await asyncio.gather(*others)
