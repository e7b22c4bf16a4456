"""Protobuf by hand, for the few messages that are sent all the time.

An entry is immutable, so its encoding is made once and kept beside it; a reply is then a concatenation. What is written
here is what protobuf would write (a test compares); the messages themselves are defined in the protos alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from slateboard.v1 import types_pb2
from slateboard_server.services.model import Stamp

_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))


def tag(field: int) -> bytes:
    """Return the tag of a length-delimited field."""
    return varint(field << 3 | 2)


def varint(number: int) -> bytes:
    """Encode a number that is not negative."""
    if number < 128:
        return _ONE_BYTE[number]
    parts = bytearray()
    while number >= 128:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def delimited(field_tag: bytes, payload: bytes) -> bytes:
    """Encode a length-delimited field; `field_tag` as `tag` returns it."""
    return b"%b%b%b" % (field_tag, varint(len(payload)), payload)


HEADER_TAG: Final = tag(1)
"""`header` is field 1 of every reply."""


class Headers:
    """Makes reply headers of one replica."""

    def __init__(self, replica_id: str) -> None:
        """Put `replica_id` into each."""
        self._replica_id = replica_id
        self._encoded = lru_cache(maxsize=4_096)(self._encode)
        self.no_board = types_pb2.ResponseHeader(replica_id=replica_id)
        """The header of a reply in which no board is involved."""

    def message(self, stamp: Stamp) -> types_pb2.ResponseHeader:
        """Return a header as a message."""
        return types_pb2.ResponseHeader(
            revision=stamp.revision,
            oldest_revision=stamp.oldest_revision,
            incarnation=stamp.incarnation,
            replica_id=self._replica_id,
        )

    def field(self, stamp: Stamp) -> bytes:
        """Return the encoded `header` field of a reply."""
        return self._encoded(stamp.revision, stamp.oldest_revision, stamp.incarnation)

    def _encode(self, revision: int, oldest_revision: int, incarnation: str) -> bytes:
        header = types_pb2.ResponseHeader(
            revision=revision,
            oldest_revision=oldest_revision,
            incarnation=incarnation,
            replica_id=self._replica_id,
        )
        return delimited(HEADER_TAG, header.SerializeToString())
