import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from slateboard_server.domain.judge import Accepted, Refused
from slateboard_server.domain.values import BoardId, Revision
from slateboard_server.storage.postgres import PostgresEngine
from slateboard_server.storage.store import SqlStore
from tests.judging import ABSENT, ANY, at_version, commit, put
from tests.storing import TIMEOUT, Desk, HandClock, let_in, new_board, set_up

OpenStore = Callable[..., Awaitable[SqlStore]]


@pytest.fixture
async def two(open_store: OpenStore, database: str, clock: HandClock) -> tuple[SqlStore, SqlStore]:
    """Two replicas: over one database where several may share it, else one store in both roles."""
    first = await open_store()
    return first, first if database == "sqlite" else await open_store()


async def test_two_concurrent_commits_are_both_visible_to_whoever_reads_after_them(
    two: tuple[SqlStore, SqlStore], clock: HandClock
) -> None:
    desk = await set_up(two[0], clock)
    for turn in range(300):
        await asyncio.gather(
            *[
                store.commit(desk.id, [commit(put(f"{turn}/{name}", ABSENT))], TIMEOUT)
                for store, name in zip(two, "ab", strict=True)
            ]
        )
        for store in two:
            scan = await store.scan(desk.id, "shared", f"{turn}/", "", 10, desk.at(None))  # type: ignore[arg-type]
            assert [record.key for record in scan.records] == [f"{turn}/a", f"{turn}/b"]
            assert scan.revision == 2 * turn + 2


async def test_of_many_writers_of_one_version_one_wins(
    two: tuple[SqlStore, SqlStore], clock: HandClock
) -> None:
    desk = await set_up(two[0], clock)
    await desk.commit(put("k", ABSENT, b"0"))
    for version in range(1, 21):
        verdicts = await asyncio.gather(
            *[
                two[number % 2].commit(
                    desk.id, [commit(put("k", at_version(version), b"%d" % number))], TIMEOUT
                )
                for number in range(8)
            ]
        )
        assert sum(isinstance(verdict[0], Accepted) for verdict in verdicts) == 1
        assert sum(isinstance(verdict[0], Refused) for verdict in verdicts) == 7
    assert [record.version for record in await desk.history("k")] == list(range(1, 22))


