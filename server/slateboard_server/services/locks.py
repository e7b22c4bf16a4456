"""LockService's calls that change locks: ask, renew, release, revoke, hand on."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from slateboard_server.domain.commit import Claim, SessionClaim
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.locking import lost
from slateboard_server.domain.locks import (
    AcquireLock,
    Asker,
    LockRecord,
    LockState,
    LockVerdict,
    ReleaseLock,
    ReleaseOutcome,
    RevokeLock,
    TransferLock,
    seconds_of,
)
from slateboard_server.domain.values import SECOND, FencingToken, LockId, Micros, PrincipalId, SessionId
from slateboard_server.ports import Clock, Lease, Store
from slateboard_server.services.auth import derive
from slateboard_server.services.directory import BoardDirectory, BoardHandle, draining
from slateboard_server.services.lock_keeper import LockKeeper
from slateboard_server.services.lock_views import visible
from slateboard_server.services.model import Caller, LockAsk, LockRenewal, LockView, Stamp

_GRACE: Final = 2.0
"""Seconds that the place of a call that was cut off is kept for its retry."""
_ROUNDS: Final = 4
_RETRY_AFTER: Final = timedelta(milliseconds=250)


class Locks:
    """LockService's writing half."""

    def __init__(self, directory: BoardDirectory, store: Store, keeper: LockKeeper, clock: Clock) -> None:
        """Work on the boards of `directory`; `keeper` knows who is alive."""
        self._directory = directory
        self._store = store
        self._keeper = keeper
        self._clock = clock

    async def acquire(self, caller: Caller, board: str, ask: LockAsk) -> tuple[Stamp, LockView, bool]:
        """Grant a lock, or wait for it in the order of asking; also tells whether an earlier call had been granted it.

        LOCK_WAIT_TIMEOUT, DEADLOCK, LOCK_EXPIRED, LOCK_BACKEND_DOWN. A call that is cut off keeps its place for a moment;
        nothing is left of it after that.
        """
        if self._directory.draining:
            raise draining()
        handle = await self._directory.open(caller, board)
        until = self._clock.monotonic() + ask.wait_timeout / SECOND
        attempt = secrets.token_hex(8)
        in_the_way: Sequence[LockRecord] = ()
        for _ in range(_ROUNDS):
            op, verdict = await self._ask(handle, caller, ask, attempt)
            lock = verdict.lock
            assert lock is not None  # as it was asked
            in_the_way = verdict.blockers
            try:
                if await self._still_there(handle, op, lock, in_the_way):
                    granted = await self._await_grant(handle, caller, ask, op, verdict, until)
                    again = lock.lock_id != op.lock_id and lock.state is LockState.HELD
                    return handle.stamp(), granted, again
            except asyncio.CancelledError:
                self._keeper.spawn(self._clear_up(handle, op, lock.lock_id))
                raise
        raise _not_in_time(caller, in_the_way)

    async def _still_there(
        self, handle: BoardHandle, op: AcquireLock, lock: LockRecord, in_the_way: Sequence[LockRecord]
    ) -> bool:
        """See whether a place in the queue is still good, and whether who is in the way is alive; False: ask anew."""
        if lock.state is LockState.HELD:
            return True
        lease = Lease(handle.board_id, lock.lock_id)
        if lock.lock_id != op.lock_id and lease not in await self._keeper.renew([lease]):
            await self._keeper.reap({lease: handle.meta.name})
            return False
        were_dead = await self._keeper.reap_dead(handle, [blocker.lock_id for blocker in in_the_way])
        return op.wait or not were_dead

    async def _ask(
        self, handle: BoardHandle, caller: Caller, ask: LockAsk, attempt: str
    ) -> tuple[AcquireLock, LockVerdict]:
        """Begin a lease, then ask for the lock it is to keep: in this order, or a lock could be held by nobody alive."""
        lock_id = new_lock_id()
        lease = Lease(handle.board_id, lock_id)
        ttl = await self._keeper.grant(lease, seconds_of(ask.ttl))
        op = AcquireLock(
            asker=Asker(caller.principal.id, caller.token_id, ask.session),
            request_id=ask.request_id,
            fingerprint=_fingerprint(handle.meta.secret, ask),
            attempt=attempt,
            lock_id=lock_id,
            mode=ask.mode,
            scopes=ask.scopes,
            ttl=ttl,
            max_hold=ask.max_hold,
            purpose=ask.purpose,
            holder=ask.holder,
            wait=ask.wait_timeout > 0,
        )
        submitted = asyncio.ensure_future(
            handle.queue.submit_lock(op, self._directory.settings.commit_timeout)
        )
        try:
            verdict = await asyncio.shield(submitted)
        except asyncio.CancelledError:
            self._keeper.spawn(self._clear_up(handle, op, lock_id, submitted))
            raise
        except SlateboardError as error:
            # Where the outcome is unknown the lock may have been granted: without a lease it will not be for long.
            if error.reason is not Reason.DEADLINE:
                self._keeper.spawn(self._keeper.liveness.revoke([lease]))
            raise
        kept = verdict.lock is not None and verdict.lock.lock_id == lock_id
        if not kept or (verdict.lock is not None and verdict.lock.state is LockState.WAITING and not op.wait):
            self._keeper.spawn(self._keeper.liveness.revoke([lease]))
        return op, verdict

    async def _await_grant(
        self,
        handle: BoardHandle,
        caller: Caller,
        ask: LockAsk,
        op: AcquireLock,
        verdict: LockVerdict,
        until: float,
    ) -> LockView:
        lock = verdict.lock
        assert lock is not None  # as it was asked
        at_once = lock.lock_id == op.lock_id and lock.state is LockState.HELD
        if lock.state is LockState.WAITING:
            if not op.wait:
                # The first ask of this request waits still, or did: who asks not to wait gives its place up.
                if verdict.replayed:
                    raise await self._give_up(handle, caller, ask, op, lock)
                raise _not_in_time(caller, verdict.blockers)
            left = until - self._clock.monotonic()
            settled = await self._keeper.wait(handle, lock, max(left, 0.0))
            if settled is None:
                if self._directory.draining:
                    raise draining()
                raise await self._give_up(handle, caller, ask, op, lock)
            lock = settled
        if lock.state is not LockState.HELD:
            raise lost(lock, lock.lock_id)
        # The fence stands: from here on no commit of an earlier holder gets through. But is this one still alive?
        lease = Lease(handle.board_id, lock.lock_id)
        lasts = await self._keeper.left(lease)
        if lasts is None:
            self._keeper.spawn(self._keeper.reap({lease: handle.meta.name}))
            raise SlateboardError(
                Reason.LOCK_EXPIRED,
                f"lock {lock.lock_id} was granted, but its lease had ended by then; acquire again",
                lock_id=lock.lock_id,
            )
        # Who was granted it at once counts from its own call on. Others do not know when their lease was lengthened last.
        micros = lock.ttl * SECOND if at_once else round(min(lasts, lock.ttl) * SECOND)
        return LockView(lock, _until_due(lock, micros, self._now(handle)))

    async def _give_up(
        self, handle: BoardHandle, caller: Caller, ask: LockAsk, op: AcquireLock, lock: LockRecord
    ) -> SlateboardError:
        """Leave the queue; returns what to tell the caller: who is in the way."""
        near = await self._store.overlapping_locks(handle.board_id, ask.scopes)
        blockers = [
            other
            for other in near
            if other.lock_id != lock.lock_id
            and (other.state is LockState.HELD or other.number < lock.number)
            and other.conflicts(ask.mode, ask.scopes)
        ]
        await self._submit_give_up(handle, op, lock.lock_id)
        self._keeper.spawn(self._keeper.liveness.revoke([Lease(handle.board_id, lock.lock_id)]))
        return _not_in_time(caller, blockers)

    async def _submit_give_up(self, handle: BoardHandle, op: AcquireLock, lock_id: LockId) -> None:
        release = ReleaseLock(op.asker, op.request_id, lock_id, FencingToken(0), attempt=op.attempt)
        verdict = await handle.queue.submit_lock(release, self._directory.settings.commit_timeout)
        self._keeper.verify_granted(handle, verdict.changed)

    async def _clear_up(
        self,
        handle: BoardHandle,
        op: AcquireLock,
        lock_id: LockId,
        submitted: asyncio.Future[LockVerdict] | None = None,
    ) -> None:
        """End what a call that was cut off left behind, unless its retry has taken it up."""
        if submitted is not None:
            with contextlib.suppress(SlateboardError):
                verdict = await submitted
                lock_id = lock_id if verdict.lock is None else verdict.lock.lock_id
        await asyncio.sleep(_GRACE)
        await self._submit_give_up(handle, op, lock_id)

    async def renew(
        self, caller: Caller, board: str, claims: Sequence[Claim], session: SessionClaim | None
    ) -> tuple[Stamp, list[LockRenewal]]:
        """Lengthen leases to their full ttl; each lock has its own outcome, in the order of the claims.

        SESSION_DEAD, SESSION_NOT_FOUND and LOCK_BACKEND_DOWN refuse all of them.
        """
        handle = await self._directory.open(caller, board)
        now = self._now(handle)
        session_id = await self._prove(handle, caller, session, now)
        known = await self._store.find_locks(handle.board_id, [claim.lock_id for claim in claims])
        refused: dict[Claim, SlateboardError] = {}
        for claim in claims:
            lock = known.get(claim.lock_id)
            if not _owns(caller, session_id, lock, claim):
                refused[claim] = lost(None, claim.lock_id)
            elif lock is not None and (lock.state is not LockState.HELD or lock.overdue_at(now)):
                refused[claim] = lost(lock, claim.lock_id)
        renewable = {claim: Lease(handle.board_id, claim.lock_id) for claim in claims if claim not in refused}
        left = await self._keeper.renew(list(renewable.values())) if renewable else {}
        gone = {lease: board for lease in renewable.values() if lease not in left}
        if gone:
            self._keeper.spawn(self._keeper.reap(gone))
        renewals: list[LockRenewal] = []
        for claim in claims:
            lock = known.get(claim.lock_id)
            if claim in refused or lock is None:
                renewals.append(LockRenewal(claim.lock_id, None, refused[claim]))
            elif (seconds := left.get(renewable[claim])) is None:
                renewals.append(LockRenewal(claim.lock_id, None, lost(lock, claim.lock_id)))
            else:
                micros = _until_due(lock, round(seconds * SECOND), now)
                renewals.append(LockRenewal(claim.lock_id, micros))
        return handle.stamp(), renewals

    async def release(
        self, caller: Caller, board: str, request_id: str, claim: Claim, session: SessionClaim | None
    ) -> tuple[Stamp, ReleaseOutcome]:
        """End one's own lock, or say how it had ended. LOCK_LOST for one that never was the caller's."""
        handle = await self._directory.open(caller, board)
        op = ReleaseLock(_asker(caller, session), request_id, claim.lock_id, claim.token)
        verdict = await handle.queue.submit_lock(op, self._directory.settings.commit_timeout)
        self._keeper.verify_granted(handle, verdict.changed)
        assert verdict.outcome is not None  # as it was asked
        return handle.stamp(), verdict.outcome

    async def force_release(
        self, caller: Caller, board: str, request_id: str, lock_id: LockId, token: FencingToken, reason: str
    ) -> tuple[Stamp, LockView]:
        """End somebody else's lock, audited. DENIED, LOCK_LOST where it is not held with that token."""
        handle = await self._directory.open(caller, board)
        op = RevokeLock(_asker(caller, None), request_id, lock_id, token, reason)
        verdict = await handle.queue.submit_lock(op, self._directory.settings.commit_timeout)
        self._keeper.verify_granted(handle, verdict.changed)
        assert verdict.lock is not None  # as it was asked
        return handle.stamp(), LockView(verdict.lock, None)

    async def transfer(
        self,
        caller: Caller,
        board: str,
        request_id: str,
        claim: Claim,
        session: SessionClaim | None,
        to: tuple[PrincipalId, SessionId | None, str],
    ) -> tuple[Stamp, LockView]:
        """Hand a held lock on: the receiver has a lease of the same ttl, and there is no moment in which it is free."""
        handle = await self._directory.open(caller, board)
        known = await self._store.find_lock(handle.board_id, claim.lock_id)
        old = Lease(handle.board_id, claim.lock_id)
        if known is None:
            raise lost(None, claim.lock_id)
        if known.state is LockState.HELD and old not in await self._keeper.liveness.alive([old]):
            self._keeper.spawn(self._keeper.reap({old: board}))
            raise lost(known, claim.lock_id)
        lock_id = new_lock_id()
        lease = Lease(handle.board_id, lock_id)
        ttl = await self._keeper.grant(lease, known.ttl)
        principal, to_session, holder = to
        op = TransferLock(
            _asker(caller, session), request_id, claim.lock_id, claim.token, principal, to_session, holder,
            lock_id, ttl,
        )  # fmt: skip
        try:
            verdict = await handle.queue.submit_lock(op, self._directory.settings.commit_timeout)
        except SlateboardError as error:
            if error.reason is not Reason.DEADLINE:
                self._keeper.spawn(self._keeper.liveness.revoke([lease]))
            raise
        assert verdict.lock is not None  # as it was asked
        spare = old if verdict.lock.lock_id == lock_id else lease
        self._keeper.spawn(self._keeper.liveness.revoke([spare]))
        return handle.stamp(), LockView(verdict.lock, verdict.lock.ttl * SECOND)

    def _now(self, handle: BoardHandle) -> Micros:
        return max(self._clock.now(), handle.feed.commit_time)

    async def _prove(
        self, handle: BoardHandle, caller: Caller, session: SessionClaim | None, now: Micros
    ) -> SessionId | None:
        if session is None:
            return None
        record = await self._store.find_session(handle.board_id, session.session_id)
        if (
            record is None
            or record.principal != caller.principal.id
            or not secrets.compare_digest(record.secret_hash, session.secret_hash)
        ):
            raise SlateboardError(
                Reason.SESSION_NOT_FOUND,
                "the session token is not one of this board and principal; start a session",
            )
        if not record.alive_at(now):
            raise SlateboardError(
                Reason.SESSION_DEAD,
                f"session {record.session_id} is over, and its locks end with their leases; start a session and acquire"
                " again",
                session_id=record.session_id,
            )
        return session.session_id


