"""What no request can be, whatever the board's state: refused with the field's path and the limit."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Final, NoReturn

from google.protobuf.message import Message

from slateboard.v1 import types_pb2
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid, too_large, too_many
from slateboard_server.domain.limits import MAX_LABELS, MAX_TAG_BYTES
from slateboard_server.domain.names import check_key, check_prefix, check_region
from slateboard_server.domain.values import Key, Region, Trust

_JSON: Final = "application/json"
_IN_A_THREAD: Final = 64 << 10
"""Bytes of JSON from which on parsing would hold up the event loop for more than about a millisecond."""
_UUID_TEXT: Final = 36


def check_request_id(text: str, field: str = "request_id") -> str:
    """Return a UUID in its canonical spelling, so that two spellings are one request."""
    if len(text) != _UUID_TEXT:  # also refuses braces and urn:, which uuid.UUID would take
        raise _request_id_invalid(text, field)
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise _request_id_invalid(text, field) from error


def _request_id_invalid(text: str, field: str) -> SlateboardError:
    why = (
        "is not a UUID"
        if text
        else "is required: a UUID, fresh with every new write and the same with its retries"
    )
    return SlateboardError(Reason.REQUEST_ID_INVALID, f"{field} {why}", field=field)


def check_text(text: str, limit: int, field: str) -> str:
    """Return a text of at most `limit` bytes, without NUL, which PostgreSQL cannot hold."""
    if "\0" in text:
        raise field_invalid(field, "must not contain NUL")
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise too_large(field, size, limit)
    return text


def check_count(values: Sequence[object], limit: int, field: str) -> None:
    """Refuse a list that is longer than its limit."""
    if len(values) > limit:
        raise too_many(field, len(values), limit)


def check_texts(values: Sequence[str], most: int, limit: int, field: str) -> tuple[str, ...]:
    """Return texts, at most `most` of at most `limit` bytes each."""
    check_count(values, most, field)
    return tuple([check_text(text, limit, f"{field}[{index}]") for index, text in enumerate(values)])


def check_labels(labels: Sequence[tuple[str, str]], field: str) -> tuple[tuple[str, str], ...]:
    """Return labels sorted by name."""
    check_count(labels, MAX_LABELS, field)
    for name, value in labels:
        if not name:
            raise field_invalid(field, "a label needs a name")
        check_text(name, MAX_TAG_BYTES, field)
        check_text(value, MAX_TAG_BYTES, f"{field}[{name[:80]!r}]")
    return tuple(sorted(labels))


def check_trust(number: int, field: str) -> Trust | None:
    """Return a trust, None where it is unset; FIELD_INVALID for a number nobody knows."""
    if number == 0:
        return None
    try:
        return Trust(number)
    except ValueError as error:
        raise field_invalid(field, f"there is no trust {number}") from error


def check_known(number: int, known: int, field: str) -> int:
    """Return an enum's number; FIELD_INVALID for one above `known`: guessing what it means would be worse."""
    if not 0 <= number <= known:
        raise field_invalid(field, f"there is no value {number}")
    return number


def read_key(ref: types_pb2.KeyRef, field: str) -> tuple[Region, Key]:
    """Read the name of one key."""
    return check_region(ref.region, f"{field}.region"), check_key(ref.key, f"{field}.key")


def read_prefix(ref: types_pb2.PrefixRef, field: str) -> tuple[Region, str]:
    """Read the name of a subtree."""
    return check_region(ref.region, f"{field}.region"), check_prefix(ref.prefix, f"{field}.prefix")


def check_no_unknown(request: Message) -> None:
    """Refuse fields that this server does not know.

    For requests that narrow down what is read: a condition that an older server drops in silence returns what the
    caller asked not to see.
    """
    size = request.ByteSize()
    request.DiscardUnknownFields()  # type: ignore[no-untyped-call,unused-ignore]  # stubs differ between releases
    if request.ByteSize() != size:
        raise field_invalid(
            request.DESCRIPTOR.name,
            "the request has fields that this server does not know; is it older than the client?",
        )


async def check_value(value: bytes, content_type: str, field: str) -> None:
    """Refuse JSON that is none, and text that is not UTF-8. Large values are looked at off the event loop."""
    if content_type == _JSON or content_type.startswith((_JSON + ";", "text/")):
        if len(value) > _IN_A_THREAD:
            await asyncio.to_thread(check_value_now, value, content_type, field)
        else:
            check_value_now(value, content_type, field)


def check_value_now(value: bytes, content_type: str, field: str) -> None:
    """Refuse a value that does not fit its type."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise field_invalid(
            field, f"is not valid UTF-8 (byte {error.start}), which {content_type} must be"
        ) from error
    if content_type.startswith(_JSON):
        check_json(text, field)


def check_json(text: str, field: str) -> None:
    """Refuse a text that is not JSON by RFC 8259: NaN and Infinity are not."""
    try:
        # Numbers stay text: a number of a million digits must not cost a second.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise field_invalid(field, f"is not valid JSON: {error.msg} at character {error.pos}") from error
    except _Constant as error:
        raise field_invalid(field, f"is not valid JSON: {error} is no JSON number") from error
    except RecursionError as error:
        raise field_invalid(field, "is JSON nested too deeply") from error


class _Constant(ValueError):
    """NaN, Infinity or -Infinity."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Constant(name)
