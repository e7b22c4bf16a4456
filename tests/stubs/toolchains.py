"""Runs what other languages are built and tested with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The first run on a machine fetches and compiles what the examples need; later ones take seconds.
FIRST_BUILD = pytest.mark.timeout(600)


def stubs(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What tools/stubs.sh does with these arguments."""
    return run("sh", "tools/stubs.sh", *arguments, PYTHON=sys.executable, **environment)


def require(language: str) -> None:
    """Skips the test where the language's toolchain is not here, and says what is missing."""
    found = stubs("--missing", language)
    assert found.returncode == 0, found.stderr
    if found.stdout.strip():
        pytest.skip(found.stdout.strip())


def run(*command: str, folder: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A finished command, in a folder of the project."""
    return subprocess.run(
        command,
        cwd=ROOT / folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def ok(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed; fails the test with all of it where the command failed."""
    assert done.returncode == 0, f"{done.args} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
