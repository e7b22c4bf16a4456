"""Principals: made, changed, disabled; tokens rotated and revoked; retries, refusals and the audit log."""

import uuid
from typing import Any

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.principal import Action, Principal, Right, Role, TokenRecord
from slateboard_server.domain.values import SECOND, TokenId, Trust
from slateboard_server.services.auth import Authenticator
from slateboard_server.services.principals import Principals
from tests.services.conftest import BOARD, Team


@pytest.fixture
def auth(team: Team) -> Authenticator:
    return Authenticator(team.store, team.clock, {}, max_age=3_600)


@pytest.fixture
def principals(team: Team, auth: Authenticator) -> Principals:
    return Principals(team.store, team.clock, auth)


async def create(
    team: Team, principals: Principals, name: str = "eve", who: str = "op", request: str = "", **fields: Any
) -> tuple[Principal, list[TokenRecord], str]:
    wanted: dict[str, Any] = {
        "role": Role.WORKER,
        "boards": frozenset({BOARD}),
        "rights": (),
        "ceiling": None,
        "display_name": "Eve",
        "token_ttl": None,
        **fields,
    }
    return await principals.create(team[who], name, request_id=request or str(uuid.uuid4()), **wanted)


async def refused(work: Any) -> Reason:
    with pytest.raises(SlateboardError) as caught:
        await work
    return caught.value.reason


async def accepted(auth: Authenticator, token: str) -> bool:
    try:
        await auth.authenticate(f"Bearer {token}", ())
    except SlateboardError:
        return False
    return True


async def test_a_new_principal_can_use_its_token(
    team: Team, principals: Principals, auth: Authenticator
) -> None:
    principal, tokens, token = await create(team, principals)
    caller = await auth.authenticate(f"Bearer {token}", ())
    assert caller.principal == principal
    assert (principal.trust_ceiling, principal.created_by) == (Trust.AGENT, "op")
    assert [record.token_id for record in tokens] == [caller.token_id]
    assert token not in repr(tokens)


async def test_a_retry_answers_the_same_and_anything_else_hears_that_the_id_is_taken(
    team: Team, principals: Principals
) -> None:
    request = str(uuid.uuid4())
    first = await create(team, principals, request=request)
    assert await create(team, principals, request=request) == first
    assert await refused(create(team, principals)) is Reason.PRINCIPAL_EXISTS
    other = create(team, principals, request=request, role=Role.OBSERVER)
    assert await refused(other) is Reason.PRINCIPAL_EXISTS
    await principals.disable(team["op"], "eve")
    assert await refused(create(team, principals, request=request)) is Reason.PRINCIPAL_EXISTS
    assert await refused(create(team, principals)) is Reason.PRINCIPAL_EXISTS


async def test_a_retry_answers_the_same_after_the_principal_was_changed(
    team: Team, principals: Principals
) -> None:
    request = str(uuid.uuid4())
    _, _, token = await create(team, principals, request=request)
    await principals.update(team["op"], "eve", Role.OBSERVER, frozenset(), (), None, "")
    principal, _, again = await create(team, principals, request=request)
    assert (principal.role, again) == (Role.OBSERVER, token)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "slateboard"}, Reason.FIELD_INVALID),
        ({"name": "no spaces"}, Reason.FIELD_INVALID),
        ({"name": ""}, Reason.FIELD_INVALID),
        ({"boards": frozenset(f"b{n}" for n in range(101))}, Reason.TOO_MANY),
        ({"boards": frozenset({"No Board"})}, Reason.FIELD_INVALID),
        ({"rights": (Right("a/", frozenset()),)}, Reason.FIELD_INVALID),
        ({"rights": (Right("../", frozenset({Action.READ})),)}, Reason.KEY_INVALID),
        ({"rights": tuple(Right(f"{n}/", frozenset({Action.READ})) for n in range(65))}, Reason.TOO_MANY),
        ({"display_name": "x" * 257}, Reason.FIELD_INVALID),
        ({"token_ttl": SECOND - 1}, Reason.FIELD_INVALID),
    ],
)
async def test_a_principal_that_cannot_be_is_refused(
    team: Team, principals: Principals, fields: dict[str, Any], reason: Reason
) -> None:
    assert await refused(create(team, principals, **fields)) is reason


async def test_nobody_gives_more_trust_than_they_have(team: Team, principals: Principals) -> None:
    await principals.update(team["op"], "op", Role.OPERATOR, frozenset(), (), Trust.USER, "")
    weak = await team.store.find_principal(team["op"].principal.id)
    assert weak is not None
    team.callers["weak"] = type(team["op"])(weak, None)
    made = create(team, principals, "top", "weak", ceiling=Trust.VERIFIED)
    assert await refused(made) is Reason.FIELD_INVALID
    change = principals.update(team["weak"], "ann", Role.WORKER, frozenset({BOARD}), (), Trust.SYSTEM, "")
    assert await refused(change) is Reason.FIELD_INVALID


