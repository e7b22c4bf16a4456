import json
import signal
from pathlib import Path

import pytest

import slateboard
from agents_demo import orders
from slateboard import Role, SessionState, Trust
from tests.demo.running import HEADER, Run, closing, small_orders, write_orders
from tests.fix_server import Server


@pytest.mark.slow
def test_the_demo_reports_what_a_single_pass_finds_and_leaves_nothing_running(tmp_path: Path) -> None:
    """The bundled orders, by a supervisor and four workers, with a server of their own."""
    run = Run(tmp_path)
    assert run.finish() == 0, run.out + run.err
    figures, _, merged = run.out.splitlines()[-1].rpartition("=")
    assert f"{figures}=" == closing(orders.BUNDLED)
    assert figures.startswith(
        "demo ok: lines=12220 duplicates=79 cancellations=286 weeks=3 net_revenue=235481.80 "
    )
    assert int(merged) >= 1
    assert "(SIGKILL)" in run.out
    assert "takes over dedupe part-" in run.out
    assert "tasks taken over from a dead worker      1" in run.out
    assert "235,481.80" in (tmp_path / "demo-output" / "report.html").read_text(encoding="utf-8")
    assert run.others() == []


@pytest.mark.slow
def test_a_dead_workers_task_changes_hands_by_a_version_checked_replace(
    tmp_path: Path, server: Server
) -> None:
    """Another file, on a server that runs already, so that the board can be asked afterwards what happened."""
    file = small_orders(tmp_path / "orders.csv")
    options = (str(file), "--server", server.address, "--json", "--seed", "3")
    run = Run(tmp_path, *options, env={"SLATE_TOKEN": server.operator_token})
    assert run.finish() == 0, run.out + run.err
    told = json.loads(run.out)
    assert told["closing_line"].startswith(closing(file))
    assert run.err.splitlines()[-1] == told["closing_line"]
    team = told["team"]
    assert 1 <= team["conflicts_merged"] <= team["conflicts_met"]

    with slateboard.connect(server.address, token=server.operator_token) as client:
        board = client.board(told["board"])
        (taken,) = [entry for entry in board.list("claims/") if entry.value["taken_from"]]
        first, second, last = reversed(board.history(taken.key).all())
        assert first.value["worker"] == second.value["taken_from"] != second.value["worker"]
        assert last.value["worker"] == second.value["worker"] == last.provenance.principal.split(".")[0]
        assert [version.value["state"] for version in (first, second, last)] == ["working", "working", "done"]
        states = {info.session_id: info.state for info in board.sessions()}
        assert states[first.value["session"]] is SessionState.STALE
        # The dead worker may have finished another share before; of this one it has published nothing.
        part = taken.key.rpartition("/")[2]
        shares = board.history(f"dataset/duplicates/{part}").all()
        assert [share.provenance.session_id for share in shares] == [second.value["session"]]
        assert len({entry.provenance.principal for entry in board.list("team/")}) == 4
        assert board.get("report/final").trust is Trust.AGENT
        assert board.get("goal").trust is Trust.USER
        for worker in board.list("team/"):
            principal = client.admin.get_principal(worker.provenance.principal)
            assert (principal.role, principal.trust_ceiling) == (Role.WORKER, Trust.AGENT)
            assert principal.disabled
        assert len(board.commits().all()) == team["commits"]
        assert len(board.conflicts().all()) == team["conflicts_met"]
    assert run.others() == []


@pytest.mark.slow
def test_interrupted_in_the_middle_the_demo_takes_all_its_processes_along(tmp_path: Path) -> None:
    """Ctrl-C is an ordinary way to end a demo."""
    run = Run(tmp_path)
    run.read_until(" claims ")
    assert len(run.others()) >= 4
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert "SIGINT" in run.err
    assert run.others() == []


@pytest.mark.slow
def test_killed_itself_the_demo_leaves_no_process_for_long(tmp_path: Path) -> None:
    """Workers hold a pipe to it, and on Linux the server has asked to be told of its end."""
    run = Run(tmp_path)
    run.read_until(" is here")
    run.process.kill()
    run.finish()
    assert run.gone(20)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["1,a,b,many,2011-02-06 10:00:00,1.5,,France"], "line 2, column Quantity: 'many'"),
        (
            ["1,a,b,2,2011-02-06 10:00:00,1.5,,France", "2,a,b,2,6.2.2011,1,,Japan"],
            "line 3, column InvoiceDate",
        ),
        (["1,a,b"], "line 2: 3 fields"),
    ],
)
def test_a_malformed_file_fails_with_its_line_and_column_before_anything_is_started(
    rows: list[str], said: str, tmp_path: Path
) -> None:
    """Nothing is left behind, and no report is written."""
    run = Run(tmp_path, str(write_orders(tmp_path / "bad.csv", rows)))
    assert run.finish() == 1
    assert run.out == ""
    assert said in run.err
    assert "bad.csv" in run.err
    assert len(run.err.splitlines()) == 1
    assert run.others() == []
    assert not (tmp_path / "demo-output").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--workers", "3"], 2, "4 to 32 workers"),
        (["absent.csv"], 1, "absent.csv"),
        (["--server", "127.0.0.1:1"], 1, "operator's token"),
        (["--server", "127.0.0.1:1", "--keep", "kept"], 1, "--keep"),
    ],
)
def test_options_that_cannot_work_are_refused_in_words(
    options: list[str], code: int, said: str, tmp_path: Path
) -> None:
    """With the exit code for a failure or for a wrong use."""
    run = Run(tmp_path, *options)
    assert run.finish() == code
    assert said in run.err
    assert "Traceback" not in run.err


def test_who_is_no_operator_hears_so(tmp_path: Path, server: Server) -> None:
    """The local token leads boards, but makes no principals."""
    file = write_orders(tmp_path / "orders.csv", ["1,a,b,2,2011-02-06 10:00:00,1.5,,France"])
    run = Run(tmp_path, str(file), "--server", server.address, env={"SLATE_TOKEN": server.local_token})
    assert run.finish() == 1
    assert "demo failed: " in run.err
    assert "operator" in run.err
    assert HEADER not in run.err
