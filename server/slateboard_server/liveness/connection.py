"""Calls to an etcd cluster: several endpoints, TLS, user auth, and one member that is down or stopped costs a moment, once."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.liveness.etcdpb import etcd_pb2 as pb

log = structlog.get_logger(__name__)

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

ANSWER_TIMEOUT: Final = 1.5
"""Seconds one member may take: more than an election of the others mostly lasts."""
CALL_TIMEOUT: Final = 5.0
"""Seconds all tries together may take."""
_PAUSE: Final = 0.1
_MAX_MESSAGE: Final = 64 << 20
_OPTIONS: Final[list[tuple[str, Any]]] = [
    # etcd takes pings every 5 s and more, on connections with calls.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
_CODE: Final = grpc.StatusCode
_PASSING: Final = frozenset(
    {_CODE.UNAVAILABLE, _CODE.DEADLINE_EXCEEDED, _CODE.CANCELLED, _CODE.UNKNOWN, _CODE.RESOURCE_EXHAUSTED}
)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Reply]):
    """A call of etcd's API."""

    path: str
    request: type[Request]
    reply: type[Reply]


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
PUT: Final = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse)
COMPACT: Final = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
TIME_TO_LIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)
KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
STATUS: Final = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)


class EtcdRefused(Exception):
    """etcd answered, and the answer is no."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        """Keep etcd's code and words, for the adapter to tell apart; they go no further."""
        super().__init__(text)
        self.code = code
        self.text = text


