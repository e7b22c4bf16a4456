"""Boards, their rules, principals, sessions."""

import json
from pathlib import Path
from typing import Any

import pytest

import slateboard
from tests.cli.running import Slate
from tests.fix_server import Server


def test_a_board_is_made_listed_shown_and_deleted_with_the_operators_token_found_by_itself(
    slate: Slate, board_name: str
) -> None:
    name = f"{board_name}-more"
    made = slate.ok("board", "create", name, "--description", "what for", "--json").json
    assert (made["name"], made["description"], made["revision"]) == (name, "what for", 0)
    assert slate("board", "create", name).code == 3
    assert slate.ok("board", "create", name, "--exist-ok").code == 0
    assert name in [board["name"] for board in slate.ok("board", "ls", "--json").json]
    shown = slate.ok("board", "show", name, "--json").json
    assert shown["created_by"] == "operator"
    assert shown["activity"]["commits"] == 0
    assert slate("board", "delete", name, "--incarnation", "another", "--yes").code != 0
    assert slate.ok("board", "delete", name, "--yes", "--json").json == {"board": name, "deleted": True}
    assert slate("board", "show", name).code == 4
    assert slate("board", "delete", name, "--yes").code == 4


def test_deleting_a_board_asks_first_on_a_terminal(slate: Slate, board_name: str) -> None:
    code, shown = slate.terminal("board", "delete", board_name, typed=b"n\n")
    assert code == 1
    assert "[y/N]" in shown
    assert slate.ok("board", "show", "--json").json["name"] == board_name
    code, _ = slate.terminal("board", "delete", board_name, typed=b"y\n")
    assert code == 0


@pytest.mark.parametrize("name", ["", "UPPER", "a b", "../x", "x" * 65])
def test_a_board_name_that_cannot_be_is_a_usage_error(slate: Slate, name: str) -> None:
    assert slate("board", "create", name).code == 2


def test_the_rules_of_a_board_are_read_edited_and_written_back(slate: Slate, tmp_path: Path) -> None:
    rules = slate.ok("board", "policy", "--json").json
    assert rules["rules"] == []
    rules["rules"] = [
        {"prefix": "free/", "any_state": "allowed", "default_ttl": "1h"},
        {"prefix": "fixed/", "write_mode": "read_only", "min_trust": "user"},
    ]
    rules["quota"] = {"max_entries": 100}
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    written = slate.ok("board", "policy", "--set", str(tmp_path / "rules.json"), "--json").json
    assert written["version"] == rules["version"] + 1
    assert written["rules"][0]["default_ttl"] == 3600
    assert slate.ok("board", "policy", "--json").json == written
    slate.ok("put", "free/k", "1", "--any-state")
    slate.ok("put", "free/k", "2", "--any-state")
    assert slate("put", "fixed/k", "1").code == 1
    # What was read has been replaced meanwhile: by ourselves, in this case.
    stale = slate("board", "policy", "--set", "-", stdin=json.dumps({**rules, "rules": []}).encode())
    assert stale.code == 3
    assert slate.ok("board", "policy", "--json").json == written


@pytest.mark.parametrize(
    "rules",
    [
        [],
        {"rule": []},
        {"version": "1"},
        {"rules": [{"prefix": 1}]},
        {"rules": [{"scope": "wide"}]},
        {"rules": [{"default_ttl": True}]},
        {"quota": {"max_entries": -1}},
        {"quota": {"max_everything": 1}},
    ],
)
def test_rules_that_make_no_sense_are_exit_2_without_any_server(nowhere: Slate, rules: Any) -> None:
    refused = nowhere("board", "policy", "b", "--set", "-", stdin=json.dumps(rules).encode())
    assert refused.code == 2


def test_compaction_drops_old_values_and_names_the_new_floor(slate: Slate, board_name: str) -> None:
    slate.ok("put", "k", "1")
    slate.ok("put", "k", "2", "--expect", "1")
    slate.ok("put", "k", "3", "--expect", "2")
    done = slate.ok("board", "compact", board_name, "--revision", "3", "--json").json
    assert done["oldest_revision"] == 3
    assert slate.ok("history", "k", "--json").json[2]["compacted"] is True
    assert slate("board", "compact", board_name, "--revision", "99").code == 1


