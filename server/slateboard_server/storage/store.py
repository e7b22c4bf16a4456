"""The Store over an engine: what runs in which transaction, and what an error means for a batch."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import structlog

from slateboard_server.domain.commit import CommitItem
from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import LoggedCommit, SourceRef, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted, Refused, Verdict, judge
from slateboard_server.domain.locks import LockRecord, LockScope, LockState
from slateboard_server.domain.picture import Needs, StoredAnswer, needs
from slateboard_server.domain.policy import Policy
from slateboard_server.domain.principal import Principal, SessionRecord, TokenRecord
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
    LockId,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    TokenId,
    Version,
)
from slateboard_server.ports import (
    At,
    AuditRecord,
    BatchItem,
    BatchVerdict,
    BoardMeta,
    Clock,
    CommitsPage,
    ConflictsPage,
    Edge,
    Expiring,
    Head,
    KeysRead,
    LiveLock,
    LogPage,
    NewBoard,
    Scan,
    VersionsPage,
)
from slateboard_server.storage import governing, locking, logs, people, reading
from slateboard_server.storage.batch import board_state, picture_of, picture_queries
from slateboard_server.storage.engine import Engine, OutcomeLost, StatementFailed, WriteTx
from slateboard_server.storage.reading import Tx
from slateboard_server.storage.writes import batch_statements

log = structlog.get_logger(__name__)
T = TypeVar("T")
_TIMEOUT = 30.0
_ATTEMPTS = 3


class SqlStore:
    """The truth, on whichever database the engine speaks to."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._secrets: dict[BoardId, bytes] = {}
        self._changed: dict[BoardId, None] = {}
        """Boards that changed and were not yielded yet: each once, however slow who listens is."""
        self._wake = asyncio.Event()

    async def _read(self, work: Callable[[Tx], T]) -> T:
        try:
            return await self._engine.read(work)
        except StatementFailed as error:
            raise _refused_by_database() from error

    async def _write(self, work: Callable[[WriteTx], T], timeout: float = _TIMEOUT) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._engine.write(work, timeout)
            except OutcomeLost as lost:
                # Every such write is written so that doing it again does no harm.
                if not lost.passing or attempt == _ATTEMPTS:
                    raise lost.why or _not_confirmed() from lost
            except StatementFailed as error:
                raise _refused_by_database() from error
        raise AssertionError("unreachable")

    # Commits

    async def commit(
        self, board_id: BoardId, items: Sequence[BatchItem], timeout: float
    ) -> list[BatchVerdict]:
        deadline = time.monotonic() + timeout
        try:
            return await self._run(board_id, items, deadline)
        except StatementFailed:
            if len(items) > 1:
                log.warning("batch failed, running its items one by one", board=board_id, items=len(items))
        return [await self._run_alone(board_id, item, deadline) for item in items]

    async def _run_alone(self, board_id: BoardId, item: BatchItem, deadline: float) -> BatchVerdict:
        try:
            return (await self._run(board_id, [item], deadline))[0]
        except StatementFailed:
            return Refused(_refused_by_database())
        except SlateboardError as error:
            return Refused(error)

    async def _run(
        self, board_id: BoardId, items: Sequence[BatchItem], deadline: float
    ) -> list[BatchVerdict]:
        """Run a batch in one transaction; where its COMMIT got lost, find out first whether it happened."""
        secret = self._secrets.get(board_id)
        if secret is None:
            secret = self._secrets[board_id] = await self._read(lambda tx: governing.secret_of(tx, board_id))
        commits = [item for item in items if isinstance(item, CommitItem)]
        wanted = needs(commits)
        for attempt in range(1, _ATTEMPTS + 1):
            batch_id = secrets.token_hex(8)
            work = _Batch(board_id, items, commits, wanted, secret, batch_id, self._clock)
            try:
                await self._engine.write(work, _left(deadline))
            except OutcomeLost as lost:
                happened = await self._write(lambda tx: _happened(tx, board_id, batch_id), _left(deadline))  # noqa: B023 -- awaited here
                log.warning(
                    "the answer to a COMMIT got lost", board=board_id, batch=batch_id, happened=happened
                )
                if not happened:
                    # Also where only locks were changed: a commit would tell, and lock ops can be done again.
                    if not lost.passing or attempt == _ATTEMPTS:
                        raise lost.why or _not_confirmed() from lost
                    continue
            return work.verdicts
        raise AssertionError("unreachable")

    # Boards

    async def create_board(self, board: NewBoard) -> BoardMeta:
        now, secret = self._clock.now(), secrets.token_bytes(32)
        return await self._write(lambda tx: governing.create_board(tx, board, now, secret))

    async def find_board(self, name: str) -> BoardMeta | None:
        return await self._read(lambda tx: governing.find_board(tx, name))

    async def list_boards(self, after: str, limit: int) -> Sequence[BoardMeta]:
        return await self._read(lambda tx: governing.list_boards(tx, after, limit))

    async def delete_board(self, board_id: BoardId, incarnation: Incarnation) -> bool:
        return await self._write(lambda tx: governing.delete_board(tx, board_id, incarnation))

    async def erase_deleted(self, limit: int) -> int:
        return await self._write(lambda tx: governing.erase_deleted(tx, limit))

    async def reincarnate(self, board_id: BoardId, incarnation: Incarnation) -> BoardMeta | None:
        new, now = governing.new_incarnation(), self._clock.now()

        def work(tx: WriteTx) -> BoardMeta | None:
            made = governing.reincarnate(tx, board_id, incarnation, new)
            if made is not None:
                locking.revoke_all(tx, board_id, now, "the board began a new life")
            return made

        return await self._write(work)

    async def set_policy(
        self, board_id: BoardId, policy: Policy, expected_version: int, by: PrincipalId, now: Micros
    ) -> Policy | None:
        return await self._write(
            lambda tx: governing.set_policy(tx, board_id, policy, expected_version, by, now)
        )

    async def compact(self, board_id: BoardId, revision: Revision, limit: int) -> tuple[Head, int, bool]:
        return await self._write(lambda tx: governing.compact(tx, board_id, revision, limit))

    # Reads

    async def heads(self, boards: Sequence[BoardId]) -> dict[BoardId, Head]:
        return await self._read(lambda tx: reading.heads(tx, boards))

    async def read_keys(
        self, board_id: BoardId, keys: Sequence[tuple[Region, Key]], at: At, *, values: bool = True
    ) -> KeysRead:
        return await self._read(lambda tx: reading.read_keys(tx, board_id, keys, at, values))

    async def scan(
        self,
        board_id: BoardId,
        region: Region,
        prefix: str,
        after: str,
        limit: int,
        at: At,
        *,
        values: bool = True,
    ) -> Scan:
        return await self._read(
            lambda tx: reading.scan(tx, board_id, region, prefix, after, limit, at, values)
        )

    async def versions(
        self,
        board_id: BoardId,
        region: Region,
        key: Key,
        below: Version | None,
        limit: int,
        *,
        values: bool = True,
    ) -> VersionsPage:
        return await self._read(lambda tx: reading.versions(tx, board_id, region, key, below, limit, values))

    async def read_versions(
        self, board_id: BoardId, refs: Sequence[SourceRef], *, values: bool = False
    ) -> dict[SourceRef, VersionRecord]:
        return await self._read(lambda tx: reading.read_versions(tx, board_id, refs, values))

    async def read_log(
        self, board_id: BoardId, after: Revision, limit: int, max_bytes: int, *, values: bool = True
    ) -> LogPage:
        return await self._read(lambda tx: reading.read_log(tx, board_id, after, limit, max_bytes, values))

    async def find_commit(
        self,
        board_id: BoardId,
        *,
        request: tuple[PrincipalId, str] | None = None,
        revision: Revision | None = None,
    ) -> tuple[Head, LoggedCommit | None, StoredAnswer | None]:
        return await self._read(lambda tx: reading.find_commit(tx, board_id, request, revision))

    async def list_commits(
        self,
        board_id: BoardId,
        below: Revision | None,
        limit: int,
        principal: PrincipalId | None,
        region: Region | None,
        prefix: str,
    ) -> CommitsPage:
        return await self._read(
            lambda tx: logs.list_commits(tx, board_id, below, limit, principal, region, prefix)
        )

    async def list_conflicts(
        self,
        board_id: BoardId,
        before: int | None,
        limit: int,
        key: tuple[Region, Key] | None,
        principal: PrincipalId | None,
    ) -> tuple[ConflictsPage, int | None]:
        return await self._read(lambda tx: logs.list_conflicts(tx, board_id, before, limit, key, principal))

    async def find_conflict(self, board_id: BoardId, conflict_id: str) -> Conflict | None:
        return await self._read(lambda tx: logs.find_conflict(tx, board_id, conflict_id))

    async def sources_of(self, board_id: BoardId, derived: Sequence[SourceRef]) -> Sequence[Edge]:
        return await self._read(lambda tx: logs.sources_of(tx, board_id, derived))

    async def derived_from(
        self, board_id: BoardId, sources: Sequence[SourceRef], limit: int
    ) -> Sequence[Edge]:
        return await self._read(lambda tx: logs.derived_from(tx, board_id, sources, limit))

    async def expired(self, now: Micros, limit: int) -> Sequence[tuple[BoardId, Expiring]]:
        return await self._read(lambda tx: logs.expired(tx, now, limit))

    async def prune(self, now: Micros, limit: int) -> int:
        return await self._write(lambda tx: logs.prune(tx, now, limit) + locking.prune_locks(tx, now, limit))

    # Sessions

    async def start_session(
        self, board_id: BoardId, session: SessionRecord, request_id: str
    ) -> SessionRecord:
        return await self._write(lambda tx: people.start_session(tx, board_id, session, request_id))

    async def touch_session(
        self, board_id: BoardId, session_id: SessionId, now: Micros, task: str | None
    ) -> SessionRecord | None:
        return await self._write(lambda tx: people.touch_session(tx, board_id, session_id, now, task))

    async def end_session(
        self, board_id: BoardId, session_id: SessionId, now: Micros
    ) -> SessionRecord | None:
        return await self._write(lambda tx: people.end_session(tx, board_id, session_id, now))

    async def find_session(self, board_id: BoardId, session_id: SessionId) -> SessionRecord | None:
        return await self._read(lambda tx: people.find_session(tx, board_id, session_id))

    async def list_sessions(
        self, board_id: BoardId, before: tuple[Micros, str] | None, limit: int, principal: PrincipalId | None
    ) -> Sequence[SessionRecord]:
        return await self._read(lambda tx: people.list_sessions(tx, board_id, before, limit, principal))

    # Locks

    async def find_lock(self, board_id: BoardId, lock_id: LockId) -> LockRecord | None:
        return await self._read(lambda tx: locking.find_lock(tx, board_id, lock_id))

    async def find_locks(self, board_id: BoardId, lock_ids: Sequence[LockId]) -> dict[LockId, LockRecord]:
        return await self._read(lambda tx: locking.find_locks(tx, board_id, lock_ids))

    async def overlapping_locks(self, board_id: BoardId, scopes: Sequence[LockScope]) -> list[LockRecord]:
        return await self._read(lambda tx: locking.overlapping_locks(tx, board_id, scopes))

    async def list_locks(
        self,
        board_id: BoardId,
        after: int,
        limit: int,
        principal: PrincipalId | None,
        states: Sequence[LockState],
    ) -> list[LockRecord]:
        return await self._read(lambda tx: locking.list_locks(tx, board_id, after, limit, principal, states))

    async def lock_changes(
        self, board_id: BoardId, after: int, limit: int, *, live_only: bool
    ) -> tuple[list[LockRecord], int]:
        return await self._read(
            lambda tx: locking.lock_changes(tx, board_id, after, limit, live_only=live_only)
        )

    async def live_locks(self) -> Sequence[LiveLock]:
        return await self._read(locking.live_locks)

    # Principals

    async def server_secret(self) -> bytes:
        return await self._write(people.server_secret)

    async def create_principal(self, principal: Principal, token: TokenRecord) -> None:
        await self._write(lambda tx: people.create_principal(tx, principal, token))

    async def update_principal(self, principal: Principal) -> bool:
        return await self._write(lambda tx: people.update_principal(tx, principal))

    async def disable_principal(self, principal: PrincipalId) -> bool:
        return await self._write(lambda tx: people.disable_principal(tx, principal))

    async def find_principal(self, principal: PrincipalId) -> Principal | None:
        return await self._read(lambda tx: people.find_principal(tx, principal))

    async def list_principals(self, after: str, limit: int) -> Sequence[Principal]:
        return await self._read(lambda tx: people.list_principals(tx, after, limit))

    async def find_token(self, token_id: TokenId) -> tuple[TokenRecord, Principal] | None:
        return await self._read(lambda tx: people.find_token(tx, token_id))

    async def list_tokens(self, principal: PrincipalId) -> Sequence[TokenRecord]:
        return await self._read(lambda tx: people.list_tokens(tx, principal))

    async def add_token(self, token: TokenRecord, others_expire: Micros | None) -> None:
        await self._write(lambda tx: people.add_token(tx, token, others_expire))

    async def revoke_token(self, token_id: TokenId) -> bool:
        return await self._write(lambda tx: people.revoke_token(tx, token_id))

    async def audit(self, records: Sequence[AuditRecord]) -> None:
        named = [(secrets.token_hex(16), record) for record in records]
        await self._write(lambda tx: people.audit(tx, named))

    async def list_audit(self, before: int | None, limit: int) -> Sequence[tuple[int, AuditRecord]]:
        return await self._read(lambda tx: people.list_audit(tx, before, limit))

    # The store

    async def start(self) -> None:
        await self._engine.start()
        loop = asyncio.get_running_loop()
        self._engine.listen(lambda board_id: _call_soon(loop, self._woken, board_id))

    async def close(self) -> None:
        await self._engine.close()

    def describe(self) -> str:
        return self._engine.describe()

    def warnings(self) -> Sequence[str]:
        return self._engine.warnings()

    async def ping(self) -> None:
        await self._read(lambda tx: tx.rows("SELECT 1"))

    async def wakeups(self) -> AsyncIterator[BoardId]:
        while True:
            await self._wake.wait()
            while self._changed:
                board_id = next(iter(self._changed))
                del self._changed[board_id]
                yield board_id
            self._wake.clear()

    def _woken(self, board_id: BoardId) -> None:
        self._changed[board_id] = None
        self._wake.set()


