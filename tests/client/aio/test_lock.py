# ruff: noqa: SIM117 -- nested blocks show what happens inside of what
"""A lock is renewed in the background, its loss is never silent, and what is asked for is held or gone, never forgotten."""

import threading
import uuid
from typing import Any

import pytest

import slateboard.aio
from slateboard import (
    Delete,
    Invalid,
    LockClaim,
    LockHeld,
    LockLost,
    LockState,
    Put,
    Reincarnated,
    RetryPolicy,
    SlateError,
    Unavailable,
)
from slateboard import _shim_async as shim
from slateboard.v1 import lock_service_pb2
from tests.client.fake import FakeServer, Fault

FAST = RetryPolicy(initial_backoff=0.001, max_backoff=0.01)
ONCE = RetryPolicy(attempts=1)


async def until(event: threading.Event) -> None:
    """Waits for the server without holding up the client."""
    while not event.is_set():
        await shim.sleep(0.005)


async def renewed(server: FakeServer) -> None:
    """Waits for a renewal from now on."""
    server.locks.renewed.clear()
    await until(server.locks.renewed)


# Held


async def test_a_held_lock_is_renewed_beyond_its_ttl_and_released_at_the_end(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").lock("k", ttl=0.4, purpose="p") as held:
            began = shim.monotonic()
            while shim.monotonic() - began < 0.8:
                await renewed(server)
            assert not held.lost.is_set()
            assert 0 < held.time_left <= 0.4
            [lock] = server.locks.held()
            assert (lock.lock_id, lock.fencing_token, lock.purpose) == (held.lock_id, held.token, "p")
            assert (held.ttl, [scope.path for scope in held.scopes]) == (0.4, ["k"])
        assert not server.locks.held()
        with pytest.raises(LockLost):
            await held.put("k", 1, absent=True)
    assert server.calls["Commit"] == 0


async def test_every_way_to_write_through_a_lock_carries_its_claim(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        async with board.lock("p/") as held:
            await held.put("p/k", 1, absent=True)
            await held.append("p/log/", 1)
            await held.update("p/k", lambda value: value + 1)
            await held.commit([Put("p/other", 1, absent=True)])
            async with held.transaction() as tx:
                await tx.put("p/k", 3, exists=True)

            async def body(tx: slateboard.aio.Transaction) -> None:
                await tx.put("p/k", 4, exists=True)

            await held.run(body)
            await held.delete("p/k", exists=True)
            assert await held.get("p/k", None) is None
            with pytest.raises(LockHeld) as caught:
                await board.put("p/k", 1, absent=True)
            assert caught.value.lock_id == held.lock_id
    requests = server.boards["b"].requests
    assert [[claim.lock_id for claim in request.claims] for request in requests] == [[held.lock_id]] * 7 + [
        []
    ]
    assert {claim.fencing_token for request in requests for claim in request.claims} == {held.token}


async def test_every_way_to_write_to_a_board_takes_claims(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        async with board.lock("a") as a, board.lock("p/") as p:
            both: list[slateboard.aio.Lock | LockClaim] = [a, LockClaim(p.lock_id, p.token)]
            await board.put("a", 1, absent=True, claims=both)
            await board.append("p/", 1, claims=both)
            await board.update("a", lambda value: value + 1, claims=both)
            async with board.transaction(claims=both) as tx:
                await tx.put("a", 3, exists=True)

            async def body(tx: slateboard.aio.Transaction) -> None:
                await tx.put("p/k", 4, any_state=True)

            await board.run(body, claims=both)
            await board.commit([Delete("a", exists=True)], claims=[*both, a])
            await board.delete("p/k", exists=True, claims=both)
            await a.put("p/x", 1, absent=True, claims=[p])
    for request in server.boards["b"].requests:
        assert [claim.lock_id for claim in request.claims] == ["l-1", "l-2"]


async def test_locks_of_a_board_are_renewed_together_by_one_renewer(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        locks = [client.board("b").lock(f"k{number}", ttl=20) for number in range(120)]
        for lock in locks:
            await lock.__aenter__()
        for lock in locks:
            lock._due = 0.0
        client._keeper.wake()
        while sum(len(request.claims) for request in server.locks.renewals) < 120:
            await shim.sleep(0.005)
        assert [len(request.claims) for request in server.locks.renewals] == [100, 20]
        assert len(client._keeper.renewers) == 1
        for lock in locks:
            await lock.release()
        assert not client._keeper.renewers
    assert not server.locks.held()


async def test_a_lock_inside_a_session_belongs_to_it(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        lock = board.lock("k", ttl=0.3)
        async with board.session():
            async with lock as held:
                await renewed(server)
                await held.put("k", 1, absent=True)
    assert server.locks.asked[0].session_token == "secret-1"
    assert server.locks.renewals[0].session_token == "secret-1"
    assert server.boards["b"].requests[0].session_token == "secret-1"
    assert server.locks.released[0].session_token == "secret-1"


# Asking


async def test_a_try_and_a_timeout_name_who_is_in_the_way(server: FakeServer) -> None:
    other = server.locks.grant("k", principal="ben")
    async with slateboard.aio.connect(server.address) as client:
        for wait in (0, 0.2):
            began = shim.monotonic()
            with pytest.raises(LockHeld) as caught:
                async with client.board("b").lock("k", wait=wait):
                    pass
            assert wait <= shim.monotonic() - began < wait + 5
            error = caught.value
            assert (error.reason, error.holder, error.lock_id) == ("LOCK_WAIT_TIMEOUT", "ben", other.lock_id)
            assert (error.mode, error.waiting, error.metadata["retry_after_ms"]) == ("exclusive", 2, "250")
    assert [request.wait_timeout.ToTimedelta().total_seconds() for request in server.locks.asked] == [0, 0.2]


async def test_an_ask_whose_reply_is_lost_is_repeated_and_granted_once(server: FakeServer) -> None:
    server.fail("Acquire", Fault(), Fault(after=True))
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        async with client.board("b").lock("k", ttl=30, wait=20):
            assert len(server.locks.held()) == 1
    first, *others = server.locks.asked
    assert len(others) == 2
    assert {str(uuid.UUID(request.request_id)) for request in others} == {first.request_id}
    waits = [request.wait_timeout.ToTimedelta().total_seconds() for request in server.locks.asked]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == 20
    assert waits[-1] > 0


async def test_an_ask_may_take_as_long_as_it_waits_whatever_other_calls_may_take(server: FakeServer) -> None:
    server.locks.grant("k", ttl=0.8)
    policy = RetryPolicy(attempt_timeout=0.1)
    async with slateboard.aio.connect(server.address, timeout=0.2, retry=policy) as client:
        async with client.board("b").lock("k", wait=10):
            assert len(server.locks.asked) == 1


async def test_a_grant_that_took_long_to_be_heard_of_is_renewed_before_it_is_believed(
    server: FakeServer,
) -> None:
    server.locks.grant("k", ttl=0.4)
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").lock("k", ttl=0.6, wait=10) as held:
            assert server.calls["Renew"] == 1
            assert held.time_left > 0.4


async def test_a_grant_of_unknown_age_that_cannot_be_renewed_is_given_back(server: FakeServer) -> None:
    """Nobody here knows what is left of its lease; a guess would be a promise."""
    server.locks.grant("k", ttl=0.5)
    server.fail("Renew", *[Fault() for _ in range(20)])
    async with slateboard.aio.connect(server.address, retry=ONCE) as client:
        with pytest.raises(LockLost):
            async with client.board("b").lock("k", ttl=0.4, wait=10):
                pytest.fail("it was taken for a held one")
    assert not server.locks.held()


async def test_an_ask_that_nobody_answers_is_taken_back(server: FakeServer) -> None:
    """T13: the reply to the last attempt is lost, the lock granted; without a word it would be held by nobody."""
    server.fail("Acquire", Fault(after=True))
    async with slateboard.aio.connect(server.address, retry=ONCE) as client:
        with pytest.raises(Unavailable):
            async with client.board("b").lock("k", ttl=3600):
                pytest.fail("no answer came")
    assert not server.locks.held()
    assert len({request.request_id for request in server.locks.asked}) == 1


async def test_a_lock_object_is_entered_once(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        lock = client.board("b").lock("k")
        for use in (lambda: lock.claim, lambda: lock.scopes):
            with pytest.raises(Invalid):
                use()
        async with lock:
            with pytest.raises(Invalid):
                await lock.__aenter__()
        with pytest.raises(Invalid):
            await lock.__aenter__()


# Lost


async def test_a_lock_whose_renewals_are_dropped_is_lost_no_later_than_its_ttl(server: FakeServer) -> None:
    """T09 etcd#6922: a keepalive that freezes must not do so in silence."""
    async with slateboard.aio.connect(server.address) as client:
        with pytest.raises(LockLost) as caught:
            async with client.board("b").lock("k", ttl=0.6, cancel_on_loss=False) as held:
                await renewed(server)
                server.hanging.add("Renew")
                began = shim.monotonic()
                assert await shim.wait(held.lost, 10)
                assert shim.monotonic() - began < 0.6 + 0.3  # and a busy machine
                for call in (lambda: held.get("k"), lambda: held.put("k", 1, absent=True), held.gate):
                    with pytest.raises(LockLost):
                        await call()
                assert held.time_left == 0
    assert (caught.value.reason, caught.value.lock_id) == ("LOCK_EXPIRED", held.lock_id)
    assert server.calls["Commit"] == server.calls["Get"] == 0


async def test_renewals_that_are_refused_for_a_while_do_no_harm(server: FakeServer) -> None:
    server.fail("Renew", Fault(), Fault("UNAVAILABLE", "LOCK_BACKEND_DOWN"), Fault())
    async with slateboard.aio.connect(server.address, retry=ONCE) as client:
        async with client.board("b").lock("k", ttl=1.5) as held:
            await renewed(server)
            assert not held.lost.is_set()
    assert server.calls["Renew"] == 4


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (lock_service_pb2.LOCK_STATE_REVOKED, "LOCK_REVOKED"),
        (lock_service_pb2.LOCK_STATE_EXPIRED, "LOCK_EXPIRED"),
        (lock_service_pb2.LOCK_STATE_RELEASED, "LOCK_LOST"),
    ],
)
async def test_a_lock_that_the_server_calls_over_is_lost_at_the_next_renewal(
    server: FakeServer, state: Any, reason: str
) -> None:
    """T16 consul#9788."""
    async with slateboard.aio.connect(server.address) as client:
        with pytest.raises(LockLost) as caught:
            async with client.board("b").lock("k", ttl=1.5, cancel_on_loss=False) as held:
                server.locks.end(held.lock_id, state)
                began = shim.monotonic()
                assert await shim.wait(held.lost, 10)
                assert shim.monotonic() - began < 0.5 + 0.5
                with pytest.raises(LockLost):
                    await held.put("k", 1, absent=True)
    assert caught.value.reason == reason
    assert server.calls["Commit"] == server.calls["Release"] == 0


async def test_one_lock_that_is_lost_leaves_those_renewed_with_it_alone(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        async with board.lock("a", ttl=0.6) as kept:
            with pytest.raises(LockLost):
                async with board.lock("b", ttl=0.6, cancel_on_loss=False) as held:
                    server.locks.end(held.lock_id, lock_service_pb2.LOCK_STATE_REVOKED)
                    assert await shim.wait(held.lost, 10)
            await renewed(server)
            await kept.put("a", 1, absent=True)


async def test_a_process_that_was_stopped_learns_of_it_at_its_next_call(server: FakeServer) -> None:
    """T02: what a process remembers of its lock is worth nothing after SIGSTOP; the clock decides, and nothing goes out."""
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        with pytest.raises(LockLost):
            async with board.lock("k", ttl=30) as held:
                held._until -= 31
                for call in (
                    lambda: held.put("k", 1, absent=True),
                    held.gate,
                    lambda: board.commit([Put("k", 1, absent=True)], claims=[held]),
                ):
                    with pytest.raises(LockLost):
                        await call()
                assert held.lost.is_set()
    assert server.calls["Commit"] == server.calls["Renew"] == 0


async def test_a_lock_that_ended_unseen_is_told_of_when_its_context_is_left(server: FakeServer) -> None:
    """The body met no error, and its effects may have been unprotected: that must not pass in silence."""
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        for state in ("REVOKED", "EXPIRED", "RELEASED", "TRANSFERRED"):
            with pytest.raises(LockLost):
                async with board.lock("k", ttl=30) as held:
                    server.locks.end(held.lock_id, lock_service_pb2.LockState.Value(f"LOCK_STATE_{state}"))
        with pytest.raises(LockLost):
            async with board.lock("k", ttl=30) as held:
                del server.locks.locks[held.lock_id]


async def test_a_stopped_process_that_only_leaves_learns_of_it_even_if_nobody_answers(
    server: FakeServer,
) -> None:
    async with slateboard.aio.connect(server.address, retry=ONCE) as client:
        server.fail("Release", Fault())
        with pytest.raises(LockLost):
            async with client.board("b").lock("k", ttl=30) as held:
                held._until -= 31


async def test_the_error_of_the_body_matters_more_than_the_loss(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        with pytest.raises(KeyError):
            async with client.board("b").lock("k", ttl=30) as held:
                held._until -= 31
                raise KeyError


async def test_a_new_life_of_the_board_is_told_once_whichever_locks_a_write_claims(
    server: FakeServer,
) -> None:
    async def body(tx: slateboard.aio.Transaction) -> None:
        await tx.put("k", 2, expect=1)

    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        await board.put("k", 1, absent=True)
        async with board.lock("k") as held:
            server.boards["b"].incarnation = "life-2"
            with pytest.raises(Reincarnated):
                await board.run(body, claims=[held])
            await board.run(body, claims=[held])


# Before an effect elsewhere


async def test_the_gate_renews_now_and_says_how_long_it_holds(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").lock("k", ttl=30) as held:
            assert 29 < await held.gate() < 30
            assert server.calls["Renew"] == 1


async def test_the_gate_is_shut_once_the_lock_is_over_or_nobody_can_say(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address, retry=ONCE) as client:
        board = client.board("b")
        async with board.lock("k", ttl=30) as held:
            server.fail("Renew", Fault("UNAVAILABLE", "LOCK_BACKEND_DOWN"))
            with pytest.raises(LockLost):
                await held.gate()
            assert await held.gate() > 0  # it was held all the time
        with pytest.raises(LockLost) as caught:
            async with board.lock("k", ttl=30) as held:
                server.locks.end(held.lock_id, lock_service_pb2.LOCK_STATE_REVOKED)
                await held.gate()
    assert caught.value.reason == "LOCK_REVOKED"


async def test_the_gate_does_not_wait_beyond_the_end_of_the_lock(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").lock("k", ttl=2, cancel_on_loss=False) as held:
            server.hanging.add("Renew")
            began = shim.monotonic()
            with pytest.raises(LockLost):
                await held.gate()
            assert shim.monotonic() - began < 2
            assert held.time_left > 0


# Ended


async def test_release_is_idempotent_and_prompt_although_a_renewal_hangs(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").lock("k", ttl=60) as held:
            server.hanging.add("Renew")
            held._due = 0.0
            client._keeper.wake()
            while not server.calls["Renew"]:
                await shim.sleep(0.005)
            began = shim.monotonic()
            await held.release()
            await held.release()
        assert shim.monotonic() - began < 5
    assert len(server.locks.released) == 1


async def test_a_release_whose_reply_is_lost_is_no_loss(server: FakeServer) -> None:
    server.fail("Release", Fault(after=True))
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        async with client.board("b").lock("k"):
            pass
    first, second = server.locks.released
    assert first == second


async def test_a_lock_is_handed_on_and_adopted(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        async with board.lock("k", ttl=0.5) as held:
            info = await held.transfer("ben")
            assert (info.principal, info.state) == ("ben", LockState.HELD)
            with pytest.raises(LockLost):
                await held.put("k", 1, absent=True)
        async with board.adopt_lock(info.lock_id, info.token) as taken:
            assert server.calls["Renew"] == 1
            await renewed(server)
            await taken.put("k", 1, absent=True)
        with pytest.raises(LockLost):
            async with board.adopt_lock(info.lock_id, info.token):
                pytest.fail("it is over")


async def test_a_lock_can_be_left_to_live_on(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").lock("k") as held:
            claim = await held.detach()
        assert [lock.lock_id for lock in server.locks.held()] == [claim.lock_id]


async def test_closing_the_client_ends_the_renewals_and_says_so(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        lock = client.board("b").lock("k", cancel_on_loss=False)
        held = await lock.__aenter__()
        await client.close()
        assert held.lost.is_set()
        with pytest.raises(LockLost):
            held.check()
        with pytest.raises(SlateError):
            async with client.board("b").lock("other"):
                pass


async def test_changes_of_locks_are_followed_across_lost_connections(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        async with board.watch_locks() as watch:
            async with board.lock("k") as held:
                seen = await watch.__anext__()
                assert (seen.lock_id, seen.state) == (held.lock_id, LockState.HELD)
                server.cut_watches()
            seen = await watch.__anext__()
            assert (seen.lock_id, seen.state) == (held.lock_id, LockState.RELEASED)
            assert watch.sequence == seen.sequence
