"""Sessions from outside: presence by the server's clock, and what a dead session may no longer do."""

import asyncio
import uuid

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from slateboard.v1 import session_service_pb2 as pb
from tests.grpc.conftest import Api, NewApi, put, refused


async def start(api: Api, request_id: str = "", seconds: int = 0, **fields: str) -> pb.StartSessionResponse:
    request = pb.StartSessionRequest(
        board=api.board, request_id=request_id or str(uuid.uuid4()), ttl=Duration(seconds=seconds), **fields
    )
    return await api.sessions.StartSession(request, metadata=api.auth, timeout=10)


async def sessions_of(api: Api, **fields: object) -> list[pb.Session]:
    request = pb.ListSessionsRequest(board=api.board, **fields)  # type: ignore[arg-type]  # passed through
    reply = await api.sessions.ListSessions(request, metadata=api.auth, timeout=10)
    assert reply.HasField("server_time")
    return list(reply.sessions)


async def test_presence_shows_everybody_who_is_at_work_and_on_what(api: Api, join: NewApi) -> None:
    """Every member of the board sees principal, start, last sign of life, task."""
    worker = await join(name=f"w-{uuid.uuid4().hex[:8]}")
    made = await start(worker, purpose="clean", task="rows 1-100")
    beat = pb.HeartbeatRequest(board=worker.board, session_token=made.session_token, task="rows 101-200")
    await worker.sessions.Heartbeat(beat, metadata=worker.auth, timeout=10)
    [seen] = await sessions_of(api)
    assert seen.session_id == made.session.session_id
    assert seen.principal == made.session.principal
    assert (seen.purpose, seen.task, seen.state) == ("clean", "rows 101-200", pb.SESSION_STATE_ACTIVE)
    assert seen.last_seen_time.ToMicroseconds() >= seen.start_time.ToMicroseconds()
    assert made.session_token not in str(seen)


async def test_a_commit_in_a_session_names_it_and_one_in_a_dead_session_is_refused(api: Api) -> None:
    """codedb#411 (M15), fak#1182 (M16): who was given up must start anew, and cannot write meanwhile."""
    made = await start(api, seconds=2)
    await api.commit(put("a"), session_token=made.session_token)
    entry = (await api.get("a")).entries[0]
    assert entry.content.provenance.session_id == made.session.session_id
    deadline = asyncio.get_running_loop().time() + 10
    while [one.state for one in await sessions_of(api)] != [pb.SESSION_STATE_STALE]:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.2)
    said = await refused(api.commit(put("b"), session_token=made.session_token))
    assert (said.code, said.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_DEAD")
    beat = pb.HeartbeatRequest(board=api.board, session_token=made.session_token)
    said = await refused(api.sessions.Heartbeat(beat, metadata=api.auth, timeout=10))
    assert said.reason == "SESSION_DEAD"
    assert [one.state for one in await sessions_of(api)] == [pb.SESSION_STATE_STALE]
    assert not (await api.get("b")).entries
    again = await start(api)
    await api.commit(put("b"), session_token=again.session_token)


async def test_a_retried_start_gives_the_same_session_and_a_token_that_works(api: Api) -> None:
    """A lost reply must not leave a session behind that nobody can end."""
    request_id = str(uuid.uuid4())
    first, second = await start(api, request_id), await start(api, request_id)
    assert first.session_token == second.session_token
    assert len(await sessions_of(api)) == 1
    end = pb.EndSessionRequest(board=api.board, session_token=second.session_token)
    for _ in range(2):
        reply = await api.sessions.EndSession(end, metadata=api.auth, timeout=10)
        assert reply.session.state == pb.SESSION_STATE_ENDED
    assert not await sessions_of(api, state=pb.SESSION_STATE_ACTIVE)


async def test_a_session_belongs_to_its_principal(api: Api, join: NewApi) -> None:
    """A token seen by somebody else is of no use to them, for heartbeats, ends and commits."""
    other = await join()
    made = await start(api)
    calls = (
        other.sessions.Heartbeat(
            pb.HeartbeatRequest(board=api.board, session_token=made.session_token), metadata=other.auth
        ),
        other.sessions.EndSession(
            pb.EndSessionRequest(board=api.board, session_token=made.session_token), metadata=other.auth
        ),
        other.commit(put("x"), session_token=made.session_token),
    )
    for call in calls:
        assert (await refused(call)).reason == "SESSION_NOT_FOUND"
    assert [one.state for one in await sessions_of(api)] == [pb.SESSION_STATE_ACTIVE]


@pytest.mark.parametrize("token", ["", "x", ".", "a.b", "a" * 600, "0" * 24 + "." + "0" * 64])
async def test_a_garbled_session_token_is_not_found(api: Api, token: str) -> None:
    """Not an error of ours, whatever it looks like."""
    beat = pb.HeartbeatRequest(board=api.board, session_token=token)
    said = await refused(api.sessions.Heartbeat(beat, metadata=api.auth, timeout=10))
    assert (said.code, said.reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")


@pytest.mark.parametrize("seconds", [1, 3_601])
async def test_a_lifetime_out_of_bounds_is_refused_with_the_limit(api: Api, seconds: int) -> None:
    """2 s to 1 h."""
    said = await refused(start(api, seconds=seconds))
    assert (said.reason, said.metadata["field"]) == ("FIELD_INVALID", "ttl")
