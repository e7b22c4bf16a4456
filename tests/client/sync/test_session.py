# Made from aio/test_session.py by tools/async_to_sync.py; do not edit.
# ruff: noqa: SIM117 -- nested blocks show what happens inside of what
"""A session is kept alive in the background, and its loss is never silent."""

import threading

import pytest

import slateboard
from slateboard import Invalid, RetryPolicy, SessionDead
from slateboard import _shim_sync as shim
from tests.client.fake import FakeServer, Fault


def until(event: threading.Event) -> None:
    """Waits for the server without holding up the client."""
    while not event.is_set():
        shim.sleep(0.005)


def test_calls_inside_carry_the_session_and_heartbeats_keep_it(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.session(task="one", ttl=0.3, purpose="p") as session:
            board.put("k", 1, absent=True)
            board.private.put("k", 1, absent=True)
            server.heartbeat.clear()
            until(server.heartbeat)
            session.set_task("two")
            assert server.sessions["secret-1"].task == "two"
            server.heartbeat.clear()
            session.task = "three"
            until(server.heartbeat)
            assert server.sessions["secret-1"].task == "three"
            assert not session.lost.is_set()
            assert "secret" not in repr(session)
        board.put("after", 1, absent=True)
    assert [request.session_token for request in server.boards["b"].requests] == ["secret-1", "secret-1", ""]
    assert server.sessions["secret-1"].state == 3


def test_a_session_that_the_server_calls_dead_is_lost(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.session(ttl=0.3) as session:
            server.dead_sessions.add("secret-1")
            assert shim.wait(session.lost, 10)
            with pytest.raises(SessionDead):
                board.put("k", 1, absent=True)
            with pytest.raises(SessionDead):
                board.get("k")
        board.put("k", 1, absent=True)
    assert server.calls["EndSession"] == 0


def test_a_session_that_cannot_be_kept_is_presumed_dead_after_its_ttl(server: FakeServer) -> None:
    """etcd#6922: a keepalive that freezes must not do so in silence."""
    with slateboard.connect(server.address) as client:
        with client.board("b").session(ttl=0.3) as session:
            server.hanging.add("Heartbeat")
            began = shim.monotonic()
            assert shim.wait(session.lost, 10)
            assert shim.monotonic() - began < 3


def test_a_process_that_was_stopped_learns_of_it_at_its_next_call(server: FakeServer) -> None:
    """What a process remembers of its session is worth nothing after SIGSTOP: the clock decides, before any heartbeat does."""
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.session(ttl=30) as session:
            session._alive_at -= 31
            with pytest.raises(SessionDead):
                board.put("k", 1, absent=True)
            assert session.lost.is_set()
    assert server.calls["Commit"] == 0


def test_a_few_lost_heartbeats_do_no_harm(server: FakeServer) -> None:
    policy = RetryPolicy(attempts=1)
    with slateboard.connect(server.address, retry=policy) as client:
        with client.board("b").session(ttl=2) as session:
            server.fail("Heartbeat", Fault(), Fault())
            server.heartbeat.clear()
            session.task = "on"
            until(server.heartbeat)
            assert not session.lost.is_set()


def test_leaving_is_prompt_although_the_server_hangs(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        with client.board("b").session(ttl=60) as session:
            server.hanging.add("Heartbeat")
            session.task = "x"
            while not server.calls["Heartbeat"]:
                shim.sleep(0.005)
            began = shim.monotonic()
        assert shim.monotonic() - began < 5


def test_one_board_object_has_one_session_at_a_time(server: FakeServer) -> None:
    with slateboard.connect(server.address) as client:
        board = client.board("b")
        with board.session():
            with pytest.raises(Invalid):
                with board.session():
                    pass


def test_a_session_of_another_process_can_be_carried(server: FakeServer) -> None:
    with slateboard.connect(server.address, session="theirs") as client:
        client.board("b").put("k", 1, absent=True)
    assert server.boards["b"].requests[0].session_token == "theirs"
