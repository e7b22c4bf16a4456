"""get, put, rm, append, ls, status: what they write, print and answer."""

import base64
import json
import shlex
from pathlib import Path

import pytest

from tests.cli.running import Slate


def test_put_without_a_flag_creates_and_get_in_a_pipe_prints_the_exact_bytes(slate: Slate) -> None:
    slate.ok("put", "plan/current", "three steps")
    assert slate.ok("get", "plan/current").stdout == b"three steps"


def test_put_on_an_existing_key_is_contention_and_names_version_writer_and_the_way_on(slate: Slate) -> None:
    slate.ok("put", "plan", "first")
    refused = slate("put", "plan", "it's second")
    assert refused.code == 3
    assert refused.stdout == b""
    assert "version 1" in refused.stderr
    assert "'local'" in refused.stderr
    assert "--expect 1" in refused.stderr
    assert slate.ok("get", "plan").out == "first"


@pytest.mark.parametrize(
    ("key", "value"),
    [("a key", 'it\'s $HOME `x` "q"'), ("k;rm", "*"), ("ключ/计划", "line\nline"), ("k", "-")],
)
def test_the_suggested_command_can_be_pasted_into_a_shell(slate: Slate, key: str, value: str) -> None:
    slate.ok("put", key, "first")
    stdin = b"from stdin" if value == "-" else b""
    refused = slate("put", key, value, stdin=stdin)
    assert refused.code == 3
    command = refused.stderr[refused.stderr.index("slate put") :].strip()
    # What a shell makes of it; `$'...'` is beyond shlex, so line feeds are put in by hand.
    words = shlex.split(command.replace("$'line\\nline'", "'line\nline'"))
    assert words[0] == "slate"
    slate.ok(*words[1:], stdin=stdin)
    assert slate.ok("get", key).stdout == (stdin or value.encode())


def test_the_suggested_command_keeps_options_but_no_credential(slate: Slate) -> None:
    token = (Path(slate.env["SLATE_DATA"]) / "local.token").read_text().strip()
    slate.ok("put", "k", "1")
    refused = slate("--token", token, "put", "--absent", "--label", "a=b", "k", "2")
    assert refused.code == 3
    assert token not in refused.stderr
    assert "--label a=b" in refused.stderr
    assert "--absent" not in refused.stderr.partition("slate put")[2]


