"""What happens on the board, told in one line an event. Pure: a batch of changes in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agents_demo import board_keys
from agents_demo.board_keys import Claim, Plan, Step
from agents_demo.report import printable
from agents_demo.rows import RowRange, describe
from slateboard import Batch, Entry

SUPERVISOR: Final = "supervisor"


def short(principal: str) -> str:
    """A principal's name within the team: `worker-1` for `worker-1.3f9a2c`."""
    return principal.partition(".")[0]


def task_said(name: str) -> str:
    """A task's name for people: `separate rows 0 to 1,527`."""
    step, _, item = name.partition("/")
    try:
        return f"{step} {describe([RowRange.parse(item)])}"
    except ValueError:
        return f"{step} {item}"


def tell(batch: Batch) -> Iterator[tuple[str, str]]:
    """Who did what, for each change of a commit that is worth a line.

    Raises:
        ValueError: An entry is not of the shape that `board_keys` promises.
    """
    who = short(batch.principal)
    entries = {entry.key: entry for entry in batch.entries if entry.present}
    opened = [key for key in entries if key.startswith(board_keys.TASKS)]
    for key, entry in entries.items():
        room = f"{key.partition('/')[0]}/"
        if key == board_keys.GOAL:
            yield who, f"writes the goal: {printable(str(entry.value))}"
        elif key == board_keys.PLAN:
            yield who, _plan_said(Plan.from_json(entry.value), opened)
        elif room == board_keys.CLAIMS:
            yield from ((who, said) for said in _claim_said(entry, entries))
        elif room == board_keys.TEAM:
            yield who, "is here"
        elif room == board_keys.PROGRESS:
            task = task_said(key.removeprefix(board_keys.PROGRESS))
            yield who, f"is half-way through {task}: {entry.value['rows']:,} rows seen"
        elif key.startswith(board_keys.BARRIER):
            yield who, f"has read {board_keys.REPORT}, and waits until others have too before it changes it"
        elif key == board_keys.REPORT and entry.version > 1:
            parts = len(entry.value["parts"])
            held = f"{parts} {'range' if parts == 1 else 'ranges'} of rows"
            yield who, f"adds to {board_keys.REPORT}: version {entry.version} has {held}"
        elif key == board_keys.FINAL:
            yield who, f"writes {key}, trusted as {entry.trust.name}: no more than what it was made from"


def _plan_said(plan: Plan, opened: list[str]) -> str:
    if plan.step is Step.DONE:
        return "closes the plan: nothing is left to do"
    tasks = f"{len(opened)} {'task' if len(opened) == 1 else 'tasks'}"
    return f"opens step {plan.step.value}: {tasks} on the board"


def _claim_said(entry: Entry, together: dict[str, Entry]) -> Iterator[str]:
    """A claim, and what was published with it."""
    claim = Claim.from_json(entry.value)
    name = entry.key.removeprefix(board_keys.CLAIMS)
    if not claim.done and claim.taken_from:
        yield f"takes over {task_said(name)} from {claim.taken_from}, whose lock has ended (version {entry.version})"
    elif not claim.done:
        yield f"claims {task_said(name)}"
    elif claim.conflicts:
        met = "a conflict" if claim.conflicts == 1 else f"{claim.conflicts} conflicts"
        outcome = "merged both changes" if claim.merged else "began again from theirs"
        yield f"had met {met} on {board_keys.REPORT} there: somebody else was faster, so it {outcome}"
    elif not name.startswith(Step.AGGREGATE.value):  # what that adds to the report has a line already
        yield f"finishes {task_said(name)}{_results_said(together)}"


def _results_said(together: dict[str, Entry]) -> str:
    for key, entry in together.items():
        if key.startswith("dataset/duplicates/"):
            return f": {len(entry.value):,} duplicates"
        if key.startswith("dataset/cancellations/"):
            return f": {len(entry.value):,} cancellations"
    return ""