class _Batch:
    """A batch as a unit of work; `verdicts` outlives a COMMIT whose answer is lost."""

    def __init__(
        self,
        board_id: BoardId,
        items: Sequence[BatchItem],
        commits: Sequence[CommitItem],
        wanted: Needs,
        secret: bytes,
        batch_id: str,
        clock: Clock,
    ) -> None:
        self._board_id = board_id
        self._items = items
        self._commits = commits
        self._wanted = wanted
        self._secret = secret
        self._batch_id = batch_id
        self._clock = clock
        self.verdicts: list[BatchVerdict] = []

    def __call__(self, tx: WriteTx) -> None:
        if len(self._commits) == len(self._items):
            self.verdicts = [*self._judge(tx)]
            return
        ops = [item for item in self._items if not isinstance(item, CommitItem)]
        # First the locks, then the commits under what they left; both while the board's row is held.
        locked = iter(locking.apply_all(tx, self._board_id, ops, self._clock))
        judged = iter(self._judge(tx) if self._commits else [])
        self.verdicts = [next(judged if isinstance(item, CommitItem) else locked) for item in self._items]

    def _judge(self, tx: WriteTx) -> list[Verdict]:
        results = tx.gather(picture_queries(tx.dialect, self._board_id, self._wanted, self._secret))
        state, conflict_seq = board_state(self._board_id, results)
        now = max(self._clock.now(), state.last_commit_time)
        before = dict(state.usage)
        picture = picture_of(state, now, self._wanted, results, self._secret)
        verdicts = judge(picture, self._commits, self._batch_id)
        tx.execute_all(batch_statements(tx.dialect, state, before, verdicts, conflict_seq))
        if any(isinstance(verdict, Accepted) for verdict in verdicts):
            tx.wake(self._board_id)
        return verdicts


