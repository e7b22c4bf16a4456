# Made from _async/lock_watch.py by tools/async_to_sync.py; do not edit.
"""Follows a board's locks over as many streams as it takes."""

from __future__ import annotations

from collections import deque
from random import random
from types import TracebackType
from typing import TypeVar

from slateboard import _methods
from slateboard import _shim_sync as shim
from slateboard._locks import LockInfo, LockScope, lock_info, scope_message
from slateboard._retry import backoff
from slateboard._sync.core import Core
from slateboard._sync.transport import Stream
from slateboard._values import Duration, seconds
from slateboard.errors import Cancelled, DeadlineExceeded, SlateError, Unavailable, WatchTooSlow
from slateboard.v1 import lock_service_pb2

Self = TypeVar("Self", bound="LockWatch")


class LockWatch:
    """An iterator of `LockInfo`; see `board.watch_locks`. Close it, or use it as a context manager."""

    def __init__(
        self,
        core: Core,
        region: str,
        covering: str | LockScope | None,
        *,
        after: int,
        reconnect_for: Duration,
    ) -> None:
        self._core = core
        self._region = region
        self._covering = covering
        self._patience = seconds(reconnect_for, "reconnect_for")
        self._stream: Stream[lock_service_pb2.WatchLocksResponse] | None = None
        self._address = ""
        self._ready: deque[LockInfo] = deque()
        self._closing = shim.Event()
        self.sequence = after
        """What it resumes after."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self: Self) -> Self:
        return self

    def close(self) -> None:
        """Ends it; a read that waits ends, too."""
        self._closing.set()
        if self._stream is not None:
            self._stream.cancel()

    def __next__(self) -> LockInfo:
        """The next change."""
        until = shim.monotonic() + self._patience
        failures = 0
        while not self._ready:
            if self._closing.is_set():
                raise StopIteration
            try:
                if self._read():
                    until = shim.monotonic() + self._patience
                    failures = 0
            except (Unavailable, DeadlineExceeded, Cancelled, WatchTooSlow) as error:
                self._drop(error)
                if self._closing.is_set():
                    raise StopIteration from None
                failures += 1
                pause = backoff(self._core.calls.retry, failures, random(), error)  # noqa: S311 -- spreads retries, guards nothing
                if shim.monotonic() + pause >= until:
                    raise
                shim.wait(self._closing, pause)
        return self._ready.popleft()

    def _read(self) -> bool:
        """Reads a message; whether the server said anything."""
        if self._stream is None:
            request = lock_service_pb2.WatchLocksRequest(board=self._core.name, after_sequence=self.sequence)
            if self._covering is not None:
                request.covering.CopyFrom(scope_message(self._covering, self._core.region(self._region)))
            self._core.check()
            self._address, self._stream = self._core.calls.stream(_methods.WATCH_LOCKS, request)
        reply = self._stream.read()
        if reply is None or reply.going_away:
            self._drop(Unavailable("the server is about to stop") if reply is not None else None)
            return reply is not None
        self._core.calls.note(self._address, None)
        self._ready.extend(lock_info(lock) for lock in reply.locks)
        self.sequence = reply.sequence
        return True

    def _drop(self, error: SlateError | None) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        if error is not None:
            self._core.calls.note(self._address, error)
