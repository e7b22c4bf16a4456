"""Judges a history against the server's own log. One linear pass each: every answer carries its revision.

What a client never heard the outcome of is looked up by its request id: it may have happened, but then once, and in its
place. Each check names the promise that it finds broken.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import slateboard
from slateboard import LockMode
from tests.robustness.model import Logged, Operation, Tenure


@dataclass(frozen=True)
class Truth:
    """What the server says in the end."""

    head: int
    log: list[Logged]
    values: dict[tuple[str, int], Any]
    """By key and version."""
    tenures: list[Tenure]
    finals: dict[str, Any]


def read_truth(board: slateboard.Board) -> Truth:
    """Read log, values and locks of a board at rest."""
    pages = board.commits(page_size=500)
    log = [
        Logged(
            commit.revision,
            commit.request_id,
            commit.principal,
            commit.commit_time.timestamp() if commit.commit_time else 0.0,
            {result.key: result.version for result in commit.results if result.version},
        )
        for commit in pages
    ]
    finals = {entry.key: entry.value for entry in board.list("", page_size=500)}
    values: dict[tuple[str, int], Any] = {}
    for key in {key for commit in log for key in commit.keys}:
        for version in board.history(key, page_size=500):
            values[key, version.version] = version.value if not version.tombstone else None
    tenures = [
        Tenure(
            lock.lock_id,
            lock.token,
            lock.scopes[0].path,
            lock.mode is LockMode.SHARED,
            lock.grant_time.timestamp(),
            lock.end_time.timestamp() if lock.end_time else None,
        )
        for lock in board.locks(include_ended=True, page_size=500)
        if lock.grant_time is not None
    ]
    return Truth(max((commit.revision for commit in log), default=0), log[::-1], values, tenures, finals)


def validate(history: Sequence[Operation], truth: Truth) -> list[str]:
    """Return what is broken; nothing is what is hoped for."""
    return [
        *_one_order(truth),
        *_acknowledged_is_there(history, truth),
        *_refused_is_not(history, truth),
        *_real_time(history),
        *_reads(history, truth),
        *_appends(history, truth),
        *_bank(history, truth),
        *_mutual_exclusion(history, truth),
        *_no_lost_update(history, truth),
        *_tasks(history, truth),
        *_watched(history, truth),
    ]


def _one_order(truth: Truth) -> list[str]:
    revisions = [commit.revision for commit in truth.log]
    if revisions != list(range(1, truth.head + 1)):
        return ["revisions have gaps, or come twice"]
    last: dict[str, int] = {}
    broken = []
    for commit in truth.log:
        for key, version in commit.keys.items():
            if version != last.get(key, 0) + 1:
                broken.append(
                    f"{key}: version {version} follows {last.get(key, 0)} at revision {commit.revision}"
                )
            last[key] = version
    requests = Counter(commit.request_id for commit in truth.log if commit.request_id)
    return broken + [f"request {request} was applied {n} times" for request, n in requests.items() if n > 1]


def _acknowledged_is_there(history: Sequence[Operation], truth: Truth) -> list[str]:
    by_revision = {commit.revision: commit for commit in truth.log}
    broken = []
    for one in history:
        if one.outcome == "ok" and one.request_id:
            commit = by_revision.get(one.revision)
            if commit is None or commit.request_id != one.request_id:
                broken.append(
                    f"{one.process}: acknowledged {one.kind} of {one.key} is not at revision {one.revision}"
                )
                continue
            key = one.extra.get("key", one.key)
            if truth.values.get((key, one.version)) != one.value:
                broken.append(f"{one.process}: acknowledged {key}@{one.version} does not hold {one.value!r}")
    return broken


def _refused_is_not(history: Sequence[Operation], truth: Truth) -> list[str]:
    happened = {commit.request_id for commit in truth.log}
    return [
        f"{one.process}: {one.kind} of {one.key} was refused, and happened"
        for one in history
        if one.outcome == "failed" and one.request_id and one.request_id in happened
    ]


def _real_time(history: Sequence[Operation]) -> list[str]:
    """What ended before another began has the lower revision."""
    done = sorted((one for one in history if one.outcome == "ok" and one.revision and one.kind != "watched"),
                  key=lambda one: one.call)  # fmt: skip
    ended = sorted(done, key=lambda one: one.end)
    broken = []
    highest, place = 0, 0
    for one in done:
        while place < len(ended) and ended[place].end < one.call:
            if ended[place].kind not in {"snapshot", "list"}:
                highest = max(highest, ended[place].revision)
            place += 1
        is_read = one.kind in {"snapshot", "list"}
        if one.revision < highest or (not is_read and one.revision == highest and highest):
            broken.append(
                f"{one.process}: {one.kind} at revision {one.revision} began after {highest} was acknowledged"
            )
    return broken


def _reads(history: Sequence[Operation], truth: Truth) -> list[str]:
    """A LATEST read shows a version that was current at some moment of the call: none older than what was acknowledged."""
    acknowledged: list[tuple[int, str, int]] = sorted(
        (one.end, one.key, one.version) for one in history if one.outcome == "ok" and one.kind == "write"
    )
    broken, place = [], 0
    newest: dict[str, int] = {}
    for one in sorted(
        (one for one in history if one.kind == "read" and one.outcome == "ok"), key=lambda one: one.call
    ):
        while place < len(acknowledged) and acknowledged[place][0] < one.call:
            _, key, version = acknowledged[place]
            newest[key] = max(newest.get(key, 0), version)
            place += 1
        if one.version < newest.get(one.key, 0):
            broken.append(
                f"{one.process}: read {one.key}@{one.version} after {newest[one.key]} was acknowledged"
            )
        elif one.version and truth.values.get((one.key, one.version)) != one.value:
            broken.append(
                f"{one.process}: read {one.value!r} as {one.key}@{one.version}, which never held it"
            )
    return broken


def _appends(history: Sequence[Operation], truth: Truth) -> list[str]:
    keys = sorted(key for key, _ in truth.values if key.startswith("log/"))
    final = [truth.values[key, 1] for key in keys]
    counts = Counter(final)
    broken = [f"{value!r} was appended {count} times" for value, count in counts.items() if count > 1]
    broken += [
        f"{one.value!r} was acknowledged and is not in the log"
        for one in history
        if one.kind == "append" and one.outcome == "ok" and one.value not in counts
    ]
    for one in history:
        if one.kind == "list" and one.outcome == "ok" and one.value != final[: len(one.value)]:
            broken.append(f"{one.process}: a list was read that is no beginning of the final one")
    return broken


def _bank(history: Sequence[Operation], truth: Truth) -> list[str]:
    seen = [one.value for one in history if one.kind == "snapshot" and one.outcome == "ok"]
    seen.append([value for key, value in truth.finals.items() if key.startswith("bank/")])
    totals = {sum(values) for values in seen if values}
    return [] if len(totals) <= 1 else [f"the bank's total was {sorted(totals)}"]


def _mutual_exclusion(history: Sequence[Operation], truth: Truth) -> list[str]:
    held = sorted(
        (tenure for tenure in truth.tenures if tenure.path == "locked/"), key=lambda tenure: tenure.token
    )
    broken = []
    for earlier, later in pairwise(held):
        if earlier.ended is None or earlier.ended > later.granted:
            broken.append(f"locks with tokens {earlier.token} and {later.token} were held at the same time")
    by_token = {tenure.token: tenure for tenure in truth.tenures}
    commits = {commit.request_id: commit for commit in truth.log}
    last = 0
    for one in sorted((one for one in history if one.kind == "increment"), key=lambda one: one.revision):
        commit = commits.get(one.request_id)
        if commit is None:
            continue
        tenure = by_token.get(one.token)
        if (
            tenure is None
            or commit.time < tenure.granted
            or (tenure.ended is not None and commit.time > tenure.ended)
        ):
            broken.append(
                f"{one.process}: revision {commit.revision} was accepted with token {one.token}, not held then"
            )
    in_order = sorted(
        (commits[one.request_id].revision, one.token)
        for one in history
        if one.kind == "increment" and one.request_id in commits
    )
    for revision, token in in_order:
        if token < last:
            broken.append(f"revision {revision} was accepted with token {token} after token {last}")
        last = max(last, token)
    return broken


def _no_lost_update(history: Sequence[Operation], truth: Truth) -> list[str]:
    """Each increment that happened added one: the counter behind the lock is their number."""
    happened = {commit.request_id for commit in truth.log}
    added = sum(1 for one in history if one.kind == "increment" and one.request_id in happened)
    final = truth.finals.get("locked/counter", 0)
    if added and final != added:
        return [f"lost update: {added} increments happened, the counter is {final}"]
    return []


def _tasks(history: Sequence[Operation], truth: Truth) -> list[str]:
    done = Counter(one.key for one in history if one.kind == "done" and one.outcome == "ok")
    return [f"{key} was done {count} times" for key, count in done.items() if count > 1]


def _watched(history: Sequence[Operation], truth: Truth) -> list[str]:
    broken = []
    for process in {one.process for one in history if one.kind == "watched"}:
        seen = [one for one in history if one.process == process and one.kind == "watched"]
        revisions = [one.revision for one in seen]
        if revisions != list(range(1, len(revisions) + 1)):
            broken.append(f"{process}: revisions came as {revisions[:5]}... with gaps, twice or out of order")
            continue
        logged = {commit.revision: commit for commit in truth.log}
        broken += [
            f"{process}: revision {one.revision} showed {one.value}"
            for one in seen
            if one.value != sorted(f"{key}@{version}" for key, version in logged[one.revision].keys.items())
        ]
    return broken
