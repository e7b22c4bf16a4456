"""What must hold of a board, worked out from the versions that were written and nothing else: a tiny model of a board."""

from __future__ import annotations

from slateboard_server.domain.commit import Append, CommitItem, Expect, Precondition, VersionGuard
from slateboard_server.domain.entry import OpRef
from slateboard_server.domain.errors import Reason
from slateboard_server.domain.etag import make_etag
from slateboard_server.domain.judge import Accepted, Replayed, Validated, Verdict
from slateboard_server.domain.values import Region, Trust
from tests.judging import INCARNATION, SECRET, Shelf


def _meets(shelf: Shelf, wanted: Precondition, region: Region, key: str) -> bool:
    """Work out from the versions on the shelf whether a precondition holds."""
    there = shelf.present(key, region)
    if wanted.expect is Expect.ANY:
        return True
    if wanted.expect is Expect.ABSENT:
        return there is None
    if there is None:
        return False
    if wanted.expect is Expect.VERSION:
        return there.version == wanted.version
    if wanted.expect is Expect.ETAG:
        return make_etag(SECRET, INCARNATION, region, key, there.version) == wanted.etag
    return True


def unmet(shelf: Shelf, item: CommitItem) -> list[tuple[bool, int]]:
    """List the (is a guard, index) of everything in a commit that does not hold of the board as it is."""
    found: list[tuple[bool, int]] = []
    for index, op in enumerate(item.ops):
        if not isinstance(op, Append) and not _meets(shelf, op.precondition, op.region, op.key):
            found.append((False, index))
    for index, guard in enumerate(item.guards):
        if isinstance(guard, VersionGuard):
            there = shelf.present(guard.key, guard.region)
            broken = guard.version != (0 if there is None else there.version)
        else:
            broken = any(
                record.region == guard.region
                and record.key.startswith(guard.prefix)
                and record.mod_revision > guard.since
                for history in shelf.versions.values()
                for record in history
            )
        if broken:
            found.append((True, index))
    return found


def check_verdict(before: Shelf, item: CommitItem, verdict: Verdict) -> None:
    """Hold one verdict to the promises, given the shelf as it was before it."""
    if isinstance(verdict, Accepted | Validated):
        assert unmet(before, item) == []
        assert verdict.answer.revision == before.head + 1
        _check_trust(before, item, verdict)
    elif isinstance(verdict, Replayed):
        assert verdict.answer == before.replays[item.principal, item.request_id].answer
    elif verdict.error.conflict is not None:
        told = [(violation.guard, violation.index) for violation in verdict.error.conflict.violations]
        assert told == unmet(before, item)
        assert verdict.error.reason in {Reason.VERSION_CONFLICT, Reason.GUARD_CHANGED}


def _check_trust(before: Shelf, item: CommitItem, verdict: Accepted | Validated) -> None:
    ceiling = Trust.SYSTEM if item.internal else before.principals[item.principal].trust_ceiling
    outcomes = verdict.answer.outcomes
    for op, outcome in zip(item.ops, outcomes, strict=True):
        assert outcome.trust <= ceiling
        new = getattr(op, "content", None)
        if new is None:
            continue
        assert new.trust is None or outcome.trust <= new.trust
        for derivation in new.derivations:
            for named in derivation:
                if isinstance(named, OpRef):
                    assert outcome.trust <= outcomes[named.op].trust
                else:
                    history = before.versions[named.region, named.key]
                    assert outcome.trust <= history[named.version - 1].trust


def check_shelf(shelf: Shelf) -> None:
    """Hold the whole board to the promises."""
    assert [logged.commit.revision for logged in shelf.log] == list(range(1, shelf.head + 1))
    for history in shelf.versions.values():
        assert [record.version for record in history] == list(range(1, len(history) + 1))
        revisions = [record.mod_revision for record in history]
        assert revisions == sorted(set(revisions))
    for counter, _ in shelf.policy.counters():
        usage = shelf.usage.get(counter)
        counted = (0, 0) if usage is None else (usage.entries, usage.bytes)
        assert counted == shelf.recount(counter)
