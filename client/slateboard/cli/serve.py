"""`slate serve`: a server in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from slateboard.cli import options, output, problems, text

NOT_INSTALLED = "the server is not installed here: pip install 'slateboard[server]'"


def add_to(slate: typer.Typer) -> None:
    """Add the command."""
    options.command(slate)(serve)
    options.command(slate)(migrate)


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
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file of the certificate chain: use TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM file of its key.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Every client must show a certificate of these.")
    ] = None,
) -> None:
    """Run a server until Ctrl-C or SIGTERM. Every setting also has a SLATEBOARD_ variable.

    Its first start on this machine leaves two tokens in the data directory: operator.token, which `slate board` and
    `slate principal` find by themselves, and local.token, which the other commands and slateboard.connect() find.
    """
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
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
        )
    except settings.ConfigError as error:
        raise problems.usage(str(error)) from error
    _say_what_next(loaded.data_dir, loaded.listen)
    raise typer.Exit(app.run(loaded))


def migrate(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The servers' TOML file, for its database_url.")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(metavar="URL", help="postgresql://...; default SLATEBOARD_DATABASE_URL.")
    ] = None,
) -> None:
    """Bring the schema of a PostgreSQL database up to date, once, before servers of a new version start.

    Servers of the version before go on working on it, so that they can be replaced one by one. Safe to run twice, and from
    several places at once. An embedded database is brought up to date by its server.
    """
    try:
        from slateboard_server import config as settings  # noqa: PLC0415 -- only this command needs a server
        from slateboard_server import storage  # noqa: PLC0415 -- as above
        from slateboard_server.domain.errors import SlateboardError  # noqa: PLC0415 -- as above
    except ModuleNotFoundError as error:
        raise problems.CliError(f"{NOT_INSTALLED} ({error.name} is missing)") from error
    try:
        url = settings.load(config, database_url=database_url).database_url
    except settings.ConfigError as error:
        raise problems.usage(str(error)) from error
    if url is None:
        raise problems.usage("which database? Say --database-url postgresql://..., or --config FILE")
    try:
        before, after = storage.migrate_database(url)
    except SlateboardError as error:
        raise problems.CliError(error.message) from error
    done = "is up to date" if before == after else f"went from {before or 'nothing'} to"
    output.out(f"the schema {done} ({after})" if before == after else f"the schema {done} {after}")


def _say_what_next(data_dir: Path, listen: str) -> None:
    """The first commands to try, as they must be typed in another shell to find this server."""
    from slateboard import _config  # noqa: PLC0415 -- where commands look if nothing is said

    told = []
    if data_dir.absolute() != _config.data_dir({**os.environ, "SLATE_DATA": ""}).absolute():
        told.append(f"SLATE_DATA={text.quote(str(data_dir.absolute()))}")
    listen = listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
    # Which port 0 becomes, the server says itself.
    if listen != _config.DEFAULT_ADDRESS and not listen.endswith(":0"):
        told.append(f"SLATE_SERVER={text.quote(listen)}")
    output.err(f"data and tokens are in {text.line(str(data_dir))}")
    if told:
        output.err(f"in another shell:  export {' '.join(told)}")
    output.err("to begin with:  slate board create NAME;  slate put KEY VALUE;  slate get KEY;  slate watch")