def test_a_new_life_of_a_board_has_another_incarnation(slate: Slate, board_name: str) -> None:
    before = slate.ok("board", "show", "--json").json["incarnation"]
    after = slate.ok("board", "reincarnate", board_name, "--yes", "--json").json["incarnation"]
    assert before != after


def test_a_principals_token_is_printed_alone_and_works(slate: Slate, board_name: str) -> None:
    name = f"worker-{board_name}"
    made = slate.ok("principal", "create", name, "--role", "worker", "--board", board_name)
    assert made.out.count("\n") == 1
    assert "only now" in made.stderr
    me = slate.with_env(SLATE_TOKEN=made.out.strip()).ok("whoami", "--json").json
    assert (me["id"], me["role"], me["boards"], me["trust_ceiling"]) == (
        name,
        "worker",
        [board_name],
        "agent",
    )
    assert slate("principal", "create", name).code == 3


def test_a_principal_is_updated_in_what_is_named_and_keeps_the_rest(slate: Slate, board_name: str) -> None:
    name = f"p-{board_name}"
    made = slate.ok(
        *("principal", "create", name, "--boards", board_name, "--name", "Ada", "--json"),
        *("--right", "read:", "--right", "append:inbox/", "--trust-ceiling", "external", "--token-ttl", "1h"),
    ).json
    assert made["token"]
    assert made["principal"]["tokens"][0]["expire_time"] is not None
    changed = slate.ok("principal", "update", name, "--trust-ceiling", "agent", "--json").json
    assert changed["trust_ceiling"] == "agent"
    assert changed["display_name"] == "Ada"
    assert changed["boards"] == [board_name]
    assert changed["rights"] == [
        {"prefix": "", "actions": ["read"]},
        {"prefix": "inbox/", "actions": ["append"]},
    ]
    assert slate.ok("principal", "show", name, "--json").json == changed
    assert name in slate.ok("principal", "ls", "--board", board_name).out
    assert slate("principal", "update", name).code == 2
    assert slate("principal", "show", "no-such").code == 4


def test_tokens_are_rotated_and_revoked_and_a_disabled_principal_is_out(
    slate: Slate, board_name: str
) -> None:
    name = f"t-{board_name}"
    first = slate.ok("principal", "create", name, "--boards", board_name).out.strip()
    rotated = slate.ok("principal", "rotate", name, "--overlap", "1h", "--json").json
    second = rotated["token"]
    for token in (first, second):
        assert slate.with_env(SLATE_TOKEN=token).ok("whoami", "--json").json["id"] == name
    slate.ok("principal", "revoke", rotated["token_id"])
    own = slate.with_env(SLATE_TOKEN=first).ok("principal", "rotate", "--json").json["token"]
    assert slate.ok("principal", "disable", name, "--yes", "--json").json["disabled"] is True
    assert slate.with_env(SLATE_TOKEN=own)("whoami").code == 5


def test_whose_token_to_rotate_must_be_said(slate: Slate) -> None:
    assert slate("principal", "rotate").code == 2


def test_sessions_show_who_is_at_work_on_what(slate: Slate, board_name: str, server: Server) -> None:
    assert slate.ok("sessions", "--json").json == []
    with slateboard.connect(server.address, token=server.local_token) as client:
        with client.board(board_name).session(task="dedupe [bold]"):
            [at_work] = slate.ok("sessions", "--json").json
            assert (at_work["principal"], at_work["state"], at_work["task"]) == (
                "local",
                "active",
                "dedupe [bold]",
            )
            assert "dedupe [bold]" in slate.ok("sessions").out
        assert slate.ok("sessions", "--state", "active", "--json").json == []
        assert slate.ok("sessions", "--principal", "local", "--json").json[0]["state"] == "ended"
