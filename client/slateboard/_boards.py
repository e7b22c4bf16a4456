"""Boards, their rules, principals and the server itself."""

from dataclasses import dataclass
from datetime import datetime

from slateboard._enums import Action, AnyState, LockEnforcement, RegionScope, Role, Trust, WriteMode


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key much written during the last minute."""

    region: str
    key: str
    writes: int
    conflicts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardActivity:
    """One replica's counters for a board, since the replica started."""

    commits: int
    conflicts: int
    replays: int
    watches: int
    queued_commits: int
    hot_keys: tuple[HotKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardInfo:
    """A board's state."""

    name: str
    incarnation: str
    revision: int
    oldest_revision: int
    create_time: datetime | None
    created_by: str
    description: str
    entries: int
    """Present entries."""
    bytes: int
    """Bytes of their values."""
    policy_version: int
    activity: BoardActivity | None = None
    """Only from `board.info()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Upper bounds; 0 means none."""

    max_entries: int = 0
    max_bytes: int = 0
    max_commits_per_second: int = 0
    max_watches: int = 0
    """Open at a time on one replica; whole boards only."""
    max_locks: int = 0
    """Held or waited for at a time; whole boards only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRule:
    """The rule for a subtree. The longest prefix that covers a key wins, field by field; None falls back."""

    prefix: str = ""
    """Empty for the whole region, otherwise ends with `/`."""
    scope: RegionScope = RegionScope.SHARED
    write_mode: WriteMode | None = None
    any_state: AnyState | None = None
    min_trust: Trust | None = None
    """A write whose trust would be lower is refused."""
    default_ttl: float | None = None
    """Seconds; given to puts and appends that set no expire_time."""
    quota: Quota | None = None
    lock_enforcement: LockEnforcement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a board."""

    rules: tuple[RegionRule, ...] = ()
    quota: Quota | None = None
    history_retention: float | None = None
    """Seconds; history younger than this is never dropped by automatic compaction. None: no automatic compaction."""
    version: int = 0
    """As read; 0 for a policy made here."""
    update_time: datetime | None = None
    updated_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits in force. Exceeding one is an error that names it."""

    max_ops: int
    max_guards: int
    max_value_bytes: int
    max_message_bytes: int
    max_key_bytes: int
    max_key_segments: int
    max_get_keys: int
    max_page_size: int
    max_lock_scopes: int = 0
    max_locks_per_principal: int = 0
    max_lock_ttl: float = 0.0
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the server is and allows."""

    version: str
    mode: str
    """`embedded` or `server`."""
    storage: str
    start_time: datetime | None
    server_time: datetime | None
    limits: Limits
    idempotency_retention: float
    """Seconds for which a write may be sent again with its request_id."""
    progress_interval: float
    cache_bytes_limit: int
    replica_id: str
    liveness: str = ""
    """What keeps locks alive: `in-process leases`, or etcd with its version."""


@dataclass(frozen=True, slots=True)
class Right:
    """Actions on a subtree of the shared region."""

    prefix: str
    """Empty for everything; a subtree ends with `/`; otherwise one key."""
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A credential without its secret."""

    token_id: str
    create_time: datetime | None
    expire_time: datetime | None
    """None: never."""
    revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a credential stands for."""

    id: str
    role: Role
    boards: tuple[str, ...] = ()
    """Names, or `*` for all."""
    rights: tuple[Right, ...] = ()
    """Empty: what the role gives."""
    trust_ceiling: Trust = Trust.AGENT
    create_time: datetime | None = None
    created_by: str = ""
    disabled: bool = False
    display_name: str = ""
    tokens: tuple[TokenInfo, ...] = ()
    token_id: str = ""
    """From `whoami()`: the token of this call; empty with a client certificate."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A fresh credential. Only this answer shows it: keep it now."""

    token_id: str
    token: str

    def __repr__(self) -> str:
        return f"NewToken(token_id={self.token_id!r}, token='***')"


@dataclass(frozen=True, slots=True)
class NewPrincipal:
    """A principal just made, with its first credential. Only this answer shows the token."""

    principal: Principal
    token: str

    def __repr__(self) -> str:
        return f"NewPrincipal(principal={self.principal!r}, token='***')"
