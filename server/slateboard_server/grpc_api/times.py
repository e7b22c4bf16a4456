"""Times and durations on the wire. Inside the server a moment is microseconds since the epoch, in UTC, and nothing else."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from slateboard_server.domain.errors import field_invalid
from slateboard_server.domain.values import SECOND, Micros

_FIRST_SECOND: Final = -62_135_596_800
"""0001-01-01T00:00:00Z"""
_LAST_SECOND: Final = 253_402_300_799
"""9999-12-31T23:59:59Z"""
_MAX_DURATION_S: Final = 315_576_000_000
"""10,000 years, protobuf's own bound."""


def set_time(target: Timestamp, moment: Micros) -> None:
    """Write a moment into a field."""
    seconds, micros = divmod(moment, SECOND)
    target.seconds = seconds
    target.nanos = micros * 1_000


def to_timestamp(moment: Micros) -> Timestamp:
    """Return a moment as a message."""
    seconds, micros = divmod(moment, SECOND)
    return Timestamp(seconds=seconds, nanos=micros * 1_000)


def read_time(value: Timestamp, field: str) -> Micros:
    """Read a moment; what is finer than a microsecond is cut off. FIELD_INVALID outside the years 1 to 9999."""
    if not _FIRST_SECOND <= value.seconds <= _LAST_SECOND:
        raise field_invalid(field, "the time lies outside the years 1 to 9999")
    if not 0 <= value.nanos <= 999_999_999:
        raise field_invalid(field, "nanos must be 0 to 999,999,999", limit=999_999_999)
    return Micros(value.seconds * SECOND + value.nanos // 1_000)


def read_duration(value: Duration, field: str) -> int:
    """Read a duration in Micros; FIELD_INVALID for a negative or malformed one."""
    if not 0 <= value.seconds <= _MAX_DURATION_S or not 0 <= value.nanos <= 999_999_999:
        raise field_invalid(field, "a duration is 0 to 10,000 years, with nanos of 0 to 999,999,999")
    return value.seconds * SECOND + value.nanos // 1_000


def set_duration(target: Duration, micros: int) -> None:
    """Write a duration into a field."""
    target.seconds, rest = divmod(micros, SECOND)
    target.nanos = rest * 1_000
