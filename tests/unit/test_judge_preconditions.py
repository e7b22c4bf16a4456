"""Preconditions and guards: what holds of a key that is present, absent, deleted, expired, purged or another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.commit import Precondition
from slateboard_server.domain.entry import VersionRecord
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.etag import make_etag
from slateboard_server.domain.judge import Accepted, Refused, Validated
from slateboard_server.domain.policy import AnyState, Policy, Rule, Scope
from slateboard_server.domain.principal import Action, Right
from slateboard_server.domain.values import SECOND, Key, Revision, Tombstone, Version
from tests.judging import (
    ABSENT,
    ANY,
    INCARNATION,
    PRESENT,
    RIVAL,
    SECRET,
    SHARED,
    START,
    SYSTEM,
    WORKER,
    Shelf,
    a_principal,
    append,
    at_version,
    commit,
    content,
    delete,
    expiry,
    no_change_under,
    put,
    unchanged,
    with_etag,
)

MakeShelf = Callable[[], Shelf]
LENIENT = Policy(rules=(Rule(Scope.SHARED, any_state=AnyState.ALLOWED),))


def _etag(version: int, key: str = "k") -> Precondition:
    return with_etag(make_etag(SECRET, INCARNATION, SHARED, key, Version(version)))


def _never() -> Shelf:
    return Shelf(policy=LENIENT)


def _there() -> Shelf:
    shelf = _never()
    shelf.accept(put("k", ABSENT))
    shelf.accept(put("k", at_version(1)))
    return shelf


def _deleted() -> Shelf:
    shelf = _never()
    shelf.accept(put("k", ABSENT))
    shelf.accept(delete("k", at_version(1)))
    return shelf


def _expired_but_not_swept() -> Shelf:
    shelf = _never()
    shelf.accept(put("k", ABSENT))
    shelf.accept(put("k", at_version(1), content(expire_time=shelf.now + SECOND)))
    shelf.wait(1)
    return shelf


def _swept() -> Shelf:
    shelf = _never()
    shelf.accept(put("k", ABSENT, content(expire_time=shelf.now + SECOND)))
    shelf.wait(1)
    assert isinstance(shelf.one(expiry("k", 1)), Accepted)
    return shelf


def _purged() -> Shelf:
    shelf = _deleted()
    shelf.versions[SHARED, Key("k")][-1] = replace(
        shelf.versions[SHARED, Key("k")][-1], tombstone=Tombstone.PURGED
    )
    return shelf


def _compacted_away() -> Shelf:
    shelf = _deleted()
    last = shelf.versions[SHARED, Key("k")][-1]
    counter = VersionRecord(
        SHARED,
        Key("k"),
        last.version,
        Revision(0),
        Revision(0),
        0,
        START,
        last.principal,
        None,
        last.trust,
        tombstone=Tombstone.DELETED,
    )
    shelf.versions[SHARED, Key("k")] = [counter]
    return shelf


STATES = [_never, _there, _deleted, _expired_but_not_swept, _swept, _purged, _compacted_away]
ABSENCES = [state for state in STATES if state is not _there]


@pytest.mark.parametrize("state", ABSENCES)
def test_every_kind_of_absence_satisfies_only_what_asks_for_absence(state: MakeShelf) -> None:
    """Gone is gone: by nobody's hand, by a delete, by time, by purge, before or after the sweep."""
    for wanted in (PRESENT, at_version(1), at_version(2), _etag(1), _etag(2)):
        assert state().why(put("k", wanted)) is Reason.VERSION_CONFLICT
        assert state().why(delete("k", wanted)) is Reason.VERSION_CONFLICT
    for wanted in (ABSENT, ANY):
        state().accept(put("k", wanted))
        assert state().accept(delete("k", wanted)).answer.outcomes[0].changed is False
    state().accept(put("other", ABSENT), guards=[unchanged("k", 0)])
    for version in (1, 2):
        assert state().why(put("other", ABSENT), guards=[unchanged("k", version)]) is Reason.GUARD_CHANGED


