"""Waiting for the board, never longer than one can be patient."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

import slateboard
from slateboard import Batch, Board, View

TICK: Final = 1.0
"""Seconds after which a wait in which nothing happens comes up for air: time to look who is still alive."""
_HANG: Final = 15.0
"""Seconds past the patience after which a server that does not even say that nothing happens is given up."""
_RECONNECT_FOR: Final = 5.0


class Overdue(Exception):
    """What was waited for did not happen; the message says what, and for how long."""


class Follow:
    """What changes below some prefixes, batch by batch; a batch without entries at least once a `TICK`.

    A context manager. It can be iterated over several times: each goes on where the one before it stopped.

    Args:
        board: The board.
        prefixes: What to watch.
        waiting_for: What for, for the error; change it as the work goes on.
        patience: Seconds without any change after which Overdue is raised.
        snapshot: Begin with what is there already.
        view: How much of each entry.
    """

    def __init__(
        self,
        board: Board,
        prefixes: Sequence[str],
        *,
        waiting_for: str,
        patience: float,
        snapshot: bool = False,
        view: View = View.FULL,
    ) -> None:
        self.waiting_for = waiting_for
        self._patience = patience
        self._watch: Final = board.watch(
            prefixes,
            snapshot=snapshot,
            progress=True,
            progress_interval=TICK,
            view=view,
            reconnect_for=_RECONNECT_FOR,
        )
        self._changed = time.monotonic()
        self._watchdog: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._watch.__enter__()
        self._changed = time.monotonic()
        self._guard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watch.close()

    def __iter__(self) -> Iterator[Batch]:
        """The batches from here on.

        Raises:
            Overdue: Nothing changed for as long as the patience lasts.
            slateboard.SlateError: The board cannot be watched any more.
        """
        for batch in self._watch:
            if batch.entries or isinstance(batch, slateboard.SnapshotPage):
                self._changed = time.monotonic()
            elif time.monotonic() - self._changed > self._patience:
                raise Overdue(self._said("nothing changed on the board"))
            self._guard()
            yield batch
        raise Overdue(self._said("the server said nothing"))

    def _said(self, what: str) -> str:
        return f"waited for {self.waiting_for}, but {what} for {time.monotonic() - self._changed:.0f} s"

    def _guard(self) -> None:
        """(Re)start the timer that ends a read which nothing else would end."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = threading.Timer(self._patience + _HANG, self._watch.close)
        self._watchdog.daemon = True
        self._watchdog.start()
