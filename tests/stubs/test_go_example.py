import uuid

import pytest

from tests.stubs.toolchains import FIRST_BUILD, ok, require, run, stubs

pytestmark = FIRST_BUILD


@pytest.fixture(autouse=True)
def go() -> None:
    require("go")


def go_test(*arguments: str, **environment: str) -> str:
    """What `go test` prints of the client's package; fails where a test fails."""
    command = ("go", "test", "-count=1", "-v", *arguments, "./slateboard")
    return ok(run(*command, folder="client/go", GOTOOLCHAIN="local", **environment))


def test_the_committed_stubs_are_what_the_protos_give() -> None:
    ok(stubs("--check", "go"))


def test_the_client_decodes_errors_and_resumes_watches_of_a_scripted_server() -> None:
    assert "--- SKIP" not in go_test("-skip", "^TestLive")


def test_the_client_meets_conflicts_lost_replies_and_cut_watches_of_a_real_server(
    server: dict[str, str],
) -> None:
    printed = go_test("-run", "^TestLive", "-skip", "Keepalive", **server)
    assert "--- PASS: TestLiveTheSecondOfTwoWritersGetsATypedConflict" in printed
    assert "--- SKIP" not in printed


def test_the_example_shows_a_conflict_and_follows_the_board(server: dict[str, str]) -> None:
    printed = ok(
        run(
            "go",
            "run",
            "./example",
            f"example-{uuid.uuid4().hex[:8]}",
            folder="client/go",
            GOTOOLCHAIN="local",
            **server,
        )
    )
    lines = printed.splitlines()
    assert "step 1 written" in lines
    assert any(line.startswith("conflict on plan/current: ") for line in lines)
    assert 'revision 3: plan/current version 3: {"goal":"weekly report","step":2}' in lines
    assert lines[-1] == "done"


@pytest.mark.robustness
def test_the_server_welcomes_a_ping_every_20_seconds_without_calls(server: dict[str, str]) -> None:
    go_test("-run", "Keepalive", SLATE_LONG_TESTS="1", **server)