def test_a_stale_expect_is_contention_and_names_the_present_version(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    slate.ok("put", "k", "2", "--expect", "1")
    refused = slate("put", "k", "3", "--expect", "1")
    assert refused.code == 3
    assert "--expect 2" in refused.stderr


def test_expecting_a_version_of_an_absent_key_is_contention(slate: Slate) -> None:
    refused = slate("put", "k", "3", "--expect", "1")
    assert refused.code == 3
    assert "absent" in refused.stderr


def test_an_etag_from_get_lets_a_put_through_once(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    etag = slate.ok("get", "k", "--json").json["etag"]
    slate.ok("put", "k", "2", "--etag", etag)
    assert slate("put", "k", "3", "--etag", etag).code == 3


def test_any_state_is_refused_in_the_shared_region_and_works_in_ones_own(slate: Slate) -> None:
    refused = slate("put", "k", "1", "--any-state")
    assert refused.code == 1
    assert "any_state" in refused.stderr
    for value in ("1", "2"):
        slate.ok("--region", "private", "put", "k", value, "--any-state")
    assert slate.ok("get", "k", "--region", "private").out == "2"
    assert slate("get", "k").code == 4


@pytest.mark.parametrize(
    ("typed", "value", "content_type"),
    [
        ('{"a": 1}', {"a": 1}, "application/json"),
        ("[1, 2]", [1, 2], "application/json"),
        ("12.5", 12.5, "application/json"),
        ("true", True, "application/json"),
        ("null", None, "application/json"),
        ('"quoted"', '"quoted"', "text/plain; charset=utf-8"),
        ("plain", "plain", "text/plain; charset=utf-8"),
        ("NaN", "NaN", "text/plain; charset=utf-8"),
        ("{broken", "{broken", "text/plain; charset=utf-8"),
        ("", "", "text/plain; charset=utf-8"),
    ],
)
def test_what_looks_like_json_is_json_and_the_rest_is_text(
    slate: Slate, typed: str, value: object, content_type: str
) -> None:
    slate.ok("put", "k", typed)
    entry = slate.ok("get", "k", "--json").json
    assert entry["value"] == value
    assert entry["content_type"] == content_type
    assert slate.ok("get", "k").stdout == typed.encode()


def test_text_and_json_can_be_insisted_on(slate: Slate) -> None:
    slate.ok("put", "t", "12", "--text")
    assert slate.ok("get", "t", "--json").json["value"] == "12"
    slate.ok("put", "j", '"quoted"', "--json-value")
    assert slate.ok("get", "j", "--json").json["value"] == "quoted"
    refused = slate("put", "j2", "not json", "--json-value")
    assert refused.code == 2
    assert "JSON" in refused.stderr


def test_bytes_come_back_exactly_and_as_base64_in_json(slate: Slate, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "data.bin").write_bytes(data)
    slate.ok("put", "from/file", "--file", str(tmp_path / "data.bin"))
    slate.ok("put", "from/stdin", "-", stdin=data)
    for key in ("from/file", "from/stdin"):
        assert slate.ok("get", key).stdout == data
        entry = slate.ok("get", key, "--json").json
        assert entry["encoding"] == "base64"
        assert base64.b64decode(entry["value"]) == data


def test_a_value_may_begin_with_a_dash_after_two_dashes(slate: Slate) -> None:
    slate.ok("put", "--", "k", "-5")
    assert slate.ok("get", "k", "--json").json["value"] == -5


def test_get_json_has_what_a_program_needs(slate: Slate) -> None:
    slate.ok("put", "k", '{"step": 1}')
    entry = slate.ok("get", "k", "--json").json
    assert entry["key"] == "k"
    assert entry["value"] == {"step": 1}
    assert entry["version"] == 1
    assert entry["revision"] == 1
    assert entry["trust"] == "user"
    assert entry["provenance"] == {"principal": "local", "derivations": []}


def test_get_at_a_revision_shows_what_was_there_then(slate: Slate) -> None:
    slate.ok("put", "k", "old")
    slate.ok("put", "k", "new", "--expect", "1")
    assert slate.ok("get", "k", "--at", "1").out == "old"
    assert slate("get", "k", "--at", "99").code == 1


def test_sources_trust_and_lifetime_are_kept(slate: Slate) -> None:
    slate.ok("put", "in/a", "1")
    slate.ok("put", "in/b@c", "2")
    slate.ok(
        *("put", "out", "3", "--derived-from", "in/a@1", "--derived-from", "in/b@c@1"),
        *("--trust", "external", "--ttl", "1h"),
    )
    entry = slate.ok("get", "out", "--json").json
    assert entry["trust"] == "external"
    assert "expire_time" in entry
    [sources] = entry["provenance"]["derivations"]
    assert [(source["key"], source["version"]) for source in sources] == [("in/a", 1), ("in/b@c", 1)]


def test_rm_removes_the_version_it_has_just_seen(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    assert slate.ok("rm", "k", "--json").json["version"] == 2
    assert slate("get", "k").code == 4
    assert slate("rm", "k").code == 4


def test_rm_with_a_stale_version_is_contention_and_removes_nothing(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    slate.ok("put", "k", "2", "--expect", "1")
    refused = slate("rm", "k", "--expect", "1")
    assert refused.code == 3
    assert "rm --expect 2 k" in refused.stderr
    assert slate.ok("get", "k").out == "2"


def test_rm_of_whatever_is_there_finds_nothing_without_an_error(slate: Slate) -> None:
    done = slate.ok("--region", "private", "rm", "nothing", "--any-state", "--json").json
    assert done["changed"] is False


def test_append_names_the_key_itself_and_forgives_a_missing_slash(slate: Slate) -> None:
    first = slate.ok("append", "log", "one", "--json").json["key"]
    second = slate.ok("append", "log/", "two", "--json").json["key"]
    assert first.startswith("log/")
    assert first < second
    assert [entry["key"] for entry in slate.ok("ls", "log", "--json").json] == [first, second]


def test_ls_lists_keys_below_a_prefix_and_not_those_that_only_look_alike(slate: Slate) -> None:
    for key in ("plan/a", "plan/b", "planner"):
        slate.ok("put", key, "x")
    assert [entry["key"] for entry in slate.ok("ls", "plan/", "--json").json] == ["plan/a", "plan/b"]
    assert [line.split("\t")[0] for line in slate.ok("ls").out.splitlines()] == [
        "plan/a",
        "plan/b",
        "planner",
    ]
    assert slate.ok("ls", "none/", "--json").json == []
    assert slate.ok("ls", "none/").stdout == b""


def test_ls_goes_on_over_pages(slate: Slate) -> None:
    ops = [{"put": {"key": f"many/{number:03}", "value": number, "absent": True}} for number in range(120)]
    slate.ok("commit", "-", stdin=json.dumps({"ops": ops}).encode())
    assert len(slate.ok("ls", "--json").json) == 120
    assert len(slate.ok("ls", "--json", "--limit", "7").json) == 7


def test_status_tells_version_writer_and_the_last_conflict(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    assert slate.ok("status", "k", "--json").json["last_conflict"] is None
    slate("put", "k", "2")
    status = slate.ok("status", "k", "--json").json
    assert status["version"] == 1
    assert status["provenance"]["principal"] == "local"
    assert status["last_conflict"]["violations"][0]["key"] == "k"
    assert "last conflict" in slate.ok("status", "k").out


@pytest.mark.parametrize("command", ["get", "rm", "status", "history", "trace", "impact", "diff"])
def test_a_key_that_is_not_there_is_exit_4_on_every_command(slate: Slate, command: str) -> None:
    missed = slate(command, "no/such")
    assert missed.code == 4
    assert missed.stdout == b""
    assert missed.stderr.startswith("slate: ")


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "..", "a\nb", "a/" * 17 + "b", "x" * 600])
def test_a_key_that_cannot_be_is_a_usage_error(slate: Slate, key: str) -> None:
    refused = slate("put", key, "1")
    assert refused.code == 2
    assert refused.stderr


def test_a_value_above_the_limit_is_refused_and_the_limit_is_named(slate: Slate) -> None:
    refused = slate("put", "k", "-", stdin=b"x" * ((1 << 20) + 1))
    assert refused.code == 2
    assert "1048576" in refused.stderr.replace(",", "").replace("_", "")


def test_a_value_at_the_limit_goes_through(slate: Slate) -> None:
    data = b"y" * (1 << 20)
    slate.ok("put", "k", "-", stdin=data)
    assert slate.ok("get", "k").stdout == data
