"""Reads, written once for both databases. Each runs in one snapshot: a read transaction that ends with the call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from slateboard_server.domain.entry import LoggedCommit, SourceRef, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.limits import MAX_VALUE_BYTES
from slateboard_server.domain.names import prefix_end
from slateboard_server.domain.picture import StoredAnswer
from slateboard_server.domain.values import BoardId, Key, Micros, PrincipalId, Region, Revision, Version
from slateboard_server.ports import (
    At,
    Head,
    KeysRead,
    LogPage,
    ReadMode,
    Scan,
    VersionsPage,
)
from slateboard_server.storage import codec
from slateboard_server.storage.batch import Dialect
from slateboard_server.storage.rows import COMMIT_COLUMNS, HEAD_COLUMNS, commit_from_row, head_from_row

MAX_PAGE_BYTES = 4 << 20


class Tx(Protocol):
    """An open transaction. SQL names its parameters `:name`."""

    @property
    def dialect(self) -> Dialect:
        """Return the database's words."""
        ...

    def rows(self, sql: str, **params: Any) -> Sequence[Sequence[Any]]:
        """Run a query and return all its rows."""
        ...

    def run(self, sql: str, **params: Any) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    def insert(self, table: str, **row: Any) -> None:
        """Insert a whole row."""
        ...

    def upsert(self, table: str, **row: Any) -> None:
        """Insert a whole row in place of one with the same key."""
        ...

    def delete_some(self, table: str, board_id: int, limit: int) -> int:
        """Delete up to `limit` rows of a board from a table; return how many went."""
        ...


def _columns(alias: str, values: bool) -> str:
    columns = ", ".join(f"{alias}.{name}" for name in codec.VERSION_NAMES)
    return f"{columns}, {alias + '.value' if values else 'NULL'}"


def read_head(tx: Tx, board_id: BoardId) -> Head:
    """Read a board's head. BOARD_NOT_FOUND where it is gone."""
    rows = tx.rows(
        f"SELECT {HEAD_COLUMNS} FROM boards WHERE board_id = :board_id AND deleted = 0", board_id=board_id
    )
    if not rows:
        raise board_not_found(str(board_id))
    return head_from_row(rows[0])


def heads(tx: Tx, board_ids: Sequence[BoardId]) -> dict[BoardId, Head]:
    """Read several heads."""
    found = tx.rows(
        f"SELECT board_id, {HEAD_COLUMNS} FROM {tx.dialect.numbers('ids')} AS w {tx.dialect.join} boards ON board_id = w.number"
        " WHERE deleted = 0",
        ids=json.dumps(board_ids),
    )
    return {BoardId(row[0]): head_from_row(row[1:]) for row in found}


def _moment(tx: Tx, board_id: BoardId, at: At) -> tuple[Head, Revision, Micros]:
    """Return the head, the revision to read at, and the time that judges expiry."""
    head = read_head(tx, board_id)
    if at.mode is ReadMode.LATEST:
        return head, head.revision, max(at.now, head.commit_time)
    if at.revision > head.revision:
        raise SlateboardError(
            Reason.FUTURE_REVISION,
            f"revision {at.revision} lies above the board's head {head.revision}; check which board and incarnation it"
            " came from",
            revision=head.revision,
        )
    if at.revision < head.floor and not (at.revision == 0 and head.floor <= 1):
        raise SlateboardError(
            Reason.COMPACTED,
            f"revision {at.revision} was compacted, the oldest one is {head.floor}; read the present state",
            oldest_revision=head.floor,
        )
    time = tx.rows(
        "SELECT commit_time FROM commits WHERE board_id = :board_id AND revision = :revision",
        board_id=board_id,
        revision=at.revision,
    )
    return head, at.revision, Micros(time[0][0] if time else 0)


def _version_of(tx: Tx, at: At) -> str:
    """Return what joins to `current c` the version v that counts: the newest, or that of a revision."""
    if at.mode is ReadMode.EXACT:
        return tx.dialect.version_at
    return (
        f"{tx.dialect.join} versions v ON v.board_id = :board_id AND v.revision = c.mod_revision"
        " AND v.op_index = c.op_index"
    )


