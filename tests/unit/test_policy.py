"""How the rule for a key is found: longest prefix first, field by field."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.policy import (
    BOARD_COUNTER,
    AnyState,
    CounterKey,
    Effective,
    Policy,
    Quota,
    Rule,
    Scope,
    WriteMode,
)
from slateboard_server.domain.values import Region, Trust

SHARED = Region("shared")
PRIVATE = Region("private/worker")


def test_without_rules_writes_are_direct_and_any_state_is_for_private_regions_only() -> None:
    """The defaults that the design states."""
    for policy in (Policy(), Policy(rules=(Rule(Scope.SHARED), Rule(Scope.PRIVATE)))):
        assert policy.effective(SHARED, "a") == Effective(WriteMode.DIRECT, False, None, None)
        assert policy.effective(PRIVATE, "a") == Effective(WriteMode.DIRECT, True, None, None)


def test_each_unset_field_falls_back_to_the_next_shorter_prefix_by_itself() -> None:
    """A rule that says one thing does not unsay the others; the order in which rules are written is no matter."""
    rules = (
        Rule(Scope.SHARED, "", min_trust=Trust.EXTERNAL, default_ttl=100),
        Rule(Scope.SHARED, "a/", WriteMode.READ_ONLY, min_trust=Trust.USER),
        Rule(Scope.SHARED, "a/b/", WriteMode.DIRECT, AnyState.ALLOWED),
    )
    for order in permutations(rules):
        policy = Policy(rules=order)
        assert policy.effective(SHARED, "x") == Effective(WriteMode.DIRECT, False, Trust.EXTERNAL, 100)
        assert policy.effective(SHARED, "a/x") == Effective(WriteMode.READ_ONLY, False, Trust.USER, 100)
        assert policy.effective(SHARED, "a/b/x") == Effective(WriteMode.DIRECT, True, Trust.USER, 100)
        assert policy.effective(SHARED, "a/bx") == policy.effective(SHARED, "a/x")


def test_rules_speak_of_their_scope_only() -> None:
    """What is forbidden in shared regions is no business of private ones, and the other way round."""
    policy = Policy(
        rules=(
            Rule(Scope.SHARED, any_state=AnyState.ALLOWED),
            Rule(Scope.PRIVATE, any_state=AnyState.FORBIDDEN),
        )
    )
    assert policy.effective(SHARED, "a").any_state
    assert not policy.effective(PRIVATE, "a").any_state


PREFIXES = st.sampled_from(["", "a/", "a/b/", "a/b/c/", "b/"])
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from([Scope.SHARED, Scope.PRIVATE]),
        PREFIXES,
        st.sampled_from(WriteMode),
        st.sampled_from(AnyState),
        st.none() | st.sampled_from(Trust),
        st.none() | st.integers(1, 9),
    ),
    unique_by=lambda rule: (rule.scope, rule.prefix),
)


@given(
    RULES, st.sampled_from([SHARED, PRIVATE]), st.sampled_from(["x", "a/x", "a/b/x", "a/b/c/x", "b/x", "ab"])
)
def test_every_field_is_that_of_the_longest_covering_rule_that_sets_it(
    rules: list[Rule], region: Region, key: str
) -> None:
    """Looked up prefix by prefix, from the key upwards."""
    parts = key.split("/")[:-1]
    above = ["/".join([*parts[:depth], ""]) for depth in range(len(parts), -1, -1)]
    scope = Scope.SHARED if region == SHARED else Scope.PRIVATE
    chain = [rule for prefix in above for rule in rules if (rule.scope, rule.prefix) == (scope, prefix)]
    found = Policy(rules=tuple(rules)).effective(region, key)
    assert found.write_mode == next((rule.write_mode for rule in chain if rule.write_mode), WriteMode.DIRECT)
    wanted = next((rule.any_state for rule in chain if rule.any_state), None)
    assert found.any_state is (wanted is AnyState.ALLOWED or (wanted is None and region != SHARED))
    assert found.min_trust == next((rule.min_trust for rule in chain if rule.min_trust is not None), None)
    assert found.default_ttl == next(
        (rule.default_ttl for rule in chain if rule.default_ttl is not None), None
    )


def test_the_board_is_always_counted_and_a_rule_only_with_a_quota() -> None:
    """A counter costs every commit; nobody asks for those of rules without one."""
    bounded = Rule(Scope.SHARED, "a/", quota=Quota(max_entries=1))
    policy = Policy(rules=(Rule(Scope.SHARED), bounded), quota=Quota(max_bytes=5))
    assert policy.counters() == (
        (BOARD_COUNTER, Quota(max_bytes=5)),
        (CounterKey(Scope.SHARED, "a/"), Quota(max_entries=1)),
    )
    assert policy.has_quotas
    assert not Policy(rules=(Rule(Scope.SHARED),)).has_quotas


def test_a_replaced_policy_forgets_what_was_worked_out_for_the_old_one() -> None:
    """What is kept beside the rules must follow them."""
    old = Policy(rules=(Rule(Scope.SHARED, "", WriteMode.READ_ONLY, quota=Quota(max_entries=1)),))
    new = replace(old, version=2, rules=())
    assert new.effective(SHARED, "a").write_mode is WriteMode.DIRECT
    assert len(new.counters()) == 1
    assert replace(new, version=1) == Policy()


def test_counters_cover_by_scope_and_prefix() -> None:
    """The board's covers everything."""
    assert BOARD_COUNTER.covers(SHARED, "a")
    assert BOARD_COUNTER.covers(PRIVATE, "a")
    inner = CounterKey(Scope.PRIVATE, "a/")
    assert inner.covers(PRIVATE, "a/x")
    assert not inner.covers(PRIVATE, "ax")
    assert not inner.covers(SHARED, "a/x")
