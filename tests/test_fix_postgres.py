"""The throw-away PostgreSQL that other tests stand on."""

import os

import psycopg
import pytest

from tests.fix_postgres import PostgresCluster


def _count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM notes").fetchone()
        assert row is not None
        return int(row[0])


def test_a_fresh_database_answers_and_keeps_what_is_acknowledged_on_disk(postgres_dsn: str) -> None:
    """The cluster must have fsync on, or a test of durability would prove nothing."""
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        expected = os.environ.get("SLATEBOARD_TEST_PG_FSYNC", "on")
        assert connection.execute("SHOW fsync").fetchone() == (expected,)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_each_database_is_its_own(postgres: PostgresCluster) -> None:
    """Two tests can never see each other's rows."""
    first, second = postgres.create_database(), postgres.create_database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE notes (text text)")
    with psycopg.connect(second) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT * FROM notes")


def test_committed_rows_survive_a_kill_and_a_restart_on_the_same_port(
    private_postgres: PostgresCluster,
) -> None:
    """Fault tests kill and restart the server under clients that keep their DSN."""
    dsn = private_postgres.create_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE notes (text text)")
        connection.execute("INSERT INTO notes VALUES ('kept')")
    private_postgres.kill()
    assert private_postgres.pid is None
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    private_postgres.start()
    assert _count(dsn) == 1
    private_postgres.stop()
    private_postgres.start()
    assert _count(dsn) == 1


def test_a_cluster_leaves_nothing_behind(private_postgres: PostgresCluster) -> None:
    """Neither a process nor a file."""
    pid = private_postgres.pid
    assert pid is not None
    private_postgres.destroy()
    assert not private_postgres.root.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
