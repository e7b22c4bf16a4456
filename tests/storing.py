"""What tests of the store share: a board with a team on either database, and short ways to write, read and fail.

Commits, keys and preconditions are written with the words of `tests.judging`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import pytest

from slateboard_server.domain.commit import CommitItem, Guard, Op
from slateboard_server.domain.entry import LoggedCommit, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted, Refused, Verdict
from slateboard_server.domain.locks import LockVerdict
from slateboard_server.domain.policy import AnyState, Policy, Rule, Scope
from slateboard_server.domain.principal import Principal, Role, SessionRecord, TokenRecord
from slateboard_server.domain.values import (
    SECOND,
    BoardId,
    Key,
    Micros,
    PrincipalId,
    Region,
    Revision,
    TokenId,
)
from slateboard_server.ports import At, BoardMeta, NewBoard, ReadMode, Scan, Store
from slateboard_server.storage.engine import Engine
from slateboard_server.storage.postgres import PostgresEngine
from slateboard_server.storage.sqlite import SqliteEngine
from slateboard_server.storage.store import SqlStore
from tests.judging import OPERATOR, RIVAL, SHARED, START, SUPERVISOR, TOKEN, WORKER, a_principal, commit

TIMEOUT = 20.0


class HandClock:
    """A wall clock that only the test moves, back as well."""

    def __init__(self, now: int = START) -> None:
        self.time = now

    def now(self) -> Micros:
        return Micros(self.time)

    def monotonic(self) -> float:
        return time.monotonic()

    def forward(self, seconds: float) -> None:
        self.time += round(seconds * SECOND)


class MakeEngine(Protocol):
    """Makes an engine on the database of the test, as a process would that starts beside or after another."""

    def __call__(self, *, failpoint: Callable[[str], None] | None = None) -> Engine: ...


def sqlite_engines(directory: Path) -> MakeEngine:
    def make(*, failpoint: Callable[[str], None] | None = None) -> Engine:
        return SqliteEngine(directory, failpoint=failpoint)

    return make


def postgres_engines(dsn: str) -> MakeEngine:
    def make(*, failpoint: Callable[[str], None] | None = None) -> Engine:
        # Whether this run's cluster syncs is for `SLATEBOARD_TEST_PG_FSYNC` to say; that it must has its own test.
        return PostgresEngine(dsn, failpoint=failpoint, unsafe_for_tests=True)

    return make


ANY_STATE = Policy(rules=(Rule(Scope.SHARED, any_state=AnyState.ALLOWED),))


def new_board(name: str = "team", policy: Policy | None = None, request_id: str | None = None) -> NewBoard:
    request_id = secrets.token_hex(8) if request_id is None else request_id
    return NewBoard(name, "for tests", OPERATOR, policy or ANY_STATE, request_id)


async def let_in(store: Store, name: PrincipalId, token: str, role: Role = Role.WORKER) -> Principal:
    principal = a_principal(name, role, boards=("*",))
    await store.create_principal(
        principal, TokenRecord(TokenId(token), name, sha256(token.encode()).digest(), START)
    )
    return principal


def a_session(name: str, by: PrincipalId = WORKER, started: int = START, ttl: float = 10) -> SessionRecord:
    return SessionRecord(
        name, by, sha256(name.encode()).digest(), Micros(started), Micros(started), round(ttl * SECOND)
    )


def exact(revision: int) -> At:
    return At(ReadMode.EXACT, Revision(revision))


@dataclass
class Desk:
    """A board in a store, and hands to work on it."""

    store: SqlStore
    clock: HandClock
    board: BoardMeta

    @property
    def id(self) -> BoardId:
        return self.board.board_id

    async def batch(self, *items: CommitItem) -> list[Verdict]:
        return [
            verdict
            for verdict in await self.store.commit(self.id, items, TIMEOUT)
            if not isinstance(verdict, LockVerdict)
        ]

    async def commit(
        self,
        *ops: Op,
        by: PrincipalId = WORKER,
        guards: Sequence[Guard] = (),
        request_id: str | None = None,
        **more: object,
    ) -> LoggedCommit:
        """Commit what must be accepted."""
        item = commit(*ops, by=by, guards=guards, request_id=request_id, **more)
        return accepted((await self.batch(item))[0])

    async def refuse(
        self, *ops: Op, by: PrincipalId = WORKER, guards: Sequence[Guard] = ()
    ) -> SlateboardError:
        """Commit what must be refused."""
        return refused((await self.batch(commit(*ops, by=by, guards=guards)))[0])

    def at(self, revision: int | None) -> At:
        return At(ReadMode.LATEST, now=self.clock.now()) if revision is None else exact(revision)

    async def get(
        self, key: str, revision: int | None = None, region: Region = SHARED
    ) -> VersionRecord | None:
        read = await self.store.read_keys(self.id, [(region, Key(key))], self.at(revision))
        return read.found.get((region, Key(key)))

    async def value(self, key: str, revision: int | None = None) -> bytes | None:
        record = await self.get(key, revision)
        return None if record is None else record.value

    async def scan(
        self,
        prefix: str = "",
        revision: int | None = None,
        *,
        after: str = "",
        limit: int = 1_000,
        region: Region = SHARED,
    ) -> Scan:
        return await self.store.scan(self.id, region, prefix, after, limit, self.at(revision))

    async def keys(self, prefix: str = "", revision: int | None = None, region: Region = SHARED) -> list[str]:
        return [record.key for record in (await self.scan(prefix, revision, region=region)).records]

    async def history(self, key: str, region: Region = SHARED) -> list[VersionRecord]:
        """Return a key's versions, oldest first."""
        page = await self.store.versions(self.id, region, Key(key), None, 1_000)
        return list(page.records[::-1])

    async def log(self, after: int = 0) -> list[LoggedCommit]:
        """Return the log after a revision, read page by page."""
        found: list[LoggedCommit] = []
        while True:
            page = await self.store.read_log(self.id, Revision(after), 100, 1 << 20)
            if not page.commits:
                return found
            found += page.commits
            after = page.commits[-1].commit.revision

    async def head(self) -> int:
        return (await self.store.heads([self.id]))[self.id].revision

    async def compact(self, revision: int, limit: int = 1_000) -> int:
        """Compact to the end; return the rows dropped."""
        dropped = 0
        while True:
            _, rows, more = await self.store.compact(self.id, Revision(revision), limit)
            dropped += rows
            if not more:
                return dropped


