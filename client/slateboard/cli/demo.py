"""`slate demo`: a team of agents at work."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import typer

from slateboard.cli import options, problems


def add_to(slate: typer.Typer) -> None:
    """Add the command."""
    options.command(
        slate,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(demo)


def demo(context: typer.Context) -> None:
    """Run the demo: a supervisor and its workers clean and report on real orders. `slate demo --help` has its options."""
    try:
        found = importlib.util.find_spec("agents_demo.__main__")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise problems.CliError(
            "the demo is not installed here: install slateboard with its server from its source"
        )
    done = subprocess.run([sys.executable, "-m", "agents_demo", *context.args], check=False)
    # A signal's number is negative here; a shell would say 128 and the number.
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
