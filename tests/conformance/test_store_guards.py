"""Prefix guards: right on whichever way the newest change is looked for, and no dearer on a large board."""

import pytest

from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted
from slateboard_server.storage import batch
from slateboard_server.storage.sqlite import SqliteEngine
from tests.judging import ABSENT, ANY, at_version, commit, delete, no_change_under, put
from tests.storing import Desk

WAYS = {
    "along the log": (1 << 30, 1, 0),
    "over few keys": (-1, 1_000, 1 << 30),
    "along a long log over many keys": (-1, 1, 1 << 30),
    "the newest of the log, then the keys": (-1, 1, 2),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_prefix_guard_names_the_newest_change_on_every_way(
    desk: Desk, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("_GUARD_NEAR", "_GUARD_FEW", "_GUARD_FAR"), WAYS[way], strict=True):
        monkeypatch.setattr(batch, name, value)
    await desk.commit(put("plan/a", ABSENT), put("plan", ABSENT), put("planner/x", ABSENT))
    await desk.commit(put("plan/b", ABSENT), put("plan/c", ABSENT))
    await desk.commit(delete("plan/b", at_version(1)))
    for number in range(4):
        await desk.commit(put("other", ANY, b"%d" % number), put("plan0", ANY))
    for since, changed in ((1, "plan/b"), (2, "plan/b"), (3, None)):
        guards = [no_change_under("plan/", since)]
        if changed is None:
            await desk.commit(put("x", ANY), guards=guards)
            continue
        error = await desk.refuse(put("x", ANY), guards=guards)
        assert error.reason is Reason.GUARD_CHANGED
        assert error.conflict is not None
        assert [(one.key, one.current_version) for one in error.conflict.violations] == [(changed, 2)]
    head = await desk.head()
    await desk.commit(put("y", ABSENT), guards=[no_change_under("", head), no_change_under("none/", 1)])
    await desk.refuse(put("z", ABSENT), guards=[no_change_under("", head)])


@pytest.mark.parametrize("database", ["sqlite"])
async def test_a_guard_costs_the_same_however_many_keys_it_covers(desk: Desk) -> None:
    """Counted in steps of SQLite's machine: a guard is judged under the board's lock, where every writer waits for it."""
    engine = desk.store._engine
    assert isinstance(engine, SqliteEngine)
    assert engine._writer is not None
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    engine._writer.set_progress_handler(step, 100)

    async def steps_of(since: int) -> int:
        nonlocal steps
        await desk.commit(put("x", ANY))
        steps = 0
        await desk.commit(put("x", ANY), guards=[no_change_under("data/", since)])
        return steps

    async def fill(first: int) -> None:
        ops = [put(f"data/{number:05d}", ABSENT) for number in range(first, first + 4_000)]
        items = [commit(*ops[start : start + 100]) for start in range(0, 4_000, 100)]
        assert all(isinstance(verdict, Accepted) for verdict in await desk.batch(*items))

    await fill(0)
    small = await steps_of(await desk.head())
    for first in range(4_000, 24_000, 4_000):
        await fill(first)
    assert await steps_of(await desk.head()) < small + 10
    since = await desk.head()
    await desk.batch(*[commit(put("noise", ANY)) for _ in range(200)])
    assert await steps_of(since) < small + 500
