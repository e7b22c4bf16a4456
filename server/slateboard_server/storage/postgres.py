"""PostgreSQL: pooled connections in threads, pipelines, READ COMMITTED writes under the board's row lock.

A batch is two round trips: the row lock with everything the judge needs, then what it decided with the COMMIT. Reads are
one REPEATABLE READ snapshot. NOTIFY only wakes others up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
import structlog
from psycopg import errors as pg_errors
from psycopg_pool import ConnectionPool, PoolTimeout
from sqlalchemy import LargeBinary
from sqlalchemy.pool import NullPool

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import BoardId
from slateboard_server.storage import schema
from slateboard_server.storage.batch import Query, Rows
from slateboard_server.storage.engine import OutcomeLost, StatementFailed, WriteTx, no_failpoint
from slateboard_server.storage.migrating import check, migrate, migration_failed
from slateboard_server.storage.reading import Tx

log = structlog.get_logger(__name__)
T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

CHANNEL = "slateboard_boards"
_KEEPALIVES: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_MIGRATION_LOCK = 0x51A7_EB0A_4D16
_WRITERS = 4
_READERS = 4
_PARAMETER = re.compile(r"(?<!:):([a-z_]\w*)")
_TIMEOUTS = "SELECT set_config('lock_timeout', :lock_ms, true), set_config('statement_timeout', :ms, true)"
_LOCK_WAIT = 3.0
"""Seconds to wait for another writer before looking whether it is still there."""
# A writer that stopped in the middle of a pipeline is not idle in a transaction to PostgreSQL, but waits for its client all
# the same, for as long as that is stopped: no timeout of PostgreSQL before 17 ends it.
_END_STUCK = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = 'slateboard'
AND pid <> pg_backend_pid() AND wait_event = 'ClientRead' AND state <> 'idle'
AND xact_start < clock_timestamp() - make_interval(secs => %s)
"""
# Plans are made anew for each execution: one kept from when a board was small would walk it for minutes once it is large.
# Helper processes and compilation take longer to set up than any of these queries should run.
_OPTIONS = (
    "-c idle_in_transaction_session_timeout=5000 -c plan_cache_mode=force_custom_plan"
    " -c jit=off -c max_parallel_workers_per_gather=0"
)


class PostgresDialect:
    """PostgreSQL's words."""

    name = "postgresql"
    join = "JOIN"
    for_update = " FOR UPDATE"
    version_at = (
        "CROSS JOIN LATERAL (SELECT o.* FROM versions o WHERE o.board_id = :board_id AND o.region = c.region"
        " AND o.key = c.key AND o.revision <= :revision ORDER BY o.version DESC LIMIT 1) v"
    )

    def pairs(self, name: str) -> str:
        return f"(SELECT e ->> 0 AS region, e ->> 1 AS key FROM jsonb_array_elements(:{name}::jsonb) AS e)"

    def triples(self, name: str) -> str:
        return (
            "(SELECT e ->> 0 AS region, e ->> 1 AS key, (e ->> 2)::bigint AS version"
            f" FROM jsonb_array_elements(:{name}::jsonb) AS e)"
        )

    def words(self, name: str) -> str:
        return f"(SELECT e AS word FROM jsonb_array_elements_text(:{name}::jsonb) AS e)"

    def numbers(self, name: str) -> str:
        return f"(SELECT e::bigint AS number FROM jsonb_array_elements_text(:{name}::jsonb) AS e)"

    def insert(self, table: str) -> str:
        return _insert(table)

    def upsert(self, table: str) -> str:
        return _upsert(table)


@lru_cache
def _insert(table: str) -> str:
    names = [column.name for column in schema.metadata.tables[table].columns]
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)})"


@lru_cache
def _upsert(table: str) -> str:
    key = [column.name for column in schema.metadata.tables[table].primary_key]
    rest = [column.name for column in schema.metadata.tables[table].columns if column.name not in key]
    action = f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "NOTHING"
    return f"{_insert(table)} ON CONFLICT ({', '.join(key)}) DO {action}"


@lru_cache(maxsize=1024)
def _native(sql: str) -> bytes:
    """Write `:name` as the driver wants it."""
    return _PARAMETER.sub(r"%(\1)s", sql).encode()


# A batch looks up by primary key, from the list of what it wants: no statistics of a table that was empty a moment ago may
# make that a scan of the board.
_LOOK_UPS = (
    "set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),"
    " set_config('enable_material', 'off', true), set_config('enable_seqscan', 'off', true)"
)
_PLAN_ONCE = "set_config('plan_cache_mode', 'force_generic_plan', true)"


@lru_cache(maxsize=256)
def _looked_up(sql: str) -> bytes:
    """Have PostgreSQL start from the list of what is wanted: what is missing comes as a row of NULLs."""
    return _native(sql.replace(" JOIN ", " LEFT JOIN "))


_KINDS = {"BigInteger": "bigint", "Integer": "integer", "SmallInteger": "smallint"}
_INSERT = re.compile(r"INSERT INTO (\w+) \(.*?\) VALUES \(.*?\)")
_BULK_VALUE_BYTES = 64 << 10


@lru_cache
def _bulk(sql: str) -> tuple[str, tuple[str, ...]] | None:
    """Write an INSERT of one row as one of many, given as JSON; also name the columns of bytes, which go as base64.

    One statement where there would be one a row; the driver's arrays are put together in Python and cost more.
    """
    found = _INSERT.match(sql)
    if found is None:
        return None
    kinds = {
        column.name: "bytes"
        if isinstance(column.type, LargeBinary)
        else _KINDS.get(type(column.type).__name__, "text")
        for column in schema.metadata.tables[found[1]].columns
    }
    fields = ", ".join(f"{name} {'text' if kind == 'bytes' else kind}" for name, kind in kinds.items())
    chosen = ", ".join(
        f"decode({name}, 'base64')" if kind == "bytes" else name for name, kind in kinds.items()
    )
    head = f"INSERT INTO {found[1]} ({', '.join(kinds)}) SELECT {chosen} FROM json_to_recordset(:rows ::json) AS r({fields})"
    return head + sql[found.end() :], tuple(name for name, kind in kinds.items() if kind == "bytes")


def _as_json(rows: Sequence[Mapping[str, Any]], of_bytes: tuple[str, ...]) -> str | None:
    """Write rows for `_bulk`; None where a value is so large that it had better go as it is."""
    if not of_bytes:
        return _encode(rows)
    encoded: list[dict[str, Any]] = []
    for row in rows:
        copy = dict(row)
        for name in of_bytes:
            value = copy[name]
            if value is not None:
                if len(value) > _BULK_VALUE_BYTES:
                    return None
                copy[name] = b2a_base64(value, newline=False).decode()
        encoded.append(copy)
    return _encode(encoded)


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


_WRITTEN = re.compile(r"(?:INSERT INTO|UPDATE) (\w+) ")
_Together = dict[str, tuple[str, dict[str, Any]]]


