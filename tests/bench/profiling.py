"""Runs our server under a profiler: `python -m tests.bench.profiling sample|calls OUT <arguments of the server>`.

`sample` looks at every thread's stack some hundred times a second and counts only threads that used the processor since
the last look, so it shows where time goes without slowing anything down. A look needs the interpreter lock, which a
thread gives up rarely inside C code: such code appears as the line that called it. `calls` is cProfile on the thread of
the event loop: exact counts, and times that are too long where functions are small.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import runpy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TextIO

from tests.bench.processes import ANNOUNCEMENT

_INTERVAL = 0.002
_SWITCH_INTERVAL = 0.0005
"""Seconds after which a running thread hands over the interpreter lock, so that a look is not late."""
_BUSY_SHARE = 0.2
"""A thread that used less than this share of the time since the last look was waiting."""
_LINES = 60
_MODULE = "slateboard_server"

Place = tuple[str, str]
"""Function and where it is."""


class Sampler(threading.Thread):
    """Counts where busy threads are."""

    def __init__(self) -> None:
        """Begin with `start`, end with `finish`."""
        super().__init__(name="sampler", daemon=True)
        self._over = threading.Event()
        self._own: Counter[tuple[str, Place]] = Counter()
        self._within: Counter[tuple[str, Place]] = Counter()
        self._stacks: Counter[tuple[str, tuple[Place, ...]]] = Counter()
        self._looks: Counter[str] = Counter()
        self._spent: dict[int, float] = {}

    def run(self) -> None:
        """Look until told to finish."""
        last = time.perf_counter()
        while not self._over.wait(_INTERVAL):
            now = time.perf_counter()
            self._look(now - last)
            last = now

    def _look(self, since: float) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames()
        for ident, frame in frames.items():
            if ident == self.ident:
                continue
            try:
                spent = time.clock_gettime(time.pthread_getcpuclockid(ident))
            except OSError:
                continue  # it ended meanwhile
            used = spent - self._spent.get(ident, spent)
            self._spent[ident] = spent
            if used >= _BUSY_SHARE * since:
                self._count(names.get(ident, "?").rstrip("0123456789"), frame)

    def _count(self, thread: str, frame: FrameType | None) -> None:
        stack: list[Place] = []
        while frame is not None:
            code = frame.f_code
            stack.append((code.co_qualname, f"{_short(code.co_filename)}:{code.co_firstlineno}"))
            frame = frame.f_back
        self._looks[thread] += 1
        self._own[thread, stack[0]] += 1
        for place in set(stack):
            self._within[thread, place] += 1
        self._stacks[thread, tuple(reversed(stack))] += 1

    def finish(self) -> str:
        """Stop and return the report."""
        self._over.set()
        if self.ident is not None:
            self.join()
        parts = []
        for thread, looks in self._looks.most_common():
            parts.append(f"thread {thread}: {looks} looks while busy")
            for title, counts in (
                ("in the function itself", self._own),
                ("in it and what it calls", self._within),
            ):
                parts.append(f"\n  {title}")
                mine = Counter({place: count for (name, place), count in counts.items() if name == thread})
                parts.extend(
                    f"  {100 * count / looks:5.1f} %  {function}  {where}"
                    for (function, where), count in mine.most_common(_LINES)
                )
            parts.append("")
        return "\n".join(parts) + "\n"

    def folded(self) -> str:
        """Return the stacks in the format that flame graph programs read."""
        lines = (
            ";".join([thread, *(f"{function} ({where})" for function, where in stack)]) + f" {count}"
            for (thread, stack), count in self._stacks.most_common()
        )
        return "\n".join(lines) + "\n"


def _short(path: str) -> str:
    parts = Path(path).parts
    return "/".join(parts[-3:])


class _Announcement(io.TextIOBase):
    """Standard output that calls `begin` when the server says that it listens: starting up is not profiled."""

    def __init__(self, out: TextIO, begin: Callable[[], None]) -> None:
        self._out = out
        self._begin = begin

    def write(self, text: str) -> int:
        if text.startswith(ANNOUNCEMENT):
            self._begin()
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()


def _run_server(arguments: list[str], begin: Callable[[], None]) -> None:
    sys.argv = [_MODULE, *arguments]
    sys.stdout = _Announcement(sys.stdout, begin)
    runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)


def _sample(arguments: list[str], out: Path) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL)
    sampler = Sampler()
    try:
        _run_server(arguments, sampler.start)
    finally:
        out.write_text(sampler.finish())
        out.with_suffix(".folded").write_text(sampler.folded())


def _calls(arguments: list[str], out: Path) -> None:
    profile = cProfile.Profile()
    try:
        _run_server(arguments, profile.enable)
    finally:
        profile.disable()
        text = io.StringIO()
        stats = pstats.Stats(profile, stream=text)
        stats.sort_stats("tottime").print_stats(_LINES)
        stats.sort_stats("cumulative").print_stats(_LINES)
        out.write_text(text.getvalue())
        stats.dump_stats(out.with_suffix(".pstats"))


def main() -> None:
    """Run the server; the report is written when it ends."""
    kind, out, *arguments = sys.argv[1:]
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    {"sample": _sample, "calls": _calls}[kind](arguments, path)


if __name__ == "__main__":
    main()
