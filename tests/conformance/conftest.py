"""The databases that the suite holds to the Store port."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from slateboard_server.storage.store import SqlStore
from tests.storing import Desk, HandClock, MakeEngine, postgres_engines, set_up, sqlite_engines


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> str:
    """The name of the database the test runs on."""
    return str(request.param)


@pytest.fixture
def make_engine(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> MakeEngine:
    """Makes engines on one database that only this test uses."""
    if database == "sqlite":
        return sqlite_engines(tmp_path / "data")
    return postgres_engines(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def open_store(
    make_engine: MakeEngine, clock: HandClock
) -> AsyncIterator[Callable[..., Awaitable[SqlStore]]]:
    """Opens stores on the test's database and closes them at its end."""
    opened: list[SqlStore] = []

    async def start(failpoint: Callable[[str], None] | None = None) -> SqlStore:
        store = SqlStore(make_engine(failpoint=failpoint), clock)
        opened.append(store)
        await store.start()
        return store

    yield start
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[SqlStore]]) -> SqlStore:
    return await open_store()


@pytest.fixture
async def desk(store: SqlStore, clock: HandClock) -> Desk:
    return await set_up(store, clock)
