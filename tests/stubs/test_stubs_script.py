import shutil
from pathlib import Path

import pytest

from tests.stubs.toolchains import stubs


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with a shell's usual helpers and no toolchain on it."""
    for name in ("sh", "dirname", "paste", "sed", "tail"):
        program = shutil.which(name)
        assert program, name
        (tmp_path / name).symlink_to(program)
    return str(tmp_path)


def test_languages_without_a_toolchain_are_skipped_and_named(bare_path: str) -> None:
    done = stubs(PATH=bare_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "stubs: go: skipped, go is not on the PATH",
        "stubs: typescript: skipped, node is not on the PATH; npm is not on the PATH",
        "stubs: java: skipped, javac is not on the PATH; mvn is not on the PATH",
        "stubs: rust: skipped, cargo is not on the PATH",
    ]


def test_a_language_asked_for_by_name_must_have_its_toolchain(bare_path: str) -> None:
    done = stubs("go", PATH=bare_path)
    assert done.returncode == 1
    assert done.stderr == "stubs: go: go is not on the PATH\n"


def test_an_unknown_language_is_refused_with_those_there_are() -> None:
    done = stubs("cobol")
    assert done.returncode == 1
    assert "go typescript java rust" in done.stderr
