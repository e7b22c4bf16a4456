"""The boards a replica has at hand: each with its feed, its commit queue and its counters.

Also keeps the feeds moving where other replicas commit too: wake-ups from the store, a poll as the floor under them, and
the coalesced head reads that make LATEST linearizable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence

import structlog

from slateboard_server.domain.entry import LoggedCommit
from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.judge import Accepted, Refused, Replayed
from slateboard_server.domain.locks import LockRecord, LockVerdict
from slateboard_server.domain.values import BoardId, Key, Region
from slateboard_server.ports import AuditRecord, BatchItem, BatchVerdict, BoardMeta, Clock, Head, Store
from slateboard_server.services.activity import BoardActivity
from slateboard_server.services.cache import EntryCache
from slateboard_server.services.commit_queue import CommitQueue
from slateboard_server.services.feed import BoardFeed
from slateboard_server.services.model import Activity, Caller, Stamp
from slateboard_server.services.scope import Scope
from slateboard_server.services.settings import DataPathSettings

log = structlog.get_logger(__name__)

_CATCH_UP_COMMITS = 512
_CATCH_UP_BYTES = 4 << 20
_JUMP_BEYOND = 4_096
"""A feed nobody watches and that lies further behind than this forgets its entries instead of reading the log."""


class BoardHandle:
    """An open board."""

    def __init__(self, meta: BoardMeta, feed: BoardFeed, activity: BoardActivity) -> None:
        """Hold together what belongs to a board; the directory adds the queue."""
        self.meta = meta
        self.feed = feed
        self.counters = activity
        self.queue: CommitQueue
        self.watches = 0
        self.catching_up = asyncio.Lock()

    @property
    def board_id(self) -> BoardId:
        """Return the board's number."""
        return self.meta.board_id

    def stamp(self) -> Stamp:
        """Return where the board stands as far as this replica has applied."""
        return self.feed.stamp()

    @property
    def idle(self) -> bool:
        """Tell whether nobody would miss the handle."""
        return self.watches == 0 and self.queue.idle


