# Made from _async/watch.py by tools/async_to_sync.py; do not edit.
"""Follows a board's changes over as many streams as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from types import TracebackType
from typing import TypeVar

from slateboard import _methods
from slateboard import _shim_sync as shim
from slateboard._entries import Batch
from slateboard._enums import Trust, View
from slateboard._resume import Position
from slateboard._retry import backoff
from slateboard._sync.core import Core, logger
from slateboard._sync.transport import Stream
from slateboard._values import Duration, seconds
from slateboard._wire_boards import duration
from slateboard.errors import (
    Cancelled,
    Compacted,
    DeadlineExceeded,
    Invalid,
    RateLimited,
    Reincarnated,
    SlateError,
    Unavailable,
    WatchTooSlow,
)
from slateboard.v1 import board_service_pb2, entry_service_pb2, types_pb2

Self = TypeVar("Self", bound="Watch")


class Watch:
    """An iterator of batches; see `board.watch`. Close it, or use it as a context manager.

    A read that was cancelled or interrupted loses nothing: the next one goes on where the last batch ended. At most
    one batch is held, and no task or thread runs between reads.
    """

    def __init__(
        self,
        core: Core,
        region: str,
        prefixes: Sequence[str],
        *,
        after: int | None,
        snapshot: bool,
        resnapshot: bool,
        progress: bool,
        view: View,
        min_trust: Trust | None,
        progress_interval: Duration | None,
        reconnect_for: Duration,
    ) -> None:
        if after is not None and snapshot:
            raise Invalid("watch takes after= or snapshot=True, not both", metadata={"field": "after"})
        self._core = core
        self._region = region
        self._prefixes = prefixes
        self._resnapshot = resnapshot
        self._view = view
        self._min_trust = min_trust
        self._interval = (
            None if progress_interval is None else seconds(progress_interval, "progress_interval")
        )
        self._patience = seconds(reconnect_for, "reconnect_for")
        self._position = Position(
            core.name,
            after=after,
            snapshot=snapshot,
            progress=progress,
            incarnation=core.incarnation if after else "",
        )
        self._stream: Stream[entry_service_pb2.WatchResponse] | None = None
        self._address = ""
        self._closing = shim.Event()
        self._failures = 0
        self._failing_since: float | None = None

    @property
    def revision(self) -> int | None:
        """All up to this revision was handed out: `after=` of a watch that goes on from here."""
        return self._position.revision

    @property
    def incarnation(self) -> str:
        """The life of the board that `revision` belongs to."""
        return self._position.incarnation

    def __enter__(self: Self) -> Self:
        self._locate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> Batch:
        while not self._closing.is_set():
            try:
                stream = self._stream if self._stream is not None else self._open()
                message = stream.read()
                if message is None:
                    raise Unavailable("the server ended the watch without a reason")
                batch = self._position.feed(message)
            except SlateError as error:
                self._drop()
                if not self._closing.is_set():
                    self._recover(error)
            except BaseException:
                self._drop()
                raise
            else:
                self._failures, self._failing_since = 0, None
                if self._position.going_away:
                    self._leave()
                if batch is not None:
                    return batch
        raise StopIteration

    def close(self) -> None:
        """Ends the watch; a read that waits, in another thread too, ends the iteration. May be called twice."""
        self._closing.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _locate(self) -> None:
        """Fixes the position, so that a connection lost before the first message leaves no gap."""
        if self._position.revision is None and not self._position.snapshot_due:
            request = board_service_pb2.GetBoardRequest(board=self._core.name)
            reply = self._core.call(_methods.GET_BOARD, request)
            self._position.revision = reply.header.revision
            self._position.incarnation = reply.header.incarnation

    def _open(self) -> Stream[entry_service_pb2.WatchResponse]:
        self._locate()
        region = self._core.region(self._region)
        if self._core.session is not None:
            self._core.session.check()
        position = self._position
        request = entry_service_pb2.WatchRequest(
            board=self._core.name,
            prefixes=[types_pb2.PrefixRef(region=region, prefix=prefix) for prefix in self._prefixes],
            snapshot=position.snapshot_due,
            view=types_pb2.View.ValueType(self._view.value),
            min_trust=types_pb2.Trust.ValueType(self._min_trust.value if self._min_trust else 0),
            incarnation="" if position.snapshot_due else position.incarnation,
        )
        if not position.snapshot_due:
            request.after_revision = position.revision or 0
        if self._interval is not None:
            request.progress_interval.CopyFrom(duration(self._interval))
        self._address, self._stream = self._core.calls.stream(_methods.WATCH, request)
        if self._closing.is_set():  # closed by another thread while this one was opening
            self._stream.cancel()
        return self._stream

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
        self._position.broken()

    def _leave(self) -> None:
        """The server is about to stop: go on elsewhere, without waiting for the end."""
        self._core.calls.note(self._address, Unavailable("the server is going away", reason="DRAINING"))
        self._core.counters.add("reconnects")
        self._drop()

    def _recover(self, error: SlateError) -> None:
        """Prepares the next stream, or raises what cannot be mended."""
        if isinstance(error, (Compacted, Reincarnated)) and self._resnapshot:
            logger.info("board %s: watch starts again with a snapshot: %s", self._core.name, error)
            self._position.restart(error.incarnation if isinstance(error, Reincarnated) else "")
        elif not isinstance(error, (Unavailable, WatchTooSlow, RateLimited, Cancelled, DeadlineExceeded)):
            raise error
        now = shim.monotonic()
        self._core.calls.note(self._address, error)
        self._core.counters.add("reconnects")
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > self._patience:
            raise error
        # The first addresses are tried at once: one of several being down must not be noticed.
        if self._failures >= len(self._core.calls.transport.addresses):
            shim.wait(self._closing, backoff(self._core.calls.retry, self._failures, random(), error))  # noqa: S311 -- spreads retries, guards nothing
