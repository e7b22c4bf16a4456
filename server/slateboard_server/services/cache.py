"""A bounded cache of present entries, shared by all boards of a replica. It knows nothing of freshness: `feed.py` does."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, TypeAlias

from slateboard_server.domain.entry import VersionRecord

_OVERHEAD: Final = 700
"""Bytes accounted for an entry beyond its value: the record, its key and the table's share (measured: 560 to 680)."""


class Absent(Enum):
    """Marks a key that is known to be absent."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
CacheKey: TypeAlias = tuple[int, int, str, str]
"""(board, epoch, region, key). Raising a board's epoch forgets all it had at once; the rest ages out."""


class EntryCache:
    """Least recently used entries within a bound of bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Hold at most about `max_bytes`."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[CacheKey, VersionRecord | Absent] = OrderedDict()

    def __len__(self) -> int:
        """Return how many keys are held."""
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        """Return the bytes accounted for."""
        return self._bytes

    def get(self, key: CacheKey) -> VersionRecord | Absent | None:
        """Return the entry, ABSENT, or None where the cache does not know."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: CacheKey, value: VersionRecord | Absent) -> None:
        """Keep what is now true of a key; the least recently used go."""
        old = self._entries.pop(key, None)
        if old is not None:
            self._bytes -= _cost(key, old)
        self._entries[key] = value
        self._bytes += _cost(key, value)
        while self._bytes > self._max_bytes and self._entries:
            gone, entry = self._entries.popitem(last=False)
            self._bytes -= _cost(gone, entry)


def _cost(key: CacheKey, value: VersionRecord | Absent) -> int:
    size = _OVERHEAD + 2 * len(key[3])
    if isinstance(value, VersionRecord):
        size += 2 * value.size  # the bytes, and once more for the encoding that the edge may keep beside them
    return size