async def test_only_operators_administer_and_who_tries_leaves_a_trace(
    team: Team, principals: Principals
) -> None:
    lead = team["lead"]
    for work in (
        create(team, principals, who="lead"),
        principals.get(lead, "ann"),
        principals.update(lead, "lead", Role.OPERATOR, frozenset(), (), None, ""),
        principals.disable(lead, "ann"),
        principals.list(lead, 10, ""),
        principals.rotate(lead, "op", 0, None, str(uuid.uuid4())),
        principals.revoke(lead, "t-op"),
    ):
        assert await refused(work) is Reason.DENIED
    records = [record for _, record in await team.store.list_audit(None, 100)]
    assert {(record.principal, record.detail) for record in records} == {("lead", "denied")}
    assert len(records) == 7


async def test_a_change_is_felt_at_the_next_call(
    team: Team, principals: Principals, auth: Authenticator
) -> None:
    _, _, token = await create(team, principals)
    await auth.authenticate(f"Bearer {token}", ())
    rights = (Right("inbox/", frozenset({Action.APPEND})),)
    principal, _ = await principals.update(
        team["op"], "eve", Role.WORKER, frozenset({"other"}), rights, None, "E."
    )
    caller = await auth.authenticate(f"Bearer {token}", ())
    assert caller.principal == principal
    assert (principal.rights, principal.boards, principal.display_name) == (
        rights,
        frozenset({"other"}),
        "E.",
    )
    await principals.disable(team["op"], "eve")
    assert not await accepted(auth, token)
    assert await refused(principals.disable(team["op"], "nobody")) is Reason.PRINCIPAL_NOT_FOUND
    assert await refused(principals.disable(team["op"], "op")) is Reason.FIELD_INVALID


async def test_rotation_makes_a_token_and_ends_the_old_ones_after_the_overlap(
    team: Team, principals: Principals, auth: Authenticator
) -> None:
    _, _, old = await create(team, principals)
    eve = await auth.authenticate(f"Bearer {old}", ())
    request = str(uuid.uuid4())
    made = await principals.rotate(eve, None, 60 * SECOND, None, request)
    assert await principals.rotate(eve, None, 60 * SECOND, None, request) == made
    assert await accepted(auth, made[1])
    assert await accepted(auth, old)
    team.clock.advance(61)
    assert not await accepted(auth, old)
    assert await accepted(auth, made[1])
    third = await principals.rotate(team["op"], "eve", 0, 10 * SECOND, str(uuid.uuid4()))
    assert not await accepted(auth, made[1])
    assert await accepted(auth, third[1])
    team.clock.advance(11)
    assert not await accepted(auth, third[1])
    assert await refused(principals.rotate(eve, None, 60 * SECOND, None, request)) is Reason.REQUEST_ID_REUSED


async def test_a_rotation_that_makes_no_sense_is_refused(team: Team, principals: Principals) -> None:
    request = str(uuid.uuid4())
    for overlap, ttl in ((-1, None), (7 * 24 * 3600 * SECOND + 1, None), (0, 1)):
        work = principals.rotate(team["ann"], None, overlap, ttl, request)
        assert await refused(work) is Reason.FIELD_INVALID
    work = principals.rotate(team["op"], "nobody", 0, None, request)
    assert await refused(work) is Reason.PRINCIPAL_NOT_FOUND


async def test_a_revoked_token_stops_at_once_and_the_others_go_on(
    team: Team, principals: Principals, auth: Authenticator
) -> None:
    _, tokens, first = await create(team, principals)
    eve = await auth.authenticate(f"Bearer {first}", ())
    _, second = await principals.rotate(eve, None, 60 * SECOND, None, str(uuid.uuid4()))
    await principals.revoke(team["op"], tokens[0].token_id)
    assert not await accepted(auth, first)
    assert await accepted(auth, second)
    assert await refused(principals.revoke(team["op"], "nothing")) is Reason.PRINCIPAL_NOT_FOUND


async def test_principals_are_listed_by_id_page_by_page_and_by_board(
    team: Team, principals: Principals
) -> None:
    await create(team, principals, "elsewhere", boards=frozenset({"other"}))
    seen: list[str] = []
    token = ""
    while True:
        page, token = await principals.list(team["op"], 2, token)
        seen += [principal.id for principal, _ in page]
        assert all(tokens for _, tokens in page)
        if not token:
            break
    assert seen == ["ann", "bob", "elsewhere", "lead", "op"]
    page, token = await principals.list(team["op"], 2, "", "other")
    assert ([principal.id for principal, _ in page], token) == (["elsewhere", "op"], "")


async def test_everybody_may_ask_who_they_are(team: Team, principals: Principals) -> None:
    principal, tokens = await principals.whoami(team["ann"])
    assert (principal.id, [token.token_id for token in tokens]) == ("ann", [TokenId("t-ann")])
