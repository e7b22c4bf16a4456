"""Entries, commits and batches: from generated messages to our types."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum
from typing import TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from slateboard import _entries, _results
from slateboard._enums import DiffKind, Kind, SessionState, Tombstone, Trust
from slateboard.errors import Violation
from slateboard.v1 import (
    commit_pb2,
    entry_service_pb2,
    provenance_service_pb2,
    session_service_pb2,
    types_pb2,
)

E = TypeVar("E", bound=Enum)


def moment(stamp: Timestamp) -> datetime:
    """The time of a timestamp that is set."""
    return stamp.ToDatetime(tzinfo=UTC)


def enum(kind: type[E], number: int, fallback: E) -> E:
    """The member for a number; what this client does not know yet becomes the fallback."""
    try:
        return kind(number)
    except ValueError:
        return fallback


def trust(number: int) -> Trust:
    """A trust; unset or unknown is the lowest, for trust may only sink."""
    return enum(Trust, number, Trust.QUARANTINED)


def entry(message: types_pb2.Entry, board: str, incarnation: str) -> _entries.Entry:
    """An entry of a board in one of its lives."""
    content = message.content if message.HasField("content") else types_pb2.Content()
    # An empty value is no value only where the view left values out: then the size tells.
    absent = message.tombstone or message.compacted or not message.HasField("content")
    raw = None if absent or (not content.value and message.size) else content.value
    return _entries.Entry(
        board=board,
        region=message.region,
        key=message.key,
        version=message.version,
        etag=message.etag,
        create_revision=message.create_revision,
        mod_revision=message.mod_revision,
        commit_time=moment(message.commit_time) if message.HasField("commit_time") else None,
        incarnation=incarnation,
        # An unknown reason for an absence is still an absence.
        tombstone=enum(Tombstone, message.tombstone, Tombstone.DELETED) if message.tombstone else None,
        compacted=message.compacted,
        size=message.size,
        raw=raw,
        content_type=content.content_type,
        kind=enum(Kind, content.kind, Kind.WORKING),
        subject=content.subject,
        attribute=content.attribute,
        topics=tuple(content.topics),
        labels=dict(content.labels),
        confidence=content.confidence if content.HasField("confidence") else 1.0,
        importance=content.importance if content.HasField("importance") else 0.5,
        valid_from=moment(content.valid_from) if content.HasField("valid_from") else None,
        valid_to=moment(content.valid_to) if content.HasField("valid_to") else None,
        expire_time=moment(content.expire_time) if content.HasField("expire_time") else None,
        trust=trust(content.trust),
        provenance=provenance(content.provenance),
    )


def provenance(message: types_pb2.Provenance) -> _entries.Provenance:
    """Where a version came from."""
    return _entries.Provenance(
        principal=message.principal,
        session_id=message.session_id,
        turn=message.turn,
        tool=message.tool,
        source_uris=tuple(message.source_uris),
        derivations=tuple(
            _entries.Derivation(tuple(_source(source) for source in derivation.sources))
            for derivation in message.derivations
        ),
        traceparent=message.traceparent,
        note=message.note,
        derivation_waived=message.derivation_waived,
    )


def op_result(message: commit_pb2.OpResult, revision: int) -> _results.OpResult:
    """What an op did, in the commit of that revision."""
    return _results.OpResult(
        region=message.region,
        key=message.key,
        version=message.version,
        etag=message.etag,
        trust=trust(message.trust),
        changed=message.changed,
        expire_time=moment(message.expire_time) if message.HasField("expire_time") else None,
        revision=revision,
        create_revision=message.create_revision,
    )


def commit_result(
    message: entry_service_pb2.CommitResponse, request_id: str, attempts: int
) -> _results.CommitResult:
    """An accepted commit."""
    revision = message.header.revision
    return _results.CommitResult(
        revision=revision,
        commit_id=message.commit_id,
        commit_time=moment(message.commit_time) if message.HasField("commit_time") else None,
        results=tuple(op_result(item, revision) for item in message.results),
        request_id=request_id,
        incarnation=message.header.incarnation,
        replayed=message.replayed,
        attempts=attempts,
        warnings=tuple(_results.CommitWarning(code=w.code, message=w.message) for w in message.warnings),
    )


def commit_info(message: commit_pb2.CommitInfo) -> _results.CommitInfo:
    """A commit as recorded."""
    return _results.CommitInfo(
        revision=message.revision,
        commit_id=message.commit_id,
        principal=message.principal,
        session_id=message.session_id,
        request_id=message.request_id,
        commit_time=moment(message.commit_time) if message.HasField("commit_time") else None,
        note=message.note,
        results=tuple(op_result(item, message.revision) for item in message.results),
        hidden_ops=message.hidden_ops,
    )


def violation(message: commit_pb2.Violation) -> Violation:
    """One precondition or guard that did not hold."""
    has_time = message.HasField("current_commit_time")
    return Violation(
        reason=message.reason,
        index=message.index,
        guard=message.guard,
        region=message.region,
        key=message.key,
        expected=message.expected,
        current_version=message.current_version,
        current_mod_revision=message.current_mod_revision,
        current_principal=message.current_principal,
        current_session_id=message.current_session_id,
        current_commit_time=moment(message.current_commit_time) if has_time else None,
        lock_holder=message.lock_holder,
        lock_id=message.lock_id,
    )


def conflict(message: entry_service_pb2.Conflict) -> _results.ConflictInfo:
    """A refused commit."""
    return _results.ConflictInfo(
        conflict_id=message.conflict_id,
        time=moment(message.time) if message.HasField("time") else None,
        principal=message.principal,
        session_id=message.session_id,
        request_id=message.request_id,
        reason=message.reason,
        revision=message.revision,
        violations=tuple(violation(item) for item in message.violations),
    )


def diff(message: entry_service_pb2.DiffResponse, board: str) -> _results.Diff:
    """Two versions, compared."""
    incarnation = message.header.incarnation
    return _results.Diff(
        from_entry=entry(message.from_entry, board, incarnation) if message.HasField("from_entry") else None,
        to_entry=entry(message.to_entry, board, incarnation) if message.HasField("to_entry") else None,
        changes=tuple(
            _results.DiffChange(
                kind=enum(DiffKind, change.kind, DiffKind.CHANGED),
                pointer=change.pointer,
                before=change.before,
                after=change.after,
            )
            for change in message.changes
        ),
        unified=message.unified,
        equal=message.equal,
        truncated=message.truncated,
    )


def lineage(
    message: provenance_service_pb2.TraceResponse | provenance_service_pb2.ImpactResponse, board: str
) -> _results.Lineage:
    """A lineage graph."""
    incarnation = message.header.incarnation
    return _results.Lineage(
        nodes=tuple(
            _results.LineageNode(
                id=node.id,
                depth=node.depth,
                hidden=node.hidden,
                entry=None if node.hidden else entry(node.entry, board, incarnation),
            )
            for node in message.nodes
        ),
        edges=tuple(
            _results.LineageEdge(derived=edge.derived, source=edge.source, derivation=edge.derivation)
            for edge in message.edges
        ),
        truncated=message.truncated,
        revision=message.header.revision,
    )


def session(message: session_service_pb2.Session) -> _results.SessionInfo:
    """A session by the server's clock."""
    return _results.SessionInfo(
        session_id=message.session_id,
        principal=message.principal,
        start_time=moment(message.start_time) if message.HasField("start_time") else None,
        last_seen_time=moment(message.last_seen_time) if message.HasField("last_seen_time") else None,
        ttl=message.ttl.ToTimedelta().total_seconds(),
        # A state we do not know is no reason to take a session for a living one.
        state=enum(SessionState, message.state, SessionState.ENDED),
        task=message.task,
        purpose=message.purpose,
        end_time=moment(message.end_time) if message.HasField("end_time") else None,
    )


def entries(messages: Iterable[types_pb2.Entry], board: str, incarnation: str) -> tuple[_entries.Entry, ...]:
    """Several entries of one life of a board."""
    return tuple(entry(message, board, incarnation) for message in messages)


def _source(message: types_pb2.Source) -> _entries.Source:
    return _entries.Source(
        region=message.region,
        key=message.key,
        version=message.version,
        op=message.op if message.HasField("op") else None,
        hidden=message.hidden,
    )
