"""A worker: claims tasks, does them, publishes what comes out, and takes over what a dead one has left.

It knows its name, the board and a token, which come through a pipe (`python -m agents_demo.worker` is started by the
team and reads one line of JSON from standard input); all else it learns from the board. It never speaks to another
process but through the board, and leaves when the pipe closes, so that no worker outlives the team.

What keeps it honest is the board, not its good will: a claim is a lock on a key that says who works on the task, and every
write of the task goes through it; who was silent for longer than the lock lives has lost it to whoever takes over, and
publishes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import slateboard
from agents_demo import aggregate, board_keys, cleaning, orders
from agents_demo.board_keys import Claim, Plan, Step, Task
from agents_demo.follow import Follow, Overdue
from agents_demo.pipe import leave_with_the_team, lines
from slateboard import Board, Conflict, Entry, Lock, LockHeld, LockLost, Put, Session, SessionDead, View

SESSION_TTL: Final = 3.0
"""Seconds of silence after which a worker counts as dead, by the server's clock."""
CLAIM_TTL: Final = 3.0
"""Seconds after which the task of a worker that is silent can be taken over."""
_PATIENCE: Final = 600.0
_BARRIER_PATIENCE: Final = 10.0
_ACCIDENT_PATIENCE: Final = 60.0
_UPDATE_TIMEOUT: Final = 60.0
_SESSIONS: Final = 10
"""Sessions a worker starts, one after the other, before it gives up on a machine that is too slow for it."""

T = TypeVar("T")


class WorkerError(Exception):
    """The work cannot be done; the message says why."""


class ClaimLost(Exception):
    """Somebody else has the task: this worker had been silent for too long. Nothing was published."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task that this worker has, and what makes it so."""

    task: Task
    given: Entry
    """The task's entry: a source of what is made."""
    claim: Entry
    """Who works on it, as it stands on the board."""
    lock: Lock
    """What is written through it counts only as long as the claim holds."""


