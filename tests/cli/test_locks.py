"""`slate lock`: held, seen, waited for, ended, and held while a command runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slateboard
from tests.cli.running import Slate
from tests.fix_server import Server


def held(slate: Slate) -> list[str]:
    return [lock["lock_id"] for lock in slate("lock", "ls", "--json").json]


def test_acquire_leaves_a_lock_that_renew_lengthens_and_release_ends(slate: Slate) -> None:
    made = slate("lock", "acquire", "plan/", "--purpose", "replan", "--ttl", "20s", "--json")
    assert made.code == 0
    lock = made.json
    assert lock["state"] == "held"
    assert lock["scopes"] == [{"region": "shared", "path": "plan/"}]
    again = slate("lock", "acquire", "plan/x")
    assert again.code == 3
    assert "replan" in again.stderr
    assert lock["lock_id"] in again.stderr
    assert held(slate) == [lock["lock_id"]]
    listed = slate("lock", "ls")
    assert "replan" in listed.out
    assert "plan/" in listed.out
    renewed = slate("lock", "renew", lock["lock_id"], str(lock["token"]), "--json")
    assert 15 < renewed.json["ttl_left"] <= 20
    assert slate("lock", "renew", lock["lock_id"], "999").code == 3
    assert slate("put", "plan/x", "1").code == 3
    assert slate("lock", "release", lock["lock_id"], str(lock["token"])).out.endswith("released\n")
    assert "already released" in slate("lock", "release", lock["lock_id"], str(lock["token"])).out
    assert held(slate) == []
    assert [one["state"] for one in slate("lock", "ls", "--all", "--json").json] == ["released"]


def test_an_orphan_is_ended_by_force_without_a_restart(slate: Slate) -> None:
    """T17 dapr#3549: inspect, then force-release with its token and a reason."""
    lock = slate("lock", "acquire", "k", "--ttl", "1h", "--json").json
    wrong = slate("lock", "force-release", lock["lock_id"], "--token-seen", "999", "--reason", "gone")
    assert wrong.code == 3
    done = slate(
        "lock",
        "force-release",
        lock["lock_id"],
        "--token-seen",
        str(lock["token"]),
        "--reason",
        "its agent is gone",
    )
    assert done.code == 0
    assert slate("put", "k", "1").code == 0
    ended = slate("lock", "ls", "--all", "--json").json[0]
    assert (ended["state"], ended["end_reason"]) == ("revoked", "its agent is gone")


def test_waiters_status_and_conflicts_show_who_is_in_the_way(
    slate: Slate, server: Server, board_name: str
) -> None:
    slate("put", "k", "1")
    with slateboard.connect(server.address, token=server.local_token) as client:
        board = client.board(board_name)
        with board.lock("k", purpose="count") as lock:
            waiting = subprocess.Popen(
                [sys.executable, "-m", "slateboard.cli", "lock", "acquire", "k", "--wait", "20s"],
                env={**os.environ, **slate.env},
                stdout=subprocess.PIPE,
            )
            while not (waiters := slate("lock", "waiters", "--json").json):
                time.sleep(0.05)
            assert waiters[0]["blockers"][0]["lock_id"] == lock.lock_id
            assert "held" in slate("lock", "waiters").out
            status = slate("status", "k", "--json").json
            assert status["locks"][0]["purpose"] == "count"
            assert len(status["waiters"]) == 1
            assert "count" in slate("status", "k").out
            assert slate("put", "k", "2", "--expect", "1").code == 3
        out, _ = waiting.communicate(timeout=20)
        assert waiting.returncode == 0
        assert b"l-" in out
    conflicts = slate("conflicts", "--json").json
    assert conflicts[0]["violations"][0]["reason"] == "KEY_LOCKED"


def test_watch_shows_changes_a_document_a_line(slate: Slate) -> None:
    lock = slate("lock", "acquire", "k", "--json").json
    [seen] = slate("lock", "watch", "--count", "1", "--json").lines
    assert (seen["lock_id"], seen["state"]) == (lock["lock_id"], "held")


def run(slate: Slate, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "slateboard.cli", "lock", "run", *words],
        env={**os.environ, **slate.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_run_holds_the_lock_while_a_command_runs_and_its_writes_carry_the_claim(slate: Slate) -> None:
    script = "\n".join(
        [
            "import os, subprocess, sys",
            "slate = [sys.executable, '-m', 'slateboard.cli']",
            "print(os.environ['SLATE_LOCK'].split(':')[0])",
            "assert subprocess.run([*slate, 'put', 'plan/x', '1']).returncode == 0",
            "del os.environ['SLATE_LOCK']",
            "assert subprocess.run([*slate, 'put', 'plan/y', '1']).returncode == 3",
            "sys.exit(7)",
        ]
    )
    done = run(slate, "plan/", "--", sys.executable, "-c", script)
    out, err = done.communicate(timeout=40)
    assert done.returncode == 7, err
    assert out.decode().splitlines()[0] == slate.env["SLATE_BOARD"]
    assert held(slate) == []
    assert slate("get", "plan/x").code == 0


def test_run_ends_its_command_when_the_lock_is_lost(slate: Slate, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(60)"
    done = run(slate, "k", "--ttl", "2s", "--", sys.executable, "-c", script)
    while not mark.exists():
        time.sleep(0.05)
    [lock] = slate("lock", "ls", "--json").json
    slate("lock", "force-release", lock["lock_id"], "--token-seen", str(lock["token"]), "--reason", "test")
    _, err = done.communicate(timeout=20)
    assert done.returncode == 3
    assert b"lost" in err


def test_run_passes_signals_on_and_releases(slate: Slate, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(60)"
    done = run(slate, "k", "--", sys.executable, "-c", script)
    while not mark.exists():
        time.sleep(0.05)
    done.send_signal(signal.SIGTERM)
    done.communicate(timeout=20)
    assert done.returncode == 128 + signal.SIGTERM
    assert held(slate) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("lock", "run", "k", "--", "/no/such/program"), 127),
        (("lock", "acquire", "a//b"), 2),
        (("lock", "acquire", "k", "--ttl", "1s"), 2),
        (("lock", "acquire", "k", "--ttl", "soon"), 2),
        (("lock", "renew", "l-0000000000000001", "1"), 3),
    ],
)
def test_what_makes_no_sense_is_said(slate: Slate, words: tuple[str, ...], code: int) -> None:
    ran = slate(*words)
    assert ran.code == code
    assert ran.stderr.strip()
