import asyncio

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.policy import CounterKey, Policy, Quota, Rule, Scope
from slateboard_server.domain.values import Incarnation, Key, Revision
from tests.judging import ABSENT, ANY, OPERATOR, SHARED, at_version, commit, content, delete, put, source
from tests.storing import Desk, exact, new_board, refuses


async def test_a_board_is_made_once_and_found_by_name(desk: Desk) -> None:
    asked = new_board("other", request_id="r")
    made = await desk.store.create_board(asked)
    assert await desk.store.create_board(asked) == made
    assert await desk.store.find_board("other") == made
    with refuses(Reason.BOARD_EXISTS):
        await desk.store.create_board(new_board("other", request_id="another"))
    assert (made.head.revision, made.head.floor, len(made.secret)) == (0, 1, 32)
    assert await desk.store.find_board("none") is None


async def test_boards_are_listed_by_name(desk: Desk) -> None:
    for name in ("b", "a", "c"):
        await desk.store.create_board(new_board(name))
    assert [board.name for board in await desk.store.list_boards("", 10)] == ["a", "b", "c", "team"]
    assert [board.name for board in await desk.store.list_boards("a", 2)] == ["b", "c"]


async def test_of_many_at_once_one_makes_the_board(desk: Desk) -> None:
    results = await asyncio.gather(
        *[desk.store.create_board(new_board("new", request_id=str(number))) for number in range(8)],
        return_exceptions=True,
    )
    assert sum(not isinstance(result, BaseException) for result in results) == 1


async def test_a_deleted_board_is_gone_at_once_and_its_name_free(desk: Desk) -> None:
    await desk.batch(*[commit(put(f"k{number}", ABSENT)) for number in range(30)])
    assert not await desk.store.delete_board(desk.id, Incarnation("other"))
    assert await desk.store.delete_board(desk.id, desk.board.head.incarnation)
    assert await desk.store.find_board("team") is None
    assert await desk.store.heads([desk.id]) == {}
    for call in (
        desk.get("k1"),
        desk.scan(),
        desk.commit(put("x", ABSENT)),
        desk.store.compact(desk.id, Revision(1), 1),
    ):
        with refuses(Reason.BOARD_NOT_FOUND):
            await call
    again = await desk.store.create_board(new_board("team"))
    assert again.board_id != desk.id
    assert again.head.incarnation != desk.board.head.incarnation


async def test_deleted_boards_are_erased_in_chunks_and_others_left_alone(desk: Desk) -> None:
    other = await desk.store.create_board(new_board("other"))
    await desk.store.commit(other.board_id, [commit(put("stays", ABSENT))], 5)
    await desk.batch(*[commit(put(f"k{number}", ABSENT)) for number in range(30)])
    await desk.store.delete_board(desk.id, desk.board.head.incarnation)
    chunks: list[int] = []
    while erased := await desk.store.erase_deleted(20):
        chunks.append(erased)
    assert max(chunks) <= 20
    assert sum(chunks) >= 4 * 30  # versions, current, commits, requests
    read = await desk.store.read_keys(other.board_id, [(SHARED, Key("stays"))], desk.at(None))
    assert len(read.found) == 1


async def test_a_policy_is_replaced_only_over_the_version_it_was_read_at(desk: Desk) -> None:
    policy = Policy(rules=(Rule(Scope.SHARED, "plan/", quota=Quota(max_entries=2)),))
    kept = await desk.store.set_policy(desk.id, policy, 1, OPERATOR, desk.clock.now())
    assert kept is not None
    assert (kept.version, kept.updated_by) == (2, OPERATOR)
    assert await desk.store.set_policy(desk.id, Policy(), 1, OPERATOR, desk.clock.now()) is None
    meta = await desk.store.find_board("team")
    assert meta is not None
    assert (meta.policy, meta.head.policy_version) == (kept, 2)


async def test_a_policy_counts_what_its_quotas_speak_of(desk: Desk) -> None:
    await desk.commit(put("plan/a", ABSENT), put("plan/b", ABSENT), put("plane", ABSENT))
    await desk.commit(delete("plan/b", at_version(1)))
    policy = Policy(rules=(Rule(Scope.SHARED, "plan/", quota=Quota(max_entries=2)),))
    await desk.store.set_policy(desk.id, policy, 1, OPERATOR, desk.clock.now())
    await desk.commit(put("plan/c", ABSENT))
    error = await desk.refuse(put("plan/d", ABSENT))
    assert (error.reason, error.metadata["actual"]) == (Reason.QUOTA, "3")
    assert CounterKey(Scope.SHARED, "plan/") in dict(policy.counters())


