"""SQLite: one writer thread, a few readers, WAL, synchronous=FULL.

Only the writer connection writes and checkpoints. Readers are query_only, without mmap, and keep no transaction longer
than a call, so the WAL can always be reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy.pool import NullPool

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import BoardId
from slateboard_server.storage import schema
from slateboard_server.storage.batch import Query, Rows
from slateboard_server.storage.engine import OutcomeLost, StatementFailed, WriteTx, no_failpoint
from slateboard_server.storage.filesystem import network_filesystem
from slateboard_server.storage.migrating import migrate, migration_failed
from slateboard_server.storage.reading import Tx

log = structlog.get_logger(__name__)
T = TypeVar("T")
DATABASE = "slateboard.db"
LOCK = "slateboard.lock"
_READERS = 3
_CHECKPOINT_PAGES = 4_000
_LARGE_WAL = 64 << 20
_FIXED_IN = (3, 51, 3)


class SqliteDialect:
    """SQLite's words."""

    name = "sqlite"
    for_update = ""
    join = "CROSS JOIN"
    # `c.key || ''` keeps the range of keys from being handed on to `versions`, which would be walked for each key.
    version_at = (
        "CROSS JOIN versions v ON v.board_id = :board_id AND v.region = c.region AND v.key = c.key || ''"
        " AND v.version = CASE WHEN c.mod_revision <= :revision THEN c.version ELSE"
        " (SELECT o.version FROM versions o WHERE o.board_id = :board_id AND o.region = c.region AND o.key = c.key"
        " AND o.revision <= :revision ORDER BY o.version DESC LIMIT 1) END"
    )

    def pairs(self, name: str) -> str:
        return f"(SELECT value ->> 0 AS region, value ->> 1 AS key FROM json_each(:{name}))"

    def triples(self, name: str) -> str:
        return (
            "(SELECT value ->> 0 AS region, value ->> 1 AS key, value ->> 2 AS version"
            f" FROM json_each(:{name}))"
        )

    def words(self, name: str) -> str:
        return f"(SELECT value AS word FROM json_each(:{name}))"

    def numbers(self, name: str) -> str:
        return f"(SELECT value AS number FROM json_each(:{name}))"

    @lru_cache  # noqa: B019 -- one dialect a process
    def insert(self, table: str) -> str:
        names = [column.name for column in schema.metadata.tables[table].columns]
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)})"

    def upsert(self, table: str) -> str:
        return self.insert(table).replace("INSERT", "INSERT OR REPLACE", 1)


