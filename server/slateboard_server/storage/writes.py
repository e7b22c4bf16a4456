"""What a judged batch writes, as one list of statements: it can be sent in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from slateboard_server.domain.entry import VersionRecord
from slateboard_server.domain.judge import Accepted, Refused, Verdict
from slateboard_server.domain.limits import MAX_CONFLICTS_KEPT
from slateboard_server.domain.picture import BoardState
from slateboard_server.domain.policy import CounterKey, Usage
from slateboard_server.storage import codec
from slateboard_server.storage.batch import Dialect

Statement: TypeAlias = tuple[str, Sequence[dict[str, Any]]]
"""SQL and the rows of parameters it runs with."""


_COUNT_DROPPED = (
    "UPDATE boards SET conflicts_dropped = conflicts_dropped + (SELECT count(*) FROM conflicts c"
    " WHERE c.board_id = :board_id AND c.number <= :below) WHERE board_id = :board_id"
)


def batch_statements(
    dialect: Dialect,
    state: BoardState,
    usage_before: dict[CounterKey, Usage],
    verdicts: Sequence[Verdict],
    conflict_seq: int,
) -> list[Statement]:
    """Return what to write for a batch; empty where nothing was accepted and no conflict is to be kept."""
    accepted = [verdict for verdict in verdicts if isinstance(verdict, Accepted)]
    kept = [
        conflict
        for verdict in verdicts
        if isinstance(verdict, Refused) and (conflict := verdict.to_keep) is not None
    ]
    if not accepted and not kept:
        return []
    board = {"board_id": state.board_id}
    statements: list[Statement] = []
    if accepted:
        versions: list[dict[str, Any]] = []
        current: dict[tuple[str, str], dict[str, Any]] = {}
        lineage: list[dict[str, Any]] = []
        commits: list[dict[str, Any]] = []
        requests: list[dict[str, Any]] = []
        for verdict in accepted:
            commit = verdict.logged.commit
            commits.append(
                {
                    **board,
                    "revision": commit.revision,
                    "commit_id": commit.commit_id,
                    "batch_id": commit.batch_id,
                    "principal": commit.principal,
                    "session_id": commit.session_id,
                    "request_id": commit.request_id,
                    "commit_time": commit.commit_time,
                    "note": commit.note,
                }
            )
            for record in verdict.logged.versions:
                versions.append(codec.record_to_row(state.board_id, record))
                current[record.region, record.key] = _current_row(state.board_id, record)
                lineage.extend(_lineage_rows(state.board_id, record))
            if verdict.stored is not None:
                principal, request_id, stored = verdict.stored
                requests.append(
                    {
                        **board,
                        "principal": principal,
                        "request_id": request_id,
                        "fingerprint": stored.fingerprint,
                        "revision": commit.revision,
                        "commit_time": commit.commit_time,
                        "answer": codec.answer_to_text(stored.answer),
                    }
                )
        statements.append((dialect.insert("commits"), commits))
        if versions:
            statements.append((dialect.insert("versions"), versions))
            statements.append((dialect.upsert("current"), list(current.values())))
        if lineage:
            statements.append((dialect.upsert("lineage"), lineage))
        if requests:
            statements.append((dialect.insert("requests"), requests))
        counters = [
            {
                **board,
                "scope": int(counter.scope),
                "prefix": counter.prefix,
                "entries": usage.entries,
                "bytes": usage.bytes,
                "window_start": usage.window,
                "commits": usage.commits,
            }
            for counter, usage in state.usage.items()
            if usage_before.get(counter) != usage
        ]
        if counters:
            statements.append((dialect.upsert("usage"), counters))
    if kept:
        rows = [
            {
                **board,
                "number": conflict_seq + place,
                "conflict_id": conflict.conflict_id,
                "time": conflict.time,
                "principal": conflict.principal,
                "session_id": conflict.session_id,
                "request_id": conflict.request_id,
                "reason": conflict.reason,
                "revision": conflict.revision,
                "violations": codec.violations_to_text(conflict.violations),
            }
            for place, conflict in enumerate(kept, 1)
        ]
        statements.append((dialect.insert("conflicts"), rows))
        if (conflict_seq + len(kept)) // 64 != conflict_seq // 64:
            below = [board | {"below": conflict_seq + len(kept) - MAX_CONFLICTS_KEPT}]
            statements.append((_COUNT_DROPPED, below))
            statements.append(
                ("DELETE FROM conflicts WHERE board_id = :board_id AND number <= :below", below)
            )
    statements.append(
        (
            "UPDATE boards SET head = :head, last_commit_time = :time, conflict_seq = :conflict_seq"
            " WHERE board_id = :board_id",
            [
                board
                | {
                    "head": state.head,
                    "time": state.last_commit_time,
                    "conflict_seq": conflict_seq + len(kept),
                }
            ],
        )
    )
    return statements


def _current_row(board_id: int, record: VersionRecord) -> dict[str, Any]:
    return {
        "board_id": board_id,
        "region": record.region,
        "key": record.key,
        "version": record.version,
        "create_revision": record.create_revision,
        "mod_revision": record.mod_revision,
        "op_index": record.op_index,
        "commit_time": record.commit_time,
        "principal": record.principal,
        "session_id": record.session_id,
        "tombstone": int(record.tombstone),
        "expire_time": record.expire_time,
        "size": record.size,
    }


def _lineage_rows(board_id: int, record: VersionRecord) -> list[dict[str, Any]]:
    return [
        {
            "board_id": board_id,
            "derived_region": record.region,
            "derived_key": record.key,
            "derived_version": record.version,
            "derivation": number,
            "source_region": source.region,
            "source_key": source.key,
            "source_version": source.version,
        }
        for number, derivation in enumerate(record.derivations)
        for source in derivation
    ]
