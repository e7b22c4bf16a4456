"""Quotas and rates: what counts, what is refused, what is only warned of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted
from slateboard_server.domain.policy import BOARD_COUNTER, AnyState, CounterKey, Policy, Quota, Rule, Scope
from slateboard_server.domain.values import SECOND, Micros, Region
from tests.judging import (
    ABSENT,
    ANY,
    WORKER,
    Shelf,
    append,
    at_version,
    commit,
    content,
    delete,
    expiry,
    put,
)

LENIENT = Rule(Scope.SHARED, any_state=AnyState.ALLOWED)


def _board(quota: Quota, *rules: Rule) -> Shelf:
    return Shelf(policy=Policy(rules=(LENIENT, *rules), quota=quota))


def test_entries_and_bytes_are_counted_over_puts_overwrites_and_deletes() -> None:
    """The counters equal a recount at every step."""
    shelf = _board(Quota())
    for ops in (
        [put("a", ABSENT, b"12345"), put("b", ABSENT, b"1")],
        [put("a", at_version(1), b"123")],
        [delete("b", at_version(1)), append("log/", b"1234567")],
        [delete("b", ANY)],
        [put("b", ABSENT, b"")],
    ):
        shelf.accept(*ops)
        usage = shelf.usage[BOARD_COUNTER]
        assert (usage.entries, usage.bytes) == shelf.recount()


def test_what_expired_counts_until_it_is_overwritten_or_swept_and_then_no_more() -> None:
    """Its bytes are there until then; counting it twice, or never off, would fill a board by time alone."""
    shelf = _board(Quota())
    soon = shelf.now + SECOND
    shelf.accept(*(put(key, ABSENT, content(b"1234", expire_time=soon)) for key in "abc"))
    shelf.wait(1)
    assert shelf.usage[BOARD_COUNTER].entries == 3
    shelf.accept(put("a", ABSENT, b"12"))
    assert (shelf.usage[BOARD_COUNTER].entries, shelf.usage[BOARD_COUNTER].bytes) == (3, 10)
    shelf.one(expiry("b", 1))
    assert (shelf.usage[BOARD_COUNTER].entries, shelf.usage[BOARD_COUNTER].bytes) == (2, 6)
    shelf.accept(put("b", ABSENT, b"1"))
    assert (shelf.usage[BOARD_COUNTER].entries, shelf.usage[BOARD_COUNTER].bytes) == (3, 7)
    shelf.accept(delete("c", ANY))
    assert (shelf.usage[BOARD_COUNTER].entries, shelf.usage[BOARD_COUNTER].bytes) == shelf.recount() == (3, 7)


@pytest.mark.parametrize(
    ("quota", "name"), [(Quota(max_entries=2), "max_entries"), (Quota(max_bytes=20), "max_bytes")]
)
def test_a_quota_refuses_what_would_pass_it_and_names_it(quota: Quota, name: str) -> None:
    """All or nothing, judged on the sum of the commit."""
    shelf = _board(quota)
    shelf.accept(put("a", ABSENT, b"0123456789"), put("b", ABSENT, b"0123456789"))
    error = shelf.refuse(commit(put("c", ABSENT, b"x")))
    assert error.reason is Reason.QUOTA
    assert error.metadata["quota"] == name
    shelf.accept(delete("a", at_version(1)), put("c", ABSENT, b"0123456789"))


def test_above_a_lowered_quota_shrinking_is_possible_and_growing_is_not() -> None:
    """A board that is too full must be able to get emptier."""
    shelf = _board(Quota())
    shelf.accept(*(put(f"k/{number}", ABSENT, b"0123456789") for number in range(5)))
    shelf.policy = replace(shelf.policy, quota=Quota(max_entries=2, max_bytes=15))
    assert shelf.why(put("new", ABSENT, b"")) is Reason.QUOTA
    assert shelf.why(put("k/0", at_version(1), b"0123456789+")) is Reason.QUOTA
    shelf.accept(put("k/0", at_version(1), b"012345678"))
    shelf.accept(put("k/0", at_version(2), b"876543210"))
    shelf.accept(delete("k/1", at_version(1)))


def test_from_four_fifths_of_a_limit_on_replies_warn() -> None:
    """Before writes stop, not after; and not about what does not grow."""
    shelf = _board(Quota(max_entries=5))
    for number in range(3):
        assert shelf.accept(put(f"k/{number}", ABSENT)).answer.warnings == ()
    for number in (3, 4):
        accepted = shelf.accept(put(f"k/{number}", ABSENT))
        assert [advice.code for advice in accepted.answer.warnings] == ["QUOTA_ENTRIES_SOFT"]
    assert shelf.accept(put("k/0", at_version(1))).answer.warnings == ()


def test_every_covering_rules_quota_binds_beside_the_boards() -> None:
    """Quotas do not fall back: a subtree's quota is within its parent's, not instead of it."""
    shelf = _board(
        Quota(max_entries=4),
        Rule(Scope.SHARED, "a/", quota=Quota(max_entries=3)),
        Rule(Scope.SHARED, "a/b/", quota=Quota(max_entries=2)),
    )
    shelf.accept(put("a/b/1", ABSENT), put("a/b/2", ABSENT))
    assert "a/b/" in shelf.refuse(commit(put("a/b/3", ABSENT))).message
    shelf.accept(put("a/1", ABSENT))
    assert "shared:a/ " in shelf.refuse(commit(put("a/2", ABSENT))).message
    shelf.accept(put("other", ABSENT))
    assert "the board" in shelf.refuse(commit(put("another", ABSENT))).message
    for counter in (CounterKey(Scope.SHARED, "a/"), CounterKey(Scope.SHARED, "a/b/"), BOARD_COUNTER):
        assert (shelf.usage[counter].entries, shelf.usage[counter].bytes) == shelf.recount(counter)


def test_private_regions_are_counted_together_and_apart_from_the_shared_one() -> None:
    """A rule for private regions speaks of everybody's."""
    shelf = _board(Quota(), Rule(Scope.PRIVATE, "", quota=Quota(max_entries=1)))
    shelf.accept(put("a", ABSENT))
    shelf.accept(put("a", ABSENT, region=Region(f"private/{WORKER}")))
    assert shelf.why(put("b", ABSENT, region=Region(f"private/{WORKER}"))) is Reason.QUOTA
    assert shelf.usage[CounterKey(Scope.PRIVATE)].entries == 1