def read_keys(
    tx: Tx, board_id: BoardId, keys: Sequence[tuple[Region, Key]], at: At, values: bool
) -> KeysRead:
    """Read keys in one snapshot."""
    head, revision, time = _moment(tx, board_id, at)
    if not keys:
        return KeysRead(head, revision, {})
    params = {"revision": revision} if at.mode is ReadMode.EXACT else {}
    rows = tx.rows(
        f"SELECT {_columns('v', values)} FROM {tx.dialect.pairs('places')} AS w"
        f" {tx.dialect.join} current c ON c.board_id = :board_id AND c.region = w.region AND c.key = w.key"
        f" {_version_of(tx, at)}"
        " WHERE v.tombstone = 0 AND (v.expire_time IS NULL OR v.expire_time > :time)",
        board_id=board_id,
        places=json.dumps(keys, ensure_ascii=False),
        time=time,
        **params,
    )
    records = [codec.record_from_row(row) for row in rows]
    return KeysRead(head, revision, {(record.region, record.key): record for record in records})


def _page(
    tx: Tx, columns: str, rest: str, limit: int, values: bool, params: dict[str, Any]
) -> tuple[tuple[VersionRecord, ...], bool]:
    """Read at most `limit` records and about 4 MiB of values, at least one; tell whether more were left.

    Sizes come first: a page of large values must not be loaded whole to be cut.
    """
    sql = f" FROM {rest} LIMIT :limit"
    most = limit + 1
    if values and limit * MAX_VALUE_BYTES > MAX_PAGE_BYTES:
        sizes = tx.rows(f"SELECT v.size{sql}", limit=most, **params)
        total = 0
        for place, (size,) in enumerate(sizes):
            total += size
            if place and total > MAX_PAGE_BYTES:
                rows = tx.rows(f"SELECT {columns}{sql}", limit=place, **params)
                return tuple(codec.record_from_row(row) for row in rows), True
    rows = tx.rows(f"SELECT {columns}{sql}", limit=most, **params)
    return tuple(codec.record_from_row(row) for row in rows[:limit]), len(rows) > limit


def scan(
    tx: Tx, board_id: BoardId, region: Region, prefix: str, after: str, limit: int, at: At, values: bool
) -> Scan:
    """Read present values under a prefix, keys above `after`."""
    head, revision, time = _moment(tx, board_id, at)
    exact = at.mode is ReadMode.EXACT
    end = prefix_end(prefix)
    params: dict[str, Any] = {
        "board_id": board_id, "region": region, "low": after or prefix, "time": time,
    }  # fmt: skip
    if exact:
        params["revision"] = revision
    if end is not None:
        params["high"] = end
    low = "c.key > :low" if after else "c.key >= :low"
    present = "" if exact else " AND c.tombstone = 0 AND (c.expire_time IS NULL OR c.expire_time > :time)"
    records, more = _page(
        tx,
        _columns("v", values),
        f"current c {_version_of(tx, at)}"
        f" WHERE c.board_id = :board_id AND c.region = :region AND {low}"
        + (" AND c.key < :high" if end is not None else "")
        + present
        + " AND v.tombstone = 0 AND (v.expire_time IS NULL OR v.expire_time > :time)"
        " ORDER BY c.key",
        limit,
        values,
        params,
    )
    return Scan(head, revision, records, more)


def versions(
    tx: Tx, board_id: BoardId, region: Region, key: Key, below: Version | None, limit: int, values: bool
) -> VersionsPage:
    """Read versions of a key, newest first."""
    head = read_head(tx, board_id)
    records, more = _page(
        tx,
        _columns("v", values),
        "versions v WHERE v.board_id = :board_id AND v.region = :region AND v.key = :key AND v.version < :below"
        " ORDER BY v.version DESC",
        limit,
        values,
        {
            "board_id": board_id,
            "region": region,
            "key": key,
            "below": below if below is not None else 1 << 62,
        },
    )
    return VersionsPage(head, records, more)


