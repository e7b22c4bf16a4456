"""The fence: what held locks and presented claims mean for a commit, decided where the data is written.

It stands before a new holder hears of its grant: the old holder's row was ended under the board's row lock before the new
one was made, so a commit that comes later with the old token finds it ended, however long its writer was away.
"""

from __future__ import annotations

from slateboard_server.domain.batch import Batch
from slateboard_server.domain.commit import Append, CommitItem
from slateboard_server.domain.conflict import Violation
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.locking import lost
from slateboard_server.domain.locks import LockMode, LockRecord, LockState
from slateboard_server.domain.principal import Action, Principal
from slateboard_server.domain.values import LockId, SessionId


def check_claims(batch: Batch, item: CommitItem, session_id: SessionId | None) -> frozenset[LockId]:
    """Return the exclusive locks that the commit's claims prove; raises for one that is not held with its token.

    A commit made in a session may claim locks of that session and sessionless ones of its principal.
    """
    if item.claims and item.claims_unchecked:
        raise SlateboardError(
            Reason.LOCK_BACKEND_DOWN,
            "whether the claimed locks are alive cannot be checked now; commits without claims go on: retry with the same"
            " request_id",
        )
    exclusive: list[LockId] = []
    for claim in item.claims:
        lock = batch.picture.claimed.get(claim.lock_id)
        if lock is None or lock.principal != item.principal or lock.session_id not in {None, session_id}:
            raise lost(None, claim.lock_id)
        if (
            lock.state is not LockState.HELD
            or claim.lock_id in item.dead_claims
            or lock.overdue_at(batch.now)
        ):
            raise lost(lock, claim.lock_id)
        if lock.token != claim.token:
            raise lost(None, claim.lock_id)
        if lock.mode is LockMode.EXCLUSIVE:
            exclusive.append(claim.lock_id)
    return frozenset(exclusive)


def lock_violations(
    batch: Batch, item: CommitItem, principal: Principal | None, claimed: frozenset[LockId]
) -> list[Violation]:
    """List the ops that write what a held lock covers and the commit does not claim. `principal` None: the server."""
    held = [lock for lock in batch.picture.held if not lock.overdue_at(batch.now)]
    if not held:
        return []
    found: list[Violation] = []
    for index, op in enumerate(item.ops):
        path = op.prefix if isinstance(op, Append) else op.key
        for lock in held:
            if lock.lock_id in claimed or not any(scope.covers(op.region, path) for scope in lock.scopes):
                continue
            if not batch.board.policy.locks_bind(op.region, path):
                continue
            if principal is not None and not principal.may(Action.READ, op.region, path):
                found.append(
                    Violation(
                        index, False, op.region, path, "no lock of others", Reason.KEY_LOCKED, hidden=True
                    )
                )
            else:
                found.append(
                    Violation(
                        index=index,
                        guard=False,
                        region=op.region,
                        key=path,
                        expected=_expected(lock, item),
                        reason=Reason.KEY_LOCKED,
                        lock_holder=lock.principal,
                        lock_id=lock.lock_id,
                    )
                )
            break
    return found


def _expected(lock: LockRecord, item: CommitItem) -> str:
    if lock.mode is LockMode.SHARED:
        return "no shared lock, under which nobody writes"
    if lock.principal == item.principal:
        return "the claim of your own lock: write through it"
    return "no lock of others"
