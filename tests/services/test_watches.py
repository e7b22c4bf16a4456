"""Following a board: in order, each once, nothing skipped in silence, nobody sees more than they may read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.names import SHARED, private_region
from slateboard_server.domain.policy import Policy, Quota
from slateboard_server.domain.principal import Action, Right
from slateboard_server.domain.values import (
    Incarnation,
    Micros,
    PrincipalId,
    Region,
    Revision,
    Tombstone,
    Trust,
)
from slateboard_server.services.model import (
    BatchEvent,
    Caller,
    GoingAwayEvent,
    ProgressEvent,
    SnapshotEvent,
    WatchEvent,
    WatchSpec,
)
from slateboard_server.services.settings import DataPathSettings
from tests.services.conftest import BOARD, Team, append, delete, put

EVERYTHING: tuple[tuple[Region, str], ...] = ((SHARED, ""),)


@contextlib.asynccontextmanager
async def watching(team: Team, who: str, spec: WatchSpec) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    """Follow as somebody; the stream is closed at the end, as a cancelled call closes it."""

    async def still_allowed() -> Caller:
        return team[who]

    stream = team.watches.watch(team[who], BOARD, spec, still_allowed)
    try:
        yield stream
    finally:
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


def spec(
    after: int | None = None,
    prefixes: Sequence[tuple[Region, str]] = EVERYTHING,
    *,
    snapshot: bool = False,
    min_trust: Trust | None = None,
    progress: float = 60.0,
    incarnation: str | None = None,
) -> WatchSpec:
    return WatchSpec(
        prefixes=tuple(prefixes),
        after=None if after is None else Revision(after),
        snapshot=snapshot,
        min_trust=min_trust,
        progress_interval=progress,
        incarnation=None if incarnation is None else Incarnation(incarnation),
    )


async def next_event(stream: AsyncIterator[WatchEvent]) -> WatchEvent:
    return await asyncio.wait_for(anext(stream), 10)


async def next_batch(stream: AsyncIterator[WatchEvent]) -> BatchEvent:
    while True:
        event = await next_event(stream)
        if isinstance(event, BatchEvent):
            return event


async def ends_with(stream: AsyncIterator[WatchEvent]) -> Reason:
    try:
        while True:
            await next_event(stream)
    except SlateboardError as ended:
        return ended.reason


async def test_a_watch_says_at_once_where_it_begins(team: Team) -> None:
    """A follower of a silent board knows its position from the first message."""
    await team.commit("ann", put("a"))
    async with watching(team, "bob", spec()) as stream:
        event = await next_event(stream)
        assert isinstance(event, ProgressEvent)
        assert event.stamp.revision == 1


async def test_every_commit_comes_once_and_in_order_from_any_revision(team: Team) -> None:
    """neotoma#1464 (M19): whatever happened while a follower was away is delivered, without gap or duplicate."""
    for number in range(20):
        await team.commit("ann", put(f"k/{number}"))
    for after in (0, 7, 19):
        async with watching(team, "bob", spec(after)) as stream:
            seen = [(await next_batch(stream)).stamp.revision for _ in range(20 - after)]
            await team.commit("ann", put(f"more/{after}"))
            seen.append((await next_batch(stream)).stamp.revision)
            assert seen[: 20 - after] == list(range(after + 1, 21))
            assert seen[-1] > 20


async def test_followers_that_fall_behind_the_ring_read_on_from_the_store(team: Team) -> None:
    """A slow follower misses nothing though the ring is small."""
    object.__setattr__(team.directory, "settings", DataPathSettings(ring_bytes=20_000))
    handle = await team.directory.open(team["bob"], BOARD)
    handle.feed._ring_limit = 20_000
    async with watching(team, "bob", spec(0)) as stream:
        await next_event(stream)
        for number in range(60):
            await team.commit("ann", put(f"k/{number}", b"x" * 2_000))
        assert handle.feed.recent(Revision(0), 1) is None
        seen = [(await next_batch(stream)).stamp.revision for _ in range(60)]
    assert seen == list(range(1, 61))


