"""Faults on either database: one bad commit in a batch, answers that get lost, a writer that is killed."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted
from slateboard_server.domain.policy import Policy
from slateboard_server.domain.values import Micros, PrincipalId, TokenId
from slateboard_server.ports import AuditRecord
from slateboard_server.storage.store import SqlStore
from tests.judging import ABSENT, OPERATOR, append, commit, put
from tests.storing import (
    Desk,
    HandClock,
    MakeEngine,
    a_session,
    let_in,
    new_board,
    refused,
    refuses,
    set_up,
    without_driver_text,
)

OpenStore = Callable[..., Awaitable[SqlStore]]


@pytest.fixture
def run_sql(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], None]:
    """Runs a statement on the test's database, past the store."""

    def run(sql: str) -> None:
        if database == "sqlite":
            connection = sqlite3.connect(tmp_path / "data" / "slateboard.db")
            connection.execute(sql)
            connection.commit()
            connection.close()
        else:
            with psycopg.connect(request.getfixturevalue("postgres_dsn")) as pg:
                pg.execute(sql)

    return run


def refuse_key(database: str, key: str) -> str:
    """Return a statement after which the database itself refuses a key."""
    if database == "sqlite":
        return (
            f"CREATE TRIGGER poison BEFORE INSERT ON versions WHEN new.key = '{key}'"
            " BEGIN SELECT raise(ABORT, 'poisoned'); END"
        )
    return f"ALTER TABLE versions ADD CONSTRAINT poison CHECK (key <> '{key}') NOT VALID"


async def test_a_database_error_fails_only_the_commit_that_caused_it(
    desk: Desk, database: str, run_sql: Callable[[str], None]
) -> None:
    run_sql(refuse_key(database, "poison"))
    items = [commit(put(key, ABSENT)) for key in ("a", "b", "poison", "c")]
    verdicts = await desk.batch(*items)
    assert [isinstance(verdict, Accepted) for verdict in verdicts] == [True, True, False, True]
    error = refused(verdicts[2])
    assert error.reason is Reason.INTERNAL
    without_driver_text(error)
    assert await desk.keys() == ["a", "b", "c"]
    assert [logged.commit.revision for logged in await desk.log()] == [1, 2, 3]


class LostAnswers:
    """Loses the answer to the next COMMITs, as a cut connection or a failed fsync would."""

    def __init__(self, database: str) -> None:
        self.point = "after commit"
        self.left = 0
        self._database = database

    def __call__(self, point: str) -> None:
        if self.left and point == self.point:
            self.left -= 1
            if self._database == "sqlite":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
            raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.fixture
def losing(database: str) -> LostAnswers:
    return LostAnswers(database)


@pytest.fixture
async def losing_desk(open_store: OpenStore, clock: HandClock, losing: LostAnswers) -> Desk:
    return await set_up(await open_store(losing), clock)


async def test_a_commit_whose_answer_got_lost_is_found_and_not_done_again(
    losing_desk: Desk, losing: LostAnswers
) -> None:
    desk = losing_desk
    await desk.commit(put("first", ABSENT))
    losing.left = 1
    verdicts = await desk.batch(commit(append("log/", b"x")), commit(put("k", ABSENT)))
    assert losing.left == 0
    assert all(isinstance(verdict, Accepted) for verdict in verdicts)
    assert len(await desk.keys("log/")) == 1
    assert [logged.commit.revision for logged in await desk.log()] == [1, 2, 3]
    await desk.commit(put("after", ABSENT))


@pytest.mark.parametrize("database", ["sqlite"])  # PostgreSQL's backends are killed in earnest elsewhere
async def test_a_commit_that_did_not_happen_is_done_once(losing_desk: Desk, losing: LostAnswers) -> None:
    losing.point, losing.left = "commit", 1
    await losing_desk.commit(append("log/", b"x"))
    assert losing.left == 0
    assert len(await losing_desk.keys("log/")) == 1
    assert await losing_desk.head() == 1


async def test_a_database_that_confirms_nothing_is_down_and_comes_back(
    losing_desk: Desk, losing: LostAnswers
) -> None:
    losing.left = 1 << 30
    with refuses(Reason.STORAGE_DOWN):
        await losing_desk.store.create_board(new_board("other"))
    losing.left = 0
    assert (await losing_desk.store.create_board(new_board("third"))).name == "third"