async def test_a_reader_of_the_log_meets_no_gap_while_others_commit(
    two: tuple[SqlStore, SqlStore], clock: HandClock
) -> None:
    desk = await set_up(two[0], clock)
    total = 200

    async def write(store: SqlStore, name: str) -> None:
        for number in range(total // 4):
            await store.commit(desk.id, [commit(put(f"{name}/{number}", ABSENT))], TIMEOUT)

    async def follow(store: SqlStore) -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            after = Revision(seen[-1] if seen else 0)
            page = await store.read_log(desk.id, after, 7, 1 << 20)
            assert page.head.revision >= (page.commits[-1].commit.revision if page.commits else after)
            seen += [logged.commit.revision for logged in page.commits]
        return seen

    followers = [asyncio.create_task(follow(store)) for store in two]
    await asyncio.gather(*[write(two[number % 2], f"w{number}") for number in range(4)])
    for seen in await asyncio.gather(*followers):
        assert seen == list(range(1, total + 1))


async def test_sixteen_writers_and_as_many_readers_meet_no_lock_error(
    two: tuple[SqlStore, SqlStore], clock: HandClock
) -> None:
    boards = []
    desk = await set_up(two[0], clock)
    boards = [desk.id] + [
        (await two[0].create_board(new_board(f"b{number}"))).board_id for number in range(3)
    ]
    busy = True

    async def write(number: int) -> None:
        for turn in range(20):
            item = commit(put(f"w{number}/{turn}", ABSENT, b"v" * 500))
            [verdict] = await two[number % 2].commit(boards[number % 4], [item], TIMEOUT)
            assert isinstance(verdict, Accepted)

    async def read(number: int) -> None:
        while busy:
            store, board = two[number % 2], boards[number % 4]
            await store.scan(board, "shared", "", "", 100, desk.at(None))  # type: ignore[arg-type]
            await store.read_log(board, Revision(0), 50, 1 << 20)

    readers = [asyncio.create_task(read(number)) for number in range(16)]
    await asyncio.gather(*[write(number) for number in range(16)])
    busy = False
    await asyncio.gather(*readers)
    heads = await two[0].heads(boards)
    assert [heads[board].revision for board in boards] == [80] * 4


async def test_a_caller_that_is_cancelled_tears_no_transaction(desk: Desk) -> None:
    for turn in range(30):
        task = asyncio.create_task(desk.batch(*[commit(put(f"{turn}/{n}", ABSENT)) for n in range(5)]))
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    await desk.commit(put("last", ABSENT))
    revisions = [logged.commit.revision for logged in await desk.log()]
    assert revisions == list(range(1, len(revisions) + 1))
    for turn in range(30):
        assert len(await desk.keys(f"{turn}/")) in {0, 5}


async def test_what_a_store_wrote_itself_wakes_nobody_there(desk: Desk) -> None:
    """Its callers know: a look at the log for each of one's own commits would double the work."""
    waiting = asyncio.ensure_future(anext(desk.store.wakeups()))
    for number in range(5):
        await desk.commit(put(f"k{number}", ABSENT))
    await asyncio.wait({waiting}, timeout=0.5)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("database", [pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_two_stores_over_one_database_see_and_wake_each_other(
    two: tuple[SqlStore, SqlStore], clock: HandClock
) -> None:
    desk = await set_up(two[0], clock)
    other = Desk(two[1], clock, desk.board)
    wakeups = two[1].wakeups()
    await commits_until_woken(desk, wakeups, desk.id)
    assert await other.log() == await desk.log()
    await other.commit(put("theirs", ABSENT, b"x"))
    assert await desk.value("theirs") == b"x"
    await let_in(two[1], "eve", "t-eve")  # type: ignore[arg-type]
    assert await two[0].find_principal("eve") is not None  # type: ignore[arg-type]


async def commits_until_woken(desk: Desk, wakeups: object, board: BoardId) -> None:
    """Commit until a hint comes through: single ones may be lost, all of them not."""
    woken = asyncio.ensure_future(anext(wakeups))  # type: ignore[call-overload]
    for _ in range(200):
        await desk.commit(put("beat", ANY))
        await asyncio.wait({woken}, timeout=0.05)
        if woken.done():
            assert woken.result() == board
            return
    raise AssertionError("never woken")


@pytest.mark.parametrize("database", [pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_wake_ups_resume_after_the_listening_connection_was_killed(
    two: tuple[SqlStore, SqlStore], clock: HandClock, postgres_dsn: str
) -> None:
    desk = await set_up(two[0], clock)
    wakeups = two[1].wakeups()
    await commits_until_woken(desk, wakeups, desk.id)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        killed = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'slateboard listen' AND datname = current_database()"
        ).fetchall()
    assert len(killed) == 2
    two[1]._changed.clear()
    two[1]._wake.clear()
    await commits_until_woken(desk, wakeups, desk.id)


@pytest.mark.parametrize("database", [pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_a_log_reader_misses_nothing_of_a_transaction_that_was_open_while_others_committed(
    two: tuple[SqlStore, SqlStore], clock: HandClock
) -> None:
    desk = await set_up(two[0], clock)
    await desk.commit(put("first", ABSENT))
    engine = two[1]._engine
    assert isinstance(engine, PostgresEngine)
    held, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(point: str) -> None:
        if point == "before commit":
            loop.call_soon_threadsafe(held.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)

    engine._failpoint = hold
    slow = asyncio.create_task(two[1].commit(desk.id, [commit(put("slow", ABSENT))], TIMEOUT))
    await held.wait()
    fast = asyncio.create_task(two[0].commit(desk.id, [commit(put("fast", ABSENT))], TIMEOUT))
    page = await two[0].read_log(desk.id, Revision(1), 10, 1 << 20)
    assert (page.commits, page.head.revision) == ((), 1)
    assert not fast.done()
    release.set()
    await asyncio.gather(slow, fast)
    assert [logged.versions[0].key for logged in await desk.log(1)] == ["slow", "fast"]
