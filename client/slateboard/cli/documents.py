"""JSON documents of what the client returns. Their shape is a promise: docs/cli.md lists it."""

from __future__ import annotations

import base64
from enum import Enum
from typing import Any

import slateboard as sb
from slateboard.cli import text

Document = dict[str, Any]


def word(member: Enum) -> str:
    """An enum's member in lower case, as the command line spells it."""
    return member.name.lower()


def value(entry: sb.Entry) -> Document:
    """`value`, and `encoding` where JSON cannot say the bytes."""
    if entry.raw is None:
        return {}
    decoded = entry.value
    if not isinstance(decoded, bytes):
        try:
            text.to_json(decoded)
        except (ValueError, RecursionError):  # 1e999, or nested too deep to print
            decoded = entry.raw
    if isinstance(decoded, bytes):
        return {"value": base64.b64encode(entry.raw).decode("ascii"), "encoding": "base64"}
    return {"value": decoded}


def _kept(pairs: Document) -> Document:
    """Without what is not there."""
    return {name: found for name, found in pairs.items() if found not in (None, "", (), [], {}, False)}


def source(made: sb.Source) -> Document:
    """One source of a derivation."""
    if made.hidden:
        return {"hidden": True}
    if made.op is not None:
        return {"op": made.op}
    return {"region": made.region, "key": made.key, "version": made.version}


def provenance(made: sb.Provenance) -> Document:
    """Where a version came from; what is not known is left out, but `principal` and `derivations` are always there."""
    return {
        "principal": made.principal,
        "derivations": [[source(one) for one in group.sources] for group in made.derivations],
        **_kept(
            {
                "session_id": made.session_id,
                "turn": made.turn,
                "tool": made.tool,
                "source_uris": list(made.source_uris),
                "traceparent": made.traceparent,
                "note": made.note,
                "derivation_waived": made.derivation_waived,
            }
        ),
    }


def entry(made: sb.Entry) -> Document:
    """A version of a key."""
    return {
        "key": made.key,
        **value(made),
        "version": made.version,
        "revision": made.mod_revision,
        "trust": word(made.trust),
        "provenance": provenance(made.provenance),
        "board": made.board,
        "region": made.region,
        "etag": made.etag,
        "create_revision": made.create_revision,
        "commit_time": text.iso(made.commit_time),
        "size": made.size,
        "content_type": made.content_type,
        "kind": word(made.kind),
        "confidence": made.confidence,
        "importance": made.importance,
        **_kept(
            {
                "tombstone": word(made.tombstone) if made.tombstone else None,
                "compacted": made.compacted,
                "subject": made.subject,
                "attribute": made.attribute,
                "topics": list(made.topics),
                "labels": dict(made.labels),
                "valid_from": text.iso(made.valid_from),
                "valid_to": text.iso(made.valid_to),
                "expire_time": text.iso(made.expire_time),
            }
        ),
    }


def op_result(made: sb.OpResult, revision: int = 0) -> Document:
    """What one op did."""
    return {
        "key": made.key,
        "region": made.region,
        "version": made.version,
        "revision": made.revision or revision,
        "etag": made.etag,
        "trust": word(made.trust),
        "changed": made.changed,
        **_kept({"expire_time": text.iso(made.expire_time)}),
    }


def commit_result(made: sb.CommitResult) -> Document:
    """An accepted commit."""
    return {
        "revision": made.revision,
        "commit_id": made.commit_id,
        "commit_time": text.iso(made.commit_time),
        "request_id": made.request_id,
        "replayed": made.replayed,
        "results": [op_result(one, made.revision) for one in made.results],
        "warnings": [{"code": one.code, "message": one.message} for one in made.warnings],
    }


def commit_info(made: sb.CommitInfo) -> Document:
    """A commit as recorded."""
    return {
        "revision": made.revision,
        "commit_id": made.commit_id,
        "commit_time": text.iso(made.commit_time),
        "principal": made.principal,
        "session_id": made.session_id,
        "request_id": made.request_id,
        "note": made.note,
        "hidden_ops": made.hidden_ops,
        "results": [op_result(one, made.revision) for one in made.results],
    }


def violation(made: sb.Violation) -> Document:
    """A precondition or guard that did not hold."""
    return {
        "reason": made.reason,
        "index": made.index,
        "guard": made.guard,
        "region": made.region,
        "key": made.key,
        "expected": made.expected,
        "current_version": made.current_version,
        "current_revision": made.current_mod_revision,
        "current_principal": made.current_principal,
        "current_time": text.iso(made.current_commit_time),
        **_kept({"lock_holder": made.lock_holder, "lock_id": made.lock_id}),
    }