def test_a_present_key_satisfies_its_version_its_etag_and_presence() -> None:
    """And nothing else."""
    for wanted in (PRESENT, at_version(2), _etag(2), ANY):
        assert _there().accept(put("k", wanted)).answer.outcomes[0].version == 3
        assert _there().accept(delete("k", wanted)).answer.outcomes[0].version == 3
    for wanted in (ABSENT, at_version(1), at_version(3), _etag(1), _etag(3), _etag(2, key="other")):
        assert _there().why(put("k", wanted)) is Reason.VERSION_CONFLICT
        assert _there().why(delete("k", wanted)) is Reason.VERSION_CONFLICT
    _there().accept(put("other", ABSENT), guards=[unchanged("k", 2)])
    for version in (0, 1, 3):
        assert _there().why(put("other", ABSENT), guards=[unchanged("k", version)]) is Reason.GUARD_CHANGED


@pytest.mark.parametrize("state", [_deleted, _expired_but_not_swept, _swept, _purged, _compacted_away])
def test_a_key_that_comes_back_goes_on_with_its_versions(state: MakeShelf) -> None:
    """An old version never matches again (no ABA), not even after compaction left only a counter."""
    shelf = state()
    last = shelf.last("k")
    assert last is not None
    accepted = shelf.accept(put("k", ABSENT))
    [record] = accepted.logged.versions
    assert record.version == last.version + 1
    assert record.create_revision == record.mod_revision == accepted.answer.revision


def test_deleting_an_absent_key_under_any_state_changes_nothing_and_says_so() -> None:
    """It is a commit all the same: it has a revision and can be replayed."""
    shelf = Shelf(policy=LENIENT)
    accepted = shelf.accept(delete("k", ANY))
    [outcome] = accepted.answer.outcomes
    assert (outcome.version, outcome.changed) == (0, False)
    assert accepted.logged.versions == ()
    assert shelf.head == 1


def test_deleting_what_expired_leaves_the_tombstone_to_the_sweeper() -> None:
    """It is absent already; how it went is told by the sweeper's EXPIRED, not by who came late."""
    shelf = _expired_but_not_swept()
    assert shelf.accept(delete("k", ANY)).logged.versions == ()
    verdict = shelf.one(expiry("k", 2))
    assert isinstance(verdict, Accepted)
    assert verdict.logged.versions[0].tombstone is Tombstone.EXPIRED


# The sweeper


def test_an_expiry_is_recorded_once_and_only_of_the_version_that_expired() -> None:
    """Two replicas may sweep at once, and a writer may come between."""
    shelf = _expired_but_not_swept()
    assert shelf.refuse(expiry("k", 1)).reason is Reason.VERSION_CONFLICT
    assert isinstance(shelf.one(expiry("k", 2)), Accepted)
    assert shelf.refuse(expiry("k", 2)).reason is Reason.VERSION_CONFLICT
    assert shelf.refuse(expiry("k", 3)).reason is Reason.VERSION_CONFLICT
    assert shelf.refuse(expiry("unknown", 1)).reason is Reason.VERSION_CONFLICT


