"""Locks in the database: the table that the rules of locks work on, and what is read of it besides."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from slateboard_server.domain.errors import SlateboardError, board_not_found
from slateboard_server.domain.judge import Refused
from slateboard_server.domain.limits import LOCK_RETENTION_S
from slateboard_server.domain.locking import apply
from slateboard_server.domain.locks import (
    AcquireLock,
    LockOp,
    LockRecord,
    LockScope,
    LockState,
    LockVerdict,
    Owner,
    ReapLocks,
    RevokeLock,
    TransferLock,
    ancestors,
)
from slateboard_server.domain.names import prefix_end
from slateboard_server.domain.principal import Principal, SessionRecord
from slateboard_server.domain.values import SECOND, BoardId, LockId, Micros, PrincipalId, SessionId, TokenId
from slateboard_server.ports import AuditRecord, Clock, Lease, LiveLock
from slateboard_server.storage import codec, people
from slateboard_server.storage.batch import Query
from slateboard_server.storage.engine import WriteTx
from slateboard_server.storage.reading import Tx
from slateboard_server.storage.rows import (
    LOCK_COLUMNS,
    PRINCIPAL_COLUMNS,
    SESSION_COLUMNS,
    TOKEN_COLUMNS,
    lock_from_row,
    lock_to_row,
    principal_from_row,
    session_from_row,
    token_from_row,
)

_LIVE = "l.state <= 2"
_WAITING = "l.state = 1"


class SqlLockTable:
    """The locks of one board inside a write transaction that holds the board's row.

    What a batch of ops is certain to ask for is read in one round, together with the row lock; what is saved makes the
    answers that it may have changed be asked for again.
    """

    def __init__(self, tx: WriteTx, board_id: BoardId, clock: Clock, ops: Sequence[LockOp]) -> None:
        """Take the board's row lock and read what `ops` need. BOARD_NOT_FOUND."""
        self._tx = tx
        self._board_id = board_id
        askers = [op.asker for op in ops if not isinstance(op, ReapLocks)]
        asks = {(op.asker.principal, op.request_id): op for op in ops if isinstance(op, AcquireLock)}
        named = {op.lock_id for op in ops if not isinstance(op, (AcquireLock, ReapLocks))}
        named |= {lock_id for op in ops if isinstance(op, ReapLocks) for lock_id in op.dead | op.overdue}
        scopes = list(dict.fromkeys(op.scopes for op in asks.values()))
        principals = list(
            dict.fromkeys(
                [
                    *(asker.principal for asker in askers),
                    *(op.to_principal for op in ops if isinstance(op, TransferLock)),
                ]
            )
        )
        tokens = list(dict.fromkeys(asker.token_id for asker in askers if asker.token_id is not None))
        sessions = list(
            dict.fromkeys(asker.session.session_id for asker in askers if asker.session is not None)
        )
        board = {"board_id": board_id}
        words, join = tx.dialect.words("names"), tx.dialect.join
        queries: dict[str, Query] = {
            "board": (
                "SELECT name, last_commit_time, lock_seq, policy FROM boards WHERE board_id = :board_id AND deleted = 0"
                + tx.dialect.for_update,
                board,
            ),
            "waiting": (
                f"SELECT l.lock_id FROM locks l WHERE l.board_id = :board_id AND {_WAITING} LIMIT 1",
                board,
            ),
        }
        if principals:
            queries["principals"] = (
                f"SELECT {PRINCIPAL_COLUMNS} FROM {words} AS w {join} principals ON id = w.word",
                {"names": json.dumps(principals)},
            )
        if tokens:
            queries["tokens"] = (
                f"SELECT {TOKEN_COLUMNS} FROM {words} AS w {join} tokens ON token_id = w.word",
                {"names": json.dumps(tokens)},
            )
        if sessions:
            queries["sessions"] = (
                f"SELECT {SESSION_COLUMNS} FROM {words} AS w {join} sessions ON board_id = :board_id"
                " AND session_id = w.word",
                board | {"names": json.dumps(sessions)},
            )
        if named:
            queries["named"] = (
                f"SELECT {LOCK_COLUMNS} FROM {words} AS w {join} locks l ON l.board_id = :board_id"
                " AND l.lock_id = w.word",
                board | {"names": json.dumps(sorted(named))},
            )
        if asks:
            queries["requests"] = (
                f"SELECT {LOCK_COLUMNS} FROM {tx.dialect.pairs('places')} AS w {join} locks l ON l.board_id = :board_id"
                " AND l.principal = w.region AND l.request_id = w.key",
                board | {"places": json.dumps(list(asks))},
            )
            queries["counts"] = (
                f"SELECT w.word, count(*) FROM {words} AS w {join} locks l ON l.board_id = :board_id"
                f" AND l.principal = w.word AND {_LIVE} GROUP BY w.word",
                board | {"names": json.dumps(principals)},
            )
        for number, some in enumerate(scopes):
            queries[f"near {number}"] = _overlapping_query(tx, board_id, some)
        results = tx.gather(queries)
        if not results["board"]:
            raise board_not_found(str(board_id))
        name, last, sequence, policy = results["board"][0]
        self.board: str = name
        # Under the row lock: time never runs backwards on a board, and a lock is not granted before what it waited for.
        self.now = Micros(max(clock.now(), last))
        self._loaded = self._sequence = int(sequence)
        self.max_locks = codec.policy_from_text(policy).quota.max_locks
        self.any_waiting = bool(results["waiting"])
        self._principals: dict[PrincipalId, Principal | None] = dict.fromkeys(principals)
        self._principals |= {one.id: one for one in map(principal_from_row, results.get("principals", ()))}
        self._tokens = {
            token.token_id: token.alive(self.now) for token in map(token_from_row, results.get("tokens", ()))
        }
        self._sessions = {one.session_id: one for one in map(session_from_row, results.get("sessions", ()))}
        self._found: dict[LockId, LockRecord | None] = dict.fromkeys(named)
        self._found |= {one.lock_id: one for one in map(lock_from_row, results.get("named", ()))}
        self._requests: dict[tuple[PrincipalId, str], LockRecord | None] = dict.fromkeys(asks)
        for lock in sorted(map(lock_from_row, results.get("requests", ())), key=lambda one: one.number):
            self._requests[lock.principal, lock.request_id] = lock
        self._counts: dict[PrincipalId | None, int] = dict.fromkeys(principals, 0) if asks else {}
        # A LEFT JOIN, as PostgreSQL is asked, counts one row for a principal that has none: then there is nothing to bound.
        self._counts |= {PrincipalId(row[0]): int(row[1]) for row in results.get("counts", ())}
        self._near = {
            some: [lock_from_row(row) for row in results[f"near {number}"]]
            for number, some in enumerate(scopes)
        }

    def principal(self, principal: PrincipalId) -> Principal | None:
        return self._principals.get(principal)

    def token_alive(self, token: TokenId) -> bool:
        return self._tokens.get(token, False)

    def session(self, session: SessionId) -> SessionRecord | None:
        found = self._sessions.get(session)
        return found or people.find_session(self._tx, self._board_id, session)

    def find(self, lock_id: LockId) -> LockRecord | None:
        if lock_id not in self._found:
            self._found[lock_id] = find_lock(self._tx, self._board_id, lock_id)
        return self._found[lock_id]

    def by_request(self, principal: PrincipalId, request_id: str) -> LockRecord | None:
        return self._requests.get((principal, request_id))

    def overlapping(self, scopes: Sequence[LockScope]) -> list[LockRecord]:
        near = self._near.get(tuple(scopes))
        if near is None:
            near = overlapping_locks(self._tx, self._board_id, scopes)
        return near

    def waits_of(self, owner: Owner) -> list[LockRecord]:
        rows = self._tx.rows(
            f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.principal = :principal"
            f" AND {_WAITING} ORDER BY l.number",
            board_id=self._board_id,
            principal=owner.principal,
        )
        return [lock for row in rows if (lock := lock_from_row(row)).owner == owner]

    def of_session(self, session: SessionId) -> list[LockRecord]:
        rows = self._tx.rows(
            f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND {_LIVE} AND l.session_id = :session"
            " ORDER BY l.number",
            board_id=self._board_id,
            session=session,
        )
        return [lock_from_row(row) for row in rows]

    def live_count(self, principal: PrincipalId | None) -> int:
        count = self._counts.get(principal)
        if count is None:
            mine = "" if principal is None else " AND l.principal = :principal"
            params = {} if principal is None else {"principal": principal}
            rows = self._tx.rows(
                f"SELECT count(*) FROM locks l WHERE l.board_id = :board_id AND {_LIVE}{mine}",
                board_id=self._board_id,
                **params,
            )
            count = self._counts[principal] = int(rows[0][0])
        return count

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def save(self, lock: LockRecord) -> None:
        self._found[lock.lock_id] = lock
        if lock.request_id:
            self._requests[lock.principal, lock.request_id] = lock
        # Whom it is in the way of, and how many there are, is asked again.
        self._near.clear()
        self._counts.clear()
        self.any_waiting = self.any_waiting or lock.state is LockState.WAITING
        statements: list[tuple[str, list[dict[str, Any]]]] = [
            (self._tx.dialect.upsert("locks"), [lock_to_row(self._board_id, lock)])
        ]
        if lock.state.live:
            places = [
                {"board_id": self._board_id, "region": region, "path": path, "lock_id": lock.lock_id}
                for region, path in lock.scopes
            ]
            statements.append((self._tx.dialect.upsert("lock_scopes"), places))
        else:
            drop = "DELETE FROM lock_scopes WHERE board_id = :board_id AND lock_id = :lock_id"
            statements.append((drop, [{"board_id": self._board_id, "lock_id": lock.lock_id}]))
        self._tx.execute_all(statements)

    def finish(self) -> bool:
        """Write how far the sequence came; tells whether anything was changed."""
        if self._sequence == self._loaded:
            return False
        # The board's time moves with its locks, too: a commit under a lock is never dated before its grant.
        advance = "UPDATE boards SET lock_seq = :seq, last_commit_time = :now WHERE board_id = :board_id"
        row = {"seq": self._sequence, "now": self.now, "board_id": self._board_id}
        self._tx.execute_all([(advance, [row])])
        return True


