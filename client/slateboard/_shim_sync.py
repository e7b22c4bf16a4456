"""Where the sync client differs from the async one: waiting, threads, channels. `_shim_async` has the same names."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc

T = TypeVar("T")
Event: TypeAlias = threading.Event
Channel: TypeAlias = grpc.Channel
monotonic = time.monotonic


class Scope:
    """Calls that can be cancelled from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Any = None
        self._over = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether nothing more may be sent."""
        return self._over.is_set()

    def hold(self, call: Any) -> None:
        """The call that runs now; cancelled at once where the scope already is."""
        with self._lock:
            self._call = call
        if self._over.is_set():
            call.cancel()

    def cancel(self) -> None:
        """Cancels the running call and every later one, and wakes a sleeper."""
        self._over.set()
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()

    def sleep(self, seconds: float) -> None:
        """Waits, until cancelled at the latest."""
        self._over.wait(seconds)


def wait(event: Event, timeout: float) -> bool:
    """Waits until the event is set; whether it was, within `timeout` seconds."""
    return event.wait(timeout)


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def settle(value: T) -> T:
    """The value; in the async client it may have to be waited for."""
    return value


class Task:
    """Something that runs in the background until it is stopped."""

    def __init__(self, work: Callable[[], None], name: str, scope: Scope) -> None:
        self._scope = scope
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until it is done; what it raised was reported by the thread."""
        self._thread.join()

    def stop(self) -> None:
        """Cancels its call and waits until it is gone. The work must watch an event of its own for the rest."""
        self._scope.cancel()
        self._thread.join()


class Body:
    """The body of a context manager. A thread cannot be interrupted: it finds out at its next call."""

    def enter(self) -> None:
        """Nothing to remember."""

    def interrupt(self) -> None:
        """Nothing to be done."""

    def leave(self, error: BaseException | None) -> bool:
        """Never the interruption."""
        del error
        return False


def insecure_channel(target: str, options: Sequence[tuple[str, Any]]) -> Channel:
    """A plaintext channel."""
    return grpc.insecure_channel(target, options=options)


def secure_channel(
    target: str, credentials: grpc.ChannelCredentials, options: Sequence[tuple[str, Any]]
) -> Channel:
    """A channel over TLS."""
    return grpc.secure_channel(target, credentials, options=options)


def unary(
    call: Any, request: Any, *, timeout: float, metadata: Sequence[tuple[str, str]], scope: Scope | None
) -> Any:
    """One call and its reply."""
    if scope is None:
        return call(request, timeout=timeout, metadata=metadata)
    future = call.future(request, timeout=timeout, metadata=metadata)
    scope.hold(future)
    try:
        return future.result()
    except grpc.FutureCancelledError:
        raise future from None  # a cancelled future is an RpcError itself, with code CANCELLED


def read(call: Any) -> Any:
    """The next reply of a stream; None at its end."""
    return next(call, None)


def close_channel(channel: Channel) -> None:
    """Closes a channel; calls in flight are cancelled."""
    channel.close()
