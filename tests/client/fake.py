"""A server of a few hundred lines that misbehaves on demand: commits, reads and watches of boards held in a dict.

It is no model of the real server (that has tests of its own): it knows just enough to show what the client makes of
lost replies, refused calls, cut streams and split batches, each at an exact place.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2

from slateboard import _methods
from slateboard.v1 import (
    admin_service_pb2,
    board_service_pb2,
    commit_pb2,
    entry_service_pb2,
    error_reason_pb2,
    lock_service_pb2,
    session_service_pb2,
    types_pb2,
)

CODES = {
    "ABORTED": grpc.StatusCode.ABORTED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "RESOURCE_EXHAUSTED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "FAILED_PRECONDITION": grpc.StatusCode.FAILED_PRECONDITION,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}


class Fault:
    """What happens to one call of a method instead of, or after, being answered."""

    def __init__(
        self, code: str = "UNAVAILABLE", reason: str = "", *, after: bool = False, **metadata: str
    ) -> None:
        self.code = code
        self.reason = reason
        self.after = after
        """Do the work, then lose the reply."""
        self.metadata = metadata
        self.retry_after: float | None = None


def status(
    code: str,
    reason: str,
    metadata: dict[str, str] | None = None,
    *,
    conflict: commit_pb2.ConflictDetail | None = None,
    retry_after: float | None = None,
    domain: str = "slateboard",
) -> bytes:
    """The trailer of an error, as the API documents it."""
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata or {})]
    if conflict is not None:
        details.append(conflict)
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(timedelta(seconds=retry_after))
        details.append(retry)
    made = status_pb2.Status(code=code_pb2.Code.Value(code), message=reason)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        made.details.append(packed)
    return made.SerializeToString()


class Board:
    """One board's state."""

    def __init__(self) -> None:
        self.revision = 0
        self.oldest = 1
        self.incarnation = "life-1"
        self.versions: dict[tuple[str, str], list[types_pb2.Entry]] = defaultdict(list)
        self.log: list[entry_service_pb2.WatchBatch] = []
        self.answers: dict[str, entry_service_pb2.CommitResponse] = {}
        self.requests: list[entry_service_pb2.CommitRequest] = []

    def header(self, revision: int | None = None) -> types_pb2.ResponseHeader:
        return types_pb2.ResponseHeader(
            revision=self.revision if revision is None else revision,
            oldest_revision=self.oldest,
            incarnation=self.incarnation,
            replica_id="fake",
        )

    def at(self, place: tuple[str, str], revision: int | None = None) -> types_pb2.Entry | None:
        for entry in reversed(self.versions.get(place, [])):
            if revision is None or entry.mod_revision <= revision:
                return None if entry.tombstone else entry
        return None

    def below(self, region: str, prefix: str, revision: int | None = None) -> list[types_pb2.Entry]:
        places = sorted(
            place for place in self.versions if place[0] == region and place[1].startswith(prefix)
        )
        return [entry for place in places if (entry := self.at(place, revision)) is not None]


