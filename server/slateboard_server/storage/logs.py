"""Reads of what happened: commits, conflicts, lineage, and what is due for the janitor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import SourceRef
from slateboard_server.domain.limits import CONFLICT_RETENTION_S, IDEMPOTENCY_RETENTION_S
from slateboard_server.domain.names import prefix_end
from slateboard_server.domain.values import (
    SECOND,
    BoardId,
    Key,
    Micros,
    PrincipalId,
    Region,
    Revision,
    Version,
)
from slateboard_server.ports import CommitsPage, ConflictsPage, Edge, Expiring
from slateboard_server.storage import codec
from slateboard_server.storage.engine import WriteTx
from slateboard_server.storage.reading import Tx, read_head, refs_to_json, with_versions
from slateboard_server.storage.rows import COMMIT_COLUMNS

_CONFLICT_COLUMNS = (
    "number, conflict_id, time, principal, session_id, request_id, reason, revision, violations"
)


def list_commits(
    tx: Tx,
    board_id: BoardId,
    below: Revision | None,
    limit: int,
    principal: PrincipalId | None,
    region: Region | None,
    prefix: str,
) -> CommitsPage:
    """List commits newest first."""
    head = read_head(tx, board_id)
    where = ["board_id = :board_id", "revision < :below"]
    params: dict[str, Any] = {}
    if principal is not None:
        where.append("principal = :principal")
        params["principal"] = principal
    if region is not None:
        end = prefix_end(prefix)
        where.append(
            "EXISTS (SELECT 1 FROM versions v WHERE v.board_id = :board_id AND v.revision = commits.revision"
            " AND v.region = :region AND v.key >= :low" + (" AND v.key < :high)" if end is not None else ")")
        )
        params |= {"region": region, "low": prefix}
        if end is not None:
            params["high"] = end
    rows = tx.rows(
        f"SELECT {COMMIT_COLUMNS} FROM commits WHERE {' AND '.join(where)} ORDER BY revision DESC LIMIT :limit",
        board_id=board_id,
        below=below if below is not None else 1 << 62,
        limit=limit + 1,
        **params,
    )
    commits = with_versions(tx, board_id, rows[:limit], 0, values=False)
    return CommitsPage(head, tuple(commits), len(rows) > limit)


def _conflict_from_row(row: Sequence[Any]) -> Conflict:
    return Conflict(
        conflict_id=row[1],
        time=Micros(row[2]),
        principal=PrincipalId(row[3]),
        session_id=row[4],
        request_id=row[5],
        reason=row[6],
        revision=Revision(row[7]),
        violations=codec.violations_from_text(row[8]),
    )


_CONFLICT_CHUNK = 200


def list_conflicts(
    tx: Tx,
    board_id: BoardId,
    before: int | None,
    limit: int,
    key: tuple[Region, Key] | None,
    principal: PrincipalId | None,
) -> tuple[ConflictsPage, int | None]:
    """List conflicts newest first; the ring is small enough to look for a key by reading it."""
    head = read_head(tx, board_id)
    dropped = tx.rows("SELECT conflicts_dropped FROM boards WHERE board_id = :board_id", board_id=board_id)[
        0
    ][0]
    found: list[Conflict] = []
    cursor = before if before is not None else 1 << 62
    where = "" if principal is None else " AND principal = :principal"
    params = {} if principal is None else {"principal": principal}
    while True:
        rows = tx.rows(
            f"SELECT {_CONFLICT_COLUMNS} FROM conflicts WHERE board_id = :board_id AND number < :before{where}"
            " ORDER BY number DESC LIMIT :limit",
            board_id=board_id,
            before=cursor,
            limit=_CONFLICT_CHUNK,
            **params,
        )
        for row in rows:
            conflict = _conflict_from_row(row)
            if key is None or any((item.region, item.key) == key for item in conflict.violations):
                if len(found) == limit:
                    return ConflictsPage(head, tuple(found), True, dropped), cursor
                found.append(conflict)
            cursor = row[0]
        if len(rows) < _CONFLICT_CHUNK:
            return ConflictsPage(head, tuple(found), False, dropped), None


def find_conflict(tx: Tx, board_id: BoardId, conflict_id: str) -> Conflict | None:
    """Find one conflict."""
    rows = tx.rows(
        f"SELECT {_CONFLICT_COLUMNS} FROM conflicts WHERE board_id = :board_id AND conflict_id = :conflict_id",
        board_id=board_id,
        conflict_id=conflict_id,
    )
    return _conflict_from_row(rows[0]) if rows else None


_EDGE_COLUMNS = "l.derived_region, l.derived_key, l.derived_version, l.source_region, l.source_key, l.source_version, l.derivation"


def _edge(row: Sequence[Any]) -> Edge:
    return Edge(
        SourceRef(Region(row[0]), Key(row[1]), Version(row[2])),
        SourceRef(Region(row[3]), Key(row[4]), Version(row[5])),
        row[6],
    )


def sources_of(tx: Tx, board_id: BoardId, derived: Sequence[SourceRef]) -> list[Edge]:
    """Return the edges from versions to their sources."""
    rows = tx.rows(
        f"SELECT {_EDGE_COLUMNS} FROM {tx.dialect.triples('places')} AS w {tx.dialect.join} lineage l ON l.board_id = :board_id"
        " AND l.derived_region = w.region AND l.derived_key = w.key AND l.derived_version = w.version"
        " ORDER BY l.derived_region, l.derived_key, l.derived_version, l.derivation, l.source_region, l.source_key,"
        " l.source_version",
        board_id=board_id,
        places=refs_to_json(derived),
    )
    return [_edge(row) for row in rows]


def derived_from(tx: Tx, board_id: BoardId, sources: Sequence[SourceRef], limit: int) -> list[Edge]:
    """Return edges from versions to what was made from them, oldest first."""
    rows = tx.rows(
        f"SELECT {_EDGE_COLUMNS} FROM {tx.dialect.triples('places')} AS w {tx.dialect.join} lineage l ON l.board_id = :board_id"
        " AND l.source_region = w.region AND l.source_key = w.key AND l.source_version = w.version"
        f" {tx.dialect.join} versions v ON v.board_id = :board_id AND v.region = l.derived_region AND v.key = l.derived_key"
        " AND v.version = l.derived_version ORDER BY v.revision, v.op_index, l.derivation LIMIT :limit",
        board_id=board_id,
        places=refs_to_json(sources),
        limit=limit,
    )
    return [_edge(row) for row in rows]


def expired(tx: Tx, now: Micros, limit: int) -> list[tuple[BoardId, Expiring]]:
    """List values whose time has passed and that no tombstone records."""
    rows = tx.rows(
        "SELECT c.board_id, c.region, c.key, c.version FROM current c JOIN boards b ON b.board_id = c.board_id"
        " WHERE c.expire_time IS NOT NULL AND c.tombstone = 0 AND c.expire_time <= :now AND b.deleted = 0"
        " ORDER BY c.expire_time LIMIT :limit",
        now=now,
        limit=limit,
    )
    return [(BoardId(row[0]), Expiring(Region(row[1]), Key(row[2]), Version(row[3]))) for row in rows]


def prune(tx: WriteTx, now: Micros, limit: int) -> int:
    """Drop stored answers and conflicts past their retention."""
    answers = tx.rows(
        "SELECT board_id, principal, request_id FROM requests WHERE commit_time < :before"
        " ORDER BY commit_time LIMIT :limit",
        before=now - IDEMPOTENCY_RETENTION_S * SECOND,
        limit=limit,
    )
    conflicts = tx.rows(
        "SELECT board_id, number FROM conflicts WHERE time < :before ORDER BY time LIMIT :limit",
        before=now - CONFLICT_RETENTION_S * SECOND,
        limit=limit,
    )
    # By whole keys: for a list of keys, SQLite would walk whole boards.
    if answers:
        names = ("board_id", "principal", "request_id")
        drop = (
            "DELETE FROM requests WHERE board_id = :board_id AND principal = :principal"
            " AND request_id = :request_id"
        )
        tx.execute_all([(drop, [dict(zip(names, row, strict=True)) for row in answers])])
    if conflicts:
        drop = "DELETE FROM conflicts WHERE board_id = :board_id AND number = :number"
        tx.execute_all([(drop, [{"board_id": board_id, "number": number} for board_id, number in conflicts])])
    return len(answers) + len(conflicts)
