# Made from _async/calls.py by tools/async_to_sync.py; do not edit.
"""Sends a call until it is answered: rotation over addresses, retries, the overall timeout."""

from collections.abc import Callable
from random import random

from slateboard import _shim_sync as shim
from slateboard._config import MAX_TIMEOUT, RetryPolicy
from slateboard._methods import Method, Reply, Request
from slateboard._retry import Rotation, backoff, may_repeat
from slateboard._sync.transport import Stream, Transport
from slateboard._values import Duration, seconds
from slateboard.errors import Cancelled, DeadlineExceeded, Invalid, SlateError, Unavailable


class Calls:
    """Makes calls over a transport. Shared by everything of one client."""

    def __init__(self, transport: Transport, *, retry: RetryPolicy, timeout: Duration) -> None:
        self.transport = transport
        self.retry = retry
        self.timeout = min(seconds(timeout, "timeout"), MAX_TIMEOUT)
        self._rotation = Rotation(transport.addresses)
        self._closed = False

    def call(
        self,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout: Duration | None = None,
        on_retry: Callable[[SlateError], None] | None = None,
        scope: shim.Scope | None = None,
        attempt_timeout: float | None = None,
    ) -> Reply:
        """The reply, after as many attempts as it takes within the timeout and the retry policy.

        Whatever is sent again is sent unchanged, so a write keeps its request_id. `attempt_timeout` replaces the retry
        policy's, for calls that wait on the server.

        Raises:
            SlateError: the error of the last attempt.
        """
        until = shim.monotonic() + self.seconds(timeout)
        tried: set[str] = set()
        failures = 0
        while True:
            now = shim.monotonic()
            if self._closed:
                raise Invalid("the client is closed")
            address = self._rotation.pick(now, tried)
            allowed = max(0.001, min(attempt_timeout or self.retry.attempt_timeout, until - now))
            try:
                reply = self.transport.unary(address, method, request, timeout=allowed, scope=scope)
            except SlateError as error:
                failures += 1
                self.note(address, error)
                pause = self._pause(method, error, failures, tried, address)
                if pause is None or shim.monotonic() + pause >= until:
                    raise
                if on_retry is not None:
                    on_retry(error)
                if pause:
                    (shim.sleep(pause) if scope is None else scope.sleep(pause))
                if scope is not None and scope.cancelled:
                    raise
            else:
                self._rotation.answered(address)
                return reply

    def _pause(
        self,
        method: Method[Request, Reply],
        error: SlateError,
        failures: int,
        tried: set[str],
        address: str,
    ) -> float | None:
        """Seconds until the next attempt; None where there is none. Another address is tried at once."""
        if failures >= self.retry.attempts or not may_repeat(error, method.repeat):
            return None
        if isinstance(error, (Unavailable, DeadlineExceeded, Cancelled)) and error.retry_after is None:
            tried.add(address)
            if len(tried) < len(self.transport.addresses):
                return 0.0
        tried.clear()
        rounds = -(-failures // len(self.transport.addresses))
        return backoff(self.retry, rounds, random(), error)  # noqa: S311 -- spreads retries, guards nothing

    def stream(self, method: Method[Request, Reply], request: Request) -> tuple[str, Stream[Reply]]:
        """Starts a streaming call on the next address; also says which."""
        if self._closed:
            raise Invalid("the client is closed")
        address = self._rotation.pick(shim.monotonic())
        return address, self.transport.stream(address, method, request)

    def note(self, address: str, error: SlateError | None) -> None:
        """Remembers whether an address answers, for whose turn it is."""
        if isinstance(error, (Unavailable, DeadlineExceeded)):
            self._rotation.failed(address, shim.monotonic())
        else:
            self._rotation.answered(address)

    def seconds(self, timeout: Duration | None) -> float:
        """A call's timeout; never so long that a retry could come after the server forgot the request_id."""
        return self.timeout if timeout is None else min(seconds(timeout, "timeout"), MAX_TIMEOUT)

    def close(self) -> None:
        """Closes the transport; further calls are refused."""
        self._closed = True
        self.transport.close()
