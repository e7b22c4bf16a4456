"""The calls of the API as typed values: path, messages, and what repeating the call would do."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from slateboard._retry import Repeat
from slateboard.v1 import (
    admin_service_pb2 as admin,
)
from slateboard.v1 import (
    board_service_pb2 as boards,
)
from slateboard.v1 import (
    entry_service_pb2 as entries,
)
from slateboard.v1 import (
    lock_service_pb2 as locks,
)
from slateboard.v1 import (
    provenance_service_pb2 as provenance,
)
from slateboard.v1 import (
    session_service_pb2 as sessions,
)

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Reply]):
    """One RPC."""

    path: str
    request: type[Request]
    reply: type[Reply]
    repeat: Repeat = Repeat.SAFE
    lane: str = ""
    """Calls of a lane have a connection of their own, so that bulk replies on another cannot starve them."""


_ENTRY = "/slateboard.v1.EntryService/"
GET = Method(_ENTRY + "Get", entries.GetRequest, entries.GetResponse)
LIST = Method(_ENTRY + "List", entries.ListRequest, entries.ListResponse)
LIST_VERSIONS = Method(_ENTRY + "ListVersions", entries.ListVersionsRequest, entries.ListVersionsResponse)
DIFF = Method(_ENTRY + "Diff", entries.DiffRequest, entries.DiffResponse)
COMMIT = Method(_ENTRY + "Commit", entries.CommitRequest, entries.CommitResponse)
GET_COMMIT = Method(_ENTRY + "GetCommit", entries.GetCommitRequest, entries.GetCommitResponse)
LIST_COMMITS = Method(_ENTRY + "ListCommits", entries.ListCommitsRequest, entries.ListCommitsResponse)
WATCH = Method(_ENTRY + "Watch", entries.WatchRequest, entries.WatchResponse)
LIST_CONFLICTS = Method(_ENTRY + "ListConflicts", entries.ListConflictsRequest, entries.ListConflictsResponse)
GET_CONFLICT = Method(_ENTRY + "GetConflict", entries.GetConflictRequest, entries.GetConflictResponse)

_BOARD = "/slateboard.v1.BoardService/"
CREATE_BOARD = Method(_BOARD + "CreateBoard", boards.CreateBoardRequest, boards.CreateBoardResponse)
GET_BOARD = Method(_BOARD + "GetBoard", boards.GetBoardRequest, boards.GetBoardResponse)
LIST_BOARDS = Method(_BOARD + "ListBoards", boards.ListBoardsRequest, boards.ListBoardsResponse)
# Named by its incarnation, a board can be deleted only once, but the second answer is NOT_FOUND.
DELETE_BOARD = Method(
    _BOARD + "DeleteBoard", boards.DeleteBoardRequest, boards.DeleteBoardResponse, Repeat.UNSAFE
)
COMPACT_BOARD = Method(_BOARD + "CompactBoard", boards.CompactBoardRequest, boards.CompactBoardResponse)
REINCARNATE_BOARD = Method(
    _BOARD + "ReincarnateBoard",
    boards.ReincarnateBoardRequest,
    boards.ReincarnateBoardResponse,
    Repeat.UNSAFE,
)
GET_POLICY = Method(_BOARD + "GetPolicy", boards.GetPolicyRequest, boards.GetPolicyResponse)
# A second SetPolicy would conflict with the first.
SET_POLICY = Method(_BOARD + "SetPolicy", boards.SetPolicyRequest, boards.SetPolicyResponse, Repeat.UNSAFE)
GET_SERVER_INFO = Method(_BOARD + "GetServerInfo", boards.GetServerInfoRequest, boards.GetServerInfoResponse)

_SESSION = "/slateboard.v1.SessionService/"
START_SESSION = Method(
    _SESSION + "StartSession", sessions.StartSessionRequest, sessions.StartSessionResponse, lane="alive"
)
HEARTBEAT = Method(
    _SESSION + "Heartbeat", sessions.HeartbeatRequest, sessions.HeartbeatResponse, lane="alive"
)
END_SESSION = Method(
    _SESSION + "EndSession", sessions.EndSessionRequest, sessions.EndSessionResponse, lane="alive"
)
LIST_SESSIONS = Method(_SESSION + "ListSessions", sessions.ListSessionsRequest, sessions.ListSessionsResponse)

_LOCK = "/slateboard.v1.LockService/"
# Calls that wait for a lock, or keep one, must not queue behind bulk replies; nor those that keep one behind those that
# wait: proxies bound how many calls a connection may have open.
ACQUIRE = Method(_LOCK + "Acquire", locks.AcquireRequest, locks.AcquireResponse, lane="wait")
RENEW = Method(_LOCK + "Renew", locks.RenewRequest, locks.RenewResponse, lane="alive")
RELEASE = Method(_LOCK + "Release", locks.ReleaseRequest, locks.ReleaseResponse, lane="alive")
FORCE_RELEASE = Method(_LOCK + "ForceRelease", locks.ForceReleaseRequest, locks.ForceReleaseResponse)
TRANSFER = Method(_LOCK + "Transfer", locks.TransferRequest, locks.TransferResponse, lane="alive")
GET_LOCK = Method(_LOCK + "GetLock", locks.GetLockRequest, locks.GetLockResponse)
LIST_LOCKS = Method(_LOCK + "ListLocks", locks.ListLocksRequest, locks.ListLocksResponse)
LIST_WAITERS = Method(_LOCK + "ListWaiters", locks.ListWaitersRequest, locks.ListWaitersResponse)
WATCH_LOCKS = Method(_LOCK + "WatchLocks", locks.WatchLocksRequest, locks.WatchLocksResponse)

_PROVENANCE = "/slateboard.v1.ProvenanceService/"
TRACE = Method(_PROVENANCE + "Trace", provenance.TraceRequest, provenance.TraceResponse)
IMPACT = Method(_PROVENANCE + "Impact", provenance.ImpactRequest, provenance.ImpactResponse)

_ADMIN = "/slateboard.v1.AdminService/"
CREATE_PRINCIPAL = Method(
    _ADMIN + "CreatePrincipal", admin.CreatePrincipalRequest, admin.CreatePrincipalResponse
)
GET_PRINCIPAL = Method(_ADMIN + "GetPrincipal", admin.GetPrincipalRequest, admin.GetPrincipalResponse)
UPDATE_PRINCIPAL = Method(
    _ADMIN + "UpdatePrincipal", admin.UpdatePrincipalRequest, admin.UpdatePrincipalResponse
)
DISABLE_PRINCIPAL = Method(
    _ADMIN + "DisablePrincipal", admin.DisablePrincipalRequest, admin.DisablePrincipalResponse
)
LIST_PRINCIPALS = Method(_ADMIN + "ListPrincipals", admin.ListPrincipalsRequest, admin.ListPrincipalsResponse)
ROTATE_TOKEN = Method(_ADMIN + "RotateToken", admin.RotateTokenRequest, admin.RotateTokenResponse)
REVOKE_TOKEN = Method(_ADMIN + "RevokeToken", admin.RevokeTokenRequest, admin.RevokeTokenResponse)
WHO_AM_I = Method(_ADMIN + "WhoAmI", admin.WhoAmIRequest, admin.WhoAmIResponse)
