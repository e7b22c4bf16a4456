"""LockService."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

import grpc

from slateboard.v1 import commit_pb2, error_reason_pb2
from slateboard.v1 import lock_service_pb2 as pb
from slateboard_server.domain.commit import Claim
from slateboard_server.domain.errors import field_invalid
from slateboard_server.domain.limits import (
    DEFAULT_LOCK_TTL_S,
    MAX_LOCK_SCOPES,
    MAX_LOCK_TTL_S,
    MAX_LOCK_WAIT_S,
    MAX_NAME_BYTES,
    MAX_RENEWALS,
    MAX_TAG_BYTES,
    MIN_LOCK_TTL_S,
)
from slateboard_server.domain.locks import LockMode, LockScope
from slateboard_server.domain.names import check_key, check_prefix, check_principal_id, check_region
from slateboard_server.domain.values import SECOND, FencingToken, LockId, PrincipalId, SessionId
from slateboard_server.grpc_api.calls import Calls, Context, Stream
from slateboard_server.grpc_api.read_commit import read_claims, read_session
from slateboard_server.grpc_api.shape import (
    check_count,
    check_known,
    check_no_unknown,
    check_request_id,
    check_text,
)
from slateboard_server.grpc_api.times import read_duration, set_duration, set_time
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.services.lock_views import LockViews
from slateboard_server.services.locks import Locks
from slateboard_server.services.model import Caller, LockAsk, LockChanges, LockRenewal, LockView

SERVICE: Final = "slateboard.v1.LockService"


class LockServicer:
    """Converts, calls `Locks` and `LockViews`, converts back."""

    def __init__(self, locks: Locks, views: LockViews, headers: Headers, progress_interval: float) -> None:
        """Serve `locks` and `views`; watchers hear a sign of life every `progress_interval` seconds."""
        self._locks = locks
        self._views = views
        self._headers = headers
        self._progress_interval = progress_interval

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the methods, wrapped."""
        return {
            "Renew": calls.unary("Renew", pb.RenewRequest, self._renew),
            "Acquire": calls.unary("Acquire", pb.AcquireRequest, self._acquire),
            "Release": calls.unary("Release", pb.ReleaseRequest, self._release),
            "ForceRelease": calls.unary("ForceRelease", pb.ForceReleaseRequest, self._force_release),
            "Transfer": calls.unary("Transfer", pb.TransferRequest, self._transfer),
            "GetLock": calls.unary("GetLock", pb.GetLockRequest, self._get),
            "ListLocks": calls.unary("ListLocks", pb.ListLocksRequest, self._list),
            "ListWaiters": calls.unary("ListWaiters", pb.ListWaitersRequest, self._list_waiters),
            "WatchLocks": calls.stream("WatchLocks", pb.WatchLocksRequest, self._watch),
        }

    async def _acquire(self, caller: Caller, request: pb.AcquireRequest, _: Context) -> pb.AcquireResponse:
        stamp, view, replayed = await self._locks.acquire(caller, request.board, read_ask(request))
        return pb.AcquireResponse(
            header=self._headers.message(stamp), lock=write_lock(view), replayed=replayed
        )

    async def _renew(self, caller: Caller, request: pb.RenewRequest, _: Context) -> pb.RenewResponse:
        if not request.claims:
            raise field_invalid("claims", "name the locks to renew, 1 to 100", limit=MAX_RENEWALS)
        check_count(request.claims, MAX_RENEWALS, "claims")
        stamp, renewals = await self._locks.renew(
            caller, request.board, read_claims(request.claims), read_session(request.session_token)
        )
        return pb.RenewResponse(
            header=self._headers.message(stamp), renewals=[_write_renewal(one) for one in renewals]
        )

    async def _release(self, caller: Caller, request: pb.ReleaseRequest, _: Context) -> pb.ReleaseResponse:
        stamp, outcome = await self._locks.release(
            caller,
            request.board,
            check_request_id(request.request_id),
            _read_claim(request.claim, waiting=True),
            read_session(request.session_token),
        )
        return pb.ReleaseResponse(
            header=self._headers.message(stamp), outcome=pb.ReleaseOutcome.ValueType(int(outcome))
        )

    async def _force_release(
        self, caller: Caller, request: pb.ForceReleaseRequest, _: Context
    ) -> pb.ForceReleaseResponse:
        if not request.reason.strip():
            raise field_invalid("reason", "say why somebody else's lock has to end: the audit keeps it")
        if request.expected_token < 0:
            raise field_invalid("expected_token", "is the lock's fencing token, as it was seen")
        stamp, view = await self._locks.force_release(
            caller,
            request.board,
            check_request_id(request.request_id),
            _read_lock_id(request.lock_id, "lock_id"),
            FencingToken(request.expected_token),
            check_text(request.reason, MAX_NAME_BYTES, "reason"),
        )
        return pb.ForceReleaseResponse(header=self._headers.message(stamp), lock=write_lock(view))

    async def _transfer(self, caller: Caller, request: pb.TransferRequest, _: Context) -> pb.TransferResponse:
        session = check_text(request.to_session_id, MAX_TAG_BYTES, "to_session_id")
        stamp, view = await self._locks.transfer(
            caller,
            request.board,
            check_request_id(request.request_id),
            _read_claim(request.claim),
            read_session(request.session_token),
            (
                check_principal_id(request.to_principal, "to_principal"),
                SessionId(session) if session else None,
                check_text(request.to_holder, MAX_NAME_BYTES, "to_holder"),
            ),
        )
        return pb.TransferResponse(header=self._headers.message(stamp), lock=write_lock(view))

    async def _get(self, caller: Caller, request: pb.GetLockRequest, _: Context) -> pb.GetLockResponse:
        lock_id = _read_lock_id(request.lock_id, "lock_id")
        handle, view = await self._views.get(caller, request.board, lock_id)
        return pb.GetLockResponse(header=self._headers.message(handle.stamp()), lock=write_lock(view))

    async def _list(self, caller: Caller, request: pb.ListLocksRequest, _: Context) -> pb.ListLocksResponse:
        check_no_unknown(request)
        principal = check_text(request.principal, MAX_TAG_BYTES, "principal")
        page = await self._views.list(
            caller,
            request.board,
            request.page_size,
            request.page_token,
            _read_covering(request),
            PrincipalId(principal) if principal else None,
            include_ended=request.include_ended,
        )
        reply = pb.ListLocksResponse(
            header=self._headers.message(page.stamp),
            locks=[write_lock(view) for view in page.locks],
            next_page_token=page.next_page_token,
        )
        set_time(reply.server_time, page.now)
        return reply

    async def _list_waiters(
        self, caller: Caller, request: pb.ListWaitersRequest, _: Context
    ) -> pb.ListWaitersResponse:
        check_no_unknown(request)
        page = await self._views.waiters(
            caller, request.board, request.page_size, request.page_token, _read_covering(request)
        )
        reply = pb.ListWaitersResponse(
            header=self._headers.message(page.stamp),
            waiters=[
                pb.Waiter(lock=write_lock(one.lock), blockers=[write_lock(other) for other in one.blockers])
                for one in page.waiters
            ],
            next_page_token=page.next_page_token,
        )
        set_time(reply.server_time, page.now)
        return reply

    async def _watch(self, stream: Stream, request: pb.WatchLocksRequest) -> None:
        check_no_unknown(request)
        if request.after_sequence < 0:
            raise field_invalid("after_sequence", "is a sequence as it was read, or 0")
        changes = self._views.watch(
            stream.caller,
            request.board,
            _read_covering(request),
            request.after_sequence,
            self._progress_interval,
            stream.still_allowed,
        )
        async with aclosing(cast("AsyncGenerator[LockChanges, None]", changes)):
            async for change in changes:
                reply = pb.WatchLocksResponse(
                    header=self._headers.message(change.stamp),
                    locks=[write_lock(view) for view in change.locks],
                    sequence=change.sequence,
                    going_away=change.going_away,
                )
                await stream.write(reply.SerializeToString())
                stream.last_revision = change.sequence


