"""Leases in etcd: one a lock, under the number in the lock's id, so that any replica can renew it knowing the id alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
import structlog

from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.values import BoardId, LockId
from slateboard_server.liveness.connection import (
    ANSWER_TIMEOUT,
    GRANT,
    RANGE,
    REVOKE,
    STATUS,
    TIME_TO_LIVE,
    TXN,
    WATCH,
    EtcdConnection,
    EtcdRefused,
    Stream,
    down,
    in_time,
)
from slateboard_server.liveness.etcdpb import etcd_pb2 as pb
from slateboard_server.liveness.keepalive import KeepAlive
from slateboard_server.ports import Lease

log = structlog.get_logger(__name__)

_TXN_OPS: Final = 128
"""What etcd takes in one transaction unless configured otherwise."""
_MANY: Final = 256
"""From this many locks of a board on, reading all of the board's keys costs less than asking one by one."""
_PAGE: Final = 5_000
_AT_ONCE: Final = 32
_LOOK_ROUND: Final = 1.0
"""Seconds after which a quiet watch sees whether its member is still the one that is talked to."""
_LATELY: Final = 0.5
"""Seconds for which one answer tells that etcd is there."""
_RETRY: Final = (0.05, 0.1, 0.2, 0.5, 1.0)


T = TypeVar("T")


