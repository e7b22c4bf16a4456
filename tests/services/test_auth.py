"""Credentials: what is accepted, what is remembered, and that every refusal says the same."""

import asyncio
from typing import Any

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.principal import DEFAULT_CEILING, Principal, Role, TokenRecord
from slateboard_server.domain.values import Micros, PrincipalId, TokenId
from slateboard_server.services.auth import Authenticator, Credential, derive, random_credential
from tests.services.conftest import Team


class CountingAuth(Authenticator):
    """Counts how often the store was asked."""

    asked = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.began = asyncio.Event()

    async def _by_token(self, authorization: str):  # type: ignore[no-untyped-def]  # passes on what it gets
        self.asked += 1
        self.began.set()
        await asyncio.sleep(0)
        return await super()._by_token(authorization)


async def make(team: Team, name: str = "eve", *, expires: Micros | None = None) -> Credential:
    credential = random_credential()
    principal = Principal(
        PrincipalId(name),
        Role.WORKER,
        frozenset({"orders"}),
        (),
        DEFAULT_CEILING[Role.WORKER],
        Micros(1),
        "test",
    )
    token = TokenRecord(
        credential.token_id, principal.id, credential.secret_hash, team.clock.now(), expires=expires
    )
    await team.store.create_principal(principal, token)
    return credential


async def refusal(auth: Authenticator, authorization: str | None, *identities: str) -> SlateboardError:
    with pytest.raises(SlateboardError) as caught:
        await auth.authenticate(authorization, identities)
    return caught.value


async def test_a_token_stands_for_its_principal_whatever_the_case_of_the_scheme(team: Team) -> None:
    credential = await make(team)
    auth = Authenticator(team.store, team.clock, {})
    for scheme in ("Bearer", "bearer", "BEARER"):
        caller = await auth.authenticate(f"{scheme} {credential.text}", ())
        assert (caller.principal.id, caller.token_id) == ("eve", credential.token_id)


async def test_whatever_is_wrong_with_a_token_the_answer_is_the_same(team: Team) -> None:
    credential = await make(team)
    ended = await make(team, "expired", expires=Micros(1))
    revoked = await make(team, "revoked")
    await team.store.revoke_token(revoked.token_id)
    disabled = await make(team, "disabled")
    await team.store.disable_principal(PrincipalId("disabled"))
    auth = Authenticator(team.store, team.clock, {})
    bad = [
        credential.text,  # no scheme
        "Basic " + credential.text,
        "Bearer ",
        "Bearer slate_",
        "Bearer slate__" + credential.secret,
        f"Bearer slate_{credential.token_id}_",
        f"Bearer slate_{credential.token_id}_{'0' * 64}",
        f"Bearer slate_{'0' * 16}_{credential.secret}",
        f"Bearer slate_' OR 1=1_{credential.secret}",
        "Bearer " + "x" * 100_000,
        "Bearer slate_\udcff_\udcff",
        *(f"Bearer {other.text}" for other in (ended, revoked, disabled)),
    ]
    answers = {(error.reason, error.message) for text in bad for error in [await refusal(auth, text)]}
    assert len(answers) == 1
    assert answers.pop()[0] is Reason.TOKEN_INVALID


async def test_a_call_without_a_credential_is_told_so(team: Team) -> None:
    auth = Authenticator(team.store, team.clock, {})
    assert (await refusal(auth, None)).reason is Reason.TOKEN_MISSING
    assert (await refusal(auth, None, "CN=stranger")).reason is Reason.TOKEN_MISSING


async def test_a_certificate_that_is_known_stands_for_its_principal(team: Team) -> None:
    await make(team)
    auth = Authenticator(team.store, team.clock, {"agent.example.org": "eve", "gone.example.org": "nobody"})
    caller = await auth.authenticate(None, ("other", "agent.example.org"))
    assert (caller.principal.id, caller.token_id) == ("eve", None)
    assert auth.try_cached(None, ("agent.example.org",)) == caller
    assert (await refusal(auth, None, "gone.example.org")).reason is Reason.TOKEN_INVALID
    await team.store.disable_principal(PrincipalId("eve"))
    auth.forget()
    assert (await refusal(auth, None, "agent.example.org")).reason is Reason.TOKEN_INVALID


async def test_a_bad_token_is_not_saved_by_a_good_certificate(team: Team) -> None:
    await make(team)
    auth = Authenticator(team.store, team.clock, {"agent.example.org": "eve"})
    assert (await refusal(auth, "Bearer nonsense", "agent.example.org")).reason is Reason.TOKEN_INVALID


async def test_many_calls_with_one_token_ask_the_store_once(team: Team) -> None:
    text = f"Bearer {(await make(team)).text}"
    auth = CountingAuth(team.store, team.clock, {}, max_age=60)
    callers = await asyncio.gather(*(auth.authenticate(text, ()) for _ in range(50)))
    assert auth.asked == 1
    assert len({id(caller) for caller in callers}) == 1
    assert auth.try_cached(text, ()) is callers[0]


async def test_one_that_leaves_while_asking_does_not_take_the_answer_from_others(team: Team) -> None:
    text = f"Bearer {(await make(team)).text}"
    auth = CountingAuth(team.store, team.clock, {}, max_age=60)
    first = asyncio.create_task(auth.authenticate(text, ()))
    second = asyncio.create_task(auth.authenticate(text, ()))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).principal.id == "eve"
    assert auth.asked == 1


async def test_what_is_remembered_grows_old(team: Team) -> None:
    credential = await make(team)
    text = f"Bearer {credential.text}"
    auth = Authenticator(team.store, team.clock, {}, max_age=0)
    await auth.authenticate(text, ())
    assert auth.try_cached(text, ()) is None
    await team.store.revoke_token(credential.token_id)
    assert (await refusal(auth, text)).reason is Reason.TOKEN_INVALID


async def test_a_token_stops_at_its_end_even_while_it_is_remembered(team: Team) -> None:
    credential = await make(team, expires=Micros(team.clock.now() + 60_000_000))
    text = f"Bearer {credential.text}"
    auth = Authenticator(team.store, team.clock, {}, max_age=3_600)
    await auth.authenticate(text, ())
    assert auth.try_cached(text, ()) is not None
    team.clock.advance(61)
    assert auth.try_cached(text, ()) is None
    assert (await refusal(auth, text)).reason is Reason.TOKEN_INVALID


async def test_an_answer_that_was_on_its_way_when_something_changed_is_not_remembered(team: Team) -> None:
    credential = await make(team)
    text = f"Bearer {credential.text}"
    auth = CountingAuth(team.store, team.clock, {}, max_age=3_600)
    asking = asyncio.create_task(auth.authenticate(text, ()))
    await auth.began.wait()
    auth.forget()
    await asking
    assert auth.try_cached(text, ()) is None


def test_a_credential_shows_its_secret_to_nobody_by_accident() -> None:
    credential = Credential(TokenId("abc"), "very secret")
    assert "very secret" not in repr(credential)


def test_what_is_derived_depends_on_every_part_and_on_where_parts_end() -> None:
    assert derive(b"k", "ab", "c") != derive(b"k", "a", "bc")
    assert derive(b"k", "a") != derive(b"l", "a")
    assert derive(b"k", "a", "") != derive(b"k", "a")
    assert derive(b"k", "a") == derive(b"k", "a")
