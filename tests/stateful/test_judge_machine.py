"""A board lived through: commits, time, expiry, sweeps, changes of policy and rights, in any order."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slateboard_server.domain.commit import CommitItem
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted, Refused, Replayed
from slateboard_server.domain.policy import Policy, Usage
from slateboard_server.domain.values import Tombstone, Trust
from tests.judging import WORKER, Shelf, expiry
from tests.judging_model import check_shelf, check_verdict
from tests.judging_strategies import POLICIES, commits


class JudgeMachine(RuleBasedStateMachine):
    """Drives the judge through a shelf and holds every verdict to a model of the tests' own."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.accepted: list[tuple[CommitItem, Accepted]] = []

    @initialize(policy=POLICIES)
    def begin(self, policy: Policy) -> None:
        self.shelf.policy = policy

    def _commit(self, *items: CommitItem) -> None:
        """Judge one batch; the model follows commit by commit."""
        shelf = self.shelf
        follower = _frozen(shelf)
        verdicts = shelf.judge(*items)
        for item, verdict in zip(items, verdicts, strict=True):
            check_verdict(follower, item, verdict)
            if isinstance(verdict, Accepted):
                follower._keep(verdict)
                if not item.internal:
                    self.accepted.append((item, verdict))

    @rule(data=st.data(), size=st.integers(1, 4))
    def write(self, data: st.DataObject, size: int) -> None:
        """A batch of commits."""
        shelf = self.shelf
        self._commit(*(data.draw(commits(now=shelf.now, head=shelf.head)) for _ in range(size)))

    @rule(seconds=st.sampled_from([0.25, 1, 2, 5]))
    def wait(self, seconds: float) -> None:
        """Time passes; some of what is there is gone."""
        self.shelf.wait(seconds)

    @rule(data=st.data())
    def sweep(self, data: st.DataObject) -> None:
        """Two sweepers record what has expired, each once; one of them also guesses."""
        shelf = self.shelf
        gone = [
            expiry(key, history[-1].version, region)
            for (region, key), history in shelf.versions.items()
            if history[-1].tombstone is Tombstone.NONE and shelf.present(key, region) is None
        ]
        first = shelf.judge(*gone)
        assert all(isinstance(verdict, Accepted) for verdict in first)
        assert all(isinstance(verdict, Refused) for verdict in shelf.judge(*gone))
        living = [place for place in shelf.versions if shelf.present(place[1], place[0]) is not None]
        if living:
            region, key = data.draw(st.sampled_from(living))
            guess = expiry(key, shelf.versions[region, key][-1].version, region)
            assert shelf.refuse(guess).reason is Reason.VERSION_CONFLICT

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """A client that lost a reply asks again."""
        shelf = self.shelf
        item, verdict = data.draw(st.sampled_from(self.accepted))
        head = shelf.head
        again = shelf.one(item)
        assert again == Replayed(verdict.answer)
        assert shelf.head == head

    @rule(policy=POLICIES)
    def set_policy(self, policy: Policy) -> None:
        """As the store does it: the new counters are counted from what is there."""
        shelf = self.shelf
        shelf.policy = policy
        shelf.usage = {counter: Usage(*shelf.recount(counter)) for counter, _ in policy.counters()}

    @rule(ceiling=st.sampled_from(Trust))
    def lower_or_raise(self, ceiling: Trust) -> None:
        """The ceiling of one principal changes; what is stored stays."""
        worker = self.shelf.principals[WORKER]
        self.shelf.principals[WORKER] = replace(worker, trust_ceiling=ceiling)

    @invariant()
    def board_is_sound(self) -> None:
        check_shelf(self.shelf)


def _frozen(shelf: Shelf) -> Shelf:
    """Copy what the model compares with; records are immutable."""
    twin = copy(shelf)
    twin.versions = {place: list(history) for place, history in shelf.versions.items()}
    twin.log = list(shelf.log)
    twin.replays = dict(shelf.replays)
    twin.usage = deepcopy(shelf.usage)
    return twin


TestJudgeMachine = JudgeMachine.TestCase
TestJudgeMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
