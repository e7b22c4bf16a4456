"""What the server says arrives whole; what a newer one says is taken for the careful reading."""

from datetime import UTC, datetime

import slateboard
from slateboard import _wire, _wire_boards
from slateboard.v1 import (
    admin_service_pb2,
    board_service_pb2,
    entry_service_pb2,
    policy_pb2,
    provenance_service_pb2,
    session_service_pb2,
    types_pb2,
)


def whole_entry() -> types_pb2.Entry:
    message = types_pb2.Entry(
        region="shared", key="k", version=3, etag="e", create_revision=2, mod_revision=9, size=7
    )
    message.commit_time.FromSeconds(1)
    content = message.content
    content.value = b'{"a":1}'
    content.content_type = "application/json"
    content.kind = types_pb2.KIND_SEMANTIC
    content.subject, content.attribute = "s", "a"
    content.topics.append("t")
    content.labels["l"] = "1"
    content.confidence, content.importance = 0.0, 0.25
    content.valid_from.FromSeconds(2)
    content.expire_time.FromSeconds(3)
    content.trust = types_pb2.TRUST_USER
    content.provenance.principal = "ann"
    content.provenance.tool = "csv"
    content.provenance.source_uris.append("https://example.org")
    source = content.provenance.derivations.add().sources.add(region="shared", key="z", version=1)
    assert source.version == 1
    content.provenance.derivations.add().sources.add(hidden=True)
    return message


def test_an_entry_arrives_whole() -> None:
    entry = _wire.entry(whole_entry(), "b", "life")
    assert (entry.board, entry.incarnation, entry.key, entry.version) == ("b", "life", "k", 3)
    assert (entry.create_revision, entry.mod_revision, entry.etag) == (2, 9, "e")
    assert entry.commit_time == datetime.fromtimestamp(1, UTC)
    assert (entry.value, entry.raw, entry.size) == ({"a": 1}, b'{"a":1}', 7)
    assert (entry.kind, entry.trust) == (slateboard.Kind.SEMANTIC, slateboard.Trust.USER)
    assert (entry.subject, entry.attribute, entry.topics, entry.labels) == ("s", "a", ("t",), {"l": "1"})
    # 0 was said; it is not the default.
    assert (entry.confidence, entry.importance) == (0.0, 0.25)
    assert (entry.valid_from, entry.valid_to) == (datetime.fromtimestamp(2, UTC), None)
    assert entry.provenance.principal == "ann"
    known, hidden = entry.provenance.derivations
    assert (known.sources[0].key, hidden.sources[0].hidden) == ("z", True)


def test_what_a_view_leaves_out_is_not_taken_for_empty() -> None:
    message = whole_entry()
    message.content.ClearField("value")
    assert _wire.entry(message, "b", "").value is None
    message.ClearField("content")
    keys_only = _wire.entry(message, "b", "")
    assert (keys_only.raw, keys_only.trust) == (None, slateboard.Trust.QUARANTINED)
    empty = types_pb2.Entry(key="k", version=1)
    empty.content.content_type = "text/plain"
    assert _wire.entry(empty, "b", "").value == ""


def test_what_a_newer_server_says_is_read_with_care() -> None:
    message = whole_entry()
    message.content.trust = 99  # type: ignore[assignment]
    message.content.kind = 99  # type: ignore[assignment]
    message.tombstone = 99  # type: ignore[assignment]
    entry = _wire.entry(message, "b", "")
    assert (entry.trust, entry.kind) == (slateboard.Trust.QUARANTINED, slateboard.Kind.WORKING)
    assert not entry.present
    principal = _wire_boards.principal(admin_service_pb2.Principal(id="x", role=99))  # type: ignore[arg-type]
    assert principal.role is slateboard.Role.OBSERVER
    session = _wire.session(session_service_pb2.Session(state=99))  # type: ignore[arg-type]
    assert session.state is slateboard.SessionState.ENDED
    rule = policy_pb2.RegionRule(write_mode=99, any_state=99)  # type: ignore[arg-type]
    read = _wire_boards.policy(policy_pb2.Policy(rules=[rule])).rules[0]
    assert (read.write_mode, read.any_state) == (
        slateboard.WriteMode.READ_ONLY,
        slateboard.AnyState.FORBIDDEN,
    )


