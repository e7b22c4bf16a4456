"""The feed of a board: what may be answered from the cache, and what watchers are given."""

import asyncio

import pytest

from slateboard_server.domain.entry import CommitRecord, LoggedCommit, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
    Micros,
    PrincipalId,
    Region,
    Revision,
    Tombstone,
    Trust,
    Version,
)
from slateboard_server.ports import Head, KeysRead
from slateboard_server.services.cache import ABSENT, EntryCache
from slateboard_server.services.feed import BoardFeed

WRITER = PrincipalId("writer")


def head(revision: int, floor: int = 1) -> Head:
    return Head(Revision(revision), Revision(floor), Incarnation("incarnation"), Micros(revision), 1)


def record(
    key: str, revision: int, value: bytes = b"v", tombstone: Tombstone = Tombstone.NONE
) -> VersionRecord:
    return VersionRecord(
        region=SHARED,
        key=Key(key),
        version=Version(revision),
        create_revision=Revision(1),
        mod_revision=Revision(revision),
        op_index=0,
        commit_time=Micros(revision),
        principal=WRITER,
        session_id=None,
        trust=Trust.AGENT,
        tombstone=tombstone,
        value=None if tombstone else value,
        size=0 if tombstone else len(value),
    )


def logged(revision: int, *records: VersionRecord) -> LoggedCommit:
    commit = CommitRecord(
        Revision(revision), f"c{revision}", "batch", WRITER, None, f"r{revision}", Micros(revision)
    )
    return LoggedCommit(commit, records)


def new_feed(revision: int = 0, ring_bytes: int = 1 << 20) -> BoardFeed:
    return BoardFeed(BoardId(1), head(revision), EntryCache(1 << 20), ring_bytes)


def keys_read(revision: int, *records: VersionRecord) -> KeysRead:
    found: dict[tuple[Region, Key], VersionRecord] = {(item.region, item.key): item for item in records}
    return KeysRead(head(revision), Revision(revision), found)


class Counting:
    """A follower that counts how often it was woken."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_a_commit_is_in_the_cache_once_it_is_applied() -> None:
    """What a commit wrote is answered from the cache, a delete as an absence."""
    feed = new_feed()
    assert feed.apply([logged(1, record("a", 1)), logged(2, record("b", 2))])
    assert feed.lookup(SHARED, Key("a")) == record("a", 1)
    assert feed.apply([logged(3, record("a", 3, tombstone=Tombstone.DELETED))])
    assert feed.lookup(SHARED, Key("a")) is ABSENT
    assert feed.lookup(SHARED, Key("never read")) is None


def test_a_gap_stops_the_feed_and_is_reported() -> None:
    """A commit whose predecessor is missing is not applied: another replica's commit lies in between."""
    feed = new_feed()
    assert not feed.apply([logged(1, record("a", 1)), logged(3, record("a", 3))])
    assert feed.applied == 1
    assert feed.apply([logged(2), logged(3, record("a", 3))])
    assert feed.applied == 3


def test_a_commit_is_applied_once() -> None:
    """The tail reader and the commit queue may both bring a commit."""
    feed = new_feed()
    feed.follow(Counting())
    feed.apply([logged(1, record("a", 1))])
    assert feed.apply([logged(1, record("a", 1)), logged(2, record("a", 2))])
    recent = feed.recent(Revision(0), 10)
    assert recent is not None
    assert [item.commit.revision for item in recent] == [1, 2]


def test_a_read_that_a_commit_overtook_is_not_kept() -> None:
    """A slow read from before a commit must not put the old value back."""
    feed = new_feed(5)
    load = feed.begin_load([(SHARED, Key("a")), (SHARED, Key("b"))])
    feed.apply([logged(6, record("a", 6))])
    feed.end_load(load, keys_read(5, record("a", 3), record("b", 2)))
    assert feed.lookup(SHARED, Key("a")) == record("a", 6)
    assert feed.lookup(SHARED, Key("b")) == record("b", 2)


def test_an_overtaken_read_is_not_kept_even_if_the_newer_value_was_evicted() -> None:
    """The cache may have dropped the newer value by the time the slow read comes back."""
    feed = BoardFeed(BoardId(1), head(5), EntryCache(1_600), 1 << 20)
    load = feed.begin_load([(SHARED, Key("a"))])
    feed.apply([logged(6, record("a", 6))])
    feed.apply([logged(7, record("b", 7)), logged(8, record("c", 8))])
    assert feed.lookup(SHARED, Key("a")) is None
    feed.end_load(load, keys_read(5, record("a", 3)))
    assert feed.lookup(SHARED, Key("a")) is None


