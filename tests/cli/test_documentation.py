"""docs/cli.md tells of every command and option, and of none that does not exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from slateboard.cli import app

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
_GLOBAL = {"--server", "--board", "--token", "--region", "--json", "--help"}


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join(("slate", *path, name)), command


COMMANDS = dict(_commands(typer.main.get_command(app.slate)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    group, _, name = command.rpartition(" ")
    # `slate board create|ls NAME` tells of both.
    in_group = re.search(rf"{re.escape(group)} (?:\S+\|)?{re.escape(name)}\b", DOCS)
    assert in_group, f"docs/cli.md does not mention `{command}`"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(command: str) -> None:
    for parameter in COMMANDS[command].params:
        named = [name for name in parameter.opts if name.startswith("--")]
        if named and not set(named) & _GLOBAL:
            assert any(name in DOCS for name in named), f"docs/cli.md: `{command}` has {named[0]}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_a_sentence(command: str) -> None:
    assert (COMMANDS[command].help or "").strip()


def test_no_command_is_documented_that_does_not_exist() -> None:
    known = {tuple(command.split()[1:]) for command in COMMANDS} | {
        tuple(command.split()[1:2]) for command in COMMANDS
    }
    for first in re.findall(r"(?<![\w/.])slate ([a-z]+)", DOCS):
        assert any(names[0] == first for names in known), f"docs/cli.md mentions `slate {first}`"


def test_exit_codes_and_variables_are_documented() -> None:
    for code in ("0", "1", "2", "3", "4", "5", "130"):
        assert re.search(rf"\b{code}\b", DOCS)
    for name in ("SLATE_SERVER", "SLATE_BOARD", "SLATE_TOKEN", "SLATE_DATA", "NO_COLOR", "SLATE_DEBUG"):
        assert name in DOCS
