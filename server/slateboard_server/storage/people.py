"""Principals, tokens, sessions and the audit log."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.principal import Principal, SessionRecord, TokenRecord
from slateboard_server.domain.values import BoardId, Micros, PrincipalId, SessionId, TokenId
from slateboard_server.ports import AuditRecord
from slateboard_server.storage.reading import Tx
from slateboard_server.storage.rows import (
    PRINCIPAL_COLUMNS,
    SESSION_COLUMNS,
    TOKEN_COLUMNS,
    principal_from_row,
    principal_to_row,
    session_from_row,
    token_from_row,
    token_to_row,
)


def server_secret(tx: Tx) -> bytes:
    """Read the database's secret; the first to ask makes it."""
    rows = tx.rows("SELECT value FROM meta WHERE name = 'server_secret'")
    if not rows:
        tx.run(
            tx.dialect.insert("meta") + " ON CONFLICT DO NOTHING",
            name="server_secret",
            value=secrets.token_bytes(32),
        )
        rows = tx.rows("SELECT value FROM meta WHERE name = 'server_secret'")
    return bytes(rows[0][0])


def create_principal(tx: Tx, principal: Principal, token: TokenRecord) -> None:
    """Keep a principal and its first token."""
    made = tx.run(tx.dialect.insert("principals") + " ON CONFLICT DO NOTHING", **principal_to_row(principal))
    if not made:
        if _is_kept(tx, token) and find_principal(tx, principal.id) == principal:
            return  # by an earlier attempt, whose answer got lost
        raise SlateboardError(
            Reason.PRINCIPAL_EXISTS,
            f"the id {principal.id!r} is taken, or was once; ids are never reused: choose another",
            id=principal.id,
        )
    tx.insert("tokens", **token_to_row(token))


def _is_kept(tx: Tx, token: TokenRecord) -> bool:
    rows = tx.rows(
        "SELECT secret_hash FROM tokens WHERE token_id = :token_id AND principal = :principal",
        token_id=token.token_id,
        principal=token.principal,
    )
    return bool(rows) and bytes(rows[0][0]) == token.secret_hash


def update_principal(tx: Tx, principal: Principal) -> bool:
    """Replace role, boards, rights, ceiling and display name."""
    row = principal_to_row(principal)
    return bool(
        tx.run(
            "UPDATE principals SET role = :role, boards = :boards, rights = :rights, trust_ceiling = :trust_ceiling,"
            " display_name = :display_name WHERE id = :id",
            **{
                name: row[name]
                for name in ("role", "boards", "rights", "trust_ceiling", "display_name", "id")
            },
        )
    )


def disable_principal(tx: Tx, principal: PrincipalId) -> bool:
    """Disable for good, with all tokens."""
    found = bool(tx.run("UPDATE principals SET disabled = 1 WHERE id = :id", id=principal))
    tx.run("UPDATE tokens SET revoked = 1 WHERE principal = :id", id=principal)
    return found


def find_principal(tx: Tx, principal: PrincipalId) -> Principal | None:
    """Read one principal."""
    rows = tx.rows(f"SELECT {PRINCIPAL_COLUMNS} FROM principals WHERE id = :id", id=principal)
    return principal_from_row(rows[0]) if rows else None


def list_principals(tx: Tx, after: str, limit: int) -> list[Principal]:
    """List principals by id."""
    rows = tx.rows(
        f"SELECT {PRINCIPAL_COLUMNS} FROM principals WHERE id > :after ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
    )
    return [principal_from_row(row) for row in rows]


def find_token(tx: Tx, token_id: TokenId) -> tuple[TokenRecord, Principal] | None:
    """Read a token with its principal."""
    rows = tx.rows(f"SELECT {TOKEN_COLUMNS} FROM tokens WHERE token_id = :token_id", token_id=token_id)
    if not rows:
        return None
    token = token_from_row(rows[0])
    principal = find_principal(tx, token.principal)
    return None if principal is None else (token, principal)


def list_tokens(tx: Tx, principal: PrincipalId) -> list[TokenRecord]:
    """List a principal's tokens, oldest first."""
    rows = tx.rows(
        f"SELECT {TOKEN_COLUMNS} FROM tokens WHERE principal = :principal ORDER BY created, token_id",
        principal=principal,
    )
    return [token_from_row(row) for row in rows]


def add_token(tx: Tx, token: TokenRecord, others_expire: Micros | None) -> None:
    """Keep a new token; older live ones expire at `others_expire` at the latest."""
    if _is_kept(tx, token):
        return  # by an earlier attempt, whose answer got lost
    if others_expire is not None:
        tx.run(
            "UPDATE tokens SET expires = :expires WHERE principal = :principal AND revoked = 0"
            " AND (expires IS NULL OR expires > :expires)",
            expires=others_expire,
            principal=token.principal,
        )
    tx.insert("tokens", **token_to_row(token))


def revoke_token(tx: Tx, token_id: TokenId) -> bool:
    """Revoke a token."""
    return bool(tx.run("UPDATE tokens SET revoked = 1 WHERE token_id = :token_id", token_id=token_id))