class SqliteTx:
    """An open transaction on a connection."""

    def __init__(self, connection: sqlite3.Connection, dialect: SqliteDialect) -> None:
        self._connection = connection
        self.dialect = dialect

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def run(self, sql: str, **params: Any) -> int:
        return self._connection.execute(sql, params).rowcount

    def insert(self, table: str, **row: Any) -> None:
        self._connection.execute(self.dialect.insert(table), row)

    def upsert(self, table: str, **row: Any) -> None:
        self._connection.execute(self.dialect.upsert(table), row)

    def delete_some(self, table: str, board_id: int, limit: int) -> int:
        # One by one: for a list of keys, SQLite would walk the whole board once more.
        names = [column.name for column in schema.metadata.tables[table].primary_key]
        rows = self._connection.execute(
            f"SELECT {', '.join(names)} FROM {table} WHERE board_id = ? LIMIT ?", (board_id, limit)
        ).fetchall()
        where = " AND ".join(f"{name} = ?" for name in names)
        self._connection.executemany(f"DELETE FROM {table} WHERE {where}", rows)
        return len(rows)

    def gather(self, queries: Mapping[str, Query]) -> dict[str, Rows]:
        return {
            name: self._connection.execute(sql, params).fetchall() for name, (sql, params) in queries.items()
        }

    def execute_all(self, statements: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
        for sql, rows in statements:
            if len(rows) == 1:
                self._connection.execute(sql, rows[0])
            else:
                self._connection.executemany(sql, rows)

    def wake(self, board_id: BoardId) -> None:
        """Nobody else writes this file."""


class SqliteEngine:
    """One database file, one process."""

    def __init__(
        self, directory: Path, *, owner: str = "", failpoint: Callable[[str], None] | None = None
    ) -> None:
        """Keep the file in `directory`; `owner` (an address) is told to whoever finds the directory in use."""
        self._directory = directory
        self._path = directory / DATABASE
        self._owner = owner
        self._failpoint = failpoint or no_failpoint
        self.dialect = SqliteDialect()
        self._writer_pool = ThreadPoolExecutor(1, "slate-writer")
        self._reader_pool = ThreadPoolExecutor(_READERS, "slate-reader")
        self._readers = threading.local()
        self._reader_connections: list[sqlite3.Connection] = []
        self._generation = 0
        self._writer: sqlite3.Connection | None = None
        self._closed = False
        self._next_truncate = 0.0
        self._lock_fd: int | None = None

    async def start(self) -> None:
        """Take the directory, open the file."""
        await _in(self._writer_pool, self._open)

    async def close(self) -> None:
        """Finish, checkpoint, let the directory go."""
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            # Running calls end first: a connection must not be closed under a thread that uses it.
            await loop.run_in_executor(None, self._reader_pool.shutdown)
            await loop.run_in_executor(self._writer_pool, self._close)
            await loop.run_in_executor(None, self._writer_pool.shutdown)

    # Writer thread

    def _open(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _down(f"the data directory {self._directory} cannot be made", error.strerror) from error
        self._take_lock()
        try:
            self._make_file()
            self._check_file()
            self._writer = self._connect_writer()
            self._migrate()
        except BaseException:
            self._close()
            raise

    def _make_file(self) -> None:
        """Let nobody else read what a new file will hold, however open the directory is; SQLite's other files follow."""
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise _down(f"{self._path} cannot be made", error.strerror) from error

    def _check_file(self) -> None:
        """Refuse a file that lost its end. Where there is a WAL, it may hold what the file lacks."""
        wal = self._path.with_name(DATABASE + "-wal")
        if not self._path.exists() or (wal.exists() and wal.stat().st_size):
            return
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            header = file.read(100)
        if len(header) == 100 and header[24:28] == header[92:96]:
            page = int.from_bytes(header[16:18], "big")
            pages = int.from_bytes(header[28:32], "big")
            if size < pages * (65_536 if page == 1 else page):
                log.error("database file is too short", size=size, pages=pages)
                raise corrupt()

    def _migrate(self) -> None:
        """Bring the schema up to date on a connection of its own; the directory's lock keeps others out."""
        engine = sa.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(self._path, isolation_level=None, check_same_thread=False),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
        )
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA synchronous = FULL")
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                migrate(connection)
                connection.exec_driver_sql("COMMIT")
        except sa.exc.DBAPIError as error:
            if isinstance(error.orig, sqlite3.Error) and isinstance(
                known := translate(error.orig), SlateboardError
            ):
                raise known from error
            raise migration_failed(error) from error

    def describe(self) -> str:
        """Say what it is."""
        return f"sqlite {sqlite3.sqlite_version}"

    def listen(self, on_wake: Callable[[BoardId], None]) -> None:
        """Nobody else writes this file."""

    def warnings(self) -> list[str]:
        """Say what a newer SQLite would mend, and what the directory lacks."""
        found = []
        if sqlite3.sqlite_version_info < _FIXED_IN:
            found.append(
                f"SQLite {sqlite3.sqlite_version} is older than {'.'.join(map(str, _FIXED_IN))}, which mends a rare"
                " loss of data when the write-ahead log starts over: use a Python built with a newer SQLite"
            )
        kind = network_filesystem(self._directory)
        if kind is not None:
            found.append(
                f"the data directory lies on a network file system ({kind}), whose locks and flushes SQLite cannot rely"
                " on: move it to a local disk"
            )
        return found

    def _take_lock(self) -> None:
        path = self._directory / LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _down(f"{path} cannot be written", error.strerror) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(fd, 1_000).decode(errors="replace").strip() or "another process"
            os.close(fd)
            raise SlateboardError(
                Reason.STORAGE_DOWN,
                f"the data directory {self._directory} is in use by {holder}; stop that server, or choose another"
                " directory with --data",
            ) from error
        except OSError as error:
            os.close(fd)
            raise _down(f"{path} cannot be locked", error.strerror) from error
        self._lock_fd = fd
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
            os.ftruncate(fd, 0)
            os.write(fd, f"pid {os.getpid()} on {socket.gethostname()} {self._owner}".strip().encode())

    def _connect_writer(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            connection.execute("PRAGMA cache_size = -16384")
            connection.execute("PRAGMA mmap_size = 0")
        except sqlite3.Error as error:
            raise translate(error) from error
        return connection

    def _close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._writer.close()
            self._writer = None
        for connection in self._reader_connections:
            connection.close()
        self._reader_connections.clear()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def write(self, work: Callable[[WriteTx], T], timeout: float) -> T:
        """Run a write transaction on the writer thread."""
        deadline = time.monotonic() + timeout
        return await _in(self._writer_pool, lambda: self._write(work, deadline))

    def _write(self, work: Callable[[WriteTx], T], deadline: float) -> T:
        if time.monotonic() > deadline:
            raise _down("the database did not get to this write in time")
        connection = self._writer
        if connection is None:
            connection = self._reopen()
        tx = SqliteTx(connection, self.dialect)
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = work(tx)
            self._failpoint("before commit")
        except sqlite3.Error as error:
            self._roll_back(connection)
            known = translate(error)
            if not isinstance(known, StatementFailed):
                self._discard()
            raise known from error
        except (OverflowError, UnicodeError) as error:  # a parameter that SQLite cannot hold
            self._roll_back(connection)
            log.warning("sqlite parameter", kind=type(error).__name__)
            raise StatementFailed from error
        except BaseException:
            self._roll_back(connection)
            raise
        try:
            self._failpoint("commit")
            connection.execute("COMMIT")
            self._failpoint("after commit")
        except sqlite3.Error as error:
            # SQLite may or may not have it: after a failed fsync nothing that is cached can be believed.
            known = translate(error)
            self._discard()
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            raise OutcomeLost(
                known if isinstance(known, SlateboardError) else None, passing=not full
            ) from error
        self._checkpoint(connection)
        return result

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _discard(self) -> None:
        """Close the writer's connection: what it has in memory cannot be believed. The next write opens another."""
        connection, self._writer = self._writer, None
        self._generation += 1
        if connection is not None:
            self._roll_back(connection)
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _reopen(self) -> sqlite3.Connection:
        if self._closed or self._lock_fd is None:
            raise _down("the database is closed")
        log.warning("opening the database again")
        self._writer = self._connect_writer()
        return self._writer

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Shorten a WAL that grew in spite of the automatic checkpoints, since somebody was always reading."""
        wal = self._path.with_name(DATABASE + "-wal")
        with contextlib.suppress(OSError, sqlite3.Error):
            if time.monotonic() >= self._next_truncate and wal.stat().st_size > _LARGE_WAL:
                self._next_truncate = time.monotonic() + 1
                connection.execute("PRAGMA busy_timeout = 100")
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    connection.execute("PRAGMA busy_timeout = 5000")

    # Readers

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run reads in one snapshot on a reader thread."""
        return await _in(self._reader_pool, lambda: self._read(work))

    def _read(self, work: Callable[[Tx], T]) -> T:
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return work(SqliteTx(connection, self.dialect))
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            known = translate(error)
            if not isinstance(known, StatementFailed):
                self._readers.generation = -1
            raise known from error

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        if connection is None or self._readers.generation != self._generation:
            if connection is not None:
                self._readers.connection = None
                self._reader_connections.remove(connection)
                connection.close()
            generation = self._generation
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=10
            )
            self._reader_connections.append(connection)
            self._readers.connection = connection
            self._readers.generation = generation
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA mmap_size = 0")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise _down("the database is closed") from error


def corrupt() -> SlateboardError:
    """Say that the file is damaged."""
    return SlateboardError(
        Reason.STORAGE_CORRUPT,
        "the database failed an integrity check; stop the server, keep the files, restore from a backup",
    )


def _down(what: str, why: str | None = None) -> SlateboardError:
    reason = f" ({why})" if why else ""
    return SlateboardError(
        Reason.STORAGE_DOWN,
        f"{what}{reason}; what was acknowledged is safe: mend it and retry with the same request_id",
    )


def translate(error: sqlite3.Error) -> Exception:
    """Tell SQLite's errors apart by what to do about them; its own words go to the log only."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    log.warning("sqlite error", code=code, name=getattr(error, "sqlite_errorname", ""), text=str(error))
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return corrupt()
    if code == sqlite3.SQLITE_FULL:
        return _down("the disk is full")
    if code == sqlite3.SQLITE_READONLY:
        return _down("the database is read-only")
    if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}:
        return _down("the database file cannot be read or written")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT}:
        return _down("the database is busy")
    return StatementFailed()
