# Made from aio/test_lock.py by tools/async_to_sync.py; do not edit.
# ruff: noqa: SIM117 -- nested blocks show what happens inside of what
"""A lock is renewed in the background, its loss is never silent, and what is asked for is held or gone, never forgotten."""

import threading
import uuid
from typing import Any

import pytest

import slateboard
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
from slateboard import _shim_sync as shim
from slateboard.v1 import lock_service_pb2
from tests.client.fake import FakeServer, Fault

FAST = RetryPolicy(initial_backoff=0.001, max_backoff=0.01)
ONCE = RetryPolicy(attempts=1)


def until(event: threading.Event) -> None:
    """Waits for the server without holding up the client."""
    while not event.is_set():
        shim.sleep(0.005)


def renewed(server: FakeServer) -> None:
    """Waits for a renewal from now on."""
    server.locks.renewed.clear()
    until(server.locks.renewed)


# Held


def test_a_held_lock_is_renewed_beyond_its_ttl_and_released_at_the_end(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with client.board("b").lock("k", ttl=0.4, purpose="p") as held:
            began = shim.monotonic()
            while shim.monotonic() - began < 0.8:
                renewed(server)
            assert not held.lost.is_set()
            assert 0 < held.time_left <= 0.4
            [lock] = server.locks.held()
            assert (lock.lock_id, lock.fencing_token, lock.purpose) == (held.lock_id, held.token, "p")
            assert (held.ttl, [scope.path for scope in held.scopes]) == (0.4, ["k"])
        assert not server.locks.held()
        with pytest.raises(LockLost):
            held.put("k", 1, absent=True)
    assert server.calls["Commit"] == 0


def test_every_way_to_write_through_a_lock_carries_its_claim(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.lock("p/") as held:
            held.put("p/k", 1, absent=True)
            held.append("p/log/", 1)
            held.update("p/k", lambda value: value + 1)
            held.commit([Put("p/other", 1, absent=True)])
            with held.transaction() as tx:
                tx.put("p/k", 3, exists=True)

            def body(tx: slateboard.Transaction) -> None:
                tx.put("p/k", 4, exists=True)

            held.run(body)
            held.delete("p/k", exists=True)
            assert held.get("p/k", None) is None
            with pytest.raises(LockHeld) as caught:
                board.put("p/k", 1, absent=True)
            assert caught.value.lock_id == held.lock_id
    requests = server.boards["b"].requests
    assert [[claim.lock_id for claim in request.claims] for request in requests] == [[held.lock_id]] * 7 + [
        []
    ]
    assert {claim.fencing_token for request in requests for claim in request.claims} == {held.token}


def test_every_way_to_write_to_a_board_takes_claims(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.lock("a") as a, board.lock("p/") as p:
            both: list[slateboard.Lock | LockClaim] = [a, LockClaim(p.lock_id, p.token)]
            board.put("a", 1, absent=True, claims=both)
            board.append("p/", 1, claims=both)
            board.update("a", lambda value: value + 1, claims=both)
            with board.transaction(claims=both) as tx:
                tx.put("a", 3, exists=True)

            def body(tx: slateboard.Transaction) -> None:
                tx.put("p/k", 4, any_state=True)

            board.run(body, claims=both)
            board.commit([Delete("a", exists=True)], claims=[*both, a])
            board.delete("p/k", exists=True, claims=both)
            a.put("p/x", 1, absent=True, claims=[p])
    for request in server.boards["b"].requests:
        assert [claim.lock_id for claim in request.claims] == ["l-1", "l-2"]


def test_locks_of_a_board_are_renewed_together_by_one_renewer(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        locks = [client.board("b").lock(f"k{number}", ttl=20) for number in range(120)]
        for lock in locks:
            lock.__enter__()
        for lock in locks:
            lock._due = 0.0
        client._keeper.wake()
        while sum(len(request.claims) for request in server.locks.renewals) < 120:
            shim.sleep(0.005)
        assert [len(request.claims) for request in server.locks.renewals] == [100, 20]
        assert len(client._keeper.renewers) == 1
        for lock in locks:
            lock.release()
        assert not client._keeper.renewers
    assert not server.locks.held()


def test_a_lock_inside_a_session_belongs_to_it(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        lock = board.lock("k", ttl=0.3)
        with board.session():
            with lock as held:
                renewed(server)
                held.put("k", 1, absent=True)
    assert server.locks.asked[0].session_token == "secret-1"
    assert server.locks.renewals[0].session_token == "secret-1"
    assert server.boards["b"].requests[0].session_token == "secret-1"
    assert server.locks.released[0].session_token == "secret-1"


# Asking


def test_a_try_and_a_timeout_name_who_is_in_the_way(server: FakeServer) -> None:
    other = server.locks.grant("k", principal="ben")
    with slateboard.connect(server.address) as client:
        for wait in (0, 0.2):
            began = shim.monotonic()
            with pytest.raises(LockHeld) as caught:
                with client.board("b").lock("k", wait=wait):
                    pass
            assert wait <= shim.monotonic() - began < wait + 5
            error = caught.value
            assert (error.reason, error.holder, error.lock_id) == ("LOCK_WAIT_TIMEOUT", "ben", other.lock_id)
            assert (error.mode, error.waiting, error.metadata["retry_after_ms"]) == ("exclusive", 2, "250")
    assert [request.wait_timeout.ToTimedelta().total_seconds() for request in server.locks.asked] == [0, 0.2]


def test_an_ask_whose_reply_is_lost_is_repeated_and_granted_once(server: FakeServer) -> None:
    server.fail("Acquire", Fault(), Fault(after=True))
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").lock("k", ttl=30, wait=20):
            assert len(server.locks.held()) == 1
    first, *others = server.locks.asked
    assert len(others) == 2
    assert {str(uuid.UUID(request.request_id)) for request in others} == {first.request_id}
    waits = [request.wait_timeout.ToTimedelta().total_seconds() for request in server.locks.asked]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == 20
    assert waits[-1] > 0


def test_an_ask_may_take_as_long_as_it_waits_whatever_other_calls_may_take(server: FakeServer) -> None:
    server.locks.grant("k", ttl=0.8)
    policy = RetryPolicy(attempt_timeout=0.1)
    with slateboard.connect(server.address, timeout=0.2, retry=policy) as client:
        with client.board("b").lock("k", wait=10):
            assert len(server.locks.asked) == 1


def test_a_grant_that_took_long_to_be_heard_of_is_renewed_before_it_is_believed(
    server: FakeServer,
) -> None:
    server.locks.grant("k", ttl=0.4)
    with slateboard.connect(server.address) as client:
        with client.board("b").lock("k", ttl=0.6, wait=10) as held:
            assert server.calls["Renew"] == 1
            assert held.time_left > 0.4


def test_a_grant_of_unknown_age_that_cannot_be_renewed_is_given_back(server: FakeServer) -> None:
    """Nobody here knows what is left of its lease; a guess would be a promise."""
    server.locks.grant("k", ttl=0.5)
    server.fail("Renew", *[Fault() for _ in range(20)])
    with slateboard.connect(server.address, retry=ONCE) as client:
        with pytest.raises(LockLost):
            with client.board("b").lock("k", ttl=0.4, wait=10):
                pytest.fail("it was taken for a held one")
    assert not server.locks.held()


def test_an_ask_that_nobody_answers_is_taken_back(server: FakeServer) -> None:
    """T13: the reply to the last attempt is lost, the lock granted; without a word it would be held by nobody."""
    server.fail("Acquire", Fault(after=True))
    with slateboard.connect(server.address, retry=ONCE) as client:
        with pytest.raises(Unavailable):
            with client.board("b").lock("k", ttl=3600):
                pytest.fail("no answer came")
    assert not server.locks.held()
    assert len({request.request_id for request in server.locks.asked}) == 1


def test_a_lock_object_is_entered_once(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        lock = client.board("b").lock("k")
        for use in (lambda: lock.claim, lambda: lock.scopes):
            with pytest.raises(Invalid):
                use()
        with lock:
            with pytest.raises(Invalid):
                lock.__enter__()
        with pytest.raises(Invalid):
            lock.__enter__()


# Lost


def test_a_lock_whose_renewals_are_dropped_is_lost_no_later_than_its_ttl(server: FakeServer) -> None:
    """T09 etcd#6922: a keepalive that freezes must not do so in silence."""
    with slateboard.connect(server.address) as client:
        with pytest.raises(LockLost) as caught:
            with client.board("b").lock("k", ttl=0.6, cancel_on_loss=False) as held:
                renewed(server)
                server.hanging.add("Renew")
                began = shim.monotonic()
                assert shim.wait(held.lost, 10)
                assert shim.monotonic() - began < 0.6 + 0.3  # and a busy machine
                for call in (lambda: held.get("k"), lambda: held.put("k", 1, absent=True), held.gate):
                    with pytest.raises(LockLost):
                        call()
                assert held.time_left == 0
    assert (caught.value.reason, caught.value.lock_id) == ("LOCK_EXPIRED", held.lock_id)
    assert server.calls["Commit"] == server.calls["Get"] == 0


def test_renewals_that_are_refused_for_a_while_do_no_harm(server: FakeServer) -> None:
    server.fail("Renew", Fault(), Fault("UNAVAILABLE", "LOCK_BACKEND_DOWN"), Fault())
    with slateboard.connect(server.address, retry=ONCE) as client:
        with client.board("b").lock("k", ttl=1.5) as held:
            renewed(server)
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
def test_a_lock_that_the_server_calls_over_is_lost_at_the_next_renewal(
    server: FakeServer, state: Any, reason: str
) -> None:
    """T16 consul#9788."""
    with slateboard.connect(server.address) as client:
        with pytest.raises(LockLost) as caught:
            with client.board("b").lock("k", ttl=1.5, cancel_on_loss=False) as held:
                server.locks.end(held.lock_id, state)
                began = shim.monotonic()
                assert shim.wait(held.lost, 10)
                assert shim.monotonic() - began < 0.5 + 0.5
                with pytest.raises(LockLost):
                    held.put("k", 1, absent=True)
    assert caught.value.reason == reason
    assert server.calls["Commit"] == server.calls["Release"] == 0


def test_one_lock_that_is_lost_leaves_those_renewed_with_it_alone(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.lock("a", ttl=0.6) as kept:
            with pytest.raises(LockLost):
                with board.lock("b", ttl=0.6, cancel_on_loss=False) as held:
                    server.locks.end(held.lock_id, lock_service_pb2.LOCK_STATE_REVOKED)
                    assert shim.wait(held.lost, 10)
            renewed(server)
            kept.put("a", 1, absent=True)


def test_a_process_that_was_stopped_learns_of_it_at_its_next_call(server: FakeServer) -> None:
    """T02: what a process remembers of its lock is worth nothing after SIGSTOP; the clock decides, and nothing goes out."""
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with pytest.raises(LockLost):
            with board.lock("k", ttl=30) as held:
                held._until -= 31
                for call in (
                    lambda: held.put("k", 1, absent=True),
                    held.gate,
                    lambda: board.commit([Put("k", 1, absent=True)], claims=[held]),
                ):
                    with pytest.raises(LockLost):
                        call()
                assert held.lost.is_set()
    assert server.calls["Commit"] == server.calls["Renew"] == 0


def test_a_lock_that_ended_unseen_is_told_of_when_its_context_is_left(server: FakeServer) -> None:
    """The body met no error, and its effects may have been unprotected: that must not pass in silence."""
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        for state in ("REVOKED", "EXPIRED", "RELEASED", "TRANSFERRED"):
            with pytest.raises(LockLost):
                with board.lock("k", ttl=30) as held:
                    server.locks.end(held.lock_id, lock_service_pb2.LockState.Value(f"LOCK_STATE_{state}"))
        with pytest.raises(LockLost):
            with board.lock("k", ttl=30) as held:
                del server.locks.locks[held.lock_id]


def test_a_stopped_process_that_only_leaves_learns_of_it_even_if_nobody_answers(
    server: FakeServer,
) -> None:
    with slateboard.connect(server.address, retry=ONCE) as client:
        server.fail("Release", Fault())
        with pytest.raises(LockLost):
            with client.board("b").lock("k", ttl=30) as held:
                held._until -= 31


def test_the_error_of_the_body_matters_more_than_the_loss(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with pytest.raises(KeyError):
            with client.board("b").lock("k", ttl=30) as held:
                held._until -= 31
                raise KeyError


def test_a_new_life_of_the_board_is_told_once_whichever_locks_a_write_claims(
    server: FakeServer,
) -> None:
    def body(tx: slateboard.Transaction) -> None:
        tx.put("k", 2, expect=1)

    with slateboard.connect(server.address) as client:
        board = client.board("b")
        board.put("k", 1, absent=True)
        with board.lock("k") as held:
            server.boards["b"].incarnation = "life-2"
            with pytest.raises(Reincarnated):
                board.run(body, claims=[held])
            board.run(body, claims=[held])


# Before an effect elsewhere


def test_the_gate_renews_now_and_says_how_long_it_holds(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with client.board("b").lock("k", ttl=30) as held:
            assert 29 < held.gate() < 30
            assert server.calls["Renew"] == 1


def test_the_gate_is_shut_once_the_lock_is_over_or_nobody_can_say(server: FakeServer) -> None:
    with slateboard.connect(server.address, retry=ONCE) as client:
        board = client.board("b")
        with board.lock("k", ttl=30) as held:
            server.fail("Renew", Fault("UNAVAILABLE", "LOCK_BACKEND_DOWN"))
            with pytest.raises(LockLost):
                held.gate()
            assert held.gate() > 0  # it was held all the time
        with pytest.raises(LockLost) as caught:
            with board.lock("k", ttl=30) as held:
                server.locks.end(held.lock_id, lock_service_pb2.LOCK_STATE_REVOKED)
                held.gate()
    assert caught.value.reason == "LOCK_REVOKED"


def test_the_gate_does_not_wait_beyond_the_end_of_the_lock(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with client.board("b").lock("k", ttl=2, cancel_on_loss=False) as held:
            server.hanging.add("Renew")
            began = shim.monotonic()
            with pytest.raises(LockLost):
                held.gate()
            assert shim.monotonic() - began < 2
            assert held.time_left > 0


# Ended


def test_release_is_idempotent_and_prompt_although_a_renewal_hangs(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with client.board("b").lock("k", ttl=60) as held:
            server.hanging.add("Renew")
            held._due = 0.0
            client._keeper.wake()
            while not server.calls["Renew"]:
                shim.sleep(0.005)
            began = shim.monotonic()
            held.release()
            held.release()
        assert shim.monotonic() - began < 5
    assert len(server.locks.released) == 1


def test_a_release_whose_reply_is_lost_is_no_loss(server: FakeServer) -> None:
    server.fail("Release", Fault(after=True))
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").lock("k"):
            pass
    first, second = server.locks.released
    assert first == second


def test_a_lock_is_handed_on_and_adopted(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.lock("k", ttl=0.5) as held:
            info = held.transfer("ben")
            assert (info.principal, info.state) == ("ben", LockState.HELD)
            with pytest.raises(LockLost):
                held.put("k", 1, absent=True)
        with board.adopt_lock(info.lock_id, info.token) as taken:
            assert server.calls["Renew"] == 1
            renewed(server)
            taken.put("k", 1, absent=True)
        with pytest.raises(LockLost):
            with board.adopt_lock(info.lock_id, info.token):
                pytest.fail("it is over")


def test_a_lock_can_be_left_to_live_on(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with client.board("b").lock("k") as held:
            claim = held.detach()
        assert [lock.lock_id for lock in server.locks.held()] == [claim.lock_id]


def test_closing_the_client_ends_the_renewals_and_says_so(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        lock = client.board("b").lock("k", cancel_on_loss=False)
        held = lock.__enter__()
        client.close()
        assert held.lost.is_set()
        with pytest.raises(LockLost):
            held.check()
        with pytest.raises(SlateError):
            with client.board("b").lock("other"):
                pass


def test_changes_of_locks_are_followed_across_lost_connections(server: FakeServer) -> None:
    with slateboard.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        with board.watch_locks() as watch:
            with board.lock("k") as held:
                seen = watch.__next__()
                assert (seen.lock_id, seen.state) == (held.lock_id, LockState.HELD)
                server.cut_watches()
            seen = watch.__next__()
            assert (seen.lock_id, seen.state) == (held.lock_id, LockState.RELEASED)
            assert watch.sequence == seen.sequence
