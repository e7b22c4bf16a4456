"""Who is at work on a board: sessions, kept alive by heartbeats, judged by the board's own time."""

from __future__ import annotations

import hmac
from typing import Final

from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.limits import (
    DEFAULT_SESSION_TTL_S,
    MAX_NAME_BYTES,
    MAX_SESSION_TTL_S,
    MIN_SESSION_TTL_S,
)
from slateboard_server.domain.principal import SessionRecord
from slateboard_server.domain.values import SECOND, Micros, PrincipalId, SessionId
from slateboard_server.ports import Clock, Store
from slateboard_server.services.auth import derive, hash_secret
from slateboard_server.services.directory import BoardDirectory, BoardHandle
from slateboard_server.services.lock_keeper import LockKeeper
from slateboard_server.services.model import Caller, Stamp
from slateboard_server.services.page_tokens import PageTokens, page_size

ACTIVE: Final = "active"
STALE: Final = "stale"
ENDED: Final = "ended"
_STATES: Final = (ACTIVE, STALE, ENDED)
_MAX_RESTARTS: Final = 8
"""Dead sessions that one request_id may leave behind before it is refused."""
_MAX_LOOKED_AT: Final = 10_000
"""Sessions a filtered list looks at for one page; the page then ends early, with a token."""


def state_of(session: SessionRecord, now: Micros) -> str:
    """Tell a session's state: `active`, `stale` or `ended`."""
    if session.ended is not None:
        return ENDED
    return STALE if session.stale_at(now) else ACTIVE


