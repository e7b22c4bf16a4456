"""Locks in the database: the table that the rules of locks work on, and what is read of it besides."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from slateboard_server.domain.errors import SlateboardError, board_not_found
from slateboard_server.domain.judge import Refused
from slateboard_server.domain.limits import LOCK_RETENTION_S
from slateboard_server.domain.locking import apply
from slateboard_server.domain.locks import (
    LockOp,
    LockRecord,
    LockScope,
    LockState,
    LockVerdict,
    Owner,
    RevokeLock,
    ancestors,
)
from slateboard_server.domain.names import prefix_end
from slateboard_server.domain.principal import Principal, SessionRecord
from slateboard_server.domain.values import SECOND, BoardId, LockId, Micros, PrincipalId, SessionId, TokenId
from slateboard_server.ports import AuditRecord, Clock, Lease, LiveLock
from slateboard_server.storage import codec, people
from slateboard_server.storage.engine import WriteTx
from slateboard_server.storage.reading import Tx
from slateboard_server.storage.rows import (
    LOCK_COLUMNS,
    TOKEN_COLUMNS,
    lock_from_row,
    lock_to_row,
    token_from_row,
)

_LIVE = "l.state <= 2"


class SqlLockTable:
    """The locks of one board inside a write transaction that holds the board's row."""

    def __init__(self, tx: WriteTx, board_id: BoardId, clock: Clock) -> None:
        """Take the board's row lock and read where its lock sequence stands. BOARD_NOT_FOUND."""
        rows = tx.rows(
            "SELECT name, last_commit_time, lock_seq, policy FROM boards WHERE board_id = :board_id AND deleted = 0"
            + tx.dialect.for_update,
            board_id=board_id,
        )
        if not rows:
            raise board_not_found(str(board_id))
        self._tx = tx
        self._board_id = board_id
        self.board: str = rows[0][0]
        # Under the row lock: time never runs backwards on a board, and a lock is not granted before what it waited for.
        self.now = Micros(max(clock.now(), rows[0][1]))
        self._loaded = self._sequence = int(rows[0][2])
        self.max_locks = codec.policy_from_text(rows[0][3]).quota.max_locks
        self._principals: dict[PrincipalId, Principal | None] = {}

    def principal(self, principal: PrincipalId) -> Principal | None:
        if principal not in self._principals:
            self._principals[principal] = people.find_principal(self._tx, principal)
        return self._principals[principal]

    def token_alive(self, token: TokenId) -> bool:
        rows = self._tx.rows(f"SELECT {TOKEN_COLUMNS} FROM tokens WHERE token_id = :token", token=token)
        return bool(rows) and token_from_row(rows[0]).alive(self.now)

    def session(self, session: SessionId) -> SessionRecord | None:
        return people.find_session(self._tx, self._board_id, session)

    def find(self, lock_id: LockId) -> LockRecord | None:
        return find_lock(self._tx, self._board_id, lock_id)

    def by_request(self, principal: PrincipalId, request_id: str) -> LockRecord | None:
        rows = self._tx.rows(
            f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.principal = :principal"
            " AND l.request_id = :request_id ORDER BY l.number DESC LIMIT 1",
            board_id=self._board_id,
            principal=principal,
            request_id=request_id,
        )
        return lock_from_row(rows[0]) if rows else None

    def overlapping(self, scopes: Sequence[LockScope]) -> list[LockRecord]:
        return overlapping_locks(self._tx, self._board_id, scopes)

    def waits_of(self, owner: Owner) -> list[LockRecord]:
        rows = self._tx.rows(
            f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.principal = :principal AND {_LIVE}"
            " AND l.state = 1 ORDER BY l.number",
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
        mine = "" if principal is None else " AND l.principal = :principal"
        params = {} if principal is None else {"principal": principal}
        rows = self._tx.rows(
            f"SELECT count(*) FROM locks l WHERE l.board_id = :board_id AND {_LIVE}{mine}",
            board_id=self._board_id,
            **params,
        )
        return int(rows[0][0])

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def save(self, lock: LockRecord) -> None:
        self._tx.upsert("locks", **lock_to_row(self._board_id, lock))
        if lock.state.live:
            for region, path in lock.scopes:
                self._tx.upsert(
                    "lock_scopes", board_id=self._board_id, region=region, path=path, lock_id=lock.lock_id
                )
        else:
            self._tx.run(
                "DELETE FROM lock_scopes WHERE board_id = :board_id AND lock_id = :lock_id",
                board_id=self._board_id,
                lock_id=lock.lock_id,
            )

    def finish(self) -> bool:
        """Write how far the sequence came; tells whether anything was changed."""
        if self._sequence == self._loaded:
            return False
        # The board's time moves with its locks, too: a commit under a lock is never dated before its grant.
        self._tx.run(
            "UPDATE boards SET lock_seq = :seq, last_commit_time = :now WHERE board_id = :board_id",
            seq=self._sequence,
            now=self.now,
            board_id=self._board_id,
        )
        return True


def apply_all(
    tx: WriteTx, board_id: BoardId, ops: Sequence[LockOp], clock: Clock
) -> list[LockVerdict | Refused]:
    """Do lock ops in order, each on what the one before left; force-releases leave an audit record in the same breath."""
    table = SqlLockTable(tx, board_id, clock)
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
    above = [[scope.region, path] for scope in scopes for path in ancestors(scope.path)]
    parts = [
        f"SELECT s.lock_id FROM {tx.dialect.pairs('above')} AS w"
        f" {tx.dialect.join} lock_scopes s ON s.board_id = :board_id AND s.region = w.region AND s.path = w.key"
    ]
    params: dict[str, object] = {"above": json.dumps(above, ensure_ascii=False)}
    for number, scope in enumerate(scope for scope in scopes if scope.is_subtree):
        high = prefix_end(scope.path)
        parts.append(
            f"SELECT lock_id FROM lock_scopes WHERE board_id = :board_id AND region = :region{number}"
            f" AND path >= :low{number}" + ("" if high is None else f" AND path < :high{number}")
        )
        params |= {f"region{number}": scope.region, f"low{number}": scope.path}
        if high is not None:
            params[f"high{number}"] = high
    rows = tx.rows(
        f"SELECT {LOCK_COLUMNS} FROM locks l WHERE l.board_id = :board_id AND l.lock_id IN"
        f" ({' UNION '.join(parts)}) ORDER BY l.number",
        board_id=board_id,
        **params,
    )
    return [lock_from_row(row) for row in rows]


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