def read_ask(request: pb.AcquireRequest) -> LockAsk:
    """Read what Acquire asks for."""
    if not request.scopes:
        raise field_invalid("scopes", "name what to lock, 1 to 16 keys or prefixes", limit=MAX_LOCK_SCOPES)
    check_count(request.scopes, MAX_LOCK_SCOPES, "scopes")
    scopes = tuple(_read_scope(scope, f"scopes[{index}]") for index, scope in enumerate(request.scopes))
    for index, scope in enumerate(scopes):
        if any(scope.overlaps(other) for other in scopes[:index]):
            raise field_invalid(f"scopes[{index}]", "lies within another scope, or covers it")
    mode = check_known(request.mode, int(LockMode.SHARED), "mode") or int(LockMode.EXCLUSIVE)
    ttl = read_duration(request.ttl, "ttl")
    if not ttl and not request.HasField("ttl"):
        ttl = DEFAULT_LOCK_TTL_S * SECOND
    if not MIN_LOCK_TTL_S * SECOND <= ttl <= MAX_LOCK_TTL_S * SECOND:
        raise field_invalid(
            "ttl",
            f"a lock lives {MIN_LOCK_TTL_S} s to {MAX_LOCK_TTL_S} s between renewals",
            limit=MAX_LOCK_TTL_S,
        )
    wait = read_duration(request.wait_timeout, "wait_timeout")
    if wait > MAX_LOCK_WAIT_S * SECOND:
        raise field_invalid("wait_timeout", f"at most {MAX_LOCK_WAIT_S} s", limit=MAX_LOCK_WAIT_S)
    max_hold = read_duration(request.max_hold, "max_hold") if request.HasField("max_hold") else None
    if max_hold is not None and max_hold < SECOND:
        raise field_invalid("max_hold", "at least 1 s")
    return LockAsk(
        request_id=check_request_id(request.request_id),
        scopes=scopes,
        mode=LockMode(mode),
        ttl=ttl,
        wait_timeout=wait,
        max_hold=max_hold,
        purpose=check_text(request.purpose, MAX_NAME_BYTES, "purpose"),
        holder=check_text(request.holder, MAX_NAME_BYTES, "holder"),
        session=read_session(request.session_token),
    )


