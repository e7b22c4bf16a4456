"""Boards, policies and principals: between generated messages and our types."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from slateboard import _boards
from slateboard._enums import Action, AnyState, LockEnforcement, RegionScope, Role, WriteMode
from slateboard._wire import enum, moment, trust
from slateboard.v1 import admin_service_pb2, board_service_pb2, policy_pb2


def duration(seconds: float) -> Duration:
    """The wire form of a span of time."""
    made = Duration()
    made.FromTimedelta(timedelta(seconds=seconds))
    return made


def board(
    message: board_service_pb2.Board, activity: board_service_pb2.BoardActivity | None = None
) -> _boards.BoardInfo:
    """A board's state."""
    return _boards.BoardInfo(
        name=message.name,
        incarnation=message.incarnation,
        revision=message.revision,
        oldest_revision=message.oldest_revision,
        create_time=moment(message.create_time) if message.HasField("create_time") else None,
        created_by=message.created_by,
        description=message.description,
        entries=message.entries,
        bytes=message.bytes,
        policy_version=message.policy_version,
        activity=None if activity is None else _activity(activity),
    )


def _activity(message: board_service_pb2.BoardActivity) -> _boards.BoardActivity:
    return _boards.BoardActivity(
        commits=message.commits,
        conflicts=message.conflicts,
        replays=message.replays,
        watches=message.watches,
        queued_commits=message.queued_commits,
        hot_keys=tuple(
            _boards.HotKey(region=hot.region, key=hot.key, writes=hot.writes, conflicts=hot.conflicts)
            for hot in message.hot_keys
        ),
    )


def server_info(message: board_service_pb2.GetServerInfoResponse) -> _boards.ServerInfo:
    """What the server is and allows."""
    limits = message.limits
    return _boards.ServerInfo(
        version=message.version,
        mode=message.mode,
        storage=message.storage,
        start_time=moment(message.start_time) if message.HasField("start_time") else None,
        server_time=moment(message.server_time) if message.HasField("server_time") else None,
        limits=_boards.Limits(
            max_ops=limits.max_ops,
            max_guards=limits.max_guards,
            max_value_bytes=limits.max_value_bytes,
            max_message_bytes=limits.max_message_bytes,
            max_key_bytes=limits.max_key_bytes,
            max_key_segments=limits.max_key_segments,
            max_get_keys=limits.max_get_keys,
            max_page_size=limits.max_page_size,
            max_lock_scopes=limits.max_lock_scopes,
            max_locks_per_principal=limits.max_locks_per_principal,
            max_lock_ttl=limits.max_lock_ttl.ToTimedelta().total_seconds(),
        ),
        idempotency_retention=message.idempotency_retention.ToTimedelta().total_seconds(),
        progress_interval=message.progress_interval.ToTimedelta().total_seconds(),
        cache_bytes_limit=message.cache_bytes_limit,
        replica_id=message.header.replica_id,
        liveness=message.liveness,
    )


def policy(message: policy_pb2.Policy) -> _boards.Policy:
    """The rules of a board."""
    has_retention = message.HasField("history_retention")
    return _boards.Policy(
        rules=tuple(_rule(rule) for rule in message.rules),
        quota=_quota(message.quota) if message.HasField("quota") else None,
        history_retention=message.history_retention.ToTimedelta().total_seconds() if has_retention else None,
        version=message.version,
        update_time=moment(message.update_time) if message.HasField("update_time") else None,
        updated_by=message.updated_by,
    )


