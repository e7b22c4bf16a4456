"""Commands and groups that take the global options, before and after the command's name, and report errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from slateboard.cli import problems, state


def _store(name: str) -> Callable[[Any], Any]:
    def keep(value: Any) -> Any:
        if value:
            setattr(state.current(), name, value)
        return value

    return keep


def _option(name: str, words: str, metavar: str | None = None) -> Any:
    return typer.Option(f"--{name}", help=words, metavar=metavar, expose_value=False, callback=_store(name))


def _globals(
    server: Annotated[
        str | None, _option("server", "The server; default SLATE_SERVER, else 127.0.0.1:7400.", "HOST:PORT")
    ] = None,
    board: Annotated[
        str | None, _option("board", "The board; default SLATE_BOARD, else the only one.", "NAME")
    ] = None,
    token: Annotated[
        str | None, _option("token", "The credential; default SLATE_TOKEN, else this machine's.", "TOKEN")
    ] = None,
    region: Annotated[
        str | None, _option("region", "The region: shared (default), private, or its full name.", "REGION")
    ] = None,
    json: Annotated[bool, _option("json", "Print JSON.")] = False,
) -> None:
    """The global options, declared once."""


def _options() -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(_globals)
    return list(typer.main.get_command(app).params)


_OPTIONS = _options()


class Command(TyperCommand):
    """A command with the global options."""

    def __init__(self, *args: Any, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *_OPTIONS]
        super().__init__(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors become words and an exit code."""
        for argument in state.current().arguments:
            if any("\ud800" <= char <= "\udfff" for char in argument):
                raise SystemExit(
                    problems.report(
                        problems.usage("an argument is not UTF-8; pass bytes by --file or standard input")
                    )
                )
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Typer would call this a failure.
            raise SystemExit(problems.BROKEN_PIPE) from None


class Group(TyperGroup):
    """A group with the global options."""

    def __init__(self, *args: Any, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *_OPTIONS]
        super().__init__(*args, **more)


def app(words: str | None = None, **more: Any) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        cls=Group,
        help=words,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,
    )


Handler = Callable[..., Any]


def command(group: typer.Typer, name: str | None = None, **more: Any) -> Callable[[Handler], Handler]:
    """Add a function to a group as a command with the global options."""
    return group.command(name, cls=Command, **more)
