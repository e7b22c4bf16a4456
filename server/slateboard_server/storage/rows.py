"""Rows of boards, principals, tokens, sessions and commits to domain values and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from slateboard_server.domain.entry import CommitRecord
from slateboard_server.domain.locks import LockMode, LockRecord, LockScope, LockState
from slateboard_server.domain.principal import Action, Principal, Right, Role, SessionRecord, TokenRecord
from slateboard_server.domain.values import (
    BoardId,
    FencingToken,
    Incarnation,
    LockId,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    TokenId,
    Trust,
)
from slateboard_server.ports import BoardMeta, Head
from slateboard_server.storage.codec import policy_from_text

PRINCIPAL_COLUMNS = "id, role, boards, rights, trust_ceiling, created, created_by, disabled, display_name"
TOKEN_COLUMNS = "token_id, principal, secret_hash, created, expires, revoked"
SESSION_COLUMNS = "session_id, principal, secret_hash, started, last_seen, ttl, purpose, task, ended"
COMMIT_COLUMNS = "revision, commit_id, batch_id, principal, session_id, request_id, commit_time, note"
BOARD_COLUMNS = (
    "b.board_id, b.name, b.description, b.created, b.created_by, b.secret, b.head, b.floor, b.incarnation,"
    " b.last_commit_time, b.policy_version, b.policy, coalesce(u.entries, 0), coalesce(u.bytes, 0)"
)
BOARD_FROM = "boards b LEFT JOIN usage u ON u.board_id = b.board_id AND u.scope = 0 AND u.prefix = ''"
LOCK_COLUMNS = (
    "l.lock_id, l.number, l.state, l.mode, l.scopes, l.principal, l.session_id, l.holder, l.purpose, l.ttl, l.asked,"
    " l.request_id, l.fingerprint, l.max_hold, l.token, l.granted, l.ended, l.ended_by, l.end_reason, l.end_request_id,"
    " l.successor, l.sequence, l.attempt"
)
HEAD_COLUMNS = "head, floor, incarnation, last_commit_time, policy_version"


def head_from_row(row: Sequence[Any]) -> Head:
    """Build a head from HEAD_COLUMNS."""
    return Head(Revision(row[0]), Revision(row[1]), Incarnation(row[2]), Micros(row[3]), row[4])


def board_from_row(row: Sequence[Any]) -> BoardMeta:
    """Build a board from BOARD_COLUMNS."""
    return BoardMeta(
        board_id=BoardId(row[0]),
        name=row[1],
        description=row[2],
        created=Micros(row[3]),
        created_by=row[4],
        secret=bytes(row[5]),
        head=Head(Revision(row[6]), Revision(row[7]), Incarnation(row[8]), Micros(row[9]), row[10]),
        policy=policy_from_text(row[11]),
        entries=row[12],
        bytes=row[13],
    )


def principal_from_row(row: Sequence[Any]) -> Principal:
    """Build a principal from PRINCIPAL_COLUMNS."""
    return Principal(
        id=PrincipalId(row[0]),
        role=Role(row[1]),
        boards=frozenset(json.loads(row[2])),
        rights=tuple(
            Right(prefix, frozenset(Action(action) for action in actions))
            for prefix, actions in json.loads(row[3])
        ),
        trust_ceiling=Trust(row[4]),
        created=Micros(row[5]),
        created_by=row[6],
        disabled=bool(row[7]),
        display_name=row[8],
    )


def principal_to_row(principal: Principal) -> dict[str, Any]:
    """Return the row of a principal."""
    return {
        "id": principal.id,
        "role": int(principal.role),
        "boards": json.dumps(sorted(principal.boards)),
        "rights": json.dumps(
            [[right.prefix, sorted(int(action) for action in right.actions)] for right in principal.rights],
            ensure_ascii=False,
        ),
        "trust_ceiling": int(principal.trust_ceiling),
        "created": principal.created,
        "created_by": principal.created_by,
        "disabled": int(principal.disabled),
        "display_name": principal.display_name,
    }


def token_from_row(row: Sequence[Any]) -> TokenRecord:
    """Build a token from TOKEN_COLUMNS."""
    return TokenRecord(
        token_id=TokenId(row[0]),
        principal=PrincipalId(row[1]),
        secret_hash=bytes(row[2]),
        created=Micros(row[3]),
        expires=None if row[4] is None else Micros(row[4]),
        revoked=bool(row[5]),
    )


def token_to_row(token: TokenRecord) -> dict[str, Any]:
    """Return the row of a token."""
    return {
        "token_id": token.token_id,
        "principal": token.principal,
        "secret_hash": token.secret_hash,
        "created": token.created,
        "expires": token.expires,
        "revoked": int(token.revoked),
    }


def session_from_row(row: Sequence[Any]) -> SessionRecord:
    """Build a session from SESSION_COLUMNS."""
    return SessionRecord(
        session_id=row[0],
        principal=PrincipalId(row[1]),
        secret_hash=bytes(row[2]),
        started=Micros(row[3]),
        last_seen=Micros(row[4]),
        ttl=row[5],
        purpose=row[6],
        task=row[7],
        ended=None if row[8] is None else Micros(row[8]),
    )


def commit_from_row(row: Sequence[Any]) -> CommitRecord:
    """Build a commit from COMMIT_COLUMNS."""
    return CommitRecord(
        revision=Revision(row[0]),
        commit_id=row[1],
        batch_id=row[2],
        principal=PrincipalId(row[3]),
        session_id=None if row[4] is None else SessionId(row[4]),
        request_id=row[5],
        commit_time=Micros(row[6]),
        note=row[7],
    )


def lock_from_row(row: Sequence[Any]) -> LockRecord:
    """Build a lock from LOCK_COLUMNS."""
    return _lock(tuple(row))


@lru_cache(maxsize=4_096)
def _lock(row: tuple[Any, ...]) -> LockRecord:
    # A held lock is read with each commit under it, and is the same each time; records are never changed.
    return LockRecord(
        lock_id=LockId(row[0]),
        number=row[1],
        state=LockState(row[2]),
        mode=LockMode(row[3]),
        scopes=tuple(LockScope(Region(region), path) for region, path in json.loads(row[4])),
        principal=PrincipalId(row[5]),
        session_id=row[6],
        holder=row[7],
        purpose=row[8],
        ttl=row[9],
        asked=Micros(row[10]),
        request_id=row[11],
        fingerprint=bytes(row[12]),
        max_hold=row[13],
        token=FencingToken(row[14]),
        granted=row[15],
        ended=row[16],
        ended_by=row[17],
        end_reason=row[18],
        end_request_id=row[19],
        successor=row[20],
        sequence=row[21],
        attempt=row[22],
    )


def lock_to_row(board_id: int, lock: LockRecord) -> dict[str, Any]:
    """Return the row of a lock."""
    return {
        "board_id": board_id,
        "lock_id": lock.lock_id,
        "number": lock.number,
        "state": int(lock.state),
        "mode": int(lock.mode),
        "scopes": json.dumps(lock.scopes, ensure_ascii=False),
        "principal": lock.principal,
        "session_id": lock.session_id,
        "holder": lock.holder,
        "purpose": lock.purpose,
        "ttl": lock.ttl,
        "asked": lock.asked,
        "request_id": lock.request_id,
        "fingerprint": lock.fingerprint,
        "attempt": lock.attempt,
        "max_hold": lock.max_hold,
        "token": lock.token,
        "granted": lock.granted,
        "ended": lock.ended,
        "ended_by": lock.ended_by,
        "end_reason": lock.end_reason,
        "end_request_id": lock.end_request_id,
        "successor": lock.successor,
        "sequence": lock.sequence,
    }