def read_versions(
    tx: Tx, board_id: BoardId, refs: Sequence[SourceRef], values: bool
) -> dict[SourceRef, VersionRecord]:
    """Read single versions."""
    rows = tx.rows(
        f"SELECT {_columns('v', values)} FROM {tx.dialect.triples('places')} AS w"
        f" {tx.dialect.join} versions v ON v.board_id = :board_id AND v.region = w.region AND v.key = w.key"
        " AND v.version = w.version",
        board_id=board_id,
        places=refs_to_json(refs),
    )
    records = [codec.record_from_row(row) for row in rows]
    return {SourceRef(record.region, record.key, record.version): record for record in records}


def refs_to_json(refs: Sequence[SourceRef]) -> str:
    """Write versions as the parameter of a query."""
    return json.dumps([[ref.region, ref.key, ref.version] for ref in refs], ensure_ascii=False)


def read_log(tx: Tx, board_id: BoardId, after: Revision, limit: int, max_bytes: int, values: bool) -> LogPage:
    """Read the log after a revision, gap-free."""
    head = read_head(tx, board_id)
    if after + 1 < head.floor:
        return LogPage(head, ())
    commits = tx.rows(
        f"SELECT {COMMIT_COLUMNS} FROM commits WHERE board_id = :board_id AND revision > :after"
        " ORDER BY revision LIMIT :limit",
        board_id=board_id,
        after=after,
        limit=limit,
    )
    return LogPage(head, tuple(with_versions(tx, board_id, commits, max_bytes, values)))


def with_versions(
    tx: Tx, board_id: BoardId, commits: Sequence[Sequence[Any]], max_bytes: int, values: bool
) -> list[LoggedCommit]:
    """Read the versions of commits; values cut the run at about `max_bytes`, after at least one commit."""
    if not commits:
        return []
    revisions = [row[0] for row in commits]
    of_commits = (
        f"{tx.dialect.numbers('revisions')} AS w {tx.dialect.join} versions v"
        " ON v.board_id = :board_id AND v.revision = w.number"
    )
    # Sizes first: a run of commits with large values must not be loaded whole to be cut.
    cut = len(commits)
    if values:
        sizes = tx.rows(
            f"SELECT v.revision, sum(v.size) FROM {of_commits} GROUP BY v.revision",
            board_id=board_id,
            revisions=json.dumps(revisions),
        )
        by_revision = {row[0]: int(row[1] or 0) for row in sizes}
        total = 0
        for place, revision in enumerate(revisions):
            total += by_revision.get(revision, 0)
            if place and total > max_bytes:
                cut = place
                break
    chosen = commits[:cut]
    rows = tx.rows(
        f"SELECT {_columns('v', values)} FROM {of_commits} ORDER BY v.revision, v.op_index",
        board_id=board_id,
        revisions=json.dumps(revisions[:cut]),
    )
    grouped: dict[int, list[VersionRecord]] = {row[0]: [] for row in chosen}
    for row in rows:
        grouped[row[0]].append(codec.record_from_row(row))
    return [LoggedCommit(commit_from_row(row), tuple(grouped[row[0]])) for row in chosen]


def find_commit(
    tx: Tx, board_id: BoardId, request: tuple[PrincipalId, str] | None, revision: Revision | None
) -> tuple[Head, LoggedCommit | None, StoredAnswer | None]:
    """Find a commit by request or revision."""
    head = read_head(tx, board_id)
    stored: StoredAnswer | None = None
    if request is not None:
        found = tx.rows(
            "SELECT revision, fingerprint, answer FROM requests WHERE board_id = :board_id AND principal = :principal"
            " AND request_id = :request_id",
            board_id=board_id,
            principal=request[0],
            request_id=request[1],
        )
        if not found:
            return head, None, None
        revision = Revision(found[0][0])
        stored = StoredAnswer(bytes(found[0][1]), codec.answer_from_text(found[0][2]))
    commits = tx.rows(
        f"SELECT {COMMIT_COLUMNS} FROM commits WHERE board_id = :board_id AND revision = :revision",
        board_id=board_id,
        revision=revision,
    )
    logged = with_versions(tx, board_id, commits, 0, values=False)
    return head, logged[0] if logged else None, stored
