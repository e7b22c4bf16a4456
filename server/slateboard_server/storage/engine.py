"""What the SQL store needs of a database: transactions, and errors told apart by what to do about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.values import BoardId
from slateboard_server.storage.batch import Dialect, Query, Rows
from slateboard_server.storage.reading import Tx

T = TypeVar("T")


class WriteTx(Tx, Protocol):
    """A write transaction: can also run a round of queries and a round of statements."""

    def gather(self, queries: Mapping[str, Query]) -> dict[str, Rows]:
        """Run queries in order; one round trip where a network lies in between."""
        ...

    def execute_all(self, statements: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
        """Run each statement with each of its rows; one round trip where a network lies in between."""
        ...

    def wake(self, board_id: BoardId) -> None:
        """Tell other servers, once the transaction commits, that a board changed; a hint."""
        ...


def no_failpoint(_: str) -> None:
    """Do nothing where a test would put a fault in."""


class StatementFailed(Exception):
    """A statement failed and the transaction was rolled back: nothing of it happened, others may be unaffected."""


class OutcomeLost(Exception):
    """COMMIT was sent and its answer lost: the transaction happened or not. The engine is usable again."""

    def __init__(self, why: SlateboardError | None = None, *, passing: bool = True) -> None:
        """Keep what to tell the caller where it did not happen; `passing`: another attempt may go better."""
        super().__init__()
        self.why = why
        self.passing = passing


class Engine(Protocol):
    """A database. Functions get an open transaction and must not keep it."""

    @property
    def dialect(self) -> Dialect:
        """Return the database's words."""
        ...

    async def start(self) -> None:
        """Open the database and see that it can be trusted with data."""
        ...

    async def close(self) -> None:
        """Finish and close."""
        ...

    def describe(self) -> str:
        """Say what it is, with its version."""
        ...

    def warnings(self) -> Sequence[str]:
        """Say what about the installation should be mended."""
        ...

    def listen(self, on_wake: Callable[[BoardId], None]) -> None:
        """Have `on_wake` called, from any thread, when another server says that a board changed."""
        ...

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run reads in one snapshot. SlateboardError STORAGE_DOWN, STORAGE_CORRUPT."""
        ...

    async def write(self, work: Callable[[WriteTx], T], timeout: float) -> T:
        """Run a write transaction and commit it, durable on return; rolled back if `work` raises.

        StatementFailed, OutcomeLost; SlateboardError STORAGE_DOWN and STORAGE_CORRUPT where nothing else will do.
        """
        ...
