"""`slate serve`: a server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slateboard.cli import options, problems

NOT_INSTALLED = "the server is not installed here: pip install 'slateboard[server]'"


def add_to(slate: typer.Typer) -> None:
    """Add the command."""
    options.command(slate)(serve)


def serve(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The database and the first tokens; default SLATE_DATA."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Default 127.0.0.1:7400; port 0: any free one.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with settings; see docs/cli.md.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Beyond this machine without TLS: tokens travel in the clear.")
    ] = False,
    log_format: Annotated[str | None, typer.Option(metavar="console|json", help="How to log.")] = None,
    database_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="postgresql://...; default: SQLite in the data directory."),
    ] = None,
) -> None:
    """Run a server until Ctrl-C or SIGTERM. Every setting also has a SLATEBOARD_ variable."""
    try:
        from slateboard_server import app  # noqa: PLC0415 -- only this command needs a server
        from slateboard_server import config as settings  # noqa: PLC0415 -- as above
    except ModuleNotFoundError as error:
        raise problems.CliError(f"{NOT_INSTALLED} ({error.name} is missing)") from error
    try:
        loaded = settings.load(
            config,
            data_dir=data,
            listen=listen,
            insecure=insecure or None,
            log_format=log_format,
            database_url=database_url,
        )
    except settings.ConfigError as error:
        raise problems.usage(str(error)) from error
    raise typer.Exit(app.run(loaded))
