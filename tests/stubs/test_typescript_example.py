import uuid

import pytest

from tests.stubs.toolchains import FIRST_BUILD, ROOT, ok, require, run, stubs

pytestmark = FIRST_BUILD

FOLDER = "client/typescript"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The example and its tests, compiled by the type checker."""
    require("typescript")
    ok(stubs("typescript"))


def node_test(*files: str, **environment: str) -> str:
    """What Node's test runner prints; fails where a test fails."""
    paths = [f"dist/test/{name}.test.js" for name in files]
    return ok(run("node", "--test", "--test-reporter=tap", *paths, folder=FOLDER, **environment))


def test_the_lock_file_records_no_download_addresses() -> None:
    assert '"resolved"' not in (ROOT / FOLDER / "package-lock.json").read_text(encoding="utf-8")


def test_the_client_decodes_errors_and_resumes_watches_of_a_scripted_server() -> None:
    assert "# fail 0" in node_test("board", "watch")


def test_the_client_meets_conflicts_lost_replies_and_cut_watches_of_a_real_server(
    server: dict[str, str],
) -> None:
    printed = node_test("live", **server)
    assert "ok 1 - the second of two writers gets a typed conflict" in printed
    assert "# skipped 0" in printed


def test_the_example_shows_a_conflict_and_follows_the_board(server: dict[str, str]) -> None:
    printed = ok(
        run("node", "dist/src/example.js", f"example-{uuid.uuid4().hex[:8]}", folder=FOLDER, **server)
    )
    lines = printed.splitlines()
    assert "step 1 written" in lines
    assert any(line.startswith("conflict on plan/current: ") for line in lines)
    assert 'revision 3: plan/current version 3: {"goal":"weekly report","step":2}' in lines
    assert lines[-1] == "done"
