"""Raw stubs against a real server: a board of the test's own, and callers of each role."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from slateboard.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    board_service_pb2,
    board_service_pb2_grpc,
    commit_pb2,
    entry_service_pb2,
    entry_service_pb2_grpc,
    lock_service_pb2,
    lock_service_pb2_grpc,
    provenance_service_pb2_grpc,
    session_service_pb2_grpc,
    types_pb2,
)
from tests.fix_server import Server

if TYPE_CHECKING:
    from slateboard.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from slateboard.v1.board_service_pb2_grpc import BoardServiceAsyncStub
    from slateboard.v1.entry_service_pb2_grpc import EntryServiceAsyncStub
    from slateboard.v1.lock_service_pb2_grpc import LockServiceAsyncStub
    from slateboard.v1.provenance_service_pb2_grpc import ProvenanceServiceAsyncStub
    from slateboard.v1.session_service_pb2_grpc import SessionServiceAsyncStub


@dataclass
class Refusal:
    """An error as a client sees it."""

    code: grpc.StatusCode
    text: str
    reason: str
    metadata: dict[str, str]
    conflict: commit_pb2.ConflictDetail | None
    retry_ms: int | None
    details_size: int


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Read the status details of an error."""
    raw = b""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            raw = value if isinstance(value, bytes) else value.encode()
    status = status_pb2.Status.FromString(raw)
    info = error_details_pb2.ErrorInfo()
    conflict: commit_pb2.ConflictDetail | None = None
    retry: int | None = None
    for detail in status.details:
        found = _unpack(detail)
        if isinstance(found, error_details_pb2.ErrorInfo):
            info = found
        elif isinstance(found, commit_pb2.ConflictDetail):
            conflict = found
        elif isinstance(found, error_details_pb2.RetryInfo):
            retry = found.retry_delay.ToMilliseconds()
    if info.reason:
        assert info.domain == "slateboard"
    return Refusal(
        error.code(), error.details() or "", info.reason, dict(info.metadata), conflict, retry, len(raw)
    )


def _unpack(detail: AnyMessage) -> Message | None:
    for kind in (error_details_pb2.ErrorInfo, commit_pb2.ConflictDetail, error_details_pb2.RetryInfo):
        found = kind()
        if detail.Unpack(found):
            return found
    return None


async def refused(call: Awaitable[Any]) -> Refusal:
    """Run a call that must fail; returns what it says."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError(f"it was answered: {answer}")


@dataclass
class Api:
    """The stubs of one caller on one board."""

    address: str
    token: str
    board: str
    channel: grpc.aio.Channel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.aio.insecure_channel(
            self.address,
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
        )
        self.boards: BoardServiceAsyncStub = board_service_pb2_grpc.BoardServiceStub(self.channel)
        self.entries: EntryServiceAsyncStub = entry_service_pb2_grpc.EntryServiceStub(self.channel)
        self.locks: LockServiceAsyncStub = lock_service_pb2_grpc.LockServiceStub(self.channel)
        self.sessions: SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(self.channel)
        self.lineage: ProvenanceServiceAsyncStub = provenance_service_pb2_grpc.ProvenanceServiceStub(
            self.channel
        )
        self.admin: AdminServiceAsyncStub = admin_service_pb2_grpc.AdminServiceStub(self.channel)

    @property
    def auth(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    async def commit(self, *ops: commit_pb2.Op, **fields: Any) -> entry_service_pb2.CommitResponse:
        request = entry_service_pb2.CommitRequest(
            board=self.board, ops=ops, **{"request_id": str(uuid.uuid4()), **fields}
        )
        return await self.entries.Commit(request, metadata=self.auth, timeout=20)

    async def get(self, *keys: str, region: str = "", **fields: Any) -> entry_service_pb2.GetResponse:
        request = entry_service_pb2.GetRequest(
            board=self.board, keys=[types_pb2.KeyRef(region=region, key=key) for key in keys], **fields
        )
        return await self.entries.Get(request, metadata=self.auth, timeout=20)

    async def list(self, prefix: str = "", region: str = "", **fields: Any) -> entry_service_pb2.ListResponse:
        request = entry_service_pb2.ListRequest(
            board=self.board, prefix=types_pb2.PrefixRef(region=region, prefix=prefix), **fields
        )
        return await self.entries.List(request, metadata=self.auth, timeout=20)

    async def acquire(
        self, *paths: str, wait: float = 0, ttl: int = 10, **fields: Any
    ) -> lock_service_pb2.Lock:
        """Acquire a lock over keys and prefixes of the shared region; `wait` and `ttl` in seconds."""
        request = lock_service_pb2.AcquireRequest(
            board=self.board,
            scopes=[lock_service_pb2.LockScope(path=path) for path in paths],
            **{"request_id": str(uuid.uuid4()), **fields},
        )
        request.ttl.FromSeconds(ttl)
        request.wait_timeout.FromMilliseconds(round(wait * 1_000))
        return (await self.locks.Acquire(request, metadata=self.auth, timeout=wait + 20)).lock

    async def release(
        self, lock: lock_service_pb2.Lock, **fields: Any
    ) -> "lock_service_pb2.ReleaseOutcome.ValueType":
        """Release a lock; returns how it ended."""
        request = lock_service_pb2.ReleaseRequest(
            board=self.board, claim=claim(lock), **{"request_id": str(uuid.uuid4()), **fields}
        )
        return (await self.locks.Release(request, metadata=self.auth, timeout=20)).outcome

    async def renew(self, *locks: lock_service_pb2.Lock, **fields: Any) -> Sequence[lock_service_pb2.Renewal]:
        """Renew locks; returns each one's outcome."""
        request = lock_service_pb2.RenewRequest(board=self.board, claims=map(claim, locks), **fields)
        return tuple((await self.locks.Renew(request, metadata=self.auth, timeout=20)).renewals)

    async def find_lock(self, lock: lock_service_pb2.Lock) -> lock_service_pb2.Lock:
        """Read a lock again."""
        request = lock_service_pb2.GetLockRequest(board=self.board, lock_id=lock.lock_id)
        return (await self.locks.GetLock(request, metadata=self.auth, timeout=20)).lock

    async def list_locks(self, **fields: Any) -> Sequence[lock_service_pb2.Lock]:
        """List locks, the first page."""
        request = lock_service_pb2.ListLocksRequest(board=self.board, **fields)
        return tuple((await self.locks.ListLocks(request, metadata=self.auth, timeout=20)).locks)

    async def list_waiters(self, **fields: Any) -> Sequence[lock_service_pb2.Waiter]:
        """List waiters, the first page."""
        request = lock_service_pb2.ListWaitersRequest(board=self.board, **fields)
        return tuple((await self.locks.ListWaiters(request, metadata=self.auth, timeout=20)).waiters)

    def watch(self, **fields: Any) -> Any:
        request = entry_service_pb2.WatchRequest(board=self.board, **fields)
        return self.entries.Watch(request, metadata=self.auth, timeout=30)


