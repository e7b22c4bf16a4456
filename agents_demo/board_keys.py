"""What stands where on the board, and the shape of it. Pure: builds keys and values, reads values back with suspicion.

| key | says | written by | how |
|---|---|---|---|
| `goal`, `constraints` | what the team is for, and what it must keep to | supervisor | created once |
| `plan/current` | the file, how it is cut, the step that is open | supervisor | version-checked |
| `team/<worker>` | a worker is here | worker | created once |
| `tasks/<step>/<id>` | a piece of work; the id is `part-<k>`, `all` or a row range | supervisor | created, one commit a step |
| `claims/<step>/<id>` | who works on it, in which session, and whether it is done | worker | locked by whoever works on it |
| `progress/<step>/<id>` | how far a worker has come | worker | created |
| `dataset/duplicates/part-<k>`, `.../all` | rows that repeat earlier ones: a share, and all | worker | created, with the claim |
| `dataset/cancellations/<range>` | rows on cancellation invoices | worker | created, with the claim |
| `partial/<range>` | the figures of a row range | worker | created, guarded by the claim |
| `barrier/report/<worker>` | a worker has read the report and is about to change it | worker | created |
| `report/weekly` | all partial figures, each under its own name | several workers at once | `update`, merged |
| `report/final` | the whole, and the summary | supervisor | created, derived from the above |

Each partial has a member of its own in `report/weekly`, so that changes of several workers merge by themselves and a
change made twice is one. Sums under shared members would not do: two workers who both make a 0 a 3 seem to agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Self

from agents_demo.aggregate import Json
from agents_demo.rows import RowRange, describe

GOAL: Final = "goal"
CONSTRAINTS: Final = "constraints"
PLAN: Final = "plan/current"
TEAM: Final = "team/"
TASKS: Final = "tasks/"
CLAIMS: Final = "claims/"
PROGRESS: Final = "progress/"
BARRIER: Final = "barrier/report/"
DUPLICATES: Final = "dataset/duplicates/all"
REPORT: Final = "report/weekly"
FINAL: Final = "report/final"
WORKERS_WRITE: Final = (TEAM, CLAIMS, PROGRESS, "barrier/", "dataset/", "partial/", REPORT)
"""Subtrees and keys that a worker may write. Goal, plan and tasks are not among them."""


class Step(Enum):
    """What is done in which order; a step opens when the one before it is complete."""

    DEDUPE = "dedupe"
    """Find exact duplicates, a share each."""
    JOIN = "join"
    """Join the shares."""
    SEPARATE = "separate"
    """Find the cancellations of a row range."""
    AGGREGATE = "aggregate"
    """Add up a row range, and merge it into the report."""
    DONE = "done"
    """Nothing is left to do: workers leave."""


def share_key(part: int) -> str:
    """Where a share of the duplicates goes."""
    return f"dataset/duplicates/part-{part}"


def cancellations_key(rows: RowRange) -> str:
    """Where the cancellations of a row range go."""
    return f"dataset/cancellations/{rows.label}"


def partial_key(rows: RowRange) -> str:
    """Where the figures of a row range go."""
    return f"partial/{rows.label}"


def rows_said(key: str, lines: int) -> str:
    """The source rows that the entry under a key speaks of, for people; empty where it speaks of none."""
    last = key.rsplit("/", 1)[-1]
    if last.startswith("part-"):
        return f"all {lines:,}, a share"
    if last == "all" or key in {REPORT, FINAL}:
        return f"all {lines:,}"
    try:
        return describe([RowRange.parse(last)])
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True)
class Plan:
    """`plan/current`."""

    file: str
    """Path of the CSV file, as all processes of this machine see it."""
    digest: str
    """SHA-256 of its content: who sees another file must not work on it."""
    lines: int
    step: Step
    meet: int = 0
    """How many workers change the report for the first time together."""

    def to_json(self) -> dict[str, Json]:
        """As it goes onto the board."""
        return {
            "file": self.file,
            "digest": self.digest,
            "lines": self.lines,
            "step": self.step.value,
            "meet": self.meet,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """What `to_json` wrote.

        Raises:
            ValueError: Not such a value.
        """
        match value:
            case {
                "file": str(file),
                "digest": str(digest),
                "lines": int(lines),
                "step": str(step),
                "meet": int(meet),
            }:
                return cls(file, digest, lines, Step(step), meet)
            case _:
                raise ValueError(f"{value!r:.60} is not a plan")


@dataclass(frozen=True, slots=True)
class Task:
    """`tasks/<step>/<id>`: a piece of work that one worker does at a time."""

    step: Step
    rows: RowRange | None = None
    """The range to work on; None: all rows."""
    part: int = 0
    parts: int = 1
    """Which share of all rows: part 0 to parts - 1."""
    accident: bool = False
    """A rehearsed accident: whoever claims it first stops half-way and waits to be killed."""

    @property
    def name(self) -> str:
        """`<step>/<id>`, which follows `tasks/` and `claims/` alike."""
        if self.rows is not None:
            return f"{self.step.value}/{self.rows.label}"
        return f"{self.step.value}/{f'part-{self.part}' if self.step is Step.DEDUPE else 'all'}"

    @property
    def result_key(self) -> str:
        """Where its result goes."""
        if self.rows is not None:
            return partial_key(self.rows) if self.step is Step.AGGREGATE else cancellations_key(self.rows)
        return share_key(self.part) if self.step is Step.DEDUPE else DUPLICATES

    def to_json(self) -> dict[str, Json]:
        """As it goes onto the board."""
        return {
            "step": self.step.value,
            "rows": None if self.rows is None else self.rows.label,
            "part": self.part,
            "parts": self.parts,
            "accident": self.accident,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """What `to_json` wrote.

        Raises:
            ValueError: Not such a value.
        """
        match value:
            case {
                "step": str(step),
                "rows": str() | None as rows,
                "part": int(part),
                "parts": int(parts),
                "accident": bool(accident),
            }:
                return cls(Step(step), None if rows is None else RowRange.parse(rows), part, parts, accident)
            case _:
                raise ValueError(f"{value!r:.60} is not a task")


@dataclass(frozen=True, slots=True)
class Claim:
    """`claims/<step>/<id>`: whose task it is."""

    worker: str
    session: str
    """The session it was claimed in, which owns the lock on the claim."""
    done: bool = False
    taken_from: str = ""
    """The worker who had claimed it before, where it was taken over."""
    conflicts: int = 0
    """How often others changed the report between reading and writing it."""
    merged: int = 0
    """Those of them whose change was merged with this one."""

    def to_json(self) -> dict[str, Json]:
        """As it goes onto the board."""
        return {
            "worker": self.worker,
            "session": self.session,
            "state": "done" if self.done else "working",
            "taken_from": self.taken_from,
            "conflicts": self.conflicts,
            "merged": self.merged,
        }

    def finished(self, conflicts: int = 0, merged: int = 0) -> Claim:
        """The same, done."""
        return replace(self, done=True, conflicts=conflicts, merged=merged)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """What `to_json` wrote.

        Raises:
            ValueError: Not such a value.
        """
        match value:
            case {
                "worker": str(worker),
                "session": str(session),
                "state": "working" | "done" as state,
                "taken_from": str(taken_from),
                "conflicts": int(conflicts),
                "merged": int(merged),
            }:
                return cls(worker, session, state == "done", taken_from, conflicts, merged)
            case _:
                raise ValueError(f"{value!r:.60} is not a claim")


def tasks_of(shares: int, ranges: Sequence[RowRange], accident: int) -> dict[Step, list[Task]]:
    """The tasks of every step, in the order of the steps.

    Args:
        shares: Into how many shares the search for duplicates is cut.
        ranges: How the rows are cut for the rest.
        accident: Which of the shares gets the rehearsed accident.
    """
    return {
        Step.DEDUPE: [
            Task(Step.DEDUPE, part=part, parts=shares, accident=part == accident) for part in range(shares)
        ],
        Step.JOIN: [Task(Step.JOIN, parts=shares)],
        Step.SEPARATE: [Task(Step.SEPARATE, rows) for rows in ranges],
        Step.AGGREGATE: [Task(Step.AGGREGATE, rows) for rows in ranges],
    }
