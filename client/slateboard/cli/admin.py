"""`slate principal ...`, `slate whoami`: who may do what."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated

import typer

from slateboard.cli import options, output, problems, state, text, values

if TYPE_CHECKING:
    from slateboard import Principal, Right

Id = Annotated[str, typer.Argument(metavar="ID", help="The principal.")]
Boards = Annotated[
    list[str] | None,
    typer.Option("--boards", metavar="NAME", help="A board it has a part in, `*` for all. May be repeated."),
]
Rights = Annotated[
    list[str] | None,
    typer.Option(
        "--right", metavar="ACTIONS:PREFIX", help="E.g. read,append:inbox/. Default: what the role gives."
    ),
]
Ceiling = Annotated[
    str | None, typer.Option(metavar="TRUST", help="The highest trust its writes can have; default by role.")
]
TokenTtl = Annotated[
    str | None, typer.Option(metavar="SPAN", help="How long the token works, e.g. 30d; default: no end.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_ROLES = "operator, supervisor, worker or observer"


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    group = options.app(
        "Principals and their tokens. Finds the operator's token on this machine by itself.",
        no_args_is_help=True,
    )
    options.command(group)(create)
    options.command(group, "ls")(list_)
    options.command(group)(show)
    options.command(group)(update)
    options.command(group)(rotate)
    options.command(group)(revoke)
    options.command(group)(disable)
    slate.add_typer(group, name="principal")
    options.command(slate)(whoami)


def _boards(given: list[str] | None) -> list[str]:
    """--boards, or the global --board where it was spelled out; SLATE_BOARD alone gives nobody a right."""
    named = [name for part in given or () for name in part.split(",") if name]
    only = state.current().board
    return named or ([only] if only else [])


def _rights(given: list[str]) -> tuple[Right, ...]:
    from slateboard import Action, Right  # noqa: PLC0415 -- brings in grpc

    found = []
    for one in given:
        actions, colon, prefix = one.partition(":")
        if not colon:
            raise problems.usage(f"a right is ACTIONS:PREFIX, e.g. read,append:inbox/, not {one!r}")
        found.append(
            Right(prefix, tuple(values.member(Action, word, "action") for word in actions.split(",")))
        )
    return tuple(found)


def create(
    id_: Id,
    role: Annotated[str, typer.Option(metavar="ROLE", help=_ROLES + ".")] = "worker",
    boards: Boards = None,
    right: Rights = None,
    trust_ceiling: Ceiling = None,
    name: Annotated[str, typer.Option(metavar="TEXT", help="For people.")] = "",
    token_ttl: TokenTtl = None,
) -> None:
    """Make a principal and print its token, which nobody can look up later."""
    from slateboard import Role, Trust  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    wanted = values.member(Role, role, "role")
    with state.client(admin=True) as client:
        made = client.admin.create_principal(
            id_,
            wanted,
            boards=_boards(boards),
            rights=_rights(right or []),
            trust_ceiling=values.member(Trust, trust_ceiling, "trust") if trust_ceiling else None,
            display_name=name,
            token_ttl=values.duration(token_ttl, "--token-ttl") if token_ttl else None,
        )
    if not made.principal.boards and wanted is not Role.OPERATOR:
        output.err(
            f"{id_!r} has a part in no board yet: slate principal update {text.quote(id_)} --boards NAME"
        )
    state.show(
        lambda: {"principal": documents.principal(made.principal), "token": made.token},
        lambda: _token(made.token, f"the token of {id_!r}, shown only now:"),
    )


def _token(token: str, words: str) -> None:
    """The token alone on standard output, so that `TOKEN=$(slate principal create ...)` works."""
    output.err(words)
    output.out(text.line(token))


def list_() -> None:
    """List all principals, or those of --board."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.client(admin=True) as client:
        found = client.admin.principals(board=state.current().board or "").all()
    headers = ("principal", "role", "boards", "trust ceiling", "state", "name")
    rows = [
        (
            one.id,
            one.role.name.lower(),
            ",".join(one.boards),
            one.trust_ceiling.name.lower(),
            "disabled" if one.disabled else "active",
            one.display_name,
        )
        for one in found
    ]
    state.show(lambda: [documents.principal(one) for one in found], lambda: output.table(headers, rows))


