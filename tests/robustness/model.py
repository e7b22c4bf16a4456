"""The history: what each client asked, when, and what it was told; and what the server's own log says happened.

A line of JSON an operation, so that a run can be kept, read and judged by other programs.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Operation:
    """One call of one client. Times are monotonic nanoseconds of this machine, comparable between its processes."""

    process: str
    kind: str
    """read, write, append, transfer, increment, snapshot."""
    key: str
    call: int
    end: int = 0
    outcome: str = "unknown"
    """`ok`, `failed` (it did not happen), `unknown`."""
    value: Any = None
    """Written, or read."""
    revision: int = 0
    """Of the commit, or that was read at."""
    version: int = 0
    request_id: str = ""
    token: int = 0
    """The fencing token that was claimed."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Logged:
    """A commit in the server's log: revision, request and the versions it made, by key."""

    revision: int
    request_id: str
    principal: str
    time: float
    keys: dict[str, int]


@dataclass(frozen=True)
class Tenure:
    """A lock as it was held, by the server's clock."""

    lock_id: str
    token: int
    path: str
    shared: bool
    granted: float
    ended: float | None


class Recorder:
    """Writes operations to a file, each at once: what a process that is killed had asked must be known."""

    def __init__(self, path: Path, process: str) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._process = process

    def begin(self, kind: str, key: str, **fields: Any) -> Operation:
        """Note a call that is about to be made."""
        operation = Operation(self._process, kind, key, time.monotonic_ns(), **fields)
        self._line(operation)
        return operation

    def end(self, operation: Operation, outcome: str, **fields: Any) -> None:
        """Note how it went."""
        operation.end = time.monotonic_ns()
        operation.outcome = outcome
        for name, value in fields.items():
            setattr(operation, name, value)
        self._line(operation)

    def _line(self, operation: Operation) -> None:
        self._file.write(json.dumps(asdict(operation)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(paths: Iterable[Path]) -> list[Operation]:
    """Read operations, each in its last state, in the order of their calls."""
    found: dict[tuple[str, int], Operation] = {}
    for path in paths:
        for operation in _lines(path):
            found[operation.process, operation.call] = operation
    return sorted(found.values(), key=lambda one: one.call)


def _lines(path: Path) -> Iterator[Operation]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Operation(**json.loads(line))
        except ValueError:
            continue  # the last line of a process that was killed
