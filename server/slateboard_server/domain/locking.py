"""The rules of locks: who is granted what, who waits, which wait would never end.

Pure but for the table it works on, which is handed in: the store's, inside a transaction under the board's row lock, or
a dict in tests. Every grant takes the next number of the board's sequence as its fencing token.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.limits import MAX_LOCKS_PER_PRINCIPAL
from slateboard_server.domain.locks import (
    AcquireLock,
    Asker,
    LockMode,
    LockOp,
    LockRecord,
    LockScope,
    LockState,
    LockVerdict,
    Owner,
    ReapLocks,
    ReleaseLock,
    ReleaseOutcome,
    RevokeLock,
    TransferLock,
)
from slateboard_server.domain.names import is_reserved
from slateboard_server.domain.principal import Action, Principal, SessionRecord
from slateboard_server.domain.values import FencingToken, LockId, Micros, PrincipalId, SessionId, TokenId

_MAX_CYCLE = 64


class LockTable(Protocol):
    """The locks of a board, as a transaction sees them; what is saved is seen by what is asked next."""

    @property
    def board(self) -> str:
        """Return the board's name."""
        ...

    @property
    def now(self) -> Micros:
        """Return the time of the transaction."""
        ...

    @property
    def any_waiting(self) -> bool:
        """Tell whether anybody waits for anything."""
        ...

    @property
    def max_locks(self) -> int:
        """Return the quota of live locks, 0 for none."""
        ...

    def principal(self, principal: PrincipalId) -> Principal | None:
        """Find a principal."""
        ...

    def token_alive(self, token: TokenId) -> bool:
        """Tell whether a credential is still accepted."""
        ...

    def session(self, session: SessionId) -> SessionRecord | None:
        """Find a session of the board."""
        ...

    def find(self, lock_id: LockId) -> LockRecord | None:
        """Find a lock, live or ended."""
        ...

    def by_request(self, principal: PrincipalId, request_id: str) -> LockRecord | None:
        """Find the newest lock that a request asked for."""
        ...

    def overlapping(self, scopes: Sequence[LockScope]) -> list[LockRecord]:
        """List live locks that overlap, in the order of asking."""
        ...

    def waits_of(self, owner: Owner) -> list[LockRecord]:
        """List what an owner waits for."""
        ...

    def of_session(self, session: SessionId) -> list[LockRecord]:
        """List the live locks of a session."""
        ...

    def live_count(self, principal: PrincipalId | None) -> int:
        """Count live locks, of one principal or of all."""
        ...

    def next_sequence(self) -> int:
        """Return the next number of the board's lock sequence."""
        ...

    def save(self, lock: LockRecord) -> None:
        """Keep a lock as it is now."""
        ...


def apply(table: LockTable, op: LockOp) -> LockVerdict:
    """Do what is asked, or raise the refusal; then nothing was saved."""
    match op:
        case AcquireLock():
            return _acquire(table, op)
        case ReleaseLock():
            return _release(table, op)
        case RevokeLock():
            return _revoke(table, op)
        case TransferLock():
            return _transfer(table, op)
        case ReapLocks():
            return LockVerdict(changed=tuple(_reap(table, op)))


# Acquire