def _happened(tx: WriteTx, board_id: BoardId, batch_id: str) -> bool:
    """Tell whether a batch was committed. Under the board's row lock: it may still be on its way."""
    tx.rows(
        f"SELECT head FROM boards WHERE board_id = :board_id{tx.dialect.for_update}",
        board_id=board_id,
    )
    return bool(
        tx.rows(
            "SELECT 1 FROM commits WHERE board_id = :board_id AND batch_id = :batch_id LIMIT 1",
            board_id=board_id,
            batch_id=batch_id,
        )
    )


def _left(deadline: float) -> float:
    """Return the seconds left, at least a moment: an engine says itself that time is up."""
    return max(deadline - time.monotonic(), 0.001)


def _refused_by_database() -> SlateboardError:
    return SlateboardError(
        Reason.INTERNAL,
        "the database refused this request, and only this one; nothing of it happened: the server's log has the"
        " incident",
    )


def _not_confirmed() -> SlateboardError:
    return SlateboardError(
        Reason.STORAGE_DOWN,
        "the database did not confirm a write; what was acknowledged is safe: retry with the same request_id",
    )


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[BoardId], None], board_id: BoardId) -> None:
    with contextlib.suppress(RuntimeError):  # the loop closed while the listener was on its way
        loop.call_soon_threadsafe(call, board_id)
