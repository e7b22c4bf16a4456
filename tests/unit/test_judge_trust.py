"""Trust only sinks: whatever is asked, by whom, from whatever sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.entry import OpRef, SourceRef
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted
from slateboard_server.domain.policy import Policy, Rule, Scope
from slateboard_server.domain.principal import Action, Right, Role
from slateboard_server.domain.values import SECOND, Key, Region, Tombstone, Trust
from tests.judging import (
    ABSENT,
    OPERATOR,
    RIVAL,
    SHARED,
    SUPERVISOR,
    WORKER,
    Shelf,
    a_principal,
    at_version,
    commit,
    content,
    delete,
    expiry,
    put,
    source,
)

TRUSTS = st.sampled_from(Trust)


def _library(shelf: Shelf) -> dict[Trust, SourceRef]:
    """Put one entry of each trust on the board."""
    for trust in Trust:
        shelf.accept(put(f"src/{trust.name.lower()}", ABSENT, content(trust=trust)), by=OPERATOR)
    return {trust: source(f"src/{trust.name.lower()}", 1) for trust in Trust}


@given(
    ceiling=TRUSTS,
    asked=st.none() | TRUSTS,
    derivations=st.lists(st.lists(TRUSTS, min_size=1, max_size=3), max_size=3),
    through=st.integers(0, 2),
)
def test_trust_is_the_lowest_of_what_was_asked_the_ceiling_and_every_source(
    ceiling: Trust, asked: Trust | None, derivations: list[list[Trust]], through: int
) -> None:
    """Of every derivation, not only the best one; also handed down through ops of the same commit."""
    shelf = Shelf()
    library = _library(shelf)
    shelf.principals[WORKER] = replace(shelf.principals[WORKER], trust_ceiling=ceiling)
    sources = [[library[trust] for trust in derivation] for derivation in derivations]
    ops = [
        put("made/0", ABSENT, content(trust=asked, sources=sources)),
        *(put(f"made/{hop + 1}", ABSENT, content(sources=[[OpRef(hop)]])) for hop in range(through)),
    ]
    accepted = shelf.accept(*ops)
    lowest = min([ceiling, *([asked] if asked else []), *(trust for inner in derivations for trust in inner)])
    assert [outcome.trust for outcome in accepted.answer.outcomes] == [lowest] * len(ops)
    assert [record.trust for record in accepted.logged.versions] == [lowest] * len(ops)
    capped = [advice.code for advice in accepted.answer.warnings]
    assert capped == (["TRUST_CAPPED"] if asked is not None and lowest < asked else [])


@pytest.mark.parametrize("bad_first", [True, False])
def test_a_second_clean_derivation_does_not_lift_what_the_first_one_tainted(bad_first: bool) -> None:
    """An independent statement supports a value; it does not wash it."""
    shelf = Shelf()
    library = _library(shelf)
    sources: Sequence[Sequence[SourceRef]] = [[library[Trust.EXTERNAL]], [library[Trust.SYSTEM]]]
    accepted = shelf.accept(
        put("k", ABSENT, content(sources=sources if bad_first else tuple(reversed(sources)))), by=SUPERVISOR
    )
    assert accepted.answer.outcomes[0].trust is Trust.EXTERNAL


def test_a_source_written_by_an_earlier_commit_of_the_batch_lowers_trust_as_well() -> None:
    """What is not on disk yet is a source like any other."""
    shelf = Shelf()
    _, second = shelf.judge(
        commit(put("mail", ABSENT, content(trust=Trust.EXTERNAL)), by=RIVAL),
        commit(put("k", ABSENT, content(sources=[[source("mail", 1)]]))),
    )
    assert isinstance(second, Accepted)
    assert second.answer.outcomes[0].trust is Trust.EXTERNAL


def test_trust_floors_hold_for_values_and_deletes_of_everybody() -> None:
    """An agent below the floor can neither write nor remove there."""
    shelf = Shelf(policy=Policy(rules=(Rule(Scope.SHARED, "law/", min_trust=Trust.USER),)))
    shelf.accept(put("law/1", ABSENT), by=SUPERVISOR)
    assert shelf.why(put("law/2", ABSENT)) is Reason.TRUST_TOO_LOW
    assert shelf.why(delete("law/1", at_version(1))) is Reason.TRUST_TOO_LOW
    assert shelf.why(put("law/2", ABSENT, content(trust=Trust.AGENT)), by=OPERATOR) is Reason.TRUST_TOO_LOW
    shelf.accept(delete("law/1", at_version(1)), by=SUPERVISOR)


def test_a_superseded_version_and_an_expired_one_are_sources_still() -> None:
    """They were read; that they are not current any more changes nothing about that."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT, content(expire_time=shelf.now + SECOND)))
    shelf.wait(1)
    shelf.accept(put("a", ABSENT, content(sources=[[source("k", 1)]])))
    assert isinstance(shelf.one(expiry("k", 1)), Accepted)
    shelf.accept(put("k", ABSENT))
    shelf.accept(put("b", ABSENT, content(sources=[[source("k", 1), source("k", 3)]])))


