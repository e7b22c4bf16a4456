import asyncio
from dataclasses import replace

import pytest

from slateboard_server.domain import limits
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.principal import Action, Principal, Right, Role, TokenRecord
from slateboard_server.domain.values import Key, Micros, PrincipalId, SessionId, TokenId, Trust
from slateboard_server.ports import AuditRecord
from slateboard_server.storage import writes
from tests.judging import ABSENT, RIVAL, SHARED, TOKEN, WORKER, a_principal, commit, put
from tests.storing import Desk, a_session, let_in, new_board, refuses

EVE = PrincipalId("eve")


def a_token(name: str, of: PrincipalId = EVE, created: int = 0) -> TokenRecord:
    return TokenRecord(TokenId(name), of, name.encode() * 4, Micros(created))


async def test_a_session_lives_by_its_heartbeats(desk: Desk) -> None:
    await desk.store.start_session(desk.id, a_session("s"), "r-1")
    desk.clock.forward(8)
    touched = await desk.store.touch_session(desk.id, SessionId("s"), desk.clock.now(), "counting")
    assert touched is not None
    assert (touched.last_seen, touched.task) == (desk.clock.now(), "counting")
    desk.clock.forward(10.000_001)
    stale = await desk.store.touch_session(desk.id, SessionId("s"), desk.clock.now(), None)
    assert stale is not None
    assert stale == touched
    assert stale.stale_at(desk.clock.now())


async def test_an_ended_session_stays_as_it_was(desk: Desk) -> None:
    await desk.store.start_session(desk.id, a_session("s"), "r-1")
    ended = await desk.store.end_session(desk.id, SessionId("s"), desk.clock.now())
    desk.clock.forward(1)
    assert ended is not None
    assert ended.ended is not None
    assert await desk.store.end_session(desk.id, SessionId("s"), desk.clock.now()) == ended
    assert await desk.store.touch_session(desk.id, SessionId("s"), desk.clock.now(), "x") == ended
    assert await desk.store.find_session(desk.id, SessionId("s")) == ended
    assert await desk.store.touch_session(desk.id, SessionId("none"), desk.clock.now(), None) is None
    assert await desk.store.end_session(desk.id, SessionId("none"), desk.clock.now()) is None


async def test_a_repeated_start_finds_the_session_while_it_is_alive(desk: Desk) -> None:
    first = await desk.store.start_session(desk.id, a_session("s-1"), "r-1")
    assert await desk.store.start_session(desk.id, a_session("s-2"), "r-1") == first
    assert (await desk.store.start_session(desk.id, a_session("s-3", RIVAL), "r-1")).session_id == "s-3"
    later = later_by(desk, 11)
    assert (
        await desk.store.start_session(desk.id, a_session("s-4", started=later), "r-1")
    ).session_id == "s-4"


def later_by(desk: Desk, seconds: float) -> int:
    desk.clock.forward(seconds)
    return desk.clock.time


async def test_of_many_starts_of_one_request_one_session_comes(desk: Desk) -> None:
    started = await asyncio.gather(
        *[desk.store.start_session(desk.id, a_session(f"s-{number}"), "r-1") for number in range(8)]
    )
    assert len({session.session_id for session in started}) == 1
    assert len(await desk.store.list_sessions(desk.id, None, 10, None)) == 1


async def test_a_session_is_judged_by_the_boards_time_when_the_clock_was_set_back(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT))
    top = desk.clock.time
    desk.clock.forward(-3_600)
    session = await desk.store.start_session(desk.id, a_session("s", started=desk.clock.time), "r-1")
    assert (session.started, session.last_seen) == (top, top)
    touched = await desk.store.touch_session(desk.id, SessionId("s"), desk.clock.now(), None)
    assert touched is not None
    assert touched.alive_at(Micros(top))