class Sessions:
    """SessionService."""

    def __init__(self, directory: BoardDirectory, store: Store, clock: Clock, keeper: LockKeeper) -> None:
        """Work on the boards of `directory`; `keeper` ends the locks of sessions that end."""
        self._keeper = keeper
        self._directory = directory
        self._store = store
        self._clock = clock

    async def start(
        self, caller: Caller, board: str, request_id: str, ttl: int, purpose: str, task: str
    ) -> tuple[Stamp, SessionRecord, str]:
        """Start a session of the caller; returns it with its token `<session id>.<secret>`.

        `ttl` in Micros, 0 for the default. With a request_id that started a session that is still alive, that one is
        answered, with its token.
        """
        _check_text("purpose", purpose)
        _check_text("task", task)
        ttl = ttl or DEFAULT_SESSION_TTL_S * SECOND
        if not MIN_SESSION_TTL_S * SECOND <= ttl <= MAX_SESSION_TTL_S * SECOND:
            raise field_invalid(
                "ttl", f"a session lives {MIN_SESSION_TTL_S} s to {MAX_SESSION_TTL_S} s between heartbeats",
                limit=MAX_SESSION_TTL_S,
            )  # fmt: skip
        handle = await self._directory.open(caller, board)
        now = await self._now(handle)
        previous = ""
        for _ in range(_MAX_RESTARTS):
            # A retry must name the same session, a later use of the same request_id another one: each name is derived
            # from the one before it.
            named = derive(handle.meta.secret, "session", caller.principal.id, request_id, previous)
            session_id = SessionId(named[:12].hex())
            secret = derive(handle.meta.secret, "session secret", session_id).hex()
            known = await self._store.find_session(handle.board_id, session_id)
            if known is not None and not known.alive_at(now):
                previous = session_id
                continue
            session = SessionRecord(
                session_id, caller.principal.id, hash_secret(secret), now, now, ttl, purpose, task
            )
            kept = await self._store.start_session(handle.board_id, session, request_id)
            return handle.stamp(), kept, f"{session_id}.{secret}"
        raise SlateboardError(
            Reason.REQUEST_ID_REUSED,
            f"{_MAX_RESTARTS} sessions of this request_id are over; start a new one with a new request_id",
            field="request_id",
        )

    async def heartbeat(
        self, caller: Caller, board: str, session_token: str, task: str | None
    ) -> tuple[Stamp, SessionRecord]:
        """Say that a session is alive. SESSION_DEAD once it is stale or ended, SESSION_NOT_FOUND for a foreign token."""
        if task is not None:
            _check_text("task", task)
        handle = await self._directory.open(caller, board)
        session = await self._prove(handle, caller, session_token)
        now = await self._now(handle)
        touched = await self._store.touch_session(handle.board_id, SessionId(session.session_id), now, task)
        if touched is None:
            raise _not_found()
        if not touched.alive_at(now):
            raise _dead(touched, now)
        return handle.stamp(), touched

    async def end(self, caller: Caller, board: str, session_token: str) -> tuple[Stamp, SessionRecord]:
        """End a session; an ended one answers the same. SESSION_DEAD for a stale one."""
        handle = await self._directory.open(caller, board)
        session = await self._prove(handle, caller, session_token)
        now = await self._now(handle)
        if session.stale_at(now):
            raise _dead(session, now)
        ended = await self._store.end_session(handle.board_id, SessionId(session.session_id), now)
        if ended is None:
            raise _not_found()
        await self._keeper.session_ended(handle, SessionId(session.session_id))
        return handle.stamp(), ended

    async def list(
        self,
        caller: Caller,
        board: str,
        size: int,
        page_token: str,
        state: str | None = None,
        principal: PrincipalId | None = None,
    ) -> tuple[Stamp, list[SessionRecord], str, Micros]:
        """List sessions, newest first, with the moment their states were judged at."""
        if state is not None and state not in _STATES:
            raise field_invalid("state", f"{state!r} is not one of {', '.join(_STATES)}")
        handle = await self._directory.open(caller, board)
        limit = page_size(size)
        tokens = PageTokens(
            handle.meta.secret,
            handle.feed.incarnation,
            "sessions",
            caller.principal.id,
            state,
            principal,
        )
        position = tokens.read(page_token)
        before = None if position is None else (Micros(position["started"]), str(position["id"]))
        now = await self._now(handle)
        shown: list[SessionRecord] = []
        looked_at = 0
        more = True
        while more and len(shown) <= limit and looked_at < _MAX_LOOKED_AT:
            chunk = await self._store.list_sessions(handle.board_id, before, limit + 1, principal)
            looked_at += len(chunk)
            more = len(chunk) > limit
            for session in chunk:
                if state is None or state_of(session, now) == state:
                    shown.append(session)
                    if len(shown) > limit:
                        break
                before = (session.started, session.session_id)
        more = more or len(shown) > limit
        shown = shown[:limit]
        token = tokens.make(started=before[0], id=before[1]) if more and before is not None else ""
        return handle.stamp(), shown, token, now

    async def _now(self, handle: BoardHandle) -> Micros:
        """Return the board's time: never before its last commit, whichever replica made that."""
        last = handle.feed.commit_time
        if not self._directory.settings.exclusive:
            last = max(last, (await self._directory.head(handle)).commit_time)
        return max(self._clock.now(), last)

    async def _prove(self, handle: BoardHandle, caller: Caller, token: str) -> SessionRecord:
        session_id, _, secret = token.partition(".")
        if not (session_id.isascii() and session_id.isalnum() and secret) or len(token) > MAX_NAME_BYTES:
            raise _not_found()
        session = await self._store.find_session(handle.board_id, SessionId(session_id))
        kept = bytes(32) if session is None else session.secret_hash
        matches = hmac.compare_digest(hash_secret(secret), kept)
        if session is None or not matches or session.principal != caller.principal.id:
            raise _not_found()
        return session


def _check_text(field: str, text: str) -> None:
    if "\0" in text:
        raise field_invalid(field, "must not contain NUL")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise field_invalid(field, f"at most {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)


def _not_found() -> SlateboardError:
    return SlateboardError(
        Reason.SESSION_NOT_FOUND,
        "the session token is garbled, or belongs to another board or principal; start a session",
        field="session_token",
    )


def _dead(session: SessionRecord, now: Micros) -> SlateboardError:
    how = "ended" if session.ended is not None else "missed its heartbeats"
    return SlateboardError(
        Reason.SESSION_DEAD,
        f"session {session.session_id} {how}; start a new one, and read again what it worked on: others may have taken it"
        " over",
        session_id=session.session_id,
        state=state_of(session, now),
    )
