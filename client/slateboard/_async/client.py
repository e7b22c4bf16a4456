"""The way in: a client of one server, or of several that share their boards."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from slateboard import _config, _methods, _wire_boards
from slateboard._async.admin import AsyncAdmin
from slateboard._async.board import AsyncBoard
from slateboard._async.calls import AsyncCalls
from slateboard._async.core import AsyncCore, AsyncIdentity
from slateboard._async.lock_keeper import AsyncLockKeeper
from slateboard._async.pages import AsyncPages
from slateboard._async.transport import AsyncGrpcTransport, AsyncTransport
from slateboard._boards import BoardInfo, Policy, Principal, ServerInfo
from slateboard._config import TLS, RetryPolicy
from slateboard._values import Duration
from slateboard.errors import AlreadyExists
from slateboard.v1 import admin_service_pb2, board_service_pb2

Self = TypeVar("Self", bound="AsyncClient")


class AsyncClient:
    """Made by `connect`. A context manager; close it otherwise. Safe to share between threads or tasks."""

    def __init__(
        self,
        transport: AsyncTransport,
        *,
        session: str | None = None,
        timeout: Duration = _config.DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._calls = AsyncCalls(transport, retry=retry or RetryPolicy(), timeout=timeout)
        self._identity = AsyncIdentity(self._calls)
        self._keeper = AsyncLockKeeper(self._calls)
        self._session = session or ""
        self.admin = AsyncAdmin(self._calls)
        """Principals and their credentials; for operators."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({','.join(self._calls.transport.addresses)})"

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of all connections. May be called twice. Locks that are still held are lost: nobody renews them."""
        await self._keeper.close()
        await self._calls.close()

    def board(self, name: str) -> AsyncBoard:
        """A board, by name. Makes no call: whether it exists shows at the first use."""
        return AsyncBoard(AsyncCore(name, self._calls, self._identity, self._keeper, self._session))

    async def create_board(
        self,
        name: str,
        *,
        description: str = "",
        policy: Policy | None = None,
        exist_ok: bool = False,
        timeout: Duration | None = None,
    ) -> AsyncBoard:
        """Makes a board: 1 to 64 of [a-z0-9._-].

        Raises:
            AlreadyExists: there is one of this name, and `exist_ok` is not set.
        """
        request = board_service_pb2.CreateBoardRequest(
            name=name, description=description, request_id=str(uuid.uuid4())
        )
        if policy is not None:
            request.policy.CopyFrom(_wire_boards.policy_message(policy))
        try:
            await self._calls.call(_methods.CREATE_BOARD, request, timeout=timeout)
        except AlreadyExists:
            if not exist_ok:
                raise
        return self.board(name)

    async def delete_board(self, name: str, *, incarnation: str, timeout: Duration | None = None) -> None:
        """Deletes a board with all it holds, if it still is the one of that incarnation (`board.info()`)."""
        request = board_service_pb2.DeleteBoardRequest(board=name, incarnation=incarnation)
        await self._calls.call(_methods.DELETE_BOARD, request, timeout=timeout)

    async def reincarnate_board(
        self, name: str, *, incarnation: str, timeout: Duration | None = None
    ) -> BoardInfo:
        """Begins a new life of a board, ending the given one: for after a restore from a backup."""
        request = board_service_pb2.ReincarnateBoardRequest(board=name, incarnation=incarnation)
        reply = await self._calls.call(_methods.REINCARNATE_BOARD, request, timeout=timeout)
        return _wire_boards.board(reply.board)

    def boards(self, *, page_size: int = 100, timeout: Duration | None = None) -> AsyncPages[BoardInfo]:
        """The boards that this principal has a part in, by name."""

        async def fetch(token: str) -> tuple[Sequence[BoardInfo], str, int]:
            request = board_service_pb2.ListBoardsRequest(page_size=page_size, page_token=token)
            reply = await self._calls.call(_methods.LIST_BOARDS, request, timeout=timeout)
            return [_wire_boards.board(message) for message in reply.boards], reply.next_page_token, 0

        return AsyncPages(fetch)

    async def server_info(self, *, timeout: Duration | None = None) -> ServerInfo:
        """Version, mode and limits of the server."""
        request = board_service_pb2.GetServerInfoRequest()
        reply = await self._calls.call(_methods.GET_SERVER_INFO, request, timeout=timeout)
        return _wire_boards.server_info(reply)

    async def whoami(self, *, timeout: Duration | None = None) -> Principal:
        """Whom the credential stands for."""
        request = admin_service_pb2.WhoAmIRequest()
        reply = await self._calls.call(_methods.WHO_AM_I, request, timeout=timeout)
        return _wire_boards.principal(reply.principal, reply.token_id)


def connect(
    address: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    tls: TLS | None = None,
    session: str | None = None,
    timeout: Duration = _config.DEFAULT_TIMEOUT,
    retry: RetryPolicy | None = None,
    insecure: bool = False,
) -> AsyncClient:
    """A client. Makes no call: connections are made when they are needed.

    Args:
        address: `host:port`; several as a list or joined by commas, used in turn. Default: SLATE_SERVER, else
            127.0.0.1:7400.
        token: The credential. Default: SLATE_TOKEN; else, for a server on this machine, the `local.token` it left in
            SLATE_DATA or the default data directory.
        tls: Encrypt. Without it a token goes only to this machine.
        session: The token of a session started elsewhere, to make commits in.
        timeout: For each call with all its retries, unless the call says otherwise.
        retry: How often and how soon a call is sent again.
        insecure: Send the token in the clear, to any machine.

    Raises:
        Invalid: an address that is none, a token that would travel in the clear, or TLS files that cannot be read.
    """
    targets = _config.parse_addresses(address)
    transport = AsyncGrpcTransport(
        targets, token=_config.find_token(token, targets), tls=tls, insecure=insecure
    )
    return AsyncClient(transport, session=session, timeout=timeout, retry=retry)
