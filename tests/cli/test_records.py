"""What is recorded of commits: history, diff, conflicts, commits, trace, impact; and `slate commit`."""

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Ran, Slate


def _commit(slate: Slate, document: Any, *arguments: str) -> Ran:
    return slate("commit", "-", *arguments, stdin=json.dumps(document).encode())


def test_history_lists_all_versions_newest_first_absences_included(slate: Slate) -> None:
    slate.ok("put", "k", "1", "--note", "to begin with")
    slate.ok("put", "k", "2", "--expect", "1")
    slate.ok("rm", "k")
    versions = slate.ok("history", "k", "--json").json
    assert [entry["version"] for entry in versions] == [3, 2, 1]
    assert versions[0]["tombstone"] == "deleted"
    assert "value" not in versions[1]
    assert [entry.get("value") for entry in slate.ok("history", "k", "--json", "--values").json] == [
        None,
        2,
        1,
    ]
    assert "to begin with" in slate.ok("history", "k").out
    assert len(slate.ok("history", "k", "--limit", "1").out.splitlines()) == 1


def test_diff_shows_places_of_json_and_lines_of_text(slate: Slate) -> None:
    slate.ok("put", "j", '{"a": 1, "same": 0}')
    slate.ok("put", "j", '{"a": 2, "b": [1], "same": 0}', "--expect", "1")
    changes = slate.ok("diff", "j", "--json").json["changes"]
    assert [(change["kind"], change["pointer"], change["before"], change["after"]) for change in changes] == [
        ("changed", "/a", "1", "2"),
        ("added", "/b", "", "[1]"),
    ]
    assert slate.ok("diff", "j").out.splitlines() == ["- /a: 1", "+ /a: 2", "+ /b: [1]"]
    slate.ok("put", "t", "one\ntwo\n")
    slate.ok("put", "t", "one\nthree\n", "--expect", "1")
    slate.ok("put", "t", "one\ntwo\n", "--expect", "2")
    shown = slate.ok("diff", "t", "1", "2").out
    assert "-two" in shown
    assert "+three" in shown
    assert slate.ok("diff", "t", "1", "3", "--json").json["equal"] is True
    assert slate.ok("diff", "t", "1", "3").stdout == b""


def test_a_refused_put_is_on_record_as_a_conflict(slate: Slate) -> None:
    assert slate.ok("conflicts", "--json").json == []
    slate.ok("put", "k", "1")
    slate("put", "k", "2")
    [listed] = slate.ok("conflicts", "--json").json
    assert slate.ok("conflicts", "ls", "--key", "k", "--json").json == [listed]
    assert slate.ok("conflicts", "--key", "other", "--json").json == []
    shown = slate.ok("conflicts", "show", listed["conflict_id"], "--json").json
    [violation] = shown["violations"]
    assert (violation["key"], violation["expected"], violation["current_version"]) == ("k", "absent", 1)
    assert violation["current_principal"] == "local"
    assert "absent" in slate.ok("conflicts", "show", listed["conflict_id"]).out
    assert slate("conflicts", "show", "c-no-such").code == 4


def test_commits_are_listed_and_shown_by_revision_and_request_id(slate: Slate) -> None:
    request_id = str(uuid.uuid4())
    slate.ok("put", "a", "1")
    done = _commit(
        slate, {"ops": [{"put": {"key": "b", "value": 2, "absent": True}}], "request_id": request_id}
    )
    assert done.code == 0
    assert [commit["revision"] for commit in slate.ok("commits", "--json").json] == [2, 1]
    assert [commit["revision"] for commit in slate.ok("commits", "ls", "--limit", "1", "--json").json] == [2]
    assert slate.ok("commits", "--principal", "nobody", "--json").json == []
    for selector in ("2", request_id):
        shown = slate.ok("commits", "show", selector, "--json").json
        assert (shown["revision"], shown["results"][0]["key"]) == (2, "b")
    assert slate("commits", "show", "99").code == 4
    assert slate("commits", "show", str(uuid.uuid4())).code == 4


def test_a_commit_document_is_applied_whole(slate: Slate, tmp_path: Path) -> None:
    slate.ok("put", "seen", "1")
    slate.ok("put", "old", "1")
    document = {
        "note": "all at once",
        "ops": [
            {"put": {"key": "json", "value": {"a": [1]}, "absent": True, "labels": {"x": "y"}}},
            {"put": {"key": "text", "text": "[1]", "absent": True, "ttl": "1h"}},
            {"put": {"key": "bytes", "base64": base64.b64encode(b"\0\xff").decode(), "absent": True}},
            {"put": {"key": "old", "value": 2, "expect": 1, "derived_from": ["seen@1", {"op": 0}]}},
            {"append": {"prefix": "log/", "value": "said", "kind": "episodic", "trust": "agent"}},
        ],
        "guards": [
            {"key": "seen", "version": 1},
            {"key": "missing", "version": 0},
            {"prefix": "t/", "since": 1},
        ],
    }
    (tmp_path / "commit.json").write_text(json.dumps(document))
    done = slate.ok("commit", str(tmp_path / "commit.json"), "--json").json
    assert done["revision"] == 3
    assert [result["key"] for result in done["results"]][:4] == ["json", "text", "bytes", "old"]
    assert slate.ok("get", "json", "--json").json["labels"] == {"x": "y"}
    assert slate.ok("get", "text", "--json").json["value"] == "[1]"
    assert slate.ok("get", "bytes").stdout == b"\0\xff"
    [used] = slate.ok("get", "old", "--json").json["provenance"]["derivations"]
    assert sorted(source["key"] for source in used) == ["json", "seen"]
    appended = slate.ok("get", done["results"][4]["key"], "--json").json
    assert (appended["value"], appended["kind"], appended["trust"]) == ("said", "episodic", "agent")
    assert slate.ok("commits", "show", "3", "--json").json["note"] == "all at once"


