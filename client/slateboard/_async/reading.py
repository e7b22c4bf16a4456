"""What can be asked of a board."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeVar, overload

from slateboard import _entries, _methods, _results, _wire, _wire_boards
from slateboard._async.core import AsyncCore, consistency
from slateboard._async.pages import AsyncPages
from slateboard._boards import BoardInfo, Policy
from slateboard._entries import Entry, Snapshot
from slateboard._enums import SessionState, Trust, View
from slateboard._filters import Filter
from slateboard._values import Duration
from slateboard.errors import Invalid, NotFound, ServerFault
from slateboard.v1 import (
    board_service_pb2,
    entry_service_pb2,
    provenance_service_pb2,
    session_service_pb2,
    types_pb2,
)

T = TypeVar("T")


class Missing(Enum):
    """The type of a default that was not given."""

    MISSING = 0


MISSING = Missing.MISSING
_GET_KEYS = 100


class AsyncReader:
    """The reads of a board, in one region. Every call may raise any SlateError; what is special is listed."""

    def __init__(self, core: AsyncCore, region: str) -> None:
        self._core = core
        self._region = region

    @property
    def name(self) -> str:
        """The board's name."""
        return self._core.name

    @property
    def stats(self) -> _results.Stats:
        """What was done through this board object and its private twin."""
        return self._core.counters.stats()

    @overload
    async def get(
        self,
        key: str,
        *,
        region: str | None = None,
        min_trust: Trust | None = None,
        view: View = View.FULL,
        at: int | None = None,
        at_least: int | None = None,
        stale: bool = False,
        timeout: Duration | None = None,
    ) -> Entry: ...

    @overload
    async def get(
        self,
        key: str,
        default: T,
        *,
        region: str | None = None,
        min_trust: Trust | None = None,
        view: View = View.FULL,
        at: int | None = None,
        at_least: int | None = None,
        stale: bool = False,
        timeout: Duration | None = None,
    ) -> Entry | T: ...

    async def get(
        self,
        key: str,
        default: T | Missing = MISSING,
        *,
        region: str | None = None,
        min_trust: Trust | None = None,
        view: View = View.FULL,
        at: int | None = None,
        at_least: int | None = None,
        stale: bool = False,
        timeout: Duration | None = None,
    ) -> Entry | T:
        """The present entry of a key; or, `at` a revision, the one it had then.

        Without `at`, what is returned is at or above every commit acknowledged before (linearizable); `at_least` only
        promises that revision, `stale` nothing.

        Raises:
            NotFound: the key is absent and no default was given.
        """
        found = await self.get_many(
            [key],
            region=region,
            min_trust=min_trust,
            view=view,
            at=at,
            at_least=at_least,
            stale=stale,
            timeout=timeout,
        )
        if key in found:
            return found[key]
        if isinstance(default, Missing):
            where = await self._core.region(region or self._region)
            raise NotFound(
                f"nothing is stored under {key!r} in {where!r}, or you may not see it. `default=` avoids this error",
                reason="KEY_NOT_FOUND",
                metadata={"region": where, "key": key},
            )
        return default

    async def get_many(
        self,
        keys: Iterable[str],
        *,
        region: str | None = None,
        min_trust: Trust | None = None,
        view: View = View.FULL,
        at: int | None = None,
        at_least: int | None = None,
        stale: bool = False,
        incarnation: str | None = None,
        timeout: Duration | None = None,
    ) -> Snapshot:
        """The entries of several keys, all at one revision, however many and large they are."""
        wanted = list(dict.fromkeys(keys))
        where = await self._core.region(region or self._region)
        state = consistency(at, at_least, stale)
        life = self._life(state, incarnation)
        found: dict[str, Entry] = {}
        absent: list[str] = []
        revision = 0
        pending = wanted
        while pending:
            request = entry_service_pb2.GetRequest(
                board=self._core.name,
                keys=[types_pb2.KeyRef(region=where, key=key) for key in pending[:_GET_KEYS]],
                consistency=state,
                view=types_pb2.View.ValueType(view.value),
                min_trust=_trust(min_trust),
                incarnation=life,
            )
            reply = await self._core.call(_methods.GET, request, timeout=timeout)
            header = reply.header
            for message in reply.entries:
                found[message.key] = _wire.entry(message, self._core.name, header.incarnation)
            absent += [key.key for key in reply.absent]
            unread = [key.key for key in reply.unread]
            if len(unread) == len(request.keys):
                raise ServerFault("the server returned none of the keys asked for")
            if not revision:
                revision, life = header.revision, header.incarnation
            pending = unread + pending[_GET_KEYS:]
            # The rest is read at the revision of the first reply. A board without a revision holds nothing.
            if pending and revision:
                state = consistency(revision, None, stale=False)
        # In the order asked, whatever took several replies.
        ordered = {key: found[key] for key in wanted if key in found}
        return Snapshot(ordered, revision=revision, incarnation=life, absent=absent)

    def list(
        self,
        prefix: str = "",
        *,
        filters: Sequence[Filter] = (),
        region: str | None = None,
        min_trust: Trust | None = None,
        view: View = View.FULL,
        at: int | None = None,
        at_least: int | None = None,
        stale: bool = False,
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[Entry]:
        """The entries below a prefix (empty, or ending with `/`) in key order, all at one revision."""
        state = consistency(at, at_least, stale)
        conditions = [condition.message() for condition in filters]

        async def fetch(token: str) -> tuple[Sequence[Entry], str, int]:
            request = entry_service_pb2.ListRequest(
                board=self._core.name,
                prefix=types_pb2.PrefixRef(
                    region=await self._core.region(region or self._region), prefix=prefix
                ),
                filters=conditions,
                page_size=page_size,
                page_token=token,
                consistency=state,
                view=types_pb2.View.ValueType(view.value),
                min_trust=_trust(min_trust),
                incarnation=self._life(state, None),
            )
            reply = await self._core.call(_methods.LIST, request, timeout=timeout)
            header = reply.header
            entries = _wire.entries(reply.entries, self._core.name, header.incarnation)
            return entries, reply.next_page_token, header.revision

        return AsyncPages(fetch)

    def history(
        self,
        key: str,
        *,
        region: str | None = None,
        min_trust: Trust | None = None,
        view: View = View.FULL,
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[Entry]:
        """The versions of a key, newest first, absences included."""

        async def fetch(token: str) -> tuple[Sequence[Entry], str, int]:
            request = entry_service_pb2.ListVersionsRequest(
                board=self._core.name,
                key=await self._key(key, region),
                page_size=page_size,
                page_token=token,
                view=types_pb2.View.ValueType(view.value),
                min_trust=_trust(min_trust),
            )
            reply = await self._core.call(_methods.LIST_VERSIONS, request, timeout=timeout)
            header = reply.header
            entries = _wire.entries(reply.versions, self._core.name, header.incarnation)
            return entries, reply.next_page_token, header.revision

        return AsyncPages(fetch)

    async def diff(
        self,
        key: str,
        from_version: int | None = None,
        to_version: int | None = None,
        *,
        region: str | None = None,
        min_trust: Trust | None = None,
        timeout: Duration | None = None,
    ) -> _results.Diff:
        """Two versions of a key, compared: by default the present one and the one before it."""
        request = entry_service_pb2.DiffRequest(
            board=self._core.name,
            key=await self._key(key, region),
            from_version=from_version or 0,
            to_version=to_version or 0,
            min_trust=_trust(min_trust),
        )
        reply = await self._core.call(_methods.DIFF, request, timeout=timeout)
        return _wire.diff(reply, self._core.name)

    async def trace(
        self,
        key: str | Entry,
        *,
        version: int | None = None,
        max_depth: int = 16,
        max_nodes: int = 500,
        region: str | None = None,
        timeout: Duration | None = None,
    ) -> _results.Lineage:
        """What a version (default: the present one) was made from, and what that was made from."""
        request = provenance_service_pb2.TraceRequest(
            board=self._core.name,
            key=await self._key(key, region),
            version=_version(key, version),
            max_depth=max_depth,
            max_nodes=max_nodes,
        )
        reply = await self._core.call(_methods.TRACE, request, timeout=timeout)
        return _wire.lineage(reply, self._core.name)

    async def impact(
        self,
        key: str | Entry,
        *,
        version: int | None = None,
        all_versions: bool = False,
        max_depth: int = 16,
        max_nodes: int = 500,
        region: str | None = None,
        timeout: Duration | None = None,
    ) -> _results.Lineage:
        """What was made from a version (default: the present one) or from every one, and what from that."""
        request = provenance_service_pb2.ImpactRequest(
            board=self._core.name,
            key=await self._key(key, region),
            version=0 if all_versions else _version(key, version),
            all_versions=all_versions,
            max_depth=max_depth,
            max_nodes=max_nodes,
        )
        reply = await self._core.call(_methods.IMPACT, request, timeout=timeout)
        return _wire.lineage(reply, self._core.name)

    def commits(
        self,
        *,
        principal: str = "",
        prefix: str | None = None,
        region: str | None = None,
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[_results.CommitInfo]:
        """The board's commits, newest first; only a principal's, or only those that touched a prefix."""

        async def fetch(token: str) -> tuple[Sequence[_results.CommitInfo], str, int]:
            request = entry_service_pb2.ListCommitsRequest(
                board=self._core.name, page_size=page_size, page_token=token, principal=principal
            )
            if prefix is not None:
                request.prefix.region = await self._core.region(region or self._region)
                request.prefix.prefix = prefix
            reply = await self._core.call(_methods.LIST_COMMITS, request, timeout=timeout)
            infos = [_wire.commit_info(message) for message in reply.commits]
            return infos, reply.next_page_token, reply.header.revision

        return AsyncPages(fetch)

    async def get_commit(
        self,
        *,
        request_id: str | None = None,
        revision: int | None = None,
        timeout: Duration | None = None,
    ) -> _results.CommitInfo:
        """The commit of one of the caller's request ids, or of a revision.

        Raises:
            NotFound: there is none. Where a write's outcome was unknown: it has not happened.
        """
        if (request_id is None) == (revision is None):
            raise Invalid("get_commit takes request_id= or revision=", metadata={"field": "selector"})
        request = entry_service_pb2.GetCommitRequest(board=self._core.name)
        if request_id is not None:
            request.request_id = request_id
        else:
            request.revision = revision or 0
        reply = await self._core.call(_methods.GET_COMMIT, request, timeout=timeout)
        return _wire.commit_info(reply.commit)

    def conflicts(
        self,
        *,
        key: str | None = None,
        principal: str = "",
        region: str | None = None,
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[_results.ConflictInfo]:
        """Refused commits, newest first, as long as the server keeps them."""

        async def fetch(token: str) -> tuple[Sequence[_results.ConflictInfo], str, int]:
            request = entry_service_pb2.ListConflictsRequest(
                board=self._core.name, page_size=page_size, page_token=token, principal=principal
            )
            if key is not None:
                request.key.CopyFrom(await self._key(key, region))
            reply = await self._core.call(_methods.LIST_CONFLICTS, request, timeout=timeout)
            infos = [_wire.conflict(message) for message in reply.conflicts]
            return infos, reply.next_page_token, reply.header.revision

        return AsyncPages(fetch)

    async def get_conflict(
        self, conflict_id: str, *, timeout: Duration | None = None
    ) -> _results.ConflictInfo:
        """One refused commit, with all its violations."""
        request = entry_service_pb2.GetConflictRequest(board=self._core.name, conflict_id=conflict_id)
        reply = await self._core.call(_methods.GET_CONFLICT, request, timeout=timeout)
        return _wire.conflict(reply.conflict)

    def sessions(
        self,
        *,
        state: SessionState | None = None,
        principal: str = "",
        page_size: int = 100,
        timeout: Duration | None = None,
    ) -> AsyncPages[_results.SessionInfo]:
        """Who is at work, newest session first, as the server's clock sees it."""

        async def fetch(token: str) -> tuple[Sequence[_results.SessionInfo], str, int]:
            request = session_service_pb2.ListSessionsRequest(
                board=self._core.name,
                page_size=page_size,
                page_token=token,
                state=session_service_pb2.SessionState.ValueType(state.value if state else 0),
                principal=principal,
            )
            reply = await self._core.call(_methods.LIST_SESSIONS, request, timeout=timeout)
            infos = [_wire.session(message) for message in reply.sessions]
            return infos, reply.next_page_token, reply.header.revision

        return AsyncPages(fetch)

    async def info(self, *, timeout: Duration | None = None) -> BoardInfo:
        """The board's state, and what the answering replica is doing for it."""
        request = board_service_pb2.GetBoardRequest(board=self._core.name)
        reply = await self._core.call(_methods.GET_BOARD, request, timeout=timeout)
        return _wire_boards.board(reply.board, reply.activity)

    async def policy(self, *, timeout: Duration | None = None) -> Policy:
        """The board's rules."""
        request = board_service_pb2.GetPolicyRequest(board=self._core.name)
        reply = await self._core.call(_methods.GET_POLICY, request, timeout=timeout)
        return _wire_boards.policy(reply.policy)

    async def _key(self, key: str | Entry, region: str | None) -> types_pb2.KeyRef:
        if isinstance(key, _entries.Entry):
            return types_pb2.KeyRef(region=key.region, key=key.key)
        return types_pb2.KeyRef(region=await self._core.region(region or self._region), key=key)

    def _life(self, state: types_pb2.Consistency | None, incarnation: str | None) -> str:
        """The incarnation to name in a read: only one that rests on a revision may do so."""
        if state is None or not state.revision:
            return ""
        return self._core.incarnation if incarnation is None else incarnation


def _version(key: str | Entry, version: int | None) -> int:
    if version is None and isinstance(key, _entries.Entry):
        return key.version
    return version or 0


def _trust(trust: Trust | None) -> types_pb2.Trust.ValueType:
    return types_pb2.Trust.ValueType(trust.value if trust is not None else 0)