def _acquire(table: LockTable, ask: AcquireLock) -> LockVerdict:
    principal, session = _check_asker(table, ask.asker)
    _check_session_alive(table, session)
    known = table.by_request(ask.asker.principal, ask.request_id)
    if known is not None and not hmac.compare_digest(known.fingerprint, ask.fingerprint):
        raise SlateboardError(
            Reason.REQUEST_ID_REUSED,
            f"request_id {ask.request_id} asked for another lock; ask for this one under a new request_id",
            request_id=ask.request_id,
        )
    if known is not None and known.state is not LockState.ABANDONED:
        if not known.state.live:
            raise lost(known, known.lock_id)
        taken_up = replace(known, attempt=ask.attempt)
        table.save(taken_up)
        blockers = () if known.state is LockState.HELD else tuple(_blockers(table, known))
        return LockVerdict(taken_up, blockers, replayed=True)
    for scope in ask.scopes:
        _check_right(principal, ask.mode, scope)
    _check_counts(table, ask.asker.principal)
    wanted = LockRecord(
        lock_id=ask.lock_id,
        number=table.next_sequence(),
        state=LockState.WAITING,
        mode=ask.mode,
        scopes=ask.scopes,
        principal=ask.asker.principal,
        session_id=None if session is None else SessionId(session.session_id),
        holder=ask.holder,
        purpose=ask.purpose,
        ttl=ask.ttl,
        asked=table.now,
        request_id=ask.request_id,
        fingerprint=ask.fingerprint,
        attempt=ask.attempt,
        max_hold=ask.max_hold,
    )
    blockers = tuple(_blockers(table, wanted))
    if not blockers:
        granted = _grant(table, wanted)
        return LockVerdict(granted, changed=(granted,))
    if not ask.wait:
        return LockVerdict(wanted, blockers)
    cycle = find_cycle(table, wanted.owner, blockers)
    if cycle:
        raise _deadlock(cycle)
    waiting = _save(table, wanted)
    return LockVerdict(waiting, blockers, changed=(waiting,))


def _blockers(table: LockTable, wanted: LockRecord) -> list[LockRecord]:
    """List what is in the way: held locks, and whoever asked earlier."""
    return [
        other
        for other in table.overlapping(wanted.scopes)
        if other.lock_id != wanted.lock_id
        and (other.state is LockState.HELD or other.number < wanted.number)
        and other.conflicts(wanted.mode, wanted.scopes)
    ]


def _grant(table: LockTable, lock: LockRecord) -> LockRecord:
    token = FencingToken(table.next_sequence())
    return _save(table, replace(lock, state=LockState.HELD, token=token, granted=table.now))


def _save(table: LockTable, lock: LockRecord) -> LockRecord:
    saved = replace(lock, sequence=table.next_sequence())
    table.save(saved)
    return saved


def find_cycle(
    table: LockTable, asker: Owner, blockers: Iterable[LockRecord], about_to_get: LockId | None = None
) -> list[Owner]:
    """Find who, waited for by `asker`, waits for `asker`: the owners from the asker on; empty where nobody does.

    A wait on one's own lock is a cycle of one, where the owner is one agent at work. Who waits for the lock `asker` is
    about to get counts as waiting for it.
    """
    came_from: dict[Owner, Owner] = {}
    to_visit: list[Owner] = []

    def follow(owner: Owner, locks: Iterable[LockRecord]) -> bool:
        for lock in locks:
            other = lock.owner
            if other == asker or lock.lock_id == about_to_get:
                if owner != asker or asker.one_at_a_time:
                    came_from[asker] = owner
                    return True
            elif other not in came_from:
                came_from[other] = owner
                to_visit.append(other)
        return False

    found = follow(asker, blockers)
    while to_visit and not found:
        owner = to_visit.pop()
        for waiting in table.waits_of(owner):
            if follow(owner, _blockers(table, waiting)):
                found = True
                break
    if not found:
        return []
    cycle = [asker]
    owner = came_from[asker]
    while owner != asker and len(cycle) < _MAX_CYCLE:
        cycle.append(owner)
        owner = came_from[owner]
    cycle[1:] = reversed(cycle[1:])
    return cycle


def _deadlock(cycle: Sequence[Owner]) -> SlateboardError:
    names = [_name(owner) for owner in (*cycle, cycle[0])]
    text = " -> ".join(names)
    message = (
        f"{names[0]} holds or waits for an overlapping lock itself, and locks are not reentrant; use the one it has"
        if len(cycle) == 1
        else f"waiting would never end: {text}; release what you hold and begin again"
    )
    return SlateboardError(Reason.DEADLOCK, message, cycle=text)


def _name(owner: Owner) -> str:
    return f"{owner.principal}({owner.session_id})" if owner.session_id else str(owner.principal)


# Ends


