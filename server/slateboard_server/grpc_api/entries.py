"""EntryService but Watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import grpc

from slateboard.v1 import entry_service_pb2 as pb
from slateboard.v1 import types_pb2
from slateboard_server.domain.diff import diff_values
from slateboard_server.domain.entry import VersionRecord
from slateboard_server.domain.errors import field_invalid
from slateboard_server.domain.limits import MAX_MESSAGE_BYTES, MAX_TAG_BYTES
from slateboard_server.domain.values import Key, PrincipalId, Region, Revision
from slateboard_server.grpc_api.calls import Calls, Context
from slateboard_server.grpc_api.pages import fitting_page
from slateboard_server.grpc_api.read_commit import read_commit
from slateboard_server.grpc_api.read_reads import (
    read_filters,
    read_keys,
    read_subtree,
    read_version_want,
    read_want,
)
from slateboard_server.grpc_api.shape import (
    check_no_unknown,
    check_request_id,
    check_text,
    check_trust,
    read_key,
    read_prefix,
)
from slateboard_server.grpc_api.wire import Headers, delimited, tag
from slateboard_server.grpc_api.write_commits import write_commit, write_commit_info, write_conflict
from slateboard_server.grpc_api.write_entries import EntryWriter, View
from slateboard_server.services.commits import Commits
from slateboard_server.services.directory import BoardDirectory, BoardHandle
from slateboard_server.services.model import (
    Caller,
    CommitsResult,
    ConflictsResult,
    GetResult,
    RecordsPage,
    Want,
)
from slateboard_server.services.reads import Reads

SERVICE: Final = "slateboard.v1.EntryService"
_DEFAULT_TIMEOUT: Final = 30.0
"""Seconds a commit may take where the caller names no deadline."""
_ASKED: Final = 1_024
_ASKED_BYTES: Final = 512
"""Requests that are remembered: so many, of at most so many bytes each."""
_Asked: TypeAlias = tuple[str, Sequence[tuple[Region, Key]], View, Want]
_LIST_ENTRIES: Final = tag(2)
"""`entries` and `versions` are field 2 of every reply that has them; a test compares with protobuf's own encoding."""
_ABSENT: Final = tag(3)
_UNREAD: Final = tag(4)
_NEXT_PAGE: Final = tag(3)


