"""What our server is measured against: the same work with nothing around it.

Each is a function run in a process of its own (see `processes.Child`). They check nothing, know no callers and keep no
promises beyond the one they are the yardstick of; they are as fast as we know how to make them with the same parts.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from slateboard.v1 import commit_pb2, entry_service_pb2, entry_service_pb2_grpc

_BATCH = 128
"""Commits a transaction of the bare writer; the same bound as our own."""


def run(main: Awaitable[None]) -> None:
    """Run on uvloop, as our server does."""
    import uvloop  # noqa: PLC0415 -- absent on Windows, where the bench does not run

    async def wrapped() -> None:
        await main

    uvloop.run(wrapped())


async def _serve(pipe: Connection[Any, Any], register: Callable[[grpc.aio.Server], None]) -> None:
    server = grpc.aio.server()
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(f"127.0.0.1:{port}")
    await server.wait_for_termination()


# Get: an echo


class _Echo(entry_service_pb2_grpc.EntryServiceServicer):
    """Answers every Get with the same message."""

    def __init__(self, answer: entry_service_pb2.GetResponse) -> None:
        self._answer = answer

    async def Get(  # noqa: N802 -- the name of the call
        self,
        request: entry_service_pb2.GetRequest,
        context: grpc.aio.ServicerContext[entry_service_pb2.GetRequest, entry_service_pb2.GetResponse],
    ) -> entry_service_pb2.GetResponse:
        return self._answer


def echo(pipe: Connection[Any, Any], answer: bytes) -> None:
    """Serve Get from generated stubs, with an answer made before (bytes of a GetResponse, one of ours)."""
    # The stub file calls all methods abstract; the generated class does not.
    servicer = _Echo(entry_service_pb2.GetResponse.FromString(answer))  # type: ignore[abstract]
    run(
        _serve(
            pipe, lambda server: entry_service_pb2_grpc.add_EntryServiceServicer_to_server(servicer, server)
        )
    )


# Commit: a queue, a writer thread, SQLite FULL


@dataclass(slots=True)
class _Put:
    key: str
    expected: int
    """0: must not exist."""
    value: bytes
    answer: asyncio.Future[int]
    """The revision; 0 where the version was another."""


class _Writer(threading.Thread):
    """Groups what waits into one transaction; answers after its COMMIT."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.SimpleQueue[_Put] = queue.SimpleQueue()
        self._path = path
        self._loop = loop

    def run(self) -> None:
        database = sqlite3.connect(self._path, isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute(
            "CREATE TABLE history (revision INTEGER PRIMARY KEY, key TEXT NOT NULL, version INTEGER NOT NULL,"
            " value BLOB NOT NULL)"
        )
        database.execute(
            "CREATE TABLE current (key TEXT PRIMARY KEY, version INTEGER NOT NULL, revision INTEGER NOT NULL,"
            " value BLOB NOT NULL)"
        )
        revision = 0
        while True:
            batch = [self.waiting.get()]
            while len(batch) < _BATCH:
                try:
                    batch.append(self.waiting.get_nowait())
                except queue.Empty:
                    break
            revisions = []
            database.execute("BEGIN IMMEDIATE")
            for put in batch:
                done = self._write(database, put, revision + 1)
                revision += done
                revisions.append(revision if done else 0)
            database.execute("COMMIT")
            self._loop.call_soon_threadsafe(_answer, batch, revisions)

    @staticmethod
    def _write(database: sqlite3.Connection, put: _Put, revision: int) -> bool:
        if put.expected:
            changed = database.execute(
                "UPDATE current SET version = ?, revision = ?, value = ? WHERE key = ? AND version = ?",
                (put.expected + 1, revision, put.value, put.key, put.expected),
            )
        else:
            changed = database.execute(
                "INSERT INTO current VALUES (?, 1, ?, ?) ON CONFLICT DO NOTHING",
                (put.key, revision, put.value),
            )
        if changed.rowcount != 1:
            return False
        database.execute(
            "INSERT INTO history VALUES (?, ?, ?, ?)", (revision, put.key, put.expected + 1, put.value)
        )
        return True


def _answer(batch: list[_Put], revisions: list[int]) -> None:
    for put, revision in zip(batch, revisions, strict=True):
        if not put.answer.done():
            put.answer.set_result(revision)


class _Puts(entry_service_pb2_grpc.EntryServiceServicer):
    """Commits of one put."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer

    async def Commit(  # noqa: N802 -- the name of the call
        self,
        request: entry_service_pb2.CommitRequest,
        context: grpc.aio.ServicerContext[entry_service_pb2.CommitRequest, entry_service_pb2.CommitResponse],
    ) -> entry_service_pb2.CommitResponse:
        put = request.ops[0].put
        expected = put.precondition.version_equals
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._writer.waiting.put(_Put(put.key.key, expected, put.content.value, answer))
        revision = await answer
        if not revision:
            await context.abort(grpc.StatusCode.ABORTED, "version conflict")
        response = entry_service_pb2.CommitResponse(
            commit_id=request.request_id,
            results=[
                commit_pb2.OpResult(
                    region="shared",
                    key=put.key.key,
                    version=expected + 1,
                    etag="0123456789abcdef",
                    changed=True,
                )
            ],
        )
        response.header.revision = revision
        response.header.oldest_revision = 1
        response.header.incarnation = "0123456789abcdef0123456789abcdef"
        response.commit_time.GetCurrentTime()
        return response


def writer(pipe: Connection[Any, Any], folder: Path) -> None:
    """Serve Commit of one put: a queue to one thread, raw sqlite3, WAL, synchronous=FULL, grouped."""

    async def main() -> None:
        thread = _Writer(folder / "yardstick.sqlite3", asyncio.get_running_loop())
        thread.start()
        servicer = _Puts(thread)  # type: ignore[abstract] # as above
        await _serve(
            pipe, lambda server: entry_service_pb2_grpc.add_EntryServiceServicer_to_server(servicer, server)
        )

    run(main())


# Watch: a bare fan-out


class _FanOut(grpc.GenericRpcHandler):
    """Every Commit pushes the same bytes to every Watch stream."""

    def __init__(self, first: bytes, message: bytes) -> None:
        self._first = first
        self._message = message
        self._streams: set[asyncio.Queue[bytes]] = set()
        self._watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(self._stream)
        self._commit: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(self._push)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Find the handler of a call."""
        method = handler_call_details.method
        return self._watch if method.endswith("/Watch") else self._commit

    async def _stream(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._streams.add(waiting)
        try:
            yield self._first
            while True:
                yield await waiting.get()
        finally:
            self._streams.discard(waiting)

    async def _push(self, request: bytes, context: object) -> bytes:
        for waiting in self._streams:
            waiting.put_nowait(self._message)
        return b""


def fan_out(pipe: Connection[Any, Any], first: bytes, message: bytes) -> None:
    """Serve Watch streams: `first` (bytes of a WatchResponse) at once, `message` for every Commit."""
    run(_serve(pipe, lambda server: server.add_generic_rpc_handlers((_FanOut(first, message),))))