def _end(
    table: LockTable,
    lock: LockRecord,
    state: LockState,
    *,
    by: str = "",
    reason: str = "",
    request_id: str = "",
    successor: str = "",
) -> LockRecord:
    return _save(
        table,
        replace(
            lock,
            state=state,
            ended=table.now,
            ended_by=by,
            end_reason=reason,
            end_request_id=request_id,
            successor=successor,
        ),
    )


def _promote(
    table: LockTable, ended: Sequence[LockRecord], gone: Collection[LockId] = ()
) -> list[LockRecord]:
    """Grant what nothing is in the way of any more, in the order of asking. `gone` are about to end themselves."""
    freed = list(dict.fromkeys(scope for lock in ended for scope in lock.scopes))
    if not freed or not table.any_waiting:
        return []
    around = table.overlapping(freed)
    granted: list[LockRecord] = []
    for waiter in around:
        if waiter.state is not LockState.WAITING or waiter.lock_id in gone:
            continue
        # What lies around what was freed mostly decides; only a waiter it lets through needs the whole question.
        near = [other for other in around if other.number < waiter.number or other.state is LockState.HELD]
        if any(
            other.lock_id != waiter.lock_id and other.conflicts(waiter.mode, waiter.scopes)
            for other in (*granted, *near)
        ):
            continue
        if not _blockers(table, waiter):
            granted.append(_grant(table, waiter))
    return granted


def _release(table: LockTable, op: ReleaseLock) -> LockVerdict:
    _, session = _check_asker(table, op.asker)
    if op.attempt is not None:
        return _give_up(table, op)
    lock = _owned(table, op.asker, session, op.lock_id, op.token)
    match lock.state:
        case LockState.HELD | LockState.WAITING:
            end = LockState.RELEASED if lock.state is LockState.HELD else LockState.ABANDONED
            ended = _end(table, lock, end, by=lock.principal, request_id=op.request_id)
            changed = (ended, *_promote(table, [ended]))
            return LockVerdict(ended, outcome=ReleaseOutcome.RELEASED, changed=changed)
        case LockState.RELEASED | LockState.ABANDONED:
            again = lock.end_request_id == op.request_id
            outcome = ReleaseOutcome.RELEASED if again else ReleaseOutcome.ALREADY_RELEASED
        case LockState.EXPIRED:
            outcome = ReleaseOutcome.EXPIRED
        case LockState.REVOKED:
            outcome = ReleaseOutcome.REVOKED
        case _:
            outcome = ReleaseOutcome.TRANSFERRED
    return LockVerdict(lock, outcome=outcome, replayed=True)


def _give_up(table: LockTable, op: ReleaseLock) -> LockVerdict:
    lock = table.find(op.lock_id)
    if lock is None or not lock.state.live or lock.attempt != op.attempt:
        return LockVerdict(lock, replayed=True)
    state = LockState.RELEASED if lock.state is LockState.HELD else LockState.ABANDONED
    ended = _end(table, lock, state, by="server", reason="nobody was there to hear of the grant")
    return LockVerdict(ended, changed=(ended, *_promote(table, [ended])))


def _revoke(table: LockTable, op: RevokeLock) -> LockVerdict:
    principal, _ = _check_asker(table, op.asker)
    if not principal.leads:
        raise SlateboardError(
            Reason.DENIED,
            f"{principal.id} may not end locks of others; supervisors and operators may",
            action="force_release",
        )
    lock = table.find(op.lock_id)
    if lock is None or not any(may_see(principal, scope) for scope in lock.scopes):
        raise lost(None, op.lock_id)
    if lock.state is LockState.REVOKED and lock.end_request_id == op.request_id:
        return LockVerdict(lock, outcome=ReleaseOutcome.REVOKED, replayed=True)
    if lock.token != op.expected_token:
        raise SlateboardError(
            Reason.LOCK_LOST,
            f"lock {op.lock_id} does not have the token {op.expected_token} (any more); look again at who holds it",
            lock_id=op.lock_id,
        )
    if not lock.state.live:
        raise lost(lock, op.lock_id)
    ended = _end(
        table, lock, LockState.REVOKED, by=op.asker.principal, reason=op.reason, request_id=op.request_id
    )
    changed = (ended, *_promote(table, [ended]))
    return LockVerdict(ended, outcome=ReleaseOutcome.REVOKED, changed=changed)


