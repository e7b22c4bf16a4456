"""A throw-away PostgreSQL for the bench: the machinery of the tests, outside pytest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.processes import SlateboardServer
from tests.bench.settings import Settings
from tests.fix_postgres import PostgresCluster, PostgresUnavailable

__all__ = ["PostgresUnavailable", "our_postgres_server", "postgres_cluster"]


@contextmanager
def postgres_cluster() -> Iterator[PostgresCluster]:
    """Run a cluster with fsync on.

    Raises:
        PostgresUnavailable: PostgreSQL's programs are not here, or do not run.
    """
    cluster = PostgresCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


def our_postgres_server(settings: Settings, data: Path, dsn: str) -> SlateboardServer:
    """Describe our server in server mode over a database of its own."""
    return SlateboardServer(
        data, arguments=["--database-url", dsn, "--auto-migrate"], runner=settings.runner("pg_commit")
    )
