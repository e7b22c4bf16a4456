"""A lock that is held: asked for, renewed in the background, released; and what is written under it."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from slateboard import _methods
from slateboard import _shim_async as shim
from slateboard._async.core import AsyncCore
from slateboard._async.lock_keeper import renew
from slateboard._async.writing import AsyncWriter
from slateboard._locks import LockClaim, LockInfo, LockScope, lock_info, scope_message
from slateboard._retry import outcome_open
from slateboard._values import Duration, seconds
from slateboard._wire_boards import duration
from slateboard.errors import Invalid, LockLost, SlateError
from slateboard.v1 import error_reason_pb2, lock_service_pb2

Self = TypeVar("Self", bound="AsyncLock")

MAX_WAIT = 3_600.0
_BEYOND_WAIT = 15.0
"""Seconds that a call may take beyond the wait it asks for."""
_RELEASE_TIMEOUT = 5.0
_TAKE_BACK_TIMEOUT = 2.0
"""Seconds that taking back an ask may hold up whoever gave up on it."""
_SHORTEST_WAIT = 0.001
"""What is left of a wait that is over: not 0, which would not leave the queue but only look at it."""
_MARGIN = 0.25
"""Seconds before the lock's end within which nothing is promised any more."""


class AsyncLock(AsyncWriter):
    """See `board.lock`. Reads and writes as a board does, and every write carries the lock's claim.

    One context, one lock: it cannot be entered twice.
    """

    def __init__(
        self,
        core: AsyncCore,
        region: str,
        scopes: Sequence[str | LockScope],
        *,
        ttl: Duration,
        wait: Duration | None,
        purpose: str,
        shared: bool,
        max_hold: Duration | None,
        cancel_on_loss: bool,
    ) -> None:
        super().__init__(core.under(self), region)
        self._outer = core
        self._asked_scopes = scopes
        self._ttl = seconds(ttl, "ttl")
        self._wait = MAX_WAIT if wait is None else seconds(wait, "wait")
        self._purpose = purpose
        self._shared = shared
        self._max_hold = None if max_hold is None else seconds(max_hold, "max_hold")
        self._cancels = cancel_on_loss
        self._info: LockInfo | None = None
        self._claim: LockClaim | None = None
        self._taken_over = False
        self._session_token = ""
        self._until = 0.0
        self._due = 0.0
        self._hold_until: float | None = None
        self._ending = False
        self._kept = False
        self._body = shim.Body()
        self._why: LockLost | None = None
        self.lost = shim.Event()
        """Set as soon as the lock is known, or must be presumed, to be lost. Wait for it, or look at it."""

    @classmethod
    def adopted(
        cls: type[Self], core: AsyncCore, region: str, lock_id: str, token: int, *, cancel_on_loss: bool
    ) -> Self:
        """See `board.adopt_lock`."""
        made = cls(
            core,
            region,
            (),
            ttl=2.0,
            wait=0.0,
            purpose="",
            shared=False,
            max_hold=None,
            cancel_on_loss=cancel_on_loss,
        )
        made._claim = LockClaim(lock_id, token)
        made._taken_over = True
        return made

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "held" if self._info is not None else "not held"
        return f"{type(self).__name__}({self._core.name!r}, id={self.lock_id!r}, {state})"

    @property
    def granted(self) -> LockInfo:
        """The lock as it was granted."""
        if self._info is None:
            raise Invalid(
                "the lock is not held yet: `with board.lock(...) as held`", metadata={"field": "lock"}
            )
        return self._info

    @property
    def scopes(self) -> tuple[LockScope, ...]:
        """What it covers."""
        return self.granted.scopes

    @property
    def ttl(self) -> float:
        """Seconds that it lives without a renewal, as granted; before that, as asked for."""
        return self._ttl

    @property
    def until(self) -> float:
        """By the monotonic clock: up to when it is certainly held, unless it is ended by force."""
        return self._until

    @property
    def due(self) -> float:
        """By the monotonic clock: when it is to be renewed next."""
        return self._due

    @property
    def lock_id(self) -> str:
        """The lock's id; empty before it was granted."""
        return self._claim.lock_id if self._claim is not None else ""

    @property
    def token(self) -> int:
        """The fencing token, higher than that of every earlier grant on the board: pass it to whatever can check it."""
        return self._claim.token if self._claim is not None else 0

    @property
    def claim(self) -> LockClaim:
        """What a commit presents."""
        if self._claim is None:
            raise Invalid(
                "the lock is not held yet: `with board.lock(...) as held`", metadata={"field": "lock"}
            )
        return self._claim

    @property
    def time_left(self) -> float:
        """Seconds for which it is certainly held if it is not renewed again (nor ended by force); 0 once it is lost."""
        return 0.0 if self.lost.is_set() else max(0.0, self._until - shim.monotonic())

    def check(self) -> None:
        """Raises LockLost if the lock is lost, as far as is known here; asks nobody."""
        self.look_at_clock()
        if self._why is not None:
            raise LockLost(self._why.message, reason=self._why.reason, metadata=self._why.metadata)
        if self._ending:
            raise self._lost("LOCK_LOST", "it was released, detached or handed on here")

    async def gate(self) -> float:
        """Asks the server, right before an effect that nothing fences (a mail, a payment): is it still held?

        Returns:
            Seconds for which it now is, unless somebody ends it by force. Less than the ttl, so be quick.

        Raises:
            LockLost: it is not, or nobody could say so in time.
        """
        self.check()
        try:
            await self._renew(max(_MARGIN, self.time_left - _MARGIN))
        except SlateError as error:
            self.check()
            raise self._lost(
                "LOCK_LOST", f"whether it is still held could not be asked ({error.message})"
            ) from error
        self.check()
        left = self.time_left - _MARGIN
        if left <= 0:
            raise self._lost("LOCK_EXPIRED", "it is about to end")
        return left

    async def release(self) -> None:
        """Ends the lock now. Nothing happens if it had ended before; leaving the context does the same."""
        if self._ending or self._claim is None:
            return
        # While it still counts: once it is being released nobody looks any more, and a release may go unanswered.
        self.look_at_clock()
        await self._stop()
        if self.lost.is_set():
            return
        try:
            outcome = await self._give_back(self._claim, min(_RELEASE_TIMEOUT, self._ttl))
        except LockLost as error:
            self.lose(error.reason, error.message)
            return
        # A repeated release answers as the first: whatever else is said here happened before.
        reason, how = _ENDED_BEFORE.get(outcome, ("", ""))
        if reason:
            self.lose(reason, f"{how} before it was released")

    async def detach(self) -> LockClaim:
        """Stops renewing without releasing: the lock lives on for its ttl, for whoever adopts or renews it.

        Leaving the context then does nothing.
        """
        self.check()
        await self._stop()
        return self.claim

    async def transfer(
        self, to: str, *, session_id: str = "", holder: str = "", timeout: Duration | None = None
    ) -> LockInfo:
        """Hands the lock to another principal, without a moment in which it is free. It is over here; no write follows.

        Returns:
            The receiver's lock: it enters `board.adopt_lock(info.lock_id, info.token)` within the ttl.
        """
        self.check()
        request = lock_service_pb2.TransferRequest(
            board=self._outer.name,
            request_id=str(uuid.uuid4()),
            claim=self.claim.message(),
            session_token=self._session_token,
            to_principal=to,
            to_session_id=session_id,
            to_holder=holder,
        )
        reply = await self._outer.call(_methods.TRANSFER, request, timeout=timeout)
        await self._stop()
        return lock_info(reply.lock)

    async def __aenter__(self: Self) -> Self:
        if self._info is not None or self._ending:
            raise Invalid("a lock object is entered once: ask for another", metadata={"field": "lock"})
        self._session_token = self._outer.session_token
        try:
            if self._taken_over:
                await self._take_over()
            else:
                await self._acquire()
            self._keep()
        except BaseException:
            # Nobody is going to leave a context that was not entered.
            await self._stop()
            if not self._taken_over and self._claim is not None:
                with contextlib.suppress(SlateError):
                    await self._give_back(self._claim, _TAKE_BACK_TIMEOUT)
            raise
        self._body.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = self._body.leave(error)
        with contextlib.suppress(SlateError):  # it ends with its lease; the body's outcome matters more
            await self.release()
        if self._why is not None and (kind is None or interrupted):
            raise self._why from error

    async def _acquire(self) -> None:
        request = lock_service_pb2.AcquireRequest(
            board=self._outer.name,
            request_id=str(uuid.uuid4()),
            scopes=[
                scope_message(scope, await self._outer.region(self._region)) for scope in self._asked_scopes
            ],
            mode=lock_service_pb2.LOCK_MODE_SHARED if self._shared else lock_service_pb2.LOCK_MODE_EXCLUSIVE,
            ttl=duration(self._ttl),
            wait_timeout=duration(min(self._wait, MAX_WAIT)),
            purpose=self._purpose,
            holder=_holder(),
            session_token=self._session_token,
        )
        if self._max_hold is not None:
            request.max_hold.CopyFrom(duration(self._max_hold))
        sent = shim.monotonic()

        def again(error: SlateError) -> None:
            # With the same request_id it keeps its place in the queue, wherever it is sent; only the time has passed.
            del error
            left = sent + self._wait - shim.monotonic()
            request.wait_timeout.CopyFrom(duration(max(_SHORTEST_WAIT, left) if self._wait else 0.0))

        self._outer.check()
        try:
            reply = await self._outer.calls.call(
                _methods.ACQUIRE,
                request,
                timeout=self._wait + _BEYOND_WAIT,
                attempt_timeout=self._wait + _BEYOND_WAIT,
                on_retry=again,
            )
        except SlateError as error:
            if outcome_open(error):
                await self._take_back(request)
            raise
        except BaseException:
            await self._take_back(request)
            raise
        self._outer.seen(reply)
        self._claim = LockClaim(reply.lock.lock_id, reply.lock.fencing_token)
        self._info = lock_info(reply.lock)
        self._ttl = self._info.ttl
        # Its lease and its hold began after the ask was first sent, whichever attempt was answered.
        if self._max_hold is not None:
            self._hold_until = sent + self._max_hold
        self._until = min(sent + self._ttl, self._hold_until or math.inf)
        self._due = sent + self._ttl / 3
        if shim.monotonic() >= self._due:
            # It waited, or was heard of late: before anybody relies on it. Who waits is renewed by the server.
            with contextlib.suppress(SlateError):
                await self._renew(self._ttl)
            self.check()

    async def _take_back(self, request: lock_service_pb2.AcquireRequest) -> None:
        """Ends what was asked for, and perhaps granted, in a call that was given up on.

        The server does so by itself for a call that it knows to be cut off; a grant whose answer was on its way, or came
        to a call that was cancelled, would be held by nobody until its ttl is over.
        """
        until = shim.monotonic() + _TAKE_BACK_TIMEOUT
        request.wait_timeout.CopyFrom(duration(_SHORTEST_WAIT))
        with contextlib.suppress(SlateError):
            reply = await self._outer.calls.call(_methods.ACQUIRE, request, timeout=_TAKE_BACK_TIMEOUT)
            claim = LockClaim(reply.lock.lock_id, reply.lock.fencing_token)
            await self._give_back(claim, max(_SHORTEST_WAIT, until - shim.monotonic()))

    async def _give_back(self, claim: LockClaim, timeout: float) -> lock_service_pb2.ReleaseOutcome.ValueType:
        request = lock_service_pb2.ReleaseRequest(
            board=self._outer.name,
            request_id=str(uuid.uuid4()),
            claim=claim.message(),
            session_token=self._session_token,
        )
        return (await self._outer.calls.call(_methods.RELEASE, request, timeout=timeout)).outcome

    async def _take_over(self) -> None:
        request = lock_service_pb2.GetLockRequest(board=self._outer.name, lock_id=self.lock_id)
        reply = await self._outer.call(_methods.GET_LOCK, request)
        found = lock_info(reply.lock)
        self._ttl = found.ttl
        await self._renew(None)
        self._info = found
        self.check()

    def _keep(self) -> None:
        self._kept = True
        self._outer.keeper.add(self._outer.name, self._session_token, self)

    async def _renew(self, timeout: float | None) -> None:
        await renew(self._outer.calls, self._outer.name, self._session_token, [self], timeout=timeout)

    def settle(self, renewal: lock_service_pb2.Renewal, sent: float) -> None:
        """Takes in the answer to a renewal that was sent at a moment of the monotonic clock. For those that renew."""
        if self._ending or self.lost.is_set():
            return  # a release may have overtaken it
        if renewal.reason != error_reason_pb2.ERROR_REASON_UNSPECIFIED:
            name = error_reason_pb2.ErrorReason.Name(renewal.reason).removeprefix("ERROR_REASON_")
            self._lose(LockLost(renewal.message, reason=name, metadata={"lock_id": self.lock_id}))
            return
        # max_hold may leave less than the ttl.
        left = min(self._ttl, renewal.ttl_left.ToTimedelta().total_seconds())
        self._until = max(self._until, sent + left) if left >= self._ttl else sent + left
        self._due = max(self._due, sent + self._ttl / 3)

    def look_at_clock(self) -> None:
        """Loses the lock if its time is over. For those that renew, and for whoever is about to rely on it."""
        # The background may be late itself, in a process that was stopped or starved: the clock decides.
        now = shim.monotonic()
        if self._info is None or self._ending or now <= self._until:
            return
        if self._hold_until is not None and now >= self._hold_until:
            self.lose("LOCK_EXPIRED", "it was held for max_hold")
        else:
            self.lose("LOCK_EXPIRED", "no renewal was answered for its whole ttl")

    def lose(self, reason: str, why: str) -> None:
        """The lock is lost. For those that renew."""
        self._lose(self._lost(reason, why))

    async def _stop(self) -> None:
        self._ending = True
        if self._kept:
            self._kept = False
            await self._outer.keeper.remove(self._outer.name, self._session_token, self)

    def _lost(self, reason: str, why: str) -> LockLost:
        return LockLost(
            f"lock {self.lock_id} is lost: {why}. Stop the protected work; acquire again",
            reason=reason,
            metadata={"lock_id": self.lock_id},
        )

    def _lose(self, error: LockLost) -> None:
        if self._why is None:
            self._why = error
            self.lost.set()
            if self._cancels and not self._ending:
                self._body.interrupt()


_ENDED_BEFORE = {
    lock_service_pb2.RELEASE_OUTCOME_ALREADY_RELEASED: ("LOCK_LOST", "somebody else released it"),
    lock_service_pb2.RELEASE_OUTCOME_EXPIRED: ("LOCK_EXPIRED", "its lease had ended"),
    lock_service_pb2.RELEASE_OUTCOME_REVOKED: ("LOCK_REVOKED", "it was ended by force"),
    lock_service_pb2.RELEASE_OUTCOME_TRANSFERRED: ("LOCK_LOST", "somebody else handed it on"),
}


def _holder() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"[:200]
