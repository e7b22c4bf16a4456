import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.storage import migrate_database, migrating, schema
from slateboard_server.storage.postgres import PostgresEngine
from slateboard_server.storage.sqlite import SqliteEngine
from slateboard_server.storage.store import SqlStore
from tests.judging import ABSENT, put
from tests.storing import Desk, HandClock, MakeEngine, set_up, without_driver_text

Inspect: TypeAlias = Callable[[], AbstractContextManager[sa.Connection]]


@pytest.fixture
def inspect(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Inspect:
    """Opens the test's database beside the store."""

    @contextmanager
    def opened() -> Iterator[sa.Connection]:
        if database == "sqlite":
            engine = sa.create_engine(f"sqlite:///{tmp_path}/data/slateboard.db")
        else:
            dsn = request.getfixturevalue("postgres_dsn")
            engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
        with engine.connect() as connection:
            yield connection
        engine.dispose()

    return opened


async def test_the_migrations_make_the_schema_that_the_code_describes(
    store: SqlStore, inspect: Inspect
) -> None:
    with inspect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_heads() == ("0002",)


@pytest.mark.parametrize("database", ["sqlite"])
async def test_the_migrations_write_the_very_tables_of_the_description(
    store: SqlStore, inspect: Inspect
) -> None:
    engine = sa.create_engine("sqlite://")
    schema.metadata.create_all(engine)
    query = sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'")

    def words(sql: str) -> list[str]:
        return sorted(sql.replace(",", " ").replace("(", " ").replace(")", " ").split())

    with inspect() as migrated, engine.connect() as described:
        assert {name: words(sql) for name, sql in migrated.execute(query)} == {
            name: words(sql) for name, sql in described.execute(query)
        }
    engine.dispose()


async def test_opening_again_changes_nothing(make_engine: MakeEngine, clock: HandClock) -> None:
    store = SqlStore(make_engine(), clock)
    await store.start()
    desk = await set_up(store, clock)
    await desk.commit(put("k", ABSENT, b"kept"))
    await store.close()
    again = SqlStore(make_engine(), clock)
    await again.start()
    assert await Desk(again, clock, desk.board).value("k") == b"kept"
    await again.close()


async def test_a_newer_schema_is_refused_and_left_alone(
    make_engine: MakeEngine, clock: HandClock, inspect: Inspect
) -> None:
    store = SqlStore(make_engine(), clock)
    await store.start()
    await store.close()
    with inspect() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(
            sa.text("UPDATE meta SET value = :value WHERE name = 'runs_with'"), {"value": b'["9999"]'}
        )
        connection.commit()
    newer = SqlStore(make_engine(), clock)
    with pytest.raises(SlateboardError, match=r"9999.*newer") as caught:
        await newer.start()
    assert caught.value.reason is Reason.STORAGE_DOWN
    without_driver_text(caught.value)
    await newer.close()
    with inspect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == "9999"


async def test_a_newer_schema_that_only_adds_goes_with_this_program(
    make_engine: MakeEngine, clock: HandClock, inspect: Inspect
) -> None:
    """Expand first: while servers are replaced one by one, those of the version before work on the new schema."""
    store = SqlStore(make_engine(), clock)
    await store.start()
    await store.close()
    with inspect() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(
            sa.text("UPDATE meta SET value = :value WHERE name = 'runs_with'"), {"value": b'["9999", "0002"]'}
        )
        connection.commit()
    newer = SqlStore(make_engine(), clock)
    await newer.start()
    desk = await set_up(newer, clock)
    await desk.commit(put("k", ABSENT, b"kept"))
    await newer.close()
    with inspect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == "9999"


async def test_a_server_that_does_not_migrate_says_what_to_do(postgres_dsn: str, clock: HandClock) -> None:
    """Server mode: an empty or older database is refused until `slate migrate` was run; once or at the same time."""
    refused = SqlStore(PostgresEngine(postgres_dsn, migrates=False), clock)
    with pytest.raises(SlateboardError, match="slate migrate"):
        await refused.start()
    await refused.close()
    steps = await asyncio.gather(*(asyncio.to_thread(migrate_database, postgres_dsn) for _ in range(3)))
    assert sorted(steps) == [("", "0002"), ("0002", "0002"), ("0002", "0002")]
    opened = SqlStore(PostgresEngine(postgres_dsn, migrates=False), clock)
    await opened.start()
    await opened.close()


_BROKEN = """
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade():
    op.execute("ALTER TABLE boards ADD COLUMN half_done INTEGER")
    op.execute("UPDATE nowhere SET nothing = 1")
"""


async def test_a_migration_that_fails_leaves_the_old_schema(
    make_engine: MakeEngine,
    clock: HandClock,
    inspect: Inspect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SqlStore(make_engine(), clock)
    await store.start()
    desk = await set_up(store, clock)
    await desk.commit(put("k", ABSENT, b"kept"))
    await store.close()
    steps = tmp_path / "migrations"
    (steps / "versions").mkdir(parents=True)
    for name in ("env.py", "versions/0001_tables.py", "versions/0002_locks.py"):
        (steps / name).write_text((migrating.MIGRATIONS / name).read_text())
    (steps / "versions/0003_broken.py").write_text(_BROKEN)
    with monkeypatch.context() as patched:
        patched.setattr(migrating, "MIGRATIONS", steps)
        failing = SqlStore(make_engine(), clock)
        with pytest.raises(SlateboardError, match="left as it was") as caught:
            await failing.start()
        without_driver_text(caught.value)
        await failing.close()
    with inspect() as connection:
        assert "half_done" not in [column["name"] for column in sa.inspect(connection).get_columns("boards")]
    old = SqlStore(make_engine(), clock)
    await old.start()
    assert await Desk(old, clock, desk.board).value("k") == b"kept"
    await old.close()


async def test_an_old_file_of_somebody_else_is_not_taken_for_ours(tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "data").mkdir()
    connection = sqlite3.connect(tmp_path / "data" / "slateboard.db")
    connection.execute("CREATE TABLE boards (something TEXT)")
    connection.close()
    store = SqlStore(SqliteEngine(tmp_path / "data"), clock)
    with pytest.raises(SlateboardError, match="left as it was"):
        await store.start()
    await store.close()