async def set_up(store: SqlStore, clock: HandClock, policy: Policy | None = None) -> Desk:
    """Let the usual team into an open, empty store and give it a board."""
    for name, role, token in (
        (WORKER, Role.WORKER, TOKEN),
        (RIVAL, Role.WORKER, "t-2"),
        (SUPERVISOR, Role.SUPERVISOR, "t-3"),
        (OPERATOR, Role.OPERATOR, "t-4"),
    ):
        await let_in(store, name, token, role)
    return Desk(store, clock, await store.create_board(new_board(policy=policy)))


def accepted(verdict: Verdict) -> LoggedCommit:
    assert isinstance(verdict, Accepted), verdict
    return verdict.logged


def refused(verdict: Verdict) -> SlateboardError:
    assert isinstance(verdict, Refused), verdict
    return verdict.error


@contextmanager
def refuses(reason: Reason) -> Iterator[None]:
    with pytest.raises(SlateboardError) as caught:
        yield
    assert caught.value.reason is reason, caught.value


def without_driver_text(error: SlateboardError) -> None:
    """Hold an error's sentence to promise 19."""
    text = f"{error.message} {error.metadata}".lower()
    for word in ("sqlite3.", "psycopg", "sqlalchemy", "select ", "insert ", "constraint", "traceback"):
        assert word not in text, error
