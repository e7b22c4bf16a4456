"""BoardService."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from slateboard.v1 import board_service_pb2 as pb
from slateboard.v1 import policy_pb2
from slateboard_server.domain import limits
from slateboard_server.domain.errors import field_invalid
from slateboard_server.domain.policy import (
    NO_QUOTA,
    AnyState,
    LockEnforcement,
    Policy,
    Quota,
    Rule,
    Scope,
    WriteMode,
)
from slateboard_server.domain.values import SECOND, Incarnation, Micros, Revision
from slateboard_server.grpc_api.calls import Calls, Context
from slateboard_server.grpc_api.shape import check_count, check_known, check_request_id, check_trust
from slateboard_server.grpc_api.times import read_duration, set_duration, set_time
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.ports import BoardMeta, Clock
from slateboard_server.services.boards import Boards, stamp_of
from slateboard_server.services.model import Activity, Caller

SERVICE: Final = "slateboard.v1.BoardService"


@dataclass(frozen=True, slots=True)
class Facts:
    """What GetServerInfo tells that never changes while the server runs."""

    version: str
    mode: str
    """`embedded` or `server`."""
    storage: str
    started: Micros
    cache_bytes: int
    liveness: Callable[[], str] = lambda: ""
    """What keeps locks alive; what etcd's version is may be known only later."""
    progress_interval: float = 10.0
    """Seconds after which an idle watch hears of progress where it asks for nothing else."""


