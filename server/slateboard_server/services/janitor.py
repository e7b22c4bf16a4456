"""What a replica does when nobody asks: records expiry, drops what is past its time, compacts, erases deleted boards.

Several replicas may sweep one database at once: each step holds by itself and doing it twice does no harm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from slateboard_server.domain.commit import CommitItem, Delete, Expect, Precondition
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.judge import Accepted
from slateboard_server.domain.values import BoardId, Micros, Revision, Tombstone
from slateboard_server.ports import BoardMeta, Clock, Expiring, Store
from slateboard_server.services.commits import Commits
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.principals import SERVER_PRINCIPAL

log = structlog.get_logger(__name__)

_EXPIRED_CHUNK: Final = 512
_DELETES_PER_COMMIT: Final = 64
_PRUNE_CHUNK: Final = 1_000
_ERASE_CHUNK: Final = 1_000
_COMPACT_CHUNK: Final = 1_000
_CHUNKS_PER_ROUND: Final = 20
_BOARDS_CHUNK: Final = 256


class Janitor:
    """Sweeps every `interval` seconds, and looks at histories every `compact_interval`."""

    def __init__(
        self,
        directory: BoardDirectory,
        store: Store,
        commits: Commits,
        clock: Clock,
        *,
        interval: float = 1.0,
        compact_interval: float = 60.0,
    ) -> None:
        """Sweep what `store` holds; tombstones are committed through `commits`, like any other write."""
        self._directory = directory
        self._store = store
        self._commits = commits
        self._clock = clock
        self._interval = interval
        self._compact_interval = compact_interval
        self._names: dict[BoardId, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to sweep in the background."""
        self._task = asyncio.create_task(self._run(), name="janitor")

    async def close(self) -> None:
        """Stop. What is being written is finished by the store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        compacted_at = self._clock.monotonic()
        while True:
            # Replicas of one database should not all wake at the same moment.
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))  # noqa: S311 -- no secret
            if self._directory.draining:
                return
            await self.sweep()
            if self._clock.monotonic() - compacted_at >= self._compact_interval:
                compacted_at = self._clock.monotonic()
                await self._guard("compact", self._compact_histories)

    async def sweep(self) -> None:
        """Make one round. What fails is logged and tried again in the next."""
        await self._guard("expire", self.expire)
        await self._guard("prune", self._prune)
        await self._guard("erase", self._erase)

    async def _guard(self, step: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except SlateboardError as error:
            log.warning("sweep interrupted", step=step, reason=error.reason, error=error.message)
        except Exception:
            log.exception("sweep failed", step=step)

    # Expiry

    async def expire(self) -> int:
        """Record the absence of values whose time has passed; returns how many tombstones were written."""
        written = 0
        for _ in range(_CHUNKS_PER_ROUND):
            found = await self._store.expired(self._clock.now(), _EXPIRED_CHUNK)
            by_board: dict[BoardId, list[Expiring]] = {}
            for board_id, expiring in found:
                by_board.setdefault(board_id, []).append(expiring)
            fresh = 0
            for board_id, values in by_board.items():
                fresh += await self._expire_some(board_id, values)
            written += fresh
            if len(found) < _EXPIRED_CHUNK or not fresh:
                break
        return written

    async def _expire_some(self, board_id: BoardId, values: Sequence[Expiring]) -> int:
        name = await self._name_of(board_id)
        if name is None:
            return 0
        groups = [
            list(values[start : start + _DELETES_PER_COMMIT])
            for start in range(0, len(values), _DELETES_PER_COMMIT)
        ]
        refused = await self._commit(board_id, name, groups)
        # One value that was replaced meanwhile refuses its whole commit: the others then go one by one.
        singles = [[value] for group in refused if len(group) > 1 for value in group]
        left = len(await self._commit(board_id, name, singles)) if singles else 0
        return len(values) - left - sum(1 for group in refused if len(group) == 1)

    async def _commit(
        self, board_id: BoardId, name: str, groups: Sequence[list[Expiring]]
    ) -> list[list[Expiring]]:
        """Commit a tombstone for each value, a commit a group; returns the groups that were refused."""
        items = [
            CommitItem(
                principal=SERVER_PRINCIPAL, ops=tuple(_tombstone(value) for value in group), internal=True
            )
            for group in groups
        ]
        verdicts = await self._commits.commit_internal(board_id, name, items)
        if not verdicts:
            return list(groups)
        return [
            group
            for group, verdict in zip(groups, verdicts, strict=True)
            if not isinstance(verdict, Accepted)
        ]

    async def _name_of(self, board_id: BoardId) -> str | None:
        if board_id not in self._names:
            self._names = {meta.board_id: meta.name for meta in await self._all_boards()}
        return self._names.get(board_id)

    async def _all_boards(self) -> list[BoardMeta]:
        boards: list[BoardMeta] = []
        after = ""
        while True:
            chunk = await self._store.list_boards(after, _BOARDS_CHUNK)
            boards += chunk
            if len(chunk) < _BOARDS_CHUNK:
                return boards
            after = chunk[-1].name

    # Retention

    async def _prune(self) -> None:
        for _ in range(_CHUNKS_PER_ROUND):
            if await self._store.prune(self._clock.now(), _PRUNE_CHUNK) < _PRUNE_CHUNK:
                return

    async def _erase(self) -> None:
        for _ in range(_CHUNKS_PER_ROUND):
            if not await self._store.erase_deleted(_ERASE_CHUNK):
                return

    async def _compact_histories(self) -> None:
        for meta in await self._all_boards():
            if meta.policy.history_retention is not None:
                try:
                    await self.compact(meta)
                except SlateboardError as error:
                    if error.reason is not Reason.BOARD_NOT_FOUND:
                        raise

    async def compact(self, meta: BoardMeta) -> Revision | None:
        """Compact what a board's policy no longer retains; returns the new floor, None where there is nothing to do."""
        if meta.policy.history_retention is None:
            return None
        now = max(self._clock.now(), meta.head.commit_time)
        target = await self._revision_at(meta, Micros(now - meta.policy.history_retention))
        if target <= meta.head.floor:
            return None
        for _ in range(_CHUNKS_PER_ROUND):
            _, _, more = await self._store.compact(meta.board_id, target, _COMPACT_CHUNK)
            if not more:
                break
        await self._directory.refresh(meta.board_id)
        return target

    async def _revision_at(self, meta: BoardMeta, moment: Micros) -> Revision:
        """Find the last revision committed at or before a moment, by halving: a board's time never runs backwards."""
        low, high = int(meta.head.floor) - 1, int(meta.head.revision)
        if meta.head.commit_time <= moment:
            return Revision(high)
        while low < high:
            middle = (low + high + 1) // 2
            _, logged, _ = await self._store.find_commit(meta.board_id, revision=Revision(middle))
            if logged is None or logged.commit.commit_time > moment:
                high = middle - 1
            else:
                low = middle
        return Revision(low)


def _tombstone(value: Expiring) -> Delete:
    return Delete(
        value.region,
        value.key,
        Precondition(Expect.VERSION, version=value.version),
        tombstone=Tombstone.EXPIRED,
    )