class EntryServicer:
    """Converts, calls `Commits` and `Reads`, converts back."""

    def __init__(self, directory: BoardDirectory, commits: Commits, reads: Reads, headers: Headers) -> None:
        """Serve the boards of `directory`."""
        self._directory = directory
        self._commits = commits
        self._reads = reads
        self._headers = headers
        self._asked: dict[bytes, _Asked] = {}
        """What Get requests mean, whoever asks: nothing of an answer."""

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the methods, wrapped."""
        return {
            "Get": calls.unary("Get", pb.GetRequest, self._get, fast=self._try_get),
            "Commit": calls.unary("Commit", pb.CommitRequest, self._commit),
            "List": calls.unary("List", pb.ListRequest, self._list),
            "ListVersions": calls.unary("ListVersions", pb.ListVersionsRequest, self._list_versions),
            "Diff": calls.unary("Diff", pb.DiffRequest, self._diff),
            "GetCommit": calls.unary("GetCommit", pb.GetCommitRequest, self._get_commit),
            "ListCommits": calls.unary("ListCommits", pb.ListCommitsRequest, self._list_commits),
            "ListConflicts": calls.unary("ListConflicts", pb.ListConflictsRequest, self._list_conflicts),
            "GetConflict": calls.unary("GetConflict", pb.GetConflictRequest, self._get_conflict),
        }

    # Get

    def _try_get(self, caller: Caller, raw: bytes) -> bytes | None:
        """Answer from memory, if that is all it takes."""
        if len(raw) > MAX_MESSAGE_BYTES:
            return None
        asked = self._asked.get(raw)
        if asked is None:
            try:
                request = pb.GetRequest.FromString(raw)
            except Exception:  # noqa: BLE001 -- said in our words on the way that may fail
                return None
            if self._directory.peek(caller, request.board) is None:
                return None
            asked = self._remember(raw, request)
        board, keys, view, want = asked
        handle = self._directory.peek(caller, board)
        if handle is None:
            return None
        result = self._reads.try_get(caller, board, keys, want)
        return None if result is None else self._write_get(handle, caller, result, view)

    def _remember(self, raw: bytes, request: pb.GetRequest) -> _Asked:
        """Keep what a request means: agents ask the same again and again, and reading it costs more than answering."""
        check_no_unknown(request)
        view, want = read_want(request)
        asked = (request.board, tuple(read_keys(request.keys)), view, want)
        if len(raw) <= _ASKED_BYTES:
            if len(self._asked) >= _ASKED:
                self._asked.clear()
            self._asked[raw] = asked
        return asked

    async def _get(self, caller: Caller, request: pb.GetRequest, _: Context) -> bytes:
        check_no_unknown(request)
        view, want = read_want(request)
        result = await self._reads.get(caller, request.board, read_keys(request.keys), want)
        return self._write_get(await self._open(caller, request.board), caller, result, view)

    def _write_get(self, handle: BoardHandle, caller: Caller, result: GetResult, view: View) -> bytes:
        entries = EntryWriter.of(handle, caller)
        parts = [self._headers.field(result.stamp)]
        parts += [delimited(_LIST_ENTRIES, entries.encode(record, view)) for record in result.found]
        for field, places in ((_ABSENT, result.absent), (_UNREAD, result.unread)):
            for region, key in places:
                ref = types_pb2.KeyRef(region=region, key=key)
                parts.append(delimited(field, ref.SerializeToString()))
        return b"".join(parts)

    # List, ListVersions, Diff

    async def _list(self, caller: Caller, request: pb.ListRequest, _: Context) -> bytes:
        check_no_unknown(request)
        view, want = read_want(request)
        region, prefix = read_subtree(request)
        filters = read_filters(request.filters)
        page = await self._reads.list(
            caller, request.board, region, prefix, filters, request.page_size, request.page_token, want
        )
        return await self._write_page(caller, request.board, page, view)

    async def _list_versions(self, caller: Caller, request: pb.ListVersionsRequest, _: Context) -> bytes:
        check_no_unknown(request)
        view, want = read_version_want(request)
        region, key = read_key(request.key, "key")
        page = await self._reads.list_versions(
            caller, request.board, region, key, request.page_size, request.page_token, want
        )
        return await self._write_page(caller, request.board, page, view)

    async def _write_page(self, caller: Caller, board: str, page: RecordsPage, view: View) -> bytes:
        entries = EntryWriter.of(await self._open(caller, board), caller)
        parts = [self._headers.field(page.stamp)]
        parts += [delimited(_LIST_ENTRIES, entries.encode(record, view)) for record in page.records]
        if page.next_page_token:
            parts.append(delimited(_NEXT_PAGE, page.next_page_token.encode()))
        return b"".join(parts)

    async def _diff(self, caller: Caller, request: pb.DiffRequest, _: Context) -> pb.DiffResponse:
        check_no_unknown(request)
        region, key = read_key(request.key, "key")
        stamp, before, after = await self._reads.two_versions(
            caller,
            request.board,
            region,
            key,
            request.from_version,
            request.to_version,
            check_trust(request.min_trust, "min_trust"),
        )
        found = diff_values(*_value_of(before), *_value_of(after))
        entries = EntryWriter.of(await self._open(caller, request.board), caller)
        reply = pb.DiffResponse(
            header=self._headers.message(stamp),
            changes=[
                pb.DiffChange(
                    kind=pb.DiffKind.ValueType(change.kind),
                    pointer=change.pointer,
                    before=change.before,
                    after=change.after,
                )
                for change in found.changes
            ],
            unified=found.unified,
            equal=found.equal,
            truncated=found.truncated,
        )
        if before is not None and before.is_value:
            reply.from_entry.CopyFrom(entries.message(before, View.META))
        if after is not None and after.is_value:
            reply.to_entry.CopyFrom(entries.message(after, View.META))
        return reply

    # Commits and conflicts

    async def _commit(self, caller: Caller, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        item = await read_commit(caller, request)
        # None without a deadline, whatever the stubs say.
        left: float | None = context.time_remaining()
        timeout = _DEFAULT_TIMEOUT if left is None else min(left, _DEFAULT_TIMEOUT)
        # Before the commit: nothing that can fail may stand between an accepted commit and its answer.
        entries = EntryWriter.of(await self._open(caller, request.board), caller)
        result = await self._commits.commit(caller, request.board, item, timeout)
        return write_commit(result, self._headers, entries)

    async def _get_commit(
        self, caller: Caller, request: pb.GetCommitRequest, _: Context
    ) -> pb.GetCommitResponse:
        request_id: str | None = None
        revision: Revision | None = None
        match request.WhichOneof("selector"):
            case "request_id":
                request_id = check_request_id(request.request_id)
            case "revision":
                if request.revision < 1:
                    raise field_invalid("revision", "a revision is 1 or more")
                revision = Revision(request.revision)
            case _:
                raise field_invalid("selector", "a request_id or a revision is required")
        stamp, commit = await self._commits.get_commit(caller, request.board, request_id, revision)
        entries = EntryWriter.of(await self._open(caller, request.board), caller)
        return pb.GetCommitResponse(
            header=self._headers.message(stamp), commit=write_commit_info(commit, entries)
        )

    async def _list_commits(
        self, caller: Caller, request: pb.ListCommitsRequest, _: Context
    ) -> pb.ListCommitsResponse:
        check_no_unknown(request)
        region, prefix = read_prefix(request.prefix, "prefix") if request.HasField("prefix") else (None, "")
        principal = _principal(request.principal)
        entries = EntryWriter.of(await self._open(caller, request.board), caller)

        async def ask(size: int) -> CommitsResult:
            return await self._commits.list_commits(
                caller, request.board, size, request.page_token, principal, region, prefix
            )

        def write(page: CommitsResult) -> tuple[pb.ListCommitsResponse, int]:
            reply = pb.ListCommitsResponse(
                header=self._headers.message(page.stamp),
                commits=[write_commit_info(commit, entries) for commit in page.commits],
                next_page_token=page.next_page_token,
            )
            return reply, len(page.commits)

        return await fitting_page(request.page_size, ask, write)

    async def _list_conflicts(
        self, caller: Caller, request: pb.ListConflictsRequest, _: Context
    ) -> pb.ListConflictsResponse:
        check_no_unknown(request)
        key = read_key(request.key, "key") if request.HasField("key") else None
        principal = _principal(request.principal)

        async def ask(size: int) -> ConflictsResult:
            return await self._commits.list_conflicts(
                caller, request.board, size, request.page_token, key, principal
            )

        def write(page: ConflictsResult) -> tuple[pb.ListConflictsResponse, int]:
            reply = pb.ListConflictsResponse(
                header=self._headers.message(page.stamp),
                conflicts=[write_conflict(conflict) for conflict in page.conflicts],
                next_page_token=page.next_page_token,
                dropped=page.dropped,
            )
            return reply, len(page.conflicts)

        return await fitting_page(request.page_size, ask, write)

    async def _get_conflict(
        self, caller: Caller, request: pb.GetConflictRequest, _: Context
    ) -> pb.GetConflictResponse:
        conflict_id = check_text(request.conflict_id, MAX_TAG_BYTES, "conflict_id")
        stamp, conflict = await self._commits.get_conflict(caller, request.board, conflict_id)
        return pb.GetConflictResponse(header=self._headers.message(stamp), conflict=write_conflict(conflict))

    async def _open(self, caller: Caller, board: str) -> BoardHandle:
        return self._directory.peek(caller, board) or await self._directory.open(caller, board)


def _principal(text: str) -> PrincipalId | None:
    return PrincipalId(check_text(text, MAX_TAG_BYTES, "principal")) if text else None


def _value_of(record: VersionRecord | None) -> tuple[bytes | None, str]:
    if record is None or not record.is_value:
        return None, ""
    return record.value, record.content_type
