import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted
from slateboard_server.storage import sqlite
from slateboard_server.storage.sqlite import SqliteEngine
from slateboard_server.storage.store import SqlStore
from tests.judging import ABSENT, ANY, commit, put
from tests.storing import Desk, HandClock, refused, refuses, set_up, without_driver_text

PAGE = 4_096


class Home:
    """A data directory with stores that come and go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / sqlite.DATABASE
        self.clock = HandClock()
        self._open: list[SqlStore] = []

    async def open(self, owner: str = "") -> SqlStore:
        store = SqlStore(SqliteEngine(self.directory, owner=owner), self.clock)
        self._open.append(store)
        await store.start()
        return store

    async def close(self) -> None:
        for store in self._open:
            await store.close()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    home = Home(tmp_path / "data")
    yield home
    await home.close()


def writer(store: SqlStore) -> sqlite3.Connection:
    engine = store._engine
    assert isinstance(engine, SqliteEngine)
    assert engine._writer is not None
    return engine._writer


async def test_a_full_disk_refuses_writes_keeps_everything_and_ends_when_there_is_space(home: Home) -> None:
    store = await home.open()
    desk = await set_up(store, home.clock)
    await desk.commit(put("kept", ABSENT, b"kept"))
    [(pages,)] = writer(store).execute("PRAGMA page_count").fetchall()
    writer(store).execute(f"PRAGMA max_page_count = {pages + 20}")
    done = 0
    with refuses(Reason.STORAGE_DOWN):
        for number in range(50):
            await desk.commit(put(f"k{number}", ABSENT, b"x" * 4 * PAGE))
            done += 1
    assert 0 < done < 50
    assert await desk.value("kept") == b"kept"
    assert await desk.head() == done + 1
    # The refused write closed the connection, and with it went the bound: there is space again.
    await desk.commit(put("after", ABSENT, b"x" * 4 * PAGE))
    assert [logged.commit.revision for logged in await desk.log()] == list(range(1, done + 3))


async def test_the_words_for_a_full_disk_say_what_to_do(home: Home) -> None:
    store = await home.open()
    desk = await set_up(store, home.clock)
    writer(store).execute("PRAGMA max_page_count = 1")
    with pytest.raises(SlateboardError, match=r"disk is full.*retry with the same request_id") as caught:
        await desk.commit(put("k", ABSENT, b"x" * 100 * PAGE))
    without_driver_text(caught.value)


@pytest.mark.skipif(os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="mounts a small tmpfs")
async def test_a_real_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    mounted = await asyncio.to_thread(subprocess.run, mounting, capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    home = Home(disk / "data")
    try:
        store = await home.open()
        desk = await set_up(store, home.clock)
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * (1 << 20))
        done = 0

        async def fill() -> None:
            nonlocal done
            for number in range(500):
                await desk.commit(put(f"k{number}", ABSENT, b"x" * 2 * PAGE))
                done += 1

        with pytest.raises(SlateboardError, match=r"disk is full.*retry"):
            await fill()
        assert 0 < done < 500
        assert await desk.head() == done
        ballast.unlink()
        await desk.commit(put("after", ABSENT, b"x" * 2 * PAGE))
        await store.close()
        again = Desk(await home.open(), home.clock, desk.board)
        assert [logged.commit.revision for logged in await again.log()] == list(range(1, done + 2))
    finally:
        await home.close()
        await asyncio.to_thread(subprocess.run, ["umount", str(disk)], check=True)


async def test_a_second_process_on_the_directory_hears_who_has_it(home: Home) -> None:
    await home.open(owner="(slateboard, 127.0.0.1:7420)")
    with pytest.raises(SlateboardError) as caught:
        await home.open()
    assert caught.value.reason is Reason.STORAGE_DOWN
    for part in (str(home.directory), f"pid {os.getpid()}", socket.gethostname(), "127.0.0.1:7420", "--data"):
        assert part in caught.value.message


async def test_the_directory_is_free_again_after_close_and_after_a_failed_start(home: Home) -> None:
    await (await home.open()).close()
    home.file.write_bytes(b"not a database at all" * 400)
    with refuses(Reason.STORAGE_CORRUPT):
        await home.open()
    home.file.unlink()
    await (await home.open()).ping()


async def filled(home: Home) -> Desk:
    """Write a board of some pages and close its store."""
    store = await home.open()
    desk = await set_up(store, home.clock)
    for number in range(20):
        await desk.commit(put(f"k{number}", ABSENT, b"x" * PAGE), put("hot", ANY, b"%d" % number))
    await store.close()
    return desk


async def test_a_file_that_lost_its_end_is_refused_at_start(home: Home) -> None:
    await filled(home)
    with home.file.open("r+b") as file:
        file.truncate(home.file.stat().st_size - 3 * PAGE)
    with refuses(Reason.STORAGE_CORRUPT):
        await home.open()


async def test_garbage_in_the_header_is_refused_at_start(home: Home) -> None:
    await filled(home)
    with home.file.open("r+b") as file:
        file.write(os.urandom(100))
    with refuses(Reason.STORAGE_CORRUPT):
        await home.open()


async def test_garbage_in_the_middle_is_corrupt_when_it_is_read_and_never_a_wrong_answer(home: Home) -> None:
    desk = await filled(home)
    size = home.file.stat().st_size
    with home.file.open("r+b") as file:
        file.seek(PAGE * (size // PAGE // 3))
        file.write(b"\xff" * (size // 2))
    with pytest.raises(SlateboardError) as caught:
        # Whether the start reads the bad pages depends on where they lie.
        await Desk(await home.open(), home.clock, desk.board).log()
    assert caught.value.reason is Reason.STORAGE_CORRUPT
    without_driver_text(caught.value)


_READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from slateboard_server.domain.errors import SlateboardError
from slateboard_server.storage.sqlite import SqliteEngine
from slateboard_server.storage.store import SqlStore
from tests.storing import HandClock

async def main():
    if os.geteuid() == 0:
        os.setuid(65534)
    store = SqlStore(SqliteEngine(Path(sys.argv[1])), HandClock())
    try:
        await store.start()
    except SlateboardError as error:
        print(error.reason, error.message)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("inside", [False, True])
async def test_a_read_only_directory_is_named(home: Home, inside: bool) -> None:
    await filled(home)
    for folder in (home.directory.parent, *home.directory.parents[1:3]):
        folder.chmod(0o755)
    if inside:
        (home.directory / sqlite.LOCK).chmod(0o666)
        home.file.chmod(0o444)
    home.directory.chmod(0o555)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _READ_ONLY, str(home.directory)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    home.directory.chmod(0o700)
    assert ran.returncode == 0, ran.stderr
    last = ran.stdout.splitlines()[-1]
    assert last.startswith("STORAGE_DOWN")
    assert "cannot be" in last or "read-only" in last


async def test_a_failed_fsync_closes_the_file_and_opens_it_again(tmp_path: Path) -> None:
    failing = False

    def failpoint(point: str) -> None:
        if failing and point == "commit":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

    clock = HandClock()
    engine = SqliteEngine(tmp_path / "data", failpoint=failpoint)
    store = SqlStore(engine, clock)
    await store.start()
    desk = await set_up(store, clock)
    first = writer(store)
    failing = True
    with refuses(Reason.STORAGE_DOWN):
        await desk.commit(put("k", ABSENT))
    assert await desk.head() == 0
    failing = False
    await desk.commit(put("k", ABSENT))
    assert writer(store) is not first
    with pytest.raises(sqlite3.ProgrammingError):
        first.execute("SELECT 1")
    assert [logged.commit.revision for logged in await desk.log()] == [1]
    await store.close()


async def test_a_reader_that_lingers_does_not_stop_writers_and_the_log_file_stays_bounded(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LARGE_WAL", 1 << 20)
    store = await home.open()
    desk = await set_up(store, home.clock)
    lingering = sqlite3.connect(home.file, isolation_level=None)
    lingering.execute("BEGIN")
    lingering.execute("SELECT count(*) FROM versions").fetchall()
    for number in range(40):
        await desk.commit(put(f"k{number}", ABSENT, b"x" * 65_536))
    wal = home.file.with_name(sqlite.DATABASE + "-wal")
    grown = wal.stat().st_size
    assert grown > 1 << 20
    lingering.execute("COMMIT")
    lingering.close()
    engine = store._engine
    assert isinstance(engine, SqliteEngine)
    engine._next_truncate = 0.0
    await desk.commit(put("last", ABSENT))
    assert wal.stat().st_size < grown


async def test_the_settings_that_durability_rests_on_are_on(home: Home) -> None:
    store = await home.open()
    assert writer(store).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer(store).execute("PRAGMA synchronous").fetchone() == (2,)
    assert (home.directory.stat().st_mode & 0o077) == 0
    if sqlite3.sqlite_version_info < (3, 51, 3):
        assert any("SQLite" in warning for warning in store.warnings())
    assert store.describe() == f"sqlite {sqlite3.sqlite_version}"


async def test_nobody_else_reads_the_files_even_where_the_directory_is_open(home: Home) -> None:
    home.directory.mkdir(mode=0o755)
    desk = await set_up(await home.open(), home.clock)
    await desk.commit(put("k", ABSENT, b"private"))
    files = sorted(home.directory.iterdir())
    assert [file.name for file in files if file.stat().st_mode & 0o077] == []
    assert home.file in files


async def test_text_that_no_database_takes_fails_alone(home: Home) -> None:
    desk = await set_up(await home.open(), home.clock)
    bad = replace(commit(put("b", ABSENT)), note="\ud800")
    verdicts = await desk.batch(commit(put("a", ABSENT)), bad, commit(put("c", ABSENT)))
    assert [isinstance(verdict, Accepted) for verdict in verdicts] == [True, False, True]
    assert refused(verdicts[1]).reason is Reason.INTERNAL