async def test_sessions_are_listed_newest_first(desk: Desk) -> None:
    for number in range(5):
        by = RIVAL if number == 2 else WORKER
        await desk.store.start_session(
            desk.id, a_session(f"s-{number}", by, later_by(desk, 1)), f"r-{number}"
        )
    page = await desk.store.list_sessions(desk.id, None, 2, None)
    assert [session.session_id for session in page] == ["s-4", "s-3"]
    rest = await desk.store.list_sessions(desk.id, (page[-1].started, page[-1].session_id), 10, None)
    assert [session.session_id for session in rest] == ["s-2", "s-1", "s-0"]
    assert len(await desk.store.list_sessions(desk.id, None, 10, RIVAL)) == 1


async def test_no_session_starts_on_a_board_that_is_gone(desk: Desk) -> None:
    await desk.store.delete_board(desk.id, desk.board.head.incarnation)
    with refuses(Reason.BOARD_NOT_FOUND):
        await desk.store.start_session(desk.id, a_session("s"), "r-1")


async def test_a_principal_is_kept_whole(desk: Desk) -> None:
    eve = Principal(
        EVE,
        Role.SUPERVISOR,
        frozenset({"a", "b"}),
        (
            Right("plan/\u4e2d", frozenset({Action.READ, Action.ENDORSE})),
            Right("", frozenset({Action.APPEND})),
        ),
        Trust.USER,
        Micros(5),
        "op",
        display_name="\u30a4\u30f4",
    )
    await desk.store.create_principal(eve, a_token("t-eve"))
    assert await desk.store.find_principal(EVE) == eve
    assert await desk.store.find_token(TokenId("t-eve")) == (a_token("t-eve"), eve)
    changed = replace(eve, role=Role.OBSERVER, rights=(), display_name="")
    assert await desk.store.update_principal(changed)
    assert await desk.store.find_principal(EVE) == changed
    assert not await desk.store.update_principal(replace(eve, id=PrincipalId("none")))
    ids = [principal.id for principal in await desk.store.list_principals("", 10)]
    assert ids == sorted(ids)
    assert await desk.store.list_principals("eve", 1) == [
        await desk.store.find_principal(PrincipalId(ids[1]))
    ]


async def test_an_id_is_never_given_twice(desk: Desk) -> None:
    await let_in(desk.store, EVE, "t-eve")
    assert await desk.store.disable_principal(EVE)
    with refuses(Reason.PRINCIPAL_EXISTS):
        await let_in(desk.store, EVE, "t-other")
    assert await desk.store.find_token(TokenId("t-other")) is None
    eve = await desk.store.find_principal(EVE)
    assert eve is not None
    assert eve.disabled
    assert [token.revoked for token in await desk.store.list_tokens(EVE)] == [True]
    assert not await desk.store.disable_principal(PrincipalId("none"))


async def test_of_many_at_once_one_gets_the_id(desk: Desk) -> None:
    results = await asyncio.gather(
        *[
            desk.store.create_principal(a_principal(EVE, Role.WORKER), a_token(f"eve-{number}"))
            for number in range(8)
        ],
        return_exceptions=True,
    )
    errors = [result for result in results if result is not None]
    assert len(errors) == 7
    assert {getattr(error, "reason", error) for error in errors} == {Reason.PRINCIPAL_EXISTS}


async def test_a_new_token_lets_the_others_run_out(desk: Desk) -> None:
    await desk.store.create_principal(a_principal(EVE, Role.WORKER), a_token("eve-1", created=1))
    await desk.store.add_token(a_token("eve-2", created=2), None)
    await desk.store.add_token(a_token("eve-3", created=3), Micros(50))
    tokens = await desk.store.list_tokens(EVE)
    assert [(token.token_id, token.expires) for token in tokens] == [
        ("eve-1", 50),
        ("eve-2", 50),
        ("eve-3", None),
    ]
    await desk.store.add_token(a_token("eve-4", created=4), Micros(100))
    assert [token.expires for token in await desk.store.list_tokens(EVE)] == [50, 50, 100, None]
    assert await desk.store.revoke_token(TokenId("eve-3"))
    assert not await desk.store.revoke_token(TokenId("none"))
    assert [token.revoked for token in await desk.store.list_tokens(EVE)] == [False, False, True, False]


