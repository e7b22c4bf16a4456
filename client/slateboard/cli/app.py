"""The command line put together."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer

from slateboard.cli import (
    admin,
    boards,
    demo,
    doctor,
    entries,
    files,
    follow,
    lineage,
    locks,
    options,
    problems,
    serve,
    state,
    version,
)

_WORDS = """A shared blackboard for teams of AI agents.

`slate serve` starts a server; `slate board create NAME` makes a board; then `slate put KEY VALUE`, `slate get KEY`.

The exit code is 0 when it was done, 1 when it failed, 2 for a command line that makes no sense, 3 for contention, 4 for
what is not found, 5 where access is denied.
"""

slate = options.app(_WORDS, no_args_is_help=True)


def _version(asked: bool) -> None:
    if asked:
        version.version()
        raise typer.Exit


@slate.callback()
def _main(
    _asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


for part in (serve, doctor, demo, version, boards, admin, entries, files, follow, locks, lineage):
    part.add_to(slate)


def run(arguments: list[str]) -> None:
    """Run a command line and leave by SystemExit."""
    state.begin(arguments)
    made: Any = typer.main.get_command(slate)
    try:
        code = made.main(arguments, prog_name="slate")
    except SystemExit as left:
        code = left.code
    except BaseException as error:  # noqa: BLE001 -- the last one to say what went wrong
        code = problems.report(error)
    _close_quietly()
    raise SystemExit(code)


def _close_quietly() -> None:
    """Let a reader that left early, as `head` does, go without a word."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
