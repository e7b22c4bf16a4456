"""`slate version`."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from slateboard.cli import options, output, state


def add_to(slate: typer.Typer) -> None:
    """Add the command."""
    options.command(slate)(version)


def installed(package: str) -> str:
    """The version of an installed package; empty where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def version() -> None:
    """Show the version of this program."""
    document = {"version": installed("slateboard") or "unknown", "python": platform.python_version()}
    state.show(lambda: document, lambda: output.out(f"slate {document['version']}"))
