import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from psycopg import Pipeline

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted
from slateboard_server.storage.postgres import PostgresEngine
from slateboard_server.storage.store import SqlStore
from tests.fix_postgres import PostgresCluster, PostgresUnavailable
from tests.judging import ABSENT, append, commit, put
from tests.storing import Desk, HandClock, postgres_engines, refuses, set_up, without_driver_text

pytestmark = pytest.mark.postgres


class Killer:
    """Ends the store's writing backends when a write reaches a point."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.point = ""
        self.kills = 0

    def __call__(self, point: str) -> None:
        if self.kills and point == self.point:
            self.kills -= 1
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND application_name = 'slateboard' AND datname = current_database()"
                )


@pytest.fixture
def killer(postgres_dsn: str) -> Killer:
    return Killer(postgres_dsn)


@pytest.fixture
async def desk(killer: Killer) -> AsyncIterator[Desk]:
    store = SqlStore(postgres_engines(killer.dsn)(failpoint=killer), HandClock())
    await store.start()
    yield await set_up(store, HandClock())
    await store.close()


async def test_a_backend_killed_before_commit_costs_nothing_but_time(desk: Desk, killer: Killer) -> None:
    killer.point, killer.kills = "before commit", 1
    await desk.commit(append("log/", b"x"))
    assert killer.kills == 0
    assert len(await desk.keys("log/")) == 1
    assert [logged.commit.revision for logged in await desk.log()] == [1]


async def test_backends_killed_between_calls_are_not_noticed(desk: Desk, killer: Killer) -> None:
    await asyncio.gather(*[desk.scan() for _ in range(8)])
    killer.point, killer.kills = "now", 1
    await asyncio.to_thread(killer, "now")
    assert await desk.keys() == []
    await desk.commit(put("k", ABSENT))


async def test_a_database_that_hangs_up_each_time_is_down_and_says_so(desk: Desk, killer: Killer) -> None:
    killer.point, killer.kills = "before commit", 1 << 30
    with pytest.raises(SlateboardError) as caught:
        await desk.commit(append("log/", b"x"))
    assert caught.value.reason is Reason.STORAGE_DOWN
    without_driver_text(caught.value)
    killer.kills = 0
    await desk.commit(append("log/", b"x"))
    assert len(await desk.keys("log/")) == 1


async def test_a_batch_takes_two_round_trips(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for turn in range(4):  # until everything is prepared
        await desk.batch(*[commit(put(f"{turn}/{number}", ABSENT)) for number in range(20)])
    entered = 0
    enter = Pipeline.__enter__

    def counted_enter(self: Pipeline) -> Pipeline:
        nonlocal entered
        entered += 1
        return enter(self)

    monkeypatch.setattr(Pipeline, "__enter__", counted_enter)
    outside: list[object] = []
    execute: Any = psycopg.Cursor.execute

    def seen(self: Any, query: object, *args: object, **more: object) -> object:
        if self.connection._pipeline is None:
            outside.append(query)
        return execute(self, query, *args, **more)

    monkeypatch.setattr(psycopg.Cursor, "execute", seen)
    await desk.batch(*[commit(put(f"n/{number}", ABSENT)) for number in range(20)])
    assert (entered, outside) == (2, [])


async def test_a_stopped_client_inside_a_transaction_holds_others_up_for_seconds_only(
    desk: Desk, postgres_dsn: str
) -> None:
    code = (
        "import psycopg, sys, time\n"
        "from slateboard_server.storage.postgres import _OPTIONS\n"
        "c = psycopg.connect(sys.argv[1], options=_OPTIONS)\n"
        "c.execute('SELECT head FROM boards FOR UPDATE')\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(  # noqa: ASYNC220 -- spawning does not block
        [sys.executable, "-c", code, postgres_dsn],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "held\n"
    process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    await desk.commit(put("k", ABSENT))
    assert time.monotonic() - started < 10
    process.kill()
    process.wait()
    process.stdout.close()


async def test_the_deadline_bounds_the_wait_for_a_boards_row(desk: Desk, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as holder:
        holder.execute("SELECT head FROM boards FOR UPDATE")
        with refuses(Reason.STORAGE_DOWN):
            await desk.store.commit(desk.id, [commit(put("k", ABSENT))], 0.3)
        assert await desk.head() == 0
    await desk.commit(put("k", ABSENT))


async def follow_writers(desk: Desk, disturb: Callable[[], None]) -> None:
    """Write with eight tasks while something is done to the server; then compare what was acknowledged with what is there."""
    acknowledged: dict[str, int] = {}
    failures: list[SlateboardError] = []
    stop = asyncio.Event()

    async def write(name: str) -> None:
        number = 0
        while not stop.is_set():
            item = commit(put(f"{name}/{number}", ABSENT), request_id=f"{name}-{number}")
            try:
                [verdict] = await desk.store.commit(desk.id, [item], 10)
            except SlateboardError as error:
                failures.append(error)
                await asyncio.sleep(0.02)
                continue  # with the same request_id
            acknowledged[item.request_id] = verdict.answer.revision  # type: ignore[union-attr]
            number += 1

    writers = [asyncio.create_task(write(f"w{number}")) for number in range(8)]

    async def reaches(count: int) -> None:
        while len(acknowledged) < count:
            for writer in writers:
                if writer.done():
                    writer.result()
            await asyncio.sleep(0.01)

    await reaches(40)
    await asyncio.to_thread(disturb)
    await reaches(len(acknowledged) + 40)
    stop.set()
    await asyncio.gather(*writers)
    log = await desk.log()
    assert [logged.commit.revision for logged in log] == list(range(1, len(log) + 1))
    there = {logged.commit.request_id: logged.commit.revision for logged in log}
    assert len(there) == len(log)
    assert acknowledged.items() <= there.items()
    for error in failures:
        assert error.reason is Reason.STORAGE_DOWN, error
        without_driver_text(error)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_what_was_acknowledged_survives_a_restart_of_the_server(
    private_postgres: PostgresCluster, how: str
) -> None:
    clock = HandClock()
    store = SqlStore(postgres_engines(private_postgres.create_database())(), clock)
    await store.start()
    desk = await set_up(store, clock)

    def restart() -> None:
        (private_postgres.stop if how == "stop" else private_postgres.kill)()
        time.sleep(0.3)  # a moment in which nothing answers
        private_postgres.start()

    await follow_writers(desk, restart)
    await store.close()


async def test_a_server_that_is_down_is_told_clearly_at_start_and_in_calls(
    private_postgres: PostgresCluster,
) -> None:
    clock = HandClock()
    dsn = private_postgres.create_database()
    store = SqlStore(PostgresEngine(dsn, unsafe_for_tests=True, connect_timeout=2), clock)
    await store.start()
    desk = await set_up(store, clock)
    private_postgres.stop()
    for call in (store.ping(), desk.scan(), desk.commit(put("k", ABSENT))):
        with pytest.raises(SlateboardError, match="PostgreSQL cannot be reached") as caught:
            await call
        assert caught.value.reason is Reason.STORAGE_DOWN
    await store.close()
    other = SqlStore(PostgresEngine(dsn, connect_timeout=2), clock)
    with pytest.raises(SlateboardError, match="cannot be reached") as caught:
        await other.start()
    assert dsn.split(":")[2].split("@")[0] not in caught.value.message
    await other.close()


async def test_a_server_that_would_lose_what_it_acknowledged_is_refused() -> None:
    try:
        cluster = PostgresCluster(fsync=False)
    except PostgresUnavailable as reason:
        pytest.skip(str(reason))
    try:
        await asyncio.to_thread(cluster.start)
        store = SqlStore(PostgresEngine(cluster.create_database()), HandClock())
        with pytest.raises(SlateboardError, match="fsync=off") as caught:
            await store.start()
        assert caught.value.reason is Reason.STORAGE_DOWN
        await store.close()
    finally:
        cluster.destroy()


async def test_the_first_error_of_a_pipeline_is_the_one_that_counts(desk: Desk, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("ALTER TABLE usage ADD CONSTRAINT poison CHECK (entries < 3)")
    verdicts = await desk.batch(*[commit(put(f"k{number}", ABSENT)) for number in range(4)])
    assert [isinstance(verdict, Accepted) for verdict in verdicts] == [True, True, False, False]
    assert await desk.head() == 2


async def test_a_server_without_checksums_is_warned_of(desk: Desk, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        (checksums,) = connection.execute("SHOW data_checksums").fetchone() or ("",)
    found = any("checksums" in warning for warning in desk.store.warnings())
    assert found == (checksums == "off")