def audit(tx: Tx, records: Sequence[tuple[str, AuditRecord]]) -> None:
    """Keep audit records under ids drawn before: keeping one again changes nothing."""
    for record_id, record in records:
        tx.run(
            "INSERT INTO audit (record_id, time, principal, action, board, target, detail)"
            " VALUES (:record_id, :time, :principal, :action, :board, :target, :detail)"
            " ON CONFLICT (record_id) DO NOTHING",
            record_id=record_id,
            time=record.time,
            principal=record.principal,
            action=record.action,
            board=record.board,
            target=record.target,
            detail=record.detail,
        )


def list_audit(tx: Tx, before: int | None, limit: int) -> list[tuple[int, AuditRecord]]:
    """List audit records, newest first."""
    rows = tx.rows(
        "SELECT number, time, principal, action, board, target, detail FROM audit WHERE number < :before"
        " ORDER BY number DESC LIMIT :limit",
        before=before if before is not None else 1 << 62,
        limit=limit,
    )
    return [(row[0], AuditRecord(Micros(row[1]), PrincipalId(row[2]), *row[3:])) for row in rows]


def _board_time(tx: Tx, board_id: BoardId, now: Micros, lock: str = "") -> Micros | None:
    """Return max(now, the board's last commit time), the time its commits are judged by; None if there is no board."""
    rows = tx.rows(
        f"SELECT last_commit_time FROM boards WHERE board_id = :board_id AND deleted = 0{lock}",
        board_id=board_id,
    )
    return Micros(max(now, rows[0][0])) if rows else None


def start_session(tx: Tx, board_id: BoardId, session: SessionRecord, request_id: str) -> SessionRecord:
    """Keep a new session, or return the one this request started before, while it is alive."""
    now = _board_time(tx, board_id, session.started, tx.dialect.for_update)
    if now is None:
        raise board_not_found(str(board_id))
    rows = tx.rows(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE board_id = :board_id AND principal = :principal"
        " AND request_id = :request_id",
        board_id=board_id,
        principal=session.principal,
        request_id=request_id,
    )
    if rows:
        # Sorted here: asked to do it, SQLite would walk all sessions by their start.
        known = max((session_from_row(row) for row in rows), key=lambda one: one.started)
        if known.session_id == session.session_id or (request_id and known.alive_at(now)):
            return known
    session = replace(session, started=now, last_seen=now)
    tx.insert(
        "sessions",
        board_id=board_id,
        session_id=session.session_id,
        principal=session.principal,
        request_id=request_id,
        secret_hash=session.secret_hash,
        started=session.started,
        last_seen=session.last_seen,
        ttl=session.ttl,
        purpose=session.purpose,
        task=session.task,
        ended=session.ended,
    )
    return session


def find_session(tx: Tx, board_id: BoardId, session_id: SessionId) -> SessionRecord | None:
    """Read one session."""
    rows = tx.rows(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE board_id = :board_id AND session_id = :session_id",
        board_id=board_id,
        session_id=session_id,
    )
    return session_from_row(rows[0]) if rows else None


def touch_session(
    tx: Tx, board_id: BoardId, session_id: SessionId, now: Micros, task: str | None
) -> SessionRecord | None:
    """Record a heartbeat of a session that is alive."""
    time = _board_time(tx, board_id, now)
    if time is None:
        return None
    tx.run(
        "UPDATE sessions SET last_seen = :now, task = coalesce(:task, task) WHERE board_id = :board_id"
        " AND session_id = :session_id AND ended IS NULL AND last_seen + ttl >= :now AND last_seen <= :now",
        now=time,
        task=task,
        board_id=board_id,
        session_id=session_id,
    )
    return find_session(tx, board_id, session_id)


def end_session(tx: Tx, board_id: BoardId, session_id: SessionId, now: Micros) -> SessionRecord | None:
    """End a session; an ended one stays as it was."""
    time = _board_time(tx, board_id, now)
    if time is None:
        return None
    tx.run(
        "UPDATE sessions SET ended = :now WHERE board_id = :board_id AND session_id = :session_id AND ended IS NULL",
        now=time,
        board_id=board_id,
        session_id=session_id,
    )
    return find_session(tx, board_id, session_id)


def list_sessions(
    tx: Tx, board_id: BoardId, before: tuple[Micros, str] | None, limit: int, principal: PrincipalId | None
) -> list[SessionRecord]:
    """List sessions, newest first."""
    where = "" if principal is None else " AND principal = :principal"
    params = {} if principal is None else {"principal": principal}
    started, session_id = before if before is not None else (1 << 62, "")
    rows = tx.rows(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE board_id = :board_id"
        f" AND (started < :started OR (started = :started AND session_id < :session_id)){where}"
        " ORDER BY started DESC, session_id DESC LIMIT :limit",
        board_id=board_id,
        started=started,
        session_id=session_id,
        limit=limit,
        **params,
    )
    return [session_from_row(row) for row in rows]