class FakeServer:
    """The fake over gRPC, on a loopback port of its own."""

    def __init__(self) -> None:
        self.boards: dict[str, Board] = defaultdict(Board)
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.calls: dict[str, int] = defaultdict(int)
        self.metadata: list[dict[str, str]] = []
        self.hanging: set[str] = set()
        """Methods that do not answer until the caller gives up."""
        self.split_batches = False
        self.cut_after_part = 0
        """Cut the next stream after the first part of a split batch, this many times."""
        self.get_bytes = 3_500_000
        """What a Get may answer before it names the rest as unread."""
        self.before_commit: Callable[[entry_service_pb2.CommitRequest], None] | None = None
        self.locks = LockTable(self)
        self.sessions: dict[str, session_service_pb2.Session] = {}
        self.dead_sessions: set[str] = set()
        self.heartbeat = threading.Event()
        """Set by every heartbeat that was answered."""
        self.changed = threading.Condition(threading.RLock())
        self.watching = 0
        self._generation = 0
        self._leave = 0
        self.port = 0
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, credentials: grpc.ServerCredentials | None = None) -> FakeServer:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(24, thread_name_prefix="fake"),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        for service in (_Entries(self), _Boards(self), _Sessions(self), _Locks(self), _Admin(self)):
            self._server.add_generic_rpc_handlers((_handlers(service),))
        address = f"127.0.0.1:{self.port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()
        return self

    def stop(self) -> None:
        with self.changed:
            self._generation += 1
            self.hanging.clear()
            self.changed.notify_all()
        if self._server is not None:
            self._server.stop(None).wait(10)
            self._server = None

    def fail(self, method: str, *faults: Fault) -> None:
        """The next calls of a method meet these faults, one each."""
        self.faults[method] += faults

    def cut_watches(self) -> None:
        """Ends every open watch with UNAVAILABLE."""
        with self.changed:
            self._generation += 1
            self.changed.notify_all()

    def send_going_away(self) -> None:
        """Tells every open watch to go elsewhere."""
        with self.changed:
            self._leave += 1
            self.changed.notify_all()

    def wait_for_watchers(self, count: int, timeout: float = 10) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.watching == count, timeout), self.watching

    def put(self, board: str, key: str, value: bytes, content_type: str = "application/json") -> int:
        """Writes past the wire, as somebody else would."""
        content = types_pb2.Content(value=value, content_type=content_type)
        op = commit_pb2.Op(put=commit_pb2.PutOp(key=types_pb2.KeyRef(key=key), content=content))
        with self.changed:
            return self.apply(self.boards[board], [op], "peer").header.revision

    def remove(self, board: str, key: str) -> int:
        op = commit_pb2.Op(delete=commit_pb2.DeleteOp(key=types_pb2.KeyRef(key=key)))
        with self.changed:
            return self.apply(self.boards[board], [op], "peer").header.revision

    def apply(
        self, board: Board, ops: list[commit_pb2.Op], principal: str
    ) -> entry_service_pb2.CommitResponse:
        board.revision += 1
        reply = entry_service_pb2.CommitResponse(header=board.header(), commit_id=f"c-{board.revision}")
        batch = entry_service_pb2.WatchBatch(revision=board.revision, principal=principal)
        batch.commit_time.FromSeconds(1_700_000_000 + board.revision)
        reply.commit_time.CopyFrom(batch.commit_time)
        for index, op in enumerate(ops):
            region, key = _place(op, board.revision, index)
            versions = board.versions[region, key]
            entry = types_pb2.Entry(
                region=region, key=key, version=len(versions) + 1, mod_revision=board.revision
            )
            entry.etag = f"e{entry.version}"
            entry.commit_time.CopyFrom(batch.commit_time)
            if op.WhichOneof("kind") == "delete":
                entry.tombstone = types_pb2.TOMBSTONE_DELETED
            else:
                source = op.put.content if op.WhichOneof("kind") == "put" else op.append.content
                entry.content.CopyFrom(source)
                entry.content.trust = types_pb2.TRUST_AGENT
                entry.content.provenance.principal = principal
                entry.size = len(entry.content.value)
                before = board.at((region, key))
                entry.create_revision = board.revision if before is None else before.create_revision
            versions.append(entry)
            batch.entries.append(entry)
            reply.results.add(
                region=region,
                key=key,
                version=entry.version,
                etag=entry.etag,
                trust=types_pb2.TRUST_AGENT,
                changed=True,
                create_revision=entry.create_revision,
            )
        board.log.append(batch)
        self.changed.notify_all()
        return reply

    def meet(self, method: str, context: grpc.ServicerContext) -> Fault | None:
        """What every call does first: counts, hangs, and meets its fault. Returns one that strikes afterwards."""
        with self.changed:
            self.calls[method] += 1
            self.metadata.append({str(key): str(value) for key, value in context.invocation_metadata()})
            if method in self.hanging:
                context.add_callback(self._wake)
                self.changed.wait_for(lambda: method not in self.hanging or not context.is_active(), 30)
            fault = self.faults[method].pop(0) if self.faults[method] else None
        if fault is not None and not fault.after:
            self.strike(fault, context)
        return fault

    def strike(self, fault: Fault, context: grpc.ServicerContext) -> None:
        if fault.reason:
            trailer = status(fault.code, fault.reason, fault.metadata, retry_after=fault.retry_after)
            context.set_trailing_metadata((("grpc-status-details-bin", trailer),))
        context.abort(CODES[fault.code], fault.reason or "the connection was lost")

    def refuse(
        self,
        context: grpc.ServicerContext,
        code: str,
        reason: str,
        conflict: commit_pb2.ConflictDetail | None = None,
        **metadata: str,
    ) -> None:
        trailer = status(code, reason, metadata, conflict=conflict, retry_after=0.001 if conflict else None)
        context.set_trailing_metadata((("grpc-status-details-bin", trailer),))
        context.abort(CODES[code], reason.lower())

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()


