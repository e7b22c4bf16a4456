"""The tokens of a first start: how somebody gets in where nobody is known yet.

On loopback, a server leaves two credentials in its data directory: `operator.token` for administration and `local.token`
for the agents of this machine. A server that listens further only leaves the first one, and only while the database
knows no operator of that name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.principal import ALL_BOARDS, DEFAULT_CEILING, Principal, Role, TokenRecord
from slateboard_server.domain.values import PrincipalId, Trust
from slateboard_server.ports import AuditRecord, Clock, Store
from slateboard_server.services.auth import Authenticator, Credential, random_credential
from slateboard_server.services.principals import SERVER_PRINCIPAL

log = structlog.get_logger(__name__)

OPERATOR: Final = PrincipalId("operator")
LOCAL: Final = PrincipalId("local")


@dataclass(frozen=True, slots=True)
class _Wanted:
    id: PrincipalId
    role: Role
    boards: frozenset[str]
    ceiling: Trust
    display_name: str


_OPERATOR: Final = _Wanted(
    OPERATOR, Role.OPERATOR, frozenset(), DEFAULT_CEILING[Role.OPERATOR], "operator of this server"
)
_LOCAL: Final = _Wanted(LOCAL, Role.SUPERVISOR, frozenset({ALL_BOARDS}), Trust.USER, "this machine")


class Bootstrap:
    """Makes sure that the token files of a data directory work."""

    def __init__(self, store: Store, clock: Clock, data_dir: Path) -> None:
        """Leave tokens in `data_dir`."""
        self._store = store
        self._clock = clock
        self._data_dir = data_dir
        self._auth = Authenticator(store, clock, {})

    async def run(self, *, loopback: bool) -> Sequence[Path]:
        """Leave what is missing and return the files that are there.

        A file whose token still works is left alone. One whose token does not gets a new one, unless its principal was
        disabled. Several servers may do this at once.
        """
        files: list[Path] = []
        for wanted in (_OPERATOR, _LOCAL) if loopback else (_OPERATOR,):
            path = self._data_dir / f"{wanted.id}.token"
            if await self._works(path, wanted.id):
                files.append(path)
                continue
            principal = await self._store.find_principal(wanted.id)
            if principal is not None and (principal.disabled or not loopback):
                if principal.disabled:
                    log.warning(
                        "no token file: the principal is disabled", principal=wanted.id, path=str(path)
                    )
                continue
            credential = await self._issue(wanted)
            if credential is not None:
                await asyncio.to_thread(_write_private, path, credential.text)
                files.append(path)
        return files

    async def _works(self, path: Path, principal: PrincipalId) -> bool:
        try:
            text = (await asyncio.to_thread(path.read_text, "ascii")).strip()
        except (OSError, UnicodeDecodeError):
            return False
        with contextlib.suppress(SlateboardError):
            caller = await self._auth.authenticate(f"Bearer {text}", ())
            return caller.principal.id == principal
        return False

    async def _issue(self, wanted: _Wanted) -> Credential | None:
        """Make the principal with a token, or one more token where another server was faster."""
        now = self._clock.now()
        credential = random_credential()
        token = TokenRecord(credential.token_id, wanted.id, credential.secret_hash, now)
        principal = Principal(
            wanted.id,
            wanted.role,
            wanted.boards,
            (),
            wanted.ceiling,
            now,
            SERVER_PRINCIPAL,
            display_name=wanted.display_name,
        )
        action = "principal.create"
        try:
            await self._store.create_principal(principal, token)
        except SlateboardError as error:
            # INTERNAL is what two inserts at the same moment look like on a shared database.
            if error.reason not in {Reason.PRINCIPAL_EXISTS, Reason.INTERNAL}:
                raise
            known = await self._store.find_principal(wanted.id)
            if known is None:
                raise
            if known.disabled:
                return None
            await self._store.add_token(token, None)
            action = "token.add"
        await self._store.audit(
            [AuditRecord(now, SERVER_PRINCIPAL, action, target=wanted.id, detail="bootstrap")]
        )
        return credential


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