def _transfer(table: LockTable, op: TransferLock) -> LockVerdict:
    _, session = _check_asker(table, op.asker)
    lock = _owned(table, op.asker, session, op.lock_id, op.token)
    if lock.state is LockState.TRANSFERRED and lock.end_request_id == op.request_id:
        successor = table.find(LockId(lock.successor))
        if successor is not None:
            return LockVerdict(successor, replayed=True)
    if lock.state is not LockState.HELD or lock.overdue_at(table.now):
        raise lost(lock, lock.lock_id)
    receiver = table.principal(op.to_principal)
    if receiver is None or receiver.disabled or not receiver.has_board(table.board):
        raise SlateboardError(
            Reason.PRINCIPAL_NOT_FOUND,
            f"there is no principal {op.to_principal!r} on this board to hand the lock to",
            id=op.to_principal,
        )
    for scope in lock.scopes:
        _check_right(receiver, lock.mode, scope)
    if op.to_session is not None:
        there = table.session(op.to_session)
        if there is None or there.principal != op.to_principal or not there.alive_at(table.now):
            raise SlateboardError(
                Reason.SESSION_DEAD,
                f"{op.to_principal} has no live session {op.to_session}; hand the lock to one that is at work",
                session_id=op.to_session,
            )
    _check_counts(table, op.to_principal)
    receiving = Owner(op.to_principal, op.to_session, "" if op.to_session else op.to_holder)
    for waiting in table.waits_of(receiving):
        cycle = find_cycle(table, receiving, _blockers(table, waiting), lock.lock_id)
        if cycle:
            raise _deadlock(cycle)
    ended = _end(
        table,
        lock,
        LockState.TRANSFERRED,
        by=lock.principal,
        request_id=op.request_id,
        successor=op.new_lock_id,
    )
    handed = _grant(
        table,
        replace(
            lock,
            lock_id=op.new_lock_id,
            principal=op.to_principal,
            session_id=op.to_session,
            holder=op.to_holder,
            ttl=op.ttl,
            request_id="",
            fingerprint=b"",
        ),
    )
    return LockVerdict(handed, changed=(ended, handed))


def _reap(table: LockTable, op: ReapLocks) -> list[LockRecord]:
    ended: list[LockRecord] = []
    for lock_id in sorted(op.dead | op.overdue):
        lock = table.find(lock_id)
        if lock is None or not lock.state.live:
            continue
        if lock_id in op.dead:
            state = LockState.EXPIRED if lock.state is LockState.HELD else LockState.ABANDONED
            ended.append(_end(table, lock, state, by="server", reason="its lease ended"))
        elif lock.overdue_at(table.now):
            ended.append(_end(table, lock, LockState.EXPIRED, by="server", reason="it was held for max_hold"))
    if op.session is not None:
        for lock in table.of_session(op.session):
            state = LockState.RELEASED if lock.state is LockState.HELD else LockState.ABANDONED
            ended.append(_end(table, lock, state, by="server", reason="its session ended"))
    return [*ended, *_promote(table, ended, op.dead)]


# Who asks


def _check_asker(table: LockTable, asker: Asker) -> tuple[Principal, SessionRecord | None]:
    principal = table.principal(asker.principal)
    if (
        principal is None
        or principal.disabled
        or (asker.token_id is not None and not table.token_alive(asker.token_id))
    ):
        raise SlateboardError(
            Reason.TOKEN_INVALID, "the credential is no longer accepted; get a new token from an operator"
        )
    if not principal.has_board(table.board):
        raise board_not_found(table.board)
    if asker.session is None:
        return principal, None
    session = table.session(asker.session.session_id)
    if (
        session is None
        or session.principal != asker.principal
        or not hmac.compare_digest(session.secret_hash, asker.session.secret_hash)
    ):
        raise SlateboardError(
            Reason.SESSION_NOT_FOUND,
            "the session token is not one of this board and principal; start a session",
        )
    return principal, session