class BoardServicer:
    """Converts, calls `Boards`, converts back."""

    def __init__(self, boards: Boards, facts: Facts, clock: Clock, headers: Headers) -> None:
        """Serve `boards`."""
        self._boards = boards
        self._facts = facts
        self._clock = clock
        self._headers = headers

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the methods, wrapped."""
        return {
            "CreateBoard": calls.unary("CreateBoard", pb.CreateBoardRequest, self._create),
            "GetBoard": calls.unary("GetBoard", pb.GetBoardRequest, self._get),
            "ListBoards": calls.unary("ListBoards", pb.ListBoardsRequest, self._list),
            "DeleteBoard": calls.unary("DeleteBoard", pb.DeleteBoardRequest, self._delete),
            "CompactBoard": calls.unary("CompactBoard", pb.CompactBoardRequest, self._compact),
            "ReincarnateBoard": calls.unary(
                "ReincarnateBoard", pb.ReincarnateBoardRequest, self._reincarnate
            ),
            "GetPolicy": calls.unary("GetPolicy", pb.GetPolicyRequest, self._get_policy),
            "SetPolicy": calls.unary("SetPolicy", pb.SetPolicyRequest, self._set_policy),
            "GetServerInfo": calls.unary("GetServerInfo", pb.GetServerInfoRequest, self._server_info),
        }

    async def _create(
        self, caller: Caller, request: pb.CreateBoardRequest, _: Context
    ) -> pb.CreateBoardResponse:
        meta = await self._boards.create(
            caller,
            request.name,
            request.description,
            check_request_id(request.request_id),
            read_policy(request.policy),
        )
        return pb.CreateBoardResponse(
            header=self._headers.message(stamp_of(meta.head)), board=write_board(meta)
        )

    async def _get(self, caller: Caller, request: pb.GetBoardRequest, _: Context) -> pb.GetBoardResponse:
        meta, activity = await self._boards.get(caller, request.board)
        return pb.GetBoardResponse(
            header=self._headers.message(stamp_of(meta.head)),
            board=write_board(meta),
            activity=_write_activity(activity),
        )

    async def _list(self, caller: Caller, request: pb.ListBoardsRequest, _: Context) -> pb.ListBoardsResponse:
        boards, token = await self._boards.list(caller, request.page_size, request.page_token)
        return pb.ListBoardsResponse(
            header=self._headers.no_board,
            boards=[write_board(meta) for meta in boards],
            next_page_token=token,
        )

    async def _delete(
        self, caller: Caller, request: pb.DeleteBoardRequest, _: Context
    ) -> pb.DeleteBoardResponse:
        stamp = await self._boards.delete(caller, request.board, Incarnation(request.incarnation))
        return pb.DeleteBoardResponse(header=self._headers.message(stamp))

    async def _compact(
        self, caller: Caller, request: pb.CompactBoardRequest, _: Context
    ) -> pb.CompactBoardResponse:
        stamp, dropped = await self._boards.compact(caller, request.board, Revision(request.revision))
        return pb.CompactBoardResponse(header=self._headers.message(stamp), compacted_versions=dropped)

    async def _reincarnate(
        self, caller: Caller, request: pb.ReincarnateBoardRequest, _: Context
    ) -> pb.ReincarnateBoardResponse:
        meta = await self._boards.reincarnate(caller, request.board, Incarnation(request.incarnation))
        return pb.ReincarnateBoardResponse(
            header=self._headers.message(stamp_of(meta.head)), board=write_board(meta)
        )

    async def _get_policy(
        self, caller: Caller, request: pb.GetPolicyRequest, _: Context
    ) -> pb.GetPolicyResponse:
        stamp, policy = await self._boards.get_policy(caller, request.board)
        return pb.GetPolicyResponse(header=self._headers.message(stamp), policy=write_policy(policy))

    async def _set_policy(
        self, caller: Caller, request: pb.SetPolicyRequest, _: Context
    ) -> pb.SetPolicyResponse:
        if not request.HasField("policy"):
            raise field_invalid("policy", "is required")
        stamp, policy = await self._boards.set_policy(
            caller, request.board, read_policy(request.policy), request.expected_version
        )
        return pb.SetPolicyResponse(header=self._headers.message(stamp), policy=write_policy(policy))

    async def _server_info(
        self, _caller: Caller, _request: pb.GetServerInfoRequest, _: Context
    ) -> pb.GetServerInfoResponse:
        facts = self._facts
        reply = pb.GetServerInfoResponse(
            header=self._headers.no_board,
            version=facts.version,
            mode=facts.mode,
            storage=facts.storage,
            limits=pb.Limits(
                max_ops=limits.MAX_OPS,
                max_guards=limits.MAX_GUARDS,
                max_value_bytes=limits.MAX_VALUE_BYTES,
                max_message_bytes=limits.MAX_MESSAGE_BYTES,
                max_key_bytes=limits.MAX_KEY_BYTES,
                max_key_segments=limits.MAX_KEY_SEGMENTS,
                max_get_keys=limits.MAX_GET_KEYS,
                max_page_size=limits.MAX_PAGE_SIZE,
                max_lock_scopes=limits.MAX_LOCK_SCOPES,
                max_locks_per_principal=limits.MAX_LOCKS_PER_PRINCIPAL,
            ),
            cache_bytes_limit=facts.cache_bytes,
        )
        set_time(reply.start_time, facts.started)
        set_time(reply.server_time, self._clock.now())
        set_duration(reply.limits.max_lock_ttl, limits.MAX_LOCK_TTL_S * SECOND)
        reply.liveness = self._facts.liveness()
        set_duration(reply.idempotency_retention, limits.PROMISED_IDEMPOTENCY_S * SECOND)
        set_duration(reply.progress_interval, round(facts.progress_interval * SECOND))
        return reply


def write_board(meta: BoardMeta) -> pb.Board:
    """Write a board."""
    made = pb.Board(
        name=meta.name,
        incarnation=meta.head.incarnation,
        revision=meta.head.revision,
        oldest_revision=meta.head.floor,
        created_by=meta.created_by,
        description=meta.description,
        entries=meta.entries,
        bytes=meta.bytes,
        policy_version=meta.policy.version,
    )
    set_time(made.create_time, meta.created)
    return made


def _write_activity(activity: Activity) -> pb.BoardActivity:
    return pb.BoardActivity(
        commits=activity.commits,
        conflicts=activity.conflicts,
        replays=activity.replays,
        watches=activity.watches,
        queued_commits=activity.queued_commits,
        hot_keys=[
            pb.HotKey(region=hot.region, key=hot.key, writes=hot.writes, conflicts=hot.conflicts)
            for hot in activity.hot_keys
        ],
    )


def read_policy(policy: policy_pb2.Policy) -> Policy:
    """Read the rules of a board; what only the whole policy can get wrong is for the service to see."""
    check_count(policy.rules, limits.MAX_RULES, "policy.rules")
    retention = (
        read_duration(policy.history_retention, "policy.history_retention")
        if policy.HasField("history_retention")
        else None
    )
    return Policy(
        rules=tuple([_read_rule(rule, f"policy.rules[{index}]") for index, rule in enumerate(policy.rules)]),
        quota=_read_quota(policy.quota),
        history_retention=retention,
    )


def _read_rule(rule: policy_pb2.RegionRule, field: str) -> Rule:
    return Rule(
        scope=Scope(check_known(rule.scope, max(Scope), f"{field}.scope") or Scope.SHARED),
        prefix=rule.prefix,
        write_mode=WriteMode(check_known(rule.write_mode, max(WriteMode), f"{field}.write_mode")),
        any_state=AnyState(check_known(rule.any_state, max(AnyState), f"{field}.any_state")),
        min_trust=check_trust(rule.min_trust, f"{field}.min_trust"),
        default_ttl=(
            read_duration(rule.default_ttl, f"{field}.default_ttl") if rule.HasField("default_ttl") else None
        ),
        quota=_read_quota(rule.quota),
        lock_enforcement=LockEnforcement(
            check_known(rule.lock_enforcement, max(LockEnforcement), f"{field}.lock_enforcement")
        ),
    )


def _read_quota(quota: policy_pb2.Quota) -> Quota:
    return Quota(
        quota.max_entries, quota.max_bytes, quota.max_commits_per_second, quota.max_watches, quota.max_locks
    )


def write_policy(policy: Policy) -> policy_pb2.Policy:
    """Write the rules of a board."""
    made = policy_pb2.Policy(version=policy.version, updated_by=policy.updated_by)
    for rule in policy.rules:
        _write_rule(made.rules.add(), rule)
    if policy.quota != NO_QUOTA:
        _write_quota(made.quota, policy.quota)
    if policy.history_retention is not None:
        set_duration(made.history_retention, policy.history_retention)
    set_time(made.update_time, policy.updated)
    return made


def _write_rule(made: policy_pb2.RegionRule, rule: Rule) -> None:
    made.scope = policy_pb2.RegionScope.ValueType(rule.scope)
    made.prefix = rule.prefix
    made.write_mode = policy_pb2.WriteMode.ValueType(rule.write_mode)
    made.any_state = policy_pb2.AnyState.ValueType(rule.any_state)
    if rule.min_trust is not None:
        made.min_trust = rule.min_trust.value  # type: ignore[assignment]  # same numbers
    if rule.default_ttl is not None:
        set_duration(made.default_ttl, rule.default_ttl)
    if rule.quota.is_set:
        _write_quota(made.quota, rule.quota)
    made.lock_enforcement = policy_pb2.LockEnforcement.ValueType(rule.lock_enforcement)


def _write_quota(made: policy_pb2.Quota, quota: Quota) -> None:
    made.max_entries = quota.max_entries
    made.max_bytes = quota.max_bytes
    made.max_commits_per_second = quota.max_commits_per_second
    made.max_watches = quota.max_watches
    made.max_locks = quota.max_locks
