"""What only one of the two clients can meet: a lost lock cancels an async body, an ask is cancelled or interrupted."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import slateboard
import slateboard.aio
from slateboard import LockHeld, LockLost, RetryPolicy, _methods
from slateboard._async.client import AsyncClient
from slateboard._async.transport import AsyncGrpcTransport
from slateboard._sync.client import Client
from slateboard._sync.transport import GrpcTransport
from slateboard.v1 import lock_service_pb2
from tests.client.fake import FakeServer, Fault

REVOKED = lock_service_pb2.LOCK_STATE_REVOKED


class NeverHeard(AsyncGrpcTransport):
    """The answer to the first ask arrives, and whoever waits for it does not hear of it."""

    def __init__(self, address: str) -> None:
        super().__init__((address,), token=None, tls=None, insecure=True)
        self.arrived = asyncio.Event()

    async def unary(self, address: str, method: Any, request: Any, **options: Any) -> Any:
        reply = await super().unary(address, method, request, **options)
        if method is _methods.ACQUIRE and not self.arrived.is_set():
            self.arrived.set()
            await asyncio.Event().wait()
        return reply


class Interrupted(GrpcTransport):
    """Control-C just when the answer to the first ask arrives."""

    def __init__(self, address: str) -> None:
        super().__init__((address,), token=None, tls=None, insecure=True)
        self.arrived = False

    def unary(self, address: str, method: Any, request: Any, **options: Any) -> Any:
        reply = super().unary(address, method, request, **options)
        if method is _methods.ACQUIRE and not self.arrived:
            self.arrived = True
            raise KeyboardInterrupt
        return reply


def leftovers() -> list[str]:
    """Tasks of the client that still run."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("slateboard-")]


def no_longer_cancelling() -> bool:
    task = asyncio.current_task()
    assert task is not None
    return not task.cancelling()


async def test_losing_a_lock_cancels_the_body_and_becomes_lock_lost(server: FakeServer) -> None:
    """T16: within one renewal, wherever the body waits."""
    async with slateboard.aio.connect(server.address) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(LockLost) as caught:
            async with client.board("b").lock("k", ttl=1.5) as held:
                server.locks.end(held.lock_id, REVOKED)
                await asyncio.sleep(30)
        assert loop.time() - began < 0.5 + 0.5
        assert isinstance(caught.value.cause, asyncio.CancelledError)
        assert no_longer_cancelling()
        await asyncio.sleep(0)  # nothing is left to be thrown in here
    assert leftovers() == []


async def test_a_body_that_finds_out_by_itself_is_not_cancelled_as_well(server: FakeServer) -> None:
    """Before Python 3.13 a task that cancels itself is interrupted at its next wait, behind the context's end."""
    async with slateboard.aio.connect(server.address) as client:
        with pytest.raises(LockLost):
            async with client.board("b").lock("k", ttl=30) as held:
                held._until -= 31
                with pytest.raises(LockLost):
                    await held.get("k")
                await asyncio.sleep(0)
        assert no_longer_cancelling()
        await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one_although_the_lock_is_lost_too(
    server: FakeServer,
) -> None:
    async with slateboard.aio.connect(server.address) as client:
        inside = asyncio.Event()

        async def hold() -> None:
            async with client.board("b").lock("k", ttl=30) as held:
                inside.set()
                try:
                    await asyncio.sleep(30)
                finally:
                    held.lose("LOCK_REVOKED", "at the same moment")

        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


async def test_nested_locks_that_are_lost_together_end_in_lock_lost(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        with pytest.raises(LockLost):
            async with board.lock("a", ttl=0.6) as one, board.lock("b", ttl=0.6) as two:
                server.locks.end(one.lock_id, REVOKED)
                server.locks.end(two.lock_id, REVOKED)
                await asyncio.sleep(30)
        assert no_longer_cancelling()
    assert leftovers() == []


async def test_a_timeout_around_a_held_lock_is_a_timeout_and_releases(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                async with client.board("b").lock("k", ttl=30):
                    await asyncio.sleep(30)
    assert not server.locks.held()


async def test_a_renewer_that_somebody_cancelled_loses_its_locks_aloud(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        with pytest.raises(LockLost):
            async with board.lock("k", ttl=30, cancel_on_loss=False) as held:
                await asyncio.sleep(0)  # it has begun
                for task in asyncio.all_tasks():
                    if task.get_name().startswith("slateboard-locks"):
                        task.cancel()
                await asyncio.wait_for(held.lost.wait(), 5)
        async with board.lock("k2", ttl=0.3) as held:  # and others have a new one
            server.locks.renewed.clear()
            assert await asyncio.to_thread(server.locks.renewed.wait, 5)
            held.check()
    assert leftovers() == []


async def test_a_cancelled_ask_that_waits_leaves_nothing(server: FakeServer) -> None:
    other = server.locks.grant("k")
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                async with board.lock("k", ttl=3600, wait=60):
                    pytest.fail("it was not granted")
        server.locks.end(other.lock_id, lock_service_pb2.LOCK_STATE_RELEASED)
        async with board.lock("k", wait=0):
            pass
    assert not server.locks.held()
    assert leftovers() == []


async def test_a_cancelled_ask_that_was_granted_is_given_back(server: FakeServer) -> None:
    """T13: the grant and the cancellation pass each other."""
    transport = NeverHeard(server.address)
    async with AsyncClient(transport) as client:

        async def hold() -> None:
            async with client.board("b").lock("k", ttl=3600):
                pytest.fail("nobody heard of the grant")

        task = asyncio.create_task(hold())
        await transport.arrived.wait()
        assert len(server.locks.held()) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.locks.held()
    assert len({request.request_id for request in server.locks.asked}) == 1


async def test_taking_an_ask_back_does_not_hold_up_who_gave_up(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        server.hanging.add("Acquire")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                async with client.board("b").lock("k"):
                    pytest.fail("nobody answers")
        assert loop.time() - began < 3


def test_threads_that_lock_and_release_at_the_same_time_share_a_renewer(server: FakeServer) -> None:
    """The last lock of one thread ends the renewer while the first of another begins one: no lock may fall between."""
    with slateboard.connect(server.address) as client:

        def work(name: str) -> None:
            for _ in range(25):
                with client.board("b").lock(name, ttl=30) as held:
                    assert held in client._keeper.locks
                    held.check()

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(work, f"k{number}") for number in range(8)]:
                done.result(30)
        assert not client._keeper.renewers
    assert not server.locks.held()


def test_an_interrupted_ask_that_was_granted_is_given_back(server: FakeServer) -> None:
    with Client(Interrupted(server.address)) as client:
        with pytest.raises(KeyboardInterrupt), client.board("b").lock("k", ttl=3600):
            pytest.fail("it was interrupted")
        assert not server.locks.held()


def test_an_ask_that_was_refused_is_not_repeated_to_take_it_back(server: FakeServer) -> None:
    server.locks.grant("k")
    with (
        slateboard.connect(server.address) as client,
        pytest.raises(LockHeld),
        client.board("b").lock("k", wait=0),
    ):
        pass
    assert server.calls["Acquire"] == 1


def test_a_server_that_cannot_be_reached_is_said_at_once(server: FakeServer) -> None:
    server.fail("Acquire", *[Fault() for _ in range(9)])
    with (
        slateboard.connect(server.address, retry=RetryPolicy(attempts=1)) as client,
        pytest.raises(slateboard.Unavailable),
        client.board("b").lock("k"),
    ):
        pass
    assert server.calls["Acquire"] == 2