def claim(lock: lock_service_pb2.Lock) -> commit_pb2.Claim:
    """The claim of a lock."""
    return commit_pb2.Claim(lock_id=lock.lock_id, fencing_token=lock.fencing_token)


def put(
    key: str, value: bytes = b"v", version: int | None = 0, region: str = "", **content: Any
) -> commit_pb2.Op:
    """A put that expects a version; 0: absent, None: any state."""
    if version is None:
        condition = commit_pb2.Precondition(any_state=True)
    elif version == 0:
        condition = commit_pb2.Precondition(must_not_exist=True)
    else:
        condition = commit_pb2.Precondition(version_equals=version)
    return commit_pb2.Op(
        put=commit_pb2.PutOp(
            key=types_pb2.KeyRef(region=region, key=key),
            precondition=condition,
            content=types_pb2.Content(value=value, **content),
        )
    )


def delete(key: str, version: int, region: str = "") -> commit_pb2.Op:
    """A delete of a version."""
    return commit_pb2.Op(
        delete=commit_pb2.DeleteOp(
            key=types_pb2.KeyRef(region=region, key=key),
            precondition=commit_pb2.Precondition(version_equals=version),
        )
    )


def append(prefix: str, value: bytes = b"v", region: str = "") -> commit_pb2.Op:
    """An append."""
    return commit_pb2.Op(
        append=commit_pb2.AppendOp(
            prefix=types_pb2.PrefixRef(region=region, prefix=prefix), content=types_pb2.Content(value=value)
        )
    )


NewApi = Callable[..., Awaitable[Api]]


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Server, str, str], Api]]:
    """Open stubs on a server with a token, for a board; closed at the end."""
    made: list[Api] = []

    def make(server: Server, token: str, board: str) -> Api:
        api = Api(server.address, token, board)
        made.append(api)
        return api

    yield make
    for api in made:
        await api.channel.close()


@pytest.fixture
async def api(server: Server, connect: Callable[[Server, str, str], Api]) -> Api:
    """A supervisor on a fresh board of the shared server."""
    board = f"b-{uuid.uuid4().hex[:12]}"
    made = connect(server, server.local_token, board)
    await made.boards.CreateBoard(
        board_service_pb2.CreateBoardRequest(name=board, request_id=str(uuid.uuid4())), metadata=made.auth
    )
    return made


@pytest.fixture
async def operator(server: Server, api: Api, connect: Callable[[Server, str, str], Api]) -> Api:
    """The operator, on the same board."""
    return connect(server, server.operator_token, api.board)


@pytest.fixture
async def join(server: Server, operator: Api, connect: Callable[[Server, str, str], Api]) -> NewApi:
    """Make a principal of the board and return its stubs."""

    async def make(
        role: "admin_service_pb2.Role.ValueType" = admin_service_pb2.ROLE_WORKER,
        name: str | None = None,
        boards: tuple[str, ...] | None = None,
        **fields: Any,
    ) -> Api:
        reply = await operator.admin.CreatePrincipal(
            admin_service_pb2.CreatePrincipalRequest(
                id=name or f"p-{uuid.uuid4().hex[:12]}",
                role=role,
                boards=(operator.board,) if boards is None else boards,
                request_id=str(uuid.uuid4()),
                **fields,
            ),
            metadata=operator.auth,
        )
        return connect(server, reply.token, operator.board)

    return make