def new_lock_id() -> LockId:
    """Draw the id of a lock: `l-` and a positive number of 63 bits in 16 hexadecimal digits, never the same twice."""
    return LockId(f"l-{secrets.randbits(63) or 1:016x}")


def _asker(caller: Caller, session: SessionClaim | None) -> Asker:
    return Asker(caller.principal.id, caller.token_id, session)


def _owns(caller: Caller, session_id: SessionId | None, lock: LockRecord | None, claim: Claim) -> bool:
    return (
        lock is not None
        and lock.principal == caller.principal.id
        and lock.session_id in {None, session_id}
        and lock.token == claim.token
    )


def _fingerprint(secret: bytes, ask: LockAsk) -> bytes:
    """Tell a retry from another ask under the same request_id. How long to wait may differ between tries."""
    session = "" if ask.session is None else ask.session.session_id
    scopes = [part for scope in ask.scopes for part in scope]
    return derive(
        secret,
        "acquire",
        int(ask.mode),
        ask.ttl,
        ask.max_hold or 0,
        ask.purpose,
        ask.holder,
        session,
        *scopes,
    )


def _until_due(lock: LockRecord, left: int, now: Micros) -> int:
    """Bound what a lease has left (Micros) by how long the lock may be held."""
    if lock.max_hold is None or lock.granted is None:
        return left
    return min(left, max(lock.granted + lock.max_hold - now, 0))


