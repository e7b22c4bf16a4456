"""watch and top."""

import json
import subprocess
from datetime import timedelta
from typing import Any

import pytest

import slateboard
from slateboard.cli import follow
from tests.cli.running import Slate
from tests.fix_server import MakeServer, Server


def _document(process: "subprocess.Popen[bytes]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_watch_from_a_revision_prints_a_document_a_revision_and_leaves_when_told(slate: Slate) -> None:
    slate.ok("put", "plan/a", '{"step": 1}')
    slate.ok("put", "other", "x")
    slate.ok("put", "plan/a", '{"step": 2}', "--expect", "1")
    slate.ok("rm", "plan/a")
    batches = slate.ok("watch", "plan", "--after", "0", "--count", "3", "--json").lines
    assert [batch["revision"] for batch in batches] == [1, 3, 4]
    assert [batch["entries"][0].get("value") for batch in batches] == [{"step": 1}, {"step": 2}, None]
    assert batches[2]["entries"][0]["tombstone"] == "deleted"
    assert batches[0]["principal"] == "local"


def test_a_watch_with_a_snapshot_shows_what_is_there_and_then_what_follows(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    with slate.started("watch", "--snapshot", "--json", "--count", "1") as process:
        page = _document(process)
        assert page["snapshot"] is True
        assert [entry["key"] for entry in page["entries"]] == ["k"]
        slate.ok("put", "later", "2")
        assert [entry["key"] for entry in _document(process)["entries"]] == ["later"]
        assert process.wait(20) == 0


def test_a_watch_from_now_on_says_since_when_and_misses_nothing_after_that(slate: Slate) -> None:
    slate.ok("put", "before", "1")
    with slate.started("watch", "--count", "1") as process:
        assert process.stderr is not None
        assert b"from revision 1 on" in process.stderr.readline()
        slate.ok("put", "after", "2")
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"2\tafter\tversion 1\tlocal\t2")
        assert process.wait(20) == 0


def test_a_watch_lives_through_a_restart_of_the_server(make_server: MakeServer) -> None:
    own = make_server()
    slate = Slate({"SLATE_SERVER": own.address, "SLATE_DATA": str(own.data_dir), "SLATE_BOARD": "b"})
    slate.ok("board", "create", "b")
    with slate.started("watch", "--after", "0", "--json") as process:
        slate.ok("put", "one", "1")
        assert _document(process)["revision"] == 1
        own.restart()
        slate.ok("put", "two", "2")
        assert _document(process)["revision"] == 2


def test_a_watch_below_the_floor_says_that_it_is_gone_and_what_to_do(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    slate.ok("put", "k", "2", "--expect", "1")
    slate.ok("put", "k", "3", "--expect", "2")
    slate.ok("board", "compact", slate.env["SLATE_BOARD"], "--revision", "3")
    gone = slate("watch", "--after", "0", "--count", "1")
    assert gone.code == 1
    assert "slate ls" in gone.stderr


def test_top_in_a_pipe_prints_a_document_an_interval_with_the_hottest_keys(slate: Slate) -> None:
    slate.ok("put", "hot", "1")
    slate("put", "hot", "2")
    samples = slate.ok("top", "--interval", "0.1", "--count", "2").lines
    assert len(samples) == 2
    for sample in samples:
        assert sample["revision"] == 1
        assert sample["commits_per_second"] == 0
        assert {"conflicts_per_second", "watches", "queued_commits", "entries", "bytes"} <= sample.keys()
        [hottest] = sample["hot_keys"]
        assert (hottest["key"], hottest["writes"] >= 1, hottest["conflicts"]) == ("hot", True, 1)


def test_top_on_a_terminal_draws_a_view_with_names_as_they_are(slate: Slate) -> None:
    slate.ok("put", "hot/[red]", "1")
    code, shown = slate.terminal("top", "--interval", "0.1", "--count", "1")
    assert code == 0
    assert "commits/s" in shown
    assert "hot/[red]" in shown


def _info(commits: int, conflicts: int) -> slateboard.BoardInfo:
    return slateboard.BoardInfo(
        name="b",
        incarnation="i",
        revision=1,
        oldest_revision=1,
        create_time=None,
        created_by="",
        description="",
        entries=0,
        bytes=0,
        policy_version=1,
        activity=slateboard.BoardActivity(
            commits=commits, conflicts=conflicts, replays=0, watches=0, queued_commits=0, hot_keys=()
        ),
    )


@pytest.mark.parametrize(
    ("before", "after", "rates"),
    [((10, 2), (30, 3), (10.0, 0.5)), ((10, 2), (10, 2), (0.0, 0.0)), ((100, 9), (6, 0), (3.0, 0.0))],
    ids=["grown", "idle", "server started again"],
)
def test_rates_are_what_was_added_in_the_interval(
    before: tuple[int, int], after: tuple[int, int], rates: tuple[float, float]
) -> None:
    sample = follow._compare(_info(*before), _info(*after), timedelta(seconds=2).total_seconds())
    assert (sample.commits, sample.conflicts) == rates


def test_top_shows_one_and_the_same_server_of_several(slate: Slate, server: Server) -> None:
    several = slate.with_env(SLATE_SERVER=f"{server.address},127.0.0.1:9")
    assert len(several.ok("top", "--interval", "0.1", "--count", "2").lines) == 2
