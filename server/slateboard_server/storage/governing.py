"""Boards themselves: made, found, deleted, given a policy, compacted, begun anew. Each in one transaction."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace

from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.names import SHARED, prefix_end
from slateboard_server.domain.policy import BOARD_COUNTER, CounterKey, Policy, Scope
from slateboard_server.domain.values import BoardId, Incarnation, Micros, PrincipalId, Revision
from slateboard_server.ports import BoardMeta, Head, NewBoard
from slateboard_server.storage import codec
from slateboard_server.storage.batch import key_digest
from slateboard_server.storage.engine import WriteTx
from slateboard_server.storage.reading import Tx
from slateboard_server.storage.rows import (
    BOARD_COLUMNS,
    BOARD_FROM,
    HEAD_COLUMNS,
    board_from_row,
    head_from_row,
)

_LOCK_SEQ_JUMP = 1 << 32
_BOARD_TABLES = (
    "versions", "current", "counters", "commits", "requests", "lineage", "conflicts", "sessions", "usage",
    "locks", "lock_scopes",
)  # fmt: skip


def new_incarnation() -> Incarnation:
    """Draw the name of a life of a board: 26 characters of [0-9a-z], never the same twice."""
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
    return Incarnation("".join(secrets.choice(alphabet) for _ in range(26)))


def secret_of(tx: Tx, board_id: BoardId) -> bytes:
    """Read a board's secret. BOARD_NOT_FOUND where it is gone."""
    rows = tx.rows("SELECT secret FROM boards WHERE board_id = :board_id AND deleted = 0", board_id=board_id)
    if not rows:
        raise board_not_found(str(board_id))
    return bytes(rows[0][0])


def find_board(tx: Tx, name: str) -> BoardMeta | None:
    """Read a board by name."""
    rows = tx.rows(
        f"SELECT {BOARD_COLUMNS} FROM {BOARD_FROM} WHERE b.name = :name AND b.deleted = 0", name=name
    )
    return board_from_row(rows[0]) if rows else None


def list_boards(tx: Tx, after: str, limit: int) -> list[BoardMeta]:
    """List boards by name."""
    rows = tx.rows(
        f"SELECT {BOARD_COLUMNS} FROM {BOARD_FROM} WHERE b.name > :after AND b.deleted = 0 ORDER BY b.name LIMIT :limit",
        after=after,
        limit=limit,
    )
    return [board_from_row(row) for row in rows]


def create_board(tx: Tx, board: NewBoard, now: Micros, secret: bytes) -> BoardMeta:
    """Make a board with a secret drawn before, or return the one this request made."""
    tx.run("UPDATE board_ids SET last = last + 1 WHERE one = 1")
    known = find_board(tx, board.name)
    if known is not None:
        made_by = tx.rows(
            "SELECT created_by, create_request_id FROM boards WHERE board_id = :board_id",
            board_id=known.board_id,
        )[0]
        same_request = bool(board.request_id) and tuple(made_by) == (board.created_by, board.request_id)
        if same_request or known.secret == secret:
            return known
        raise SlateboardError(
            Reason.BOARD_EXISTS,
            f"there is a board {board.name!r}; use it, or choose another name",
            board=board.name,
        )
    board_id = BoardId(tx.rows("SELECT last FROM board_ids WHERE one = 1")[0][0])
    policy = replace(board.policy, version=1, updated=now, updated_by=board.created_by)
    tx.insert(
        "boards",
        board_id=board_id,
        name=board.name,
        deleted=0,
        description=board.description,
        created=now,
        created_by=board.created_by,
        create_request_id=board.request_id,
        secret=secret,
        incarnation=new_incarnation(),
        head=0,
        floor=1,
        compacted=0,
        last_commit_time=0,
        lock_seq=0,
        policy=codec.policy_to_text(policy),
        policy_version=1,
        conflict_seq=0,
        conflicts_dropped=0,
    )
    made = find_board(tx, board.name)
    assert made is not None  # inserted above
    return made


