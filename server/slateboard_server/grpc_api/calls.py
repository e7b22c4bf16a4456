"""What every call goes through: its credential, its errors, its counters, its one line in the log.

One wrapper a method instead of interceptors, which cost a coroutine and a lookup each. Errors are set on the context
rather than raised through `abort`, which prints a stack where it meets a cancellation and then keeps `stop` from being
graceful (grpc/grpc#37239, #28989).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid, too_large
from slateboard_server.domain.limits import MAX_MESSAGE_BYTES
from slateboard_server.grpc_api.errors import DETAILS_KEY, FAULTS, STATUS, details_of, text_of
from slateboard_server.grpc_api.pages import MAX_REPLY_BYTES
from slateboard_server.observability.stats import CallStats, MethodStats
from slateboard_server.services.auth import Authenticator
from slateboard_server.services.model import Caller

log = structlog.get_logger("slateboard.calls")

Request = TypeVar("Request", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
UnaryWork: TypeAlias = Callable[[Caller, Request, Context], Awaitable["bytes | Message"]]
FastWork: TypeAlias = Callable[[Caller, bytes], "bytes | None"]

_IDENTITY_KEYS: Final = ("x509_subject_alternative_name", "x509_common_name")
_Credential: TypeAlias = tuple[str | None, tuple[str, ...]]
"""The authorization header, and the names in the client's certificate."""


class Stream:
    """An open server stream: writes, and remembers since when it cannot."""

    def __init__(
        self, context: Context, caller: Caller, still_allowed: Callable[[], Awaitable[Caller]]
    ) -> None:
        """Write to `context`; `still_allowed` looks at the credential again."""
        self.caller = caller
        self.still_allowed = still_allowed
        self.last_revision = 0
        """All up to here was handed to the transport: what a follower that is cut off resumes after."""
        self.too_slow = False
        self.blocked_since: float | None = None
        self.task = asyncio.current_task()
        self._context = context

    async def write(self, message: bytes) -> None:
        """Send a message; returns once the transport took it."""
        self.blocked_since = perf_counter()
        try:
            await self._context.write(message)
        except grpc.aio.InternalError as error:
            # What grpc.aio says when the client is gone and it has not noticed otherwise yet.
            raise asyncio.CancelledError from error
        self.blocked_since = None


StreamWork: TypeAlias = Callable[[Stream, Request], Awaitable[None]]


