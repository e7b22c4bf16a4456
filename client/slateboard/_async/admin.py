"""Principals and their credentials."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from slateboard import _methods, _wire_boards
from slateboard._async.calls import AsyncCalls
from slateboard._async.pages import AsyncPages
from slateboard._boards import NewPrincipal, NewToken, Principal, Right
from slateboard._enums import Role, Trust
from slateboard._values import Duration, seconds
from slateboard.v1 import admin_service_pb2


class AsyncAdmin:
    """For operators; anybody may rotate a token of their own."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls

    async def create_principal(
        self,
        id: str,  # noqa: A002 -- the API's word for it
        role: Role,
        *,
        boards: Sequence[str] = (),
        rights: Sequence[Right] = (),
        trust_ceiling: Trust | None = None,
        display_name: str = "",
        token_ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> NewPrincipal:
        """Makes a principal and its first token. Ids are never reused.

        Args:
            id: 1 to 64 of [A-Za-z0-9._-].
            role: What it is for.
            boards: Names, or `*` for all.
            rights: Default: what the role gives.
            trust_ceiling: Default: by role.
            display_name: For people.
            token_ttl: Lifetime of the token; default: no end.
            timeout: For the call.

        Raises:
            AlreadyExists: the id is taken, or was once.
            Unavailable, DeadlineExceeded: no answer came, though it was sent again with the same request_id.
        """
        request = admin_service_pb2.CreatePrincipalRequest(
            id=id,
            role=admin_service_pb2.Role.ValueType(role.value),
            boards=boards,
            rights=[_wire_boards.right_message(right) for right in rights],
            trust_ceiling=trust_ceiling.value if trust_ceiling is not None else 0,  # type: ignore[arg-type]
            display_name=display_name,
            request_id=str(uuid.uuid4()),
        )
        if token_ttl is not None:
            request.token_ttl.CopyFrom(_wire_boards.duration(seconds(token_ttl, "token_ttl")))
        reply = await self._calls.call(_methods.CREATE_PRINCIPAL, request, timeout=timeout)
        return NewPrincipal(_wire_boards.principal(reply.principal), reply.token)

    async def get_principal(self, id: str, *, timeout: Duration | None = None) -> Principal:  # noqa: A002 -- as above
        """A principal."""
        request = admin_service_pb2.GetPrincipalRequest(id=id)
        reply = await self._calls.call(_methods.GET_PRINCIPAL, request, timeout=timeout)
        return _wire_boards.principal(reply.principal)

    async def update_principal(self, principal: Principal, *, timeout: Duration | None = None) -> Principal:
        """Replaces role, boards, rights, trust ceiling and display name by those of `principal`.

        Read, `dataclasses.replace`, update: what is not changed must be there too.
        """
        message = admin_service_pb2.Principal(
            id=principal.id,
            role=admin_service_pb2.Role.ValueType(principal.role.value),
            boards=principal.boards,
            rights=[_wire_boards.right_message(right) for right in principal.rights],
            trust_ceiling=principal.trust_ceiling.value,  # type: ignore[arg-type]
            display_name=principal.display_name,
        )
        request = admin_service_pb2.UpdatePrincipalRequest(principal=message)
        reply = await self._calls.call(_methods.UPDATE_PRINCIPAL, request, timeout=timeout)
        return _wire_boards.principal(reply.principal)

    async def disable_principal(self, id: str, *, timeout: Duration | None = None) -> Principal:  # noqa: A002 -- as above
        """Ends a principal for good: its tokens stop working, its sessions are dead."""
        request = admin_service_pb2.DisablePrincipalRequest(id=id)
        reply = await self._calls.call(_methods.DISABLE_PRINCIPAL, request, timeout=timeout)
        return _wire_boards.principal(reply.principal)

    def principals(
        self, *, board: str = "", page_size: int = 100, timeout: Duration | None = None
    ) -> AsyncPages[Principal]:
        """All principals, or those of a board."""

        async def fetch(token: str) -> tuple[Sequence[Principal], str, int]:
            request = admin_service_pb2.ListPrincipalsRequest(
                page_size=page_size, page_token=token, board=board
            )
            reply = await self._calls.call(_methods.LIST_PRINCIPALS, request, timeout=timeout)
            found = [_wire_boards.principal(message) for message in reply.principals]
            return found, reply.next_page_token, 0

        return AsyncPages(fetch)

    async def rotate_token(
        self,
        id: str | None = None,  # noqa: A002 -- as above
        *,
        overlap: Duration = 0,
        token_ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> NewToken:
        """Makes a new token for a principal (default: one's own); the old ones live on for `overlap`, at most 7 days."""
        request = admin_service_pb2.RotateTokenRequest(
            id=id or "",
            overlap=_wire_boards.duration(seconds(overlap, "overlap")),
            request_id=str(uuid.uuid4()),
        )
        if token_ttl is not None:
            request.token_ttl.CopyFrom(_wire_boards.duration(seconds(token_ttl, "token_ttl")))
        reply = await self._calls.call(_methods.ROTATE_TOKEN, request, timeout=timeout)
        return NewToken(reply.token_id, reply.token)

    async def revoke_token(self, token_id: str, *, timeout: Duration | None = None) -> None:
        """Stops one token."""
        request = admin_service_pb2.RevokeTokenRequest(token_id=token_id)
        await self._calls.call(_methods.REVOKE_TOKEN, request, timeout=timeout)
