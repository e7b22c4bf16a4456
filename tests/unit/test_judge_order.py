"""In which order a commit is checked: the first failing check is the answer, so that no answer tells too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from slateboard_server.domain.commit import Claim, CommitItem, SessionClaim
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted, Replayed
from slateboard_server.domain.policy import AnyState, Policy, Quota, Rule, Scope, WriteMode
from slateboard_server.domain.principal import Action, Right, SessionRecord
from slateboard_server.domain.values import (
    SECOND,
    FencingToken,
    Incarnation,
    LockId,
    Micros,
    PrincipalId,
    Region,
    SessionId,
    TokenId,
    Trust,
)
from tests.judging import (
    ABSENT,
    ANY,
    OPERATOR,
    RIVAL,
    SHARED,
    START,
    SUPERVISOR,
    TOKEN,
    WORKER,
    Shelf,
    a_principal,
    append,
    at_version,
    commit,
    content,
    delete,
    no_change_under,
    put,
    source,
    unchanged,
    with_etag,
)

SESSION = SessionId("s-1")
Spoil = Callable[[Shelf, CommitItem], CommitItem]


def _session(shelf: Shelf, *, ended: Micros | None = None) -> None:
    shelf.sessions[SESSION] = SessionRecord(
        SESSION, WORKER, b"hash", started=START, last_seen=START, ttl=10 * SECOND, ended=ended
    )


def _no_token(shelf: Shelf, item: CommitItem) -> CommitItem:
    shelf.live_tokens.clear()
    return item


def _no_board(shelf: Shelf, item: CommitItem) -> CommitItem:
    shelf.principals[WORKER] = replace(shelf.principals[WORKER], boards=frozenset({"other"}))
    return item


def _no_right(shelf: Shelf, item: CommitItem) -> CommitItem:
    shelf.principals[WORKER] = replace(
        shelf.principals[WORKER], rights=(Right("elsewhere/", frozenset(Action)),)
    )
    return item


def _other_content(shelf: Shelf, item: CommitItem) -> CommitItem:
    shelf.accept(put("first", ABSENT), request_id=item.request_id)
    return item


def _other_life(shelf: Shelf, item: CommitItem) -> CommitItem:
    return replace(item, incarnation=Incarnation("ffffffffffffffff"))


def _dead_session(shelf: Shelf, item: CommitItem) -> CommitItem:
    _session(shelf, ended=START)
    return replace(item, session=SessionClaim(SESSION, b"hash"))


def _lost_lock(shelf: Shelf, item: CommitItem) -> CommitItem:
    return replace(item, claims=(Claim(LockId("l-1"), FencingToken(1)),))


def _read_only(shelf: Shelf, item: CommitItem) -> CommitItem:
    shelf.policy = replace(
        shelf.policy, rules=(*shelf.policy.rules, Rule(Scope.SHARED, "plan/", WriteMode.READ_ONLY))
    )
    return item


def _used_up(shelf: Shelf, item: CommitItem) -> CommitItem:
    shelf.policy = replace(shelf.policy, quota=Quota(max_bytes=1))
    return item


def _stale(shelf: Shelf, item: CommitItem) -> CommitItem:
    return replace(item, ops=(put("plan/current", at_version(7), b"long enough"),))


# In the documented order. Each makes an otherwise good commit fail in one way.
STEPS: list[tuple[Reason, Spoil]] = [
    (Reason.TOKEN_INVALID, _no_token),
    (Reason.BOARD_NOT_FOUND, _no_board),
    (Reason.DENIED, _no_right),
    (Reason.REQUEST_ID_REUSED, _other_content),
    (Reason.BOARD_REINCARNATED, _other_life),
    (Reason.SESSION_DEAD, _dead_session),
    (Reason.LOCK_LOST, _lost_lock),
    (Reason.POLICY_FORBIDS, _read_only),
    (Reason.QUOTA, _used_up),
    (Reason.VERSION_CONFLICT, _stale),
]


@pytest.mark.parametrize("first", range(len(STEPS)), ids=[reason.value for reason, _ in STEPS])
def test_of_all_that_is_wrong_the_first_check_in_the_documented_order_answers(first: int) -> None:
    """The more a refusal tells of the board's state, the more the caller must have shown before."""
    shelf = Shelf()
    item = commit(put("plan/current", ABSENT, b"long enough"))
    for _, spoil in reversed(STEPS[first:]):
        item = spoil(shelf, item)
    assert shelf.refuse(item).reason is STEPS[first][0]


