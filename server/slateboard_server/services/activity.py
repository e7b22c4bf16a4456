"""Live counters of a board on this replica, for `slate top` and metrics. Bounded, approximate, never part of a decision."""

from __future__ import annotations

from collections import Counter
from typing import Final

from slateboard_server.domain.values import Key, Region
from slateboard_server.services.model import HotKey
from slateboard_server.services.scope import Scope

_WINDOW_S: Final = 30.0
_MAX_KEYS: Final = 2_048
_SHOWN: Final = 20


class BoardActivity:
    """Counts commits, conflicts, replays, and which keys are hot over the last half to one minute."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.commits = 0
        self.conflicts = 0
        self.replays = 0
        self._since = 0.0
        self._writes: tuple[Counter[tuple[Region, Key]], Counter[tuple[Region, Key]]] = (Counter(), Counter())
        self._fights: tuple[Counter[tuple[Region, Key]], Counter[tuple[Region, Key]]] = (Counter(), Counter())

    def wrote(self, region: Region, key: Key, now: float) -> None:
        """Count a write of a key; `now` in monotonic seconds."""
        self._roll(now)
        _count(self._writes[0], (region, key))

    def fought(self, region: Region, key: Key, now: float) -> None:
        """Count a conflict on a key."""
        self._roll(now)
        _count(self._fights[0], (region, key))

    def _roll(self, now: float) -> None:
        # Two windows: the running one and the one before. What is older than both is forgotten.
        if now - self._since >= _WINDOW_S:
            stale = now - self._since >= 2 * _WINDOW_S
            self._writes = (Counter(), Counter() if stale else self._writes[0])
            self._fights = (Counter(), Counter() if stale else self._fights[0])
            self._since = now

    def hot_keys(self, scope: Scope, now: float) -> list[HotKey]:
        """Return the hottest keys that may be seen, most written and fought over first."""
        self._roll(now)
        writes = self._writes[0] + self._writes[1]
        fights = self._fights[0] + self._fights[1]
        heat = writes + fights
        shown = [
            HotKey(region, key, writes[region, key], fights[region, key])
            for (region, key), _ in heat.most_common(_SHOWN * 10)
            if scope.may_read(region, key)
        ]
        return shown[:_SHOWN]


def _count(counter: Counter[tuple[Region, Key]], place: tuple[Region, Key]) -> None:
    if len(counter) >= _MAX_KEYS and place not in counter:
        # Full: halve everything, so that what is really hot stays and one-off keys make room.
        for key in list(counter):
            counter[key] //= 2
            if not counter[key]:
                del counter[key]
        if len(counter) >= _MAX_KEYS:
            return
    counter[place] += 1