def _check_session_alive(table: LockTable, session: SessionRecord | None) -> None:
    if session is not None and not session.alive_at(table.now):
        how = "ended" if session.ended is not None else "missed its heartbeats and went stale"
        raise SlateboardError(
            Reason.SESSION_DEAD,
            f"session {session.session_id} {how}; start a session before asking for locks",
            session_id=session.session_id,
        )


def _check_right(principal: Principal, mode: LockMode, scope: LockScope) -> None:
    action = Action.WRITE if mode is LockMode.EXCLUSIVE else Action.LOCK
    if principal.may(action, scope.region, scope.path) and not is_reserved(scope.path):
        return
    whole = "all of " if scope.is_subtree else ""
    verb = "write" if action is Action.WRITE else "lock"
    kind = "an exclusive" if mode is LockMode.EXCLUSIVE else "a shared"
    raise SlateboardError(
        Reason.DENIED,
        f"{principal.id} may not {verb} {whole}{scope.region}:{scope.path or '/'}, which {kind} lock needs",
        action=verb,
        region=scope.region,
        key=scope.path,
    )


def _check_counts(table: LockTable, principal: PrincipalId) -> None:
    if table.live_count(principal) >= MAX_LOCKS_PER_PRINCIPAL:
        raise SlateboardError(
            Reason.QUOTA,
            f"{principal} holds or waits for {MAX_LOCKS_PER_PRINCIPAL} locks on this board already; release some",
            quota="locks_per_principal",
            limit=MAX_LOCKS_PER_PRINCIPAL,
        )
    if table.max_locks and table.live_count(None) >= table.max_locks:
        raise SlateboardError(
            Reason.QUOTA,
            f"{table.max_locks} locks are held or waited for on this board, its quota; release some",
            quota="max_locks",
            limit=table.max_locks,
        )


def may_see(principal: Principal, scope: LockScope) -> bool:
    """Tell whether a lock's scope concerns what a principal can read."""
    if scope.is_subtree:
        return principal.may_read_some(scope.region, scope.path)
    return principal.may(Action.READ, scope.region, scope.path)


def _owned(
    table: LockTable, asker: Asker, session: SessionRecord | None, lock_id: LockId, token: FencingToken
) -> LockRecord:
    """Find the asker's own lock; any other one answers like one that never was."""
    lock = table.find(lock_id)
    session_id = None if session is None else session.session_id
    if (
        lock is None
        or lock.principal != asker.principal
        or (lock.session_id is not None and lock.session_id != session_id)
        or lock.token != token
    ):
        # A waiter that gives up may have been granted the lock at the same moment: it does not know the token yet.
        if (
            lock is not None
            and not token
            and lock.principal == asker.principal
            and lock.session_id == session_id
        ):
            return lock
        raise lost(None, lock_id)
    return lock


def lost(lock: LockRecord | None, lock_id: LockId) -> SlateboardError:
    """Say that a lock is not held (any more), and how it ended as far as the caller may know. `lock` None: no more."""
    reason, how = Reason.LOCK_LOST, "is not held by this caller with this token"
    if lock is not None:
        match lock.state:
            case LockState.HELD | LockState.EXPIRED:
                reason = Reason.LOCK_EXPIRED
                how = "was held for max_hold" if "max_hold" in lock.end_reason else "is past its lease's end"
            case LockState.REVOKED:
                reason = Reason.LOCK_REVOKED
                how = f"was ended by {lock.ended_by}: {lock.end_reason}"
            case LockState.RELEASED:
                how = "was released" + (f": {lock.end_reason}" if lock.end_reason else "")
            case LockState.TRANSFERRED:
                how = "was handed on"
            case LockState.WAITING | LockState.ABANDONED:
                reason = Reason.LOCK_EXPIRED if "lease" in lock.end_reason else Reason.LOCK_LOST
                how = "was never granted" + (f": {lock.end_reason}" if lock.end_reason else "")
    return SlateboardError(
        reason, f"lock {lock_id} {how}; stop the protected work and acquire again", lock_id=lock_id
    )