async def test_only_what_was_asked_for_and_may_be_read_is_sent(team: Team) -> None:
    """Other prefixes, other people's private regions and keys without a right do not show, nor leave a trace."""
    mine = private_region(PrincipalId("ann"))
    await team.join("narrow", rights=(Right("plan/", frozenset({Action.READ})),))
    async with (
        watching(team, "bob", spec(0, [(SHARED, "plan/"), (SHARED, "plan/x/"), (mine, "")])) as bob,
        watching(team, "narrow", spec(0)) as narrow,
        watching(team, "ann", spec(0, [(mine, "")])) as ann,
    ):
        await team.commit("ann", put("planner"), put("diary", region=mine), put("plan/x/1"))
        await team.commit("ann", put("other"))
        await team.commit("ann", put("plan/2"))
        for stream in (bob, narrow):
            first, second = await next_batch(stream), await next_batch(stream)
            assert [(r.region, r.key) for r in first.records] == [(SHARED, "plan/x/1")]
            assert [r.key for r in second.records] == ["plan/2"]
            assert (first.stamp.revision, second.stamp.revision) == (1, 3)
        assert [r.key for r in (await next_batch(ann)).records] == ["diary"]


async def test_progress_never_runs_ahead_of_what_was_sent(team: Team) -> None:
    """etcd#15220 (T32): progress names a revision up to which everything visible has been sent; also when idle."""
    async with watching(team, "bob", spec(0, [(SHARED, "plan/")], progress=0.05)) as stream:
        sent = 0
        for number in range(10):
            await team.commit("ann", put(f"other/{number}"))
            await team.commit("ann", put(f"plan/{number}"))
            event = await next_event(stream)
            while not isinstance(event, BatchEvent):
                assert isinstance(event, ProgressEvent)
                assert event.stamp.revision <= sent + 1
                event = await next_event(stream)
            sent = event.stamp.revision
        await team.commit("ann", put("other/last"))
        while True:
            event = await next_event(stream)
            assert isinstance(event, ProgressEvent)
            if event.stamp.revision == 21:
                break


async def test_a_cursor_outside_the_history_is_an_error(team: Team) -> None:
    """NVIDIA/OpenShell PR#3209 (M20): a trimmed or future cursor never skips in silence."""
    for number in range(5):
        await team.commit("ann", put("k", str(number).encode(), expect=number))
    board = (await team.directory.open(team["op"], BOARD)).board_id
    await team.store.compact(board, Revision(3), 100)
    await team.directory.refresh(board)
    async with watching(team, "bob", spec(1)) as stream:
        assert await ends_with(stream) is Reason.COMPACTED
    async with watching(team, "bob", spec(2)) as stream:
        assert (await next_batch(stream)).stamp.revision == 3
    async with watching(team, "bob", spec(6)) as stream:
        assert await ends_with(stream) is Reason.FUTURE_REVISION
    async with watching(team, "bob", spec(4, incarnation="an earlier life")) as stream:
        assert await ends_with(stream) is Reason.BOARD_REINCARNATED


async def test_compaction_that_overtakes_a_follower_is_told_to_it(team: Team) -> None:
    """etcd#18089 (T30): a delete at the compacted revision is delivered, or the follower hears COMPACTED."""
    await team.commit("ann", put("k"))
    handle = await team.directory.open(team["op"], BOARD)
    async with watching(team, "bob", spec(0)) as stream:
        await next_event(stream)
        await team.commit("ann", delete("k", 1))
        await team.commit("ann", put("k"))
        handle.feed._ring.clear()
        await team.store.compact(handle.board_id, Revision(3), 100)
        assert await ends_with(stream) is Reason.COMPACTED
    async with watching(team, "bob", spec(2)) as stream:
        assert (await next_batch(stream)).records[0].version == 3


async def test_a_delete_and_an_expiry_are_events(team: Team) -> None:
    """Followers learn of an absence as a tombstone with its reason."""
    async with watching(team, "bob", spec(0)) as stream:
        await team.commit("ann", put("k"))
        await team.commit("ann", delete("k", 1))
        await next_batch(stream)
        record = (await next_batch(stream)).records[0]
        assert (record.version, record.tombstone, record.value) == (2, Tombstone.DELETED, None)


async def test_a_snapshot_is_one_revision_and_what_follows_begins_right_after_it(team: Team) -> None:
    """Snapshot pages and batches together give the board's state, while others write all the time."""
    big = b"x" * 900_000
    for number in range(8):
        await team.commit("ann", put(f"k/{number}", big))
    await team.commit("ann", put("gone", expire_time=Micros(team.clock.now() + 1_000_000)))
    team.clock.advance(2)
    state: dict[str, int] = {}
    async with watching(team, "bob", spec(snapshot=True)) as stream:
        pages = 0
        while True:
            event = await next_event(stream)
            assert isinstance(event, SnapshotEvent)
            assert event.stamp.revision == 9
            pages += 1
            if pages == 1:
                await team.commit("ann", put("k/0", b"new", expect=1), delete("k/7", 1))
            state |= {record.key: record.version for record in event.records}
            if event.last:
                break
        assert pages > 1
        batch = await next_batch(stream)
        assert batch.stamp.revision == 10
        for record in batch.records:
            if record.is_value:
                state[record.key] = record.version
            else:
                del state[record.key]
    assert state == {"k/0": 2} | {f"k/{number}": 1 for number in range(1, 7)}


