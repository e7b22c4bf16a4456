"""The Store port on SQLite and PostgreSQL: one SQL implementation, two engines.

`reading`, `logs`, `batch`, `writes`, `governing` and `people` say what is read and written, over an open transaction and
in words both databases understand; `sqlite` and `postgres` are engines: connections, transactions, errors; `store` decides
what runs in which transaction and what an error means. SQLAlchemy Core describes the tables and the migrations; on the hot
path the drivers are spoken to directly.
"""

from __future__ import annotations

from pathlib import Path

from slateboard_server.ports import Clock, Store
from slateboard_server.storage.postgres import PostgresEngine
from slateboard_server.storage.sqlite import SqliteEngine
from slateboard_server.storage.store import SqlStore


def open_store(
    database_url: str | None, data_dir: Path, clock: Clock, owner: str = "", *, migrates: bool = True
) -> Store:
    """Return the store at a PostgreSQL url, or (None) the embedded one in `data_dir`; call its `start`.

    `owner` is what a second server on the same directory is told about this one. Without `migrates` a PostgreSQL database
    whose schema is not this program's is refused; an embedded one belongs to this process and is always brought up to date.
    """
    if database_url is not None:
        return SqlStore(PostgresEngine(database_url, migrates=migrates), clock)
    return SqlStore(SqliteEngine(data_dir, owner=owner), clock)


def migrate_database(database_url: str) -> tuple[str, str]:
    """Bring the schema of a PostgreSQL database up to date; returns it before ("" for an empty one) and after."""
    return PostgresEngine(database_url).migrate()