class HeadReader:
    """Reads heads from the primary, once for all reads that wait when the question is sent."""

    def __init__(self, store: Store) -> None:
        """Ask `store`."""
        self._store = store
        self._waiting: dict[BoardId, list[asyncio.Future[Head | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def read(self, board_id: BoardId) -> Head | None:
        """Return the head at or above everything acknowledged before the call; None if the board is gone."""
        future: asyncio.Future[Head | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(board_id, []).append(future)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._ask(), name="head-reader")
        return await future

    async def _ask(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, {}
            try:
                heads = await self._store.heads(list(asked))
            except Exception as error:  # noqa: BLE001 -- handed to those who wait
                for futures in asked.values():
                    for future in futures:
                        if not future.done():
                            future.set_exception(error)
                continue
            for board_id, futures in asked.items():
                for future in futures:
                    if not future.done():
                        future.set_result(heads.get(board_id))


class BoardDirectory:
    """Opens boards for callers and keeps them current."""

    def __init__(self, store: Store, clock: Clock, settings: DataPathSettings) -> None:
        """Work on `store`; call `start` before the first board is opened."""
        self.store = store
        self.clock = clock
        self.settings = settings
        self.cache = EntryCache(settings.cache_bytes)
        self.heads = HeadReader(store)
        self.draining = False
        self._by_name: OrderedDict[str, BoardHandle] = OrderedDict()
        self._by_id: dict[BoardId, BoardHandle] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._catch_ups: set[asyncio.Task[None]] = set()
        self.on_locks_changed: Callable[[BoardId, Sequence[LockRecord]], None] = lambda *_: None
        """Told of locks that this replica changed; with none, that another one may have changed some."""

    async def start(self) -> None:
        """Begin to follow wake-ups and, where several replicas write, to poll."""
        self._tasks = [asyncio.create_task(self._follow_wakeups(), name="wakeups")]
        if not self.settings.exclusive:
            self._tasks.append(asyncio.create_task(self._poll(), name="poll"))

    async def drain(self) -> None:
        """Send watchers away and wait for the commits that were submitted."""
        self.draining = True
        for handle in list(self._by_id.values()):
            handle.feed.nudge()
        await asyncio.gather(*(handle.queue.settled() for handle in list(self._by_id.values())))

    async def close(self) -> None:
        """Stop the background tasks. The store is the owner's to close."""
        tasks = [*self._tasks, *self._catch_ups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []

    # Opening

    def peek(self, caller: Caller, name: str) -> BoardHandle | None:
        """Return an open board the caller has a part in, without waiting; None where `open` must decide."""
        handle = self._by_name.get(name)
        if handle is None or not caller.principal.has_board(name):
            return None
        return handle

    async def open(self, caller: Caller, name: str) -> BoardHandle:
        """Return a board. BOARD_NOT_FOUND where there is none or the caller has no part in it: the two are alike."""
        if not caller.principal.has_board(name) or "\0" in name:
            raise board_not_found(name)
        handle = self._by_name.get(name)
        if handle is not None:
            self._by_name.move_to_end(name)
            return handle
        meta = await self.store.find_board(name)
        if meta is None:
            raise board_not_found(name)
        return self._keep(meta)

    async def enter(self, caller: Caller, name: str, scope: Scope, regions: Sequence[Region]) -> BoardHandle:
        """Open a board for a read of `regions`; an operator's entry into somebody's private region is audited first."""
        handle = await self.open(caller, name)
        foreign = scope.enters_foreign(regions)
        if foreign:
            now = self.clock.now()
            await self.store.audit(
                [AuditRecord(now, caller.principal.id, "private.read", name, region) for region in foreign]
            )
        return handle

    async def open_by_id(self, board_id: BoardId, name: str) -> BoardHandle | None:
        """Return a board for the server's own work; None if it is gone."""
        handle = self._by_id.get(board_id)
        if handle is not None:
            return handle
        meta = await self.store.find_board(name)
        return self._keep(meta) if meta is not None and meta.board_id == board_id else None

    def _keep(self, meta: BoardMeta) -> BoardHandle:
        known = self._by_id.get(meta.board_id)
        if known is not None:
            return known
        feed = BoardFeed(meta.board_id, meta.head, self.cache, self.settings.ring_bytes)
        handle = BoardHandle(meta, feed, BoardActivity())

        async def run(items: list[BatchItem], timeout: float) -> list[BatchVerdict]:
            return await self._run_batch(handle, items, timeout)

        handle.queue = CommitQueue(run, self.clock, self.settings)
        self._by_name[meta.name] = handle
        self._by_id[meta.board_id] = handle
        while len(self._by_name) > self.settings.open_boards:
            idle = next(
                (other for other in self._by_name.values() if other.idle and other is not handle), None
            )
            if idle is None:
                break
            self._drop(idle)
        return handle

    def _drop(self, handle: BoardHandle) -> None:
        handle.feed.forget_entries()
        if self._by_name.get(handle.meta.name) is handle:
            del self._by_name[handle.meta.name]
        self._by_id.pop(handle.board_id, None)

    def forget(self, board_id: BoardId, error: SlateboardError | None = None) -> None:
        """Let a board go that was deleted or began a new life; who waits on it hears `error`."""
        handle = self._by_id.get(board_id)
        if handle is not None:
            self._drop(handle)
            handle.feed.end(error or board_not_found(handle.meta.name))

    async def refresh(self, board_id: BoardId) -> BoardMeta | None:
        """Read a board's row again after something about it changed: policy, floor, incarnation, existence."""
        handle = self._by_id.get(board_id)
        if handle is None:
            return None
        meta = await self.store.find_board(handle.meta.name)
        if meta is None or meta.board_id != board_id:
            self.forget(board_id)
            return None
        if meta.head.incarnation != handle.feed.incarnation:
            self.forget(
                board_id,
                SlateboardError(
                    Reason.BOARD_REINCARNATED,
                    "the board began a new life; read the present state and follow from there",
                    incarnation=meta.head.incarnation,
                ),
            )
            # All locks of the life before have ended: whoever waits for one is to hear of it now.
            self.on_locks_changed(board_id, ())
            return meta
        handle.meta = meta
        handle.feed.observe(meta.head)
        handle.feed.nudge()
        return meta

    def activity(self, handle: BoardHandle, caller: Caller) -> Activity:
        """Return a board's live counters as the caller may see them."""
        counters = handle.counters
        return Activity(
            commits=counters.commits,
            conflicts=counters.conflicts,
            replays=counters.replays,
            watches=handle.watches,
            queued_commits=len(handle.queue),
            hot_keys=counters.hot_keys(Scope(caller), self.clock.monotonic()),
        )

    # Committing

    async def _run_batch(
        self, handle: BoardHandle, items: list[BatchItem], timeout: float
    ) -> list[BatchVerdict]:
        try:
            verdicts = await self.store.commit(handle.board_id, items, timeout)
        except SlateboardError as error:
            if error.reason is Reason.BOARD_NOT_FOUND:
                self.forget(handle.board_id)
            else:
                self._suspect(handle)
            raise
        except Exception:
            self._suspect(handle)
            raise
        changed = [
            lock for verdict in verdicts if isinstance(verdict, LockVerdict) for lock in verdict.changed
        ]
        if changed:
            self.on_locks_changed(handle.board_id, changed)
        accepted = [verdict.logged for verdict in verdicts if isinstance(verdict, Accepted)]
        if not handle.feed.apply(accepted):
            # Other replicas committed in between: their commits must be applied first. Nobody waits for that here: a
            # LATEST read asks the primary for the head and does not believe a feed that lies behind it.
            self._spawn(self._catch_up_quietly(handle))
        self._count(handle, verdicts, accepted)
        return verdicts

    def _count(self, handle: BoardHandle, verdicts: list[BatchVerdict], accepted: list[LoggedCommit]) -> None:
        counters = handle.counters
        now = self.clock.monotonic()
        counters.commits += len(accepted)
        for logged in accepted:
            for record in logged.versions:
                counters.wrote(record.region, record.key, now)
        for verdict in verdicts:
            if isinstance(verdict, Replayed):
                counters.replays += 1
            elif isinstance(verdict, Refused) and verdict.to_keep is not None:
                counters.conflicts += 1
                for violation in verdict.to_keep.violations[:8]:
                    counters.fought(violation.region, Key(violation.key), now)

    def _suspect(self, handle: BoardHandle) -> None:
        """Trust nothing cached until the log was read again: the batch that failed may have been committed."""
        handle.feed.suspect = True
        self._spawn(self._settle_doubt(handle))

    async def _settle_doubt(self, handle: BoardHandle) -> None:
        delay = 0.05
        while handle.feed.ended is None and handle.feed.suspect:
            try:
                await self.catch_up(handle)
                handle.feed.suspect = False
            except SlateboardError:
                await asyncio.sleep(delay)
                delay = min(2 * delay, 2.0)

    # Following others

    async def head(self, handle: BoardHandle) -> Head:
        """Read the board's head from the primary; moves the feed if it lies behind."""
        head = await self.heads.read(handle.board_id)
        if head is None:
            self.forget(handle.board_id)
            raise board_not_found(handle.meta.name)
        if (
            head.incarnation != handle.feed.incarnation
            or head.policy_version != handle.meta.head.policy_version
        ):
            await self.refresh(handle.board_id)
            if handle.feed.ended is not None:
                raise handle.feed.ended
        handle.feed.observe(head)
        if head.revision > handle.feed.applied:
            self._spawn(self._catch_up_quietly(handle))
        return head

    async def catch_up(self, handle: BoardHandle) -> None:
        """Apply the log up to the head of this moment."""
        feed = handle.feed
        async with handle.catching_up:
            while feed.ended is None:
                page = await self.store.read_log(
                    handle.board_id, feed.applied, _CATCH_UP_COMMITS, _CATCH_UP_BYTES, values=True
                )
                if page.head.incarnation != feed.incarnation:
                    await self.refresh(handle.board_id)
                    return
                feed.observe(page.head)
                if not page.commits:
                    # Nothing above, or what follows lies below the floor.
                    feed.jump(page.head)
                    return
                if not feed.followers and page.head.revision - feed.applied > _JUMP_BEYOND:
                    feed.jump(page.head)
                    return
                feed.apply(page.commits)
                if feed.applied >= page.head.revision:
                    return

    async def _catch_up_quietly(self, handle: BoardHandle) -> None:
        try:
            await self.catch_up(handle)
        except SlateboardError as error:
            if error.reason is Reason.BOARD_NOT_FOUND:
                self.forget(handle.board_id)
            elif self.settings.exclusive:
                self._suspect(handle)
            else:
                log.info("catch-up failed", board=handle.meta.name, reason=error.reason)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._catch_ups.add(task)
        task.add_done_callback(self._catch_ups.discard)

    async def _follow_wakeups(self) -> None:
        while True:
            try:
                async for board_id in self.store.wakeups():
                    self.on_locks_changed(board_id, ())
                    handle = self._by_id.get(board_id)
                    if handle is not None and not self.settings.exclusive:
                        self._spawn(self._catch_up_quietly(handle))
            except SlateboardError as error:
                log.info("wake-ups interrupted", reason=error.reason)
            await asyncio.sleep(self.settings.poll_interval)

    async def _poll(self) -> None:
        """Look at the heads of watched boards: wake-ups are hints, and hints get lost."""
        while True:
            await asyncio.sleep(self.settings.poll_interval)
            watched = [handle for handle in self._by_id.values() if handle.watches]
            if not watched:
                continue
            with contextlib.suppress(SlateboardError):
                heads = await self.store.heads([handle.board_id for handle in watched])
                for handle in watched:
                    head = heads.get(handle.board_id)
                    if head is None:
                        self.forget(handle.board_id)
                    elif head.incarnation != handle.feed.incarnation or (
                        head.policy_version != handle.meta.head.policy_version
                    ):
                        await self.refresh(handle.board_id)
                    else:
                        handle.feed.observe(head)
                        if head.revision > handle.feed.applied:
                            self._spawn(self._catch_up_quietly(handle))


def draining() -> SlateboardError:
    """Build the refusal of a server that is about to stop."""
    return SlateboardError(Reason.DRAINING, "this server is shutting down; retry on another address")
