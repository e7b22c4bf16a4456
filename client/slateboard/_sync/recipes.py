# Made from _async/recipes.py by tools/async_to_sync.py; do not edit.
"""What teams build of commits and locks again and again: a task queue, an inbox, leader election, a barrier.

Nothing here that a program could not do by itself with the public API; the server knows of none of it.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import random
from types import TracebackType
from typing import Any, TypeVar

from slateboard import _shim_sync as shim
from slateboard._entries import Entry
from slateboard._filters import Filter
from slateboard._locks import LockInfo
from slateboard._ops import Delete, Put, Unchanged
from slateboard._sync.board import Board
from slateboard._sync.lock import Lock
from slateboard._values import Duration, Value, seconds
from slateboard.errors import Cancelled, Conflict, Invalid, LockHeld, NotFound, SlateError

Self = TypeVar("Self", bound="ClaimedTask")

OPEN = "open"
DONE = "done"
CANCELLED = "cancelled"
DEAD = "dead"
_PATIENCE = 1.0
"""Seconds between looks, where somebody waits for what no lock announces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as it stands on the board."""

    id: str
    key: str
    payload: Any
    state: str
    """`open` (waiting, or being worked on), `done`, `cancelled`, or `dead`: it failed too often."""
    priority: int = 0
    attempts: int = 0
    """How often somebody began it."""
    max_attempts: int = 5
    not_before: float = 0.0
    """Seconds since the epoch, by the clocks of those who claim."""
    result: Any = None
    error: str = ""
    """What its last failure said."""
    entry: Entry = field(repr=False)


class TaskQueue:
    """Tasks below a prefix; one of many agents gets each, and finishes it once.

    A claim is a lock on the task's key: an agent that dies loses it after `ttl`, and the task goes to another one, with
    `attempts` risen. What a late agent still says of it is refused by the fencing token. A task that failed, or was
    left, `max_attempts` times is dead: it stays on the board for somebody to look at.
    """

    def __init__(self, board: Board, prefix: str, *, ttl: Duration = 30.0) -> None:
        if not prefix.endswith("/"):
            raise Invalid(
                f"tasks lie below a prefix ending with '/', not {prefix!r}", metadata={"field": "prefix"}
            )
        self._board = board
        self._prefix = prefix
        self._ttl = seconds(ttl, "ttl")

    def add(
        self,
        payload: Value,
        *,
        id: str | None = None,  # noqa: A002 -- what it is
        priority: int = 0,
        max_attempts: int = 5,
        not_before: float = 0.0,
    ) -> Task:
        """Adds a task: those of higher priority first, then in the order of adding. Adding an id twice adds it once.

        Raises:
            Conflict: the id was used for another payload.
        """
        name = id or uuid.uuid4().hex
        value = {
            "payload": payload,
            "priority": priority,
            "attempts": 0,
            "max_attempts": max_attempts,
            "not_before": not_before,
        }
        try:
            entry = self._board.put(self._prefix + name, value, absent=True, labels={"state": OPEN})
        except Conflict:
            entry = self._board.get(self._prefix + name)
            if entry.value.get("payload") != payload:
                raise
        return _task(entry, self._prefix)

    def get(self, id: str) -> Task:  # noqa: A002 -- what it is
        """A task by its id.

        Raises:
            NotFound: there is none.
        """
        return _task(self._board.get(self._prefix + id), self._prefix)

    def list(self, state: str | None = OPEN) -> Sequence[Task]:
        """The tasks in a state, or all, in the order in which they are to be done."""
        filters = [] if state is None else [Filter("label.state", "=", state)]
        entries = self._board.list(self._prefix, filters=filters, page_size=1_000).all()
        tasks = [_task(entry, self._prefix) for entry in entries if not entry.key.endswith(_CANCEL)]
        return sorted(tasks, key=lambda task: (-task.priority, task.entry.create_revision))

    def cancel(self, id: str, reason: str = "") -> bool:  # noqa: A002 -- what it is
        """Cancels a task, also one that is being worked on; whether it will not be done (any more)."""
        key = self._prefix + id
        mark = Put(key + _CANCEL, reason, absent=True)
        with contextlib.suppress(Conflict):  # cancelled before
            self._board.commit([mark], [])
        try:
            with self._board.lock(key, ttl=2, wait=0, purpose="cancel") as held:
                task = _task(held.get(key), self._prefix)
                if task.state == OPEN:
                    _write(held, task, CANCELLED, error=reason)
                return task.state in {OPEN, CANCELLED, DEAD}
        except LockHeld:
            return True  # whoever works on it hears of it at the latest when it wants to be done

    def claim_next(self, *, wait: Duration = 0.0, purpose: str = "") -> ClaimedTask | None:
        """The next task that is due and nobody works on, claimed; None if there is none within `wait` seconds.

        A context manager: `with queue.claim_next() as task:`. Its body calls `task.done(result)` or `task.fail(why)`;
        a body that raises fails the task, one that says nothing puts it back.
        """
        until = shim.monotonic() + seconds(wait, "wait")
        while True:
            claimed = self._try_all(purpose)
            if claimed is not None or shim.monotonic() >= until:
                return claimed
            # Jittered: many agents look.
            shim.sleep(min(_PATIENCE, max(0.01, until - shim.monotonic())) * (0.5 + random() / 2))  # noqa: S311 -- spreads, guards nothing

    def _try_all(self, purpose: str) -> ClaimedTask | None:
        locked = {scope.path for lock in self._board.locks(self._prefix).all() for scope in lock.scopes}
        for task in self.list():
            if task.key in locked or task.not_before > time.time():
                continue
            lock = self._board.lock(task.key, ttl=self._ttl, wait=0, purpose=purpose or f"task {task.id}")
            try:
                lock.__enter__()
            except LockHeld:
                continue  # somebody else was faster
            claimed = self._begin(task, lock)
            if claimed is not None:
                return claimed
            lock.release()
        return None

    def _begin(self, seen: Task, lock: Lock) -> ClaimedTask | None:
        try:
            task = _task(lock.get(seen.key), self._prefix)
            if task.state != OPEN or task.not_before > time.time():
                return None
            if lock.get(task.key + _CANCEL, None) is not None:
                _write(lock, task, CANCELLED)
                return None
            if task.attempts >= task.max_attempts:
                _write(lock, task, DEAD, error=task.error or "it was begun and left too often")
                return None
            begun = _write(lock, task, OPEN, attempts=task.attempts + 1)
        except (NotFound, Conflict):
            return None
        except SlateError:
            lock.release()
            raise
        return ClaimedTask(lock, _task(begun, self._prefix))


class ClaimedTask:
    """A task that this agent works on. `lock` is the claim: write what belongs to the task through it."""

    def __init__(self, lock: Lock, task: Task) -> None:
        self.lock = lock
        self.task = task
        self._settled = False

    @property
    def payload(self) -> Any:
        """What is to be done."""
        return self.task.payload

    def cancelled(self) -> bool:
        """Whether somebody cancelled it: worth asking in long work."""
        return self.lock.get(self.task.key + _CANCEL, None) is not None

    def done(self, result: Value = None) -> None:
        """It is done, with a result: exactly once, and only while the claim holds.

        Raises:
            LockLost: the claim was lost; somebody else may do it, or has.
            Cancelled: it was cancelled meanwhile, and counts as such.
        """
        try:
            _write(self.lock, self.task, DONE, result=result, not_cancelled=True)
        except Conflict:
            if not self.cancelled():
                raise
            _write(self.lock, self.task, CANCELLED)
            self._settled = True
            raise Cancelled(f"task {self.task.id} was cancelled") from None
        self._settled = True

    def fail(self, error: str, *, retry_after: Duration = 1.0) -> None:
        """It failed: somebody tries again after a while, or it is dead, if this was its last attempt."""
        dead = self.task.attempts >= self.task.max_attempts
        _write(
            self.lock,
            self.task,
            DEAD if dead else OPEN,
            error=error,
            not_before=0.0 if dead else time.time() + seconds(retry_after, "retry_after"),
        )
        self._settled = True

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not self._settled and isinstance(error, Exception):
                self.fail(f"{type(error).__name__}: {error}"[:500])
        except SlateError:
            pass  # the claim is lost, or nobody answers: it goes to another agent by itself
        finally:
            self.lock.__exit__(kind, error, trace)


def _write(
    lock: Lock,
    task: Task,
    state: str,
    *,
    result: Value = None,
    error: str = "",
    attempts: int | None = None,
    not_before: float | None = None,
    not_cancelled: bool = False,
) -> Entry:
    value = {
        "payload": task.payload,
        "priority": task.priority,
        "attempts": task.attempts if attempts is None else attempts,
        "max_attempts": task.max_attempts,
        "not_before": task.not_before if not_before is None else not_before,
        "result": result,
        "error": error or task.error,
        "token": lock.token,
    }
    unchanged = [Unchanged(key=task.key + _CANCEL, version=0)] if not_cancelled else []
    return lock.put(task.key, value, expect=task.entry.version, labels={"state": state}, unchanged=unchanged)


def _task(entry: Entry, prefix: str) -> Task:
    value = entry.value if isinstance(entry.value, dict) else {}
    return Task(
        id=entry.key.removeprefix(prefix),
        key=entry.key,
        payload=value.get("payload"),
        state=entry.labels.get("state", OPEN),
        priority=int(value.get("priority") or 0),
        attempts=int(value.get("attempts") or 0),
        max_attempts=int(value.get("max_attempts") or 5),
        not_before=float(value.get("not_before") or 0.0),
        result=value.get("result"),
        error=str(value.get("error") or ""),
        entry=entry,
    )


_CANCEL = ".cancel"


class Inbox:
    """Messages below a prefix, in order, each handed out until it is acknowledged; the cursor lies in one's own region."""

    def __init__(self, board: Board, prefix: str) -> None:
        if not prefix.endswith("/"):
            raise Invalid(
                f"an inbox is a prefix ending with '/', not {prefix!r}", metadata={"field": "prefix"}
            )
        self._board = board
        self._prefix = prefix
        self._cursor_key = f"cursors/{prefix}at"

    def send(self, message: Value) -> Entry:
        """Adds a message; anybody with the right to append there can."""
        return self._board.append(self._prefix, message)

    def unread(self) -> Sequence[Entry]:
        """The messages after the last acknowledged one, oldest first."""
        after = self._cursor()
        entries = self._board.list(self._prefix, page_size=1_000).all()
        return [entry for entry in entries if entry.create_revision > after]

    def receive(self, *, wait: Duration = 0.0) -> Entry | None:
        """The oldest message that is not acknowledged; None if none comes within `wait` seconds."""
        until = shim.monotonic() + seconds(wait, "wait")
        while True:
            found = self.unread()
            if found:
                return found[0]
            if shim.monotonic() >= until:
                return None
            shim.sleep(min(_PATIENCE / 2, max(0.01, until - shim.monotonic())))

    def acknowledge(self, message: Entry) -> None:
        """Everything up to this message is dealt with; it is not handed out again, also after a restart."""
        self._board.private.update(self._cursor_key, lambda at: max(int(at), message.create_revision), 0)

    def _cursor(self) -> int:
        found = self._board.private.get(self._cursor_key, None)
        return 0 if found is None else int(found.value)


