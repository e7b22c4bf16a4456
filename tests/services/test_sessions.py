"""Sessions: started, kept alive, stale by the board's time, ended."""

import uuid

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import SECOND, PrincipalId
from slateboard_server.services.sessions import Sessions, state_of
from tests.services.conftest import BOARD, Team, put


@pytest.fixture
def sessions(team: Team) -> Sessions:
    return Sessions(team.directory, team.store, team.clock, team.keeper)


async def start(team: Team, sessions: Sessions, who: str = "ann", request: str = "") -> tuple[str, str]:
    _, session, token = await sessions.start(
        team.callers[who], BOARD, request or str(uuid.uuid4()), 10 * SECOND, "cleaning", "orders"
    )
    return session.session_id, token


async def test_a_heartbeat_keeps_a_session_alive_and_replaces_its_task(
    team: Team, sessions: Sessions
) -> None:
    session_id, token = await start(team, sessions)
    for _ in range(3):
        team.clock.advance(8)
        _, session = await sessions.heartbeat(team.callers["ann"], BOARD, token, None)
        assert (session.session_id, session.task) == (session_id, "orders")
    _, session = await sessions.heartbeat(team.callers["ann"], BOARD, token, "weeks")
    assert session.task == "weeks"


async def test_a_session_that_missed_its_heartbeats_is_dead_for_good(team: Team, sessions: Sessions) -> None:
    _, token = await start(team, sessions)
    team.clock.advance(11)
    for call in (
        sessions.heartbeat(team.callers["ann"], BOARD, token, None),
        sessions.end(team.callers["ann"], BOARD, token),
        sessions.heartbeat(team.callers["ann"], BOARD, token, None),
    ):
        with pytest.raises(SlateboardError) as caught:
            await call
        assert caught.value.reason is Reason.SESSION_DEAD
        assert caught.value.metadata["state"] == "stale"


async def test_ending_twice_answers_the_same_and_no_heartbeat_revives(team: Team, sessions: Sessions) -> None:
    ann = team.callers["ann"]
    _, token = await start(team, sessions)
    _, first = await sessions.end(ann, BOARD, token)
    team.clock.advance(100)
    _, second = await sessions.end(ann, BOARD, token)
    assert first == second
    assert first.ended is not None
    with pytest.raises(SlateboardError) as caught:
        await sessions.heartbeat(ann, BOARD, token, None)
    assert caught.value.reason is Reason.SESSION_DEAD


async def test_a_retry_answers_the_same_session_and_a_later_use_makes_a_new_one(
    team: Team, sessions: Sessions
) -> None:
    request = str(uuid.uuid4())
    first = await start(team, sessions, request=request)
    assert await start(team, sessions, request=request) == first
    team.clock.advance(11)
    second = await start(team, sessions, request=request)
    assert second != first
    assert await start(team, sessions, request=request) == second
    assert (await start(team, sessions, "bob", request))[0] not in {first[0], second[0]}


async def test_one_request_id_does_not_leave_sessions_behind_for_ever(team: Team, sessions: Sessions) -> None:
    request = str(uuid.uuid4())
    for _ in range(8):
        await start(team, sessions, request=request)
        team.clock.advance(11)
    with pytest.raises(SlateboardError) as caught:
        await start(team, sessions, request=request)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_foreign_or_garbled_token_proves_nothing(team: Team, sessions: Sessions) -> None:
    session_id, token = await start(team, sessions)
    bad = ["", ".", session_id, f"{session_id}.", f"{session_id}.{'0' * 64}", token + "0", "x" * 10_000]
    for text in bad:
        with pytest.raises(SlateboardError) as caught:
            await sessions.heartbeat(team.callers["ann"], BOARD, text, None)
        assert caught.value.reason is Reason.SESSION_NOT_FOUND, text
    with pytest.raises(SlateboardError) as caught:
        await sessions.heartbeat(team.callers["bob"], BOARD, token, None)
    assert caught.value.reason is Reason.SESSION_NOT_FOUND


@pytest.mark.parametrize("ttl", [1, SECOND, 3_601 * SECOND])
async def test_a_ttl_out_of_bounds_is_refused(team: Team, sessions: Sessions, ttl: int) -> None:
    with pytest.raises(SlateboardError) as caught:
        await sessions.start(team.callers["ann"], BOARD, str(uuid.uuid4()), ttl, "", "")
    assert caught.value.reason is Reason.FIELD_INVALID


async def test_without_a_ttl_a_session_gets_the_default(team: Team, sessions: Sessions) -> None:
    _, session, _ = await sessions.start(team.callers["ann"], BOARD, str(uuid.uuid4()), 0, "", "")
    assert session.ttl == 15 * SECOND


async def test_a_clock_set_back_makes_no_session_younger(team: Team, sessions: Sessions) -> None:
    team.clock.advance(3_600)
    await team.commit("ann", put("a"))
    team.clock.advance(-3_600)
    _, session, token = await sessions.start(
        team.callers["ann"], BOARD, str(uuid.uuid4()), 10 * SECOND, "", ""
    )
    assert session.started > team.clock.now() + 3_000 * SECOND
    _, session = await sessions.heartbeat(team.callers["ann"], BOARD, token, None)
    assert session.alive_at(session.last_seen)


async def test_sessions_are_listed_newest_first_page_by_page(team: Team, sessions: Sessions) -> None:
    made = []
    for _ in range(5):
        made.append((await start(team, sessions))[0])
        team.clock.advance(0.001)
    seen: list[str] = []
    pages, token = 0, ""
    while True:
        _, page, token, _ = await sessions.list(team.callers["bob"], BOARD, 2, token)
        seen += [session.session_id for session in page]
        pages += 1
        if not token:
            break
    assert seen == made[::-1]
    assert pages == 3
    _, exact, token, _ = await sessions.list(team.callers["bob"], BOARD, 5, "")
    assert (len(exact), token) == (5, "")


async def test_a_list_can_be_narrowed_to_a_state_and_a_principal(team: Team, sessions: Sessions) -> None:
    ann = team.callers["ann"]
    stale, _ = await start(team, sessions)
    team.clock.advance(11)
    ended, token = await start(team, sessions)
    await sessions.end(ann, BOARD, token)
    active, _ = await start(team, sessions)
    bobs, _ = await start(team, sessions, "bob")
    for state, wanted in (("stale", {stale}), ("ended", {ended}), ("active", {active, bobs})):
        _, page, next_token, now = await sessions.list(ann, BOARD, 100, "", state)
        assert {session.session_id for session in page} == wanted
        assert all(state_of(session, now) == state for session in page)
        assert not next_token
    _, page, _, _ = await sessions.list(ann, BOARD, 100, "", "active", PrincipalId("bob"))
    assert [session.session_id for session in page] == [bobs]
    _, page, token, _ = await sessions.list(ann, BOARD, 1, "", "active")
    assert len(page) == 1
    _, rest, token, _ = await sessions.list(ann, BOARD, 1, token, "active")
    assert {page[0].session_id, rest[0].session_id} == {active, bobs}
    assert not token


async def test_a_session_is_of_no_use_on_a_board_without_a_part_in_it(team: Team, sessions: Sessions) -> None:
    outsider = await team.join("outsider", board="elsewhere")
    with pytest.raises(SlateboardError) as caught:
        await sessions.start(outsider, BOARD, str(uuid.uuid4()), 0, "", "")
    assert caught.value.reason is Reason.BOARD_NOT_FOUND
