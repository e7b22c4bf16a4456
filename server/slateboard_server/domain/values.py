"""Words of the domain as types: what must not be mixed has a type of its own."""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

Revision = NewType("Revision", int)
"""Per board, +1 per commit, from 1; 0 is the empty board."""
Version = NewType("Version", int)
"""Per key, 1, 2, 3 ...; 0 means absent."""
Micros = NewType("Micros", int)
"""A moment: microseconds since 1970-01-01 UTC. The only form of time inside the server."""
BoardId = NewType("BoardId", int)
"""A board's number in the database; never reused, unlike its name."""
Etag = NewType("Etag", str)
Incarnation = NewType("Incarnation", str)
PrincipalId = NewType("PrincipalId", str)
SessionId = NewType("SessionId", str)
TokenId = NewType("TokenId", str)
Region = NewType("Region", str)
Key = NewType("Key", str)
FencingToken = NewType("FencingToken", int)
LockId = NewType("LockId", str)

SECOND = 1_000_000
"""Micros in a second."""
LAST_MOMENT = Micros(253_402_300_800 * SECOND - 1)
"""The last microsecond of the year 9999: no later moment can be told on the wire."""


class Trust(IntEnum):
    """How far an entry can be believed. Comparable: a lower number is less trust; numbers are those of the API."""

    QUARANTINED = 1
    EXTERNAL = 2
    AGENT = 3
    USER = 4
    VERIFIED = 5
    SYSTEM = 6


class Kind(IntEnum):
    """What sort of memory an entry is. Numbers are those of the API."""

    WORKING = 1
    EPISODIC = 2
    SEMANTIC = 3
    PREFERENCE = 4
    PROCEDURAL = 5


class Tombstone(IntEnum):
    """Why a version marks an absence; NONE: it is a value."""

    NONE = 0
    DELETED = 1
    EXPIRED = 2
    PURGED = 3