def test_a_commit_with_nothing_wrong_is_accepted() -> None:
    """The table above would be worthless if its commit failed by itself."""
    assert Shelf().accept(put("plan/current", ABSENT, b"long enough")).answer.revision == 1


@pytest.mark.parametrize("spoil", [_no_token, _no_board, _no_right])
def test_a_replay_is_given_only_to_who_may_still_ask(spoil: Spoil) -> None:
    """A revoked credential learns nothing, not even of its own past commits."""
    shelf = Shelf()
    item = commit(put("plan/current", ABSENT))
    assert isinstance(shelf.one(item), Accepted)
    reason = {step: reason for reason, step in STEPS}[spoil]
    assert shelf.refuse(spoil(shelf, item)).reason is reason


@pytest.mark.parametrize("spoil", [_read_only, _used_up])
def test_a_replay_is_answered_whatever_became_of_the_board(spoil: Spoil) -> None:
    """What happened has happened: state that changed since is no reason to deny it."""
    shelf = Shelf()
    item = commit(put("plan/current", ABSENT))
    first = shelf.one(item)
    assert isinstance(first, Accepted)
    again = shelf.one(spoil(shelf, item))
    assert isinstance(again, Replayed)
    assert again.answer == first.answer


def test_a_replay_is_answered_after_its_session_died() -> None:
    """A retry whose session went stale in between must not be told that its commit failed."""
    shelf = Shelf()
    _session(shelf)
    item = commit(put("a", ABSENT), session=SessionClaim(SESSION, b"hash"))
    assert isinstance(shelf.one(item), Accepted)
    shelf.wait(11)
    assert shelf.why(put("b", ABSENT), session=SessionClaim(SESSION, b"hash")) is Reason.SESSION_DEAD
    assert isinstance(shelf.one(item), Replayed)


def test_a_disabled_principal_and_an_unknown_one_are_refused_alike() -> None:
    """Whether an id exists is not told."""
    shelf = Shelf()
    shelf.principals[WORKER] = replace(shelf.principals[WORKER], disabled=True)
    known = shelf.refuse(commit(put("a", ABSENT)))
    unknown = shelf.refuse(commit(put("a", ABSENT), by=PrincipalId("nobody")))
    assert (known.reason, known.message, known.metadata) == (
        unknown.reason,
        unknown.message,
        unknown.metadata,
    )


def test_a_client_certificate_needs_no_token() -> None:
    """Without a token the certificate was the credential; only the principal is looked at."""
    shelf = Shelf()
    shelf.live_tokens.clear()
    assert isinstance(shelf.one(replace(commit(put("a", ABSENT)), token_id=None)), Accepted)
    assert (
        shelf.refuse(replace(commit(put("b", ABSENT)), token_id=TokenId("t-2"))).reason
        is Reason.TOKEN_INVALID
    )


def test_a_session_of_another_principal_answers_like_an_unknown_one() -> None:
    """A session is bound to its principal by a secret; a stolen id is worth nothing."""
    shelf = Shelf()
    _session(shelf)
    foreign = shelf.refuse(commit(put("a", ABSENT), by=RIVAL, session=SessionClaim(SESSION, b"hash")))
    guessed = shelf.refuse(commit(put("a", ABSENT), session=SessionClaim(SESSION, b"guess")))
    unknown = shelf.refuse(commit(put("a", ABSENT), session=SessionClaim(SessionId("s-9"), b"hash")))
    assert foreign.reason is Reason.SESSION_NOT_FOUND
    assert foreign.message == guessed.message == unknown.message
    assert foreign.metadata == guessed.metadata == unknown.metadata


def test_a_live_session_is_recorded_with_the_commit() -> None:
    """Presence and provenance name the session."""
    shelf = Shelf()
    _session(shelf)
    accepted = shelf.accept(put("a", ABSENT), session=SessionClaim(SESSION, b"hash"))
    assert accepted.logged.commit.session_id == SESSION
    assert [record.session_id for record in accepted.logged.versions] == [SESSION]


# Rights


def test_each_kind_of_op_needs_its_own_right() -> None:
    """Append is the weaker right: it changes nothing that is there."""
    shelf = Shelf()
    shelf.principals[WORKER] = a_principal(
        WORKER,
        rights=[Right("inbox/", frozenset({Action.APPEND})), Right("plan/", frozenset({Action.WRITE}))],
    )
    shelf.accept(append("inbox/"))
    shelf.accept(append("plan/"))
    shelf.accept(put("plan/a", ABSENT))
    shelf.accept(delete("plan/a", at_version(1)))
    assert shelf.why(put("inbox/a", ABSENT)) is Reason.DENIED
    assert shelf.why(delete("inbox/a", ABSENT)) is Reason.DENIED
    assert shelf.why(append("other/")) is Reason.DENIED