def apply_all(
    tx: WriteTx, board_id: BoardId, ops: Sequence[LockOp], clock: Clock
) -> list[LockVerdict | Refused]:
    """Do lock ops in order, each on what the one before left; force-releases leave an audit record in the same breath."""
    table = SqlLockTable(tx, board_id, clock, ops)
    verdicts: list[LockVerdict | Refused] = []
    for op in ops:
        try:
            verdict = apply(table, op)
        except SlateboardError as error:
            verdicts.append(Refused(error))
            continue
        verdicts.append(verdict)
        if isinstance(op, RevokeLock) and not verdict.replayed and verdict.lock is not None:
            target = f"{op.lock_id} of {verdict.lock.principal}"
            record = AuditRecord(
                table.now, op.asker.principal, "lock.force_release", table.board, target, op.reason
            )
            people.audit(tx, [(secrets.token_hex(16), record)])
    if table.finish():
        tx.wake(board_id)
    return verdicts


def find_lock(tx: Tx, board_id: BoardId, lock_id: LockId) -> LockRecord | None:
    """Read a lock, live or ended."""
    rows = tx.rows(
        f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.lock_id = :lock_id",
        board_id=board_id,
        lock_id=lock_id,
    )
    return lock_from_row(rows[0]) if rows else None


def find_locks(tx: Tx, board_id: BoardId, lock_ids: Sequence[LockId]) -> dict[LockId, LockRecord]:
    """Read locks, live or ended; missing ones are left out."""
    rows = tx.rows(
        f"SELECT {LOCK_COLUMNS} FROM {tx.dialect.words('names')} AS w"
        f" {tx.dialect.join} locks l ON l.board_id = :board_id AND l.lock_id = w.word",
        board_id=board_id,
        names=json.dumps(list(lock_ids)),
    )
    return {lock.lock_id: lock for lock in map(lock_from_row, rows)}


