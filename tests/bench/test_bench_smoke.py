"""The bench itself runs: processes start and stop, a table and a JSON file come out. No figure is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.bench",
        "--quick",
        "--seconds",
        "0.3",
        "--rounds",
        "1",
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize(
    "name", ["get", "commit", "commit64", "pg_commit", "fanout", "watch_latency", "idle_rss"]
)
def test_a_figure_is_measured(name: str, tmp_path: Path) -> None:
    """One short round of each figure; growth takes minutes and is left to `make bench`."""
    path = tmp_path / "bench.json"
    done = bench("--only", name, "--json", str(path))
    assert done.returncode == 0, done.stderr
    (figure,) = json.loads(path.read_text())["figures"]
    assert figure["name"] == name
    assert figure["skipped"] or figure["ours"]["value"] > 0
    assert name in done.stdout


@pytest.mark.parametrize("profiler", ["sample", "calls"])
def test_a_profile_names_functions_of_the_server(profiler: str) -> None:
    """A profile says where the server spent its time."""
    done = bench("--profile", "get", "--profiler", profiler)
    assert done.returncode == 0, done.stderr
    assert "slateboard_server" in done.stdout or "services/reads.py" in done.stdout