def test_one_denied_op_refuses_the_whole_commit() -> None:
    """All or nothing."""
    shelf = Shelf()
    shelf.principals[WORKER] = a_principal(WORKER, rights=[Right("plan/", frozenset({Action.WRITE}))])
    assert shelf.why(put("plan/a", ABSENT), put("other", ABSENT)) is Reason.DENIED
    assert shelf.head == 0


def test_a_guard_needs_the_right_to_read_all_it_speaks_of() -> None:
    """Otherwise a guard would tell, by trying, what a key is at."""
    shelf = Shelf()
    shelf.principals[WORKER] = a_principal(
        WORKER,
        rights=[Right("plan/", frozenset({Action.WRITE})), Right("plan/seen", frozenset({Action.READ}))],
    )
    shelf.accept(put("plan/a", ABSENT), guards=[unchanged("plan/seen", 0)])
    assert shelf.why(put("plan/b", ABSENT), guards=[unchanged("plan/a", 1)]) is Reason.DENIED
    assert shelf.why(put("plan/b", ABSENT), guards=[no_change_under("plan/", 1)]) is Reason.DENIED


def test_a_private_region_takes_writes_of_its_principal_only() -> None:
    """An operator may enter it, and nobody else, however high the role."""
    shelf = Shelf()
    mine = Region(f"private/{WORKER}")
    shelf.accept(put("a", ABSENT, region=mine))
    shelf.accept(put("a", ANY, region=mine), by=OPERATOR)
    for other in (RIVAL, SUPERVISOR):
        assert shelf.why(put("b", ABSENT, region=mine), by=other) is Reason.DENIED
        assert shelf.why(put("b", ABSENT), by=other, guards=[unchanged("a", 2, mine)]) is Reason.DENIED


@pytest.mark.parametrize("key", ["_slate", "_slate/sessions/s-1"])
def test_the_reserved_segment_is_written_by_nobody_but_the_server(key: str) -> None:
    """Not even by an operator: services trust what stands there."""
    shelf = Shelf()
    for principal in (WORKER, OPERATOR):
        assert shelf.why(put(key, ABSENT), by=principal) is Reason.DENIED
        assert shelf.why(delete(key, ABSENT), by=principal) is Reason.DENIED
        assert shelf.why(append("_slate/inbox/"), by=principal) is Reason.DENIED
    shelf.accept(put("_slated", ABSENT))
    shelf.accept(put("plan/_slate", ABSENT))
    own = replace(commit(put(key, ABSENT)), internal=True)
    assert isinstance(shelf.one(own), Accepted)


# Origin


def test_an_etag_of_an_earlier_life_is_told_apart_from_a_mismatch() -> None:
    """It must never match by chance, nor send the client into a loop of retries."""
    shelf = Shelf()
    shelf.accept(put("a", ABSENT))
    assert shelf.why(put("a", with_etag("ffffffff.AAAAAAAAAAAA"))) is Reason.BOARD_REINCARNATED
    # ... also where something else is wrong that is looked at later
    item = commit(put("b", at_version(3)), put("a", with_etag("ffffffff.AAAAAAAAAAAA")))
    assert shelf.refuse(item).reason is Reason.BOARD_REINCARNATED


def test_a_guard_from_the_future_is_refused() -> None:
    """Its revision comes from another board or another life."""
    shelf = Shelf()
    shelf.accept(put("a", ABSENT))
    shelf.accept(put("b", ABSENT), guards=[no_change_under("c/", 1)])
    error = shelf.refuse(commit(put("c", ABSENT), guards=[no_change_under("c/", 3)]))
    assert error.reason is Reason.FUTURE_REVISION
    assert error.metadata["revision"] == "2"


def test_a_prefix_guard_from_below_the_floor_is_refused_since_deletes_are_forgotten_there() -> None:
    """Compaction drops tombstones up to the floor: a delete in between would be a phantom nobody sees."""
    shelf = Shelf()
    shelf.accept(put("plan/a", ABSENT))
    shelf.accept(delete("plan/a", at_version(1)))
    shelf.accept(put("other", ABSENT))
    shelf.log.clear()  # what a compaction at 3 may forget
    shelf.floor = shelf.head
    error = shelf.refuse(commit(put("b", ABSENT), guards=[no_change_under("plan/", 1)]))
    assert error.reason is Reason.COMPACTED
    assert error.metadata["oldest_revision"] == "3"
    shelf.accept(put("b", ABSENT), guards=[no_change_under("plan/", 3)])


