import pytest

from slateboard_server.domain.errors import Reason
from slateboard_server.domain.names import prefix_end
from slateboard_server.domain.values import SECOND, Key, Revision, Version
from slateboard_server.storage import reading
from tests.judging import (
    ABSENT,
    ANY,
    RIVAL,
    SHARED,
    WORKER,
    at_version,
    commit,
    content,
    delete,
    expiry,
    put,
    source,
)
from tests.storing import Desk, exact, new_board, refuses


async def test_an_exact_read_shows_the_board_as_it_was(desk: Desk) -> None:
    await desk.commit(put("a", ABSENT, b"a1"), put("b", ABSENT, b"b1"))
    await desk.commit(put("a", at_version(1), b"a2"))
    await desk.commit(delete("b", at_version(1)))
    await desk.commit(put("b", ABSENT, b"b3"), put("c", ABSENT, b"c1"))
    for revision, expected in {
        0: {},
        1: {"a": b"a1", "b": b"b1"},
        2: {"a": b"a2", "b": b"b1"},
        3: {"a": b"a2"},
        4: {"a": b"a2", "b": b"b3", "c": b"c1"},
    }.items():
        scan = await desk.scan("", revision)
        assert {record.key: record.value for record in scan.records} == expected
        assert {key: value for key in "abc" if (value := await desk.value(key, revision))} == expected
        assert (scan.revision, scan.head.revision) == (revision, 4)


async def test_an_exact_read_judges_expiry_by_the_time_of_its_revision(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, content(b"v", expire_time=desk.clock.time + 10 * SECOND)))
    await desk.commit(put("other", ABSENT))
    desk.clock.forward(10)
    assert await desk.get("k") is None
    assert await desk.keys() == ["other"]
    await desk.commit(put("other", at_version(1)))
    assert await desk.value("k", 1) == b"v"
    assert await desk.keys("", 2) == ["k", "other"]
    assert await desk.value("k", 3) is None
    assert await desk.keys("", 3) == ["other"]


async def test_what_expired_is_listed_until_a_tombstone_records_it(desk: Desk) -> None:
    due = desk.clock.time + 10 * SECOND
    await desk.commit(
        put("k", ABSENT, content(expire_time=due)), put("later", ABSENT, content(expire_time=due + 1))
    )
    assert list(await desk.store.expired(desk.clock.now(), 10)) == []
    desk.clock.forward(10)
    [(board_id, found)] = await desk.store.expired(desk.clock.now(), 10)
    assert (board_id, found.key, found.version) == (desk.id, "k", 1)
    await desk.batch(expiry("k", 1))
    assert list(await desk.store.expired(desk.clock.now(), 10)) == []


async def test_a_revision_above_the_head_or_below_the_floor_is_refused(desk: Desk) -> None:
    for number in range(1, 5):
        await desk.commit(put("k", ANY, b"%d" % number))
    await desk.compact(3)
    for read in (desk.get("k", 5), desk.scan("", 5)):
        with refuses(Reason.FUTURE_REVISION):
            await read
    for read in (desk.get("k", 2), desk.scan("", 2)):
        with refuses(Reason.COMPACTED):
            await read
    assert [await desk.value("k", revision) for revision in (3, 4)] == [b"3", b"4"]


NAMES = [
    "a",
    "a/",
    "ab",
    "a_b",
    "a%",
    "a%b",
    "aB",
    "A",
    "a\u00e9",
    "a\u4e2d",
    "a\U0001f600",
    "a\ufb01",
    "b",
    "a/x",
    "a0",
    "a-",
]


async def test_keys_are_listed_in_code_point_order(desk: Desk) -> None:
    names = [name for name in NAMES if not name.endswith("/")]
    await desk.commit(*[put(name, ABSENT) for name in names])
    assert await desk.keys() == sorted(names)
    assert await desk.keys("", 1) == sorted(names)


@pytest.mark.parametrize("prefix", ["a", "a/", "a_", "a%", "a\u00e9", "a\U0001f600", "A", "b", "z", ""])
async def test_a_prefix_takes_what_begins_with_it_and_nothing_else(desk: Desk, prefix: str) -> None:
    names = [name for name in NAMES if not name.endswith("/")]
    await desk.commit(*[put(name, ABSENT) for name in names])
    expected = sorted(name for name in names if name.startswith(prefix))
    assert await desk.keys(prefix) == expected
    assert await desk.keys(prefix, 1) == expected
    assert prefix_end(prefix) not in expected


async def test_pages_of_a_scan_join_without_gap_or_repeat(desk: Desk) -> None:
    await desk.commit(*[put(f"p/{number:02}", ABSENT) for number in range(25)], put("q", ABSENT))
    await desk.commit(delete("p/07", at_version(1)))
    for revision in (None, 1):
        found: list[str] = []
        more = True
        while more:
            page = await desk.scan("p/", revision, after=found[-1] if found else "", limit=10)
            more = page.more
            found += [record.key for record in page.records]
        assert found == [f"p/{number:02}" for number in range(25) if revision == 1 or number != 7]