def _rule(message: policy_pb2.RegionRule) -> _boards.RegionRule:
    has_ttl = message.HasField("default_ttl")
    return _boards.RegionRule(
        prefix=message.prefix,
        scope=enum(RegionScope, message.scope, RegionScope.SHARED),
        # An unknown mode of a newer server is shown as the stricter one.
        write_mode=enum(WriteMode, message.write_mode, WriteMode.READ_ONLY) if message.write_mode else None,
        any_state=enum(AnyState, message.any_state, AnyState.FORBIDDEN) if message.any_state else None,
        min_trust=trust(message.min_trust) if message.min_trust else None,
        default_ttl=message.default_ttl.ToTimedelta().total_seconds() if has_ttl else None,
        quota=_quota(message.quota) if message.HasField("quota") else None,
        lock_enforcement=enum(LockEnforcement, message.lock_enforcement, LockEnforcement.MANDATORY)
        if message.lock_enforcement
        else None,
    )


def _quota(message: policy_pb2.Quota) -> _boards.Quota:
    return _boards.Quota(
        max_entries=message.max_entries,
        max_bytes=message.max_bytes,
        max_commits_per_second=message.max_commits_per_second,
        max_watches=message.max_watches,
        max_locks=message.max_locks,
    )


def policy_message(value: _boards.Policy) -> policy_pb2.Policy:
    """The wire form of rules; what only the server sets is left out."""
    message = policy_pb2.Policy(rules=[_rule_message(rule) for rule in value.rules])
    if value.quota is not None:
        message.quota.CopyFrom(_quota_message(value.quota))
    if value.history_retention is not None:
        message.history_retention.CopyFrom(duration(value.history_retention))
    return message


def _rule_message(rule: _boards.RegionRule) -> policy_pb2.RegionRule:
    message = policy_pb2.RegionRule(
        prefix=rule.prefix,
        scope=policy_pb2.RegionScope.ValueType(rule.scope.value),
        write_mode=policy_pb2.WriteMode.ValueType(rule.write_mode.value if rule.write_mode else 0),
        any_state=policy_pb2.AnyState.ValueType(rule.any_state.value if rule.any_state else 0),
        min_trust=rule.min_trust.value if rule.min_trust else 0,  # type: ignore[arg-type]
    )
    if rule.default_ttl is not None:
        message.default_ttl.CopyFrom(duration(rule.default_ttl))
    if rule.quota is not None:
        message.quota.CopyFrom(_quota_message(rule.quota))
    if rule.lock_enforcement is not None:
        message.lock_enforcement = policy_pb2.LockEnforcement.ValueType(rule.lock_enforcement.value)
    return message


def _quota_message(quota: _boards.Quota) -> policy_pb2.Quota:
    return policy_pb2.Quota(
        max_entries=quota.max_entries,
        max_bytes=quota.max_bytes,
        max_commits_per_second=quota.max_commits_per_second,
        max_watches=quota.max_watches,
        max_locks=quota.max_locks,
    )


def principal(message: admin_service_pb2.Principal, token_id: str = "") -> _boards.Principal:
    """A principal; one with a role this client does not know is shown with the least."""
    return _boards.Principal(
        id=message.id,
        role=enum(Role, message.role, Role.OBSERVER),
        boards=tuple(message.boards),
        rights=tuple(
            _boards.Right(
                right.prefix,
                tuple(Action(action) for action in right.actions if action in {a.value for a in Action}),
            )
            for right in message.rights
        ),
        trust_ceiling=trust(message.trust_ceiling),
        create_time=moment(message.create_time) if message.HasField("create_time") else None,
        created_by=message.created_by,
        disabled=message.disabled,
        display_name=message.display_name,
        tokens=tuple(
            _boards.TokenInfo(
                token_id=token.token_id,
                create_time=moment(token.create_time) if token.HasField("create_time") else None,
                expire_time=moment(token.expire_time) if token.HasField("expire_time") else None,
                revoked=token.revoked,
            )
            for token in message.tokens
        ),
        token_id=token_id,
    )


def right_message(right: _boards.Right) -> admin_service_pb2.Right:
    """The wire form of a right."""
    return admin_service_pb2.Right(
        prefix=right.prefix,
        actions=[action.value for action in right.actions],  # type: ignore[misc]
    )
