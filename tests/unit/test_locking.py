"""The rules of locks against a table in memory: grants, queues, cycles, ends; a rule machine holds the invariants."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.locking import apply
from slateboard_server.domain.locks import (
    AcquireLock,
    Asker,
    LockMode,
    LockRecord,
    LockScope,
    LockState,
    LockVerdict,
    Owner,
    ReapLocks,
    ReleaseLock,
    ReleaseOutcome,
    RevokeLock,
    TransferLock,
    ancestors,
)
from slateboard_server.domain.principal import DEFAULT_CEILING, Principal, Role, SessionRecord
from slateboard_server.domain.values import (
    SECOND,
    FencingToken,
    LockId,
    Micros,
    PrincipalId,
    Region,
    SessionId,
    TokenId,
)

SHARED = Region("shared")
NAMES = ("ann", "bob", "cat", "dan")


def scope(path: str) -> LockScope:
    return LockScope(SHARED, path)


class Table:
    """Locks in a dict; worked out anew for each question."""

    board = "b"
    max_locks = 0
    any_waiting = True

    def __init__(self) -> None:
        self.now = Micros(1_000 * SECOND)
        self.sequence = 0
        self.locks: dict[LockId, LockRecord] = {}
        self.principals = {
            PrincipalId(name): Principal(
                PrincipalId(name), Role.SUPERVISOR if name == "lead" else Role.WORKER, frozenset({"b"}), (),
                DEFAULT_CEILING[Role.WORKER], Micros(0), "",
            )
            for name in (*NAMES, "lead")
        }  # fmt: skip
        self.made = 0

    def principal(self, principal: PrincipalId) -> Principal | None:
        return self.principals.get(principal)

    def token_alive(self, token: TokenId) -> bool:
        return True

    def session(self, session: SessionId) -> SessionRecord | None:
        return None

    def find(self, lock_id: LockId) -> LockRecord | None:
        return self.locks.get(lock_id)

    def by_request(self, principal: PrincipalId, request_id: str) -> LockRecord | None:
        mine = [
            lock
            for lock in self.locks.values()
            if (lock.principal, lock.request_id) == (principal, request_id)
        ]
        return max(mine, key=lambda lock: lock.number, default=None)

    def overlapping(self, scopes: Sequence[LockScope]) -> list[LockRecord]:
        live = [lock for lock in self.locks.values() if lock.state.live and lock.overlaps(scopes)]
        return sorted(live, key=lambda lock: lock.number)

    def waits_of(self, owner: Owner) -> list[LockRecord]:
        return [
            lock for lock in self.locks.values() if lock.state is LockState.WAITING and lock.owner == owner
        ]

    def of_session(self, session: SessionId) -> list[LockRecord]:
        return []

    def live_count(self, principal: PrincipalId | None) -> int:
        return sum(lock.state.live and principal in {None, lock.principal} for lock in self.locks.values())

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def save(self, lock: LockRecord) -> None:
        self.locks[lock.lock_id] = lock

    # Short ways to ask

    def acquire(
        self, who: str, *paths: str, mode: LockMode = LockMode.EXCLUSIVE, wait: bool = True, request: str = ""
    ) -> LockVerdict:
        self.made += 1
        name = request or f"r{self.made}"
        op = AcquireLock(
            Asker(PrincipalId(who)), name, name.encode(), "a", LockId(f"l{self.made}"), mode,
            tuple(scope(path) for path in paths), 10, wait=wait,
        )  # fmt: skip
        return apply(self, op)

    def release(self, lock: LockRecord, request: str = "x") -> LockVerdict:
        return apply(self, ReleaseLock(Asker(lock.principal), request, lock.lock_id, lock.token))


def held(verdict: LockVerdict) -> LockRecord:
    assert verdict.lock is not None
    assert verdict.lock.state is LockState.HELD
    return verdict.lock


def waiting(verdict: LockVerdict) -> LockRecord:
    assert verdict.lock is not None
    assert verdict.lock.state is LockState.WAITING
    return verdict.lock


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/", "a", False),
        ("a/", "a/b", True),
        ("a/", "ab", False),
        ("a/b/", "a/", True),
        ("", "a", True),
        ("a/b", "a/b/c", False),
    ],
)
def test_scopes_overlap_where_a_key_lies_in_both(one: str, other: str, overlap: bool) -> None:
    assert scope(one).overlaps(scope(other)) is overlap
    assert scope(other).overlaps(scope(one)) is overlap
    assert not scope(one).overlaps(LockScope(Region("private/ann"), other))


def test_ancestors_are_all_that_covers() -> None:
    assert list(ancestors("a/b/c")) == ["", "a/", "a/b/", "a/b/c"]
    assert list(ancestors("a/b/")) == ["", "a/", "a/b/"]
    assert list(ancestors("k")) == ["", "k"]
    assert list(ancestors("")) == [""]


def test_a_shared_ask_does_not_pass_an_earlier_exclusive_one() -> None:
    table = Table()
    first = held(table.acquire("ann", "k", mode=LockMode.SHARED))
    exclusive = waiting(table.acquire("bob", "k"))
    shared = waiting(table.acquire("cat", "k", mode=LockMode.SHARED))
    verdict = table.release(first)
    assert [lock.lock_id for lock in verdict.changed if lock.state is LockState.HELD] == [exclusive.lock_id]
    verdict = table.release(table.locks[exclusive.lock_id])
    assert [lock.lock_id for lock in verdict.changed if lock.state is LockState.HELD] == [shared.lock_id]


def test_a_waiter_in_the_middle_that_leaves_lets_those_behind_it_pass() -> None:
    table = Table()
    held(table.acquire("ann", "a"))
    middle = waiting(table.acquire("bob", "a", "b"))
    behind = waiting(table.acquire("cat", "b"))
    verdict = table.release(middle)
    assert table.locks[behind.lock_id].state is LockState.HELD
    assert verdict.outcome is ReleaseOutcome.RELEASED


def test_a_transfer_that_would_make_a_cycle_is_refused_and_changes_nothing() -> None:
    table = Table()
    lock = held(table.acquire("ann", "a"))
    held(table.acquire("cat", "c"))
    waiting(table.acquire("bob", "c"))
    waiting(table.acquire("cat", "a"))
    before = dict(table.locks)
    op = TransferLock(
        Asker(PrincipalId("ann")),
        "t",
        lock.lock_id,
        lock.token,
        PrincipalId("bob"),
        None,
        "",
        LockId("new"),
        10,
    )
    with pytest.raises(SlateboardError) as caught:
        apply(table, op)
    assert caught.value.reason is Reason.DEADLOCK
    assert table.locks == before


def test_the_dead_are_reaped_together_and_nobody_dead_is_promoted() -> None:
    table = Table()
    first = held(table.acquire("ann", "k"))
    dead = waiting(table.acquire("bob", "k"))
    alive = waiting(table.acquire("cat", "k"))
    apply(table, ReapLocks(dead=frozenset({first.lock_id, dead.lock_id})))
    assert table.locks[first.lock_id].state is LockState.EXPIRED
    assert table.locks[dead.lock_id].state is LockState.ABANDONED
    assert table.locks[alive.lock_id].state is LockState.HELD
    assert apply(table, ReapLocks(dead=frozenset({first.lock_id}))).changed == ()


PATHS = st.lists(
    st.sampled_from(["a", "b", "c", "d/", "d/x", "d/y", ""]), min_size=1, max_size=3, unique=True
).filter(lambda paths: not any(scope(a).overlaps(scope(b)) for a in paths for b in paths if a != b))
WHO = st.sampled_from(NAMES)


class Locks(RuleBasedStateMachine):
    """Anybody asks, releases, dies and is revoked in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.highest = 0

    def live(self, state: LockState) -> list[LockRecord]:
        return [lock for lock in self.table.locks.values() if lock.state is state]

    @rule(who=WHO, paths=PATHS, shared=st.booleans(), wait=st.booleans())
    def ask(self, who: str, paths: list[str], shared: bool, wait: bool) -> None:
        mode = LockMode.SHARED if shared else LockMode.EXCLUSIVE
        self.table.now = Micros(self.table.now + SECOND)
        before = dict(self.table.locks)
        try:
            verdict = self.table.acquire(who, *paths, mode=mode, wait=wait)
        except SlateboardError as error:
            assert error.reason is Reason.DEADLOCK  # noqa: PT017 -- one outcome of several
            assert wait
            assert self.table.locks == before
            return
        lock = verdict.lock
        assert lock is not None
        if lock.state is LockState.HELD:
            assert lock.token > self.highest, "tokens rise"
            assert not verdict.blockers
        else:
            assert verdict.blockers
            assert (lock.lock_id in self.table.locks) is wait

    @precondition(lambda self: self.live(LockState.HELD) or self.live(LockState.WAITING))
    @rule(data=st.data(), how=st.sampled_from(["release", "die", "revoke"]))
    def end(self, data: st.DataObject, how: str) -> None:
        lock = data.draw(st.sampled_from([*self.live(LockState.HELD), *self.live(LockState.WAITING)]))
        if how == "release":
            self.table.release(lock)
        elif how == "die":
            apply(self.table, ReapLocks(dead=frozenset({lock.lock_id})))
        else:
            op = RevokeLock(Asker(PrincipalId("lead")), "f", lock.lock_id, lock.token, "why")
            apply(self.table, op)
        assert not self.table.locks[lock.lock_id].state.live

    @invariant()
    def what_conflicts_is_not_held_together(self) -> None:
        all_held = self.live(LockState.HELD)
        for number, lock in enumerate(all_held):
            assert not any(lock.conflicts(other.mode, other.scopes) for other in all_held[number + 1 :])

    @invariant()
    def whoever_waits_waits_for_something(self) -> None:
        for lock in self.live(LockState.WAITING):
            assert any(
                other.conflicts(lock.mode, lock.scopes)
                for other in self.table.overlapping(lock.scopes)
                if other.lock_id != lock.lock_id
                and (other.state is LockState.HELD or other.number < lock.number)
            ), "nobody is forgotten in the queue"

    @invariant()
    def no_wait_is_without_end(self) -> None:
        """Follow who waits for whom: it never comes back to where it began."""
        waits = {
            lock.owner: [
                other.owner
                for other in self.table.overlapping(lock.scopes)
                if other.lock_id != lock.lock_id
                and (other.state is LockState.HELD or other.number < lock.number)
                and other.conflicts(lock.mode, lock.scopes)
            ]
            for lock in self.live(LockState.WAITING)
        }
        # Owners without a session may wait several times and for themselves: no cycle of several is left all the same.
        for owner, others in waits.items():
            seen = {owner}
            to_visit = [other for other in others if other != owner]
            while to_visit:
                other = to_visit.pop()
                assert other != owner, "a deadlock was let in"
                if other not in seen:
                    seen.add(other)
                    to_visit += waits.get(other, [])

    @invariant()
    def tokens_rise_with_grants(self) -> None:
        granted = sorted((lock.token for lock in self.table.locks.values() if lock.token), reverse=True)
        assert len(granted) == len(set(granted))
        self.highest = max([self.highest, *granted])
        assert all(lock.token == FencingToken(0) for lock in self.live(LockState.WAITING))


TestLocks = Locks.TestCase
