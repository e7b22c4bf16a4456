"""Renewing leases over one stream: etcd answers in order of arrival, and a stream that goes quiet is given up in time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
import structlog

from slateboard_server.liveness.connection import ANSWER_TIMEOUT, KEEP_ALIVE, EtcdConnection, Stream, down
from slateboard_server.liveness.etcdpb import etcd_pb2 as pb

log = structlog.get_logger(__name__)

_AGAIN: Final = 0.05
"""Seconds before a stream that broke is opened again."""


@dataclass(eq=False, slots=True)
class _Ask:
    """One renewal of one lease: for all who asked before it was sent, and for nobody who asked after."""

    number: int
    answer: asyncio.Future[float]
    """The seconds left; 0 or less for a lease that is gone."""
    waiting: int = 0
    """Who still wants to know."""
    sent_at: float = 0.0
    joined: list[_Ask] = field(default_factory=list)
    """Earlier ones, sent over a stream that broke, that this one answers, too."""

    @property
    def wanted(self) -> bool:
        """Tell whether anybody waits. Where nobody does, the lease is not renewed: its holder may be gone."""
        return self.waiting > 0 or any(ask.waiting for ask in self.joined)

    def settle(self, seconds: float | None) -> None:
        """Answer all who wait; None: there will be no answer."""
        for ask in (self, *self.joined):
            if ask.answer.done():
                continue
            if seconds is None:
                ask.answer.cancel()
            else:
                ask.answer.set_result(seconds)


@dataclass(eq=False, slots=True)
class _Asks:
    """What was asked of the stream that is open."""

    unsent: dict[int, _Ask] = field(default_factory=dict)
    sent: dict[int, deque[_Ask]] = field(default_factory=dict)
    """In the order of sending: answers to the same lease come in that order, too."""
    order: deque[_Ask] = field(default_factory=deque)

    def ask(self, number: int) -> _Ask:
        """Join a renewal that is not sent yet, or begin one."""
        ask = self.unsent.get(number)
        if ask is None:
            ask = self.unsent[number] = _Ask(number, asyncio.get_running_loop().create_future())
        return ask

    def next(self) -> _Ask | None:
        """Take what is to be sent next; what nobody waits for any more is dropped."""
        while self.unsent:
            number = next(iter(self.unsent))
            ask = self.unsent.pop(number)
            if ask.wanted:
                ask.sent_at = asyncio.get_running_loop().time()
                self.sent.setdefault(number, deque()).append(ask)
                self.order.append(ask)
                return ask
        return None

    def answered(self, number: int, ttl: int) -> None:
        """Hand out an answer. The time that it took is time that the lease no longer has."""
        asks = self.sent.get(number)
        if not asks:
            return
        ask = asks.popleft()
        if not asks:
            del self.sent[number]
        took = asyncio.get_running_loop().time() - ask.sent_at
        ask.settle(ttl - took if ttl > 0 else 0.0)

    def oldest(self) -> float | None:
        """Tell when the oldest renewal was sent that is not answered."""
        while self.order and self.order[0].answer.done():
            self.order.popleft()
        return self.order[0].sent_at if self.order else None

    def ask_again(self) -> None:
        """Have everything sent anew, over another stream."""
        again = [ask for asks in self.sent.values() for ask in asks] + list(self.unsent.values())
        self.sent.clear()
        self.order.clear()
        self.unsent.clear()
        for ask in again:
            if not ask.wanted:
                continue
            first = self.unsent.setdefault(ask.number, ask)
            if first is not ask:
                first.joined += [ask, *ask.joined]

    def give_up(self) -> None:
        """Leave everything unanswered."""
        for ask in [*self.unsent.values(), *self.order]:
            ask.settle(None)


class KeepAlive:
    """The stream that all renewals of this process share, opened when it is needed."""

    def __init__(self, etcd: EtcdConnection) -> None:
        """Renew over `etcd`."""
        self._etcd = etcd
        self._asks = _Asks()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        """End the stream; who waits hears that etcd is down."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._asks.give_up()

    async def renew(self, numbers: Sequence[int]) -> dict[int, float]:
        """Renew leases; returns the seconds left of those that live.

        Waits for as long as the caller does. Raises LOCK_BACKEND_DOWN where it is closed meanwhile.
        """
        if self._closed:
            raise down()
        asks = {number: self._asks.ask(number) for number in numbers}
        if not asks:
            return {}
        for ask in asks.values():
            ask.waiting += 1
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="etcd-keepalive")
        try:
            await asyncio.wait([ask.answer for ask in asks.values()])
        finally:
            for ask in asks.values():
                ask.waiting -= 1
        if any(ask.answer.cancelled() for ask in asks.values()):
            raise down()
        return {number: ask.answer.result() for number, ask in asks.items() if ask.answer.result() > 0}

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            # What an earlier stream was asked and did not answer is asked again.
            self._asks.ask_again()
            if not self._asks.unsent:
                self._wake.clear()
                continue
            await self._stream()
            await asyncio.sleep(_AGAIN)
            if self._asks.sent or self._asks.unsent:
                self._wake.set()

    async def _stream(self) -> None:
        """Renew over one stream until it breaks or goes quiet."""
        try:
            member, call = await self._etcd.stream(KEEP_ALIVE)
        except grpc.aio.AioRpcError:
            return
        sender = asyncio.create_task(self._send(call), name="etcd-keepalive-sender")
        try:
            await self._receive(call)
            self._etcd.leave(member)
            log.info("etcd did not answer renewals in time")
        except grpc.aio.AioRpcError as error:
            self._etcd.failed(member, error)
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            pass  # the stream was over before all was sent
        finally:
            sender.cancel()
            call.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, call: Stream) -> None:
        while True:
            while (ask := self._asks.next()) is not None:
                await call.write(pb.LeaseKeepAliveRequest(id=ask.number))
            self._wake.clear()
            await self._wake.wait()

    async def _receive(self, call: Stream) -> None:
        """Hand out answers; returns where the stream ended, or an answer is overdue while nothing comes."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        reading: asyncio.Task[object] | None = None
        try:
            while True:
                if reading is None:
                    reading = asyncio.create_task(call.read())
                await asyncio.wait({reading}, timeout=ANSWER_TIMEOUT / 4)
                if reading.done():
                    reply, reading, heard = reading.result(), None, loop.time()
                    if not isinstance(reply, pb.LeaseKeepAliveResponse):
                        return
                    self._etcd.heard()
                    self._asks.answered(reply.id, reply.ttl)
                    continue
                oldest = self._asks.oldest()
                if oldest is not None and loop.time() - max(heard, oldest) > ANSWER_TIMEOUT:
                    return
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