class Worker:
    """One worker on a board."""

    def __init__(self, board: Board, name: str, seed: int) -> None:
        self._board = board
        self._name = name
        # Which of several free tasks is taken: differently by each, so that they seldom run for the same one.
        self._random = random.Random(f"{seed}/{name}")  # noqa: S311  # spreads, guards nothing
        self._checked: set[tuple[str, str]] = set()
        self._met = False

    def run(self) -> None:
        """Work until the plan says that nothing is left.

        Raises:
            WorkerError: The work cannot be done.
            slateboard.SlateError: The board cannot be used.
            Overdue: Nothing happened for minutes.
        """
        for left in reversed(range(_SESSIONS)):
            try:
                with self._board.session(ttl=SESSION_TTL, purpose="demo worker", task="waiting") as session:
                    self._follow_work(session)
                    return
            except SessionDead:
                # What was claimed may be somebody else's by now: begin anew with what the board says.
                if not left:
                    raise

    def _follow_work(self, session: Session) -> None:
        self._arrive()
        with Follow(
            self._board,
            [board_keys.TASKS, "plan/"],
            waiting_for="tasks",
            patience=_PATIENCE,
            snapshot=True,
            view=View.KEYS,
        ) as changes:
            for _ in changes:
                if not self._do_what_is_there(session):
                    return

    def _arrive(self) -> None:
        try:
            self._board.put(f"{board_keys.TEAM}{self._name}", {"worker": self._name}, absent=True)
        except Conflict:
            return  # it was here before, in a session that died

    def _do_what_is_there(self, session: Session) -> bool:
        """Claim and do one task after the other until none is left to claim; False once the plan is done."""
        while True:
            written = self._board.get(board_keys.PLAN, None)
            if written is None:
                return True
            plan = Plan.from_json(written.value)
            if plan.step is Step.DONE:
                return False
            try:
                with contextlib.ExitStack() as holding:
                    found = self._find_task(session, holding)
                    if found is None:
                        return True
                    session.task = found.task.name
                    self._do(plan, found)
            except (ClaimLost, LockLost):
                continue
            finally:
                session.task = "waiting"

    def _find_task(self, session: Session, holding: contextlib.ExitStack) -> Claimed | None:
        """Claim a task that is not done and that nobody holds; the claim is held until `holding` is closed.

        First those that nobody has begun. One that somebody has, and does not hold any more, is taken over.
        """
        claims = {entry.key: Claim.from_json(entry.value) for entry in self._board.list(board_keys.CLAIMS)}
        held = {scope.path for lock in self._board.locks(board_keys.CLAIMS) for scope in lock.scopes}
        tasks = [(Task.from_json(entry.value), entry) for entry in self._board.list(board_keys.TASKS)]
        self._random.shuffle(tasks)
        for task, given in sorted(tasks, key=lambda item: _claim_key(item[0]) in claims):
            key = _claim_key(task)
            if key in held or (key in claims and claims[key].done):
                continue
            lock = self._board.lock(key, ttl=CLAIM_TTL, wait=0, purpose=task.name)
            try:
                holding.enter_context(lock)
            except LockHeld:
                continue  # another one was faster
            claim = self._claim(session, lock, key)
            if claim is not None:
                return Claimed(task, given, claim, lock)
            lock.release()
        return None

    def _claim(self, session: Session, lock: Lock, key: str) -> Entry | None:
        """Write down whose task it is, under its lock; None where it was done meanwhile."""
        known = lock.get(key, None)
        before = None if known is None else Claim.from_json(known.value)
        if before is not None and before.done:
            return None
        left_by = before.worker if before is not None and before.worker != self._name else ""
        return lock.put(
            key,
            Claim(self._name, session.id, taken_from=left_by).to_json(),
            expect=known,
            absent=known is None,
        )

    def _do(self, plan: Plan, claimed: Claimed) -> None:
        task, given = claimed.task, claimed.given
        path = self._same_file(plan)
        match task.step:
            case Step.DEDUPE:
                if task.accident and claimed.claim.version == 1:
                    self._have_an_accident(path, plan, task)
                rows = orders.read_raw(path)
                found = cleaning.find_duplicates(rows, part=task.part, parts=task.parts)
                self._publish(claimed, cleaning.duplicates_to_json(found), [given])
            case Step.JOIN:
                shares = list(self._board.get_many(map(board_keys.share_key, range(task.parts))).values())
                if len(shares) != task.parts:
                    raise WorkerError(f"{len(shares)} of {task.parts} shares of the duplicates are there")
                joined = cleaning.join_duplicates(map(_duplicates, shares))
                self._publish(claimed, cleaning.duplicates_to_json(joined), [given, *shares])
            case Step.SEPARATE:
                assert task.rows is not None
                known = self._board.get(board_keys.DUPLICATES)
                lines = orders.read_orders(path, task.rows)
                kept = cleaning.without_duplicates(lines, {copy.dropped for copy in _duplicates(known)})
                apart = cleaning.rows_of(cleaning.separate(kept).cancellations)
                self._publish(claimed, apart, [given, known])
            case Step.AGGREGATE:
                partial = self._add_up(path, claimed)
                self._merge_into_report(claimed, partial)
            case Step.DONE:
                raise WorkerError("the board has a task of a step that has none")

    def _publish(self, claimed: Claimed, result: Sequence[Any], inputs: Sequence[Entry]) -> None:
        """Put a result and finish its claim in one commit, if the inputs are still what they were."""
        task, claim = claimed.task, claimed.claim
        done = Claim.from_json(claim.value).finished()
        ops = [
            Put(task.result_key, result, absent=True, derived_from=inputs),
            Put(claim.key, done.to_json(), expect=claim),
        ]
        _holding(claim, lambda: claimed.lock.commit(ops, inputs))

    def _add_up(self, path: Path, claimed: Claimed) -> Entry:
        """The figures of a range, as an entry; those a dead worker had published already are used."""
        task, given, claim = claimed.task, claimed.given, claimed.claim
        assert task.rows is not None
        known = self._board.get(task.result_key, None)
        if known is not None:
            return known
        sources = self._board.get_many([board_keys.DUPLICATES, board_keys.cancellations_key(task.rows)])
        if sources.absent:
            raise WorkerError(f"{sources.absent[0]} is not there")
        duplicates, apart = sources.values()
        dropped = {copy.dropped for copy in _duplicates(duplicates)}
        found = aggregate.aggregate(orders.read_orders(path, task.rows), task.rows, dropped)
        if found.total.cancelled_lines != len(apart.value):
            raise WorkerError(
                f"{apart.key} names {len(apart.value)} lines, but {found.total.cancelled_lines} are there"
            )
        value = aggregate.to_json(found)
        inputs = [given, duplicates, apart]
        return _holding(
            claim,
            lambda: claimed.lock.put(
                task.result_key, value, absent=True, derived_from=inputs, unchanged=[*inputs, claim]
            ),
        )

    def _merge_into_report(self, claimed: Claimed, partial: Entry) -> None:
        """Add one's figures to the report that all others are changing too, then finish the claim."""
        task, claim = claimed.task, claimed.claim
        assert task.rows is not None
        label = task.rows.label

        def add(report: Any) -> Any:
            if not self._met:
                self._met = True
                self._meet_others()
            return {**report, "parts": {**report["parts"], label: partial.value}}

        updated = _holding(
            claim,
            lambda: claimed.lock.update(
                board_keys.REPORT, add, unchanged=[claim], derived_from=[partial], timeout=_UPDATE_TIMEOUT
            ),
        )
        merged = updated.conflicts if updated.merged else 0
        done = Claim.from_json(claim.value).finished(updated.conflicts, merged)
        _holding(claim, lambda: claimed.lock.put(claim.key, done.to_json(), expect=claim))

    def _meet_others(self) -> None:
        """Wait until the others have read the report too: then all but one are sure to meet a conflict.

        In real work that is a matter of luck; here everybody should see what comes of it. Who waits in vain goes on.
        """
        try:
            self._board.put(f"{board_keys.BARRIER}{self._name}", {"worker": self._name}, absent=True)
        except Conflict:
            return
        # Read now: the plan that was read before the task was found may be that of the step before.
        meet = Plan.from_json(self._board.get(board_keys.PLAN).value).meet
        here: set[str] = set()
        with Follow(
            self._board,
            [board_keys.BARRIER],
            waiting_for="the others",
            patience=_BARRIER_PATIENCE,
            snapshot=True,
            view=View.KEYS,
        ) as arrivals:
            try:
                for batch in arrivals:
                    here.update(entry.key for entry in batch.entries)
                    if len(here) >= meet:
                        return
            except Overdue:
                return

    def _have_an_accident(self, path: Path, plan: Plan, task: Task) -> None:
        """Come half-way, say so on the board, and go no further: the supervisor is to kill this process now."""
        half = itertools.islice(orders.read_raw(path), plan.lines // 2)
        seen = sum(1 for _ in half)
        self._board.put(
            f"{board_keys.PROGRESS}{task.name}", {"worker": self._name, "rows": seen}, absent=True
        )
        threading.Event().wait(_ACCIDENT_PATIENCE)
        raise WorkerError(f"nobody killed {self._name} in its rehearsed accident")

    def _same_file(self, plan: Plan) -> Path:
        """The file of the plan, once it is seen to be the one the plan was made for."""
        if (plan.file, plan.digest) not in self._checked:
            if orders.content_digest(Path(plan.file)) != plan.digest:
                raise WorkerError(f"{plan.file} is not the file the plan was made for: it has changed")
            self._checked.add((plan.file, plan.digest))
        return Path(plan.file)


def _claim_key(task: Task) -> str:
    return f"{board_keys.CLAIMS}{task.name}"


def _holding(claim: Entry, commit: Callable[[], T]) -> T:
    """Commit something that rests on a claim.

    Raises:
        ClaimLost: Somebody else has the task by now.
        slateboard.Conflict: Something else had changed, which nobody should have touched.
    """
    try:
        return commit()
    except LockLost as error:
        raise ClaimLost from error
    except Conflict as error:
        if any(violation.key == claim.key for violation in error.violations):
            raise ClaimLost from error
        raise


def _duplicates(entry: Entry) -> list[cleaning.Duplicate]:
    return cleaning.duplicates_from_json(entry.value)


# From here on: the process.


def main() -> int:
    """Read who to be from standard input, work, and return the exit code."""
    pipe = lines(0)
    start = json.loads(next(pipe))
    threading.Thread(target=leave_with_the_team, args=(pipe,), name="demo-pipe", daemon=True).start()
    try:
        with slateboard.connect(start["server"], token=start["token"]) as client:
            Worker(client.board(start["board"]), start["name"], start["seed"]).run()
    except (WorkerError, Overdue, slateboard.SlateError, ValueError, OSError) as error:
        print(f"{start['name']}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
