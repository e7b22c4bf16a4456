"""The supervisor: writes goal, constraints and plan, opens one step after the other, and signs the final report.

It gives nobody orders. It writes what is to be done, watches what becomes of it, and tells the story as it sees it on
the board.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agents_demo import board_keys, orders
from agents_demo.aggregate import Aggregate, from_json, merge_all, to_json
from agents_demo.board_keys import Claim, Plan, Step, Task
from agents_demo.follow import Follow
from agents_demo.rows import RowRange, split
from agents_demo.story import SUPERVISOR, task_said, tell
from agents_demo.summary import Endpoint, Summary, summarise
from agents_demo.weekly import WeeklyReport, weekly_report
from slateboard import Batch, Board, Entry, Put, Source

GOAL: Final = "A weekly report of net revenue by ISO week and country, from order lines that hold duplicates and cancellations."
CONSTRAINTS: Final = (
    "Exact duplicate lines are left out before anything is counted; the first one stays.",
    "Lines of invoices that begin with C are cancellations: they are counted apart and belong to net revenue.",
    "Amounts are exact decimals; nothing is rounded before it is shown.",
)
RANGES_PER_WORKER: Final = 2
_SESSION_TTL: Final = 15.0
_PATIENCE: Final = 60.0
_LINES_PER_SECOND: Final = 5_000
"""How many lines a slow machine gets through; a step may take that long without a sign of life."""


class SupervisorError(Exception):
    """The job cannot be finished, or what came out contradicts itself; the message says why."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, and how it is cut."""

    path: Path
    digest: str
    lines: int
    shares: int
    """Into how many shares the search for duplicates is cut."""
    ranges: tuple[RowRange, ...]
    accident: int
    """Which of the shares gets the rehearsed accident."""

    @classmethod
    def of(cls, path: Path, workers: int, accident: int) -> Job:
        """A job over a file, cut for a number of workers. Every line is read, so that a malformed one shows now.

        Raises:
            OSError: The file cannot be read.
            orders.MalformedOrders: It is not of the shape that `orders` wants.
        """
        lines = sum(1 for _ in orders.read_orders(path))
        ranges = tuple(split(lines, RANGES_PER_WORKER * workers))
        return cls(path.resolve(), orders.content_digest(path), lines, workers, ranges, accident % workers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out."""

    report: WeeklyReport
    summary: Summary
    whole: Aggregate
    parts: tuple[tuple[RowRange, Aggregate], ...]


class Supervisor:
    """The supervisor of one job on one board.

    Args:
        board: The board.
        job: The job.
        workers: Names of the workers that will come.
        kill: Ends the process of a worker with SIGKILL.
        check: Raises if a worker's process has failed; called again and again.
        say: Is told who did what.
    """

    def __init__(
        self,
        board: Board,
        job: Job,
        workers: Sequence[str],
        *,
        kill: Callable[[str], None],
        check: Callable[[], None],
        say: Callable[[str, str], None],
    ) -> None:
        self._board = board
        self._job = job
        self._workers = frozenset(workers)
        self._kill = kill
        self._check = check
        self._say = say
        self._plan = Plan(str(job.path), job.digest, job.lines, Step.DEDUPE)
        self._plan_version = 0
        self._about: list[Entry] = []
        self._here: set[str] = set()
        self._killed: set[str] = set()
        self._done: set[str] = set()
        self._closed = False
        patience = _PATIENCE + job.lines / _LINES_PER_SECOND
        self._follow = Follow(board, [""], waiting_for="workers", patience=patience)

    def run(self, start_workers: Callable[[], None], endpoint: Endpoint | None) -> Outcome:
        """Have the job done.

        Raises:
            SupervisorError: What came out contradicts itself.
            Overdue: Nothing happened for too long.
            slateboard.SlateError: The board cannot be used.
        """
        with self._board.session(ttl=_SESSION_TTL, purpose="demo supervisor") as session, self._follow:
            self._write_goal()
            start_workers()
            self._wait("all workers to be here", lambda: self._here == self._workers)
            tasks = board_keys.tasks_of(self._job.shares, self._job.ranges, self._job.accident)
            for step, pieces in tasks.items():
                session.task = step.value
                self._see_through(step, pieces)
            session.task = "final report"
            outcome = self._conclude(endpoint)
            self._wait("its own last words", lambda: self._closed)
        return outcome

    def _write_goal(self) -> None:
        ops = [
            Put(board_keys.GOAL, GOAL, absent=True),
            Put(board_keys.CONSTRAINTS, list(CONSTRAINTS), absent=True),
        ]
        self._board.commit(ops, note="what the team is for")
        self._about = list(self._board.get_many([board_keys.GOAL, board_keys.CONSTRAINTS]).values())

    def _see_through(self, step: Step, tasks: Sequence[Task]) -> None:
        """Open a step and wait until all of its tasks are done."""
        if tasks:
            names = {task.name for task in tasks}
            self._open(step, tasks)
            self._wait(f"step {step.value}", lambda: names <= self._done)

    def _open(self, step: Step, tasks: Sequence[Task]) -> None:
        """Write a step into the plan and its tasks beside it, in one commit: nobody sees the one without the other."""
        first = step is Step.AGGREGATE and len(self._job.ranges) > 1
        meet = min(len(self._workers - self._killed), len(tasks)) if first else 0
        ops = [
            self._plan_op(replace(self._plan, step=step, meet=meet)),
            *(
                Put(
                    f"{board_keys.TASKS}{task.name}", task.to_json(), absent=True, derived_from=[Source(op=0)]
                )
                for task in tasks
            ),
        ]
        if step is Step.AGGREGATE:
            ops.append(Put(board_keys.REPORT, {"parts": {}}, absent=True))
        self._commit_plan(ops)

    def _plan_op(self, plan: Plan) -> Put:
        self._plan = plan
        new = self._plan_version == 0
        return Put(
            board_keys.PLAN,
            plan.to_json(),
            expect=None if new else self._plan_version,
            absent=new,
            derived_from=self._about,
        )

    def _commit_plan(self, ops: Sequence[Put]) -> None:
        """Commit ops the first of which is the plan."""
        self._plan_version = self._board.commit(ops, note=f"step {self._plan.step.value}").results[0].version

    def _wait(self, what: str, over: Callable[[], bool]) -> None:
        """Follow the board until something is so."""
        self._follow.waiting_for = what
        if over():
            return
        for batch in self._follow:
            self._take_in(batch)
            self._check()
            if over():
                return

    def _take_in(self, batch: Batch) -> None:
        for who, said in tell(batch):
            self._say(who, said)
        for entry in batch.entries:
            if entry.key.startswith(board_keys.TEAM):
                self._here.add(entry.key.removeprefix(board_keys.TEAM))
            elif entry.key.startswith(board_keys.CLAIMS) and Claim.from_json(entry.value).done:
                self._done.add(entry.key.removeprefix(board_keys.CLAIMS))
            elif entry.key.startswith(board_keys.PROGRESS):
                self._strike(str(entry.value["worker"]), entry.key.removeprefix(board_keys.PROGRESS))
            elif entry.key == board_keys.PLAN:
                self._closed = Plan.from_json(entry.value).step is Step.DONE

    def _strike(self, worker: str, task: str) -> None:
        """The rehearsed accident: the worker that said it is half-way is killed there."""
        if worker not in self._workers or self._killed:
            raise SupervisorError(f"{worker!r:.40} reports an accident that was not planned")
        self._killed.add(worker)
        self._kill(worker)
        self._say(SUPERVISOR, f"kills {worker} (SIGKILL) in the middle of {task_said(task)}")

    def _conclude(self, endpoint: Endpoint | None) -> Outcome:
        """Check what the workers made of the report, word it, sign it, and close the plan."""
        weekly = self._board.get(board_keys.REPORT, None)
        given = {} if weekly is None else weekly.value["parts"]
        keys = {board_keys.partial_key(rows): rows for rows in self._job.ranges}
        partials = self._board.get_many(keys) if keys else {}
        for key, rows in keys.items():
            if key not in partials or given.get(rows.label) != partials[key].value:
                raise SupervisorError(
                    f"{board_keys.REPORT} does not say of rows {rows.label} what {key} says"
                )
        if len(given) != len(keys):
            raise SupervisorError(f"{board_keys.REPORT} has {len(given)} parts, there are {len(keys)} ranges")
        parts = tuple((rows, from_json(given[rows.label])) for rows in self._job.ranges)
        whole = merge_all(part for _, part in parts)
        report = weekly_report(whole, source=self._job.path.name, lines=self._job.lines)
        known = self._board.get(board_keys.DUPLICATES)
        if report.duplicates != len(known.value):
            raise SupervisorError(
                f"{report.duplicates} duplicates were left out, but {len(known.value)} are known"
            )
        summary = summarise(report, endpoint)
        value = {"report": to_json(whole), "summary": summary.text, "note": summary.note}
        read = [] if weekly is None else [weekly]
        self._board.put(
            board_keys.FINAL,
            value,
            absent=True,
            unchanged=read,
            derived_from=[*read, *partials.values()] or [known],
        )
        self._commit_plan([self._plan_op(replace(self._plan, step=Step.DONE, meet=0))])
        return Outcome(report, summary, whole, parts)
