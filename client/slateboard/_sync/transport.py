# Made from _async/transport.py by tools/async_to_sync.py; do not edit.
"""How requests travel. The rest of the client knows only `Transport`, so it can be tested without a network."""

import threading
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from slateboard import _shim_sync as shim
from slateboard._config import MAX_MESSAGE_BYTES, TLS, is_loopback
from slateboard._methods import Method, Reply, Request
from slateboard._status import from_rpc_error
from slateboard.errors import Invalid

Reply_co = TypeVar("Reply_co", bound=Message, covariant=True)


class Stream(Protocol[Reply_co]):
    """Replies of a streaming call."""

    def read(self) -> Reply_co | None:
        """The next reply; None where the server ended the stream.

        Raises:
            SlateError: the call failed.
        """

    def cancel(self) -> None:
        """Ends the call at once; a read that waits returns or raises. Never blocks, may be called twice."""


class Transport(Protocol):
    """Carries requests to one of several addresses. Decides nothing: no retries, no choice of address."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where requests can be sent, at least one."""

    def unary(
        self,
        address: str,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout: float,
        scope: shim.Scope | None = None,
    ) -> Reply:
        """Sends a request and returns the reply.

        Raises:
            SlateError: the call failed, or took longer than `timeout` seconds.
        """

    def stream(self, address: str, method: Method[Request, Reply], request: Request) -> Stream[Reply]:
        """Starts a streaming call."""

    def close(self) -> None:
        """Lets go of all connections; running calls end."""


class GrpcTransport:
    """Carries requests over gRPC: one channel an address (and lane), made when it is first used."""

    def __init__(
        self, addresses: tuple[str, ...], *, token: str | None, tls: TLS | None, insecure: bool
    ) -> None:
        if token is not None and tls is None and not insecure:
            for address in addresses:
                if not is_loopback(address):
                    raise Invalid(
                        f"a token would travel to {address} in the clear: pass tls=slateboard.TLS(...), or "
                        "insecure=True if that network is trusted",
                        metadata={"field": "tls"},
                    )
        self._addresses = addresses
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._tls = tls
        self._credentials = None if tls is None else _credentials(tls)
        self._lock = (
            threading.Lock()
        )  # held only while a channel is made; several threads may ask for the first
        self._channels: dict[tuple[str, str], shim.Channel] = {}
        self._calls: dict[tuple[str, str], Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({','.join(self._addresses)})"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where requests can be sent."""
        return self._addresses

    def unary(
        self,
        address: str,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout: float,
        scope: shim.Scope | None = None,
    ) -> Reply:
        """Sends a request and returns the reply."""
        call = self._calls.get((address, method.path))
        if call is None:
            call = self._channel(address, method.lane).unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.reply.FromString,
            )
            self._calls[address, method.path] = call
        try:
            reply = shim.unary(call, request, timeout=timeout, metadata=self._metadata, scope=scope)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return cast("Reply", reply)

    def stream(self, address: str, method: Method[Request, Reply], request: Request) -> Stream[Reply]:
        """Starts a streaming call."""
        call = self._channel(address, method.lane).unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        return GrpcStream(call(request, metadata=self._metadata))

    def close(self) -> None:
        """Closes all channels."""
        channels = list(self._channels.values())
        self._channels.clear()
        self._calls.clear()
        for channel in channels:
            shim.close_channel(channel)

    def _channel(self, address: str, lane: str) -> shim.Channel:
        with self._lock:
            channel = self._channels.get((address, lane))
            if channel is None:
                options = _options(self._tls)
                if self._credentials is None:
                    channel = shim.insecure_channel(address, options)
                else:
                    channel = shim.secure_channel(address, self._credentials, options)
                self._channels[address, lane] = channel
            return channel


class GrpcStream(Generic[Reply]):
    """Replies of a streaming gRPC call. Reads ahead no further than gRPC's flow-control window."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def read(self) -> Reply | None:
        """The next reply; None at the end."""
        try:
            return cast("Reply | None", shim.read(self._call))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()


def _options(tls: TLS | None) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Retries are the client's own, so that they are counted and a write keeps its request_id.
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # The server refuses what is too large and names the limit.
        ("grpc.max_send_message_length", -1),
        # Also bounds how long a connection attempt to a silent host takes.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # A lane is a connection of its own only if channels do not share them.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def _credentials(tls: TLS) -> grpc.ChannelCredentials:
    def read(path: str | Path | None) -> bytes | None:
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise Invalid(f"cannot read {path}: {error.strerror}", metadata={"field": "tls"}) from error

    return grpc.ssl_channel_credentials(read(tls.ca), read(tls.key), read(tls.cert))
