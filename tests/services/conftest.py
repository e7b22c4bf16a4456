"""The services over a real embedded store, without gRPC: a team with an operator, a supervisor and two workers."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slateboard_server.domain.commit import (
    Append,
    CommitItem,
    Delete,
    Expect,
    Guard,
    NewContent,
    Op,
    Precondition,
    Put,
)
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.policy import Policy
from slateboard_server.domain.principal import DEFAULT_CEILING, Principal, Right, Role, TokenRecord
from slateboard_server.domain.values import Key, Micros, PrincipalId, Region, TokenId, Version
from slateboard_server.liveness import LocalLiveness
from slateboard_server.ports import NewBoard
from slateboard_server.services.commits import Commits
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.lock_keeper import LockKeeper
from slateboard_server.services.model import Caller, CommitResult
from slateboard_server.services.reads import Reads
from slateboard_server.services.settings import DataPathSettings
from slateboard_server.services.watches import Watches
from slateboard_server.storage.sqlite import SqliteEngine
from slateboard_server.storage.store import SqlStore

BOARD = "orders"


class MovableClock:
    """A wall clock that a test can move; monotonic time stays real."""

    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> Micros:
        return Micros(time.time_ns() // 1_000 + self.offset)

    def monotonic(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        self.offset += round(seconds * 1_000_000)


def put(
    key: str,
    value: bytes = b"v",
    expect: int | None = 0,
    region: str = SHARED,
    **content: object,
) -> Put:
    """A put that expects a version; 0: absent, None: any state."""
    if expect is None:
        condition = Precondition(Expect.ANY)
    elif expect == 0:
        condition = Precondition(Expect.ABSENT)
    else:
        condition = Precondition(Expect.VERSION, Version(expect))
    return Put(Region(region), Key(key), condition, NewContent(value, **content))  # type: ignore[arg-type]


def delete(key: str, version: int, region: str = SHARED) -> Delete:
    """A delete of a version."""
    return Delete(Region(region), Key(key), Precondition(Expect.VERSION, Version(version)))


def append(prefix: str, value: bytes = b"v", region: str = SHARED) -> Append:
    """An append."""
    return Append(Region(region), prefix, NewContent(value))


@dataclass
class Team:
    """The data path of one replica, and callers to use it."""

    store: SqlStore
    clock: MovableClock
    directory: BoardDirectory
    keeper: LockKeeper
    commits: Commits
    reads: Reads
    watches: Watches
    callers: dict[str, Caller]

    def __getitem__(self, name: str) -> Caller:
        return self.callers[name]

    async def join(
        self, name: str, role: Role = Role.WORKER, rights: tuple[Right, ...] = (), board: str = BOARD
    ) -> Caller:
        """Make a principal with a token and return it as a caller."""
        principal = Principal(
            PrincipalId(name),
            role,
            frozenset({board}),
            rights,
            DEFAULT_CEILING[role],
            self.clock.now(),
            "test",
        )
        token = TokenRecord(TokenId(f"t-{name}"), principal.id, b"hash", self.clock.now())
        await self.store.create_principal(principal, token)
        caller = Caller(principal, token.token_id)
        self.callers[name] = caller
        return caller

    async def commit(
        self, who: str, *ops: Op, guards: tuple[Guard, ...] = (), board: str = BOARD
    ) -> CommitResult:
        """Commit ops as somebody."""
        caller = self.callers[who]
        item = CommitItem(
            principal=caller.principal.id,
            ops=ops,
            guards=guards,
            request_id=str(uuid.uuid4()),
            token_id=caller.token_id,
        )
        return await self.commits.commit(caller, board, item, 10.0)


@pytest.fixture
def settings() -> DataPathSettings:
    return DataPathSettings()


@pytest.fixture
async def team(tmp_path: Path, settings: DataPathSettings) -> AsyncIterator[Team]:
    clock = MovableClock()
    store = SqlStore(SqliteEngine(tmp_path), clock)
    await store.start()
    directory = BoardDirectory(store, clock, settings)
    await directory.start()
    liveness = LocalLiveness(clock)
    await liveness.start()
    keeper = LockKeeper(directory, store, liveness, clock)
    await keeper.start()
    made = Team(
        store,
        clock,
        directory,
        keeper,
        Commits(directory, store, clock, keeper),
        Reads(directory, store, clock),
        Watches(directory, store, clock),
        {},
    )
    await store.create_board(NewBoard(BOARD, "", PrincipalId("op"), Policy(), str(uuid.uuid4())))
    await made.join("op", Role.OPERATOR)
    await made.join("lead", Role.SUPERVISOR)
    await made.join("ann")
    await made.join("bob")
    yield made
    await directory.drain()
    await keeper.close()
    await liveness.close()
    await directory.close()
    await store.close()
