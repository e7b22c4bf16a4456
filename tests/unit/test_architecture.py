"""Rules of direction that the import contract in pyproject.toml cannot spell: what counts as outside, and no clock."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).parents[2] / "server" / "slateboard_server"
STDLIB = sys.stdlib_module_names
# Modules through which a clock, chance, the disk, the network or another thread would come in.
IMPURE = frozenset(
    {"asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil"}
) | {
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}
CLOCKS = frozenset({"now", "utcnow", "today"})


def _sources(*rooms: str) -> list[Path]:
    found: list[Path] = []
    for room in rooms:
        path = SERVER / room
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
    return found


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module


def _label(path: Path) -> str:
    return path.relative_to(SERVER).as_posix()


@pytest.mark.parametrize("path", _sources("domain"), ids=_label)
def test_the_domain_imports_nothing_but_itself_and_pure_standard_modules(path: Path) -> None:
    """What decides must be testable without a world around it."""
    outside = [
        name
        for name in _imports(path)
        if not name.startswith("slateboard_server.domain")
        and (name.split(".")[0] not in STDLIB or name.split(".")[0] in IMPURE)
    ]
    assert outside == []


@pytest.mark.parametrize("path", _sources("domain"), ids=_label)
def test_the_domain_asks_no_clock(path: Path) -> None:
    """Time comes in as `now`: a judge that looks at the clock gives two answers to one question."""
    calls = [
        f"line {node.lineno}: {node.func.attr}()"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
    ]
    assert calls == []


@pytest.mark.parametrize("path", _sources("services", "ports.py"), ids=_label)
def test_services_and_ports_import_only_inwards(path: Path) -> None:
    """A use case talks to ports; it may log, and knows neither wire nor database."""
    inward = ("slateboard_server.domain", "slateboard_server.ports", "slateboard_server.services")
    outside = [
        name
        for name in _imports(path)
        if not name.startswith(inward) and name.split(".")[0] not in {*STDLIB, "structlog"}
    ]
    assert outside == []
