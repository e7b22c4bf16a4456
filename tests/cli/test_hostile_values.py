"""What agents write cannot drive the terminal of whoever reads it."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from slateboard.cli import text
from tests.cli.running import Slate

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\r\x00\u202egnp\u200b\x9b31m"
"""Clears the screen, sets the title, is rich markup, goes back to the line's beginning, turns letters round."""


def _put(slate: Slate, key: str, value: object, **more: Any) -> None:
    document = {"ops": [{"put": {"key": key, "value": value, "absent": True, **more}}]}
    slate.ok("commit", "-", stdin=json.dumps(document).encode())


def _harmless(shown: str) -> bool:
    """Nothing but our own colours, which are SGR sequences, is left of what a terminal obeys."""
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    bare = re.sub(r"\x1b\[\?25[lh]|\x1b\[[0-9]*[A-K]|\x1b\[[0-9]*K", "", bare)
    return not any(
        char not in "\n\t\r" and (ord(char) < 32 or 0x7F <= ord(char) < 0xA0) for char in bare
    ) and ("\u202e" not in bare and "\u200b" not in bare)


@pytest.mark.parametrize(
    "command", [("get", "k"), ("get", "k", "--json"), ("diff", "k"), ("ls",), ("status", "k")]
)
def test_a_stored_value_cannot_drive_a_terminal(slate: Slate, command: tuple[str, ...]) -> None:
    _put(slate, "k", {"said": HOSTILE, HOSTILE: 1}, note=HOSTILE.replace("\x00", ""), subject="s")
    code, shown = slate.terminal(*command)
    assert code == 0, shown
    assert _harmless(shown), repr(shown)
    assert "owned\x07" not in shown


def test_a_stored_text_is_shown_with_escapes(slate: Slate) -> None:
    slate.ok("put", "k", "-", stdin=b"one\n\x1b[31mtwo [bold]three[/bold]")
    code, shown = slate.terminal("get", "k")
    assert code == 0
    assert "\\x1b[31mtwo [bold]three[/bold]" in shown
    assert "one\n" in shown


def test_json_on_a_terminal_is_spread_out_and_still_json(slate: Slate) -> None:
    _put(slate, "k", {"a": [1, HOSTILE]})
    code, shown = slate.with_env(NO_COLOR="1", SLATE_TOKEN=None).terminal("get", "k", "--json")
    assert code == 0
    document = shown[shown.index("{") :]
    assert json.loads(document)["value"] == {"a": [1, HOSTILE]}
    assert "\n  " in document


def test_in_a_pipe_the_bytes_are_left_alone(slate: Slate) -> None:
    data = b"\x1b[31m\x00\xff"
    slate.ok("put", "k", "-", stdin=data)
    assert slate.ok("get", "k").stdout == data


def test_bytes_on_a_terminal_are_described_and_not_sent(slate: Slate) -> None:
    slate.ok("put", "k", "-", stdin=b"\x1b[2J\xff" * 100)
    code, shown = slate.terminal("get", "k")
    assert code == 0
    assert "500 B" in shown
    assert "\x1b[2J" not in shown


def test_rich_markup_in_names_is_shown_as_it_is(slate: Slate) -> None:
    _put(slate, "k/[bold]x[/bold]", 1)
    code, shown = slate.terminal("ls")
    assert code == 0
    assert "k/[bold]x[/bold]" in shown


def test_tables_have_colour_and_headers_on_a_terminal_only(slate: Slate) -> None:
    slate.ok("put", "k", '{"a": 1}')
    assert slate.ok("ls").out.count("\n") == 1
    _, on_terminal = slate.terminal("ls")
    assert "version" in on_terminal
    _, coloured = slate.terminal("get", "k")
    assert "\x1b[" in coloured
    _, plain = slate.with_env(NO_COLOR="1").terminal("get", "k")
    assert "\x1b[" not in plain
    _, plain = slate.with_env(NO_COLOR="1").terminal("ls")
    assert "\x1b[" not in plain


def test_a_watch_shows_a_line_a_change_whatever_was_written(slate: Slate) -> None:
    _put(slate, "k", HOSTILE + "\nsecond line")
    shown = slate.ok("watch", "--after", "0", "--count", "1").out
    assert shown.count("\n") == 1
    assert _harmless(shown)


def test_deeply_nested_json_is_shown_without_a_fault(slate: Slate) -> None:
    slate.ok("put", "k", "-", "--content-type", "application/json", stdin=b"[" * 400 + b"]" * 400)
    assert slate.ok("get", "k", "--json").json["version"] == 1
    code, _ = slate.terminal("get", "k")
    assert code == 0


def test_a_number_beyond_floats_is_kept_and_shown(slate: Slate) -> None:
    slate.ok("put", "k", "-", "--json-value", stdin=b"1e999")
    assert slate.ok("get", "k").stdout == b"1e999"
    assert slate.ok("get", "k", "--json").json["encoding"] == "base64"
    code, shown = slate.terminal("get", "k")
    assert code == 0
    assert "1e999" in shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\x1b[0m", "a\\x1b[0m"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\u202e\u2066\ufeff", "\\u202e\\u2066\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve 计划 🙂", "naïve 计划 🙂"),
    ],
)
def test_a_line_escapes_what_a_terminal_obeys_or_hides(given: str, shown: str) -> None:
    assert text.line(given) == shown


def test_json_escapes_read_back_as_what_they_were() -> None:
    given = {HOSTILE: ["\U000e0041", "\u2028", "计划"]}
    shown = text.to_json(given)
    assert json.loads(shown) == given
    assert text.line(shown) == shown


@pytest.mark.parametrize(
    ("given", "quoted"),
    [("plain/key", "plain/key"), ("it's", "'it'\"'\"'s'"), ("", "''"), ("a\nb'c\\", "$'a\\nb\\'c\\\\'")],
)
def test_quoting_is_what_a_shell_reads_back(given: str, quoted: str) -> None:
    assert text.quote(given) == quoted


def test_times_are_utc_for_programs_and_people() -> None:
    moment = datetime.fromisoformat("2026-01-02T03:04:05.5+02:00")
    assert text.iso(moment) == "2026-01-02T01:04:05.500000Z"
    assert text.time(moment) == "2026-01-02 01:04:05"
    assert text.time(None) == ""
    assert text.iso(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00Z"
