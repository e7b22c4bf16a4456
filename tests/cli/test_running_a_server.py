"""serve, doctor, demo, version, completion."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from slateboard.cli import doctor, serve
from tests.cli.running import Slate, refusing
from tests.fix_server import MakeServer, Server


def _line_with(stream: IO[bytes] | None, words: str) -> str:
    assert stream is not None
    for line in stream:
        if words.encode() in line:
            return line.decode()
    raise AssertionError(f"it ended without saying {words!r}")


def test_serve_runs_a_server_that_the_other_commands_find_and_ends_in_order(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    slate = Slate({"SLATE_DATA": str(data)})
    with slate.started("serve", "--listen", "127.0.0.1:0") as process:
        address = _line_with(process.stdout, "listening on").split()[-1]
        here = slate.with_env(SLATE_SERVER=address)
        here.ok("board", "create", "b")
        here.ok("put", "k", "1")
        assert here.ok("whoami", "--json").json["id"] == "local"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
    # Where things are and what to type, in words that a shell reads back.
    assert f"export SLATE_DATA='{data}'".encode() in said
    assert b"slate board create" in said
    for name in ("operator", "local"):
        assert (data / f"{name}.token").stat().st_mode & 0o777 == 0o600


def test_a_second_server_on_the_data_names_the_first_one_and_exits_1(server: Server) -> None:
    refused = Slate({}).process("serve", "--data", str(server.data_dir), "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert f"pid {server.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_serving_beyond_this_machine_without_tls_is_refused_until_it_is_spelled_out(tmp_path: Path) -> None:
    refused = Slate({})("serve", "--data", str(tmp_path), "--listen", "0.0.0.0:0")
    assert refused.code == 2
    assert "--insecure" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--listen", "nonsense"), ("--config", "missing.toml"), ("--log-format", "xml"), ("--tls-cert", "only")],
)
def test_settings_that_make_no_sense_are_exit_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = Slate({})("serve", "--data", str(tmp_path), *arguments)
    assert refused.code == 2
    assert refused.stderr


def test_without_the_servers_packages_serve_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # None in sys.modules makes the import fail as if nothing were there.
    monkeypatch.setitem(sys.modules, "slateboard_server", None)
    refused = Slate({})("serve", "--data", str(tmp_path))
    assert refused.code == 1
    assert "pip install 'slateboard[server]'" in refused.stderr
    assert serve.NOT_INSTALLED in refused.stderr


def _checks(document: Any) -> dict[str, str]:
    return {check["name"]: check["status"] for check in document["checks"]}


def test_doctor_finds_a_server_its_limits_clock_and_credential(slate: Slate, server: Server) -> None:
    seen = slate.ok("doctor", "--json").json
    assert seen["ok"] is True
    checks = _checks(seen)
    for name in (
        "python",
        "grpcio",
        "protobuf",
        "data directory",
        "free space",
        "answers",
        "limits",
        "clock",
    ):
        assert checks[name] == "ok", seen
    assert checks["credential"] == checks["operator.token"] == checks["local.token"] == "ok"
    [running] = [check for check in seen["checks"] if check["name"] == "running server"]
    assert f"pid {server.pid}" in running["detail"]
    assert "python" in slate.ok("doctor").out


def test_doctor_warns_without_a_server_and_says_whether_the_port_is_free(tmp_path: Path) -> None:
    with refusing() as address:
        slate = Slate({"SLATE_DATA": str(tmp_path / "none"), "SLATE_SERVER": address})
        taken = slate.ok("doctor", "--json").json
        assert _checks(taken)["answers"] == "warning"
        assert _checks(taken)["port"] == "warning"
    assert _checks(slate.ok("doctor", "--json").json)["port"] == "ok"


def test_doctor_fails_on_tokens_that_others_may_read(
    make_server: MakeServer,
) -> None:
    own = make_server()
    (own.data_dir / "local.token").chmod(0o644)
    slate = Slate({"SLATE_DATA": str(own.data_dir), "SLATE_SERVER": own.address})
    seen = slate("doctor", "--json")
    assert seen.code == 1
    assert seen.json["ok"] is False
    assert _checks(seen.json)["local.token"] == "error"
    code, shown = slate.terminal("doctor")
    assert code == 1
    assert "0644" in shown


def test_doctor_fails_on_a_data_directory_that_is_a_file_and_on_a_wrong_token(
    slate: Slate, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert (
        _checks(slate("doctor", "--data", str(tmp_path / "file"), "--json").json)["data directory"] == "error"
    )
    refused = slate("doctor", "--token", "slate_wrong_secret", "--json")
    assert refused.code == 1
    assert "slate_wrong_secret" not in refused.out


def test_doctor_warns_of_an_old_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    assert {check.name: check.status for check in doctor._programs()}["sqlite"] == "warning"
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    assert {check.name: check.status for check in doctor._programs()}["sqlite"] == "ok"


def test_demo_hands_its_options_on_and_its_exit_code_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import agents_demo.__main__ as job  # noqa: PLC0415 -- patched here only

    given: list[list[str]] = []

    def main(argv: list[str]) -> int:
        given.append(list(argv))
        return 7

    monkeypatch.setattr(job, "main", main)
    assert Slate({})("demo", "orders.csv", "--workers", "5", "--server", "h:1", "--json").code == 7
    assert given[0][:3] == ["orders.csv", "--workers", "5"]
    assert "--json" in given[0]
    assert given[0][given[0].index("--server") + 1] == "h:1"


def test_demo_help_is_the_demos_own() -> None:
    shown = Slate({}).process("demo", "--help")
    assert shown.code == 0
    assert "--workers" in shown.out


def test_version_is_that_of_the_package() -> None:
    assert Slate({}).ok("--version").out == Slate({}).ok("version").out
    assert Slate({}).ok("version", "--json").json["version"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_shells(shell: str) -> None:
    shown = Slate({"SHELL": f"/bin/{shell}"}).process("--show-completion", shell)
    assert shown.code == 0
    assert "slate" in shown.out


def test_help_and_completion_do_without_grpc() -> None:
    """Half of the time to start would go there, and a shell completes on every key."""
    code = (
        "import sys, slateboard.cli\n"
        "try: slateboard.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('grpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    assert done.returncode == 0
