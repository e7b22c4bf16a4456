"""SessionService."""

from __future__ import annotations

from typing import Final

import grpc

from slateboard.v1 import session_service_pb2 as pb
from slateboard_server.domain.limits import MAX_TAG_BYTES
from slateboard_server.domain.principal import SessionRecord
from slateboard_server.domain.values import Micros, PrincipalId
from slateboard_server.grpc_api.calls import Calls, Context
from slateboard_server.grpc_api.shape import check_known, check_request_id, check_text
from slateboard_server.grpc_api.times import read_duration, set_duration, set_time
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.ports import Clock
from slateboard_server.services.model import Caller
from slateboard_server.services.sessions import ACTIVE, ENDED, STALE, Sessions, state_of

SERVICE: Final = "slateboard.v1.SessionService"
_STATES: Final = {
    ACTIVE: pb.SESSION_STATE_ACTIVE,
    STALE: pb.SESSION_STATE_STALE,
    ENDED: pb.SESSION_STATE_ENDED,
}
_BY_NUMBER: Final[dict[int, str | None]] = {0: None, 1: ACTIVE, 2: STALE, 3: ENDED}


class SessionServicer:
    """Converts, calls `Sessions`, converts back."""

    def __init__(self, sessions: Sessions, clock: Clock, headers: Headers) -> None:
        """Serve `sessions`."""
        self._sessions = sessions
        self._clock = clock
        self._headers = headers

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the methods, wrapped."""
        return {
            "StartSession": calls.unary("StartSession", pb.StartSessionRequest, self._start),
            "Heartbeat": calls.unary("Heartbeat", pb.HeartbeatRequest, self._heartbeat),
            "EndSession": calls.unary("EndSession", pb.EndSessionRequest, self._end),
            "ListSessions": calls.unary("ListSessions", pb.ListSessionsRequest, self._list),
        }

    async def _start(
        self, caller: Caller, request: pb.StartSessionRequest, _: Context
    ) -> pb.StartSessionResponse:
        stamp, session, token = await self._sessions.start(
            caller,
            request.board,
            check_request_id(request.request_id),
            read_duration(request.ttl, "ttl"),
            request.purpose,
            request.task,
        )
        return pb.StartSessionResponse(
            header=self._headers.message(stamp), session=self._write(session), session_token=token
        )

    async def _heartbeat(
        self, caller: Caller, request: pb.HeartbeatRequest, _: Context
    ) -> pb.HeartbeatResponse:
        stamp, session = await self._sessions.heartbeat(
            caller, request.board, request.session_token, request.task if request.HasField("task") else None
        )
        return pb.HeartbeatResponse(header=self._headers.message(stamp), session=self._write(session))

    async def _end(self, caller: Caller, request: pb.EndSessionRequest, _: Context) -> pb.EndSessionResponse:
        stamp, session = await self._sessions.end(caller, request.board, request.session_token)
        return pb.EndSessionResponse(header=self._headers.message(stamp), session=self._write(session))

    async def _list(
        self, caller: Caller, request: pb.ListSessionsRequest, _: Context
    ) -> pb.ListSessionsResponse:
        state = _BY_NUMBER[check_known(request.state, max(_BY_NUMBER), "state")]
        principal = check_text(request.principal, MAX_TAG_BYTES, "principal")
        stamp, sessions, token, now = await self._sessions.list(
            caller,
            request.board,
            request.page_size,
            request.page_token,
            state,
            PrincipalId(principal) if principal else None,
        )
        reply = pb.ListSessionsResponse(
            header=self._headers.message(stamp),
            sessions=[self._write(session, now) for session in sessions],
            next_page_token=token,
        )
        set_time(reply.server_time, now)
        return reply

    def _write(self, session: SessionRecord, now: Micros | None = None) -> pb.Session:
        at = max(self._clock.now(), session.last_seen) if now is None else now
        made = pb.Session(
            session_id=session.session_id,
            principal=session.principal,
            state=_STATES[state_of(session, at)],
            task=session.task,
            purpose=session.purpose,
        )
        set_time(made.start_time, session.started)
        set_time(made.last_seen_time, session.last_seen)
        set_duration(made.ttl, session.ttl)
        if session.ended is not None:
            set_time(made.end_time, session.ended)
        return made
