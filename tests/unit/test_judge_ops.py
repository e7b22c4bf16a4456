"""What ops make of their keys: versions, names of appends, expiry, tombstones, op references."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.commit import CommitItem, NewContent, Op, check_ops
from slateboard_server.domain.entry import OpRef
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted, Refused, Replayed
from slateboard_server.domain.limits import APPEND_SUFFIX_BYTES, MAX_KEY_BYTES, MAX_KEY_SEGMENTS, MAX_OPS
from slateboard_server.domain.names import append_key, check_append_prefix, check_key, revision_of_append
from slateboard_server.domain.policy import Policy, Rule, Scope
from slateboard_server.domain.values import LAST_MOMENT, SECOND, Region, Tombstone
from tests.judging import (
    ABSENT,
    RIVAL,
    WORKER,
    Shelf,
    append,
    at_version,
    commit,
    content,
    delete,
    put,
    source,
)


def test_a_delete_is_a_version_without_a_value_that_keeps_when_the_entry_was_created() -> None:
    """So that history tells the whole life of an entry."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT, b"first"))
    shelf.accept(put("k", at_version(1), b"second"))
    [record] = shelf.accept(delete("k", at_version(2))).logged.versions
    assert (record.version, record.create_revision, record.mod_revision) == (3, 1, 3)
    assert (record.tombstone, record.value, record.size) == (Tombstone.DELETED, None, 0)


def test_all_changes_of_a_commit_share_its_revision_and_keep_their_order() -> None:
    """(mod_revision, op_index) is the order of the log."""
    shelf = Shelf()
    accepted = shelf.accept(put("b", ABSENT), append("log/"), put("a", ABSENT))
    assert [(r.key, r.mod_revision, r.op_index) for r in accepted.logged.versions] == [
        ("b", 1, 0),
        ("log/0000000000000000001-001", 1, 1),
        ("a", 1, 2),
    ]
    assert [outcome.key for outcome in accepted.answer.outcomes] == [r.key for r in accepted.logged.versions]


# Appends


@given(
    st.integers(1, 10**18), st.integers(0, MAX_OPS - 1), st.integers(1, 10**18), st.integers(0, MAX_OPS - 1)
)
def test_names_of_appends_sort_as_their_revisions_and_ops(
    revision: int, op: int, other_revision: int, other_op: int
) -> None:
    """The order of keys is the order of commits: an inbox is read by listing it."""
    earlier = (revision, op) < (other_revision, other_op)
    assert (append_key("log/", revision, op) < append_key("log/", other_revision, other_op)) is earlier
    assert revision_of_append(append_key("log/", revision, op)) == revision


def test_the_longest_prefix_of_an_append_leaves_room_for_its_name() -> None:
    """The name the server adds must not be what makes a key too long or too deep."""
    longest = "p" * (MAX_KEY_BYTES - APPEND_SUFFIX_BYTES - 1) + "/"
    deepest = "s/" * (MAX_KEY_SEGMENTS - 1)
    for prefix in (longest, deepest):
        check_append_prefix(prefix, "prefix")
        check_key(append_key(prefix, 10**18, MAX_OPS - 1))
    for prefix in ("p" + longest, "s/" + deepest, "", "log"):
        with pytest.raises(SlateboardError) as caught:
            check_append_prefix(prefix, "ops[0].append.prefix")
        assert caught.value.reason is Reason.KEY_INVALID
        assert caught.value.metadata["field"] == "ops[0].append.prefix"


def test_two_ops_that_make_the_same_key_are_refused_also_where_the_server_names_it() -> None:
    """A commit changes a key once; a lucky guess of the next revision is no way round."""
    shelf = Shelf()
    taken = append_key("log/", 1, 1)
    first: list[Op] = [put(append_key("log/", 1, 1), ABSENT), append("log/")]
    last: list[Op] = [put("a", ABSENT), append("log/"), put(taken, ABSENT)]
    for ops in (first, last):
        error = shelf.refuse(commit(*ops))
        assert error.reason is Reason.DUPLICATE_KEY
        assert error.metadata["key"] == taken


def test_nobody_takes_the_name_of_a_later_append() -> None:
    """Otherwise one write could make every later append to an inbox fail or go on with a foreign version."""
    shelf = Shelf()
    shelf.accept(append("inbox/"))
    for revision in (2, 3, 10**18):
        assert shelf.why(put(append_key("inbox/", revision, 0), ABSENT)) is Reason.KEY_INVALID
        assert shelf.why(delete(append_key("inbox/", revision, 0), at_version(1))) is Reason.VERSION_CONFLICT
    [outcome] = shelf.accept(append("inbox/")).answer.outcomes
    assert (outcome.key, outcome.version) == (append_key("inbox/", 2, 0), 1)


