"""Where a watch stands: what to ask for next, and what a message of the stream means. Pure."""

from slateboard import _wire
from slateboard._entries import Batch, SnapshotPage
from slateboard.errors import Reincarnated
from slateboard.v1 import entry_service_pb2, types_pb2


class Position:
    """The state of one watch over all its streams.

    `revision` is the last revision all of which was handed out; None until one is known. It moves only with whole
    batches, so whatever is lost with a connection is asked for again, and what comes twice is known.
    """

    def __init__(
        self, board: str, *, after: int | None, snapshot: bool, progress: bool, incarnation: str
    ) -> None:
        self.revision = after
        self.incarnation = incarnation
        self.going_away = False
        self._board = board
        self._snapshot_due = snapshot
        self._snapshot_first = True
        self._progress = progress
        self._partial: list[types_pb2.Entry] = []
        self._partial_revision = 0

    @property
    def snapshot_due(self) -> bool:
        """Whether the next stream begins with a snapshot."""
        return self._snapshot_due

    def restart(self, incarnation: str) -> None:
        """Forgets the position: the next stream begins with a snapshot, maybe of another life of the board."""
        self.broken()
        self.revision = None
        self.incarnation = incarnation
        self._snapshot_due = True

    def broken(self) -> None:
        """The stream ended. Parts of a batch are dropped, and so is a snapshot that was not finished."""
        self._partial.clear()
        self._partial_revision = 0
        self._snapshot_first = True
        self.going_away = False

    def feed(self, message: entry_service_pb2.WatchResponse) -> Batch | None:
        """What a message gives to hand out, if anything.

        Raises:
            Reincarnated: the stream crossed into another life of the board.
        """
        header = message.header
        if self.incarnation and header.incarnation and header.incarnation != self.incarnation:
            raise Reincarnated(
                f"board {self._board!r} began a new life while it was watched",
                reason="BOARD_REINCARNATED",
                metadata={"incarnation": header.incarnation},
            )
        self.incarnation = self.incarnation or header.incarnation
        event = message.WhichOneof("event")
        if event == "batch":
            return self._batch(message.batch)
        if event == "snapshot":
            return self._snapshot(message.snapshot, header.revision)
        if event == "progress":
            return self._idle(header.revision)
        if event == "going_away":
            self.going_away = True
            self._advance(header.revision)
        return None  # an event of a newer server says nothing to this client

    def _batch(self, batch: entry_service_pb2.WatchBatch) -> Batch | None:
        if self.revision is not None and batch.revision <= self.revision:
            return None
        if batch.revision != self._partial_revision:
            self._partial.clear()
            self._partial_revision = batch.revision
        self._partial.extend(batch.entries)
        if batch.continues:
            return None
        made = Batch(
            revision=batch.revision,
            entries=_wire.entries(self._partial, self._board, self.incarnation),
            incarnation=self.incarnation,
            commit_time=_wire.moment(batch.commit_time) if batch.HasField("commit_time") else None,
            principal=batch.principal,
            session_id=batch.session_id,
        )
        self._partial.clear()
        self._partial_revision = 0
        self.revision = batch.revision
        return made

    def _snapshot(self, page: entry_service_pb2.WatchSnapshot, revision: int) -> Batch:
        first, self._snapshot_first = self._snapshot_first, False
        if page.last:
            self._snapshot_due = False
            self.revision = revision
        return SnapshotPage(
            revision=revision,
            entries=_wire.entries(page.entries, self._board, self.incarnation),
            incarnation=self.incarnation,
            first=first,
            last=page.last,
        )

    def _idle(self, revision: int) -> Batch | None:
        self._advance(revision)
        if not self._progress or self._snapshot_due:
            return None
        return Batch(revision=self.revision or 0, entries=(), incarnation=self.incarnation)

    def _advance(self, revision: int) -> None:
        """Nothing visible happened up to here. In the middle of a batch that cannot be said: it is incomplete."""
        if not self._partial_revision and not self._snapshot_due and self.revision is not None:
            self.revision = max(self.revision, revision)
