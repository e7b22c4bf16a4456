"""The yardstick of commits on PostgreSQL: psycopg doing compare-and-set with history in one statement.

No gRPC, no grouping of our own: eight connections, each in a thread that waits for its COMMIT (PostgreSQL's default,
synchronous) before its next statement. PostgreSQL groups their flushes by itself.
"""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import psycopg

CONNECTIONS = 8
_KEYS = 32
"""Keys of one connection, so that no two connections ever wait for the same row."""
_TABLES = """
CREATE TABLE current (key text PRIMARY KEY, version bigint NOT NULL, value bytea NOT NULL);
CREATE TABLE history (key text, version bigint, value bytea NOT NULL, PRIMARY KEY (key, version));
"""
_COMPARE_AND_SET = """
WITH changed AS (
    UPDATE current SET version = version + 1, value = %(value)s
    WHERE key = %(key)s AND version = %(version)s
    RETURNING key, version, value
)
INSERT INTO history SELECT key, version, value FROM changed RETURNING version
"""


def compare_and_set(pipe: Connection[Any, Any], dsn: str, value: bytes) -> None:
    """Obey `seconds` from the pipe: work that long on all connections, answer how many statements a second."""
    with psycopg.connect(dsn, autocommit=True) as setup:
        setup.execute(_TABLES)
        with setup.cursor() as cursor:
            names = [(f"{number}/{index}", value) for number in range(CONNECTIONS) for index in range(_KEYS)]
            cursor.executemany("INSERT INTO current VALUES (%s, 1, %s)", names)
    workers = [_Worker(number, dsn, value) for number in range(CONNECTIONS)]
    pipe.send("ready")
    while True:
        try:
            seconds = float(pipe.recv())
        except EOFError:
            return
        began = time.perf_counter()
        until = began + seconds
        threads = [threading.Thread(target=worker.work, args=(until,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lost = sum(worker.lost for worker in workers)
        done = sum(worker.take() for worker in workers)
        elapsed = time.perf_counter() - began
        pipe.send(RuntimeError(f"{lost} statements changed nothing") if lost else done / elapsed)


class _Worker:
    """One connection and the versions of its keys."""

    def __init__(self, number: int, dsn: str, value: bytes) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
        self._versions = {f"{number}/{index}": 1 for index in range(_KEYS)}
        self._value = value
        self._done = 0
        self.lost = 0

    def work(self, until: float) -> None:
        """Go round the keys until the clock says stop."""
        with self._connection.cursor(binary=True) as cursor:
            while True:
                for key, version in self._versions.items():
                    if time.perf_counter() >= until:
                        return
                    row = cursor.execute(
                        _COMPARE_AND_SET, {"key": key, "version": version, "value": self._value}
                    ).fetchone()
                    if row is None:
                        self.lost += 1
                    else:
                        self._versions[key] = row[0]
                        self._done += 1

    def take(self) -> int:
        """Return and reset how many statements succeeded."""
        done, self._done = self._done, 0
        return done