async def test_a_page_holds_about_four_mebibytes_and_at_least_one_record(desk: Desk) -> None:
    big = b"x" * (1 << 20)
    for number in range(6):
        await desk.commit(put(f"k{number}", ABSENT, big), put("hot", ANY, big))
    page = await desk.scan("k")
    assert ([record.key for record in page.records], page.more) == (["k0", "k1", "k2", "k3"], True)
    rest = await desk.scan("k", after="k3")
    assert ([record.key for record in rest.records], rest.more) == (["k4", "k5"], False)
    versions = await desk.store.versions(desk.id, SHARED, Key("hot"), None, 100)
    assert ([record.version for record in versions.records], versions.more) == ([6, 5, 4, 3], True)
    log = await desk.store.read_log(desk.id, Revision(0), 100, 1)
    assert [logged.commit.revision for logged in log.commits] == [1]
    log = await desk.store.read_log(desk.id, Revision(0), 100, 5 << 20)
    assert [logged.commit.revision for logged in log.commits] == [1, 2]
    assert reading.MAX_PAGE_BYTES == 4 << 20


async def test_values_are_left_out_where_none_are_wanted(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, b"value"))
    read = await desk.store.read_keys(desk.id, [(SHARED, Key("k"))], desk.at(None), values=False)
    scan = await desk.store.scan(desk.id, SHARED, "", "", 10, exact(1), values=False)
    versions = await desk.store.versions(desk.id, SHARED, Key("k"), None, 10, values=False)
    log = await desk.store.read_log(desk.id, Revision(0), 10, 1 << 20, values=False)
    for record in (*read.found.values(), *scan.records, *versions.records, *log.commits[0].versions):
        assert (record.value, record.size) == (None, 5)


async def test_versions_are_paged_newest_first(desk: Desk) -> None:
    for number in range(5):
        await desk.commit(put("k", ANY, b"%d" % number))
    page = await desk.store.versions(desk.id, SHARED, Key("k"), None, 2)
    assert ([record.version for record in page.records], page.more) == ([5, 4], True)
    page = await desk.store.versions(desk.id, SHARED, Key("k"), Version(4), 10)
    assert ([record.version for record in page.records], page.more) == ([3, 2, 1], False)


async def test_single_versions_are_read_by_name(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, b"1"))
    await desk.commit(put("k", at_version(1), b"2"))
    refs = [source("k", 1), source("k", 2), source("k", 3), source("none", 1)]
    found = await desk.store.read_versions(desk.id, refs, values=True)
    assert {ref.version: record.value for ref, record in found.items()} == {1: b"1", 2: b"2"}


async def test_the_log_is_read_from_any_revision_on(desk: Desk) -> None:
    for number in range(5):
        await desk.commit(put(f"k{number}", ABSENT))
    page = await desk.store.read_log(desk.id, Revision(2), 2, 1 << 20)
    assert [logged.commit.revision for logged in page.commits] == [3, 4]
    page = await desk.store.read_log(desk.id, Revision(5), 2, 1 << 20)
    assert (page.commits, page.head.revision) == ((), 5)


async def test_the_log_below_the_floor_is_empty_and_the_head_tells_why(desk: Desk) -> None:
    for number in range(5):
        await desk.commit(put(f"k{number}", ABSENT))
    await desk.compact(3)
    page = await desk.store.read_log(desk.id, Revision(1), 10, 1 << 20)
    assert (page.commits, page.head.floor) == ((), 3)
    page = await desk.store.read_log(desk.id, Revision(2), 10, 1 << 20)
    assert [logged.commit.revision for logged in page.commits] == [3, 4, 5]


async def test_commits_are_listed_by_writer_and_by_prefix_newest_first(desk: Desk) -> None:
    for number in range(6):
        await desk.commit(
            put(f"{'plan' if number % 2 else 'log'}/{number}", ABSENT), by=RIVAL if number == 3 else WORKER
        )
    page = await desk.store.list_commits(desk.id, None, 2, None, SHARED, "plan/")
    assert ([logged.commit.revision for logged in page.commits], page.more) == ([6, 4], True)
    assert page.commits[0].versions[0].key == "plan/5"
    page = await desk.store.list_commits(desk.id, Revision(4), 2, None, SHARED, "plan/")
    assert ([logged.commit.revision for logged in page.commits], page.more) == ([2], False)
    page = await desk.store.list_commits(desk.id, None, 10, RIVAL, None, "")
    assert [logged.commit.revision for logged in page.commits] == [4]


async def test_lineage_is_found_both_ways_and_outlives_compaction(desk: Desk) -> None:
    await desk.commit(put("a", ABSENT, b"a"), put("b", ABSENT, b"b"))
    await desk.commit(put("c", ABSENT, content(sources=[[source("a", 1), source("b", 1)], [source("a", 1)]])))
    await desk.commit(put("d", ABSENT, content(sources=[[source("c", 1)]])))
    await desk.commit(put("c", at_version(1)), put("d", at_version(1)))
    for _ in range(2):
        up = await desk.store.sources_of(desk.id, [source("c", 1)])
        assert [(edge.source.key, edge.derivation) for edge in up] == [("a", 0), ("b", 0), ("a", 1)]
        down = await desk.store.derived_from(desk.id, [source("a", 1), source("c", 1)], 10)
        assert [edge.derived.key for edge in down] == ["c", "c", "d"]
        assert len(await desk.store.derived_from(desk.id, [source("a", 1)], 1)) == 1
        await desk.compact(4)
    stub = (await desk.history("c"))[0]
    assert (stub.compacted, stub.value, len(stub.derivations)) == (True, None, 2)


async def test_heads_of_several_boards_are_read_at_once(desk: Desk) -> None:
    other = await desk.store.create_board(new_board("other"))
    await desk.batch(*[commit(put(f"k{number}", ABSENT)) for number in range(3)])
    heads = await desk.store.heads([desk.id, other.board_id, 999])  # type: ignore[list-item]
    assert {board: head.revision for board, head in heads.items()} == {desk.id: 3, other.board_id: 0}
