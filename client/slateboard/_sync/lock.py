# Made from _async/lock.py by tools/async_to_sync.py; do not edit.
"""A lock that is held: asked for, renewed in the background, released; and what is written under it."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from slateboard import _methods
from slateboard import _shim_sync as shim
from slateboard._locks import LockClaim, LockInfo, LockScope, lock_info, scope_message
from slateboard._sync.core import Core
from slateboard._sync.writing import Writer
from slateboard._values import Duration, seconds
from slateboard._wire_boards import duration
from slateboard.errors import (
    Denied,
    Invalid,
    LockLost,
    NotFound,
    SessionDead,
    SlateError,
    Unauthenticated,
)
from slateboard.v1 import error_reason_pb2, lock_service_pb2

Self = TypeVar("Self", bound="Lock")

MAX_WAIT = 3_600.0
_BEYOND_WAIT = 15.0
"""Seconds that a call may take beyond the wait it asks for."""
_RELEASE_TIMEOUT = 5.0
_MARGIN = 0.25
"""Seconds before the lock's end within which nothing is promised any more."""


class Lock(Writer):
    """See `board.lock`. Reads and writes as a board does, and every write carries the lock's claim.

    One context, one lock: it cannot be entered twice.
    """

    def __init__(
        self,
        core: Core,
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
        self._until = 0.0
        """Monotonic seconds up to which it is certainly held, unless it is ended by force."""
        self._ending = False
        self._wake = shim.Event()
        self._scope = shim.Scope()
        self._body = shim.Body()
        self._renewing: shim.Task | None = None
        self._why: LockLost | None = None
        self.lost = shim.Event()
        """Set as soon as the lock is known, or must be presumed, to be lost. Wait for it, or look at it."""

    @classmethod
    def adopted(
        cls: type[Self], core: Core, region: str, lock_id: str, token: int, *, cancel_on_loss: bool
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
        # The background may be late itself, in a process that was stopped or starved: the clock decides.
        if self._info is not None and not self._ending and shim.monotonic() > self._until:
            self._lose(self._lost("LOCK_EXPIRED", "no renewal was answered for its whole ttl"))
        if self._why is not None:
            raise LockLost(self._why.message, reason=self._why.reason, metadata=self._why.metadata)
        if self._ending:
            raise self._lost("LOCK_LOST", "it was released, detached or handed on here")

    def gate(self) -> float:
        """Asks the server, right before an effect that nothing fences (a mail, a payment): is it still held?

        Returns:
            Seconds for which it now is, unless somebody ends it by force. Less than the ttl, so be quick.

        Raises:
            LockLost: it is not, or nobody could say so in time.
        """
        self.check()
        try:
            self._renew(self.time_left)
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

    def release(self) -> None:
        """Ends the lock now. Nothing happens if it had ended before; leaving the context does the same."""
        if self._ending or self._claim is None:
            return
        self._stop()
        if self.lost.is_set():
            return
        request = lock_service_pb2.ReleaseRequest(
            board=self._outer.name,
            request_id=str(uuid.uuid4()),
            claim=self._claim.message(),
            session_token=self._outer.session_token,
        )
        reply = self._outer.calls.call(_methods.RELEASE, request, timeout=min(_RELEASE_TIMEOUT, self._ttl))
        if reply.outcome in {
            lock_service_pb2.RELEASE_OUTCOME_EXPIRED,
            lock_service_pb2.RELEASE_OUTCOME_REVOKED,
        }:
            revoked = reply.outcome == lock_service_pb2.RELEASE_OUTCOME_REVOKED
            self._lose(
                self._lost("LOCK_REVOKED", "it was ended by force before it was released")
                if revoked
                else self._lost("LOCK_EXPIRED", "its lease had ended before it was released")
            )

    def detach(self) -> LockClaim:
        """Stops renewing without releasing: the lock lives on for its ttl, for whoever adopts or renews it.

        Leaving the context then does nothing.
        """
        self.check()
        self._stop()
        return self.claim

    def transfer(
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
            session_token=self._outer.session_token,
            to_principal=to,
            to_session_id=session_id,
            to_holder=holder,
        )
        reply = self._outer.call(_methods.TRANSFER, request, timeout=timeout)
        self._stop()
        return lock_info(reply.lock)

    def __enter__(self: Self) -> Self:
        if self._info is not None or self._ending:
            raise Invalid("a lock object is entered once: ask for another", metadata={"field": "lock"})
        if self._taken_over:
            self._take_over()
        else:
            self._acquire()
        self._body.enter()
        self._renewing = shim.Task(self._keep, f"slateboard-lock-{self.lock_id}", self._scope)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = self._body.leave(error)
        with contextlib.suppress(SlateError):  # it ends with its lease; the body's outcome matters more
            self.release()
        if self._why is not None and (kind is None or interrupted):
            raise self._why from error

    def _acquire(self) -> None:
        request = lock_service_pb2.AcquireRequest(
            board=self._outer.name,
            request_id=str(uuid.uuid4()),
            scopes=[scope_message(scope, self._outer.region(self._region)) for scope in self._asked_scopes],
            mode=lock_service_pb2.LOCK_MODE_SHARED if self._shared else lock_service_pb2.LOCK_MODE_EXCLUSIVE,
            ttl=duration(self._ttl),
            wait_timeout=duration(min(self._wait, MAX_WAIT)),
            purpose=self._purpose,
            holder=_holder(),
            session_token=self._outer.session_token,
        )
        if self._max_hold is not None:
            request.max_hold.CopyFrom(duration(self._max_hold))
        until = shim.monotonic() + self._wait
        sent = shim.monotonic()
        attempts = 1

        def again(error: SlateError) -> None:
            # With the same request_id it keeps its place in the queue, wherever it is sent; only the time has passed.
            del error
            nonlocal attempts
            attempts += 1
            request.wait_timeout.CopyFrom(duration(max(0.0, until - shim.monotonic())))

        self._outer.check()
        reply = self._outer.calls.call(
            _methods.ACQUIRE,
            request,
            timeout=self._wait + _BEYOND_WAIT,
            attempt_timeout=self._wait + _BEYOND_WAIT,
            on_retry=again,
        )
        self._outer.seen(reply)
        self._claim = LockClaim(reply.lock.lock_id, reply.lock.fencing_token)
        self._info = lock_info(reply.lock)
        self._ttl = self._info.ttl
        if attempts == 1 and shim.monotonic() - sent < self._ttl / 3:
            self._until = sent + (self._ttl if self._max_hold is None else min(self._ttl, self._max_hold))
        else:
            # After a wait, or a first answer that got lost, nobody here knows how old the lease is.
            self._until = shim.monotonic() + self._ttl
            try:
                self._renew(self._ttl)
            except SlateError:
                self._until = shim.monotonic() + self._ttl / 2
            self.check()

    def _take_over(self) -> None:
        request = lock_service_pb2.GetLockRequest(board=self._outer.name, lock_id=self.lock_id)
        reply = self._outer.call(_methods.GET_LOCK, request)
        found = lock_info(reply.lock)
        self._ttl = found.ttl
        self._renew(None)
        self._info = found
        self.check()

    def _keep(self) -> None:
        """Renews three times a ttl until the lock is released or lost."""
        while not self._over():
            left = self._until - shim.monotonic()
            shim.wait(self._wake, max(0.0, min(self._ttl / 3, left)))
            if self._over():
                return
            left = self._until - shim.monotonic()
            if left <= 0:
                self._lose(self._lost("LOCK_EXPIRED", "no renewal was answered for its whole ttl"))
                return
            try:
                self._renew(min(self._ttl / 3, left))
            except SlateError:
                # Lost, if the server said so; otherwise tried again until the ttl is over, but not in a tight loop.
                if not self._over():
                    shim.wait(self._wake, min(0.5, self._ttl / 10))

    def _over(self) -> bool:
        return self._ending or self.lost.is_set()

    def _renew(self, timeout: float | None) -> None:
        request = lock_service_pb2.RenewRequest(
            board=self._outer.name, claims=[self.claim.message()], session_token=self._outer.session_token
        )
        sent = shim.monotonic()
        try:
            reply = self._outer.calls.call(
                _methods.RENEW,
                request,
                timeout=timeout,
                scope=self._scope if timeout is not None else None,
            )
        except (SessionDead, NotFound, Unauthenticated, Denied) as error:
            self._lose(self._lost("LOCK_LOST", error.message))
            raise
        renewal = reply.renewals[0]
        if renewal.reason != error_reason_pb2.ERROR_REASON_UNSPECIFIED:
            reason = error_reason_pb2.ErrorReason.Name(renewal.reason).removeprefix("ERROR_REASON_")
            self._lose(LockLost(renewal.message, reason=reason, metadata={"lock_id": self.lock_id}))
            return
        # From when it was sent: the server may have counted from then on. max_hold may leave less than the ttl.
        left = min(self._ttl, renewal.ttl_left.ToTimedelta().total_seconds())
        self._until = max(self._until, sent + left) if left >= self._ttl else sent + left

    def _stop(self) -> None:
        self._ending = True
        self._wake.set()
        if self._renewing is not None:
            self._renewing.stop()

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


def _holder() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"[:200]