class EtcdLiveness:
    """Leases in an etcd cluster."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        prefix: str = "slateboard/",
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        username: str = "",
        password: str = "",
    ) -> None:
        """Keep leases in the cluster at `endpoints`, with keys under `prefix`."""
        self._etcd = EtcdConnection(
            endpoints, ca=ca, cert=cert, key=key, username=username, password=password
        )
        self._prefix = f"{prefix}locks/".encode()
        self._keep_alive = KeepAlive(self._etcd)
        self._version = ""
        self._task: asyncio.Task[None] | None = None
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._looks: list[tuple[Sequence[Lease], asyncio.Future[set[Lease]]]] = []
        """Questions that wait to be asked."""
        self._looking: asyncio.Task[None] | None = None
        self._watching = False
        """Whether leases that end are told of as they do."""

    async def start(self) -> None:
        """Begin to connect. LOCK_BACKEND_DOWN for files that cannot be read and endpoints that are none."""
        await self._etcd.prepare()
        self._task = asyncio.create_task(self._ask_version(), name="etcd-version")

    async def close(self) -> None:
        """Let connections go."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for _, future in self._looks:
            if not future.done():
                future.set_exception(down())
        await self._keep_alive.close()
        await self._etcd.close()

    def describe(self) -> str:
        """Say what it is."""
        return f"etcd {self._version}".strip()

    async def _ask_version(self) -> None:
        while not self._version:
            with contextlib.suppress(SlateboardError, EtcdRefused):
                self._version = (await self._etcd.call(STATUS, pb.StatusRequest())).version
                return
            await asyncio.sleep(1)

    def _key(self, lease: Lease) -> bytes:
        return self._prefix + f"{lease.board_id}/{lease.lock_id}".encode()

    # Leases

    async def grant(self, lease: Lease, ttl: int) -> int:
        """Begin a lease and put the lock's id under it."""
        number = _number(lease)
        put = pb.PutRequest(key=self._key(lease), value=lease.lock_id.encode(), lease=number)
        async with in_time():
            try:
                granted = await self._begin(number, ttl)
                await self._etcd.call(TXN, pb.TxnRequest(success=[pb.RequestOp(request_put=put)]))
            except EtcdRefused as refused:
                raise _unexpected(refused) from refused
        return granted

    async def _begin(self, number: int, ttl: int) -> int:
        request = pb.LeaseGrantRequest(id=number, ttl=ttl)
        try:
            return int((await self._etcd.call(GRANT, request)).ttl)
        except EtcdRefused as refused:
            if "lease already exists" not in refused.text:
                raise
        # An earlier try got through, and its answer did not. Its time began before this call: begin it anew. How long
        # a lease lasts is fixed when it is made, so that what is told is what etcd has.
        if number in await self._keep_alive.renew([number]):
            left = await self._etcd.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(id=number))
            if left.ttl > 0:
                return int(left.granted_ttl)
        return int((await self._etcd.call(GRANT, request)).ttl)

    async def renew(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Lengthen leases over the one stream they share."""
        numbers = {_number(lease): lease for lease in leases}
        async with in_time():
            left = await self._keep_alive.renew(list(numbers))
        return {numbers[number]: seconds for number, seconds in left.items()}

    async def revoke(self, leases: Sequence[Lease]) -> None:
        """End leases."""
        async with in_time():
            await _all(self._revoke, leases)

    async def _revoke(self, lease: Lease) -> None:
        async with self._limit:
            try:
                await self._etcd.call(REVOKE, pb.LeaseRevokeRequest(id=_number(lease)))
            except EtcdRefused as refused:
                if refused.code is not grpc.StatusCode.NOT_FOUND:
                    raise _unexpected(refused) from refused

    async def time_left(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Ask for each lease's time."""
        async with in_time():
            left = await _all(self._time_left, leases)
        return {lease: seconds for lease, seconds in zip(leases, left, strict=True) if seconds > 0}

    async def _time_left(self, lease: Lease) -> float:
        async with self._limit:
            try:
                reply = await self._etcd.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(id=_number(lease)))
            except EtcdRefused as refused:
                if refused.code is grpc.StatusCode.NOT_FOUND:
                    return -1.0
                raise _unexpected(refused) from refused
        return float(reply.ttl)

    async def adopt(self, leases: Sequence[tuple[Lease, int]]) -> None:
        """Leases in etcd outlive this process by themselves."""

    def steady(self) -> bool:
        """Tell whether a member answered lately, and the watch for deaths is open."""
        return self._watching and asyncio.get_running_loop().time() - self._etcd.heard_at < _LATELY

    # Keys

    async def alive(self, leases: Sequence[Lease]) -> set[Lease]:
        """Read the keys, linearizably: etcd drops a lease and its key in one step."""
        by_board: dict[BoardId, list[Lease]] = {}
        for lease in leases:
            by_board.setdefault(lease.board_id, []).append(lease)
        alive: set[Lease] = set()
        few: list[Lease] = []
        async with in_time():
            for board_id, asked in by_board.items():
                if len(asked) > _MANY:  # a sweep, mostly
                    present = await self._all_of(board_id)
                    alive.update(lease for lease in asked if self._key(lease) in present)
                else:
                    few += asked
            if len(few) <= _TXN_OPS:
                return alive | await self._looked_at(few) if few else alive
            parts = [few[start : start + _TXN_OPS] for start in range(0, len(few), _TXN_OPS)]
            return alive.union(*await _all(self._looked_at, parts))

    async def _looked_at(self, leases: Sequence[Lease]) -> set[Lease]:
        """Ask about leases together with whoever else asks before the question is sent; that keeps it linearizable."""
        future: asyncio.Future[set[Lease]] = asyncio.get_running_loop().create_future()
        self._looks.append((leases, future))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="etcd-looks")
        return await future

    async def _look(self) -> None:
        while self._looks:
            taken: list[tuple[Sequence[Lease], asyncio.Future[set[Lease]]]] = []
            asked: dict[Lease, None] = {}
            while self._looks and (not taken or len(asked) + len(self._looks[0][0]) <= _TXN_OPS):
                leases, future = self._looks.pop(0)
                if not future.done():  # who asked may have given up
                    taken.append((leases, future))
                    asked |= dict.fromkeys(leases)
            if not taken:
                continue
            alive: set[Lease] | None = None
            try:
                with contextlib.suppress(SlateboardError):
                    alive = await self._present(list(asked))
            finally:
                for leases, future in taken:
                    if future.done():
                        continue
                    if alive is None:
                        future.set_exception(down())
                    else:
                        future.set_result(alive.intersection(leases))

    async def _present(self, leases: Sequence[Lease]) -> set[Lease]:
        asks = [
            pb.RequestOp(request_range=pb.RangeRequest(key=self._key(lease), count_only=True))
            for lease in leases
        ]
        try:
            if len(asks) == 1:
                counts = [(await self._etcd.call(RANGE, asks[0].request_range)).count]
            else:
                reply = await self._etcd.call(TXN, pb.TxnRequest(success=asks))
                counts = [response.response_range.count for response in reply.responses]
        except EtcdRefused as refused:
            raise _unexpected(refused) from refused
        return {lease for lease, count in zip(leases, counts, strict=True) if count}

    async def _all_of(self, board_id: BoardId) -> set[bytes]:
        prefix = self._prefix + f"{board_id}/".encode()
        end = prefix[:-1] + bytes((prefix[-1] + 1,))
        found: set[bytes] = set()
        key = prefix
        while True:
            request = pb.RangeRequest(key=key, range_end=end, keys_only=True, limit=_PAGE)
            try:
                reply = await self._etcd.call(RANGE, request)
            except EtcdRefused as refused:
                raise _unexpected(refused) from refused
            found.update(entry.key for entry in reply.kvs)
            if not reply.more:
                return found
            key = reply.kvs[-1].key + b"\0"

    # Deaths

    async def deaths(self) -> AsyncIterator[Lease]:
        """Watch for keys that go. Resumed where it broke; from the present where that was compacted away."""
        watched = _Watched()
        failures = 0
        while True:
            try:
                member, call = await self._etcd.stream(WATCH)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_RETRY[min(failures, len(_RETRY) - 1)])
                failures += 1
                continue
            except SlateboardError:  # closed: whoever listens still is to be cancelled, not told an end
                await asyncio.Event().wait()
                continue
            try:
                async for reply in self._replies(member, call, watched.revision):
                    if not watched.take(reply):
                        if not reply.compact_revision:
                            self._etcd.refused_watch(reply.cancel_reason)
                        break
                    failures = 0
                    for event in reply.events:
                        lease = self._lease_of(event.kv.key)
                        if lease is not None:
                            yield lease
            except grpc.aio.AioRpcError as error:
                self._etcd.failed(member, error)
            except (asyncio.InvalidStateError, grpc.aio.UsageError):
                pass  # the channel was closed under the stream
            finally:
                call.cancel()
            await asyncio.sleep(_RETRY[min(failures, len(_RETRY) - 1)])
            failures += 1

    async def _replies(self, member: int, call: Stream, revision: int) -> AsyncIterator[pb.WatchResponse]:
        """Read a watch; ends where etcd ends it, does not begin it in time, or another member is talked to by now."""
        reading: asyncio.Task[Any] = asyncio.create_task(_open_watch(call, self._watch_request(revision)))
        begun = False
        try:
            while True:
                await asyncio.wait({reading}, timeout=_LOOK_ROUND if begun else ANSWER_TIMEOUT)
                if not reading.done():
                    if not begun:
                        self._etcd.leave(member)
                        return
                    # A member that is stopped says nothing either; a call or a renewal finds that out.
                    if self._etcd.left(member):
                        return
                    continue
                reply = reading.result()
                if not isinstance(reply, pb.WatchResponse):
                    return
                begun = self._watching = True
                yield reply
                reading = asyncio.create_task(call.read())
        finally:
            self._watching = False
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _watch_request(self, revision: int) -> pb.WatchRequest:
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=self._prefix,
                range_end=self._prefix[:-1] + bytes((self._prefix[-1] + 1,)),
                start_revision=revision,
                progress_notify=True,
                filters=[pb.WatchCreateRequest.NOPUT],
                fragment=True,
            )
        )

    def _lease_of(self, key: bytes) -> Lease | None:
        board, _, lock = key.removeprefix(self._prefix).decode("ascii", "replace").partition("/")
        return (
            Lease(BoardId(int(board)), LockId(lock))
            if board.isdecimal() and len(board) < 20 and lock
            else None
        )