def show(id_: Id) -> None:
    """Show a principal and its tokens, without their secrets."""
    with state.client(admin=True) as client:
        found = client.admin.get_principal(id_)
    _show(found)


def whoami() -> None:
    """Show whom your credential stands for."""
    with state.client() as client:
        found = client.whoami()
    _show(found)


def _show(found: Principal) -> None:
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    pairs: list[tuple[str, object]] = [
        ("principal", found.id),
        ("name", found.display_name),
        ("role", found.role.name.lower()),
        ("boards", ", ".join(found.boards)),
        ("trust ceiling", found.trust_ceiling.name.lower()),
        ("state", "disabled" if found.disabled else "active"),
        ("created", text.time(found.create_time)),
        ("created by", found.created_by),
        ("this token", found.token_id),
    ]
    pairs += [
        ("right", f"{','.join(action.name.lower() for action in one.actions)}:{one.prefix}")
        for one in found.rights
    ]
    pairs += [
        (
            "token",
            f"{one.token_id} of {text.time(one.create_time)}, "
            + ("revoked" if one.revoked else f"ends {text.time(one.expire_time) or 'never'}"),
        )
        for one in found.tokens
    ]
    state.show(lambda: documents.principal(found), lambda: output.fields(pairs))


def update(
    id_: Id,
    role: Annotated[str | None, typer.Option(metavar="ROLE", help=_ROLES + ".")] = None,
    boards: Boards = None,
    right: Rights = None,
    trust_ceiling: Ceiling = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="For people.")] = None,
) -> None:
    """Change what a principal is and may do; what is not named stays."""
    from slateboard import Role, Trust  # noqa: PLC0415 -- brings in grpc

    named = _boards(boards)
    if not (role or named or right or trust_ceiling or name is not None):
        raise problems.usage("nothing to change: give --role, --boards, --right, --trust-ceiling or --name")
    with state.client(admin=True) as client:
        found = client.admin.get_principal(id_)
        changed = dataclasses.replace(
            found,
            role=values.member(Role, role, "role") if role else found.role,
            boards=tuple(named) or found.boards,
            rights=_rights(right) if right else found.rights,
            trust_ceiling=values.member(Trust, trust_ceiling, "trust")
            if trust_ceiling
            else found.trust_ceiling,
            display_name=found.display_name if name is None else name,
        )
        _show(client.admin.update_principal(changed))


def rotate(
    id_: Annotated[
        str | None, typer.Argument(metavar="ID", help="The principal; default: the one of your token.")
    ] = None,
    overlap: Annotated[
        str | None, typer.Option(metavar="SPAN", help="How long older tokens go on working, at most 7d.")
    ] = None,
    token_ttl: TokenTtl = None,
) -> None:
    """Make a new token for a principal and print it; the older ones stop."""
    if id_ is None and not (state.current().token or os.environ.get("SLATE_TOKEN")):
        raise problems.usage("whose token? Say ID, or give your own in SLATE_TOKEN.")
    with state.client(admin=id_ is not None) as client:
        made = client.admin.rotate_token(
            id_,
            overlap=values.duration(overlap, "--overlap") if overlap else 0,
            token_ttl=values.duration(token_ttl, "--token-ttl") if token_ttl else None,
        )
    if id_ in {"operator", "local"}:
        output.err(f"a server on this machine mends its {id_}.token file at its next start")
    state.show(
        lambda: {"token_id": made.token_id, "token": made.token},
        lambda: _token(made.token, f"the new token {made.token_id}, shown only now:"),
    )


def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="As `slate principal show` lists it.")],
) -> None:
    """Stop one token."""
    with state.client(admin=True) as client:
        client.admin.revoke_token(token_id)
    state.show(
        lambda: {"token_id": token_id, "revoked": True}, lambda: output.out(f"{text.line(token_id)}  revoked")
    )


def disable(id_: Id, yes: Yes = False) -> None:
    """End a principal for good: its tokens stop, its id is never used again. Asks first, on a terminal."""
    if not output.confirm(f"End {id_} for good?", yes=yes):
        raise problems.CliError("nothing was done")
    with state.client(admin=True) as client:
        _show(client.admin.disable_principal(id_))
