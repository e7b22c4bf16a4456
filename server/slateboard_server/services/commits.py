"""Committing, and reading what was committed or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from slateboard_server.domain.commit import CommitItem, check_ops
from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.fingerprint import fingerprint
from slateboard_server.domain.judge import Accepted, Refused, Replayed, Verdict
from slateboard_server.domain.values import BoardId, Key, LockId, PrincipalId, Region, Revision
from slateboard_server.ports import AuditRecord, Clock, Store
from slateboard_server.services.directory import BoardDirectory, BoardHandle, draining
from slateboard_server.services.lock_keeper import LockKeeper
from slateboard_server.services.model import (
    Caller,
    CommitResult,
    CommitsResult,
    ConflictsResult,
    Stamp,
    VisibleCommit,
)
from slateboard_server.services.page_tokens import PageTokens, page_size
from slateboard_server.services.scope import Scope


class Commits:
    """EntryService's Commit, GetCommit, ListCommits, ListConflicts, GetConflict."""

    def __init__(self, directory: BoardDirectory, store: Store, clock: Clock, keeper: LockKeeper) -> None:
        """Commit through the boards of `directory`; `keeper` knows whose locks are alive."""
        self._directory = directory
        self._keeper = keeper
        self._store = store
        self._clock = clock

    async def commit(self, caller: Caller, board: str, item: CommitItem, timeout: float) -> CommitResult:
        """Have a commit judged and written; raises the refusal.

        Returns after the fsync, when every LATEST read sees it. `item.fingerprint` is filled in here. `timeout` in
        seconds; past it DEADLINE, and the outcome may be unknown.
        """
        if self._directory.draining:
            raise draining()
        check_ops(item.ops)
        handle = self._directory.peek(caller, board) or await self._directory.open(caller, board)
        item = replace(item, fingerprint=fingerprint(handle.meta.secret, item))
        if item.claims:
            try:
                item = replace(item, dead_claims=await self._keeper.dead_claims(handle, item.claims))
            except SlateboardError as error:
                if error.reason is not Reason.LOCK_BACKEND_DOWN:
                    raise
                # A retry of a commit that happened is answered all the same; the judge refuses any other.
                item = replace(item, claims_unchecked=True)
        verdict = await handle.queue.submit(item, timeout)
        if (
            isinstance(verdict, Refused)
            and verdict.error.reason is Reason.KEY_LOCKED
            and await self._in_the_way_of_nobody(handle, verdict)
        ):
            verdict = await handle.queue.submit(item, timeout)
        await self._audit_waivers(caller, board, verdict)
        return _result(handle, verdict)

    async def commit_internal(
        self, board_id: BoardId, name: str, items: Sequence[CommitItem]
    ) -> list[Verdict]:
        """Have the server's own commits judged, each on its own; refusals come back as verdicts."""
        handle = await self._directory.open_by_id(board_id, name)
        if handle is None or self._directory.draining:
            return []
        timeout = self._directory.settings.commit_timeout
        results = await asyncio.gather(
            *(handle.queue.submit(item, timeout) for item in items), return_exceptions=True
        )
        verdicts: list[Verdict] = []
        for result in results:
            if isinstance(result, SlateboardError):
                verdicts.append(Refused(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                verdicts.append(result)
        return verdicts

    async def _in_the_way_of_nobody(self, handle: BoardHandle, refused: Refused) -> bool:
        """End the locks that refused a commit, if nobody alive holds them any more; tells whether that was so."""
        conflict = refused.error.conflict
        locks = [] if conflict is None else [LockId(violation.lock_id) for violation in conflict.violations]
        try:
            return await self._keeper.reap_dead(handle, [lock_id for lock_id in locks if lock_id])
        except SlateboardError:
            return False  # the refusal stands, and is the better answer

    async def _audit_waivers(self, caller: Caller, board: str, verdict: Verdict) -> None:
        if not isinstance(verdict, Accepted):
            return
        waived = [
            record
            for record in verdict.logged.versions
            if record.is_value and record.annotations.derivation_waived
        ]
        if waived:
            await self._store.audit(
                [
                    AuditRecord(
                        verdict.logged.commit.commit_time,
                        caller.principal.id,
                        "derivation.waived",
                        board,
                        f"{record.region}:{record.key}@{record.version}",
                    )
                    for record in waived
                ]
            )

    async def get_commit(
        self, caller: Caller, board: str, request_id: str | None = None, revision: Revision | None = None
    ) -> tuple[Stamp, VisibleCommit]:
        """Find a commit by the caller's own request_id, or by revision.

        COMMIT_NOT_FOUND: it had not happened at the revision in the error's metadata.
        """
        handle = await self._directory.open(caller, board)
        # A commit under this id may be waiting right here: an answer of "not found" must not be overtaken by it.
        if request_id is not None:
            await handle.queue.outcome_known(caller.principal.id, request_id)
        request = None if request_id is None else (caller.principal.id, request_id)
        head, logged, _ = await self._store.find_commit(handle.board_id, request=request, revision=revision)
        if logged is None:
            what = f"request_id {request_id}" if request_id is not None else f"revision {revision}"
            raise SlateboardError(
                Reason.COMMIT_NOT_FOUND,
                f"no commit has {what}; the board was at revision {head.revision} when it was looked for",
                revision=head.revision,
            )
        stamp = Stamp(head.revision, head.floor, head.incarnation)
        return stamp, Scope(caller).of_commit(logged)

    async def list_commits(
        self,
        caller: Caller,
        board: str,
        size: int,
        page_token: str,
        principal: PrincipalId | None = None,
        region: Region | None = None,
        prefix: str = "",
    ) -> CommitsResult:
        """List commits, newest first."""
        handle = await self._directory.open(caller, board)
        tokens = PageTokens(
            handle.meta.secret,
            handle.feed.incarnation,
            "commits",
            caller.principal.id,
            principal,
            region,
            prefix,
        )
        position = tokens.read(page_token)
        scope = Scope(caller)
        if region is not None and not scope.may_read_some(region, prefix):
            return CommitsResult(handle.stamp(), (), "")
        below = None if position is None else Revision(position["below"])
        page = await self._store.list_commits(
            handle.board_id, below, page_size(size), principal, region, prefix
        )
        stamp = Stamp(page.head.revision, page.head.floor, page.head.incarnation)
        commits = [scope.of_commit(logged) for logged in page.commits]
        if principal is not None or region is not None:
            # What answers a filter must not be told apart from what does not, where it may not be seen.
            commits = [commit for commit in commits if commit.logged.versions or not commit.hidden_ops]
        token = tokens.make(below=page.commits[-1].commit.revision) if page.more and page.commits else ""
        return CommitsResult(stamp, commits, token)

    async def list_conflicts(
        self,
        caller: Caller,
        board: str,
        size: int,
        page_token: str,
        key: tuple[Region, Key] | None = None,
        principal: PrincipalId | None = None,
    ) -> ConflictsResult:
        """List refused commits, newest first, with the violations that may be seen."""
        handle = await self._directory.open(caller, board)
        tokens = PageTokens(
            handle.meta.secret, handle.feed.incarnation, "conflicts", caller.principal.id, key, principal
        )
        position = tokens.read(page_token)
        before = None if position is None else int(position["before"])
        page, cursor = await self._store.list_conflicts(
            handle.board_id, before, page_size(size), key, principal
        )
        scope = Scope(caller)
        shown = [cut for conflict in page.conflicts if (cut := scope.of_conflict(conflict)) is not None]
        if key is not None and not scope.may_read(*key):
            shown = [conflict for conflict in shown if conflict.principal == caller.principal.id]
        stamp = Stamp(page.head.revision, page.head.floor, page.head.incarnation)
        token = tokens.make(before=cursor) if cursor is not None else ""
        return ConflictsResult(stamp, shown, token, page.dropped)

    async def get_conflict(self, caller: Caller, board: str, conflict_id: str) -> tuple[Stamp, Conflict]:
        """Read one conflict whole. One of which nothing may be seen answers like an unknown one."""
        handle = await self._directory.open(caller, board)
        conflict = await self._store.find_conflict(handle.board_id, conflict_id)
        shown = None if conflict is None else Scope(caller).of_conflict(conflict)
        if shown is None:
            raise SlateboardError(
                Reason.CONFLICT_NOT_FOUND,
                f"there is no conflict {conflict_id!r}; the last 10,000 or 24 h of a board are kept",
                conflict_id=conflict_id,
            )
        return handle.stamp(), shown


def _result(handle: BoardHandle, verdict: Verdict) -> CommitResult:
    if isinstance(verdict, Refused):
        raise verdict.error
    stamp = Stamp(verdict.answer.revision, handle.feed.floor, handle.feed.incarnation)
    return CommitResult(stamp, verdict.answer, isinstance(verdict, Replayed))
