"""EntryService's Watch.

A commit that many watchers see alike is encoded once: what was sent last is kept for the next of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, cast

import grpc

from slateboard.v1 import entry_service_pb2 as pb
from slateboard_server.domain.names import SHARED
from slateboard_server.grpc_api.calls import Calls, Stream
from slateboard_server.grpc_api.read_reads import read_watch
from slateboard_server.grpc_api.shape import check_no_unknown
from slateboard_server.grpc_api.times import set_time
from slateboard_server.grpc_api.wire import Headers, delimited, tag
from slateboard_server.grpc_api.write_entries import EntryWriter, View
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.model import (
    BatchEvent,
    Caller,
    GoingAwayEvent,
    ProgressEvent,
    SnapshotEvent,
    WatchEvent,
)
from slateboard_server.services.scope import Scope
from slateboard_server.services.watches import Watches

_BATCH: Final = tag(2)
_SNAPSHOT: Final = tag(3)
_BATCH_ENTRIES: Final = tag(5)
_SNAPSHOT_ENTRIES: Final = tag(1)
_KEPT_BYTES: Final = 4 << 20
_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class _Kept:
    """A message that was sent to somebody who sees all that is shared, and nothing else in it."""

    event: BatchEvent
    message: bytes

    def says(self, event: BatchEvent) -> bool:
        """Tell whether it is also what another such watcher is to hear."""
        kept = self.event
        return kept is event or (
            kept.stamp == event.stamp
            and kept.complete is event.complete
            and kept.withheld == event.withheld
            and len(kept.records) == len(event.records)
            and all(one is other for one, other in zip(kept.records, event.records, strict=True))
        )


class WatchServicer:
    """Converts, follows `Watches`, converts back."""

    def __init__(
        self, directory: BoardDirectory, watches: Watches, headers: Headers, progress_interval: float
    ) -> None:
        """Serve watches of the boards of `directory`; `progress_interval` (s) holds where a watch names none."""
        self._directory = directory
        self._watches = watches
        self._headers = headers
        self._progress_interval = progress_interval
        self._kept: OrderedDict[tuple[int, View], _Kept] = OrderedDict()
        """By the first record, which the value keeps alive: its id is nobody else's meanwhile."""
        self._kept_bytes = 0

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the method, wrapped."""
        return {"Watch": calls.stream("Watch", pb.WatchRequest, self._watch)}

    async def _watch(self, stream: Stream, request: pb.WatchRequest) -> None:
        check_no_unknown(request)
        view, spec = read_watch(request, self._progress_interval)
        board = request.board
        caller = stream.caller
        sees_all = Scope(caller).sees_all_shared

        async def still_allowed() -> Caller:
            nonlocal caller, sees_all
            caller = await stream.still_allowed()
            sees_all = Scope(caller).sees_all_shared
            return caller

        # Closed here and now, whichever way it ends: a follower must not linger until it is collected.
        events = self._watches.watch(caller, board, spec, still_allowed)
        async with aclosing(cast("AsyncGenerator[WatchEvent, None]", events)):
            async for event in events:
                if isinstance(event, BatchEvent):
                    kept = self._kept.get((id(event.records[0]), view)) if sees_all else None
                    if kept is not None and kept.says(event):
                        message = kept.message
                    else:
                        message = self._batch(event, await self._writer(board, caller), view)
                        if sees_all:
                            self._keep(event, view, message)
                    await stream.write(message)
                    if not event.complete:
                        continue
                else:
                    await stream.write(await self._encode(event, board, caller, view))
                stream.last_revision = event.stamp.revision

    async def _encode(
        self, event: SnapshotEvent | ProgressEvent | GoingAwayEvent, board: str, caller: Caller, view: View
    ) -> bytes:
        header = self._headers.field(event.stamp)
        match event:
            case SnapshotEvent():
                entries = await self._writer(board, caller)
                parts = [
                    delimited(_SNAPSHOT_ENTRIES, entries.encode(record, view)) for record in event.records
                ]
                parts.append(pb.WatchSnapshot(last=event.last).SerializeToString())
                return header + delimited(_SNAPSHOT, b"".join(parts))
            case ProgressEvent():
                return header + _PROGRESS
            case GoingAwayEvent():
                going_away = pb.WatchGoingAway(reason=event.reason)
                return header + pb.WatchResponse(going_away=going_away).SerializeToString()

    def _batch(self, event: BatchEvent, entries: EntryWriter, view: View) -> bytes:
        commit = event.commit.commit
        batch = pb.WatchBatch(
            revision=commit.revision,
            principal=commit.principal,
            session_id=commit.session_id or "",
            continues=not event.complete,
        )
        set_time(batch.commit_time, commit.commit_time)
        parts = [batch.SerializeToString()]
        for index, record in enumerate(event.records):
            withheld = index in event.withheld
            encoded = entries.encode_withheld(record) if withheld else entries.encode(record, view)
            parts.append(delimited(_BATCH_ENTRIES, encoded))
        return self._headers.field(event.stamp) + delimited(_BATCH, b"".join(parts))

    def _keep(self, event: BatchEvent, view: View, message: bytes) -> None:
        if len(message) > _KEPT_BYTES // 4 or not all(
            record.region == SHARED and not record.derivations for record in event.records
        ):
            return
        name = (id(event.records[0]), view)
        old = self._kept.pop(name, None)
        if old is not None:
            self._kept_bytes -= len(old.message)
        self._kept[name] = _Kept(event, message)
        self._kept_bytes += len(message)
        while self._kept_bytes > _KEPT_BYTES or len(self._kept) > _KEPT:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].message)

    async def _writer(self, board: str, caller: Caller) -> EntryWriter:
        handle = self._directory.peek(caller, board) or await self._directory.open(caller, board)
        return EntryWriter.of(handle, caller)


_PROGRESS: Final = pb.WatchResponse(progress=pb.WatchProgress()).SerializeToString()