def test_a_commit_with_one_stale_op_writes_nothing_and_is_contention(slate: Slate) -> None:
    slate.ok("put", "k", "1")
    refused = _commit(
        slate,
        {
            "ops": [
                {"put": {"key": "new", "value": 1, "absent": True}},
                {"put": {"key": "k", "value": 2, "absent": True}},
            ],
            "guards": [{"key": "k", "version": 7}],
        },
    )
    assert refused.code == 3
    assert "'k' is at version 1" in refused.stderr
    assert "version 7" in refused.stderr
    assert slate("get", "new").code == 4


def test_a_dry_run_judges_and_writes_nothing(slate: Slate) -> None:
    document = {"ops": [{"put": {"key": "k", "value": 1, "absent": True}}]}
    assert _commit(slate, document, "--dry-run", "--json").json["validate_only"] is True
    assert slate("get", "k").code == 4
    slate.ok("put", "k", "1")
    assert _commit(slate, document, "--dry-run").code == 3


def test_the_same_document_with_a_request_id_is_applied_once(slate: Slate) -> None:
    document = {
        "ops": [{"append": {"prefix": "log/", "value": 1}}],
        "request_id": str(uuid.uuid4()),
    }
    first, second = (_commit(slate, document, "--json").json for _ in range(2))
    assert second["replayed"] is True
    assert first["results"] == second["results"]
    assert len(slate.ok("ls", "log/", "--json").json) == 1


@pytest.mark.parametrize(
    "document",
    [
        "text",
        {"ops": {}},
        {"ops": [], "guard": []},
        {"ops": [{}]},
        {"ops": [{"put": {"key": "a", "value": 1}, "delete": {"key": "b"}}]},
        {"ops": [{"put": {"key": "a", "value": 1}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "expect": 1}}]},
        {"ops": [{"put": {"key": "a", "absent": True}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "text": "b", "absent": True}}]},
        {"ops": [{"put": {"key": 1, "value": 1, "absent": True}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "region": 1}}]},
        {"ops": [{"put": {"key": "a", "base64": "!", "absent": True}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "kind": "odd"}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "confidence": "high"}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "unknown": 1}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "derived_from": ["b"]}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True, "derived_from": [{"op": True}]}}]},
        {"ops": [{"append": {"prefix": "no-slash", "value": 1}}]},
        {"ops": [{"delete": {"key": "a", "expect": "1"}}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True}}], "guards": [{"key": "k"}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True}}], "guards": [{"key": 1, "version": 1}]},
        {"ops": [{"put": {"key": "a", "value": 1, "absent": True}}], "request_id": 5},
    ],
)
def test_a_commit_document_that_makes_no_sense_is_exit_2_without_any_server(
    nowhere: Slate, document: Any
) -> None:
    refused = _commit(nowhere, document, "--board", "b")
    assert refused.code == 2, refused.stderr
    assert refused.stderr.startswith("slate: ")
    assert "fault" not in refused.stderr


@pytest.mark.parametrize("stdin", [b"", b"{", b"\xff", b'{"ops": [NaN]}', b"[" * 100_000])
def test_a_commit_that_is_no_json_is_exit_2(nowhere: Slate, stdin: bytes) -> None:
    assert nowhere("commit", "-", "--board", "b", stdin=stdin).code == 2


def _lineage(slate: Slate) -> None:
    slate.ok("put", "raw", "1")
    slate.ok("put", "left", "2", "--derived-from", "raw@1")
    slate.ok("put", "right", "3", "--derived-from", "raw@1")
    slate.ok("put", "report", "4", "--derived-from", "left@1", "--derived-from", "right@1")


def test_trace_and_impact_draw_the_graph_and_unfold_what_comes_twice_once(slate: Slate) -> None:
    _lineage(slate)
    up = slate.ok("trace", "report").out.splitlines()
    assert up[0].startswith("report@1")
    assert sum("raw@1" in line for line in up) == 2
    assert {line.strip("├─└│ ").split(" ")[0] for line in up} == {"report@1", "left@1", "right@1", "raw@1"}
    down = slate.ok("impact", "raw").out.splitlines()
    assert down[0].startswith("raw@1")
    assert sum("report@1" in line for line in down) == 2


def test_lineage_as_json_has_nodes_and_edges(slate: Slate) -> None:
    _lineage(slate)
    graph = slate.ok("trace", "report", "--json").json
    keys = {node["id"]: node["entry"]["key"] for node in graph["nodes"]}
    assert {(keys[edge["derived"]], keys[edge["source"]]) for edge in graph["edges"]} == {
        ("report", "left"),
        ("report", "right"),
        ("left", "raw"),
        ("right", "raw"),
    }
    assert graph["truncated"] is False
    assert slate.ok("impact", "raw", "--depth", "1", "--json").json["truncated"] is True
    assert len(slate.ok("impact", "raw", "--all-versions", "--json").json["nodes"]) == 4


def test_lineage_can_be_drawn_by_other_programs(slate: Slate) -> None:
    _lineage(slate)
    assert slate.ok("trace", "left", "--format", "mermaid").out.startswith("flowchart BT\n")
    assert "n1 -> n0;" in slate.ok("trace", "left", "--format", "dot").out
    assert len(slate.ok("trace", "left", "--format", "table").out.splitlines()) == 2
