"""What holds of any batch of any commits: promises of the judge as a whole, against counts of the tests' own."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.commit import CommitItem
from slateboard_server.domain.judge import Accepted, Refused, Replayed, Verdict, judge
from slateboard_server.domain.policy import Policy
from tests.judging import Shelf
from tests.judging_model import check_shelf, check_verdict
from tests.judging_strategies import POLICIES, batches, commits

pytestmark = pytest.mark.timeout(600)  # thousands of examples in the long profile
BATCHES = batches()


def _plain(verdict: Verdict) -> object:
    """Leave out of a verdict what names its batch."""
    if isinstance(verdict, Accepted):
        return (
            "accepted",
            replace(verdict.logged.commit, batch_id=""),
            verdict.logged.versions,
            verdict.answer,
        )
    if isinstance(verdict, Refused):
        error = verdict.error
        metadata = {name: value for name, value in error.metadata.items() if name != "conflict_id"}
        conflict = None if error.conflict is None else replace(error.conflict, conflict_id="")
        return "refused", error.reason, error.message, metadata, conflict, error.retry_after
    return type(verdict).__name__, verdict.answer


@given(BATCHES, POLICIES)
def test_a_batch_gives_the_verdicts_its_commits_would_get_one_by_one(
    items: list[CommitItem], policy: Policy
) -> None:
    """Group commit changes how fast commits are, never what becomes of them."""
    together, alone = Shelf(policy=policy), Shelf(policy=policy)
    verdicts = together.judge(*items)
    singly = [alone.one(item) for item in items]
    assert [_plain(verdict) for verdict in verdicts] == [_plain(verdict) for verdict in singly]
    assert together.versions == alone.versions
    assert together.usage == alone.usage
    assert together.replays == alone.replays


@given(BATCHES, BATCHES, POLICIES)
def test_no_commit_is_accepted_whose_conditions_do_not_hold_and_every_violation_is_told(
    earlier: list[CommitItem], items: list[CommitItem], policy: Policy
) -> None:
    """Against a model that knows nothing but the versions that were written."""
    shelf = Shelf(policy=policy)
    shelf.judge(*earlier)
    for item in items:
        before = deepcopy(shelf)
        check_verdict(before, item, shelf.one(item))
    check_shelf(shelf)


@given(BATCHES, commits(), POLICIES)
def test_a_refused_commit_leaves_the_picture_as_it_was(
    earlier: list[CommitItem], item: CommitItem, policy: Policy
) -> None:
    """Nothing half done: what was counted, named or resolved before the refusal is forgotten."""
    shelf = Shelf(policy=policy)
    shelf.judge(*earlier)
    picture = shelf.picture([item])
    before = deepcopy(picture)
    [verdict] = judge(picture, [item], "b")
    if not isinstance(verdict, Accepted):
        assert picture == before
    else:
        assert picture.board.head == before.board.head + 1
        assert picture.keys == before.keys


@given(st.lists(BATCHES, max_size=4), POLICIES)
def test_a_retry_of_every_accepted_commit_gives_its_answer_and_writes_nothing(
    batches: list[list[CommitItem]], policy: Policy
) -> None:
    """Whatever has come since."""
    shelf = Shelf(policy=policy)
    answers = []
    for batch in batches:
        verdicts = shelf.judge(*batch)
        answers += [
            (item, verdict.answer)
            for item, verdict in zip(batch, verdicts, strict=True)
            if isinstance(verdict, Accepted)
        ]
    head, versions = shelf.head, deepcopy(shelf.versions)
    retried = shelf.judge(*(item for item, _ in answers))
    assert retried == [Replayed(answer) for _, answer in answers]
    assert (shelf.head, shelf.versions) == (head, versions)