class Calls:
    """Wraps the methods of all services."""

    def __init__(
        self,
        auth: Authenticator,
        stats: CallStats,
        *,
        certificates: bool = False,
        write_timeout: float = 30.0,
    ) -> None:
        """Tell callers by `auth`, count in `stats`.

        With `certificates` a call without a token is told by its client certificate. A stream that takes no message for
        `write_timeout` seconds is ended.
        """
        self._auth = auth
        self._stats = stats
        self._certificates = certificates
        self._write_timeout = write_timeout
        self._streams: set[Stream] = set()
        self._watchdog: asyncio.Task[None] | None = None

    def unary(
        self,
        name: str,
        request_type: type[Request],
        work: UnaryWork[Request],
        fast: FastWork | None = None,
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Wrap a method with one reply. `fast` may answer from memory, without waiting; None: `work` must."""
        stats = self._stats.method(name)
        counters = self._stats
        cached = self._auth.try_cached

        async def handle(raw: bytes, context: Context) -> bytes:
            started = perf_counter()
            counters.open_calls += 1
            caller: Caller | None = None
            try:
                authorization, identities = self._credential(context)
                caller = cached(authorization, identities)
                if caller is None:
                    caller = await self._auth.authenticate(authorization, identities)
                if fast is not None:
                    reply = fast(caller, raw)
                    if reply is not None:
                        stats.succeeded(perf_counter() - started)
                        return reply
                answer = await work(caller, _parse(request_type, raw), context)
                encoded = answer if isinstance(answer, bytes) else answer.SerializeToString()
                if len(encoded) > MAX_REPLY_BYTES:
                    raise too_large("the reply", len(encoded), MAX_MESSAGE_BYTES)
            except asyncio.CancelledError:
                stats.failed(Reason.CANCELLED, perf_counter() - started)
                raise
            except Exception as error:  # noqa: BLE001 -- becomes a status; what is not ours is logged with its stack
                self._fail(context, error, stats, caller, perf_counter() - started)
                return b""
            finally:
                counters.open_calls -= 1
            stats.succeeded(perf_counter() - started)
            return encoded

        return grpc.unary_unary_rpc_method_handler(handle)

    def stream(
        self, name: str, request_type: type[Request], work: StreamWork[Request]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Wrap a method with a stream of replies."""
        stats = self._stats.method(name)
        counters = self._stats

        async def handle(raw: bytes, context: Context) -> None:
            started = perf_counter()
            counters.open_calls += 1
            counters.open_streams += 1
            caller: Caller | None = None
            stream: Stream | None = None
            try:
                authorization, identities = self._credential(context)
                caller = await self._auth.authenticate(authorization, identities)
                stream = Stream(context, caller, lambda: self._auth.authenticate(authorization, identities))
                self._look_after(stream)
                await work(stream, _parse(request_type, raw))
            except asyncio.CancelledError:
                if stream is None or not stream.too_slow:
                    stats.failed(Reason.CANCELLED, perf_counter() - started)
                    raise
                if stream.task is not None:
                    stream.task.uncancel()
                self._fail(context, self._slow(stream), stats, caller, perf_counter() - started)
                return
            except Exception as error:  # noqa: BLE001 -- becomes a status; what is not ours is logged with its stack
                self._fail(context, error, stats, caller, perf_counter() - started)
                return
            finally:
                counters.open_calls -= 1
                counters.open_streams -= 1
                if stream is not None:
                    self._streams.discard(stream)
            stats.succeeded(perf_counter() - started)

        return grpc.unary_stream_rpc_method_handler(handle)

    def _credential(self, context: Context) -> _Credential:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return (value if isinstance(value, str) else value.decode("latin-1")), ()
        if not self._certificates:
            return None, ()
        found = context.auth_context()
        return None, tuple(
            name.decode("utf-8", "replace") for key in _IDENTITY_KEYS for name in found.get(key, ())
        )

    def _fail(
        self, context: Context, error: Exception, stats: MethodStats, caller: Caller | None, seconds: float
    ) -> None:
        """Make an error the call's status, and a line in the log."""
        refused = _as_ours(error)
        stats.failed(refused.reason, seconds)
        who = caller.principal.id if caller is not None else None
        told = {name: refused.metadata[name] for name in _LOGGED if name in refused.metadata}
        if refused.reason is Reason.INTERNAL:
            log.error("call failed", method=stats.name, principal=who, **told, exc_info=error)
        else:
            level = log.warning if refused.reason in FAULTS else log.info
            level("call refused", method=stats.name, reason=str(refused.reason), principal=who, **told)
        context.set_code(STATUS[refused.reason])
        context.set_details(text_of(refused))
        context.set_trailing_metadata(((DETAILS_KEY, details_of(refused)),))

    def _slow(self, stream: Stream) -> SlateboardError:
        return SlateboardError(
            Reason.WATCH_TOO_SLOW,
            f"the follower did not take a message for {self._write_timeout:.0f} s; resume after last_revision",
            last_revision=stream.last_revision,
        )

    def _look_after(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._watchdog is None or self._watchdog.done():
            self._watchdog = asyncio.create_task(self._end_slow_streams(), name="slow-streams")

    async def _end_slow_streams(self) -> None:
        """End streams that take nothing. One look at all of them now and then costs less than a timer a message."""
        while self._streams:
            await asyncio.sleep(min(1.0, self._write_timeout / 4))
            now = perf_counter()
            for stream in self._streams:
                since = stream.blocked_since
                if since is not None and now - since > self._write_timeout and not stream.too_slow:
                    stream.too_slow = True
                    if stream.task is not None:
                        stream.task.cancel()


_LOGGED: Final = frozenset({"incident", "field", "limit", "quota", "conflict_id", "action", "session_id"})
"""Figures behind an error that the log may show: no keys, no values, no names that users made."""


def _parse(request_type: type[Request], raw: bytes) -> Request:
    if len(raw) > MAX_MESSAGE_BYTES:
        raise too_large("the request", len(raw), MAX_MESSAGE_BYTES)
    try:
        return request_type.FromString(raw)
    except DecodeError as error:
        # Also what a text that is not UTF-8 looks like.
        raise field_invalid(
            request_type.DESCRIPTOR.name, "the message cannot be read: damaged, or a text in it is not UTF-8"
        ) from error


def _as_ours(error: Exception) -> SlateboardError:
    """Return the error to show: ours as it is, anything else as INTERNAL with an incident that the log knows."""
    if isinstance(error, SlateboardError):
        if error.reason is Reason.INTERNAL:
            error.metadata.setdefault("incident", secrets.token_hex(4))
        return error
    incident = secrets.token_hex(4)
    return SlateboardError(
        Reason.INTERNAL,
        f"a fault of the server; its log has incident {incident}",
        incident=incident,
    )
