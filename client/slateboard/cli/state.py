"""What every command shares: the global options, the client and the board they lead to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slateboard.cli import output, problems

if TYPE_CHECKING:
    from slateboard import TLS, Board, Client

_TIMEOUT = 30.0
_ATTEMPTS = 4
"""Enough to get over a server that starts again, without a long wait where there is none."""


@dataclass(slots=True)
class Globals:
    """The global options as given, before or after the command."""

    server: str | None = None
    board: str | None = None
    token: str | None = None
    region: str | None = None
    json: bool = False
    arguments: list[str] = field(default_factory=list)
    """The whole command line, to be able to say how it should have been."""


_current = Globals()


def current() -> Globals:
    """The global options of this command line."""
    return _current


def begin(arguments: list[str]) -> None:
    """Forget the options of an earlier command line."""
    global _current  # noqa: PLW0603 -- one command line a process
    _current = Globals(arguments=arguments)


def region() -> str | None:
    """The region asked for; None is the shared one. `private` becomes the caller's own, which takes a call."""
    if _current.region in {"private", "private/"}:
        with client() as made:
            _current.region = f"private/{made.whoami().id}"
    return _current.region


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() not in {"", "0", "false", "no"}


def _tls() -> TLS | None:
    from slateboard import TLS  # noqa: PLC0415 -- brings in grpc

    ca, cert, key = (os.environ.get(name) or None for name in ("SLATE_CA", "SLATE_CERT", "SLATE_KEY"))
    if ca or cert or key or _flag("SLATE_TLS"):
        return TLS(ca=ca, cert=cert, key=key, server_name=os.environ.get("SLATE_TLS_NAME") or None)
    return None


def operator_token(server: str | None) -> str | None:
    """What `slate serve` left for administration, if the server is on this machine."""
    from slateboard import _config  # noqa: PLC0415 -- brings in grpc

    if all(_config.is_loopback(target) for target in _config.parse_addresses(server)):
        return _config.read_token_file("operator")
    return None


@contextmanager
def client(*, admin: bool = False, first_address: bool = False) -> Iterator[Client]:
    """A client as the options say. For administration it finds the operator's token by itself."""
    from slateboard import RetryPolicy, _config, connect  # noqa: PLC0415 -- brings in grpc

    token = _current.token or os.environ.get("SLATE_TOKEN") or None
    if token is None and admin:
        token = operator_token(_current.server)
    targets = _config.parse_addresses(_current.server)
    with connect(
        targets[:1] if first_address else targets,
        token=token,
        tls=_tls(),
        timeout=_TIMEOUT,
        retry=RetryPolicy(attempts=_ATTEMPTS),
        insecure=_flag("SLATE_INSECURE"),
    ) as made:
        yield made


def board_name(made: Client, *, asked: str | None = None) -> str:
    """The board that is meant: named here, by --board, by SLATE_BOARD, or the only one there is."""
    named = asked or _current.board or os.environ.get("SLATE_BOARD")
    if named:
        return named
    found = [board.name for board, _ in zip(made.boards(page_size=11), range(11), strict=False)]
    if not found:
        raise problems.CliError(
            "there is no board that you may see. `slate board create NAME` makes one.", problems.NOT_FOUND
        )
    if len(found) > 1:
        shown = ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")
        raise problems.usage(f"which board? There are {shown}. Say --board NAME, or set SLATE_BOARD.")
    output.err(f"using the board {found[0]!r}, the only one (--board or SLATE_BOARD names another)")
    return found[0]


@contextmanager
def board(
    *, admin: bool = False, asked: str | None = None, first_address: bool = False
) -> Iterator[tuple[Client, Board]]:
    """A client, and the board that is meant."""
    with client(admin=admin, first_address=first_address) as made:
        name = board_name(made, asked=asked)
        yield made, _claiming(made.board(name), name)


def _claiming(board: Board, name: str) -> Board:
    """Present the lock that `slate lock run` holds around this command, if it is one of this board."""
    given = os.environ.get("SLATE_LOCK", "")
    lock_board, _, claim = given.partition(":")
    lock_id, _, token = claim.partition(":")
    if lock_board != name or not lock_id or not token.isdecimal():
        return board
    from slateboard import LockClaim  # noqa: PLC0415 -- brings in grpc

    return board.claiming(LockClaim(lock_id, int(token)))


def exported(board: str, lock_id: str, token: int) -> dict[str, str]:
    """The variables that lead a command run by this one to the same board, with the claim of a lock."""
    given = {"SLATE_SERVER": _current.server, "SLATE_TOKEN": _current.token, "SLATE_BOARD": board}
    lock = {"SLATE_LOCK": f"{board}:{lock_id}:{token}"}
    return {name: value for name, value in given.items() if value} | lock


def show(document: Callable[[], object], people: Callable[[], None]) -> None:
    """The answer as JSON where --json was given, else for people."""
    if _current.json:
        output.document(document())
    else:
        people()