def test_what_was_appended_can_be_changed_deleted_and_written_again() -> None:
    """Only the future belongs to the server."""
    shelf = Shelf()
    [outcome] = shelf.accept(append("inbox/")).answer.outcomes
    shelf.accept(put(outcome.key, at_version(1)))
    shelf.accept(delete(outcome.key, at_version(2)))
    shelf.accept(put(outcome.key, ABSENT))
    shelf.accept(put(append_key("inbox/", 1, 7), ABSENT))


@pytest.mark.parametrize(
    "key", ["log/1-000", "log/0000000000000000001-0000", "log/x0000000000000000001-000", "000", "a-b-001"]
)
def test_keys_that_only_resemble_names_of_appends_are_free(key: str) -> None:
    """The form is exact."""
    assert revision_of_append(key) is None
    Shelf().accept(put(key, ABSENT))


# Expiry


def test_the_writers_expire_time_wins_over_the_regions_default() -> None:
    """The default is given only to writes that set none, appends included."""
    shelf = Shelf(policy=Policy(rules=(Rule(Scope.SHARED, "tmp/", default_ttl=60 * SECOND),)))
    accepted = shelf.accept(
        put("tmp/a", ABSENT),
        put("tmp/b", ABSENT, content(expire_time=shelf.now + SECOND)),
        append("tmp/log/"),
        put("other", ABSENT),
    )
    minute = shelf.now + 60 * SECOND
    times = [outcome.expire_time for outcome in accepted.answer.outcomes]
    assert times == [minute, shelf.now + SECOND, minute, None]


def test_a_ttl_counts_from_the_commit_and_wins_over_the_regions_default() -> None:
    """By the server's clock: a writer whose clock is wrong still gets the lifetime it asked for."""
    shelf = Shelf(policy=Policy(rules=(Rule(Scope.SHARED, "tmp/", default_ttl=60 * SECOND),)))
    accepted = shelf.accept(
        put("tmp/a", ABSENT, NewContent(b"x", ttl=SECOND)), append("log/", NewContent(b"x", ttl=SECOND))
    )
    times = [outcome.expire_time for outcome in accepted.answer.outcomes]
    assert times == [shelf.now + SECOND] * 2
    shelf.wait(1)
    assert shelf.present("tmp/a") is None


def test_a_retry_of_a_commit_with_a_ttl_is_answered_with_the_first_expiry() -> None:
    """The fingerprint has the ttl, not the moment that came of it; another ttl is another commit."""
    shelf = Shelf()
    again = commit(append("log/", NewContent(b"x", ttl=90 * SECOND)), request_id="r")
    first = shelf.one(again)
    shelf.wait(30)
    second = shelf.one(again)
    assert isinstance(first, Accepted)
    assert isinstance(second, Replayed)
    assert second.answer == first.answer
    other = commit(append("log/", NewContent(b"x", ttl=91 * SECOND)), request_id="r")
    assert shelf.refuse(other).reason is Reason.REQUEST_ID_REUSED


def test_a_ttl_that_ends_after_the_year_9999_is_refused() -> None:
    """No later moment can be told on the wire."""
    shelf = Shelf()
    most = LAST_MOMENT - shelf.now
    error = shelf.refuse(commit(put("k", ABSENT, NewContent(b"x", ttl=most + 1))))
    assert (error.reason, error.metadata["field"]) == (Reason.FIELD_INVALID, "ops[0].content.ttl")
    assert shelf.accept(put("k", ABSENT, NewContent(b"x", ttl=most))).answer.outcomes[0].expire_time == (
        LAST_MOMENT
    )


def test_an_expire_time_that_is_not_in_the_future_is_refused() -> None:
    """A value that is absent from the start is a mistake of somebody's clock."""
    shelf = Shelf()
    for moment in (shelf.now, shelf.now - 1, 0):
        error = shelf.refuse(commit(put("fine", ABSENT), put("k", ABSENT, content(expire_time=moment))))
        assert error.reason is Reason.FIELD_INVALID
        assert error.metadata["field"] == "ops[1].content.expire_time"
    shelf.accept(put("k", ABSENT, content(expire_time=shelf.now + 1)))