def test_the_sweeper_cannot_end_what_still_lives_by_the_boards_time() -> None:
    """Its clock may have run ahead: expiry is judged by the board's time, as everything is."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT, content(expire_time=shelf.now + SECOND)))
    shelf.accept(put("forever", ABSENT))
    assert shelf.refuse(expiry("k", 1)).reason is Reason.VERSION_CONFLICT
    assert shelf.refuse(expiry("forever", 1)).reason is Reason.VERSION_CONFLICT
    shelf.wait(1)
    assert isinstance(shelf.one(expiry("k", 1)), Accepted)


def test_an_expiry_keeps_when_the_entry_was_created_and_who_recorded_it() -> None:
    """The tombstone belongs to the entry that ended."""
    shelf = _expired_but_not_swept()
    verdict = shelf.one(expiry("k", 2))
    assert isinstance(verdict, Accepted)
    [record] = verdict.logged.versions
    assert (record.version, record.create_revision, record.principal) == (3, 1, SYSTEM)
    assert verdict.stored is None


# Conflicts


def test_all_violations_are_listed_preconditions_first_then_guards() -> None:
    """A loser that learns one reason at a time loses again."""
    shelf = Shelf()
    shelf.accept(put("a", ABSENT), put("b", ABSENT), put("plan/x", ABSENT), by=RIVAL)
    error = shelf.refuse(
        commit(
            put("a", ABSENT),
            put("fine", ABSENT),
            append("log/"),
            delete("b", at_version(9)),
            put("c", PRESENT),
            guards=[unchanged("a", 0), unchanged("b", 1), no_change_under("plan/", 0), unchanged("c", 2)],
        )
    )
    assert error.reason is Reason.VERSION_CONFLICT
    assert error.conflict is not None
    assert [
        (v.index, v.guard, v.key, v.expected, v.current_version, v.current_principal, v.reason)
        for v in error.conflict.violations
    ] == [
        (0, False, "a", "absent", 1, RIVAL, "VERSION_CONFLICT"),
        (3, False, "b", "version 9", 1, RIVAL, "VERSION_CONFLICT"),
        (4, False, "c", "present", 0, None, "VERSION_CONFLICT"),
        (0, True, "a", "absent", 1, RIVAL, "GUARD_CHANGED"),
        (2, True, "plan/x", "prefix plan/ unchanged since 0", 1, RIVAL, "GUARD_CHANGED"),
        (3, True, "c", "version 2", 0, None, "GUARD_CHANGED"),
    ]
    assert error.conflict.revision == 1
    assert error.retry_after is not None
    assert error.metadata["conflict_id"] == error.conflict.conflict_id


def test_a_conflict_on_a_deleted_key_says_absent_and_who_deleted_it() -> None:
    """Version 0 is absence; the rest tells who to ask."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT))
    shelf.accept(delete("k", at_version(1)), by=RIVAL)
    error = shelf.refuse(commit(put("k", at_version(1))))
    assert error.conflict is not None
    [violation] = error.conflict.violations
    assert (violation.current_version, violation.current_mod_revision) == (0, 2)
    assert violation.current_principal == RIVAL
    assert "found absent" in error.message


def test_who_may_write_but_not_read_learns_nothing_from_a_conflict() -> None:
    """Neither version, nor writer, nor time, nor whether the key is there at all."""
    shelf = Shelf()
    shelf.principals[WORKER] = a_principal(WORKER, rights=[Right("drop/", frozenset({Action.WRITE}))])
    shelf.accept(put("drop/there", ABSENT), by=RIVAL)
    there = shelf.refuse(commit(put("drop/there", at_version(5))))
    nothing = shelf.refuse(commit(put("drop/never", at_version(5))))
    assert there.message.replace("there", "never") == nothing.message
    assert "absent" not in there.message
    assert "current_version" not in there.metadata
    assert there.conflict is not None
    assert nothing.conflict is not None
    [seen], [unseen] = there.conflict.violations, nothing.conflict.violations
    assert replace(seen, key="drop/never") == unseen
    assert seen.hidden


def test_a_validate_only_commit_gets_all_violations_but_leaves_no_conflict_behind() -> None:
    """It writes nothing, so there is nothing to look up later; but it exists to be told what is wrong."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT))
    item = commit(put("k", ABSENT), put("l", PRESENT), validate_only=True)
    verdict = shelf.one(item)
    assert isinstance(verdict, Refused)
    assert verdict.to_keep is None
    assert "conflict_id" not in verdict.error.metadata
    assert verdict.error.conflict is not None
    assert len(verdict.error.conflict.violations) == 2
    kept = shelf.one(replace(item, validate_only=False))
    assert isinstance(kept, Refused)
    assert kept.to_keep is not None


def test_a_validate_only_commit_moves_nothing_within_its_batch_either() -> None:
    """The commit behind it is judged as if it had not been there."""
    shelf = Shelf()
    dry, real = shelf.judge(
        commit(put("k", ABSENT), request_id="same", validate_only=True),
        commit(put("k", ABSENT), request_id="same"),
    )
    assert isinstance(dry, Validated)
    assert isinstance(real, Accepted)
    assert dry.answer.revision == real.answer.revision == 1


def test_a_put_and_a_guard_on_the_same_key_are_both_judged_on_what_was_there_before() -> None:
    """A commit is not in its own way; and its own write does not satisfy its guard."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT), guards=[unchanged("k", 0)])
    shelf.accept(put("k", at_version(1)), guards=[unchanged("k", 1)])
    assert shelf.why(put("k", at_version(2)), guards=[unchanged("k", 3)]) is Reason.GUARD_CHANGED
    shelf.accept(put("plan/a", ABSENT), guards=[no_change_under("plan/", shelf.head)])


