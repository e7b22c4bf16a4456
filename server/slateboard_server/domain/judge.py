"""The judge: decides every commit of a batch, in arrival order, against one picture of the board.

Pure: no I/O, no clock, no randomness. It takes what `picture.needs` asked for, `now` and the batch, and gives one
verdict per commit together with the versions to write. A commit is judged on what the accepted ones before it left, so
a batch gives exactly the verdicts that the same commits would get one by one.

Order within a commit, the same for every caller; the first that fails is the answer:

1. the credential is alive, the principal enabled and part of the board; the rights to every written key and every guard
2. replay: a stored answer for (principal, request_id) is given again, whatever has happened since
3. origin: incarnation, also of etags; revisions of guards lie on this board and above its floor
4. session, claims; then the locks over what is written (`claims.py`)
5. op by op: policy (read-only, any_state), names, sources, trust, expiry, trust floor (`changes.py`)
6. quotas and rates (`quotas.py`)
7. preconditions and guards: all violations are listed (`preconditions.py`)
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from slateboard_server.domain.batch import Batch
from slateboard_server.domain.changes import Change, make_changes
from slateboard_server.domain.claims import check_claims, lock_violations
from slateboard_server.domain.commit import (
    Advice,
    Append,
    CommitAnswer,
    CommitItem,
    Expect,
    OpOutcome,
    PrefixGuard,
)
from slateboard_server.domain.conflict import Conflict, Violation
from slateboard_server.domain.entry import CommitRecord, LoggedCommit
from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.etag import of_other_incarnation
from slateboard_server.domain.names import is_reserved
from slateboard_server.domain.picture import BoardState, Picture, StoredAnswer
from slateboard_server.domain.preconditions import violations
from slateboard_server.domain.principal import Action, Principal
from slateboard_server.domain.quotas import check_quotas, usage_after
from slateboard_server.domain.values import LockId, PrincipalId, Region, Revision, SessionId, Version

RETRY_AFTER: Final = timedelta(milliseconds=25)
"""What a conflict suggests to wait before reading again; clients add jitter."""
RETRY_LOCKED_AFTER: Final = timedelta(milliseconds=250)
"""What it suggests where a lock is in the way: that takes longer than another commit."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The commit happens: what to write and what to answer."""

    logged: LoggedCommit
    answer: CommitAnswer
    stored: tuple[PrincipalId, str, StoredAnswer] | None
    """What to keep for retries; None for the server's own commits."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """An earlier commit with the same request_id is answered again."""

    answer: CommitAnswer


@dataclass(frozen=True, slots=True)
class Validated:
    """A validate_only commit would have been accepted like this."""

    answer: CommitAnswer


@dataclass(frozen=True, slots=True)
class Refused:
    """The commit does not happen. With contention `error.conflict` is set, with all violations."""

    error: SlateboardError

    @property
    def to_keep(self) -> Conflict | None:
        """The conflict that is to be kept for inspection; None also for a validate_only, which writes nothing."""
        conflict = self.error.conflict
        return conflict if conflict is not None and conflict.kept else None


Verdict: TypeAlias = Accepted | Replayed | Validated | Refused


def judge(picture: Picture, items: Sequence[CommitItem], batch_id: str) -> list[Verdict]:
    """Judge a batch in arrival order; `batch_id` names the transaction and its conflicts.

    Moves `picture.board` on (head, time, usage). The rest of the picture stays as it was loaded: it serves one batch.
    """
    batch = Batch(picture, batch_id)
    verdicts: list[Verdict] = []
    for index, item in enumerate(items):
        try:
            verdicts.append(_judge_one(batch, item, index))
        except SlateboardError as error:
            verdicts.append(Refused(error))
    return verdicts


def _judge_one(batch: Batch, item: CommitItem, index: int) -> Verdict:
    """Decide one commit; raises the refusal. Nothing is changed before everything is decided."""
    principal = None if item.internal else _authorise(batch, item)
    replayed = _replay(batch, item)
    if replayed is not None:
        return replayed
    _check_origin(batch.board, item)
    session_id = None if item.session is None else _check_session(batch, item)
    claimed = check_claims(batch, item, session_id) if item.claims else frozenset[LockId]()
    if batch.picture.held:
        locked = lock_violations(batch, item, principal, claimed)
        if locked:
            raise _conflict(batch, item, index, session_id, locked)
    board, now = batch.board, batch.now
    advice: list[Advice] = []
    changes = make_changes(batch, item, principal, session_id, advice)
    usage = usage_after(board, changes, now, rated=not item.internal)
    if not item.internal:
        check_quotas(board, usage, now, advice)
    violated = violations(batch, item, principal)
    if violated:
        raise _conflict(batch, item, index, session_id, violated)
    revision = Revision(board.head + 1)
    commit_id = f"{board.incarnation}-{revision}"
    answer = CommitAnswer(
        revision, commit_id, now, tuple([_outcome(change) for change in changes]), tuple(advice)
    )
    if item.validate_only:
        return Validated(answer)
    logged = LoggedCommit(
        CommitRecord(
            revision, commit_id, batch.batch_id, item.principal, session_id, item.request_id, now, item.note
        ),
        tuple([change.after for change in changes if change.after is not None]),
    )
    stored = None if item.internal else StoredAnswer(item.fingerprint, answer)
    batch.accept(item, logged, usage, stored)
    return Accepted(logged, answer, None if stored is None else (item.principal, item.request_id, stored))


# 1. Who may


def _authorise(batch: Batch, item: CommitItem) -> Principal:
    principal = batch.picture.principals.get(item.principal)
    if (
        principal is None
        or principal.disabled
        or (item.token_id is not None and item.token_id not in batch.picture.live_tokens)
    ):
        raise SlateboardError(
            Reason.TOKEN_INVALID, "the credential is no longer accepted; get a new token from an operator"
        )
    if not principal.has_board(batch.board.name):
        raise board_not_found(batch.board.name)
    for op in item.ops:
        if isinstance(op, Append):
            action, path = Action.APPEND, op.prefix
        else:
            action, path = Action.WRITE, op.key
        if not principal.may(action, op.region, path) or is_reserved(path):
            raise _denied(principal, action, op.region, path)
    for guard in item.guards:
        path = guard.prefix if isinstance(guard, PrefixGuard) else guard.key
        if not principal.may(Action.READ, guard.region, path):
            raise _denied(principal, Action.READ, guard.region, path)
    return principal


def _denied(principal: Principal, action: Action, region: Region, path: str) -> SlateboardError:
    verb = action.name.lower()
    if action is not Action.READ and is_reserved(path):
        message = f"{region}:{path} is reserved: only the server's own services write there"
    else:
        message = f"{principal.id} may not {verb} {region}:{path or '/'}; ask an operator for the right"
    return SlateboardError(Reason.DENIED, message, action=verb, region=region, key=path)


# 2. Replay


def _replay(batch: Batch, item: CommitItem) -> Replayed | None:
    if item.validate_only or not item.request_id:
        return None
    stored = batch.replay(item.principal, item.request_id)
    if stored is None:
        return None
    if not hmac.compare_digest(stored.fingerprint, item.fingerprint):
        raise SlateboardError(
            Reason.REQUEST_ID_REUSED,
            f"request_id {item.request_id} was used for another commit (revision {stored.answer.revision}); send other"
            " content under a new request_id",
            request_id=item.request_id,
            revision=stored.answer.revision,
        )
    return Replayed(stored.answer)


# 3. Where the request's knowledge comes from


def _check_origin(board: BoardState, item: CommitItem) -> None:
    if item.incarnation is not None and item.incarnation != board.incarnation:
        raise _reincarnated(board)
    for op in item.ops:
        if (
            not isinstance(op, Append)
            and op.precondition.expect is Expect.ETAG
            and of_other_incarnation(op.precondition.etag, board.incarnation)
        ):
            raise _reincarnated(board)
    for index, guard in enumerate(item.guards):
        if isinstance(guard, PrefixGuard):
            _check_guarded_revision(board, guard, index)


def _check_guarded_revision(board: BoardState, guard: PrefixGuard, index: int) -> None:
    if guard.since > board.head:
        raise SlateboardError(
            Reason.FUTURE_REVISION,
            f"guards[{index}] speaks of revision {guard.since}, the board is at {board.head}; check which board and"
            " incarnation the revision came from",
            field=f"guards[{index}]",
            revision=board.head,
        )
    if board.floor > 1 and guard.since < board.floor:
        # Compaction forgets deletes up to the floor: one in between could not be seen, and would be a phantom.
        raise SlateboardError(
            Reason.COMPACTED,
            f"guards[{index}] speaks of revision {guard.since}, the board remembers changes from {board.floor} on; read"
            " the prefix again",
            field=f"guards[{index}]",
            oldest_revision=board.floor,
        )


def _reincarnated(board: BoardState) -> SlateboardError:
    return SlateboardError(
        Reason.BOARD_REINCARNATED,
        "the board began a new life since these versions, etags or revisions were read; read the present state again",
        incarnation=board.incarnation,
    )


# 4. Session


def _check_session(batch: Batch, item: CommitItem) -> SessionId:
    claim = item.session
    assert claim is not None  # called only with one
    session = batch.picture.sessions.get(claim.session_id)
    if (
        session is None
        or session.principal != item.principal
        or not hmac.compare_digest(session.secret_hash, claim.secret_hash)
    ):
        raise SlateboardError(
            Reason.SESSION_NOT_FOUND,
            "the session token is not one of this board and principal; start a session",
        )
    if not session.alive_at(batch.now):
        how = "ended" if session.ended is not None else "missed its heartbeats and went stale"
        raise SlateboardError(
            Reason.SESSION_DEAD,
            f"session {session.session_id} {how}; others may have taken over its work: start a session and read again",
            session_id=session.session_id,
        )
    return claim.session_id


# The answers


def _outcome(change: Change) -> OpOutcome:
    after = change.after
    if after is None:
        return OpOutcome(change.region, change.key, Version(0), change.trust, changed=False)
    return OpOutcome(
        change.region, change.key, after.version, change.trust, True, after.expire_time, after.create_revision
    )


def _conflict(
    batch: Batch,
    item: CommitItem,
    index: int,
    session_id: SessionId | None,
    violated: Sequence[Violation],
) -> SlateboardError:
    first = violated[0]
    reason = Reason(first.reason)
    locked = reason is Reason.KEY_LOCKED
    conflict = Conflict(
        conflict_id=f"c-{batch.batch_id}-{index}",
        time=batch.now,
        principal=item.principal,
        session_id=session_id,
        request_id=item.request_id,
        reason=reason,
        revision=batch.board.head,
        violations=tuple(violated),
        kept=not item.validate_only,
    )
    if first.hidden:
        found = "something else"
    elif locked:
        found = f"lock {first.lock_id} of {first.lock_holder}"
    elif not first.current_version:
        found = "absent"
    else:
        found = f"version {first.current_version}"
        if first.current_principal:
            found += f", written by {first.current_principal}"
    more = f" (and {len(violated) - 1} more)" if len(violated) > 1 else ""
    what_to_do = "wait for the lock, or write with its claim" if locked else "read it again and decide again"
    return SlateboardError(
        reason,
        f"{first.region}:{first.key}: expected {first.expected}, found {found}{more}; {what_to_do}",
        conflict=conflict,
        retry_after=RETRY_LOCKED_AFTER if locked else RETRY_AFTER,
        conflict_id=conflict.conflict_id if conflict.kept else None,
        region=first.region,
        key=first.key,
        current_version=None if first.hidden or locked else first.current_version,
        lock_id=first.lock_id or None,
        holder=first.lock_holder or None,
    )
