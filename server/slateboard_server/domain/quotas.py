"""What a commit does to the usage counters of a board, and whether their quotas bear it.

An entry counts until a version takes its place: one that expired counts until it is overwritten or its expiry is
recorded, since its bytes are there until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from slateboard_server.domain.changes import Change
from slateboard_server.domain.commit import Advice
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.limits import SOFT_LIMIT_SHARE
from slateboard_server.domain.picture import BoardState
from slateboard_server.domain.policy import CounterKey, Policy, Quota, Scope, Usage
from slateboard_server.domain.values import SECOND, Micros, Tombstone

_NOTHING = Usage()


def usage_after(
    board: BoardState, changes: Sequence[Change], now: Micros, *, rated: bool
) -> dict[CounterKey, Usage]:
    """Return the counters that a commit touches, as they would be after it.

    The board's own counter is always touched, that of a rule where something under its prefix changes. `rated`: the
    commit counts against commits a second (the server's own do not).
    """
    usage: dict[CounterKey, Usage] = {}
    window = now // SECOND
    for counter, _ in board.policy.counters():
        is_board = counter.scope is Scope.BOARD
        entries = size = 0
        touched = is_board
        for change in changes:
            after = change.after
            if after is None or not (is_board or counter.covers(change.region, change.key)):
                continue
            touched = True
            if after.tombstone is Tombstone.NONE:
                entries += 1
                size += after.size
            before = change.before
            if before is not None and before.tombstone is Tombstone.NONE:
                entries -= 1
                size -= before.size
        if touched:
            kept = board.usage.get(counter, _NOTHING)
            commits = kept.commits if kept.window == window else 0
            usage[counter] = Usage(kept.entries + entries, kept.bytes + size, window, commits + rated)
    return usage


def check_quotas(
    board: BoardState, usage: dict[CounterKey, Usage], now: Micros, advice: list[Advice]
) -> None:
    """Refuse what no quota bears: QUOTA or RATE_LIMITED. Adds to `advice` where a limit is near.

    A commit that shrinks what is there passes even above the limit: deleting must always be possible.
    """
    policy: Policy = board.policy
    if not policy.has_quotas:
        return
    for counter, quota in policy.counters():
        after = usage.get(counter)
        if after is not None and quota.is_set:
            _check_quota(counter, quota, board.usage.get(counter, _NOTHING), after, now, advice)


def _check_quota(
    counter: CounterKey, quota: Quota, before: Usage, after: Usage, now: Micros, advice: list[Advice]
) -> None:
    is_board = counter.scope is Scope.BOARD
    where = "the board" if is_board else f"{counter.scope.name.lower()}:{counter.prefix or '/'}"
    if quota.max_commits_per_second and after.commits > quota.max_commits_per_second:
        wait = SECOND - now % SECOND
        raise SlateboardError(
            Reason.RATE_LIMITED,
            f"{where} takes {quota.max_commits_per_second} commits a second; slow down",
            retry_after=timedelta(microseconds=wait),
            quota="max_commits_per_second",
            limit=quota.max_commits_per_second,
            retry_after_ms=-(-wait // 1000),
        )
    for what, limit, old, new in (
        ("entries", quota.max_entries, before.entries, after.entries),
        ("bytes", quota.max_bytes, before.bytes, after.bytes),
    ):
        if not limit or new <= old:
            continue
        if new > limit:
            raise SlateboardError(
                Reason.QUOTA,
                f"{where} holds {old} {what} of at most {limit} and this commit would make it {new}; delete something,"
                " or have the policy changed",
                quota=f"max_{what}",
                limit=limit,
                actual=new,
            )
        if new >= limit * SOFT_LIMIT_SHARE:
            advice.append(
                Advice(
                    f"QUOTA_{what.upper()}_SOFT",
                    f"{where} holds {new} {what} of at most {limit}; writes stop there",
                )
            )
