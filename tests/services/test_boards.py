"""Boards: who may make, govern, compact, delete and begin them anew; policies and their versions."""

import uuid
from dataclasses import replace

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.policy import Policy, Quota, Rule, Scope, WriteMode
from slateboard_server.domain.principal import Principal, Role
from slateboard_server.domain.values import SECOND, Incarnation, Key, Micros, PrincipalId, Revision, Trust
from slateboard_server.services.boards import Boards, check_policy
from slateboard_server.services.model import Caller, Consistency, Mode, Want
from tests.services.conftest import BOARD, Team, put


@pytest.fixture
def boards(team: Team) -> Boards:
    return Boards(team.directory, team.store, team.clock)


def lead_of_all() -> Caller:
    return Caller(
        Principal(PrincipalId("boss"), Role.SUPERVISOR, frozenset({"*"}), (), Trust.USER, Micros(1), "test"),
        None,
    )


async def make(boards: Boards, caller: Caller, name: str, request: str = "") -> str:
    meta = await boards.create(caller, name, "what it is for", request or str(uuid.uuid4()), Policy())
    return meta.head.incarnation


async def audited(team: Team) -> list[tuple[str, str, str]]:
    records = [record for _, record in await team.store.list_audit(None, 100)]
    return [(record.principal, record.action, record.detail) for record in records]


async def refused(work: object) -> Reason:
    with pytest.raises(SlateboardError) as caught:
        await work  # type: ignore[misc]  # a coroutine of whatever result
    return caught.value.reason


async def test_operators_and_leads_of_every_board_make_boards(team: Team, boards: Boards) -> None:
    await make(boards, team["op"], "one")
    await make(boards, lead_of_all(), "two")
    assert await refused(make(boards, team["lead"], "three")) is Reason.DENIED
    assert await refused(make(boards, team["ann"], "three")) is Reason.DENIED
    assert ("ann", "board.create", "denied") in await audited(team)


async def test_a_retry_makes_one_board_and_another_request_hears_that_it_exists(
    team: Team, boards: Boards
) -> None:
    request = str(uuid.uuid4())
    assert await make(boards, team["op"], "one", request) == await make(boards, team["op"], "one", request)
    assert await refused(make(boards, team["op"], "one")) is Reason.BOARD_EXISTS
    assert await refused(make(boards, team["op"], "No Such Name")) is Reason.FIELD_INVALID


async def test_a_board_without_a_part_in_it_is_like_none(team: Team, boards: Boards) -> None:
    await make(boards, team["op"], "other")
    for name in ("other", "nowhere"):
        for work in (
            boards.get(team["lead"], name),
            boards.get_policy(team["lead"], name),
            boards.set_policy(team["lead"], name, Policy(), 1),
            boards.compact(team["lead"], name, Revision(1)),
            boards.delete(team["lead"], name, Incarnation("x")),
            boards.reincarnate(team["lead"], name, Incarnation("x")),
        ):
            assert await refused(work) is Reason.BOARD_NOT_FOUND


async def test_a_board_tells_what_it_holds_and_what_is_done_to_it(team: Team, boards: Boards) -> None:
    await team.commit("ann", put("a", b"four"))
    meta, activity = await boards.get(team["bob"], BOARD)
    assert (meta.head.revision, meta.entries, meta.bytes) == (1, 1, 4)
    assert (activity.commits, [hot.key for hot in activity.hot_keys]) == (1, ["a"])


async def test_boards_are_listed_by_name_page_by_page_and_only_ones_own(team: Team, boards: Boards) -> None:
    for name in ("zoo", "alpha", "mid"):
        await make(boards, team["op"], name)
    names: list[str] = []
    token = ""
    while True:
        page, token = await boards.list(team["op"], 2, token)
        names += [meta.name for meta in page]
        if not token:
            break
    assert names == ["alpha", "mid", BOARD, "zoo"]
    page, token = await boards.list(team["ann"], 100, "")
    assert ([meta.name for meta in page], token) == ([BOARD], "")


async def test_only_operators_delete_and_only_the_board_they_mean(team: Team, boards: Boards) -> None:
    incarnation = (await boards.get(team["op"], BOARD))[0].head.incarnation
    assert await refused(boards.delete(team["lead"], BOARD, incarnation)) is Reason.DENIED
    assert await refused(boards.delete(team["op"], BOARD, Incarnation("x"))) is Reason.BOARD_REINCARNATED
    await boards.delete(team["op"], BOARD, incarnation)
    assert await refused(boards.get(team["op"], BOARD)) is Reason.BOARD_NOT_FOUND
    assert await refused(team.commit("ann", put("a"))) is Reason.BOARD_NOT_FOUND
    assert await make(boards, team["op"], BOARD) != incarnation
    assert (await team.commit("ann", put("a"))).answer.revision == 1


async def test_a_new_life_has_another_incarnation(team: Team, boards: Boards) -> None:
    await team.commit("ann", put("a"))
    incarnation = (await boards.get(team["op"], BOARD))[0].head.incarnation
    assert await refused(boards.reincarnate(team["lead"], BOARD, incarnation)) is Reason.DENIED
    meta = await boards.reincarnate(team["op"], BOARD, incarnation)
    assert meta.head.incarnation != incarnation
    assert await refused(boards.reincarnate(team["op"], BOARD, incarnation)) is Reason.BOARD_REINCARNATED
    result = await team.commit("ann", put("b"))
    assert (result.stamp.incarnation, result.answer.revision) == (meta.head.incarnation, 2)