def test_a_policy_that_was_read_can_be_sent_back() -> None:
    policy = slateboard.Policy(
        rules=(
            slateboard.RegionRule(
                prefix="plan/",
                scope=slateboard.RegionScope.PRIVATE,
                write_mode=slateboard.WriteMode.READ_ONLY,
                any_state=slateboard.AnyState.ALLOWED,
                min_trust=slateboard.Trust.VERIFIED,
                default_ttl=1.5,
                quota=slateboard.Quota(max_entries=1, max_bytes=2, max_commits_per_second=3),
            ),
            slateboard.RegionRule(),
        ),
        quota=slateboard.Quota(max_watches=4),
        history_retention=3600.0,
    )
    assert _wire_boards.policy(_wire_boards.policy_message(policy)) == policy


def test_a_principal_keeps_its_rights_and_tokens() -> None:
    right = slateboard.Right("plan/", (slateboard.Action.READ, slateboard.Action.APPEND))
    message = admin_service_pb2.Principal(
        id="ann",
        role=admin_service_pb2.ROLE_WORKER,
        boards=["b"],
        rights=[_wire_boards.right_message(right)],
        trust_ceiling=types_pb2.TRUST_AGENT,
        tokens=[admin_service_pb2.TokenInfo(token_id="t-1", revoked=True)],
    )
    principal = _wire_boards.principal(message, "t-1")
    assert (principal.role, principal.boards, principal.rights) == (slateboard.Role.WORKER, ("b",), (right,))
    assert (principal.trust_ceiling, principal.token_id) == (slateboard.Trust.AGENT, "t-1")
    assert (principal.tokens[0].revoked, principal.tokens[0].expire_time) == (True, None)


def test_a_diff_has_two_sides_either_of_which_may_be_absent() -> None:
    message = entry_service_pb2.DiffResponse(unified="+a", truncated=True)
    message.to_entry.CopyFrom(whole_entry())
    message.changes.add(kind=entry_service_pb2.DIFF_KIND_ADDED, pointer="/a", after="1")
    diff = _wire.diff(message, "b")
    assert diff.from_entry is None
    assert diff.to_entry is not None
    assert diff.to_entry.version == 3
    assert diff.changes[0].kind is slateboard.DiffKind.ADDED
    assert (diff.unified, diff.equal, diff.truncated) == ("+a", False, True)


def test_what_may_not_be_seen_in_a_lineage_is_one_node_without_an_entry() -> None:
    message = provenance_service_pb2.TraceResponse(header=types_pb2.ResponseHeader(revision=5))
    message.nodes.add(id=0).entry.CopyFrom(whole_entry())
    message.nodes.add(id=1, depth=1, hidden=True)
    message.edges.add(derived=0, source=1, derivation=0)
    lineage = _wire.lineage(message, "b")
    assert lineage.nodes[0].entry is not None
    assert (lineage.nodes[1].entry, lineage.nodes[1].hidden) == (None, True)
    assert (lineage.edges[0].derived, lineage.edges[0].source, lineage.revision) == (0, 1, 5)


def test_a_server_tells_its_limits() -> None:
    message = board_service_pb2.GetServerInfoResponse(version="1", mode="embedded")
    message.limits.max_ops = 128
    message.idempotency_retention.FromSeconds(86_400)
    info = _wire_boards.server_info(message)
    assert (info.limits.max_ops, info.idempotency_retention) == (128, 86_400.0)
    board = board_service_pb2.Board(name="b", revision=4)
    activity = board_service_pb2.BoardActivity(commits=2)
    activity.hot_keys.add(key="k", writes=9)
    read = _wire_boards.board(board, activity)
    assert read.activity is not None
    assert (read.revision, read.activity.hot_keys[0].writes) == (4, 9)