async def test_usage_equals_what_is_there(desk: Desk) -> None:
    await desk.commit(put("a", ABSENT, b"123"), put("b", ABSENT, b"4567"))
    await desk.commit(put("a", at_version(1), b"1"), delete("b", at_version(1)))
    meta = await desk.store.find_board("team")
    assert meta is not None
    assert (meta.entries, meta.bytes) == (1, 1)


async def test_a_new_incarnation_refuses_what_came_from_the_old(desk: Desk) -> None:
    old = desk.board.head.incarnation
    await desk.commit(put("k", ABSENT))
    reborn = await desk.store.reincarnate(desk.id, old)
    assert reborn is not None
    assert reborn.head.incarnation != old
    assert await desk.store.reincarnate(desk.id, old) is None
    [verdict] = await desk.batch(commit(put("k", ANY), incarnation=old))
    assert getattr(verdict, "error").reason is Reason.BOARD_REINCARNATED  # noqa: B009 -- asserts the kind too
    assert (await desk.commit(put("k", at_version(1)))).commit.revision == 2


async def test_compaction_drops_superseded_values_and_keeps_stubs(desk: Desk) -> None:
    await desk.commit(put("s", ABSENT, b"s"))
    for number in range(1, 6):
        await desk.commit(put("k", ANY, content(b"%d" % number, sources=[[source("s", 1)]])))
    assert await desk.compact(5) == 3
    assert [(record.version, record.compacted, record.value) for record in await desk.history("k")] == [
        (1, True, None),
        (2, True, None),
        (3, True, None),
        (4, False, b"4"),
        (5, False, b"5"),
    ]
    assert all(record.derivations and record.trust for record in await desk.history("k"))
    assert await desk.compact(5) == 0
    assert await desk.compact(6) == 1
    assert (await desk.store.heads([desk.id]))[desk.id].floor == 6


async def test_compaction_in_chunks_ends_where_one_go_would(desk: Desk) -> None:
    for number in range(40):
        await desk.commit(*[put(f"k{key}", ANY, b"%d" % number) for key in range(5)])
    await desk.commit(*[delete(f"k{key}", at_version(40)) for key in range(2)])
    head, dropped, more = await desk.store.compact(desk.id, Revision(41), 7)
    assert (head.floor, more) == (41, True)
    assert 0 < dropped <= 14
    rest = await desk.compact(41, 7)
    assert dropped + rest == 39 * 5 + 2 + 2
    assert await desk.keys() == ["k2", "k3", "k4"]
    for key in ("k0", "k4"):
        assert [record.compacted for record in await desk.history(key)][:39] == [True] * 39


async def test_compaction_above_the_head_is_refused_and_below_the_floor_does_nothing(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT))
    await desk.commit(put("k", at_version(1)))
    with refuses(Reason.FUTURE_REVISION):
        await desk.store.compact(desk.id, Revision(3), 10)
    await desk.compact(2)
    head, dropped, more = await desk.store.compact(desk.id, Revision(1), 10)
    assert (head.floor, dropped, more) == (2, 0, False)


async def test_no_reader_sees_a_dropped_value_under_an_old_floor(desk: Desk) -> None:
    for number in range(60):
        await desk.commit(*[put(f"k{key}", ANY, b"%d" % number) for key in range(4)])
    done = asyncio.Event()

    async def read() -> int:
        reads = 0
        while not done.is_set() or not reads:
            revision = await desk_floor()
            for at in range(revision, min(revision + 3, 61)):
                try:
                    scan = await desk.store.scan(desk.id, SHARED, "", "", 10, exact(at))
                except SlateboardError as error:
                    if error.reason is not Reason.COMPACTED:
                        raise
                    continue
                assert [record.value for record in scan.records] == [b"%d" % (at - 1)] * 4
                reads += 1
        return reads

    async def desk_floor() -> int:
        return (await desk.store.heads([desk.id]))[desk.id].floor

    readers = [asyncio.create_task(read()) for _ in range(4)]
    for floor in range(2, 61, 3):
        await desk.compact(floor, 5)
    done.set()
    assert all(await asyncio.gather(*readers))
