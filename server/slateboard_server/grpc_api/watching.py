"""EntryService's Watch.

A commit that many watchers see alike is encoded once: what was sent last is kept for the next of them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

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
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._kept_bytes = 0

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the method, wrapped."""
        return {"Watch": calls.stream("Watch", pb.WatchRequest, self._watch)}

    async def _watch(self, stream: Stream, request: pb.WatchRequest) -> None:
        check_no_unknown(request)
        view, spec = read_watch(request, self._progress_interval)
        caller = stream.caller

        async def still_allowed() -> Caller:
            nonlocal caller
            caller = await stream.still_allowed()
            return caller

        events = self._watches.watch(caller, request.board, spec, still_allowed)
        async for event in events:
            message = await self._encode(event, request.board, caller, view)
            await stream.write(message)
            if not isinstance(event, BatchEvent) or event.complete:
                stream.last_revision = event.stamp.revision

    async def _encode(self, event: WatchEvent, board: str, caller: Caller, view: View) -> bytes:
        header = self._headers.field(event.stamp)
        match event:
            case BatchEvent():
                return header + await self._batch(event, board, caller, view)
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
                return (
                    header
                    + pb.WatchResponse(going_away=pb.WatchGoingAway(reason=event.reason)).SerializeToString()
                )

    async def _batch(self, event: BatchEvent, board: str, caller: Caller, view: View) -> bytes:
        commit = event.commit.commit
        scope = Scope(caller)
        # Who sees all that is shared, and only that, sees the same as all others of whom that is true.
        alike = scope.sees_all_shared and all(
            record.region == SHARED and not record.derivations for record in event.records
        )
        name = (
            board,
            event.stamp.incarnation,
            commit.revision,
            view,
            tuple([record.op_index for record in event.records]),
            event.withheld,
            event.complete,
        )
        if alike and (kept := self._kept.get(name)) is not None:
            return kept
        entries = await self._writer(board, caller)
        batch = pb.WatchBatch(
            revision=commit.revision,
            principal=commit.principal,
            session_id=commit.session_id or "",
            continues=not event.complete,
        )
        set_time(batch.commit_time, commit.commit_time)
        parts = [batch.SerializeToString()]
        for index, record in enumerate(event.records):
            encoded = (
                entries.encode_withheld(record) if index in event.withheld else entries.encode(record, view)
            )
            parts.append(delimited(_BATCH_ENTRIES, encoded))
        encoded = delimited(_BATCH, b"".join(parts))
        if alike:
            self._keep(name, encoded)
        return encoded

    def _keep(self, name: tuple[object, ...], encoded: bytes) -> None:
        if len(encoded) > _KEPT_BYTES // 4:
            return
        self._kept[name] = encoded
        self._kept_bytes += len(encoded)
        while self._kept_bytes > _KEPT_BYTES or len(self._kept) > _KEPT:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    async def _writer(self, board: str, caller: Caller) -> EntryWriter:
        handle = self._directory.peek(caller, board) or await self._directory.open(caller, board)
        return EntryWriter.of(handle, caller)


_PROGRESS: Final = pb.WatchResponse(progress=pb.WatchProgress()).SerializeToString()
