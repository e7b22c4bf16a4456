"""Read, change, commit; and again, without overwriting anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from random import random
from typing import TYPE_CHECKING, Any

from slateboard import _shim_async as shim
from slateboard._async.core import AsyncCore
from slateboard._async.reading import Missing
from slateboard._entries import Entry, Updated
from slateboard._merge import ABSENT
from slateboard._ops import ContentOptions, Guard, Put
from slateboard._overlap import Draft, Overlap
from slateboard._retry import backoff
from slateboard._shim_async import MaybeAwaitable
from slateboard._values import Duration, Value
from slateboard._written import written
from slateboard.errors import Conflict, NotFound

if TYPE_CHECKING:
    from slateboard._async.reading import AsyncReader


async def update(
    board: AsyncReader,
    core: AsyncCore,
    key: str,
    fn: Callable[[Any], MaybeAwaitable[Value]],
    default: Value | Missing,
    *,
    on_conflict: Callable[[Overlap], MaybeAwaitable[Value]] | None,
    region: str,
    unchanged: Sequence[Guard],
    timeout: Duration | None,
    options: ContentOptions,
) -> Updated:
    """See `board.update`."""
    until = shim.monotonic() + core.calls.seconds(timeout)
    entry = await board.get(key, None, region=region, timeout=timeout)
    if entry is None and isinstance(default, Missing):
        raise NotFound(
            f"nothing is stored under {key!r} in {region!r}, or you may not see it. Pass a default to start from",
            reason="KEY_NOT_FOUND",
            metadata={"region": region, "key": key},
        )
    draft = Draft(key, entry, ABSENT if isinstance(default, Missing) else default)
    argument = draft.argument()
    draft.mine = draft.answer(argument, await shim.settle(fn(argument)))
    while draft.changed:
        op = Put(
            key,
            draft.mine,
            expect=draft.entry,
            absent=draft.entry is None,
            region=region,
            **draft.options(options),
        )
        left = max(0.001, until - shim.monotonic())
        try:
            result = await core.commit([op], unchanged, region=region, timeout=left)
        except Conflict as error:
            if any(
                violation.guard or (violation.region, violation.key) != (region, key)
                for violation in error.violations
            ):
                raise
            await _pause(core, error, draft.conflicts + 1, until)
            left = max(0.001, until - shim.monotonic())
            theirs = await board.get(key, None, region=region, timeout=left)
            await _take_in(draft, theirs, error, fn, on_conflict)
            continue
        if draft.merged:
            core.counters.add("merged")
        return _updated(written(core.name, op, result, 0), draft, changed=True)
    assert draft.entry is not None
    return _updated(draft.entry, draft, changed=False)


async def _take_in(
    draft: Draft,
    theirs: Entry | None,
    error: Conflict,
    fn: Callable[[Any], MaybeAwaitable[Value]],
    on_conflict: Callable[[Overlap], MaybeAwaitable[Value]] | None,
) -> None:
    """Brings the draft up to date with what is there now, or raises Conflict."""
    places = draft.rebase(theirs)
    if not places:
        return
    if on_conflict is not None:
        draft.settle(theirs, await shim.settle(on_conflict(draft.overlap(theirs, places))))
        return
    if theirs is None and draft.default is ABSENT:
        raise draft.refused(error, places) from error
    argument = draft.started_from(theirs)
    before = draft.started_from(theirs)
    second = draft.answer(argument, await shim.settle(fn(argument)), before)
    insisted = draft.rerun(theirs, second, places)
    if insisted:
        raise draft.refused(error, insisted) from error


async def _pause(core: AsyncCore, error: Conflict, failures: int, until: float) -> None:
    """Waits before the next attempt; raises the conflict if there is none."""
    policy = core.calls.retry
    pause = backoff(policy, failures, random(), error)  # noqa: S311 -- spreads retries, guards nothing
    if failures >= policy.conflict_attempts or shim.monotonic() + pause >= until:
        raise error
    await shim.sleep(pause)


def _updated(entry: Entry, draft: Draft, *, changed: bool) -> Updated:
    same = {field.name: getattr(entry, field.name) for field in fields(Entry) if field.init}
    return Updated(**same, conflicts=draft.conflicts, merged=draft.merged, reran=draft.reran, changed=changed)