class LockTable:
    """Locks of all boards, whose leases end by the clock. Overlap is equality, or a prefix that covers the other."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self.locks: dict[str, lock_service_pb2.Lock] = {}
        self.by_request: dict[str, str] = {}
        self.ends: dict[str, float] = {}
        """Monotonic seconds at which a lease ends."""
        self.asked: list[lock_service_pb2.AcquireRequest] = []
        self.renewals: list[lock_service_pb2.RenewRequest] = []
        self.released: list[lock_service_pb2.ReleaseRequest] = []
        self.renewed = threading.Event()
        """Set by every renewal that was answered."""
        self.sequence = 0

    def held(self) -> list[lock_service_pb2.Lock]:
        with self._server.changed:
            self._expire()
            return [lock for lock in self.locks.values() if lock.state == lock_service_pb2.LOCK_STATE_HELD]

    def end(self, lock_id: str, state: lock_service_pb2.LockState.ValueType) -> None:
        """Ends a lock as the server would: by force, by its lease ..."""
        with self._server.changed:
            self._change(self.locks[lock_id], state)

    def grant(
        self, *paths: str, ttl: float = 30, lock_id: str = "", principal: str = "me"
    ) -> lock_service_pb2.Lock:
        """A lock that somebody holds."""
        with self._server.changed:
            self.sequence += 1
            lock = lock_service_pb2.Lock(
                lock_id=lock_id or f"l-{len(self.locks) + 1}",
                fencing_token=self.sequence,
                state=lock_service_pb2.LOCK_STATE_HELD,
                mode=lock_service_pb2.LOCK_MODE_EXCLUSIVE,
                scopes=[lock_service_pb2.LockScope(region="shared", path=path) for path in paths],
                principal=principal,
                sequence=self.sequence,
            )
            lock.ttl.FromTimedelta(timedelta(seconds=ttl))
            lock.ttl_left.CopyFrom(lock.ttl)
            self.locks[lock.lock_id] = lock
            self.ends[lock.lock_id] = time.monotonic() + ttl
            self._server.changed.notify_all()
            return lock

    def judge(self, request: entry_service_pb2.CommitRequest, context: Any) -> None:
        """Whether a commit claims what is locked, and nothing that is not held."""
        self._expire()
        for claim in request.claims:
            reason = self.reason(claim)
            if reason:
                self._server.refuse(context, "FAILED_PRECONDITION", reason, lock_id=claim.lock_id)
        claimed = {claim.lock_id for claim in request.claims}
        for op in request.ops:
            for lock in self.held():
                if lock.lock_id not in claimed and _overlap([_place(op)[1]], _paths(lock.scopes)):
                    self._server.refuse(context, "ABORTED", "KEY_LOCKED", lock_id=lock.lock_id)

    def reason(self, claim: commit_pb2.Claim) -> str:
        """Why a claim does not hold; empty where it does."""
        self._expire()
        lock = self.locks.get(claim.lock_id)
        if lock is None or lock.fencing_token != claim.fencing_token:
            return "LOCK_LOST"
        return {
            lock_service_pb2.LOCK_STATE_HELD: "",
            lock_service_pb2.LOCK_STATE_EXPIRED: "LOCK_EXPIRED",
            lock_service_pb2.LOCK_STATE_REVOKED: "LOCK_REVOKED",
        }.get(lock.state, "LOCK_LOST")

    def blockers(self, scopes: Any) -> list[lock_service_pb2.Lock]:
        return [lock for lock in self.held() if _overlap(_paths(scopes), _paths(lock.scopes))]

    def _expire(self) -> None:
        now = time.monotonic()
        for lock in self.locks.values():
            if lock.state == lock_service_pb2.LOCK_STATE_HELD and self.ends[lock.lock_id] <= now:
                self._change(lock, lock_service_pb2.LOCK_STATE_EXPIRED)

    def _change(self, lock: lock_service_pb2.Lock, state: lock_service_pb2.LockState.ValueType) -> None:
        self.sequence += 1
        lock.state = state
        lock.sequence = self.sequence
        self._server.changed.notify_all()


def _paths(scopes: Any) -> list[str]:
    return [scope.path for scope in scopes]


def _overlap(some: list[str], others: list[str]) -> bool:
    return any(
        one == other
        or (one.endswith("/") and other.startswith(one))
        or (other.endswith("/") and one.startswith(other))
        for one in some
        for other in others
    )


def _place(op: commit_pb2.Op, revision: int = 0, index: int = 0) -> tuple[str, str]:
    if op.WhichOneof("kind") == "append":
        prefix = op.append.prefix
        return prefix.region or "shared", f"{prefix.prefix}{revision:019d}-{index:03d}"
    key = op.put.key if op.WhichOneof("kind") == "put" else op.delete.key
    return key.region or "shared", key.key


def _handlers(service: Any) -> grpc.GenericRpcHandler:
    """A service's methods by the client's own table; what the class lacks answers UNIMPLEMENTED."""
    found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in vars(_methods).values():
        if isinstance(method, _methods.Method):
            _, name, call = method.path.split("/")
            if name == service.service and hasattr(service, call):
                make = (
                    grpc.unary_stream_rpc_method_handler
                    if call.startswith("Watch")
                    else grpc.unary_unary_rpc_method_handler
                )
                found[call] = make(
                    getattr(service, call), method.request.FromString, method.reply.SerializeToString
                )
    return grpc.method_handlers_generic_handler(service.service, found)


class _Entries:
    service = "slateboard.v1.EntryService"

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802 -- the API's names
        self.server.meet("Get", context)
        board = self.server.boards[request.board]
        with self.server.changed:
            self._check_life(request.incarnation, board, context)
            exact = request.consistency.mode == types_pb2.CONSISTENCY_MODE_EXACT
            revision = request.consistency.revision if exact else None
            reply = entry_service_pb2.GetResponse(header=board.header(revision))
            left = self.server.get_bytes
            for key in request.keys:
                entry = board.at((key.region or "shared", key.key), revision)
                if entry is None:
                    reply.absent.append(key)
                elif left < entry.size and reply.entries:
                    reply.unread.append(key)
                else:
                    left -= entry.size
                    reply.entries.append(entry)
            return reply

    def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("List", context)
        board = self.server.boards[request.board]
        with self.server.changed:
            pinned, _, start = request.page_token.partition(":")
            exact = request.consistency.mode == types_pb2.CONSISTENCY_MODE_EXACT
            revision = int(pinned or (request.consistency.revision if exact else board.revision))
            found = board.below(request.prefix.region or "shared", request.prefix.prefix, revision)
            first = int(start or 0)
            page = found[first : first + request.page_size]
            more = first + len(page) < len(found)
            return entry_service_pb2.ListResponse(
                header=board.header(revision),
                entries=page,
                next_page_token=f"{revision}:{first + len(page)}" if more else "",
            )

    def ListVersions(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("ListVersions", context)
        board = self.server.boards[request.board]
        versions = board.versions[request.key.region or "shared", request.key.key]
        return entry_service_pb2.ListVersionsResponse(header=board.header(), versions=reversed(versions))

    def Commit(self, request: Any, context: Any) -> Any:  # noqa: N802
        fault = self.server.meet("Commit", context)
        if self.server.before_commit is not None:
            self.server.before_commit(request)
        board = self.server.boards[request.board]
        with self.server.changed:
            board.requests.append(request)
            if request.session_token in self.server.dead_sessions:
                self.server.refuse(context, "FAILED_PRECONDITION", "SESSION_DEAD")
            self._check_life(request.incarnation, board, context)
            reply = board.answers.get(request.request_id)
            if reply is not None:
                again = entry_service_pb2.CommitResponse()
                again.CopyFrom(reply)
                again.replayed = True
                reply = again
            else:
                self.server.locks.judge(request, context)
                self._judge(request, board, context)
                reply = self.server.apply(board, list(request.ops), "me")
                board.answers[request.request_id] = reply
        if fault is not None:
            self.server.strike(fault, context)
        return reply

    def _check_life(self, incarnation: str, board: Board, context: Any) -> None:
        if incarnation and incarnation != board.incarnation:
            self.server.refuse(context, "OUT_OF_RANGE", "BOARD_REINCARNATED", incarnation=board.incarnation)

    def _judge(self, request: Any, board: Board, context: Any) -> None:
        detail = commit_pb2.ConflictDetail(conflict_id=f"x-{board.revision}", revision=board.revision)
        for index, op in enumerate(request.ops):
            if op.WhichOneof("kind") == "append":
                continue
            condition = op.put.precondition if op.WhichOneof("kind") == "put" else op.delete.precondition
            place = _place(op)
            entry = board.at(place)
            version = entry.version if entry is not None else 0
            kind = condition.WhichOneof("condition")
            if (
                (kind == "version_equals" and version != condition.version_equals)
                or (kind == "must_not_exist" and version)
                or (kind == "must_exist" and not version)
                or (kind == "etag_equals" and (entry is None or entry.etag != condition.etag_equals))
            ):
                self._violate(detail, "VERSION_CONFLICT", index, False, place, entry)
        for index, guard in enumerate(request.guards):
            if guard.WhichOneof("kind") == "version":
                place = (guard.version.key.region or "shared", guard.version.key.key)
                entry = board.at(place)
                if (entry.version if entry is not None else 0) != guard.version.version:
                    self._violate(detail, "GUARD_CHANGED", index, True, place, entry)
            else:
                prefix = guard.prefix
                for (region, key), versions in board.versions.items():
                    inside = region == (prefix.prefix.region or "shared") and key.startswith(
                        prefix.prefix.prefix
                    )
                    if inside and versions[-1].mod_revision > prefix.unchanged_since_revision:
                        self._violate(detail, "GUARD_CHANGED", index, True, (region, key), versions[-1])
                        break
        if detail.violations:
            reasons = {violation.reason for violation in detail.violations}
            reason = "VERSION_CONFLICT" if "VERSION_CONFLICT" in reasons else "GUARD_CHANGED"
            self.server.refuse(context, "ABORTED", reason, detail, conflict_id=detail.conflict_id)

    @staticmethod
    def _violate(
        detail: commit_pb2.ConflictDetail,
        reason: str,
        index: int,
        guard: bool,
        place: tuple[str, str],
        entry: types_pb2.Entry | None,
    ) -> None:
        detail.violations.add(
            reason=reason,
            index=index,
            guard=guard,
            region=place[0],
            key=place[1],
            current_version=entry.version if entry is not None else 0,
            current_principal=entry.content.provenance.principal if entry is not None else "",
        )

    def GetCommit(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("GetCommit", context)
        board = self.server.boards[request.board]
        with self.server.changed:
            reply = board.answers.get(request.request_id)
        if reply is None:
            self.server.refuse(context, "NOT_FOUND", "COMMIT_NOT_FOUND")
            raise AssertionError
        info = commit_pb2.CommitInfo(
            revision=reply.header.revision,
            commit_id=reply.commit_id,
            request_id=request.request_id,
            commit_time=reply.commit_time,
            results=reply.results,
        )
        return entry_service_pb2.GetCommitResponse(header=board.header(), commit=info)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        server = self.server
        server.meet("Watch", context)
        context.add_callback(server._wake)
        board = server.boards[request.board]
        with server.changed:
            server.watching += 1
            server.changed.notify_all()
            generation, leave = server._generation, server._leave
        try:
            yield from self._follow(request, board, context, generation, leave)
        finally:
            with server.changed:
                server.watching -= 1
                server.changed.notify_all()

    def _follow(self, request: Any, board: Board, context: Any, generation: int, leave: int) -> Iterator[Any]:
        server = self.server
        prefixes = [(item.region or "shared", item.prefix) for item in request.prefixes]
        self._check_life(request.incarnation, board, context)
        position = request.after_revision if request.HasField("after_revision") else board.revision
        if request.snapshot:
            with server.changed:
                position = board.revision
                entries = [entry for place in prefixes for entry in board.below(*place)]
            half = (len(entries) + 1) // 2
            for number, page in enumerate((entries[:half], entries[half:])):
                yield entry_service_pb2.WatchResponse(
                    header=board.header(position),
                    snapshot=entry_service_pb2.WatchSnapshot(entries=page, last=number == 1),
                )
                if number == 0 and server.cut_after_part:
                    server.cut_after_part -= 1
                    context.abort(grpc.StatusCode.UNAVAILABLE, "cut in the middle")
        elif position + 1 < board.oldest:
            server.refuse(context, "OUT_OF_RANGE", "COMPACTED", oldest_revision=str(board.oldest))
        while True:
            with server.changed:
                while (
                    board.revision <= position
                    and (server._generation, server._leave) == (generation, leave)
                    and context.is_active()
                ):
                    server.changed.wait(30)
                fresh = [batch for batch in board.log if batch.revision > position]
            if not context.is_active():
                return
            if server._generation != generation:
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            if server._leave != leave:
                leave = server._leave
                yield entry_service_pb2.WatchResponse(
                    header=board.header(position), going_away=entry_service_pb2.WatchGoingAway(reason="drain")
                )
            for batch in fresh:
                seen = entry_service_pb2.WatchBatch()
                seen.CopyFrom(batch)
                del seen.entries[:]
                seen.entries.extend(
                    entry
                    for entry in batch.entries
                    if any(
                        entry.region == region and entry.key.startswith(prefix) for region, prefix in prefixes
                    )
                )
                yield from self._parts(board, seen, context)
                position = batch.revision

    def _parts(self, board: Board, batch: Any, context: Any) -> Iterator[Any]:
        header = board.header(batch.revision)
        if not batch.entries:
            yield entry_service_pb2.WatchResponse(header=header, progress=entry_service_pb2.WatchProgress())
            return
        if self.server.split_batches and len(batch.entries) > 1:
            part = entry_service_pb2.WatchBatch()
            part.CopyFrom(batch)
            part.continues = True
            half = len(batch.entries) // 2
            del part.entries[half:]
            del batch.entries[:half]
            yield entry_service_pb2.WatchResponse(header=header, batch=part)
            if self.server.cut_after_part:
                self.server.cut_after_part -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut in the middle")
        yield entry_service_pb2.WatchResponse(header=header, batch=batch)


class _Boards:
    service = "slateboard.v1.BoardService"

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def GetBoard(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("GetBoard", context)
        board = self.server.boards[request.board]
        return board_service_pb2.GetBoardResponse(
            header=board.header(),
            board=board_service_pb2.Board(
                name=request.board, revision=board.revision, incarnation=board.incarnation
            ),
        )


class _Sessions:
    service = "slateboard.v1.SessionService"

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def StartSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("StartSession", context)
        token = f"secret-{len(self.server.sessions) + 1}"
        session = session_service_pb2.Session(
            session_id=f"s-{len(self.server.sessions) + 1}",
            ttl=request.ttl,
            task=request.task,
            purpose=request.purpose,
            state=session_service_pb2.SESSION_STATE_ACTIVE,
        )
        self.server.sessions[token] = session
        header = self.server.boards[request.board].header()
        return session_service_pb2.StartSessionResponse(header=header, session=session, session_token=token)

    def Heartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("Heartbeat", context)
        if request.session_token in self.server.dead_sessions:
            self.server.refuse(context, "FAILED_PRECONDITION", "SESSION_DEAD")
        session = self.server.sessions[request.session_token]
        if request.HasField("task"):
            session.task = request.task
        self.server.heartbeat.set()
        header = self.server.boards[request.board].header()
        return session_service_pb2.HeartbeatResponse(header=header, session=session)

    def EndSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("EndSession", context)
        session = self.server.sessions[request.session_token]
        session.state = session_service_pb2.SESSION_STATE_ENDED
        header = self.server.boards[request.board].header()
        return session_service_pb2.EndSessionResponse(header=header, session=session)


class _Locks:
    service = "slateboard.v1.LockService"

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def Acquire(self, request: Any, context: Any) -> Any:  # noqa: N802
        locks = self.server.locks
        context.add_callback(self.server._wake)
        with self.server.changed:
            locks.asked.append(request)
        fault = self.server.meet("Acquire", context)
        until = time.monotonic() + request.wait_timeout.ToTimedelta().total_seconds()
        with self.server.changed:
            lock = locks.locks.get(locks.by_request.get(request.request_id, ""))
            replayed = lock is not None
            while lock is None:
                blockers = locks.blockers(request.scopes)
                if not blockers:
                    paths = _paths(request.scopes)
                    lock = locks.grant(*paths, ttl=request.ttl.ToTimedelta().total_seconds())
                    lock.purpose, lock.holder = request.purpose, request.holder
                    lock.mode = request.mode or lock.mode
                    locks.by_request[request.request_id] = lock.lock_id
                elif (left := until - time.monotonic()) <= 0 or not context.is_active():
                    self.server.refuse(
                        context,
                        "ABORTED",
                        "LOCK_WAIT_TIMEOUT",
                        holder=blockers[0].principal,
                        lock_id=blockers[0].lock_id,
                        mode="exclusive",
                        waiting="2",
                        retry_after_ms="250",
                    )
                else:
                    ends = min(locks.ends[blocker.lock_id] for blocker in blockers)
                    self.server.changed.wait(max(0.001, min(left, ends - time.monotonic())))
            reply = lock_service_pb2.AcquireResponse(
                header=self.server.boards[request.board].header(), lock=lock, replayed=replayed
            )
        if fault is not None:
            self.server.strike(fault, context)
        return reply

    def Renew(self, request: Any, context: Any) -> Any:  # noqa: N802
        locks = self.server.locks
        self.server.meet("Renew", context)
        with self.server.changed:
            locks.renewals.append(request)
            reply = lock_service_pb2.RenewResponse(header=self.server.boards[request.board].header())
            for claim in request.claims:
                renewal = reply.renewals.add(lock_id=claim.lock_id)
                if reason := locks.reason(claim):
                    renewal.reason = error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}")
                    renewal.message = f"lock {claim.lock_id} is over"
                else:
                    ttl = locks.locks[claim.lock_id].ttl
                    locks.ends[claim.lock_id] = time.monotonic() + ttl.ToTimedelta().total_seconds()
                    renewal.ttl_left.CopyFrom(ttl)
        locks.renewed.set()
        return reply

    def Release(self, request: Any, context: Any) -> Any:  # noqa: N802
        locks = self.server.locks
        fault = self.server.meet("Release", context)
        with self.server.changed:
            repeated = any(one.request_id == request.request_id for one in locks.released)
            locks.released.append(request)
            lock = locks.locks.get(request.claim.lock_id)
            if lock is None or lock.fencing_token != request.claim.fencing_token:
                self.server.refuse(context, "FAILED_PRECONDITION", "LOCK_LOST", lock_id=request.claim.lock_id)
                raise AssertionError
            locks.held()
            outcome = {
                lock_service_pb2.LOCK_STATE_EXPIRED: lock_service_pb2.RELEASE_OUTCOME_EXPIRED,
                lock_service_pb2.LOCK_STATE_REVOKED: lock_service_pb2.RELEASE_OUTCOME_REVOKED,
                lock_service_pb2.LOCK_STATE_TRANSFERRED: lock_service_pb2.RELEASE_OUTCOME_TRANSFERRED,
            }.get(lock.state, lock_service_pb2.RELEASE_OUTCOME_RELEASED)
            if lock.state == lock_service_pb2.LOCK_STATE_RELEASED and not repeated:
                outcome = lock_service_pb2.RELEASE_OUTCOME_ALREADY_RELEASED
            if lock.state == lock_service_pb2.LOCK_STATE_HELD:
                locks.end(lock.lock_id, lock_service_pb2.LOCK_STATE_RELEASED)
            header = self.server.boards[request.board].header()
        if fault is not None:
            self.server.strike(fault, context)
        return lock_service_pb2.ReleaseResponse(header=header, outcome=outcome)

    def Transfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        locks = self.server.locks
        self.server.meet("Transfer", context)
        with self.server.changed:
            old = locks.locks[request.claim.lock_id]
            locks.end(old.lock_id, lock_service_pb2.LOCK_STATE_TRANSFERRED)
            ttl = old.ttl.ToTimedelta().total_seconds()
            lock = locks.grant(*_paths(old.scopes), ttl=ttl, principal=request.to_principal)
            header = self.server.boards[request.board].header()
        return lock_service_pb2.TransferResponse(header=header, lock=lock)

    def GetLock(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("GetLock", context)
        lock = self.server.locks.locks.get(request.lock_id)
        if lock is None:
            self.server.refuse(context, "FAILED_PRECONDITION", "LOCK_LOST", lock_id=request.lock_id)
        return lock_service_pb2.GetLockResponse(header=self.server.boards[request.board].header(), lock=lock)

    def WatchLocks(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        server, locks = self.server, self.server.locks
        server.meet("WatchLocks", context)
        context.add_callback(server._wake)
        after = request.after_sequence
        with server.changed:
            server.watching += 1
            server.changed.notify_all()
            generation = server._generation
        try:
            while context.is_active():
                with server.changed:
                    fresh = sorted(
                        (lock for lock in locks.locks.values() if lock.sequence > after),
                        key=lambda lock: lock.sequence,
                    )
                    if not fresh and server._generation == generation:
                        server.changed.wait(30)
                        continue
                if server._generation != generation:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                after = fresh[-1].sequence
                yield lock_service_pb2.WatchLocksResponse(
                    header=server.boards[request.board].header(), locks=fresh, sequence=after
                )
        finally:
            with server.changed:
                server.watching -= 1
                server.changed.notify_all()


class _Admin:
    service = "slateboard.v1.AdminService"

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def WhoAmI(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.server.meet("WhoAmI", context)
        return admin_service_pb2.WhoAmIResponse(
            header=types_pb2.ResponseHeader(),
            principal=admin_service_pb2.Principal(id="ann", role=admin_service_pb2.ROLE_WORKER),
        )