async def test_a_large_commit_is_split_and_says_so(team: Team) -> None:
    """A batch over 3 MiB comes in parts of one revision, the last one complete."""
    await team.commit("ann", *(put(f"k/{number}", b"x" * 850_000) for number in range(4)))
    async with watching(team, "bob", spec(0)) as stream:
        parts = [await next_batch(stream)]
        while not parts[-1].complete:
            parts.append(await next_batch(stream))
    assert len(parts) == 2
    assert [r.key for part in parts for r in part.records] == [f"k/{number}" for number in range(4)]


async def test_a_value_below_the_floor_is_told_without_content(team: Team) -> None:
    """A follower with a trust floor learns that what it holds was replaced, not by what."""
    await team.commit("ann", put("k", b"good"))
    async with watching(team, "bob", spec(1, min_trust=Trust.AGENT)) as stream:
        await team.commit("ann", put("k", b"from a mail", expect=1, trust=Trust.EXTERNAL))
        batch = await next_batch(stream)
        assert batch.withheld == frozenset({0})


async def test_a_watch_ends_when_the_right_to_it_ends(team: Team) -> None:
    """Revocation reaches open streams."""
    object.__setattr__(team.directory, "settings", DataPathSettings(recheck_interval=0.01))
    allowed = True

    async def still_allowed() -> Caller:
        if not allowed:
            raise SlateboardError(Reason.TOKEN_INVALID, "revoked")
        return team["bob"]

    stream = team.watches.watch(team["bob"], BOARD, spec(0), still_allowed)
    await next_event(stream)
    allowed = False
    assert await ends_with(stream) is Reason.TOKEN_INVALID


async def test_a_deleted_board_ends_its_watches(team: Team) -> None:
    """So does the end of an incarnation."""
    handle = await team.directory.open(team["op"], BOARD)
    async with watching(team, "bob", spec(0)) as stream:
        await next_event(stream)
        made = await team.store.reincarnate(handle.board_id, handle.feed.incarnation)
        assert made is not None
        await team.directory.refresh(handle.board_id)
        assert await ends_with(stream) is Reason.BOARD_REINCARNATED


async def test_a_draining_server_sends_followers_away_and_takes_no_more(team: Team) -> None:
    """They hear where to resume, then DRAINING."""
    async with watching(team, "bob", spec(0)) as stream:
        await next_event(stream)
        await team.commit("ann", put("k"))
        await team.directory.drain()
        assert isinstance(await next_event(stream), BatchEvent)
        event = await next_event(stream)
        assert isinstance(event, GoingAwayEvent)
        assert event.stamp.revision == 1
        assert await ends_with(stream) is Reason.DRAINING
    async with watching(team, "bob", spec(0)) as stream:
        assert await ends_with(stream) is Reason.DRAINING
    with pytest.raises(SlateboardError) as refused:
        await team.commit("ann", put("late"))
    assert refused.value.reason is Reason.DRAINING


async def test_watches_are_bounded_by_policy(team: Team) -> None:
    """The quota refuses the watch too many, and counts those that left."""
    handle = await team.directory.open(team["op"], BOARD)
    policy = Policy(quota=Quota(max_watches=2))
    await team.store.set_policy(handle.board_id, policy, 1, PrincipalId("op"), team.clock.now())
    await team.directory.refresh(handle.board_id)
    async with watching(team, "bob", spec(0)) as one, watching(team, "ann", spec(0)) as two:
        await next_event(one)
        await next_event(two)
        async with watching(team, "bob", spec(0)) as three:
            assert await ends_with(three) is Reason.QUOTA
    async with watching(team, "bob", spec(0)) as again:
        await next_event(again)


async def test_followers_that_leave_leave_nothing_behind(team: Team) -> None:
    """grpc/grpc#43360 (T42), below gRPC: thousands of cancelled watches do not grow the feed."""
    handle = await team.directory.open(team["op"], BOARD)
    for _ in range(500):
        async with watching(team, "bob", spec(0)) as stream:
            await next_event(stream)
    assert handle.feed.followers == 0
    assert handle.watches == 0
    await team.commit("ann", append("log/"))
    assert handle.feed.recent(Revision(0), 1) is None