def test_a_read_from_ahead_keeps_only_what_was_already_true() -> None:
    """A store read may see a commit that is not applied yet; its values must not mix with older ones."""
    feed = new_feed(5)
    load = feed.begin_load([(SHARED, Key("a")), (SHARED, Key("b")), (SHARED, Key("gone"))])
    feed.end_load(load, keys_read(7, record("a", 4), record("b", 7)))
    assert feed.lookup(SHARED, Key("a")) == record("a", 4)
    assert feed.lookup(SHARED, Key("b")) is None
    assert feed.lookup(SHARED, Key("gone")) is None


def test_an_absence_is_remembered_until_a_commit_fills_it() -> None:
    """Looking twice for a missing key asks the store once."""
    feed = new_feed(5)
    load = feed.begin_load([(SHARED, Key("a"))])
    feed.end_load(load, keys_read(5))
    assert feed.lookup(SHARED, Key("a")) is ABSENT
    feed.apply([logged(6, record("a", 6))])
    assert feed.lookup(SHARED, Key("a")) == record("a", 6)


def test_a_jump_forgets_what_was_cached_and_what_is_being_read() -> None:
    """After skipping part of the log nothing older than the jump may be answered."""
    feed = new_feed(5)
    feed.apply([logged(6, record("a", 6))])
    load = feed.begin_load([(SHARED, Key("b"))])
    feed.jump(head(100, floor=50))
    feed.end_load(load, keys_read(6, record("b", 2)))
    assert feed.applied == 100
    assert feed.floor == 50
    assert feed.lookup(SHARED, Key("a")) is None
    assert feed.lookup(SHARED, Key("b")) is None


def test_the_ring_is_kept_only_while_somebody_follows() -> None:
    """A board nobody watches costs no ring."""
    feed = new_feed()
    feed.apply([logged(1, record("a", 1))])
    assert feed.recent(Revision(0), 10) is None
    follower = Counting()
    feed.follow(follower)
    feed.apply([logged(2, record("a", 2))])
    assert follower.woken == 1
    recent = feed.recent(Revision(1), 10)
    assert recent is not None
    assert [item.commit.revision for item in recent] == [2]
    feed.unfollow(follower)
    assert feed.recent(Revision(1), 10) is None


def test_the_ring_is_bounded_by_bytes_and_tells_who_fell_behind() -> None:
    """A follower behind the ring is sent to the store, never past a commit."""
    feed = new_feed(ring_bytes=10_000)
    feed.follow(Counting())
    for revision in range(1, 21):
        feed.apply([logged(revision, record("a", revision, b"x" * 1_000))])
    assert feed.recent(Revision(0), 100) is None
    kept = feed.recent(Revision(16), 100)
    assert kept is not None
    assert [item.commit.revision for item in kept] == [17, 18, 19, 20]
    assert feed.recent(Revision(20), 100) == ()


async def test_waiting_for_a_revision_ends_when_it_is_applied() -> None:
    """AT_LEAST waits for the feed, not for a poll."""
    feed = new_feed()
    waiting = asyncio.create_task(feed.reached(Revision(2)))
    await asyncio.sleep(0)
    feed.apply([logged(1)])
    await asyncio.sleep(0)
    assert not waiting.done()
    feed.apply([logged(2)])
    await asyncio.wait_for(waiting, 5)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """Cancelled calls must not grow memory."""
    feed = new_feed()
    tasks = [asyncio.create_task(feed.reached(Revision(9))) for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert feed.waiting == 0


async def test_the_end_of_a_board_is_told_to_who_waits() -> None:
    """A deleted board must not leave a waiter to its timeout."""
    feed = new_feed()
    waiting = asyncio.create_task(feed.reached(Revision(9)))
    await asyncio.sleep(0)
    feed.end(SlateboardError(Reason.BOARD_NOT_FOUND, "gone"))
    with pytest.raises(SlateboardError, match="gone"):
        await waiting
    with pytest.raises(SlateboardError, match="gone"):
        await feed.reached(Revision(10))


def test_the_cache_stays_within_its_bound() -> None:
    """The cache's accounting matches what it holds, whatever is put in again and again."""
    cache = EntryCache(20_000)
    for round_ in range(3):
        for number in range(100):
            cache.put((1, round_, SHARED, f"k{number}"), record(f"k{number}", 1, b"x" * (number * 3)))
            assert cache.used_bytes <= 20_000
    assert 0 < len(cache) < 100
    assert cache.get((1, 2, SHARED, "k99")) is not None
    assert cache.get((1, 0, SHARED, "k0")) is None
