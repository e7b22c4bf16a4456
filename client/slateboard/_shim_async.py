"""Where the async client differs from the sync one: waiting, tasks, channels. `_shim_sync` has the same names."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from slateboard.errors import Cancelled

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
Event: TypeAlias = asyncio.Event
Channel: TypeAlias = grpc.aio.Channel
monotonic = time.monotonic


class Scope:
    """Calls that can be cancelled from elsewhere. Here the task itself is cancelled: see `Task.stop`."""

    cancelled = False

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


async def wait(event: Event, timeout: float) -> bool:
    """Waits until the event is set; whether it was, within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def settle(value: MaybeAwaitable[T]) -> T:
    """The value, waited for where it has to be: callbacks may be async or not."""
    return await value if isawaitable(value) else value


class Task:
    """Something that runs in the background until it is stopped."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str, scope: Scope) -> None:
        self._task = asyncio.create_task(work(), name=name)
        self._scope = scope

    async def join(self) -> None:
        """Waits until it is done; raises what it raised."""
        await self._task

    async def stop(self) -> None:
        """Cancels it and waits until it is gone."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # seen; the work reports its failures by itself


class Body:
    """The body of a context manager, which can be cancelled from elsewhere, once, as by a timeout."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._interrupted = False

    def enter(self) -> None:
        """The task that runs now is the body's."""
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()

    def interrupt(self) -> None:
        """Cancels the body, unless it is the body that asks: it is about to raise by itself."""
        # A task that cancels itself would be interrupted at its next wait, which may lie behind the context's end.
        if self._task is not None and self._task is not asyncio.current_task() and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def leave(self, error: BaseException | None) -> bool:
        """Whether what the body ended with is nothing but the interruption."""
        task, self._task = self._task, None
        if task is None or not self._interrupted:
            return False
        return task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)


def insecure_channel(target: str, options: Sequence[tuple[str, Any]]) -> Channel:
    """A plaintext channel."""
    return grpc.aio.insecure_channel(target, options=options)


def secure_channel(
    target: str, credentials: grpc.ChannelCredentials, options: Sequence[tuple[str, Any]]
) -> Channel:
    """A channel over TLS."""
    return grpc.aio.secure_channel(target, credentials, options=options)


async def unary(
    call: Any, request: Any, *, timeout: float, metadata: Sequence[tuple[str, str]], scope: Scope | None
) -> Any:
    """One call and its reply."""
    del scope
    try:
        return await call(request, timeout=timeout, metadata=metadata)
    except asyncio.CancelledError:
        raise _cancelled() from None


async def read(call: Any) -> Any:
    """The next reply of a stream; None at its end."""
    try:
        message = await call.read()
    except asyncio.CancelledError:
        raise _cancelled() from None
    return None if message is grpc.aio.EOF else message


def _cancelled() -> BaseException:
    """What a CancelledError out of gRPC means: it raises the same when the task is cancelled and when the call is."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return Cancelled("the call was cancelled: it, or its client, was closed")


async def close_channel(channel: Channel) -> None:
    """Closes a channel; calls in flight are cancelled."""
    await channel.close()
