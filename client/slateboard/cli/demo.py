"""`slate demo`: a team of agents at work."""

from __future__ import annotations

import os

import typer

from slateboard.cli import options, problems, state


def add_to(slate: typer.Typer) -> None:
    """Add the command."""
    options.command(
        slate,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(demo)


def demo(context: typer.Context) -> None:
    """Run the demo: a supervisor and its workers clean and report on real orders. `slate demo --help` has its options."""
    try:
        from agents_demo.__main__ import main  # noqa: PLC0415 -- only this command needs it
    except ModuleNotFoundError as error:
        raise problems.CliError(
            f"the demo is not installed here: install slateboard[server] from its source ({error.name} is missing)"
        ) from error
    given = state.current()
    arguments = [*context.args, *(["--json"] if given.json else [])]
    if given.server:
        arguments += ["--server", given.server]
    if given.token:
        os.environ["SLATE_TOKEN"] = given.token
    raise typer.Exit(main(arguments))
