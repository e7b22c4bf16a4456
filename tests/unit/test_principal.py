"""Rights: by role, by key prefix, in private regions; for keys and for whole subtrees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.principal import ALL_BOARDS, Action, Principal, Right, Role, SessionRecord
from slateboard_server.domain.values import Micros, PrincipalId, Region
from tests.judging import a_principal

SHARED = Region("shared")
ME = PrincipalId("me")
MINE = Region("private/me")
THEIRS = Region("private/other")
EVERYTHING = frozenset(Action)


def _with(*rights: Right) -> Principal:
    return a_principal(ME, rights=rights)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.OPERATOR, EVERYTHING),
        (Role.SUPERVISOR, EVERYTHING),
        (Role.WORKER, EVERYTHING - {Action.ENDORSE}),
        (Role.OBSERVER, {Action.READ}),
    ],
)
def test_without_rights_of_its_own_a_principal_may_what_its_role_gives(
    role: Role, allowed: set[Action]
) -> None:
    """Over the whole shared region."""
    principal = a_principal(ME, role)
    assert {action for action in Action if principal.may(action, SHARED, "a/b")} == allowed
    assert {action for action in Action if principal.may(action, SHARED, "")} == allowed


def test_rights_replace_what_the_role_gives() -> None:
    """A worker with a list of rights has those and no others."""
    principal = _with(Right("plan/", frozenset({Action.READ})))
    assert principal.may(Action.READ, SHARED, "plan/a")
    assert not principal.may(Action.WRITE, SHARED, "plan/a")
    assert not principal.may(Action.READ, SHARED, "other")


def test_a_right_on_one_key_is_for_that_key_alone() -> None:
    """Neither for what is below it, nor beside it, nor for the subtree of the same name."""
    principal = _with(Right("plan/current", EVERYTHING))
    assert principal.may(Action.READ, SHARED, "plan/current")
    for path in ("plan/current/x", "plan/current2", "plan/curren", "plan/current/", "plan/", "", "plan"):
        assert not principal.may(Action.READ, SHARED, path)


def test_a_right_on_a_subtree_is_for_all_below_it_and_for_the_subtree_itself() -> None:
    """But not for the key of the same name, nor for `planner`."""
    principal = _with(Right("plan/", EVERYTHING))
    for path in ("plan/a", "plan/a/b", "plan/", "plan/a/"):
        assert principal.may(Action.WRITE, SHARED, path)
    for path in ("plan", "planner", "planner/", "", "a/plan/x"):
        assert not principal.may(Action.WRITE, SHARED, path)


def test_to_write_includes_to_append_and_not_the_other_way_round() -> None:
    """Appending is the weaker right."""
    assert _with(Right("a/", frozenset({Action.WRITE}))).may(Action.APPEND, SHARED, "a/")
    assert not _with(Right("a/", frozenset({Action.APPEND}))).may(Action.WRITE, SHARED, "a/x")


def test_a_private_region_is_its_principals_and_an_operators() -> None:
    """Rights speak of the shared region: no list of them opens another's private one."""
    assert a_principal(ME, Role.OPERATOR).may(Action.READ, THEIRS, "a")
    for principal in (a_principal(ME, Role.SUPERVISOR), a_principal(ME), _with(Right("", EVERYTHING))):
        assert principal.may(Action.WRITE, MINE, "a")
        assert principal.may(Action.READ, MINE, "")
        for action in Action:
            assert not principal.may(action, THEIRS, "a")
    assert not a_principal(ME, Role.OBSERVER).may(Action.READ, MINE, "a")


def test_a_worker_cannot_endorse_in_its_private_region() -> None:
    """Otherwise a mail endorsed there could be carried into the shared region as an agent's own word."""
    assert not a_principal(ME).may(Action.ENDORSE, MINE, "mail")
    assert a_principal(ME, Role.SUPERVISOR).may(Action.ENDORSE, MINE, "mail")


def test_a_disabled_principal_may_nothing() -> None:
    """Not even an operator."""
    for role in Role:
        principal = replace(a_principal(ME, role), disabled=True)
        assert not any(principal.may(action, region, "a") for action in Action for region in (SHARED, MINE))
        assert not principal.may_read_some(SHARED, "")


def test_boards_are_those_assigned_all_of_them_or_an_operators() -> None:
    """By exact name."""
    assert a_principal(ME, boards=["team"]).has_board("team")
    assert not a_principal(ME, boards=["team"]).has_board("team2")
    assert a_principal(ME, boards=[ALL_BOARDS]).has_board("any")
    assert a_principal(ME, Role.OPERATOR, boards=[]).has_board("any")
    assert a_principal(ME, Role.OPERATOR, boards=[]).has_all_boards
    assert not a_principal(ME, boards=["team"]).has_all_boards


KEYS = ["plan", "plan/a", "plan/a/b", "plan/b", "planner", "z"]
PREFIXES = ["", "plan/", "plan/a/", "planner/", "z/"]


@given(
    st.lists(
        st.builds(
            Right,
            st.sampled_from([*KEYS, *PREFIXES]),
            st.frozensets(st.sampled_from([Action.READ, Action.WRITE])),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(PREFIXES),
)
def test_a_right_over_a_subtree_is_a_right_over_each_key_in_it(rights: list[Right], prefix: str) -> None:
    """And a scan is skipped only where no key below could be shown."""
    principal = _with(*rights)
    below = [key for key in KEYS if key.startswith(prefix)]
    readable = [key for key in below if principal.may(Action.READ, SHARED, key)]
    if principal.may(Action.READ, SHARED, prefix):
        assert readable == below
    if readable:
        assert principal.may_read_some(SHARED, prefix)
    if not any(Action.READ in right.actions for right in rights):
        assert not principal.may_read_some(SHARED, prefix)


def test_nothing_in_anothers_private_region_could_be_readable() -> None:
    """Whatever prefix is asked for."""
    assert not _with(Right("", EVERYTHING)).may_read_some(THEIRS, "")
    assert a_principal(ME).may_read_some(MINE, "a/")
    assert a_principal(ME, Role.OPERATOR).may_read_some(THEIRS, "")


def test_a_session_lives_until_its_last_heartbeat_is_older_than_its_ttl_or_it_is_ended() -> None:
    """Alive and stale exclude each other; an ended session is neither."""
    session = SessionRecord("s", ME, b"h", started=Micros(0), last_seen=Micros(100), ttl=10)
    for now, alive in ((100, True), (110, True), (111, False)):
        assert session.alive_at(Micros(now)) is alive
        assert session.stale_at(Micros(now)) is not alive
    ended = replace(session, ended=Micros(105))
    assert not ended.alive_at(Micros(106))
    assert not ended.stale_at(Micros(200))