class Election:
    """One leader at a time, for as long as it lives: a lock on a key, which says who it is."""

    def __init__(self, board: Board, key: str, *, ttl: Duration = 15.0) -> None:
        self._board = board
        self._key = key
        self._ttl = ttl

    def campaign(self, *, wait: Duration | None = None, purpose: str = "lead") -> Lock:
        """Waits to be the leader: a context manager, inside which one is; write as the leader through what it gives.

        Raises:
            LockHeld: not within `wait` (None: an hour).
        """
        return self._board.lock(self._key, ttl=self._ttl, wait=wait, purpose=purpose)

    def leader(self) -> LockInfo | None:
        """Who leads now; None if nobody does."""
        found = self._board.locks(self._key).all()
        return next((lock for lock in found if any(scope.path == self._key for scope in lock.scopes)), None)


class Barrier:
    """A meeting point for so many parties, once: nobody goes on before all have arrived."""

    def __init__(self, board: Board, prefix: str, parties: int) -> None:
        if not prefix.endswith("/") or parties < 1:
            raise Invalid(
                "a barrier is a prefix ending with '/', for one party or more", metadata={"field": "prefix"}
            )
        self._board = board
        self._prefix = prefix
        self._parties = parties

    def arrive(self, name: str) -> int:
        """Says that a party is there; how many are. Arriving twice counts once."""
        with contextlib.suppress(Conflict):  # arrived before
            self._board.put(self._prefix + name, {"arrived": True}, absent=True)
        return len(self._board.list(self._prefix, page_size=1_000).all())

    def wait(self, name: str, *, timeout: Duration = 60.0) -> bool:
        """Arrives, and waits until all have; whether they have, within `timeout` seconds."""
        until = shim.monotonic() + seconds(timeout, "timeout")
        there = self.arrive(name)
        while there < self._parties:
            left = until - shim.monotonic()
            if left <= 0:
                return False
            shim.sleep(min(_PATIENCE / 4, left))
            there = len(self._board.list(self._prefix, page_size=1_000).all())
        return True

    def reset(self) -> None:
        """Forgets who arrived, so that it can be used again; all parties must have gone on."""
        entries = self._board.list(self._prefix, page_size=1_000).all()
        for start in range(0, len(entries), 100):
            self._board.commit(
                [Delete(entry.key, expect=entry) for entry in entries[start : start + 100]], []
            )
