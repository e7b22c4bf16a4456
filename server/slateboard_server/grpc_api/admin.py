"""AdminService."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

from slateboard.v1 import admin_service_pb2 as pb
from slateboard.v1 import types_pb2
from slateboard_server.domain.errors import field_invalid
from slateboard_server.domain.limits import MAX_PRINCIPAL_BOARDS, MAX_RIGHTS
from slateboard_server.domain.principal import Action, Principal, Right, Role, TokenRecord
from slateboard_server.grpc_api.calls import Calls, Context
from slateboard_server.grpc_api.pages import fitting_page
from slateboard_server.grpc_api.shape import check_count, check_known, check_request_id, check_trust
from slateboard_server.grpc_api.times import read_duration, set_time
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.services.model import Caller
from slateboard_server.services.principals import Principals, WithTokens

SERVICE: Final = "slateboard.v1.AdminService"


class AdminServicer:
    """Converts, calls `Principals`, converts back."""

    def __init__(self, principals: Principals, headers: Headers) -> None:
        """Serve `principals`."""
        self._principals = principals
        self._header = headers.no_board

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the methods, wrapped."""
        return {
            "CreatePrincipal": calls.unary("CreatePrincipal", pb.CreatePrincipalRequest, self._create),
            "GetPrincipal": calls.unary("GetPrincipal", pb.GetPrincipalRequest, self._get),
            "UpdatePrincipal": calls.unary("UpdatePrincipal", pb.UpdatePrincipalRequest, self._update),
            "DisablePrincipal": calls.unary("DisablePrincipal", pb.DisablePrincipalRequest, self._disable),
            "ListPrincipals": calls.unary("ListPrincipals", pb.ListPrincipalsRequest, self._list),
            "RotateToken": calls.unary("RotateToken", pb.RotateTokenRequest, self._rotate),
            "RevokeToken": calls.unary("RevokeToken", pb.RevokeTokenRequest, self._revoke),
            "WhoAmI": calls.unary("WhoAmI", pb.WhoAmIRequest, self._whoami),
        }

    async def _create(
        self, caller: Caller, request: pb.CreatePrincipalRequest, _: Context
    ) -> pb.CreatePrincipalResponse:
        principal, tokens, token = await self._principals.create(
            caller,
            request.id,
            _role(request.role, "role"),
            _boards(request.boards, "boards"),
            _rights(request.rights, "rights"),
            check_trust(request.trust_ceiling, "trust_ceiling"),
            request.display_name,
            read_duration(request.token_ttl, "token_ttl") if request.HasField("token_ttl") else None,
            check_request_id(request.request_id),
        )
        return pb.CreatePrincipalResponse(
            header=self._header, principal=write_principal(principal, tokens), token=token
        )

    async def _get(
        self, caller: Caller, request: pb.GetPrincipalRequest, _: Context
    ) -> pb.GetPrincipalResponse:
        found = await self._principals.get(caller, _required(request.id, "id"))
        return pb.GetPrincipalResponse(header=self._header, principal=write_principal(*found))

    async def _update(
        self, caller: Caller, request: pb.UpdatePrincipalRequest, _: Context
    ) -> pb.UpdatePrincipalResponse:
        wanted = request.principal
        found = await self._principals.update(
            caller,
            _required(wanted.id, "principal.id"),
            _role(wanted.role, "principal.role"),
            _boards(wanted.boards, "principal.boards"),
            _rights(wanted.rights, "principal.rights"),
            check_trust(wanted.trust_ceiling, "principal.trust_ceiling"),
            wanted.display_name,
        )
        return pb.UpdatePrincipalResponse(header=self._header, principal=write_principal(*found))

    async def _disable(
        self, caller: Caller, request: pb.DisablePrincipalRequest, _: Context
    ) -> pb.DisablePrincipalResponse:
        found = await self._principals.disable(caller, _required(request.id, "id"))
        return pb.DisablePrincipalResponse(header=self._header, principal=write_principal(*found))

    async def _list(
        self, caller: Caller, request: pb.ListPrincipalsRequest, _: Context
    ) -> pb.ListPrincipalsResponse:
        async def ask(size: int) -> tuple[list[WithTokens], str]:
            return await self._principals.list(caller, size, request.page_token, request.board)

        def write(page: tuple[list[WithTokens], str]) -> tuple[pb.ListPrincipalsResponse, int]:
            found, token = page
            principals = [write_principal(*one) for one in found]
            return pb.ListPrincipalsResponse(
                header=self._header, principals=principals, next_page_token=token
            ), len(found)

        return await fitting_page(request.page_size, ask, write)

    async def _rotate(
        self, caller: Caller, request: pb.RotateTokenRequest, _: Context
    ) -> pb.RotateTokenResponse:
        token_id, token = await self._principals.rotate(
            caller,
            request.id or None,
            read_duration(request.overlap, "overlap"),
            read_duration(request.token_ttl, "token_ttl") if request.HasField("token_ttl") else None,
            check_request_id(request.request_id),
        )
        return pb.RotateTokenResponse(header=self._header, token_id=token_id, token=token)

    async def _revoke(
        self, caller: Caller, request: pb.RevokeTokenRequest, _: Context
    ) -> pb.RevokeTokenResponse:
        await self._principals.revoke(caller, _required(request.token_id, "token_id"))
        return pb.RevokeTokenResponse(header=self._header)

    async def _whoami(self, caller: Caller, _request: pb.WhoAmIRequest, _: Context) -> pb.WhoAmIResponse:
        found = await self._principals.whoami(caller)
        return pb.WhoAmIResponse(
            header=self._header, principal=write_principal(*found), token_id=caller.token_id or ""
        )


def write_principal(principal: Principal, tokens: Sequence[TokenRecord]) -> pb.Principal:
    """Write a principal with its tokens, without a secret."""
    made = pb.Principal(
        id=principal.id,
        role=pb.Role.ValueType(principal.role),
        boards=sorted(principal.boards),
        rights=[
            pb.Right(
                prefix=right.prefix, actions=[pb.Action.ValueType(action) for action in sorted(right.actions)]
            )
            for right in principal.rights
        ],
        trust_ceiling=types_pb2.Trust.ValueType(principal.trust_ceiling),
        created_by=principal.created_by,
        disabled=principal.disabled,
        display_name=principal.display_name,
    )
    set_time(made.create_time, principal.created)
    for token in tokens:
        info = made.tokens.add(token_id=token.token_id, revoked=token.revoked)
        set_time(info.create_time, token.created)
        if token.expires is not None:
            set_time(info.expire_time, token.expires)
    return made


def _required(text: str, field: str) -> str:
    if not text:
        raise field_invalid(field, "is required")
    return text


def _role(number: int, field: str) -> Role:
    if not number:
        raise field_invalid(field, "is required")
    return Role(check_known(number, max(Role), field))


def _boards(boards: Sequence[str], field: str) -> frozenset[str]:
    check_count(boards, MAX_PRINCIPAL_BOARDS, field)
    return frozenset(boards)


def _rights(rights: Sequence[pb.Right], field: str) -> tuple[Right, ...]:
    check_count(rights, MAX_RIGHTS, field)
    return tuple([_right(right, f"{field}[{index}]") for index, right in enumerate(rights)])


def _right(right: pb.Right, field: str) -> Right:
    actions: set[Action] = set()
    for index, number in enumerate(right.actions):
        place = f"{field}.actions[{index}]"
        if not number:
            raise field_invalid(place, "must not be unspecified")
        actions.add(Action(check_known(number, max(Action), place)))
    return Right(right.prefix, frozenset(actions))
