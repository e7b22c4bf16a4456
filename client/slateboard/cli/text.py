"""What comes from outside, made fit for a terminal: nothing in it moves the cursor, paints, or reorders letters."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

# Control characters (C0, DEL, C1), soft hyphen, zero-width and bidirectional marks, line separators, lone surrogates,
# tags and the byte order mark: what a terminal obeys or hides.
_UNSAFE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
_LINE = re.compile(f"[{_UNSAFE}]")
_BLOCK = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char in _SHORT:
        return _SHORT[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def line(text: str) -> str:
    """The text on one line, what cannot be shown as escapes."""
    return _LINE.sub(_escaped, text)


def block(text: str) -> str:
    """As `line`, but line feeds and tabs stay."""
    return _BLOCK.sub(_escaped, text)


def shorten(text: str, width: int = 60) -> str:
    """The beginning of a text on one line."""
    shown = line(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def to_json(document: object, *, indent: int | None = None) -> str:
    """JSON that no terminal obeys: the characters that `line` escapes are JSON's escapes here.

    Raises:
        ValueError: NaN or infinity.
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=indent)
    # Outside strings there are only the line feeds of the indentation.
    return _BLOCK.sub(_json_escaped, text)


def quote(argument: str) -> str:
    """An argument as a shell reads it back; control characters as `$'...'`."""
    if not _LINE.search(argument):
        return shlex.quote(argument)
    pieces = argument.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _LINE.sub(_escaped, pieces) + "'"


def command(arguments: Sequence[str]) -> str:
    """A command line as a shell reads it back."""
    return " ".join(quote(argument) for argument in arguments)


def time(moment: datetime | None) -> str:
    """A moment in UTC, to the second, for people; empty where there is none."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(moment: datetime | None) -> str | None:
    """A moment in UTC, for programs."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError
