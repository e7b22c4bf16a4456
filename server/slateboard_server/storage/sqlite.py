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
from slateboard_server.storage.migrating import migrate, migration_failed
from slateboard_server.storage.reading import Tx

log = structlog.get_logger(__name__)
T = TypeVar("T")
DATABASE = "slateboard.db"
LOCK = "slateboard.lock"
_READERS = 3
_CHECKPOINT_PAGES = 4_000


class SqliteDialect:
    """SQLite's words."""

    name = "sqlite"
    for_update = ""
    join = "CROSS JOIN"

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
        key = ", ".join(column.name for column in schema.metadata.tables[table].primary_key)
        return self.run(
            f"DELETE FROM {table} WHERE ({key}) IN"
            f" (SELECT {key} FROM {table} WHERE board_id = :board_id LIMIT :limit)",
            board_id=board_id,
            limit=limit,
        )

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
        self._lock_fd: int | None = None

    async def start(self) -> None:
        """Take the directory, open the file."""
        await asyncio.get_running_loop().run_in_executor(self._writer_pool, self._open)

    async def close(self) -> None:
        """Finish, checkpoint, let the directory go."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer_pool, self._close)
        self._writer_pool.shutdown()
        self._reader_pool.shutdown()

    # Writer thread

    def _open(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _down(f"the data directory {self._directory} cannot be made", error.strerror) from error
        self._take_lock()
        self._writer = self._connect_writer()
        self._migrate()

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
        """Say what a newer SQLite would mend."""
        return []

    def _take_lock(self) -> None:
        path = self._directory / LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _down(f"{path} cannot be written", error.strerror) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(fd, 1_000).decode(errors="replace").strip() or "another process"
            os.close(fd)
            raise SlateboardError(
                Reason.STORAGE_DOWN,
                f"the data directory {self._directory} is in use by {holder}; stop that server, or choose another"
                " directory with --data",
            ) from error
        os.ftruncate(fd, 0)
        os.write(fd, f"pid {os.getpid()} on {socket.gethostname()} {self._owner}".strip().encode())
        self._lock_fd = fd

    def _connect_writer(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA foreign_keys = ON")
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
        return await asyncio.get_running_loop().run_in_executor(
            self._writer_pool, self._write, work, deadline
        )

    def _write(self, work: Callable[[WriteTx], T], deadline: float) -> T:
        if time.monotonic() > deadline:
            raise _down("the database did not get to this write in time")
        connection = self._writer
        if connection is None:
            raise _down("the database is closed")
        tx = SqliteTx(connection, self.dialect)
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = work(tx)
            self._failpoint("before commit")
        except sqlite3.Error as error:
            self._roll_back(connection)
            raise translate(error) from error
        except BaseException:
            self._roll_back(connection)
            raise
        try:
            connection.execute("COMMIT")
            self._failpoint("after commit")
        except sqlite3.Error as error:
            # SQLite may or may not have it: after a failed fsync nothing that is cached can be believed.
            self._reopen()
            raise OutcomeLost from error
        self._checkpoint(connection)
        return result

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _reopen(self) -> None:
        if self._writer is not None:
            self._roll_back(self._writer)
            with contextlib.suppress(sqlite3.Error):
                self._writer.close()
        self._generation += 1
        self._writer = self._connect_writer()

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        wal = self._path.with_name(DATABASE + "-wal")
        with contextlib.suppress(OSError, sqlite3.Error):
            if wal.stat().st_size > _CHECKPOINT_PAGES * 4_096:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # Readers

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run reads in one snapshot on a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._reader_pool, self._read, work)

    def _read(self, work: Callable[[Tx], T]) -> T:
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return work(SqliteTx(connection, self.dialect))
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translate(error) from error

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        if connection is None or self._readers.generation != self._generation:
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=10
            )
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA mmap_size = 0")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._readers.connection = connection
            self._readers.generation = self._generation
            self._reader_connections.append(connection)
        return connection


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
        return SlateboardError(
            Reason.STORAGE_CORRUPT,
            "the database failed an integrity check; stop the server, keep the files, restore from a backup",
        )
    if code == sqlite3.SQLITE_FULL:
        return _down("the disk is full")
    if code == sqlite3.SQLITE_READONLY:
        return _down("the database is read-only")
    if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}:
        return _down("the database file cannot be read or written")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT}:
        return _down("the database is busy")
    return StatementFailed()
