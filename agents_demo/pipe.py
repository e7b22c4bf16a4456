"""The pipe through which a process of the team is told who to be, and by whose closing it hears that the team is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator


def leave_with_the_team(pipe: Iterator[bytes]) -> None:
    """Wait until the pipe closes, then end the process."""
    for _ in pipe:
        pass
    os._exit(3)


def lines(descriptor: int) -> Iterator[bytes]:
    """Lines of a pipe, without the lock that a buffered reader would hold while the interpreter shuts down."""
    rest = b""
    while piece := os.read(descriptor, 4096):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