def overlapping_locks(tx: Tx, board_id: BoardId, scopes: Sequence[LockScope]) -> list[LockRecord]:
    """List live locks that overlap scopes, in the order of asking."""
    sql, params = _overlapping_query(tx, board_id, scopes)
    return [lock_from_row(row) for row in tx.rows(sql, **params)]


def _overlapping_query(tx: Tx, board_id: BoardId, scopes: Sequence[LockScope]) -> Query:
    above = [[scope.region, path] for scope in scopes for path in ancestors(scope.path)]
    parts = [
        f"SELECT s.lock_id FROM {tx.dialect.pairs('above')} AS w"
        f" {tx.dialect.join} lock_scopes s ON s.board_id = :board_id AND s.region = w.region AND s.path = w.key"
    ]
    params: dict[str, object] = {"board_id": board_id, "above": json.dumps(above, ensure_ascii=False)}
    for number, scope in enumerate(scope for scope in scopes if scope.is_subtree):
        high = prefix_end(scope.path)
        parts.append(
            f"SELECT lock_id FROM lock_scopes WHERE board_id = :board_id AND region = :region{number}"
            f" AND path >= :low{number}" + ("" if high is None else f" AND path < :high{number}")
        )
        params |= {f"region{number}": scope.region, f"low{number}": scope.path}
        if high is not None:
            params[f"high{number}"] = high
    sql = (
        f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.lock_id IN"
        f" ({' UNION '.join(parts)}) ORDER BY l.number"
    )
    return sql, params