def _read_scope(scope: pb.LockScope, field: str) -> LockScope:
    region = check_region(scope.region, f"{field}.region")
    path = scope.path
    if path == "" or path.endswith("/"):
        return LockScope(region, check_prefix(path, f"{field}.path"))
    return LockScope(region, check_key(path, f"{field}.path"))


def _read_covering(
    request: pb.ListLocksRequest | pb.ListWaitersRequest | pb.WatchLocksRequest,
) -> LockScope | None:
    return _read_scope(request.covering, "covering") if request.HasField("covering") else None


def _read_lock_id(text: str, field: str) -> LockId:
    if not text:
        raise field_invalid(field, "is required: as Acquire returned it")
    return LockId(check_text(text, MAX_TAG_BYTES, field))


def _read_claim(claim: commit_pb2.Claim, *, waiting: bool = False) -> Claim:
    lock_id = _read_lock_id(claim.lock_id, "claim.lock_id")
    if claim.fencing_token < (0 if waiting else 1):
        raise field_invalid("claim.fencing_token", "is the token that came with the grant, at least 1")
    return Claim(lock_id, FencingToken(claim.fencing_token))


def _write_renewal(renewal: LockRenewal) -> pb.Renewal:
    made = pb.Renewal(lock_id=renewal.lock_id)
    if renewal.ttl_left is not None:
        set_duration(made.ttl_left, max(renewal.ttl_left, 0))
    if renewal.error is not None:
        made.reason = error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{renewal.error.reason}")
        made.message = renewal.error.message
    return made


def write_scopes(scopes: Sequence[LockScope]) -> list[pb.LockScope]:
    """Convert what a lock covers."""
    return [pb.LockScope(region=scope.region, path=scope.path) for scope in scopes]


def write_lock(view: LockView) -> pb.Lock:
    """Convert a lock as its reader may see it."""
    lock = view.lock
    made = pb.Lock(
        lock_id=lock.lock_id,
        fencing_token=lock.token,
        state=pb.LockState.ValueType(int(lock.state)),
        mode=pb.LockMode.ValueType(int(lock.mode)),
        scopes=write_scopes(lock.scopes),
        principal=lock.principal,
        session_id=lock.session_id or "",
        holder=lock.holder,
        purpose=lock.purpose,
        ended_by=lock.ended_by,
        end_reason=lock.end_reason,
        successor=lock.successor,
        sequence=lock.sequence,
    )
    set_duration(made.ttl, lock.ttl * SECOND)
    if view.ttl_left is not None:
        set_duration(made.ttl_left, max(view.ttl_left, 0))
    if lock.max_hold is not None:
        set_duration(made.max_hold, lock.max_hold)
    set_time(made.ask_time, lock.asked)
    if lock.granted is not None:
        set_time(made.grant_time, lock.granted)
    if lock.ended is not None:
        set_time(made.end_time, lock.ended)
    return made