async def test_every_other_write_may_be_repeated_after_a_lost_answer(
    losing_desk: Desk, losing: LostAnswers
) -> None:
    desk, store = losing_desk, losing_desk.store
    eve = PrincipalId("eve")

    async def lose() -> None:
        assert losing.left == 0
        losing.left = 1

    await lose()
    await store.audit([AuditRecord(Micros(1), eve, "action")])
    assert len(await store.list_audit(None, 10)) == 1
    await lose()
    other = await store.create_board(new_board("other", request_id=""))
    await lose()
    await let_in(store, eve, "t-eve")
    await lose()
    found = await store.find_token(TokenId("t-eve"))
    assert found is not None
    await store.add_token(replace(found[0], token_id=TokenId("t-new")), Micros(9))
    assert [token.expires for token in await store.list_tokens(eve)] == [9, None]
    await lose()
    session = await store.start_session(desk.id, a_session("s"), "")
    await lose()
    assert await store.touch_session(desk.id, "s", session.started, "x") is not None  # type: ignore[arg-type]
    await lose()
    assert await store.set_policy(other.board_id, Policy(), 1, OPERATOR, Micros(5)) is not None
    await lose()
    reborn = await store.reincarnate(other.board_id, other.head.incarnation)
    assert reborn is not None
    await lose()
    assert await store.delete_board(other.board_id, reborn.head.incarnation)
    await lose()
    assert await store.disable_principal(eve)
    assert losing.left == 0


_WRITERS = """
import asyncio, sys
from pathlib import Path
from slateboard_server.domain.judge import Accepted
from slateboard_server.services.commit_queue import CommitQueue
from slateboard_server.services.settings import DataPathSettings
from slateboard_server.storage.store import SqlStore
from tests.judging import ABSENT, commit, put
from tests.storing import HandClock, postgres_engines, sqlite_engines

async def main(kind, where, board):
    make = sqlite_engines(Path(where)) if kind == "sqlite" else postgres_engines(where)
    clock = HandClock()
    store = SqlStore(make(), clock)
    await store.start()
    queue = CommitQueue(lambda items, timeout: store.commit(board, items, timeout), clock, DataPathSettings())
    async def write(name):
        number = 0
        while True:
            ops = [put(f"{name}/{number}/{part}", ABSENT, b"v" * 100) for part in range(3)]
            verdict = await queue.submit(commit(*ops, request_id=f"{name}-{number}"), 20)
            assert isinstance(verdict, Accepted), verdict
            print(name, number, verdict.answer.revision, flush=True)
            number += 1
    await asyncio.gather(*[write(f"w{number}") for number in range(64)])

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_a_kill_loses_nothing_acknowledged_and_leaves_nothing_by_halves(
    database: str,
    make_engine: MakeEngine,
    clock: HandClock,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    store = SqlStore(make_engine(), clock)
    await store.start()
    desk = await set_up(store, clock)
    await store.close()
    where = str(tmp_path / "data") if database == "sqlite" else request.getfixturevalue("postgres_dsn")
    for attempt in range(2):
        lines = await asyncio.to_thread(killed_writer, database, where, desk.id)
        store = SqlStore(make_engine(), clock)
        await store.start()
        desk = Desk(store, clock, desk.board)
        log = await desk.log()
        assert [logged.commit.revision for logged in log] == list(range(1, len(log) + 1))
        assert all(len(logged.versions) == 3 for logged in log)
        there = {logged.commit.request_id: logged.commit.revision for logged in log}
        for name, number, revision in lines:
            assert there[f"{name}-{number}"] == int(revision)
        assert len(lines) >= 100
        assert len(await desk.keys("w0/")) % 3 == 0
        await desk.store.delete_board(desk.id, desk.board.head.incarnation)
        desk = Desk(store, clock, await store.create_board(new_board(f"team-{attempt}")))
        await store.close()


def killed_writer(kind: str, where: str, board: int) -> list[list[str]]:
    """Run 64 writers in a process, kill it in mid-work; return what it had acknowledged."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITERS, kind, where, str(board)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    lines: list[str] = []
    while len(lines) < 400:
        line = process.stdout.readline()
        assert line, "the writers ended by themselves"
        lines.append(line)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    whole = "".join(lines) + rest
    acknowledged = [line.split() for line in whole[: whole.rfind("\n") + 1].splitlines()]
    return [words for words in acknowledged if len(words) == 3 and words[0].startswith("w")]


async def test_a_closed_store_says_so_and_closes_again_quietly(
    open_store: OpenStore, clock: HandClock
) -> None:
    store = await open_store()
    desk = await set_up(store, clock)
    busy = [asyncio.create_task(desk.batch(commit(put(f"k{number}", ABSENT)))) for number in range(20)]
    reads = [asyncio.create_task(desk.scan()) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    results = await asyncio.gather(*busy, *reads, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            assert getattr(result, "reason", result) is Reason.STORAGE_DOWN
    for call in (desk.scan(), desk.commit(put("x", ABSENT)), store.ping()):
        with refuses(Reason.STORAGE_DOWN):
            await call
    again = await open_store()
    log = await Desk(again, clock, desk.board).log()
    assert len(log) >= sum(isinstance(result, list) for result in results)