class EtcdConnection:
    """Channels to all members; talks to one of them until that fails."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        username: str = "",
        password: str = "",
    ) -> None:
        """Talk to `endpoints` (HOST:PORT); with `ca`, `cert` or https:// encrypted, with `username` as that user."""
        self._endpoints = [
            endpoint.removeprefix("https://").removeprefix("http://") for endpoint in endpoints
        ]
        self._files = (ca, key, cert)
        self._secure = any(self._files) or any(endpoint.startswith("https://") for endpoint in endpoints)
        self._credentials: grpc.ChannelCredentials | None = None
        self._user = (username, password)
        self._token: str | None = None
        """None: to be asked for. Empty: etcd asks for none, though we have a user."""
        self._current = 0
        self._closed = False
        self._channels: dict[int, grpc.aio.Channel] = {}
        self.heard_at = -math.inf
        """Monotonic seconds at which a member answered last; minus infinity from the first sign of trouble on."""
        self._authenticating: asyncio.Lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Read the certificates. Raises LOCK_BACKEND_DOWN for what cannot be used: it will not mend by itself."""
        _, key, cert = self._files
        if not self._endpoints or not all(self._endpoints):
            raise _misconfigured("an endpoint of etcd is HOST:PORT")
        if (key is None) != (cert is None):
            raise _misconfigured("the certificate that is shown to etcd and its private key belong together")
        if self._secure and self._credentials is None:
            try:
                contents = await asyncio.to_thread(
                    lambda: [None if path is None else path.read_bytes() for path in self._files]
                )
            except OSError as error:
                raise _misconfigured(f"{error.filename}: {error.strerror}") from error
            for path, content in zip(self._files, contents, strict=True):
                if content is not None and b"-----BEGIN " not in content:
                    raise _misconfigured(f"{path} is not a PEM file")
            self._credentials = grpc.ssl_channel_credentials(*contents)

    def _channel(self, index: int) -> grpc.aio.Channel:
        channel = self._channels.get(index)
        if channel is None:
            if self._secure and self._credentials is None:
                raise _misconfigured("the certificates were not read")  # never in the clear instead
            endpoint = self._endpoints[index]
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, options=_OPTIONS)
            self._channels[index] = channel
        return channel

    async def close(self) -> None:
        """Close all channels; who still waits hears that etcd is down."""
        self._closed = True
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    def left(self, member: int) -> bool:
        """Tell whether it is another member than `member` that is talked to now."""
        return member != self._current

    def heard(self) -> None:
        """Take note of an answer."""
        self.heard_at = asyncio.get_running_loop().time()

    def leave(self, member: int) -> None:
        """Talk to the next member, if it is still `member` that is talked to."""
        self.heard_at = -math.inf
        if member == self._current:
            self._current = (member + 1) % len(self._endpoints)

    async def call(self, method: Method[Request, Reply], request: Request) -> Reply:
        """Make a call, on another member where one does not answer.

        A call may thus be made twice: all of ours can be. LOCK_BACKEND_DOWN where nobody answered; EtcdRefused.
        """
        async with in_time():
            return await self._call(method, request)

    async def _call(self, method: Method[Request, Reply], request: Request) -> Reply:
        renewed_token = False
        tries = 0
        while True:
            member, token = self._current, self._token
            try:
                return await self._try(member, method, request)
            except grpc.aio.AioRpcError as error:
                text = error.details() or ""
                if _stale_token(error.code(), text) and not renewed_token:
                    renewed_token = True
                    self._forget(token)
                    continue
                if not _passing(error.code(), text):
                    raise EtcdRefused(error.code(), text) from error
                log.info(
                    "etcd did not answer", member=self._endpoints[member], code=error.code().name, text=text
                )
            tries += 1
            self.leave(member)
            if tries % len(self._endpoints) == 0:
                await asyncio.sleep(_PAUSE)

    async def _try(self, member: int, method: Method[Request, Reply], request: Request) -> Reply:
        metadata = await self._metadata(member) if method is not AUTHENTICATE else ()
        self._check_open()
        call = self._channel(member).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        try:
            reply: Reply = await call(request, timeout=ANSWER_TIMEOUT, metadata=metadata)
        except grpc.aio.UsageError as error:  # closed under the call
            raise down() from error
        self.heard()
        return reply

    async def _metadata(self, member: int) -> tuple[tuple[str, str], ...]:
        if not self._user[0]:
            return ()
        if self._token is None:
            async with self._authenticating:
                if self._token is None:
                    self._token = await self._authenticate(member)
        return (("token", self._token),) if self._token else ()

    async def _authenticate(self, member: int) -> str:
        request = pb.AuthenticateRequest(name=self._user[0], password=self._user[1])
        try:
            return (await self._try(member, AUTHENTICATE, request)).token
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return ""
            raise

    def _forget(self, token: str | None) -> None:
        """Log in again, unless another call did since `token` was found to be stale: that costs etcd a hash each time."""
        if token == self._token:
            self._token = None

    async def stream(self, method: Method[Request, Reply]) -> tuple[int, Stream]:
        """Open a stream to the member that is talked to; also says which that is."""
        member = self._current
        try:
            metadata = await self._metadata(member)
        except grpc.aio.AioRpcError as error:
            log.info("etcd did not let us in", member=self._endpoints[member], text=error.details())
            self.leave(member)
            raise
        self._check_open()
        call = self._channel(member).stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        # A member that is cut off from the others would keep the stream open and say nothing.
        return member, call(metadata=(*metadata, ("hasleader", "true")))

    def failed(self, member: int, error: grpc.aio.AioRpcError) -> None:
        """Take note of a stream that broke."""
        text = error.details() or ""
        self.heard_at = -math.inf
        log.info("etcd stream broke", member=self._endpoints[member], code=error.code().name, text=text)
        if _stale_token(error.code(), text):
            self._token = None
        else:
            self.leave(member)

    def refused_watch(self, reason: str) -> None:
        """Take note of a watch that etcd ended: it says so in a message, stale tokens included."""
        log.warning("etcd ended the watch", text=reason)
        if _names_token(reason):
            self._token = None

    def _check_open(self) -> None:
        if self._closed:
            raise down()


@contextlib.asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Bound what is done inside, however many calls that are: LOCK_BACKEND_DOWN where it takes too long."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            yield
    except TimeoutError as error:
        raise down() from error


def _passing(code: grpc.StatusCode, text: str) -> bool:
    # etcd says UNKNOWN for some of its own troubles, e.g. "etcdserver: request timed out" of older releases.
    if code is _CODE.UNKNOWN:
        return "timed out" in text or "leader" in text or "Stream removed" in text
    return code in _PASSING


def _stale_token(code: grpc.StatusCode, text: str) -> bool:
    return code in {_CODE.UNAUTHENTICATED, _CODE.INVALID_ARGUMENT} and _names_token(text)


def _names_token(text: str) -> bool:
    # "user name is empty": users were switched on after we were told that there were none.
    return any(words in text for words in ("invalid auth token", "auth store is old", "user name is empty"))


def _misconfigured(what: str) -> SlateboardError:
    return SlateboardError(Reason.LOCK_BACKEND_DOWN, f"etcd is not set up right: {what}")


def down() -> SlateboardError:
    """Say that etcd cannot be reached."""
    return SlateboardError(
        Reason.LOCK_BACKEND_DOWN,
        "etcd cannot be reached, so that nobody can say which locks are alive; reads and commits without claims go on:"
        " retry",
    )