def _as_parameters(sql: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the parameters that `_merged` gives a statement; None where it had better go alone."""
    if (bulk := _bulk(sql)) is not None:
        text = _as_json(rows, bulk[1])
        return None if text is None else {"rows": text}
    return dict(rows[0]) if len(rows) == 1 else None


def _send_together(cursor: psycopg.Cursor[tuple[Any, ...]], together: _Together) -> None:
    """Send writes to tables of their own as one statement: none sees another, and a statement costs more than a row."""
    if together:
        params = {
            f"{table}_{name}": value
            for table, (_, given) in together.items()
            for name, value in given.items()
        }
        cursor.execute(_merged(tuple((table, sql) for table, (sql, _) in together.items())), params)
        together.clear()


@lru_cache(maxsize=256)
def _merged(statements: tuple[tuple[str, str], ...]) -> bytes:
    """Write statements as one, with the parameter `name` of each called `table_name`."""
    parts = []
    for table, sql in statements:
        bulk = _bulk(sql)
        written = sql if bulk is None else bulk[0]
        parts.append(_PARAMETER.sub(rf"%({table}_\1)s", written))
    *first, last = parts
    if not first:
        return last.encode()
    named = ", ".join(f"w{number} AS ({part})" for number, part in enumerate(first))
    return f"WITH {named} {last}".encode()


class PostgresTx:
    """An open transaction on a connection."""

    def __init__(
        self, connection: Connection, dialect: PostgresDialect, timeout: float | None = None
    ) -> None:
        """Speak on `connection`; `timeout` (s) bounds each statement and each wait for a lock."""
        self._connection = connection
        self.dialect = dialect
        self._deferred: list[tuple[str, Sequence[Mapping[str, Any]]]] = []
        if timeout is not None:
            lock_ms = max(100, round(min(timeout, _LOCK_WAIT) * 1_000))
            self._deferred.append(
                (_TIMEOUTS, [{"ms": str(max(100, round(timeout * 1_000))), "lock_ms": str(lock_ms)}])
            )

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        self.flush()
        return self._connection.execute(_native(sql), params).fetchall()

    def run(self, sql: str, **params: Any) -> int:
        self.flush()
        return self._connection.execute(_native(sql), params).rowcount

    def insert(self, table: str, **row: Any) -> None:
        self._deferred.append((self.dialect.insert(table), [row]))

    def upsert(self, table: str, **row: Any) -> None:
        self._deferred.append((self.dialect.upsert(table), [row]))

    def delete_some(self, table: str, board_id: int, limit: int) -> int:
        return self.run(
            f"DELETE FROM {table} WHERE ctid IN"
            f" (SELECT ctid FROM {table} WHERE board_id = :board_id LIMIT :limit)",
            board_id=board_id,
            limit=limit,
        )

    def gather(self, queries: Mapping[str, Query]) -> dict[str, Rows]:
        of_ranges = any(name.startswith("prefix ") for name in queries)  # their plans depend on the bounds
        plans = _LOOK_UPS if of_ranges else f"{_LOOK_UPS}, {_PLAN_ONCE}"
        self._deferred = [
            (f"{sql}, {plans}" if sql == _TIMEOUTS else sql, rows) for sql, rows in self._deferred
        ]
        with self._connection.pipeline():
            self._send_deferred()
            cursors = {
                name: self._connection.execute(_looked_up(sql), params)
                for name, (sql, params) in queries.items()
            }
        return {
            name: [row for row in cursor.fetchall() if row[0] is not None] for name, cursor in cursors.items()
        }

    def execute_all(self, statements: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
        self._deferred += statements

    def wake(self, board_id: BoardId) -> None:
        self._deferred.append(
            ("SELECT pg_notify(:channel, :board)", [{"channel": CHANNEL, "board": str(board_id)}])
        )

    def flush(self) -> None:
        """Send what was put off, so that what follows sees it."""
        if self._deferred:
            with self._connection.pipeline():
                self._send_deferred()

    def commit(self) -> None:
        """Send what was put off together with the COMMIT, in one round trip."""
        with self._connection.pipeline():
            self._send_deferred()
            self._connection.commit()

    def _send_deferred(self) -> None:
        cursor = self._connection.cursor()
        together: _Together = {}
        for sql, rows in self._deferred:
            table, params = _WRITTEN.match(sql), None
            if table is not None and "SELECT" not in sql:
                params = _as_parameters(sql, rows)
            if table is None or params is None or table[1] in together:
                _send_together(cursor, together)
            if table is not None and params is not None:
                together[table[1]] = (sql, params)
            elif len(rows) == 1:
                cursor.execute(_native(sql), rows[0])
            else:
                cursor.executemany(_native(sql), rows)
        _send_together(cursor, together)
        self._deferred.clear()


class PostgresEngine:
    """A PostgreSQL database, shared by any number of servers."""

    def __init__(
        self,
        url: str,
        *,
        failpoint: Callable[[str], None] | None = None,
        unsafe_for_tests: bool = False,
        connect_timeout: float = 5.0,
        migrates: bool = True,
    ) -> None:
        """Use the database at `url`. `unsafe_for_tests` accepts a server that does not fsync.

        With `migrates` the start brings the schema up to date; otherwise it refuses one that is not.
        """
        self._migrates = migrates
        self._url = url
        self._failpoint = failpoint or no_failpoint
        self._unsafe = unsafe_for_tests
        self._connect_timeout = connect_timeout
        self.dialect = PostgresDialect()
        self._version = ""
        self._checksums = True
        # Apart: writers that wait for a board's row lock must not keep readers out.
        self._write_threads = ThreadPoolExecutor(_WRITERS, "slate-pg-write")
        self._read_threads = ThreadPoolExecutor(_READERS, "slate-pg-read")
        self._listen_thread: threading.Thread | None = None
        self._writers: ConnectionPool[Connection] = self._pool(_WRITERS, self._configure_writer)
        self._readers: ConnectionPool[Connection] = self._pool(_READERS, self._configure_reader)
        self._closing = threading.Event()
        self._own_backends: deque[int] = deque(maxlen=2 * _WRITERS)
        """Backends of our own writers: what they say is no news here."""
        self._on_wake: Callable[[BoardId], None] | None = None

    def _pool(self, size: int, configure: Callable[[Connection], None]) -> ConnectionPool[Connection]:
        return ConnectionPool(
            self._url,
            kwargs={
                "options": _OPTIONS,
                "connect_timeout": max(2, round(self._connect_timeout)),
                **_KEEPALIVES,
                "prepare_threshold": 2,
                "application_name": "slateboard",
            },
            min_size=1,
            max_size=size,
            configure=configure,
            timeout=self._connect_timeout,
            reconnect_timeout=1.0,
            open=False,
        )

    def _configure_writer(self, connection: Connection) -> None:
        # A handful: numbers of processes are used again, and what another one says must not be missed for good.
        self._own_backends.append(connection.info.backend_pid)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if connection.info.server_version >= 170_000:
            connection.execute("SET transaction_timeout = '30s'")
            connection.commit()

    @staticmethod
    def _configure_reader(connection: Connection) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        connection.execute("SET statement_timeout = '30s'")
        connection.commit()

    async def start(self) -> None:
        """Connect, refuse a server that would lose what it acknowledged."""
        try:
            await _in(self._write_threads, self._start)
        except BaseException:
            await self.close()
            raise

    def _start(self) -> None:
        self._writers.open()
        self._readers.open()
        try:
            with self._writers.connection() as connection:
                settings: dict[str, str] = dict(
                    connection.execute(
                        "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit',"
                        " 'full_page_writes', 'data_checksums', 'server_version')"
                    ).fetchall()
                )
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("postgresql cannot be reached", error=type(error).__name__)
            raise _down("PostgreSQL cannot be reached at the configured address") from error
        self._version = str(settings["server_version"]).split()[0]
        self._checksums = settings["data_checksums"] == "on"
        unsafe = [
            name for name in ("fsync", "synchronous_commit", "full_page_writes") if settings[name] == "off"
        ]
        if unsafe and not self._unsafe:
            raise SlateboardError(
                Reason.STORAGE_DOWN,
                f"PostgreSQL runs with {', '.join(name + '=off' for name in unsafe)}: it would lose commits that were"
                " acknowledged; turn it on",
            )
        self.migrate() if self._migrates else self._check_schema()

    def _check_schema(self) -> None:
        engine = sa.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(self._url), poolclass=NullPool
        )
        try:
            with engine.connect() as connection:
                check(connection)
        except sa.exc.DBAPIError as error:
            raise migration_failed(error) from error

    def migrate(self) -> tuple[str, str]:
        """Bring the schema up to date, under an advisory lock; returns the schema before and after."""
        engine = sa.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(self._url), poolclass=NullPool
        )
        try:
            with engine.begin() as connection:
                # Servers that start together: the first migrates, the others find it done.
                connection.execute(sa.text("SET LOCAL lock_timeout = '60s'"))
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                return migrate(connection)
        except sa.exc.DBAPIError as error:
            raise migration_failed(error) from error

    async def close(self) -> None:
        """Let what runs finish, close all connections."""
        if not self._closing.is_set():
            self._closing.set()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        self._read_threads.shutdown()
        self._write_threads.shutdown()
        thread = self._listen_thread
        if thread is not None:
            with contextlib.suppress(psycopg.Error, PoolTimeout), self._writers.connection(timeout=1) as one:
                one.execute("SELECT pg_notify(%s, '')", (CHANNEL,))  # so that our own listener looks up
            thread.join(2)
        self._writers.close(timeout=5)
        self._readers.close(timeout=5)

    def describe(self) -> str:
        """Say what it is."""
        return f"postgresql {self._version}"

    def warnings(self) -> list[str]:
        """Say what PostgreSQL would not notice; what would lose commits, `start` refuses."""
        if self._checksums:
            return []
        return [
            "PostgreSQL runs without data checksums and would not notice that its disk damaged data: turn them on with"
            " pg_checksums --enable while it is stopped"
        ]

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run reads in one REPEATABLE READ snapshot."""
        return await _in(self._read_threads, lambda: self._read(work))

    def _read(self, work: Callable[[Tx], T]) -> T:
        # After a restart of PostgreSQL every pooled connection may be dead: one more attempt than there are.
        for attempt in range(_READERS + 1):
            try:
                with self._readers.connection() as connection:
                    return work(PostgresTx(connection, self.dialect))
            except (psycopg.Error, PoolTimeout) as error:
                if attempt < _READERS and _lost(error):
                    continue
                raise translate(error) from error
        raise AssertionError("unreachable")

    async def write(self, work: Callable[[WriteTx], T], timeout: float) -> T:
        """Run a write transaction; durable on return."""
        deadline = time.monotonic() + timeout
        return await _in(self._write_threads, lambda: self._write(work, deadline))

    def _write(self, work: Callable[[WriteTx], T], deadline: float) -> T:
        for attempt in range(_WRITERS + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                raise _down("the database did not get to this write in time")
            committing = False
            try:
                with self._writers.connection(timeout=min(left, self._connect_timeout)) as connection:
                    tx = PostgresTx(connection, self.dialect, left)
                    result = work(tx)
                    self._failpoint("before commit")
                    committing = True
                    tx.commit()
                    self._failpoint("after commit")
                    return result
            except (psycopg.Error, PoolTimeout) as error:
                if committing and _lost(error):
                    log.warning("COMMIT got no answer", kind=type(error).__name__)
                    raise OutcomeLost from error
                if attempt < _WRITERS and _lost(error):
                    continue  # the server rolls back what a dead connection began
                if attempt < _WRITERS and isinstance(error, pg_errors.LockNotAvailable):
                    self._end_stuck_writers()
                    continue
                raise translate(error) from error
        raise AssertionError("unreachable")

    def _end_stuck_writers(self) -> None:
        """End transactions of servers that stopped in the midst of them: theirs are rolled back, and nobody is blocked."""
        with (
            contextlib.suppress(psycopg.Error, PoolTimeout),
            self._readers.connection(timeout=2) as connection,
        ):
            ended = connection.execute(_END_STUCK, (_LOCK_WAIT,)).fetchall()
            connection.rollback()
            if ended:
                log.warning(
                    "ended transactions of a server that does not go on with them", transactions=len(ended)
                )

    # Wake-ups

    def listen(self, on_wake: Callable[[BoardId], None]) -> None:
        """Have `on_wake` called from a thread for each notification; reconnects by itself, notifications are hints."""
        self._on_wake = on_wake
        self._listen_thread = threading.Thread(target=self._listen, name="slate-listen", daemon=True)
        self._listen_thread.start()

    def _listen(self) -> None:
        delay = 0.1
        while not self._closing.is_set():
            try:
                with psycopg.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=5,
                    application_name="slateboard listen",
                    **_KEEPALIVES,
                ) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    delay = 0.1
                    while not self._closing.is_set():
                        for notification in connection.notifies(timeout=1.0):
                            if self._closing.is_set():
                                return
                            if notification.pid in self._own_backends:
                                continue
                            if self._on_wake is not None and notification.payload.isdecimal():
                                self._on_wake(BoardId(int(notification.payload)))
            except psycopg.Error as error:
                log.info("listen connection lost", error=type(error).__name__)
            self._closing.wait(delay)
            delay = min(2 * delay, 2.0)


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise _down("the database is closed") from error


def _lost(error: Exception) -> bool:
    """Tell whether the connection is gone, so that what was under way may or may not have happened."""
    if isinstance(error, PoolTimeout):
        return False
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(("08", "57P")) or isinstance(error, pg_errors.IdleInTransactionSessionTimeout)


def _down(what: str) -> SlateboardError:
    return SlateboardError(
        Reason.STORAGE_DOWN,
        f"{what}; what was acknowledged is safe: retry with the same request_id",
    )


def translate(error: Exception) -> Exception:
    """Tell PostgreSQL's errors apart by what to do about them; its own words go to the log only."""
    state = getattr(error, "sqlstate", None) or ""
    log.warning("postgresql error", sqlstate=state, kind=type(error).__name__)
    if isinstance(error, PoolTimeout) or _lost(error):
        return _down("PostgreSQL cannot be reached")
    if state in {"55P03", "57014", "40P01", "40001", "25P04"}:
        return _down("the database took too long or another transaction was in the way")
    if state.startswith(("53", "58")):
        return _down("PostgreSQL is out of disk, memory or connections, or its disk failed")
    if state == "25006":
        return _down("PostgreSQL is read-only (a standby?)")
    if state.startswith("XX"):
        return SlateboardError(
            Reason.STORAGE_CORRUPT,
            "PostgreSQL reports corrupt data; stop the server and restore from a backup",
        )
    return StatementFailed()
