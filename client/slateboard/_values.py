"""Values, durations and times: from Python to bytes and back."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from slateboard.errors import Invalid

Value: TypeAlias = Mapping[str, Any] | Sequence[Any] | str | bytes | int | float | bool | None
"""What can be written: `str`, `bytes`, or anything JSON can say."""

Duration: TypeAlias = timedelta | float | int
"""A span of time: a timedelta, or seconds."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"


def media_type(content_type: str) -> str:
    """The content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether values of this content type are JSON."""
    kind = media_type(content_type)
    return kind == JSON or kind.endswith("+json")


def encode(value: object, content_type: str | None = None) -> tuple[bytes, str]:
    """Bytes and content type of a value.

    Without a content type, `str` is text, `bytes` are bytes and everything else is JSON. With one, a value that is not
    `bytes` is encoded as it says; `bytes` are taken as they are.

    Raises:
        Invalid: NaN, infinity, a key that is not a string, or a type that JSON does not know.
    """
    if content_type == "":
        raise Invalid("content_type must not be empty; leave it out", metadata={"field": "content_type"})
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value), content_type or BYTES
    if content_type is None:
        content_type = TEXT if isinstance(value, str) else JSON
    if is_json(content_type):
        return encode_json(value), content_type
    if not isinstance(value, str):
        raise Invalid(
            f"a {type(value).__name__} cannot be written as {content_type}: pass str or bytes, or leave the "
            "content type out for JSON",
            metadata={"field": "content_type"},
        )
    return _utf8(value), content_type


def encode_json(value: object) -> bytes:
    """A value as compact UTF-8 JSON; keys keep their order.

    Raises:
        Invalid: as `encode`.
    """
    try:
        _check_keys(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise Invalid(f"not JSON: {error}", metadata={"field": "value"}) from error
    except (TypeError, RecursionError) as error:
        raise Invalid(
            f"not JSON: {error}. Values are str, bytes, or what JSON can say: objects with string keys, lists, "
            "numbers, true, false, null",
            metadata={"field": "value"},
        ) from error
    return _utf8(text)


def decode(raw: bytes, content_type: str) -> Any:
    """The Python value: JSON decoded, text as `str`, everything else as `bytes`.

    Bytes that are not what their content type says come back as bytes, never as an error: a reader must be able to
    look at what is there.
    """
    kind = media_type(content_type)
    try:
        if is_json(content_type):
            return json.loads(raw)
        if kind.startswith("text/"):
            return raw.decode("utf-8")
    except (ValueError, RecursionError):
        pass
    return raw


def seconds(duration: Duration, field: str) -> float:
    """A duration in seconds.

    Raises:
        Invalid: it is negative or not a number.
    """
    value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= value < float("inf"):
        raise Invalid(f"{field} must be a span of time, not {duration!r}", metadata={"field": field})
    return value


def aware(moment: datetime, field: str) -> datetime:
    """The moment in UTC.

    Raises:
        Invalid: it has no time zone, so it could be any of 24 hours.
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise Invalid(
            f"{field} needs a time zone, e.g. datetime.now(timezone.utc)", metadata={"field": field}
        )
    return moment.astimezone(UTC)


def _check_keys(value: object, depth: int = 0) -> None:
    """json.dumps would turn the keys 1 and None into "1" and "null" without a word."""
    if depth > 500:
        raise ValueError("nested more than 500 deep, or holding itself")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"an object's keys must be strings, {key!r} is not")
            if isinstance(inner, (dict, list, tuple)):
                _check_keys(inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            if isinstance(inner, (dict, list, tuple)):
                _check_keys(inner, depth + 1)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(
            f"not valid Unicode: lone surrogate at {error.start}", metadata={"field": "value"}
        ) from error
