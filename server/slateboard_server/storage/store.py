"""The Store over an engine: what runs in which transaction, and what an error means for a batch."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import structlog

from slateboard_server.domain.commit import CommitItem
from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import LoggedCommit, SourceRef, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted, Refused, Verdict, judge
from slateboard_server.domain.picture import StoredAnswer, needs
from slateboard_server.domain.policy import Policy
from slateboard_server.domain.principal import Principal, SessionRecord, TokenRecord
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
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
    BoardMeta,
    Clock,
    CommitsPage,
    ConflictsPage,
    Edge,
    Expiring,
    Head,
    KeysRead,
    LogPage,
    NewBoard,
    Scan,
    VersionsPage,
)
from slateboard_server.storage import governing, logs, people, reading
from slateboard_server.storage.batch import board_state, picture_of, picture_queries
from slateboard_server.storage.engine import Engine, OutcomeLost, StatementFailed, WriteTx
from slateboard_server.storage.writes import batch_statements

log = structlog.get_logger(__name__)
T = TypeVar("T")
_TIMEOUT = 30.0


class SqlStore:
    """The truth, on whichever database the engine speaks to."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._secrets: dict[BoardId, bytes] = {}
        self._judged: dict[str, list[Verdict]] = {}
        """Verdicts of batches whose COMMIT is on its way: what to answer if only the answer was lost."""
        self._wakeups: asyncio.Queue[BoardId] = asyncio.Queue()

    async def _write(self, work: Callable[[WriteTx], T], timeout: float = _TIMEOUT) -> T:
        for _ in range(2):
            try:
                return await self._engine.write(work, timeout)
            except OutcomeLost:
                continue  # every such write is written so that doing it again does no harm
            except StatementFailed as error:
                raise SlateboardError(
                    Reason.INTERNAL, "the database refused a statement; the server's log has the incident"
                ) from error
        raise SlateboardError(Reason.STORAGE_DOWN, "the database did not confirm a write; retry")

    # Commits

    async def commit(self, board_id: BoardId, items: Sequence[CommitItem], timeout: float) -> list[Verdict]:
        batch_id = secrets.token_hex(8)
        try:
            return await self._run(board_id, items, batch_id, timeout)
        except OutcomeLost:
            return await self._resolve(board_id, items, batch_id, timeout)
        except StatementFailed:
            log.warning("batch failed, running its commits one by one", board=board_id, commits=len(items))
            return [await self._run_alone(board_id, item, timeout) for item in items]

    async def _run_alone(self, board_id: BoardId, item: CommitItem, timeout: float) -> Verdict:
        batch_id = secrets.token_hex(8)
        try:
            return (await self._run(board_id, [item], batch_id, timeout))[0]
        except OutcomeLost:
            return (await self._resolve(board_id, [item], batch_id, timeout))[0]
        except StatementFailed:
            return Refused(
                SlateboardError(
                    Reason.INTERNAL, "the database refused this commit; the server's log has the incident"
                )
            )
        except SlateboardError as error:
            return Refused(error)

    async def _resolve(
        self, board_id: BoardId, items: Sequence[CommitItem], batch_id: str, timeout: float
    ) -> list[Verdict]:
        """Find out under the row lock whether a batch whose COMMIT got lost happened; if not, run it again."""
        lost = self._judged.pop(batch_id, None)

        def happened(tx: WriteTx) -> bool:
            return bool(
                tx.rows(
                    "SELECT 1 FROM commits WHERE board_id = :board_id AND batch_id = :batch_id LIMIT 1",
                    board_id=board_id,
                    batch_id=batch_id,
                )
            )

        if lost is not None and await self._write(happened, timeout):
            return lost
        return [await self._run_alone(board_id, item, timeout) for item in items]

    async def _run(
        self, board_id: BoardId, items: Sequence[CommitItem], batch_id: str, timeout: float
    ) -> list[Verdict]:
        if board_id not in self._secrets:
            self._secrets[board_id] = await self._engine.read(lambda tx: governing.secret_of(tx, board_id))
        secret = self._secrets[board_id]
        wanted = needs(items)

        def work(tx: WriteTx) -> list[Verdict]:
            results = tx.gather(picture_queries(tx.dialect, board_id, wanted, secret))
            state, conflict_seq = board_state(board_id, results)
            now = max(self._clock.now(), state.last_commit_time)
            before = dict(state.usage)
            picture = picture_of(state, now, wanted, results, secret)
            verdicts = judge(picture, items, batch_id)
            tx.execute_all(batch_statements(tx.dialect, state, before, verdicts, conflict_seq))
            if any(isinstance(verdict, Accepted) for verdict in verdicts):
                tx.wake(board_id)
            self._judged[batch_id] = verdicts
            return verdicts

        verdicts = await self._engine.write(work, timeout)
        self._judged.pop(batch_id, None)
        if any(isinstance(verdict, Accepted) for verdict in verdicts):
            self._wakeups.put_nowait(board_id)
        return verdicts

    # Boards

    async def create_board(self, board: NewBoard) -> BoardMeta:
        now = self._clock.now()
        return await self._write(lambda tx: governing.create_board(tx, board, now))

    async def find_board(self, name: str) -> BoardMeta | None:
        return await self._engine.read(lambda tx: governing.find_board(tx, name))

    async def list_boards(self, after: str, limit: int) -> Sequence[BoardMeta]:
        return await self._engine.read(lambda tx: governing.list_boards(tx, after, limit))

    async def delete_board(self, board_id: BoardId, incarnation: Incarnation) -> bool:
        return await self._write(lambda tx: governing.delete_board(tx, board_id, incarnation))

    async def erase_deleted(self, limit: int) -> int:
        return await self._write(lambda tx: governing.erase_deleted(tx, limit))

    async def reincarnate(self, board_id: BoardId, incarnation: Incarnation) -> BoardMeta | None:
        return await self._write(lambda tx: governing.reincarnate(tx, board_id, incarnation))

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
        return await self._engine.read(lambda tx: reading.heads(tx, boards))

    async def read_keys(
        self, board_id: BoardId, keys: Sequence[tuple[Region, Key]], at: At, *, values: bool = True
    ) -> KeysRead:
        return await self._engine.read(lambda tx: reading.read_keys(tx, board_id, keys, at, values))

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
        return await self._engine.read(
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
        return await self._engine.read(
            lambda tx: reading.versions(tx, board_id, region, key, below, limit, values)
        )

    async def read_versions(
        self, board_id: BoardId, refs: Sequence[SourceRef], *, values: bool = False
    ) -> dict[SourceRef, VersionRecord]:
        return await self._engine.read(lambda tx: reading.read_versions(tx, board_id, refs, values))

    async def read_log(
        self, board_id: BoardId, after: Revision, limit: int, max_bytes: int, *, values: bool = True
    ) -> LogPage:
        return await self._engine.read(
            lambda tx: reading.read_log(tx, board_id, after, limit, max_bytes, values)
        )

    async def find_commit(
        self,
        board_id: BoardId,
        *,
        request: tuple[PrincipalId, str] | None = None,
        revision: Revision | None = None,
    ) -> tuple[Head, LoggedCommit | None, StoredAnswer | None]:
        return await self._engine.read(lambda tx: reading.find_commit(tx, board_id, request, revision))

    async def list_commits(
        self,
        board_id: BoardId,
        below: Revision | None,
        limit: int,
        principal: PrincipalId | None,
        region: Region | None,
        prefix: str,
    ) -> CommitsPage:
        return await self._engine.read(
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
        return await self._engine.read(
            lambda tx: logs.list_conflicts(tx, board_id, before, limit, key, principal)
        )

    async def find_conflict(self, board_id: BoardId, conflict_id: str) -> Conflict | None:
        return await self._engine.read(lambda tx: logs.find_conflict(tx, board_id, conflict_id))

    async def sources_of(self, board_id: BoardId, derived: Sequence[SourceRef]) -> Sequence[Edge]:
        return await self._engine.read(lambda tx: logs.sources_of(tx, board_id, derived))

    async def derived_from(
        self, board_id: BoardId, sources: Sequence[SourceRef], limit: int
    ) -> Sequence[Edge]:
        return await self._engine.read(lambda tx: logs.derived_from(tx, board_id, sources, limit))

    async def expired(self, now: Micros, limit: int) -> Sequence[tuple[BoardId, Expiring]]:
        return await self._engine.read(lambda tx: logs.expired(tx, now, limit))

    async def prune(self, now: Micros, limit: int) -> int:
        return await self._write(lambda tx: logs.prune(tx, now, limit))

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
        return await self._engine.read(lambda tx: people.find_session(tx, board_id, session_id))

    async def list_sessions(
        self, board_id: BoardId, before: tuple[Micros, str] | None, limit: int, principal: PrincipalId | None
    ) -> Sequence[SessionRecord]:
        return await self._engine.read(
            lambda tx: people.list_sessions(tx, board_id, before, limit, principal)
        )

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
        return await self._engine.read(lambda tx: people.find_principal(tx, principal))

    async def list_principals(self, after: str, limit: int) -> Sequence[Principal]:
        return await self._engine.read(lambda tx: people.list_principals(tx, after, limit))

    async def find_token(self, token_id: TokenId) -> tuple[TokenRecord, Principal] | None:
        return await self._engine.read(lambda tx: people.find_token(tx, token_id))

    async def list_tokens(self, principal: PrincipalId) -> Sequence[TokenRecord]:
        return await self._engine.read(lambda tx: people.list_tokens(tx, principal))

    async def add_token(self, token: TokenRecord, others_expire: Micros | None) -> None:
        await self._write(lambda tx: people.add_token(tx, token, others_expire))

    async def revoke_token(self, token_id: TokenId) -> bool:
        return await self._write(lambda tx: people.revoke_token(tx, token_id))

    async def audit(self, records: Sequence[AuditRecord]) -> None:
        named = [(secrets.token_hex(16), record) for record in records]
        await self._write(lambda tx: people.audit(tx, named))

    async def list_audit(self, before: int | None, limit: int) -> Sequence[tuple[int, AuditRecord]]:
        return await self._engine.read(lambda tx: people.list_audit(tx, before, limit))

    # The store

    async def start(self) -> None:
        await self._engine.start()
        loop = asyncio.get_running_loop()
        self._engine.listen(lambda board_id: _call_soon(loop, self._wakeups.put_nowait, board_id))

    async def close(self) -> None:
        await self._engine.close()

    def describe(self) -> str:
        return self._engine.describe()

    def warnings(self) -> Sequence[str]:
        return self._engine.warnings()

    async def ping(self) -> None:
        await self._engine.read(lambda tx: tx.rows("SELECT 1"))

    async def wakeups(self) -> AsyncIterator[BoardId]:
        while True:
            yield await self._wakeups.get()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[BoardId], None], board_id: BoardId) -> None:
    with contextlib.suppress(RuntimeError):  # the loop closed while the listener was on its way
        loop.call_soon_threadsafe(call, board_id)
