"""A curator: deduplicates the data set under a lock. Two of them want to, and one is away for too long.

Started like a worker (`python -m agents_demo.curator`, who to be comes through a pipe). While it holds `dataset/` nobody else
writes there, and it writes through the lock, so that every write carries its claim. One that was stopped for longer than the
lock lives has lost it: what it still writes is refused by the board, whatever it believes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import slateboard
from agents_demo import board_keys, cleaning
from agents_demo.pipe import leave_with_the_team, lines
from agents_demo.report import LockStory
from agents_demo.story import short
from slateboard import Board, LockInfo, LockState

T = TypeVar("T")

LOCK_TTL: Final = 2.0
"""Seconds that the lock lives without a renewal: as short as it may be, since somebody is going to wait for its end."""
CLEAN: Final = "dataset/clean"
CURATION: Final = "curation/"
WRITES: Final = ("dataset/", CURATION)
"""Subtrees that a curator may write."""
_WAIT: Final = 30.0
_PATIENCE: Final = 30.0


class RehearsalError(Exception):
    """The rehearsal did not go as it must; the message says how."""


class Curator:
    """One curator on a board."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._name = name

    def run(self, think: float) -> None:
        """Deduplicate under the lock, thinking for `think` seconds between reading and writing; leave word of what happened.

        Raises:
            slateboard.SlateError: The board cannot be used, or the lock was not to be had.
        """
        asked = time.monotonic()
        word: dict[str, object] = {}
        try:
            with self._board.lock("dataset/", ttl=LOCK_TTL, wait=_WAIT, purpose="deduplicate") as held:
                word = {"waited": round(time.monotonic() - asked, 2), "token": held.token}
                duplicates = held.get(board_keys.DUPLICATES)
                known = held.get(CLEAN, None)
                time.sleep(think)
                dropped = sorted(copy.dropped for copy in cleaning.duplicates_from_json(duplicates.value))
                value = {"left_out": len(dropped), "first": dropped[:3], "by": self._name}
                entry = held.put(CLEAN, value, expect=known, absent=known is None, derived_from=[duplicates])
                word["version"] = entry.version
        except slateboard.LockLost as error:
            word["refused"] = error.reason
        self._board.put(f"{CURATION}{self._name}", word, absent=True)


def rehearse(
    board: Board,
    start: Callable[[str, float], None],
    pause: Callable[[str], None],
    resume: Callable[[str], None],
    check: Callable[[], None],
    say: Callable[[str, str], None],
) -> LockStory:
    """Have two curators want the data set, and stop the first one for longer than its lock lives.

    Raises:
        RehearsalError: Somebody wrote who must not have, or nobody did.
        slateboard.SlateError: The board cannot be used.
    """
    first, second = "curator-1", "curator-2"
    start(first, 3.0)
    held = _eventually(check, lambda: next(iter(board.locks("dataset/")), None), "nobody locked dataset/")
    say(first, f"locks dataset/ to deduplicate it (token {held.token}): nobody else writes there")
    start(second, 0.1)
    _eventually(
        check, lambda: next(iter(board.waiters("dataset/")), None), f"{second} does not wait for the lock"
    )
    say(second, f"wants dataset/ too, and waits for {first}")
    stopped = time.monotonic()
    pause(first)
    say(
        "demo", f"stops {first} (SIGSTOP) for longer than the {LOCK_TTL:g} s its lock lives without a renewal"
    )
    written = _eventually(check, lambda: board.get(CLEAN, None), f"{second} did not write {CLEAN}")
    say(second, f"has the lock now (a higher token), and writes {CLEAN}: version {written.version}")
    resume(first)
    paused = time.monotonic() - stopped
    words = {
        name: _eventually(check, lambda: board.get(f"{CURATION}{name}", None), f"{name} left no word").value  # noqa: B023  # asked at once
        for name in (second, first)
    }
    refused = words[first].get("refused", "")
    entry = board.get(CLEAN)
    if not refused or entry.value["by"] != second or words[second].get("version") != entry.version:
        raise RehearsalError(f"the late commit of {first} was not refused: {words}")
    say(first, f"goes on where it was stopped; its late commit is refused: {refused}")
    ended: list[LockInfo] = [lock for lock in board.locks("dataset/", include_ended=True) if lock.token]
    if [lock.state for lock in ended] != [LockState.EXPIRED, LockState.RELEASED]:
        raise RehearsalError(f"the locks ended as {[lock.state.name for lock in ended]}")
    return LockStory(
        held_by=short(ended[0].principal),
        paused=round(paused, 1),
        taken_by=short(ended[1].principal),
        waited=float(words[second]["waited"]),
        refused=refused,
        tokens=(ended[0].token, ended[1].token),
        written_by=entry.value["by"],
    )


def _eventually(check: Callable[[], None], look: Callable[[], T | None], otherwise: str) -> T:
    until = time.monotonic() + _PATIENCE
    while (found := look()) is None:
        check()
        if time.monotonic() > until:
            raise RehearsalError(otherwise)
        time.sleep(0.05)
    return found


def main() -> int:
    """Read who to be from standard input, work, and return the exit code."""
    pipe = lines(0)
    start = json.loads(next(pipe))
    threading.Thread(target=leave_with_the_team, args=(pipe,), name="demo-pipe", daemon=True).start()
    try:
        with slateboard.connect(start["server"], token=start["token"]) as client:
            Curator(client.board(start["board"]), start["name"]).run(float(start["think"]))
    except (slateboard.SlateError, ValueError, OSError) as error:
        print(f"{start['name']}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
