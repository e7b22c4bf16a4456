"""Principals and their tokens: made, changed, rotated, revoked. All of it leaves an audit record, refusals too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid, too_many
from slateboard_server.domain.limits import MAX_NAME_BYTES, MAX_PRINCIPAL_BOARDS, MAX_RIGHTS
from slateboard_server.domain.names import check_board_name, check_key, check_prefix, check_principal_id
from slateboard_server.domain.principal import (
    ALL_BOARDS,
    DEFAULT_CEILING,
    Principal,
    Right,
    Role,
    TokenRecord,
)
from slateboard_server.domain.values import SECOND, Incarnation, Micros, PrincipalId, TokenId, Trust
from slateboard_server.ports import AuditRecord, Clock, Store
from slateboard_server.services.auth import Authenticator, derive_credential
from slateboard_server.services.model import Caller
from slateboard_server.services.page_tokens import PageTokens, page_size

SERVER_PRINCIPAL: Final = PrincipalId("slateboard")
"""Who the server's own commits come from; nobody else can have this id."""
_MAX_OVERLAP: Final = 7 * 24 * 3600 * SECOND
_SCANNED: Final = 5_000
"""Principals a filtered list looks at for one page; the page then ends early, with a token."""

WithTokens = tuple[Principal, list[TokenRecord]]