# Rates


def test_commits_above_the_rate_wait_for_the_next_second() -> None:
    """The answer says how long; refused commits do not count."""
    shelf = _board(Quota(max_commits_per_second=2))
    shelf.now = Micros(shelf.now + SECOND - 1_500)
    shelf.accept(put("a", ABSENT))
    assert shelf.why(put("a", ABSENT)) is Reason.VERSION_CONFLICT
    shelf.accept(put("b", ABSENT))
    error = shelf.refuse(commit(put("c", ABSENT)))
    assert error.reason is Reason.RATE_LIMITED
    assert error.retry_after is not None
    assert error.retry_after.total_seconds() == pytest.approx(0.0015)
    assert error.metadata["retry_after_ms"] == "2"
    shelf.now = Micros(shelf.now + 1_500)
    shelf.accept(put("c", ABSENT))


def test_a_commit_that_changes_nothing_counts_as_a_commit() -> None:
    """It takes a revision and an fsync like any other."""
    shelf = _board(Quota(max_commits_per_second=2))
    shelf.accept(delete("a", ANY))
    shelf.accept(delete("a", ANY))
    assert shelf.why(delete("a", ANY)) is Reason.RATE_LIMITED


def test_the_servers_own_commits_neither_count_nor_are_held_up() -> None:
    """Expiry must not use up what the team may write in a second."""
    shelf = _board(Quota(max_commits_per_second=1, max_entries=1))
    soon = shelf.now + SECOND
    shelf.accept(put("a", ABSENT, content(expire_time=soon)))
    shelf.wait(1)
    assert isinstance(shelf.one(expiry("a", 1)), Accepted)
    shelf.accept(put("b", ABSENT))
    assert isinstance(shelf.one(replace(commit(put("c", ABSENT)), internal=True)), Accepted)
    assert shelf.usage[BOARD_COUNTER].entries == 2
    assert shelf.why(delete("b", at_version(1))) is Reason.RATE_LIMITED


def test_a_rules_rate_counts_only_commits_that_touch_its_subtree() -> None:
    """Each commit once, however many of its ops do."""
    shelf = _board(Quota(), Rule(Scope.SHARED, "hot/", quota=Quota(max_commits_per_second=2)))
    shelf.accept(put("hot/a", ABSENT), put("hot/b", ABSENT), put("hot/c", ABSENT))
    shelf.accept(put("cold", ABSENT))
    shelf.accept(append("hot/log/"))
    assert shelf.why(append("hot/log/")) is Reason.RATE_LIMITED
    shelf.accept(put("cold", at_version(1)))


def test_a_batch_is_counted_commit_by_commit() -> None:
    """Group commit is no way round a quota."""
    shelf = _board(Quota(max_entries=2, max_commits_per_second=3))
    verdicts = shelf.judge(*(commit(put(f"k/{number}", ABSENT)) for number in range(4)))
    assert [isinstance(verdict, Accepted) for verdict in verdicts] == [True, True, False, False]