def delete_board(tx: Tx, board_id: BoardId, incarnation: Incarnation) -> bool:
    """Make a board disappear; True again where it already has."""
    return bool(
        tx.run(
            "UPDATE boards SET deleted = 1 WHERE board_id = :board_id AND incarnation = :incarnation",
            board_id=board_id,
            incarnation=incarnation,
        )
    )


def erase_deleted(tx: Tx, limit: int) -> int:
    """Erase rows of deleted boards, at last the board's own."""
    gone = tx.rows("SELECT board_id FROM boards WHERE deleted = 1 ORDER BY board_id LIMIT 1")
    if not gone:
        return 0
    board_id = gone[0][0]
    erased = 0
    for table in _BOARD_TABLES:
        erased += tx.delete_some(table, board_id, limit - erased)
        if erased >= limit:
            return erased
    tx.run("DELETE FROM boards WHERE board_id = :board_id AND deleted = 1", board_id=board_id)
    return erased + 1


def reincarnate(tx: Tx, board_id: BoardId, incarnation: Incarnation, new: Incarnation) -> BoardMeta | None:
    """Start an incarnation whose name was drawn before; doing it again finds it done."""
    changed = tx.run(
        "UPDATE boards SET incarnation = :new, lock_seq = lock_seq + :jump WHERE board_id = :board_id"
        " AND incarnation = :incarnation AND deleted = 0",
        new=new,
        jump=_LOCK_SEQ_JUMP,
        board_id=board_id,
        incarnation=incarnation,
    )
    found = _by_id(tx, board_id)
    return found if changed or found.head.incarnation == new else None


def _by_id(tx: Tx, board_id: BoardId) -> BoardMeta:
    rows = tx.rows(
        f"SELECT {BOARD_COLUMNS} FROM {BOARD_FROM} WHERE b.board_id = :board_id AND b.deleted = 0",
        board_id=board_id,
    )
    if not rows:
        raise board_not_found(str(board_id))
    return board_from_row(rows[0])


def set_policy(
    tx: Tx, board_id: BoardId, policy: Policy, expected_version: int, by: PrincipalId, now: Micros
) -> Policy | None:
    """Replace the policy and count what its quotas speak of."""
    rows = tx.rows(
        f"SELECT policy_version, policy FROM boards WHERE board_id = :board_id AND deleted = 0{tx.dialect.for_update}",
        board_id=board_id,
    )
    if not rows:
        raise board_not_found(str(board_id))
    new = replace(policy, version=expected_version + 1, updated=now, updated_by=by)
    if rows[0] == (new.version, codec.policy_to_text(new)):
        return new  # an earlier attempt, whose answer got lost
    if rows[0][0] != expected_version:
        return None
    tx.run(
        "UPDATE boards SET policy = :policy, policy_version = :version WHERE board_id = :board_id",
        policy=codec.policy_to_text(new),
        version=new.version,
        board_id=board_id,
    )
    tx.run("DELETE FROM usage WHERE board_id = :board_id AND scope <> 0", board_id=board_id)
    for counter, _ in new.counters():
        if counter != BOARD_COUNTER:
            _recount(tx, board_id, counter)
    return new


def _recount(tx: Tx, board_id: BoardId, counter: CounterKey) -> None:
    end = prefix_end(counter.prefix)
    where = "region = :shared" if counter.scope is Scope.SHARED else "region <> :shared"
    params = {} if end is None else {"high": end}
    entries, size = tx.rows(
        "SELECT count(*), coalesce(sum(size), 0) FROM current WHERE board_id = :board_id AND tombstone = 0"
        f" AND {where} AND key >= :low" + ("" if end is None else " AND key < :high"),
        board_id=board_id,
        shared=SHARED,
        low=counter.prefix,
        **params,
    )[0]
    tx.insert(
        "usage",
        board_id=board_id,
        scope=int(counter.scope),
        prefix=counter.prefix,
        entries=entries,
        bytes=int(size),
        window_start=0,
        commits=0,
    )


