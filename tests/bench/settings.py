"""What a run of the bench was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import SlateboardServer, scratch

VALUE = b"v" * 200
"""The value of every entry: 200 bytes, as the requirements say."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a run."""

    seconds: float = 3.0
    """Of one measurement."""
    rounds: int = 5
    """Measurements of each side."""
    quick: bool = False
    """A small board instead of a million entries."""
    profiler: str = ""
    """`sample` or `calls`: our server runs under that profiler, and figures are none. Empty: no profiler."""
    profile_folder: Path = Path("build/profile")

    @property
    def board_sizes(self) -> tuple[int, int]:
        """Entries of the small and the large board whose costs are compared."""
        return (10_000, 100_000 if self.quick else 1_000_000)

    def runner(self, name: str) -> list[str]:
        """Return how Python runs our server: plainly, or under the profiler that was asked for."""
        if not self.profiler:
            return ["-m", "slateboard_server"]
        out = (self.profile_folder / f"{name}.txt").resolve()
        return ["-m", "tests.bench.profiling", self.profiler, str(out)]


@contextmanager
def our_server(settings: Settings, name: str) -> Iterator[SlateboardServer]:
    """Run our server, embedded, on an empty data directory."""
    with scratch() as folder, SlateboardServer(folder / "data", runner=settings.runner(name)) as server:
        yield server
