"""Who may do what: the one place where a right is decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from slateboard_server.domain.names import SHARED, covers, owner_of
from slateboard_server.domain.values import Micros, PrincipalId, Region, TokenId, Trust

ALL_BOARDS = "*"


class Role(IntEnum):
    """What a principal is for. Numbers are those of the API."""

    OPERATOR = 1
    SUPERVISOR = 2
    WORKER = 3
    OBSERVER = 4


class Action(IntEnum):
    """What may be done to a key. Numbers are those of the API."""

    READ = 1
    WRITE = 2
    APPEND = 3
    LOCK = 4
    ENDORSE = 5


DEFAULT_CEILING = {
    Role.OPERATOR: Trust.SYSTEM,
    Role.SUPERVISOR: Trust.USER,
    Role.WORKER: Trust.AGENT,
    Role.OBSERVER: Trust.EXTERNAL,
}

_ROLE_ACTIONS = {
    Role.OPERATOR: frozenset(Action),
    Role.SUPERVISOR: frozenset(Action),
    Role.WORKER: frozenset({Action.READ, Action.WRITE, Action.APPEND, Action.LOCK}),
    Role.OBSERVER: frozenset({Action.READ}),
}


@dataclass(frozen=True, slots=True)
class Right:
    """Actions on a subtree of the shared region (`prefix` empty or ending with '/'), or on one key."""

    prefix: str
    actions: frozenset[Action]

    def covers(self, path: str) -> bool:
        """Tell whether it speaks of a key, or of the whole of a subtree (a path ending with '/', or empty)."""
        if self.prefix == "" or self.prefix.endswith("/"):
            return covers(self.prefix, path)
        return path == self.prefix


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a credential stands for."""

    id: PrincipalId
    role: Role
    boards: frozenset[str]
    rights: tuple[Right, ...]
    """Empty: what the role gives."""
    trust_ceiling: Trust
    created: Micros
    created_by: str
    disabled: bool = False
    display_name: str = ""

    def has_board(self, board: str) -> bool:
        """Tell whether the principal has a part in a board."""
        return self.role is Role.OPERATOR or ALL_BOARDS in self.boards or board in self.boards

    @property
    def has_all_boards(self) -> bool:
        """Tell whether it has a part in every board there is or will be."""
        return self.role is Role.OPERATOR or ALL_BOARDS in self.boards

    @property
    def leads(self) -> bool:
        """Tell whether it governs its boards: policy, compaction."""
        return self.role in {Role.OPERATOR, Role.SUPERVISOR}

    def may(self, action: Action, region: Region, path: str) -> bool:
        """Tell whether `action` is allowed on a key, or on the whole of a subtree, of a board it has a part in.

        A private region belongs to its principal alone; an operator may enter it (its caller audits that). To endorse
        there takes a role that endorses: what is private today is a source of something shared tomorrow. WRITE
        includes APPEND.
        """
        if self.disabled:
            return False
        if self.role is Role.OPERATOR:
            return True
        if region != SHARED:
            if owner_of(region) != self.id or self.role is Role.OBSERVER:
                return False
            return action is not Action.ENDORSE or Action.ENDORSE in _ROLE_ACTIONS[self.role]
        if not self.rights:
            return action in _ROLE_ACTIONS[self.role]
        for right in self.rights:
            if (
                action in right.actions or (action is Action.APPEND and Action.WRITE in right.actions)
            ) and right.covers(path):
                return True
        return False

    def may_read_some(self, region: Region, prefix: str) -> bool:
        """Tell whether anything below `prefix` could be readable: a scan that cannot show anything need not run."""
        if self.may(Action.READ, region, prefix):
            return True
        if region != SHARED or self.disabled:
            return False
        return any(Action.READ in right.actions and right.prefix.startswith(prefix) for right in self.rights)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A credential as stored: only the hash of its secret."""

    token_id: TokenId
    principal: PrincipalId
    secret_hash: bytes
    """SHA-256 of the secret, which has 256 random bits: no salt or slow hash is needed."""
    created: Micros
    expires: Micros | None = None
    revoked: bool = False

    def alive(self, now: Micros) -> bool:
        """Tell whether it is accepted at `now`."""
        return not self.revoked and (self.expires is None or self.expires > now)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A principal at work on a board."""

    session_id: str
    principal: PrincipalId
    secret_hash: bytes
    started: Micros
    last_seen: Micros
    ttl: int
    """Micros it lives without a heartbeat."""
    purpose: str = ""
    task: str = ""
    ended: Micros | None = None

    def stale_at(self, now: Micros) -> bool:
        """Tell whether it missed its heartbeats by `now`. Final: a stale session is never revived."""
        return self.ended is None and now > self.last_seen + self.ttl

    def alive_at(self, now: Micros) -> bool:
        """Tell whether it can act at `now`."""
        return self.ended is None and now <= self.last_seen + self.ttl