class Principals:
    """AdminService."""

    def __init__(self, store: Store, clock: Clock, auth: Authenticator) -> None:
        """Keep principals in `store`; `auth` is told to forget what changed."""
        self._store = store
        self._clock = clock
        self._auth = auth

    async def create(
        self,
        caller: Caller,
        id: str,  # noqa: A002 -- the API's name
        role: Role,
        boards: frozenset[str],
        rights: tuple[Right, ...],
        ceiling: Trust | None,
        display_name: str,
        token_ttl: int | None,
        request_id: str,
    ) -> tuple[Principal, list[TokenRecord], str]:
        """Make a principal and its first token. Operators.

        The token follows from the request and a secret of the server, so a retry with the same request_id and content
        answers the same; any other request on a taken id is PRINCIPAL_EXISTS.
        """
        await self._operators_only(caller, "principal.create", id)
        principal_id = check_principal_id(id)
        if principal_id == SERVER_PRINCIPAL:
            raise field_invalid("id", f"{SERVER_PRINCIPAL!r} is the server itself; choose another")
        now = self._clock.now()
        principal = Principal(
            principal_id,
            role,
            boards,
            rights,
            DEFAULT_CEILING[role] if ceiling is None else ceiling,
            now,
            caller.principal.id,
            display_name=display_name,
        )
        self._check(caller, principal)
        credential = derive_credential(
            await self._store.server_secret(), "create", request_id, _content(principal), token_ttl
        )
        token = TokenRecord(
            credential.token_id, principal_id, credential.secret_hash, now, _expiry(now, token_ttl)
        )
        try:
            await self._store.create_principal(principal, token)
        except SlateboardError as error:
            if error.reason is not Reason.PRINCIPAL_EXISTS:
                raise
            found = await self._store.find_token(credential.token_id)
            if found is None or found[0].principal != principal_id or not found[0].alive(now):
                raise
            return found[1], list(await self._store.list_tokens(principal_id)), credential.text
        self._auth.forget()
        await self._audit(caller, "principal.create", principal_id, role.name.lower())
        return principal, [token], credential.text

    async def get(self, caller: Caller, id: str) -> WithTokens:  # noqa: A002 -- the API's name
        """Read a principal with its tokens. Operators."""
        await self._operators_only(caller, "principal.get", id)
        return await self._with_tokens(await self._find(id))

    async def update(
        self,
        caller: Caller,
        id: str,  # noqa: A002 -- the API's name
        role: Role,
        boards: frozenset[str],
        rights: tuple[Right, ...],
        ceiling: Trust | None,
        display_name: str,
    ) -> WithTokens:
        """Replace role, boards, rights, ceiling and display name. Operators."""
        await self._operators_only(caller, "principal.update", id)
        present = await self._find(id)
        self._check_reach(caller, present)
        principal = replace(
            present,
            role=role,
            boards=boards,
            rights=rights,
            trust_ceiling=DEFAULT_CEILING[role] if ceiling is None else ceiling,
            display_name=display_name,
        )
        self._check(caller, principal)
        if not await self._store.update_principal(principal):
            raise _not_found(id)
        self._auth.forget()
        await self._audit(caller, "principal.update", id, role.name.lower())
        return await self._with_tokens(await self._find(id))

    async def disable(self, caller: Caller, id: str) -> WithTokens:  # noqa: A002 -- the API's name
        """End a principal for good, with its tokens. Operators; not oneself."""
        await self._operators_only(caller, "principal.disable", id)
        if id == caller.principal.id:
            raise field_invalid("id", "a principal does not disable itself; let another operator do it")
        if not await self._store.disable_principal(PrincipalId(id)):
            raise _not_found(id)
        self._auth.forget()
        await self._audit(caller, "principal.disable", id)
        return await self._with_tokens(await self._find(id))

    async def list(
        self, caller: Caller, size: int, page_token: str, board: str = ""
    ) -> tuple[list[WithTokens], str]:
        """List principals by id, with `board` those that have a part in it. Operators."""
        await self._operators_only(caller, "principal.list", board)
        limit = page_size(size)
        secret = await self._store.server_secret()
        tokens = PageTokens(secret, Incarnation(""), "principals", caller.principal.id, board)
        position = tokens.read(page_token)
        after = "" if position is None else str(position["after"])
        shown: list[Principal] = []
        scanned, more = 0, True
        while more and len(shown) <= limit and scanned < _SCANNED:
            chunk = await self._store.list_principals(after, limit + 1)
            scanned += len(chunk)
            more = len(chunk) > limit
            for principal in chunk:
                if not board or principal.has_board(board):
                    shown.append(principal)
                    if len(shown) > limit:
                        break
                after = principal.id
        more = more or len(shown) > limit
        page = [await self._with_tokens(principal) for principal in shown[:limit]]
        return page, tokens.make(after=after) if more else ""

    async def rotate(
        self,
        caller: Caller,
        id: str | None,  # noqa: A002 -- the API's name
        overlap: int,
        token_ttl: int | None,
        request_id: str,
    ) -> tuple[TokenId, str]:
        """Make a new token of one's own, or (operators) of another; the old ones live on for `overlap` Micros.

        A retry with the same request_id answers the same token, and the old ones keep the end they were given.
        """
        owner = PrincipalId(id or caller.principal.id)
        if owner != caller.principal.id:
            await self._operators_only(caller, "token.rotate", owner)
        if not 0 <= overlap <= _MAX_OVERLAP:
            raise field_invalid("overlap", "must be 0 to 7 days", limit=_MAX_OVERLAP // SECOND)
        _check_ttl(token_ttl)
        principal = await self._find(owner)
        self._check_reach(caller, principal)
        if principal.disabled:
            raise field_invalid("id", f"{owner!r} is disabled for good; make a new principal")
        now = self._clock.now()
        credential = derive_credential(
            await self._store.server_secret(), "rotate", request_id, owner, caller.principal.id
        )
        known = await self._store.find_token(credential.token_id)
        if known is None:
            token = TokenRecord(
                credential.token_id, owner, credential.secret_hash, now, _expiry(now, token_ttl)
            )
            try:
                await self._store.add_token(token, Micros(now + overlap))
            except SlateboardError:
                # The same request on its way twice: one of the two was first.
                known = await self._store.find_token(credential.token_id)
                if known is None:
                    raise
            self._auth.forget()
            await self._audit(caller, "token.rotate", owner, credential.token_id)
        if known is not None and not known[0].alive(now):
            raise SlateboardError(
                Reason.REQUEST_ID_REUSED,
                "the token this request_id made is over; rotate with a new request_id",
                field="request_id",
            )
        return credential.token_id, credential.text

    async def revoke(self, caller: Caller, token_id: str) -> None:
        """Stop one token. Operators."""
        await self._operators_only(caller, "token.revoke", token_id)
        found = await self._store.revoke_token(TokenId(token_id))
        self._auth.forget()
        if not found:
            raise SlateboardError(
                Reason.PRINCIPAL_NOT_FOUND,
                f"there is no token {token_id[:80]!r}; GetPrincipal lists a principal's tokens",
                token_id=token_id[:80],
            )
        await self._audit(caller, "token.revoke", token_id)

    async def whoami(self, caller: Caller) -> WithTokens:
        """Tell whom the credential stands for."""
        return await self._with_tokens(caller.principal)

    async def _find(self, id: str) -> Principal:  # noqa: A002 -- the API's name
        principal = await self._store.find_principal(PrincipalId(id))
        if principal is None:
            raise _not_found(id)
        return principal

    async def _with_tokens(self, principal: Principal) -> WithTokens:
        return principal, list(await self._store.list_tokens(principal.id))

    @staticmethod
    def _check_reach(caller: Caller, target: Principal) -> None:
        """Refuse to change or to become somebody of more trust than one's own: that would lift the caller's ceiling."""
        if target.trust_ceiling > caller.principal.trust_ceiling:
            raise SlateboardError(
                Reason.DENIED,
                f"{target.id} has the ceiling {target.trust_ceiling.name}, above the caller's own"
                f" {caller.principal.trust_ceiling.name}; ask an operator who has it",
                action="principal.update",
            )

    @staticmethod
    def _check(caller: Caller, principal: Principal) -> None:
        """Raise what is wrong with a principal as asked for."""
        if len(principal.boards) > MAX_PRINCIPAL_BOARDS:
            raise too_many("boards", len(principal.boards), MAX_PRINCIPAL_BOARDS)
        for board in principal.boards:
            if board != ALL_BOARDS:
                check_board_name(board, "boards")
        if len(principal.rights) > MAX_RIGHTS:
            raise too_many("rights", len(principal.rights), MAX_RIGHTS)
        for index, right in enumerate(principal.rights):
            field = f"rights[{index}]"
            if right.prefix == "" or right.prefix.endswith("/"):
                check_prefix(right.prefix, f"{field}.prefix")
            else:
                check_key(right.prefix, f"{field}.prefix")
            if not right.actions:
                raise field_invalid(f"{field}.actions", "at least one action")
        if principal.trust_ceiling > caller.principal.trust_ceiling:
            raise field_invalid(
                "trust_ceiling",
                f"{principal.trust_ceiling.name} is above the caller's own ceiling"
                f" {caller.principal.trust_ceiling.name}",
            )
        if "\0" in principal.display_name:
            raise field_invalid("display_name", "must not contain NUL")
        if len(principal.display_name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise field_invalid("display_name", f"at most {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)

    async def _operators_only(self, caller: Caller, action: str, target: str) -> None:
        if caller.principal.role is Role.OPERATOR:
            return
        await self._audit(caller, action, target, "denied")
        raise SlateboardError(
            Reason.DENIED,
            f"only operators may do this, and {caller.principal.id} is {caller.principal.role.name.lower()}; ask one",
            action=action,
        )

    async def _audit(self, caller: Caller, action: str, target: str, detail: str = "") -> None:
        record = AuditRecord(
            self._clock.now(), caller.principal.id, action, target=target[:MAX_NAME_BYTES], detail=detail
        )
        await self._store.audit([record])


def _content(principal: Principal) -> str:
    """Write down what was asked for, so that another request under the same request_id is another one."""
    rights = [(right.prefix, sorted(right.actions)) for right in principal.rights]
    return repr(
        (
            principal.id,
            principal.created_by,
            int(principal.role),
            sorted(principal.boards),
            [(prefix, [int(action) for action in actions]) for prefix, actions in rights],
            int(principal.trust_ceiling),
            principal.display_name,
        )
    )


def _check_ttl(ttl: int | None) -> None:
    if ttl is not None and ttl < SECOND:
        raise field_invalid("token_ttl", "must be at least 1 s; leave it unset for a token without end")


def _expiry(now: Micros, ttl: int | None) -> Micros | None:
    _check_ttl(ttl)
    return None if ttl is None else Micros(now + ttl)


def _not_found(id: str) -> SlateboardError:  # noqa: A002 -- the API's name
    return SlateboardError(
        Reason.PRINCIPAL_NOT_FOUND,
        f"there is no principal {id[:80]!r}; `slate principal ls` lists them",
        id=id[:80],
    )
