"""A principal at work: started, kept alive, ended."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from slateboard import _methods, _results, _wire
from slateboard import _shim_async as shim
from slateboard._values import Duration, seconds
from slateboard._wire_boards import duration
from slateboard.errors import Denied, Invalid, NotFound, SessionDead, SlateError, Unauthenticated
from slateboard.v1 import session_service_pb2

if TYPE_CHECKING:
    from slateboard._async.core import AsyncCore

Self = TypeVar("Self", bound="AsyncSession")

_END_TIMEOUT = 5.0


class AsyncSession:
    """See `board.session`. One context, one session: it cannot be entered twice."""

    def __init__(self, core: AsyncCore, *, task: str, ttl: Duration, purpose: str) -> None:
        self._core = core
        self._task = task
        self._purpose = purpose
        self._ttl = seconds(ttl, "ttl")
        self._token = ""
        self._info: _results.SessionInfo | None = None
        self._wake = shim.Event()
        self._ending = False
        self._alive_at = 0.0
        self._scope = shim.Scope()
        self._beating: shim.Task | None = None
        self._why = ""
        self.lost = shim.Event()
        """Set as soon as the session is known, or must be presumed, to be dead. Wait for it, or look at it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.name!r}, id={self.id!r}, lost={self.lost.is_set()})"

    @property
    def id(self) -> str:
        """The session's id, as `board.sessions()` and provenance show it; empty before it started."""
        return self._info.session_id if self._info is not None else ""

    @property
    def token(self) -> str:
        """The secret that proves the session: what `connect(session=...)` takes in another process."""
        return self._token

    @property
    def info(self) -> _results.SessionInfo | None:
        """The session as the server last described it."""
        return self._info

    @property
    def task(self) -> str:
        """What it works on. Setting it tells the server soon; `set_task` tells it now."""
        return self._task

    @task.setter
    def task(self, task: str) -> None:
        self._task = task
        self._wake.set()

    async def set_task(self, task: str) -> None:
        """Says what it works on now, and waits until the server has heard it."""
        self._task = task
        self.check()
        await self._heartbeat(None)

    def check(self) -> None:
        """Raises SessionDead if the session is lost."""
        # The background may be late itself, in a process that was stopped or starved: the clock decides.
        if not self.lost.is_set() and shim.monotonic() - self._alive_at > self._ttl:
            self._lose("no heartbeat was answered for its whole ttl")
        if self.lost.is_set():
            raise SessionDead(
                f"the session is dead: {self._why}. Stop what it was doing; start a session and read again",
                reason="SESSION_DEAD",
                metadata={"session_id": self.id},
            )

    async def __aenter__(self: Self) -> Self:
        if self._core.session is not None or self._info is not None:
            raise Invalid(
                "a board object has one session at a time: use another client.board(...), or another session",
                metadata={"field": "session"},
            )
        request = session_service_pb2.StartSessionRequest(
            board=self._core.name,
            request_id=str(uuid.uuid4()),
            ttl=duration(self._ttl),
            purpose=self._purpose,
            task=self._task,
        )
        sent = shim.monotonic()
        reply = await self._core.call(_methods.START_SESSION, request)
        self._alive_at = sent
        self._token = reply.session_token
        self._info = _wire.session(reply.session)
        self._ttl = self._info.ttl or self._ttl  # the server may have granted another
        self._core.session = self
        self._beating = shim.Task(self._beat, f"slateboard-session-{self.id}", self._scope)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.session = None
        self._ending = True
        self._wake.set()
        if self._beating is not None:
            await self._beating.stop()
        if self.lost.is_set():
            return
        request = session_service_pb2.EndSessionRequest(board=self._core.name, session_token=self._token)
        try:
            await self._core.call(_methods.END_SESSION, request, timeout=min(_END_TIMEOUT, self._ttl))
        except SlateError:
            return  # it goes stale by itself; the body's outcome matters more

    async def _beat(self) -> None:
        """Sends heartbeats three times a ttl until the session ends or is lost."""
        while not self._over():
            left = self._alive_at + self._ttl - shim.monotonic()
            await shim.wait(self._wake, max(0.0, min(self._ttl / 3, left)))
            if self._over():
                return
            self._wake.clear()
            left = self._alive_at + self._ttl - shim.monotonic()
            if left <= 0:
                self._lose("no heartbeat was answered for its whole ttl")
                return
            try:
                await self._heartbeat(min(self._ttl / 3, left))
            except SlateError:
                # Lost, if the server said so; otherwise tried again until the ttl is over, but not in a tight loop.
                if not self._over():
                    await shim.wait(self._wake, min(0.5, self._ttl / 10))
                    self._wake.set()

    def _over(self) -> bool:
        return self._ending or self.lost.is_set()

    async def _heartbeat(self, timeout: float | None) -> None:
        request = session_service_pb2.HeartbeatRequest(board=self._core.name, session_token=self._token)
        request.task = self._task
        sent = shim.monotonic()
        try:
            reply = await self._core.calls.call(
                _methods.HEARTBEAT,
                request,
                timeout=timeout,
                scope=self._scope if timeout is not None else None,
            )
        except (SessionDead, NotFound, Unauthenticated, Denied) as error:
            self._lose(error.message)
            raise
        # From when it was sent: the server may have counted from then on.
        self._alive_at = max(self._alive_at, sent)
        self._info = _wire.session(reply.session)

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            self._why = why
            self.lost.set()
