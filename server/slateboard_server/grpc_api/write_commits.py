"""From commits and conflicts to replies."""

from __future__ import annotations

from slateboard.v1 import commit_pb2, entry_service_pb2, types_pb2
from slateboard_server.domain.commit import OpOutcome
from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import VersionRecord
from slateboard_server.grpc_api.errors import write_violation
from slateboard_server.grpc_api.times import set_time
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.grpc_api.write_entries import EntryWriter
from slateboard_server.services.model import CommitResult, VisibleCommit


def write_commit(
    result: CommitResult, headers: Headers, entries: EntryWriter
) -> entry_service_pb2.CommitResponse:
    """Write the answer of a commit."""
    answer = result.answer
    reply = entry_service_pb2.CommitResponse(
        header=headers.message(result.stamp),
        commit_id=answer.commit_id,
        results=[_outcome(outcome, entries) for outcome in answer.outcomes],
        replayed=result.replayed,
    )
    set_time(reply.commit_time, answer.commit_time)
    for advice in answer.warnings:
        reply.warnings.add(code=advice.code, message=advice.message)
    return reply


def _outcome(outcome: OpOutcome, entries: EntryWriter) -> commit_pb2.OpResult:
    made = commit_pb2.OpResult(
        region=outcome.region,
        key=outcome.key,
        version=outcome.version,
        trust=types_pb2.Trust.ValueType(outcome.trust),
        changed=outcome.changed,
        create_revision=outcome.create_revision,
    )
    if outcome.version:
        made.etag = entries.etag(outcome.region, outcome.key, outcome.version)
    if outcome.expire_time is not None:
        set_time(made.expire_time, outcome.expire_time)
    return made


def write_commit_info(commit: VisibleCommit, entries: EntryWriter) -> commit_pb2.CommitInfo:
    """Write a commit as recorded, as far as its reader may see it."""
    record = commit.logged.commit
    made = commit_pb2.CommitInfo(
        revision=record.revision,
        commit_id=record.commit_id,
        principal=record.principal,
        session_id=record.session_id or "",
        request_id=record.request_id,
        note=record.note,
        results=[_version(version, entries) for version in commit.logged.versions],
        hidden_ops=commit.hidden_ops,
    )
    set_time(made.commit_time, record.commit_time)
    return made


def _version(record: VersionRecord, entries: EntryWriter) -> commit_pb2.OpResult:
    made = commit_pb2.OpResult(
        region=record.region,
        key=record.key,
        version=record.version,
        etag=entries.etag(record.region, record.key, record.version),
        trust=types_pb2.Trust.ValueType(record.trust),
        changed=True,
        create_revision=record.create_revision,
    )
    if record.expire_time is not None:
        set_time(made.expire_time, record.expire_time)
    return made


def write_conflict(conflict: Conflict) -> entry_service_pb2.Conflict:
    """Write a refused commit, with all the violations its reader may see."""
    made = entry_service_pb2.Conflict(
        conflict_id=conflict.conflict_id,
        principal=conflict.principal,
        session_id=conflict.session_id or "",
        request_id=conflict.request_id,
        reason=conflict.reason,
        revision=conflict.revision,
        violations=[write_violation(violation) for violation in conflict.violations],
    )
    set_time(made.time, conflict.time)
    return made