def test_a_guard_on_the_empty_board_may_speak_of_revision_zero() -> None:
    """A board that was never compacted has forgotten nothing."""
    Shelf().accept(put("a", ABSENT), guards=[no_change_under("", 0)])


def test_a_claim_on_a_lock_that_is_not_held_is_lost() -> None:
    """The fence stands in the transaction that writes."""
    error = Shelf().refuse(commit(put("a", ABSENT), claims=(Claim(LockId("l-7"), FencingToken(3)),)))
    assert error.reason is Reason.LOCK_LOST
    assert error.metadata["lock_id"] == "l-7"


# Policy


def test_any_state_is_forbidden_in_shared_regions_unless_a_policy_allows_it() -> None:
    """No silent overwrite by default."""
    shelf = Shelf()
    assert shelf.why(put("a", ANY)) is Reason.POLICY_FORBIDS
    assert shelf.why(delete("a", ANY)) is Reason.POLICY_FORBIDS
    shelf.accept(put("a", ANY, region=Region(f"private/{WORKER}")))
    shelf.policy = Policy(
        rules=(
            Rule(Scope.SHARED, "scratch/", any_state=AnyState.ALLOWED),
            Rule(Scope.PRIVATE, any_state=AnyState.FORBIDDEN),
        )
    )
    shelf.accept(put("scratch/a", ANY))
    assert shelf.why(put("a", ANY, region=Region(f"private/{WORKER}"))) is Reason.POLICY_FORBIDS


def test_a_read_only_region_takes_writes_of_operators_only() -> None:
    """And any kind of op is a write."""
    shelf = Shelf(policy=Policy(rules=(Rule(Scope.SHARED, "law/", WriteMode.READ_ONLY),)))
    for principal in (WORKER, SUPERVISOR):
        assert shelf.why(put("law/1", ABSENT), by=principal) is Reason.POLICY_FORBIDS
        assert shelf.why(append("law/"), by=principal) is Reason.POLICY_FORBIDS
        assert shelf.why(delete("law/1", ABSENT), by=principal) is Reason.POLICY_FORBIDS
    shelf.accept(put("law/1", ABSENT), by=OPERATOR)


def test_the_servers_own_commits_pass_policy_and_rights_but_not_preconditions() -> None:
    """Expiry must work in a read-only region of somebody who is gone; it must not work on what has changed."""
    shelf = Shelf(policy=Policy(rules=(Rule(Scope.SHARED, "", WriteMode.READ_ONLY),)))
    own = replace(commit(put("a", ABSENT)), internal=True, principal=PrincipalId("_slate"))
    assert isinstance(shelf.one(own), Accepted)
    assert shelf.refuse(replace(own, request_id="again")).reason is Reason.VERSION_CONFLICT


def test_sources_are_looked_at_before_quotas_and_quotas_before_preconditions() -> None:
    """Op by op first, then the sum, then the state."""
    shelf = Shelf(policy=Policy(quota=Quota(max_bytes=1)))
    stale = put("a", at_version(9), content(b"xx", sources=[[source("missing", 1)]]))
    assert shelf.why(stale) is Reason.SOURCE_NOT_FOUND
    assert shelf.why(put("a", at_version(9), b"xx")) is Reason.QUOTA
    assert shelf.why(put("a", at_version(9), b"x")) is Reason.VERSION_CONFLICT


def test_trust_floors_are_looked_at_after_sources_have_lowered_the_trust() -> None:
    """A write of a trusted principal that is derived from a mail has the trust of the mail."""
    shelf = Shelf(policy=Policy(rules=(Rule(Scope.SHARED, "plan/", min_trust=Trust.AGENT),)))
    shelf.accept(put("mail", ABSENT, content(trust=Trust.EXTERNAL)))
    shelf.accept(put("plan/a", ABSENT))
    error = shelf.refuse(commit(put("plan/b", ABSENT, content(sources=[[source("mail", 1)]]))))
    assert error.reason is Reason.TRUST_TOO_LOW
    assert (error.metadata["trust"], error.metadata["min_trust"]) == ("external", "agent")
    assert shelf.last("plan/b", SHARED) is None


def test_the_token_is_looked_at_for_each_commit_of_a_batch() -> None:
    """One revoked token does not take the others down with it."""
    shelf = Shelf()
    dead = replace(commit(put("a", ABSENT)), token_id=TokenId("t-2"))
    first, second = shelf.judge(dead, commit(put("b", ABSENT)))
    assert not isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert TOKEN in shelf.live_tokens
