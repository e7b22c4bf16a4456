"""What a person types as a value, a source, a trust, a time: into what the client takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slateboard.cli import problems, text

if TYPE_CHECKING:
    from slateboard import ContentOptions, Source

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Typed:
    """A value as bytes, with what they are."""

    raw: bytes
    content_type: str


def typed(raw: bytes, *, as_text: bool, as_json: bool, content_type: str | None) -> Typed:
    """Objects, arrays, numbers, true, false and null are JSON unless told otherwise; then text; else bytes."""
    if as_text + as_json + (content_type is not None) > 1:
        raise problems.usage("give one of --text, --json-value and --content-type TYPE")
    if content_type is not None:
        return Typed(raw, content_type)
    if as_json:
        try:
            json.loads(raw, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise problems.usage(f"--json-value: the value is not JSON: {error}") from error
        return Typed(raw, JSON)
    try:
        decoded = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if as_text:
            raise problems.usage("--text: the value is not UTF-8") from error
        return Typed(raw, BYTES)
    if not as_text and _is_json(decoded):
        return Typed(raw, JSON)
    return Typed(raw, TEXT)


def _is_json(shown: str) -> bool:
    try:
        found = json.loads(shown, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return not isinstance(found, str)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read(value: str | None, file: Path | None) -> bytes:
    """The bytes of VALUE, of standard input where it is `-`, or of a file."""
    if (value is None) == (file is None):
        raise problems.usage("give VALUE, `-` for standard input, or --file FILE: one of them")
    if file is not None:
        return file.read_bytes()
    assert value is not None
    return sys.stdin.buffer.read() if value == "-" else value.encode("utf-8")


def read_text(name: str) -> str:
    """The text of a file, or of standard input where its name is `-`."""
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise problems.usage(f"{name}: not UTF-8") from error


def read_json(name: str) -> Any:
    """The JSON document in a file, or on standard input where its name is `-`."""
    try:
        return json.loads(read_text(name), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise problems.usage(f"{name}: not JSON: {error}") from error


def member(enum: type[E], word: str, what: str) -> E:
    """An enum's member by its word."""
    try:
        return enum[word.strip().upper().replace("-", "_")]
    except KeyError:
        there_are = ", ".join(one.name.lower() for one in enum)
        raise problems.usage(f"no {what} {word!r}; there are {there_are}") from None


def sources(given: Iterable[str], region: str | None) -> list[Source]:
    """KEY@VERSION, each."""
    from slateboard import Source  # noqa: PLC0415 -- brings in grpc

    found = []
    for one in given:
        key, at, version = one.rpartition("@")
        if not at or not key or not (version.isascii() and version.isdigit() and int(version)):
            raise problems.usage(f"a source is KEY@VERSION, for instance notes/1@3, not {one!r}")
        found.append(Source(region=region or "shared", key=key, version=int(version)))
    return found


def moment(given: str, option: str) -> datetime:
    """A time with its zone."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise problems.usage(f"{option}: {given!r} is no time; write 2030-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise problems.usage(f"{option}: {given!r} has no time zone; write {given}Z for UTC")
    return found


_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def duration(given: str, option: str) -> float:
    """Seconds: `90`, `90s`, `15m`, `12h`, `30d`."""
    number, unit = (given[:-1], given[-1]) if given[-1:] in _UNITS else (given, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = -1.0
    if not 0 < found < 1e11:
        raise problems.usage(f"{option}: {given!r} is no span of time; write 90s, 15m, 12h or 30d")
    return found


def content(
    made: Typed,
    *,
    trust: str | None,
    derived_from: Iterable[str],
    expires: str | None,
    ttl: str | None,
    note: str,
    labels: Iterable[str],
    region: str | None,
) -> ContentOptions:
    """The options of a put or append."""
    if expires is not None and ttl is not None:
        raise problems.usage("give --expires TIME or --ttl SPAN, not both")
    from slateboard import Trust  # noqa: PLC0415 -- brings in grpc

    options: ContentOptions = {"content_type": made.content_type}
    if trust is not None:
        options["trust"] = member(Trust, trust, "trust")
    if found := sources(derived_from, region):
        options["derived_from"] = found
    if expires is not None:
        options["expire_time"] = moment(expires, "--expires")
    if ttl is not None:
        options["ttl"] = duration(ttl, "--ttl")
    if note:
        options["note"] = note
    if pairs := dict(_pair(one) for one in labels):
        options["labels"] = pairs
    return options


def _pair(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise problems.usage(f"--label takes NAME=VALUE, not {given!r}")
    return name, value


def prefix(given: str) -> str:
    """A prefix ends with a slash; people forget it."""
    return given if not given or given.endswith("/") else given + "/"


def preview(raw: bytes | None, content_type: str, width: int = 60) -> str:
    """The beginning of a value on one line."""
    if raw is None:
        return ""
    try:
        shown = raw[: width * 4].decode("utf-8", "strict" if len(raw) <= width * 4 else "ignore")
    except UnicodeDecodeError:
        return f"<{text.size(len(raw))} of {text.line(content_type)}>"
    return text.shorten(shown, width)
