"""Whether what a commit expects of the board holds: its preconditions and guards, and all that does not.

An entry that has expired is absent here, recorded or not. Everything is compared with the board as it was before the
commit: an op of the commit is never in the way of another op or guard of it.
"""

from __future__ import annotations

import hmac

from slateboard_server.domain.batch import Batch, State
from slateboard_server.domain.commit import Append, CommitItem, Delete, Expect, PrefixGuard, Put, VersionGuard
from slateboard_server.domain.conflict import Violation
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.etag import make_etag
from slateboard_server.domain.principal import Action, Principal
from slateboard_server.domain.values import Key, Region, Tombstone, Version


def violations(batch: Batch, item: CommitItem, principal: Principal | None) -> list[Violation]:
    """List every precondition, then every guard, that does not hold. `principal` None: the server itself."""
    found: list[Violation] = []
    for index, op in enumerate(item.ops):
        if isinstance(op, Append):
            continue
        state = batch.state(op.region, op.key)
        if not _holds(batch, op, state):
            violation = _of_key(
                batch, principal, index, op.region, op.key, op.precondition.in_words(), state, is_guard=False
            )
            found.append(violation)
    for index, guard in enumerate(item.guards):
        broken = (
            _version_guard(batch, principal, index, guard)
            if isinstance(guard, VersionGuard)
            else _prefix_guard(batch, index, guard)
        )
        if broken is not None:
            found.append(broken)
    return found


def _holds(batch: Batch, op: Put | Delete, state: State | None) -> bool:
    wanted = op.precondition
    present = state is not None and state.present_at(batch.now)
    if isinstance(op, Delete) and op.tombstone is Tombstone.EXPIRED:
        # The sweeper speaks of a value that is absent to everybody else already. By the board's own time: the sweeper's
        # clock may have been ahead of it, and a value that still lives must not go.
        return (
            state is not None
            and state.tombstone is Tombstone.NONE
            and not present
            and state.version == wanted.version
        )
    match wanted.expect:
        case Expect.VERSION:
            return state is not None and present and state.version == wanted.version
        case Expect.ABSENT:
            return not present
        case Expect.PRESENT:
            return present
        case Expect.ANY:
            return True
        case Expect.ETAG:
            if state is None or not present:
                return False
            board = batch.board
            etag = make_etag(board.etag_secret, board.incarnation, op.region, op.key, state.version)
            return hmac.compare_digest(etag, wanted.etag)


def _version_guard(
    batch: Batch, principal: Principal | None, index: int, guard: VersionGuard
) -> Violation | None:
    state = batch.state(guard.region, guard.key)
    current = state.version if state is not None and state.present_at(batch.now) else 0
    if current == guard.version:
        return None
    expected = f"version {guard.version}" if guard.version else "absent"
    return _of_key(batch, principal, index, guard.region, guard.key, expected, state, is_guard=True)


def _prefix_guard(batch: Batch, index: int, guard: PrefixGuard) -> Violation | None:
    change = batch.change_under(guard.region, guard.prefix, guard.since)
    if change is None:
        return None
    # Who may guard a prefix may read all of it: there is nothing to hide.
    return Violation(
        index=index,
        guard=True,
        region=guard.region,
        key=change.key,
        expected=f"prefix {guard.prefix or '(all)'} unchanged since {guard.since}",
        reason=Reason.GUARD_CHANGED,
        current_version=change.version,
        current_mod_revision=change.revision,
        current_principal=change.principal,
        current_session_id=change.session_id,
        current_commit_time=change.commit_time,
    )


def _of_key(
    batch: Batch,
    principal: Principal | None,
    index: int,
    region: Region,
    key: Key,
    expected: str,
    state: State | None,
    *,
    is_guard: bool,
) -> Violation:
    """Describe a violation, without the present state where the principal may write the key but not read it."""
    reason = Reason.GUARD_CHANGED if is_guard else Reason.VERSION_CONFLICT
    if principal is not None and not principal.may(Action.READ, region, key):
        return Violation(index, is_guard, region, key, expected, reason, hidden=True)
    if state is None:
        return Violation(index, is_guard, region, key, expected, reason)
    return Violation(
        index=index,
        guard=is_guard,
        region=region,
        key=key,
        expected=expected,
        reason=reason,
        current_version=state.version if state.present_at(batch.now) else Version(0),
        current_mod_revision=state.mod_revision,
        current_principal=state.principal or None,
        current_session_id=state.session_id,
        current_commit_time=state.commit_time or None,
    )