def _drop_superseded(tx: WriteTx, board_id: BoardId, done: int, floor: int, limit: int) -> tuple[int, int]:
    """Drop what versions after revision `done` supersede; return how far it came and how many it dropped.

    It goes along the superseding versions, so each is looked at once in the board's life, however often the floor rises.
    """
    if done >= floor:
        return done, 0
    beyond = tx.rows(
        "SELECT revision FROM versions WHERE board_id = :board_id AND revision > :done AND revision <= :floor"
        " ORDER BY revision LIMIT 1 OFFSET :limit",
        board_id=board_id,
        done=done,
        floor=floor,
        limit=limit,
    )
    # Whole revisions, at least one: a commit may have more versions than the limit.
    upto = max(beyond[0][0] - 1, done + 1) if beyond else floor
    before = tx.rows(
        "SELECT region, key, version - 1 FROM versions WHERE board_id = :board_id AND revision > :done"
        " AND revision <= :upto AND version > 1",
        board_id=board_id,
        done=done,
        upto=upto,
    )
    # Two plain steps: as one UPDATE over a self-join, PostgreSQL picks dreadful plans before the table is analysed.
    superseded = tx.rows(
        f"SELECT v.revision, v.op_index FROM {tx.dialect.triples('places')} AS w {tx.dialect.join} versions v"
        " ON v.board_id = :board_id AND v.region = w.region AND v.key = w.key AND v.version = w.version"
        " WHERE v.compacted = 0",
        board_id=board_id,
        places=json.dumps([list(row) for row in before], ensure_ascii=False),
    )
    drop = (
        "UPDATE versions SET value = NULL, notes = NULL, content_type = '', compacted = 1"
        " WHERE board_id = :board_id AND revision = :at AND op_index = :op_index"
    )
    places = [{"board_id": board_id, "at": at, "op_index": op_index} for at, op_index in superseded]
    progress = "UPDATE boards SET compacted = :upto WHERE board_id = :board_id"
    if places:
        tx.execute_all([(drop, places)])
    tx.execute_all([(progress, [{"board_id": board_id, "upto": upto}])])
    return upto, len(places)


def compact(tx: WriteTx, board_id: BoardId, revision: Revision, limit: int) -> tuple[Head, int, bool]:
    """Raise the floor, then drop superseded values, up to `limit` rows."""
    rows = tx.rows(
        f"SELECT {HEAD_COLUMNS}, secret, compacted FROM boards WHERE board_id = :board_id AND deleted = 0{tx.dialect.for_update}",
        board_id=board_id,
    )
    if not rows:
        raise board_not_found(str(board_id))
    head, secret = head_from_row(rows[0]), bytes(rows[0][5])
    if revision > head.revision:
        raise SlateboardError(
            Reason.FUTURE_REVISION,
            f"revision {revision} lies above the board's head {head.revision}",
            revision=head.revision,
        )
    floor = max(head.floor, revision)
    if floor != head.floor:
        tx.run("UPDATE boards SET floor = :floor WHERE board_id = :board_id", floor=floor, board_id=board_id)
    upto, dropped = _drop_superseded(tx, board_id, rows[0][6], floor, limit)
    gone = tx.rows(
        "SELECT region, key, version FROM current WHERE board_id = :board_id AND mod_revision <= :floor"
        " AND tombstone <> 0 LIMIT :limit",
        board_id=board_id,
        floor=floor,
        limit=limit,
    )
    if gone:
        places = [
            {"board_id": board_id, "region": region, "key": key, "version": version}
            for region, key, version in gone
        ]
        counters = [
            {"board_id": board_id, "key_digest": key_digest(secret, region, key), "last_version": version}
            for region, key, version in gone
        ]
        stub = (
            "UPDATE versions SET notes = NULL, compacted = 1 WHERE board_id = :board_id AND region = :region"
            " AND key = :key AND version = :version"
        )
        drop = "DELETE FROM current WHERE board_id = :board_id AND region = :region AND key = :key"
        tx.execute_all([(tx.dialect.upsert("counters"), counters), (stub, places), (drop, places)])
    more = upto < floor or len(gone) == limit
    return replace(head, floor=Revision(floor)), dropped + len(gone), more
