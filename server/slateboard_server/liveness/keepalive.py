"""Renewing leases over one stream: etcd answers in order of arrival, and a stream that goes quiet is given up in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio
import structlog

from slateboard_server.liveness.connection import KEEP_ALIVE, EtcdConnection, Stream, down
from slateboard_server.liveness.etcdpb import etcd_pb2 as pb

log = structlog.get_logger(__name__)

_ANSWER_TIMEOUT: Final = 1.5
"""Seconds without any answer, while some are due, after which the stream is another member's."""
_RENEW_TIMEOUT: Final = 5.0


class KeepAlive:
    """The stream that all renewals of this process share, opened when it is needed."""

    def __init__(self, etcd: EtcdConnection) -> None:
        """Renew over `etcd`."""
        self._etcd = etcd
        self._due: dict[int, asyncio.Future[float]] = {}
        """Asked for and not answered: the seconds left, 0 or less for a lease that is gone."""
        self._unsent: dict[int, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the stream; who waits hears that etcd is down."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for future in self._due.values():
            if not future.done():
                future.set_exception(down())
        self._due.clear()

    async def renew(self, numbers: Sequence[int]) -> dict[int, float]:
        """Renew leases; returns the seconds left of those that live. LOCK_BACKEND_DOWN where no answer came in time."""
        loop = asyncio.get_running_loop()
        futures: dict[int, asyncio.Future[float]] = {}
        for number in numbers:
            future = self._due.get(number)
            if future is None or future.done():
                future = self._due[number] = loop.create_future()
                self._unsent[number] = None
            futures[number] = future
        if not futures:
            return {}
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="etcd-keepalive")
        _, late = await asyncio.wait(futures.values(), timeout=_RENEW_TIMEOUT)
        if late:
            raise down()
        return {number: future.result() for number, future in futures.items() if future.result() > 0}

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                member, call = await self._etcd.stream(KEEP_ALIVE)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)
                continue
            # What an earlier stream was asked and did not answer is asked again.
            self._due = {number: future for number, future in self._due.items() if not future.done()}
            self._unsent = dict.fromkeys(self._due)
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
            await asyncio.sleep(0.05)
            if self._due:
                self._wake.set()

    async def _send(self, call: Stream) -> None:
        while True:
            while self._unsent:
                number = next(iter(self._unsent))
                del self._unsent[number]
                await call.write(pb.LeaseKeepAliveRequest(id=number))
            self._wake.clear()
            await self._wake.wait()

    async def _receive(self, call: Stream) -> None:
        """Hand out answers; returns where the stream ended, or some were due and none came."""
        reading: asyncio.Task[object] | None = None
        try:
            while True:
                if reading is None:
                    reading = asyncio.create_task(call.read())
                await asyncio.wait({reading}, timeout=_ANSWER_TIMEOUT)
                if not reading.done():
                    if any(not future.done() for future in self._due.values()):
                        return
                    continue
                reply, reading = reading.result(), None
                if not isinstance(reply, pb.LeaseKeepAliveResponse):
                    return
                future = self._due.pop(reply.id, None)
                if future is not None and not future.done():
                    future.set_result(float(reply.ttl))
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