def conflict(made: sb.ConflictInfo) -> Document:
    """A refused commit."""
    return {
        "conflict_id": made.conflict_id,
        "time": text.iso(made.time),
        "principal": made.principal,
        "session_id": made.session_id,
        "request_id": made.request_id,
        "reason": made.reason,
        "revision": made.revision,
        "violations": [violation(one) for one in made.violations],
    }


def session(made: sb.SessionInfo) -> Document:
    """Somebody at work."""
    return {
        "session_id": made.session_id,
        "principal": made.principal,
        "state": word(made.state),
        "task": made.task,
        "purpose": made.purpose,
        "start_time": text.iso(made.start_time),
        "last_seen_time": text.iso(made.last_seen_time),
        "end_time": text.iso(made.end_time),
        "ttl": made.ttl,
    }


def lock(info: sb.LockInfo) -> Document:
    """A lock."""
    return {
        "lock_id": info.lock_id,
        "token": info.token,
        "state": word(info.state),
        "mode": word(info.mode),
        "scopes": [{"region": scope.region, "path": scope.path} for scope in info.scopes],
        "principal": info.principal,
        "session_id": info.session_id,
        "holder": info.holder,
        "purpose": info.purpose,
        "ttl": info.ttl,
        "ttl_left": info.ttl_left,
        "max_hold": info.max_hold,
        "ask_time": text.iso(info.ask_time),
        "grant_time": text.iso(info.grant_time),
        "end_time": text.iso(info.end_time),
        "ended_by": info.ended_by,
        "end_reason": info.end_reason,
        "successor": info.successor,
        "sequence": info.sequence,
    }


def batch(made: sb.Batch) -> Document:
    """All changes of one revision, or a page of a snapshot."""
    page = {}
    if isinstance(made, sb.SnapshotPage):
        page = {"snapshot": True, "first": made.first, "last": made.last}
    return {
        "revision": made.revision,
        **page,
        "commit_time": text.iso(made.commit_time),
        "principal": made.principal,
        "session_id": made.session_id,
        "entries": [entry(one) for one in made.entries],
    }


def diff(key: str, made: sb.Diff) -> Document:
    """Two versions, compared."""
    return {
        "key": key,
        "from": entry(made.from_entry) if made.from_entry else None,
        "to": entry(made.to_entry) if made.to_entry else None,
        "equal": made.equal,
        "truncated": made.truncated,
        "changes": [
            {"kind": word(one.kind), "pointer": one.pointer, "before": one.before, "after": one.after}
            for one in made.changes
        ],
        "unified": made.unified,
    }


def lineage(made: sb.Lineage) -> Document:
    """A graph of versions."""
    return {
        "revision": made.revision,
        "truncated": made.truncated,
        "nodes": [
            {
                "id": node.id,
                "depth": node.depth,
                "hidden": node.hidden,
                "entry": entry(node.entry) if node.entry else None,
            }
            for node in made.nodes
        ],
        "edges": [
            {"derived": edge.derived, "source": edge.source, "derivation": edge.derivation}
            for edge in made.edges
        ],
    }


def principal(made: sb.Principal) -> Document:
    """Who a credential stands for."""
    return {
        "id": made.id,
        "role": word(made.role),
        "boards": list(made.boards),
        "rights": [
            {"prefix": one.prefix, "actions": [word(action) for action in one.actions]} for one in made.rights
        ],
        "trust_ceiling": word(made.trust_ceiling),
        "display_name": made.display_name,
        "disabled": made.disabled,
        "create_time": text.iso(made.create_time),
        "created_by": made.created_by,
        "tokens": [
            {
                "token_id": one.token_id,
                "create_time": text.iso(one.create_time),
                "expire_time": text.iso(one.expire_time),
                "revoked": one.revoked,
            }
            for one in made.tokens
        ],
        **_kept({"token_id": made.token_id}),
    }


def board(made: sb.BoardInfo) -> Document:
    """A board's state."""
    described: Document = {
        "name": made.name,
        "description": made.description,
        "incarnation": made.incarnation,
        "revision": made.revision,
        "oldest_revision": made.oldest_revision,
        "entries": made.entries,
        "bytes": made.bytes,
        "policy_version": made.policy_version,
        "create_time": text.iso(made.create_time),
        "created_by": made.created_by,
    }
    if made.activity is not None:
        active = made.activity
        described["activity"] = {
            "commits": active.commits,
            "conflicts": active.conflicts,
            "replays": active.replays,
            "watches": active.watches,
            "queued_commits": active.queued_commits,
            "hot_keys": hot_keys(active),
        }
    return described


def hot_keys(active: sb.BoardActivity) -> list[Document]:
    """The keys most written during the last minute."""
    return [
        {"region": one.region, "key": one.key, "writes": one.writes, "conflicts": one.conflicts}
        for one in active.hot_keys
    ]