def test_absences_and_versions_that_do_not_exist_are_no_sources() -> None:
    """A tombstone holds nothing that could have been used."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT))
    shelf.accept(delete("k", at_version(1)))
    for bad in (source("k", 2), source("k", 3), source("never", 1)):
        error = shelf.refuse(
            commit(put("a", ABSENT, content(sources=[[source("k", 1)], [source("k", 1), bad]])))
        )
        assert error.reason is Reason.SOURCE_NOT_FOUND
        assert error.metadata["field"] == "ops[0].content.provenance.derivations[1].sources[1]"


def test_a_purged_source_is_refused_by_its_own_reason() -> None:
    """So that a writer derives again from what is left, instead of looking for a typing error."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT))
    history = shelf.versions[SHARED, Key("k")]
    history[0] = replace(history[0], tombstone=Tombstone.PURGED, value=None)
    assert shelf.why(put("a", ABSENT, content(sources=[[source("k", 1)]]))) is Reason.SOURCE_PURGED


def test_a_source_that_may_not_be_read_answers_like_one_that_does_not_exist() -> None:
    """In another's private region, or outside one's rights; purged or not."""
    shelf = Shelf()
    theirs = Region(f"private/{RIVAL}")
    shelf.accept(put("diary", ABSENT, region=theirs), put("secret/a", ABSENT), by=RIVAL)
    shelf.principals[WORKER] = a_principal(
        WORKER, rights=[Right("out/", frozenset(Action)), Right("in/", frozenset({Action.READ}))]
    )
    history = shelf.versions[theirs, Key("diary")]
    for tombstone in (Tombstone.NONE, Tombstone.PURGED):
        history[0] = replace(history[0], tombstone=tombstone)
        for hidden, unknown in (
            (source("diary", 1, theirs), source("diary", 9, theirs)),
            (source("secret/a", 1), source("secret/a", 9)),
        ):
            seen = shelf.refuse(commit(put("out/a", ABSENT, content(sources=[[hidden]]))))
            other = shelf.refuse(commit(put("out/a", ABSENT, content(sources=[[unknown]]))))
            assert seen.reason is other.reason is Reason.SOURCE_NOT_FOUND
            assert seen.message.replace("version 1", "version 9") == other.message
            assert seen.metadata == other.metadata


def test_a_source_in_ones_own_private_region_may_be_named_in_a_shared_write() -> None:
    """Its trust comes along; readers of the lineage see one opaque node."""
    shelf = Shelf()
    mine = Region(f"private/{WORKER}")
    shelf.accept(put("notes", ABSENT, content(trust=Trust.EXTERNAL), region=mine))
    accepted = shelf.accept(put("k", ABSENT, content(sources=[[source("notes", 1, mine)]])))
    assert accepted.answer.outcomes[0].trust is Trust.EXTERNAL


def test_an_operators_ceiling_binds_the_operator_too() -> None:
    """A ceiling is the principal's, not the role's."""
    shelf = Shelf()
    shelf.principals[OPERATOR] = a_principal(OPERATOR, Role.OPERATOR, ceiling=Trust.AGENT)
    accepted = shelf.accept(put("k", ABSENT, content(trust=Trust.SYSTEM)), by=OPERATOR)
    assert accepted.answer.outcomes[0].trust is Trust.AGENT