async def test_a_revoked_token_commits_nothing_from_then_on(desk: Desk) -> None:
    await desk.commit(put("a", ABSENT))
    await desk.store.revoke_token(TOKEN)
    assert (await desk.refuse(put("b", ABSENT))).reason is Reason.TOKEN_INVALID


async def test_the_audit_is_kept_and_paged_newest_first(desk: Desk) -> None:
    records = [AuditRecord(Micros(n), WORKER, "private.read", "team", f"k{n}", "why") for n in range(5)]
    await desk.store.audit(records[:3])
    await desk.store.audit(records[3:])
    page = await desk.store.list_audit(None, 2)
    assert [record for _, record in page] == [records[4], records[3]]
    rest = await desk.store.list_audit(page[-1][0], 10)
    assert [record for _, record in rest] == records[2::-1]


async def test_the_servers_secret_is_made_once(desk: Desk) -> None:
    secrets = await asyncio.gather(*[desk.store.server_secret() for _ in range(8)])
    assert len(set(secrets)) == 1
    assert len(secrets[0]) == 32


async def test_stored_answers_and_conflicts_go_when_their_time_is_over(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT), request_id="old")
    await desk.refuse(put("k", ABSENT))
    desk.clock.forward(limits.CONFLICT_RETENTION_S + 1)
    assert await desk.store.prune(desk.clock.now(), 100) == 1
    desk.clock.forward(limits.IDEMPOTENCY_RETENTION_S - limits.CONFLICT_RETENTION_S - 1)
    assert await desk.store.prune(desk.clock.now(), 100) == 0
    await desk.commit(put("other", ABSENT), request_id="new")
    desk.clock.forward(1)
    assert await desk.store.prune(desk.clock.now(), 100) == 1
    assert (await desk.store.find_commit(desk.id, request=(WORKER, "old")))[2] is None
    assert (await desk.store.find_commit(desk.id, request=(WORKER, "new")))[2] is not None
    page, _ = await desk.store.list_conflicts(desk.id, None, 10, None, None)
    assert (page.conflicts, page.dropped) == ((), 0)


async def test_conflicts_are_kept_and_found_by_key_writer_and_id(desk: Desk) -> None:
    await desk.commit(put("a", ABSENT), put("b", ABSENT))
    for key, by in (("a", WORKER), ("b", RIVAL), ("a", RIVAL)):
        desk.clock.forward(1)
        await desk.refuse(put(key, ABSENT), put("fresh", ABSENT), by=by)
    page, cursor = await desk.store.list_conflicts(desk.id, None, 2, None, None)
    assert [conflict.violations[0].key for conflict in page.conflicts] == ["a", "b"]
    assert page.more
    page, cursor = await desk.store.list_conflicts(desk.id, cursor, 2, None, None)
    assert ([conflict.principal for conflict in page.conflicts], page.more, cursor) == ([WORKER], False, None)
    page, _ = await desk.store.list_conflicts(desk.id, None, 9, (SHARED, Key("a")), RIVAL)
    [conflict] = page.conflicts
    assert await desk.store.find_conflict(desk.id, conflict.conflict_id) == conflict
    assert conflict.time == desk.clock.time
    assert await desk.store.find_conflict(desk.id, "none") is None


async def test_the_conflict_ring_keeps_the_newest_and_counts_what_it_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "MAX_CONFLICTS_KEPT", 100)
    await desk.commit(put("k", ABSENT))
    for _ in range(4):
        await desk.batch(*[commit(put("k", ABSENT)) for _ in range(64)])
    page, _ = await desk.store.list_conflicts(desk.id, None, 1_000, None, None)
    assert 100 <= len(page.conflicts) <= 164
    assert page.dropped == 256 - len(page.conflicts)


async def test_boards_do_not_share_sessions_or_requests(desk: Desk) -> None:
    other = await desk.store.create_board(new_board("other"))
    await desk.store.start_session(desk.id, a_session("s"), "r")
    assert await desk.store.find_session(other.board_id, SessionId("s")) is None
    await desk.commit(put("k", ABSENT), request_id="same")
    assert (await desk.store.find_commit(other.board_id, request=(WORKER, "same")))[2] is None