def list_locks(
    tx: Tx,
    board_id: BoardId,
    after: int,
    limit: int,
    principal: PrincipalId | None,
    states: Sequence[LockState],
) -> list[LockRecord]:
    """List locks in given states, in the order of asking, those asked for after a number only."""
    mine = "" if principal is None else " AND l.principal = :principal"
    params = {} if principal is None else {"principal": principal}
    live = f" AND {_LIVE}" if all(state.live for state in states) else ""
    chosen = ", ".join(str(int(state)) for state in states)
    rows = tx.rows(
        f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id{live} AND l.state IN ({chosen})"
        f" AND l.number > :after{mine} ORDER BY l.number LIMIT :limit",
        board_id=board_id,
        after=after,
        limit=limit,
        **params,
    )
    return [lock_from_row(row) for row in rows]


def lock_changes(
    tx: Tx, board_id: BoardId, after: int, limit: int, *, live_only: bool
) -> tuple[list[LockRecord], int]:
    """List locks changed after a sequence, in the order of their last change; also the board's sequence. One snapshot."""
    board = tx.rows(
        "SELECT lock_seq FROM boards WHERE board_id = :board_id AND deleted = 0", board_id=board_id
    )
    if not board:
        raise board_not_found(str(board_id))
    rows = tx.rows(
        f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.sequence > :after"
        + (f" AND {_LIVE}" if live_only else "")
        + " ORDER BY l.sequence LIMIT :limit",
        board_id=board_id,
        after=after,
        limit=limit,
    )
    return [lock_from_row(row) for row in rows], int(board[0][0])


def live_locks(tx: Tx) -> list[LiveLock]:
    """List what is held or waited for, on all boards."""
    rows = tx.rows(
        f"SELECT l.board_id, b.name, l.lock_id, l.state, l.ttl, l.granted, l.max_hold FROM locks l"
        f" JOIN boards b ON b.board_id = l.board_id WHERE {_LIVE} AND b.deleted = 0"
    )
    return [
        LiveLock(
            Lease(BoardId(row[0]), LockId(row[2])),
            row[1],
            LockState(row[3]),
            row[4],
            None if row[5] is None or row[6] is None else Micros(row[5] + row[6]),
        )
        for row in rows
    ]


def prune_locks(tx: WriteTx, now: Micros, limit: int) -> int:
    """Drop locks that ended longer ago than they are kept."""
    rows = tx.rows(
        "SELECT board_id, lock_id FROM locks WHERE ended IS NOT NULL AND ended < :before ORDER BY ended LIMIT :limit",
        before=now - LOCK_RETENTION_S * SECOND,
        limit=limit,
    )
    drop = "DELETE FROM locks WHERE board_id = :board_id AND lock_id = :lock_id"
    if rows:
        tx.execute_all([(drop, [{"board_id": board_id, "lock_id": lock_id} for board_id, lock_id in rows])])
    return len(rows)


def revoke_all(tx: WriteTx, board_id: BoardId, now: Micros, reason: str) -> None:
    """End every live lock of a board, whose life just began anew."""
    tx.run(
        "UPDATE locks SET state = :revoked, ended = :now, ended_by = 'server', end_reason = :reason,"
        " sequence = (SELECT lock_seq FROM boards WHERE board_id = :board_id) WHERE board_id = :board_id AND state <= 2",
        revoked=int(LockState.REVOKED),
        now=now,
        reason=reason,
        board_id=board_id,
    )
    tx.run("DELETE FROM lock_scopes WHERE board_id = :board_id", board_id=board_id)
