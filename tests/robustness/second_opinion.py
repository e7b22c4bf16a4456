"""The register and lock histories, judged once more by porcupine, a linearizability checker, where Go is present."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_MODULE = Path(__file__).parent / "porcupine"


@functools.cache
def _program() -> Path | None:
    if shutil.which("go") is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="slateboard-porcupine-")) / "porcupine"
    built = subprocess.run(
        ["go", "build", "-o", str(target), "."], cwd=_MODULE, capture_output=True, text=True, timeout=300
    )
    if built.returncode:
        if os.environ.get("CI"):
            raise AssertionError(f"porcupine could not be built: {built.stderr[-500:]}")
        return None  # no network to fetch it
    return target


def linearizable(folder: Path) -> bool | None:
    """Whether porcupine finds the histories in a folder linearizable; None where it cannot be asked."""
    program = _program()
    if program is None:
        return None
    files = [str(path) for path in sorted(folder.glob("*.jsonl"))]
    judged = subprocess.run([str(program), *files], capture_output=True, text=True, timeout=300)
    print(judged.stdout)
    assert judged.returncode in {0, 1}, judged.stderr
    return judged.returncode == 0