# Prefix guards


def test_a_prefix_guard_sees_every_kind_of_change_and_nothing_beside_the_prefix() -> None:
    """No phantoms: a put, a delete, an append and a recorded expiry are changes; `planner` is not under `plan/`."""
    shelf = Shelf()
    shelf.accept(put("plan/a", ABSENT), put("plan/e", ABSENT, content(expire_time=shelf.now + SECOND)))
    shelf.wait(1)
    changes = [
        commit(put("plan/b", ABSENT)),
        commit(delete("plan/b", at_version(1))),
        commit(append("plan/log/")),
        expiry("plan/e", 1),
    ]
    for change in changes:
        since = shelf.head
        shelf.accept(put(f"planner/{since}", ABSENT), guards=[no_change_under("plan/", since)])
        assert isinstance(shelf.one(change), Accepted)
        assert shelf.why(put("x", ABSENT), guards=[no_change_under("plan/", since)]) is Reason.GUARD_CHANGED
        assert shelf.why(put("x", ABSENT), guards=[no_change_under("", since)]) is Reason.GUARD_CHANGED
        shelf.accept(put(f"y/{since}", ABSENT), guards=[no_change_under("plan/", shelf.head)])


def test_a_prefix_guard_ignores_changes_at_its_own_revision_even_within_a_batch() -> None:
    """`since` is the revision that was read: what it holds was seen, whether committed long ago or a moment before."""
    shelf = Shelf()
    first, second = shelf.judge(
        commit(put("plan/a", ABSENT)), commit(put("plan/b", ABSENT), guards=[no_change_under("plan/", 1)])
    )
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)


def test_a_prefix_guard_sees_what_an_earlier_commit_of_its_batch_changed() -> None:
    """Group commit must not open a window for phantoms."""
    shelf = Shelf()
    shelf.accept(put("x", ABSENT))
    _, second, third = shelf.judge(
        commit(put("plan/deep/er/a", ABSENT), by=RIVAL),
        commit(put("b", ABSENT), guards=[no_change_under("plan/deep/", 1)]),
        commit(put("c", ABSENT), guards=[no_change_under("plan/deep/er/a/", 1)]),
    )
    assert isinstance(second, Refused)
    assert second.error.conflict is not None
    assert [(v.key, v.current_principal) for v in second.error.conflict.violations] == [
        ("plan/deep/er/a", RIVAL)
    ]
    assert isinstance(third, Accepted)


PLACES = st.sampled_from(["a", "ab", "a/b", "a/b/c", "a/c", "ab/c", "b", "b/a"])
PREFIXES = st.sampled_from(["", "a/", "a/b/", "ab/", "b/"])


@given(st.lists(st.tuples(PLACES, st.booleans())), PREFIXES, st.integers(0, 12), st.integers(0, 4))
def test_prefix_guards_see_exactly_the_changes_after_their_revision(
    changes: list[tuple[str, bool]], prefix: str, since: int, in_batch: int
) -> None:
    """Against a list of who changed what when; the last `in_batch` changes come in the guard's own batch."""
    shelf = Shelf(policy=LENIENT)
    items = [commit(delete(key, ANY) if is_delete else put(key, ANY)) for key, is_delete in changes]
    guard = no_change_under(prefix, since)
    cut = max(0, len(items) - in_batch)
    for item in items[:cut]:
        shelf.one(item)
    verdict = shelf.judge(*items[cut:], commit(append("zzz/"), guards=[guard]))[-1]
    changed = [
        record.mod_revision
        for logged in shelf.log
        for record in logged.versions
        if record.key.startswith(prefix)
    ]
    if since > len(items):
        assert isinstance(verdict, Refused)
        assert verdict.error.reason is Reason.FUTURE_REVISION
    elif any(since < revision <= len(items) for revision in changed):
        assert isinstance(verdict, Refused)
        assert verdict.error.reason is Reason.GUARD_CHANGED
    else:
        assert isinstance(verdict, Accepted)