def test_overwriting_what_expired_begins_a_new_entry() -> None:
    """It is absent: what comes is created, not changed. Only the version goes on."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT, content(expire_time=shelf.now + SECOND)))
    shelf.wait(1)
    [record] = shelf.accept(put("k", ABSENT)).logged.versions
    assert (record.version, record.create_revision) == (2, 2)


# References between ops


def test_an_op_reference_becomes_the_version_that_the_earlier_op_made() -> None:
    """A put or an append; the client cannot know the key of the latter."""
    shelf = Shelf()
    shelf.accept(put("b", ABSENT))
    accepted = shelf.accept(
        append("log/"), put("b", at_version(1)), put("c", ABSENT, content(sources=[[OpRef(0), OpRef(1)]]))
    )
    assert accepted.logged.versions[2].derivations == (
        (source("log/0000000000000000002-000", 1), source("b", 2)),
    )


@pytest.mark.parametrize("op", [-1, 0, 1, 2, 5])
def test_an_op_reference_to_itself_a_later_op_a_delete_or_nothing_is_refused(op: int) -> None:
    """A source is something that was there before."""
    ops = (delete("a", ABSENT), put("b", ABSENT, content(sources=[[OpRef(op)]])), put("c", ABSENT))
    with pytest.raises(SlateboardError) as caught:
        check_ops(ops)
    assert caught.value.reason is Reason.FIELD_INVALID
    assert caught.value.metadata["field"].startswith("ops[1].content.provenance.derivations[0]")


def test_an_empty_derivation_is_refused() -> None:
    """A value made of nothing would survive the purge of everything it was made of."""
    with pytest.raises(SlateboardError) as caught:
        check_ops((put("a", ABSENT, content(sources=[[source("b", 1)], []])),))
    assert caught.value.metadata["field"] == "ops[0].content.provenance.derivations[1]"


def test_naming_a_key_twice_is_refused_but_the_same_key_of_two_regions_is_not() -> None:
    """A key is a place in a region."""
    check_ops(
        (put("a", ABSENT), put("a", ABSENT, region=Region("private/worker")), append("a/"), append("a/"))
    )
    for second in (put("a", at_version(1)), delete("a", at_version(1))):
        with pytest.raises(SlateboardError) as caught:
            check_ops((put("a", ABSENT), put("b", ABSENT), second))
        assert caught.value.reason is Reason.DUPLICATE_KEY
        assert caught.value.metadata["field"] == "ops[2]"


# Replay


def _answered(item: CommitItem, shelf: Shelf) -> Accepted:
    verdict = shelf.one(item)
    assert isinstance(verdict, Accepted)
    return verdict


def test_a_retry_gets_the_same_answer_and_writes_nothing() -> None:
    """However often, and whatever others did meanwhile; its own success is no conflict (lost replies)."""
    shelf = Shelf()
    item = commit(put("k", ABSENT), append("log/"))
    first = _answered(item, shelf)
    shelf.accept(put("k", at_version(1)), by=RIVAL)
    versions = {place: list(history) for place, history in shelf.versions.items()}
    for _ in range(3):
        again = shelf.one(item)
        assert getattr(again, "answer", None) == first.answer
        assert not isinstance(again, Accepted)
    assert (shelf.head, shelf.versions) == (2, versions)


def test_two_copies_of_a_request_in_one_batch_are_one_commit() -> None:
    """A client that retries early meets itself in the queue."""
    shelf = Shelf()
    item = commit(put("k", ABSENT))
    first, second = shelf.judge(item, item)
    assert isinstance(first, Accepted)
    assert getattr(second, "answer", None) == first.answer
    assert shelf.head == 1


def test_a_failed_commit_is_not_remembered_so_its_copy_is_judged_anew() -> None:
    """Failures are not stored: between the two copies the board may have changed for the better."""
    shelf = Shelf()
    shelf.accept(put("k", ABSENT))
    item = commit(put("k", at_version(2)))
    first, _, third, fourth = shelf.judge(item, commit(put("k", at_version(1))), item, item)
    assert isinstance(first, Refused)
    assert isinstance(third, Accepted)
    assert getattr(fourth, "answer", None) == third.answer
    assert shelf.head == 3


def test_other_content_under_a_used_request_id_is_refused_also_within_a_batch() -> None:
    """Answering it with the first result would pretend that the second was written."""
    shelf = Shelf()
    item = commit(put("k", ABSENT, b"one"))
    other = commit(put("k", ABSENT, b"two"), request_id=item.request_id)
    _, second = shelf.judge(item, other)
    assert isinstance(second, Refused)
    assert second.error.reason is Reason.REQUEST_ID_REUSED
    assert shelf.refuse(other).metadata["request_id"] == item.request_id


def test_request_ids_of_different_principals_have_nothing_to_do_with_each_other() -> None:
    """Otherwise one could probe, or answer for, another."""
    shelf = Shelf()
    shelf.accept(put("a", ABSENT), request_id="same")
    shelf.accept(put("b", ABSENT), request_id="same", by=RIVAL)
    assert set(shelf.replays) == {(WORKER, "same"), (RIVAL, "same")}


def test_validate_only_neither_asks_for_nor_leaves_a_stored_answer() -> None:
    """A dry run before and after the real commit judges the present state, each time."""
    shelf = Shelf()
    item = commit(put("k", ABSENT))
    dry = replace(item, validate_only=True)
    shelf.one(dry)
    assert shelf.replays == {}
    assert isinstance(shelf.one(item), Accepted)
    assert shelf.refuse(dry).reason is Reason.VERSION_CONFLICT


def test_stored_answers_hold_no_values() -> None:
    """They are kept for days, past a purge of what they speak of."""
    accepted = Shelf().accept(put("k", ABSENT, b"a secret value"))
    assert "a secret value" not in repr(accepted.stored)