async def test_compaction_drops_old_values_and_raises_the_floor(team: Team, boards: Boards) -> None:
    await team.commit("ann", put("a", b"1"))
    await team.commit("ann", put("a", b"2", expect=1))
    await team.commit("ann", put("a", b"3", expect=2))
    assert await refused(boards.compact(team["ann"], BOARD, Revision(2))) is Reason.DENIED
    assert await refused(boards.compact(team["lead"], BOARD, Revision(0))) is Reason.FIELD_INVALID
    assert await refused(boards.compact(team["lead"], BOARD, Revision(4))) is Reason.FUTURE_REVISION
    stamp, dropped = await boards.compact(team["lead"], BOARD, Revision(3))
    assert (stamp.oldest_revision, dropped) == (3, 2)
    stamp, dropped = await boards.compact(team["lead"], BOARD, Revision(1))
    assert (stamp.oldest_revision, dropped) == (3, 0)
    place = [(SHARED, Key("a"))]
    old = Want(Consistency(Mode.EXACT, Revision(2)))
    assert await refused(team.reads.get(team["ann"], BOARD, place, old)) is Reason.COMPACTED
    found = await team.reads.get(team["ann"], BOARD, place, Want())
    assert [record.value for record in found.found] == [b"3"]


async def test_a_policy_is_replaced_at_the_version_it_was_read_at(team: Team, boards: Boards) -> None:
    _, present = await boards.get_policy(team["lead"], BOARD)
    rules = (Rule(Scope.SHARED, "frozen/", WriteMode.READ_ONLY),)
    changed = replace(present, rules=rules)
    assert await refused(boards.set_policy(team["ann"], BOARD, changed, 1)) is Reason.DENIED
    assert await refused(boards.set_policy(team["lead"], BOARD, changed, 2)) is Reason.VERSION_CONFLICT
    assert await refused(boards.set_policy(team["lead"], BOARD, changed, 0)) is Reason.FIELD_INVALID
    _, policy = await boards.set_policy(team["lead"], BOARD, changed, 1)
    assert (policy.version, policy.rules, policy.updated_by) == (2, rules, "lead")
    assert await refused(team.commit("ann", put("frozen/a"))) is Reason.POLICY_FORBIDS
    assert ("lead", "policy.set", "") in await audited(team)


async def test_the_same_change_sent_again_is_answered_and_another_is_not(team: Team, boards: Boards) -> None:
    changed = Policy(quota=Quota(max_entries=5))
    _, first = await boards.set_policy(team["lead"], BOARD, changed, 1)
    _, again = await boards.set_policy(team["lead"], BOARD, changed, 1)
    assert first == again
    other = Policy(quota=Quota(max_entries=6))
    assert await refused(boards.set_policy(team["lead"], BOARD, other, 1)) is Reason.VERSION_CONFLICT
    assert await refused(boards.set_policy(team["op"], BOARD, changed, 1)) is Reason.VERSION_CONFLICT


@pytest.mark.parametrize(
    ("policy", "reason", "field"),
    [
        (Policy(rules=tuple(Rule(Scope.SHARED, f"p{n}/") for n in range(65))), Reason.TOO_MANY, "policy.rules"),
        (Policy(rules=(Rule(Scope.SHARED, "a/"), Rule(Scope.SHARED, "a/"))), Reason.FIELD_INVALID, "policy.rules[1]"),
        (Policy(rules=(Rule(Scope.SHARED, "a"),)), Reason.KEY_INVALID, "policy.rules[0].prefix"),
        (Policy(rules=(Rule(Scope.BOARD),)), Reason.FIELD_INVALID, "policy.rules[0].scope"),
        (
            Policy(rules=(Rule(Scope.SHARED, default_ttl=SECOND - 1),)),
            Reason.FIELD_INVALID,
            "policy.rules[0].default_ttl",
        ),
        (
            Policy(rules=(Rule(Scope.SHARED, quota=Quota(max_bytes=-1)),)),
            Reason.FIELD_INVALID,
            "policy.rules[0].quota.max_bytes",
        ),
        (Policy(quota=Quota(max_watches=-1)), Reason.FIELD_INVALID, "policy.quota.max_watches"),
        (
            Policy(rules=(Rule(Scope.SHARED, quota=Quota(max_watches=1)),)),
            Reason.FIELD_INVALID,
            "policy.rules[0].quota.max_watches",
        ),
        (Policy(history_retention=-1), Reason.FIELD_INVALID, "policy.history_retention"),
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused_by_field(policy: Policy, reason: Reason, field: str) -> None:
    with pytest.raises(SlateboardError) as caught:
        check_policy(policy)
    assert (caught.value.reason, caught.value.metadata["field"]) == (reason, field)


def test_the_same_prefix_may_have_a_shared_and_a_private_rule() -> None:
    policy = Policy(rules=(Rule(Scope.SHARED, "a/"), Rule(Scope.PRIVATE, "a/")))
    assert check_policy(policy) is policy
