"""What can be done to a board."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from slateboard import _methods, _wire_boards
from slateboard._async.core import PRIVATE, AsyncCore, Presented
from slateboard._async.lock import AsyncLock
from slateboard._async.lock_watch import AsyncLockWatch
from slateboard._async.pages import AsyncPages
from slateboard._async.session import AsyncSession
from slateboard._async.watch import AsyncWatch
from slateboard._async.writing import AsyncWriter
from slateboard._boards import Policy
from slateboard._enums import ReleaseOutcome, Trust, View
from slateboard._locks import (
    LockClaim,
    LockInfo,
    LockScope,
    WaiterInfo,
    lock_info,
    scope_message,
    waiter_info,
)
from slateboard._values import Duration
from slateboard._wire import enum
from slateboard.v1 import board_service_pb2, commit_pb2, lock_service_pb2


class AsyncBoard(AsyncWriter):
    """One board, in its shared region. Made by `client.board(name)`; makes no call by itself.

    Every call may raise any SlateError; what is special is listed. `timeout` bounds a whole call, retries included.
    """

    def __init__(self, core: AsyncCore, region: str = "shared") -> None:
        super().__init__(core, region)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.name!r}, region={self._region!r})"

    @property
    def private(self) -> AsyncBoard:
        """The same calls in this principal's own region, which others do not see."""
        return AsyncBoard(self._core, PRIVATE)

    def watch(
        self,
        prefix: str | Iterable[str] = "",
        *,
        after: int | None = None,
        snapshot: bool = False,
        resnapshot: bool = False,
        progress: bool = False,
        view: View = View.FULL,
        min_trust: Trust | None = None,
        region: str | None = None,
        progress_interval: Duration | None = None,
        reconnect_for: Duration = 300.0,
    ) -> AsyncWatch:
        """Follows changes below a prefix, or several: an iterator of batches, one a revision, in order, each once.

        It resumes by itself after lost connections, drained servers and slow reading, without gap or duplicate.

        Args:
            prefix: Empty for everything, otherwise ending with `/`.
            after: Only revisions above this one. Default: from now on, where "now" is when the context is entered, or
                else the first batch is asked for.
            snapshot: First the present entries as `SnapshotPage`s, then what follows.
            resnapshot: Where changes were compacted away meanwhile, or the board began a new life: start again with
                `SnapshotPage`s instead of raising.
            progress: Also yield batches without entries, when nothing happened for `progress_interval`.
            view: How much of each entry.
            min_trust: Entries below come without value.
            region: Another region than this board's.
            progress_interval: 1 to 60 s.
            reconnect_for: How long to try before a lost connection becomes an error.

        Raises:
            Compacted: changes since `after` are gone, and `resnapshot` is not set.
            Unavailable: no server could be reached for `reconnect_for`.
        """
        return AsyncWatch(
            self._core,
            self._region if region is None else region,
            [prefix] if isinstance(prefix, str) else list(prefix),
            after=after,
            snapshot=snapshot,
            resnapshot=resnapshot,
            progress=progress,
            view=view,
            min_trust=min_trust,
            progress_interval=progress_interval,
            reconnect_for=reconnect_for,
        )

    def session(self, *, task: str = "", ttl: Duration = 15.0, purpose: str = "") -> AsyncSession:
        """This principal at work: a context manager. Inside, this board's calls are made in the session.

        Heartbeats are sent in the background. Once the session is lost, `session.lost` is set and every further call
        of this board inside the context raises SessionDead: others may have taken over.

        Args:
            task: What it works on; change it with `session.task = ...`.
            ttl: How long the session lives without a heartbeat, 2 s to 1 h.
            purpose: What it is for.
        """
        return AsyncSession(self._core, task=task, ttl=ttl, purpose=purpose)

    def lock(
        self,
        scope: str | LockScope | Sequence[str | LockScope],
        *,
        ttl: Duration = 30.0,
        wait: Duration | None = 30.0,
        purpose: str = "",
        shared: bool = False,
        max_hold: Duration | None = None,
        region: str | None = None,
        cancel_on_loss: bool = True,
    ) -> AsyncLock:
        """A lock over a key, over all below a prefix ending with `/`, or over several of these: a context manager.

        Several are granted together. While it is held nobody else writes there; write through what the context gives,
        which carries the claim. It is renewed in the background, together with this client's other locks on the board.

        Once it is lost (its renewals were not answered for its ttl, somebody ended it by force), `held.lost` is set and
        every further call through `held` raises LockLost without being sent. In async code the body is cancelled, as by
        `asyncio.timeout`. Leaving the context raises LockLost, unless the body raised something else: what it did may
        have met others' work. The server refuses what was written too late in any case; before an effect elsewhere ask
        `held.gate()`. A lock is not reentrant.

        Args:
            scope: What to lock.
            ttl: How long it lives without a renewal, 2 s to 1 h.
            wait: How long to wait for it, in the order of asking; 0 tries once; None: an hour, which is the most.
            purpose: What it is for, shown to whoever meets it.
            shared: Others may hold it shared, too, and nobody writes, the holders included.
            max_hold: It ends this long after it was granted, renewed or not.
            region: Another region than this board's.
            cancel_on_loss: Whether the loss cancels the body, in async code.

        Raises:
            LockHeld: it was not granted in time; it names the holder.
            Deadlock: it never would have been.
            LockLost: its own lease ended before the grant could be heard of.
            Unavailable, DeadlineExceeded: no answer came. What might have been granted is taken back, if anybody
                hears of that; otherwise it ends with its ttl.
        """
        scopes = [scope] if isinstance(scope, (str, LockScope)) else list(scope)
        return AsyncLock(
            self._core,
            self._region if region is None else region,
            scopes,
            ttl=ttl,
            wait=wait,
            purpose=purpose,
            shared=shared,
            max_hold=max_hold,
            cancel_on_loss=cancel_on_loss,
        )

    def claiming(self, *claims: LockClaim) -> AsyncBoard:
        """The same board, whose writes present claims of locks that somebody else keeps alive, e.g. a parent process."""
        return AsyncBoard(self._core.under(*(Presented(claim) for claim in claims)), self._region)

    def adopt_lock(self, lock_id: str, token: int, *, cancel_on_loss: bool = True) -> AsyncLock:
        """A lock that was handed to this principal by `transfer`, or acquired in an earlier process: a context manager.

        Raises:
            LockLost: it is not held by this principal with this token.
        """
        return AsyncLock.adopted(self._core, self._region, lock_id, token, cancel_on_loss=cancel_on_loss)

    async def lock_info(self, lock_id: str, *, timeout: Duration | None = None) -> LockInfo:
        """One lock, also one that ended in the last 24 h.

        Raises:
            LockLost: there is none, or it may not be seen.
        """
        request = lock_service_pb2.GetLockRequest(board=self._core.name, lock_id=lock_id)
        return lock_info((await self._core.call(_methods.GET_LOCK, request, timeout=timeout)).lock)

    def locks(
        self,
        covering: str | LockScope | None = None,
        *,
        principal: str = "",
        include_ended: bool = False,
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[LockInfo]:
        """The held locks, oldest first; only those that cover, or lie in, a key or prefix; also ended ones, for 24 h."""

        async def fetch(token: str) -> tuple[Sequence[LockInfo], str, int]:
            request = lock_service_pb2.ListLocksRequest(
                board=self._core.name,
                principal=principal,
                include_ended=include_ended,
                page_size=page_size,
                page_token=token,
            )
            if covering is not None:
                request.covering.CopyFrom(scope_message(covering, await self._core.region(self._region)))
            reply = await self._core.call(_methods.LIST_LOCKS, request, timeout=timeout)
            return [lock_info(one) for one in reply.locks], reply.next_page_token, reply.header.revision

        return AsyncPages(fetch)

    def waiters(
        self,
        covering: str | LockScope | None = None,
        *,
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[WaiterInfo]:
        """Who waits for locks, in the order of asking, and for whom."""

        async def fetch(token: str) -> tuple[Sequence[WaiterInfo], str, int]:
            request = lock_service_pb2.ListWaitersRequest(
                board=self._core.name, page_size=page_size, page_token=token
            )
            if covering is not None:
                request.covering.CopyFrom(scope_message(covering, await self._core.region(self._region)))
            reply = await self._core.call(_methods.LIST_WAITERS, request, timeout=timeout)
            return [waiter_info(one) for one in reply.waiters], reply.next_page_token, reply.header.revision

        return AsyncPages(fetch)

    async def release_lock(
        self, lock_id: str, token: int, *, timeout: Duration | None = None
    ) -> ReleaseOutcome:
        """Ends one's own lock by its id and token, where the object that acquired it is not at hand."""
        request = lock_service_pb2.ReleaseRequest(
            board=self._core.name,
            request_id=str(uuid.uuid4()),
            claim=commit_pb2.Claim(lock_id=lock_id, fencing_token=token),
            session_token=self._core.session_token,
        )
        reply = await self._core.call(_methods.RELEASE, request, timeout=timeout)
        return enum(ReleaseOutcome, reply.outcome, ReleaseOutcome.EXPIRED)

    async def force_release(
        self, lock_id: str, *, expected_token: int, reason: str, timeout: Duration | None = None
    ) -> LockInfo:
        """Ends somebody else's lock, if it still is the one with that token; for supervisors, audited.

        Raises:
            LockLost: it is not held with that token any more.
        """
        request = lock_service_pb2.ForceReleaseRequest(
            board=self._core.name,
            request_id=str(uuid.uuid4()),
            lock_id=lock_id,
            expected_token=expected_token,
            reason=reason,
        )
        return lock_info((await self._core.call(_methods.FORCE_RELEASE, request, timeout=timeout)).lock)

    def watch_locks(
        self,
        covering: str | LockScope | None = None,
        *,
        after: int = 0,
        reconnect_for: Duration = 300.0,
    ) -> AsyncLockWatch:
        """Follows locks: an iterator of `LockInfo`, first those that live, then each that changes, in its latest state.

        `after` resumes behind the `sequence` of one. It reconnects by itself.

        Raises:
            Unavailable: no server could be reached for `reconnect_for`.
        """
        return AsyncLockWatch(self._core, self._region, covering, after=after, reconnect_for=reconnect_for)

    async def set_policy(
        self, policy: Policy, *, expected_version: int | None = None, timeout: Duration | None = None
    ) -> Policy:
        """Replaces the board's rules; those of `policy.version` must still be in force, or of `expected_version`.

        Raises:
            Conflict: somebody changed them meanwhile.
        """
        request = board_service_pb2.SetPolicyRequest(
            board=self._core.name,
            policy=_wire_boards.policy_message(policy),
            expected_version=policy.version if expected_version is None else expected_version,
        )
        reply = await self._core.call(_methods.SET_POLICY, request, timeout=timeout)
        return _wire_boards.policy(reply.policy)

    async def compact(self, revision: int, *, timeout: Duration | None = None) -> int:
        """Drops values superseded at or before a revision, which becomes the oldest one; lineage stays.

        Returns:
            How many versions lost their value.
        """
        request = board_service_pb2.CompactBoardRequest(board=self._core.name, revision=revision)
        reply = await self._core.call(_methods.COMPACT_BOARD, request, timeout=timeout)
        return reply.compacted_versions
