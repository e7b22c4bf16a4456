"""`slate board ...`, `slate sessions`."""

from __future__ import annotations

from typing import Annotated

import typer

from slateboard.cli import options, output, policies, problems, state, text, values

Name = Annotated[str, typer.Argument(metavar="NAME", help="The board.")]
MaybeName = Annotated[str | None, typer.Argument(metavar="NAME", help="The board; default as for --board.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    group = options.app("Make, look at and rule boards.", no_args_is_help=True)
    options.command(group)(create)
    options.command(group, "ls")(list_)
    options.command(group)(show)
    options.command(group)(policy)
    options.command(group)(compact)
    options.command(group)(reincarnate)
    options.command(group)(delete)
    slate.add_typer(group, name="board")
    options.command(slate)(sessions)


def create(
    name: Name,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Fine if it is there already.")] = False,
) -> None:
    """Make a board. Finds the operator's token on this machine by itself."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.client(admin=True) as client:
        made = client.create_board(name, description=description, exist_ok=exist_ok).info()
    state.show(
        lambda: documents.board(made), lambda: output.out(f"{text.line(made.name)}  revision {made.revision}")
    )


def list_() -> None:
    """List the boards you have a part in. In a pipe: name, entries, bytes, revision, description, tabs between."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.client() as client:
        found = client.boards().all()
    headers = ("board", "entries", "bytes", "revision", "description")
    rows = [(one.name, one.entries, one.bytes, one.revision, one.description) for one in found]
    state.show(
        lambda: [documents.board(one) for one in found],
        lambda: output.table(headers, rows, empty="there is no board yet: slate board create NAME"),
    )


def show(name: MaybeName = None) -> None:
    """Show how a board stands, and what the answering server does for it."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board(asked=name) as (_, board):
        info = board.info()
    active = info.activity
    pairs: list[tuple[str, object]] = [
        ("board", info.name),
        ("description", info.description),
        ("entries", info.entries),
        ("bytes", info.bytes),
        ("revision", info.revision),
        ("oldest revision", info.oldest_revision),
        ("incarnation", info.incarnation),
        ("policy version", info.policy_version),
        ("created", text.time(info.create_time)),
        ("created by", info.created_by),
    ]
    if active is not None:
        pairs += [
            ("commits", active.commits),
            ("conflicts", active.conflicts),
            ("replays", active.replays),
            ("watches", active.watches),
            ("queued", active.queued_commits),
        ]
        pairs += [
            ("hot key", f"{one.key} ({one.writes} writes, {one.conflicts} conflicts)")
            for one in active.hot_keys
        ]
    state.show(lambda: documents.board(info), lambda: output.fields(pairs))


def policy(
    name: MaybeName = None,
    new: Annotated[
        str | None,
        typer.Option(
            "--set", metavar="FILE|-", help="Replace the rules by these, in the shape that --json shows."
        ),
    ] = None,
) -> None:
    """Show a board's rules, or replace them with --set if nobody changed them since they were read."""
    given = None if new is None else policies.parse(values.read_json(new))
    with state.board(asked=name) as (_, board):
        found = board.policy() if given is None else board.set_policy(given)
    document = policies.document(found)
    # The rules are a tree: people read it as JSON, too.
    state.show(lambda: document, lambda: output.out(text.to_json(document, indent=2)))


def compact(
    name: Name,
    revision: Annotated[
        int, typer.Option(metavar="R", min=1, help="It becomes the oldest one that can be read.")
    ],
) -> None:
    """Drop the values that were superseded at or before a revision; the lineage stays."""
    with state.board(admin=True, asked=name) as (_, board):
        dropped = board.compact(revision)
    document = {"board": name, "oldest_revision": revision, "compacted_versions": dropped}
    state.show(lambda: document, lambda: output.out(f"{dropped} versions lost their value"))


def reincarnate(name: Name, yes: Yes = False) -> None:
    """Begin a new life of a board: for after a restore from a backup. Watches and versions of the old one end."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board(admin=True, asked=name) as (client, board):
        now = board.info()
        _ask(f"End the present life of {name} ({now.entries} entries stay)?", yes)
        made = client.reincarnate_board(name, incarnation=now.incarnation)
    state.show(
        lambda: documents.board(made),
        lambda: output.out(f"{text.line(made.name)}  incarnation {text.line(made.incarnation)}"),
    )


def delete(
    name: Name,
    incarnation: Annotated[
        str | None, typer.Option(metavar="ID", help="Only if it still is the board of this incarnation.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete a board with all it holds. Asks first, on a terminal."""
    with state.board(admin=True, asked=name) as (client, board):
        now = board.info()
        _ask(f"Delete the board {name} with its {now.entries} entries and their history?", yes)
        client.delete_board(name, incarnation=incarnation or now.incarnation)
    state.show(lambda: {"board": name, "deleted": True}, lambda: output.out(f"{text.line(name)}  deleted"))


def _ask(question: str, yes: bool) -> None:
    if not output.confirm(question, yes=yes):
        raise problems.CliError("nothing was done")


def sessions(
    state_: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Only active, stale or ended ones.")
    ] = None,
    principal: Annotated[str, typer.Option(metavar="ID", help="Only this principal's.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 50,
) -> None:
    """List who is at work on a board, newest first."""
    from slateboard import SessionState  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    wanted = None if state_ is None else values.member(SessionState, state_, "state")
    with state.board() as (_, board):
        pages = board.sessions(state=wanted, principal=principal, page_size=min(limit, 500))
        found = [one for one, _ in zip(pages, range(limit), strict=False)]
    headers = ("session", "principal", "state", "task", "started", "last seen")
    rows = [
        (
            one.session_id,
            one.principal,
            one.state.name.lower(),
            one.task,
            text.time(one.start_time),
            text.time(one.last_seen_time),
        )
        for one in found
    ]
    state.show(
        lambda: [documents.session(one) for one in found],
        lambda: output.table(headers, rows, empty="nobody is at work"),
    )
