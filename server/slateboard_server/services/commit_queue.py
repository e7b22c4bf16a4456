"""Group commit: what waits for a board is judged and written together, and one fsync answers all.

One queue per board and replica. Items wait per principal and are taken in turn, so that one busy agent does not starve
the others; the queue is bounded and says so (RATE_LIMITED). While a batch is being written the next one gathers: there
is no timer, a lone commit never waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from slateboard_server.domain.commit import CommitItem, Delete
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Refused, Verdict
from slateboard_server.domain.locks import AcquireLock, LockOp, LockVerdict, ReapLocks
from slateboard_server.domain.values import PrincipalId
from slateboard_server.ports import BatchItem, BatchVerdict, Clock
from slateboard_server.services.settings import DataPathSettings

RunBatch: TypeAlias = Callable[[list[BatchItem], float], Awaitable[list[BatchVerdict]]]
"""Judges and writes a batch within a timeout (s), and makes the outcome visible to readers before it returns."""

_SERVER = PrincipalId("")
"""Whose turn the server's own lock ops take."""


@dataclass(eq=False, slots=True)
class _Waiting:
    item: BatchItem
    deadline: float
    """Monotonic seconds; past it the item is dropped if its batch has not begun."""
    size: int
    answer: asyncio.Future[BatchVerdict] = field(repr=False)
    principal: PrincipalId = PrincipalId("")
    request_id: str = ""
    abandoned: bool = False


class CommitQueue:
    """The commits that wait for one board."""

    def __init__(self, run: RunBatch, clock: Clock, settings: DataPathSettings) -> None:
        """Feed `run` with batches."""
        self._run = run
        self._clock = clock
        self._settings = settings
        self._by_principal: OrderedDict[PrincipalId, deque[_Waiting]] = OrderedDict()
        self._items = 0
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._unsettled: dict[tuple[PrincipalId, str], asyncio.Future[None]] = {}

    def __len__(self) -> int:
        """Return how many commits wait."""
        return self._items

    @property
    def idle(self) -> bool:
        """Tell whether nothing waits or runs."""
        return self._items == 0 and (self._task is None or self._task.done())

    async def submit(self, item: CommitItem, timeout: float) -> Verdict:
        """Have a commit judged; returns its verdict once it is durable and readable.

        RATE_LIMITED at once where the queue is full; DEADLINE after `timeout` seconds: if the batch had not begun then,
        nothing has happened or will; otherwise the outcome is unknown to this caller and GetCommit tells it. A caller
        that is cancelled leaves a begun batch alone.
        """
        size = sum(512 + (0 if isinstance(op, Delete) else len(op.content.value)) for op in item.ops)
        self._check_room(size)
        verdict = await self._wait(item, item.principal, item.request_id, size, timeout)
        assert not isinstance(verdict, LockVerdict)  # as it was asked
        return verdict

    async def submit_lock(self, op: LockOp, timeout: float) -> LockVerdict:
        """Have a lock op done, in turn with the commits; raises its refusal. Deadlines as for `submit`.

        What ends locks is never turned away: it makes room.
        """
        if isinstance(op, AcquireLock):
            self._check_room(0)
        principal = _SERVER if isinstance(op, ReapLocks) else op.asker.principal
        verdict = await self._wait(op, principal, "", 512, timeout)
        if isinstance(verdict, Refused):
            raise verdict.error
        assert isinstance(verdict, LockVerdict)  # as it was asked
        return verdict

    def _check_room(self, size: int) -> None:
        if self._items and (
            self._items >= self._settings.queue_items or self._bytes + size > self._settings.queue_bytes
        ):
            raise SlateboardError(
                Reason.RATE_LIMITED,
                f"{self._items} commits already wait for this board; slow down and retry with the same request_id",
                retry_after=timedelta(milliseconds=200),
                limit=self._settings.queue_items,
                retry_after_ms=200,
            )

    async def _wait(
        self, item: BatchItem, principal: PrincipalId, request_id: str, size: int, timeout: float
    ) -> BatchVerdict:
        loop = asyncio.get_running_loop()
        deadline = self._clock.monotonic() + timeout
        waiting = _Waiting(item, deadline, size, loop.create_future(), principal, request_id)
        self._by_principal.setdefault(principal, deque()).append(waiting)
        if request_id and (principal, request_id) not in self._unsettled:
            self._unsettled[principal, request_id] = loop.create_future()
        self._items += 1
        self._bytes += size
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._drain(), name="commit-queue")
        timer = loop.call_later(timeout, self._give_up, waiting)
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            waiting.abandoned = True
            raise
        finally:
            timer.cancel()

    def _give_up(self, waiting: _Waiting) -> None:
        if not waiting.answer.done():
            waiting.abandoned = True
            waiting.answer.set_exception(
                SlateboardError(
                    Reason.DEADLINE,
                    "the deadline passed before the commit was answered; retry with the same request_id, or ask"
                    " GetCommit whether it happened",
                )
            )

    async def outcome_known(self, principal: PrincipalId, request_id: str) -> None:
        """Wait until a commit that waits or runs under this id, if any, has happened or never will."""
        unsettled = self._unsettled.get((principal, request_id))
        if unsettled is not None:
            await asyncio.shield(unsettled)

    def _settle(self, waiting: _Waiting) -> None:
        unsettled = self._unsettled.pop((waiting.principal, waiting.request_id), None)
        if unsettled is not None and not unsettled.done():
            unsettled.set_result(None)

    async def settled(self) -> None:
        """Wait until everything that was submitted has been answered; only of use where nothing new is let in."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    async def _drain(self) -> None:
        while self._items:
            batch = self._take()
            if not batch:
                continue
            timeout = min(
                self._settings.commit_timeout,
                max(waiting.deadline for waiting in batch) - self._clock.monotonic(),
            )
            try:
                verdicts = await self._run([waiting.item for waiting in batch], max(timeout, 0.05))
            except Exception as error:  # noqa: BLE001 -- a fault must not kill the queue: its callers get it
                for waiting in batch:
                    _fail(waiting, error)
            else:
                for waiting, verdict in zip(batch, verdicts, strict=True):
                    if not waiting.answer.done():
                        waiting.answer.set_result(verdict)
            for waiting in batch:
                self._settle(waiting)

    def _take(self) -> list[_Waiting]:
        """Take the next batch, one commit a principal in turn."""
        settings = self._settings
        now = self._clock.monotonic()
        batch: list[_Waiting] = []
        ops = size = 0
        while self._by_principal and len(batch) < settings.batch_items:
            principal, queue = next(iter(self._by_principal.items()))
            waiting = queue[0]
            count = len(waiting.item.ops) if isinstance(waiting.item, CommitItem) else 1
            if batch and (ops + count > settings.batch_ops or size + waiting.size > settings.batch_bytes):
                break
            queue.popleft()
            self._items -= 1
            self._bytes -= waiting.size
            if queue:
                self._by_principal.move_to_end(principal)
            else:
                del self._by_principal[principal]
            if waiting.abandoned or waiting.deadline <= now:
                self._give_up(waiting)
                self._settle(waiting)
                continue
            batch.append(waiting)
            ops += count
            size += waiting.size
        return batch


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