class _Watched:
    """Up to where deletions were told, so that a watch that breaks goes on from there."""

    def __init__(self) -> None:
        self.revision = 0
        """The next one to be told of; 0: from the present."""

    def take(self, reply: pb.WatchResponse) -> bool:
        """Take note of a reply; False where the watch is to be opened anew."""
        at = reply.header.revision
        if reply.compact_revision:
            # What went meanwhile is not told any more: the sweep over all locks finds it.
            log.warning("etcd compacted what was not watched yet", revision=self.revision)
            self.revision = 0
            return False
        if reply.canceled:
            return False
        if reply.created:
            # Where we go on from an earlier revision, what lies between is still to come. A lower one than we have seen
            # is a member that lags, or an etcd that lost its data: waiting for our old one would tell nothing for long.
            if self.revision > at + 1:
                self.revision = 0
                return False
            self.revision = self.revision or at + 1
        elif not reply.fragment:
            # The header may be ahead of what was delivered, where a watch catches up in several replies.
            told = reply.events[-1].kv.mod_revision if reply.events else at
            self.revision = max(self.revision, told + 1)
        return True


async def _open_watch(call: Stream, request: pb.WatchRequest) -> Any:
    await call.write(request)
    return await call.read()


async def _all(work: Callable[[Any], Coroutine[Any, Any, T]], items: Sequence[Any]) -> list[T]:
    """Do something with each, at once. Where one fails, the others are given up, and none is left running."""
    tasks = [asyncio.create_task(work(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _number(lease: Lease) -> int:
    return int(lease.lock_id.removeprefix("l-"), 16)


def _unexpected(refused: EtcdRefused) -> SlateboardError:
    log.error("etcd refused", code=refused.code.name, text=refused.text)
    return down()
