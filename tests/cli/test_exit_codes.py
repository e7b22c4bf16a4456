"""What goes wrong outside: no server, a wrong token, no board; and that it is said without a stack trace."""

import signal
from pathlib import Path

import pytest

import slateboard
from tests.cli.running import Slate
from tests.fix_server import Server


def test_without_a_server_every_command_says_so_in_two_lines_and_exits_1(nowhere: Slate) -> None:
    failed = nowhere.process("get", "k", "--board", "b")
    assert failed.code == 1
    assert failed.stdout == b""
    assert "slate serve" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert len(failed.stderr.splitlines()) <= 2


def test_a_wrong_token_is_exit_5_and_the_token_is_not_repeated(slate: Slate) -> None:
    for refused in (
        slate("--token", "slate_wrong_secret", "get", "k"),
        slate.with_env(SLATE_TOKEN="slate_wrong_secret")("whoami"),
    ):
        assert refused.code == 5
        assert "slate_wrong_secret" not in refused.stderr


def test_without_any_token_access_is_exit_5(slate: Slate, tmp_path: Path) -> None:
    assert slate.with_env(SLATE_DATA=str(tmp_path))("get", "k").code == 5


def test_what_a_principal_may_not_do_is_exit_5(slate: Slate, board_name: str) -> None:
    token = slate.ok(
        "principal", "create", f"reader-{board_name}", "--role", "observer", "--board", board_name
    ).out.strip()
    reader = slate.with_env(SLATE_TOKEN=token)
    assert reader.ok("ls").code == 0
    refused = reader("put", "k", "1")
    assert refused.code == 5
    assert "slate whoami" in refused.stderr


def test_an_explicit_token_wins_over_the_environment_and_that_over_the_file(slate: Slate) -> None:
    operator = (Path(slate.env["SLATE_DATA"]) / "operator.token").read_text().strip()
    local = (Path(slate.env["SLATE_DATA"]) / "local.token").read_text().strip()
    assert slate.ok("whoami", "--json").json["id"] == "local"
    both = slate.with_env(SLATE_TOKEN=operator)
    assert both.ok("whoami", "--json").json["id"] == "operator"
    assert both.ok("--token", local, "whoami", "--json").json["id"] == "local"
    # Administration asks for what was given, too, before it looks for the operator's token.
    assert slate.with_env(SLATE_TOKEN=local)("principal", "ls").code == 5


def test_a_board_that_does_not_exist_is_exit_4(slate: Slate) -> None:
    assert slate("--board", "no-such-board", "get", "k").code == 4


def test_the_only_board_is_taken_and_named_on_standard_error(slate: Slate, board_name: str) -> None:
    token = slate.ok("principal", "create", f"one-{board_name}", "--boards", board_name).out.strip()
    lone = slate.with_env(SLATE_TOKEN=token, SLATE_BOARD=None)
    done = lone.ok("put", "k", "1", "--json")
    assert board_name in done.stderr
    assert done.json["version"] == 1


def test_several_boards_and_none_named_is_a_usage_error_that_lists_them(
    slate: Slate, board_name: str, server: Server
) -> None:
    with slateboard.connect(server.address, token=server.operator_token) as client:
        client.create_board(f"{board_name}-2")
    refused = slate.with_env(SLATE_BOARD=None)("get", "k")
    assert refused.code == 2
    assert "--board" in refused.stderr


def test_options_count_before_and_after_the_command(slate: Slate, board_name: str, server: Server) -> None:
    bare = slate.with_env(SLATE_BOARD=None, SLATE_SERVER="127.0.0.1:9")
    bare.ok("--server", server.address, "--board", board_name, "put", "k", "1")
    after = bare.ok("get", "k", "--json", "--server", server.address, f"--board={board_name}")
    assert after.json["version"] == 1
    assert bare("--board", "no-such", "get", "k", "--server", server.address, "--board", board_name).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("get",),
        ("get", "a", "b"),
        ("put", "k"),
        ("put", "k", "v", "--expect", "x"),
        ("put", "k", "v", "--expect", "0"),
        ("put", "k", "v", "--absent", "--any-state"),
        ("put", "k", "v", "--trust", "blind"),
        ("put", "k", "v", "--derived-from", "no-version"),
        ("put", "k", "v", "--derived-from", "k@0"),
        ("put", "k", "v", "--ttl", "soon"),
        ("put", "k", "v", "--file", "also"),
        ("rm", "k", "--expect", "1", "--any-state"),
        ("watch", "--after", "1", "--snapshot"),
        ("diff", "k", "0"),
        ("trace", "k", "--format", "crayon"),
        ("top", "--interval", "0"),
        ("principal", "create", "x", "--role", "king"),
        ("principal", "create", "x", "--right", "nothing"),
        ("board", "nonsense"),
        ("sessions", "--state", "asleep"),
        ("--server", "host:99999", "get", "k"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_exit_2_without_any_server(
    nowhere: Slate, arguments: tuple[str, ...]
) -> None:
    refused = nowhere("--board", "b", *arguments)
    assert refused.code == 2
    assert refused.stdout == b""
    assert refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_is_not_there_is_exit_1_and_named(slate: Slate, tmp_path: Path) -> None:
    for failed in (
        slate("put", "k", "--file", str(tmp_path / "missing")),
        slate("commit", str(tmp_path / "missing")),
    ):
        assert failed.code == 1
        assert "missing" in failed.stderr


def test_arguments_that_are_no_utf_8_are_a_usage_error(slate: Slate) -> None:
    assert slate.process("put", "k", "\udcff").code == 2


def test_debug_shows_the_stack(nowhere: Slate) -> None:
    failed = nowhere.with_env(SLATE_DEBUG="1").process("get", "k", "--board", "b")
    assert failed.code == 1
    assert "Traceback" in failed.stderr


def test_ctrl_c_ends_a_watch_quietly_with_130(slate: Slate) -> None:
    with slate.started("watch", "--snapshot", "--json") as process:
        # Nothing is there; the first thing it says is that it watches, or the (empty) snapshot.
        slate.ok("put", "k", "1")
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert b"Traceback" not in said


def test_a_reader_that_leaves_early_is_no_error_to_speak_of(slate: Slate) -> None:
    slate.ok("put", "big", "-", stdin=b"line\n" * 100_000)
    with slate.started("get", "big") as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        process.wait(20)
        assert process.stderr is not None
        assert process.stderr.read() == b""