def _not_in_time(caller: Caller, in_the_way: Sequence[LockRecord]) -> SlateboardError:
    """Say who is in the way, as far as the caller may see that."""
    blockers = [lock for lock in in_the_way if visible(caller.principal, lock) is not None]
    held = [lock for lock in blockers if lock.state is LockState.HELD]
    waiting = len(blockers) - len(held)
    if not blockers:
        return SlateboardError(
            Reason.LOCK_WAIT_TIMEOUT,
            "the lock was not granted in time: others hold or ask for something in it; try again later, or wait longer",
            retry_after=_RETRY_AFTER,
            waiting=len(in_the_way),
        )
    first = (held or blockers)[0]
    purpose = f" for {first.purpose!r}" if first.purpose else ""
    what = "holds" if held else "waits for"
    mode = first.mode.name.lower()
    more = f", {waiting} wait before you" if waiting else ""
    return SlateboardError(
        Reason.LOCK_WAIT_TIMEOUT,
        f"the lock was not granted in time: {first.principal} {what} {mode} lock {first.lock_id}{purpose}{more}; try again"
        " later, or wait longer",
        retry_after=_RETRY_AFTER,
        holder=first.principal,
        holder_session=first.session_id,
        lock_id=first.lock_id,
        mode=mode,
        purpose=first.purpose or None,
        waiting=waiting,
        retry_after_ms=round(_RETRY_AFTER.total_seconds() * 1_000),
    )
