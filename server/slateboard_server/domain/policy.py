"""Rules of a board by region and prefix, and how the rule for a key is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from slateboard_server.domain.names import SHARED, covers
from slateboard_server.domain.values import Micros, Region, Trust


class WriteMode(IntEnum):
    """How writes enter a region. Numbers are those of the API; 0 falls back."""

    UNSET = 0
    DIRECT = 1
    READ_ONLY = 2


class AnyState(IntEnum):
    """Whether `any_state` may be used. Numbers are those of the API; 0 falls back."""

    UNSET = 0
    ALLOWED = 1
    FORBIDDEN = 2


class LockEnforcement(IntEnum):
    """Whether a held lock keeps others from writing. Numbers are those of the API; 0 falls back."""

    UNSET = 0
    MANDATORY = 1
    ADVISORY = 2


class Scope(IntEnum):
    """Which regions a rule or a usage counter speaks of. SHARED and PRIVATE are numbers of the API."""

    BOARD = 0
    """The whole board: counters and the board's own quota only."""
    SHARED = 1
    PRIVATE = 2


def in_scope(scope: Scope, prefix: str, region: Region, key: str) -> bool:
    """Tell whether a scope and prefix speak of a key."""
    if scope is Scope.BOARD:
        return True
    return (scope is Scope.SHARED) == (region == SHARED) and covers(prefix, key)


@dataclass(frozen=True, slots=True)
class Quota:
    """Upper bounds; 0 means none."""

    max_entries: int = 0
    max_bytes: int = 0
    max_commits_per_second: int = 0
    max_watches: int = 0
    max_locks: int = 0

    @property
    def is_set(self) -> bool:
        """Tell whether anything that commits count is bounded."""
        return bool(self.max_entries or self.max_bytes or self.max_commits_per_second or self.max_watches)


NO_QUOTA: Final = Quota()


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for a subtree; unset fields fall back to the next shorter prefix, quotas do not."""

    scope: Scope
    prefix: str = ""
    write_mode: WriteMode = WriteMode.UNSET
    any_state: AnyState = AnyState.UNSET
    min_trust: Trust | None = None
    default_ttl: int | None = None
    """Micros."""
    quota: Quota = NO_QUOTA
    lock_enforcement: LockEnforcement = LockEnforcement.UNSET

    def covers(self, region: Region, key: str) -> bool:
        """Tell whether it speaks of a key."""
        return in_scope(self.scope, self.prefix, region, key)


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for one key after falling back."""

    write_mode: WriteMode
    any_state: bool
    min_trust: Trust | None
    default_ttl: int | None


_NO_RULES_SHARED: Final = Effective(WriteMode.DIRECT, any_state=False, min_trust=None, default_ttl=None)
_NO_RULES_PRIVATE: Final = Effective(WriteMode.DIRECT, any_state=True, min_trust=None, default_ttl=None)


class CounterKey(NamedTuple):
    """Names a usage counter: the board's, or that of a rule with a quota. A tuple, since it is hashed in every commit."""

    scope: Scope
    prefix: str = ""

    def covers(self, region: Region, key: str) -> bool:
        """Tell whether a key counts here."""
        return in_scope(self.scope, self.prefix, region, key)


BOARD_COUNTER: Final = CounterKey(Scope.BOARD)


@dataclass(frozen=True, slots=True)
class Usage:
    """A counter's state. `window` is the second (since the epoch) that `commits` counts in."""

    entries: int = 0
    bytes: int = 0
    window: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a board."""

    version: int = 1
    rules: tuple[Rule, ...] = ()
    quota: Quota = NO_QUOTA
    history_retention: int | None = None
    """Micros of history that automatic compaction leaves; None: it never runs."""
    updated: Micros = Micros(0)
    updated_by: str = ""

    has_quotas: bool = field(init=False, compare=False, repr=False)
    """Whether anything at all is bounded."""
    _longest_first: tuple[Rule, ...] = field(init=False, compare=False, repr=False)
    _counters: tuple[tuple[CounterKey, Quota], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Work out once what each commit asks."""
        bounded = [rule for rule in self.rules if rule.quota.is_set]
        counters = ((CounterKey(rule.scope, rule.prefix), rule.quota) for rule in bounded)
        object.__setattr__(self, "has_quotas", self.quota.is_set or bool(bounded))
        object.__setattr__(
            self, "_longest_first", tuple(sorted(self.rules, key=lambda rule: -len(rule.prefix)))
        )
        object.__setattr__(self, "_counters", ((BOARD_COUNTER, self.quota), *counters))

    def effective(self, region: Region, key: str) -> Effective:
        """Find what holds for a key: longest prefix first, field by field."""
        is_shared = region == SHARED
        if not self.rules:
            return _NO_RULES_SHARED if is_shared else _NO_RULES_PRIVATE
        write_mode = WriteMode.UNSET
        any_state = AnyState.UNSET
        min_trust: Trust | None = None
        default_ttl: int | None = None
        for rule in self._longest_first:
            if not rule.covers(region, key):
                continue
            write_mode = write_mode or rule.write_mode
            any_state = any_state or rule.any_state
            min_trust = rule.min_trust if min_trust is None else min_trust
            default_ttl = rule.default_ttl if default_ttl is None else default_ttl
        return Effective(
            write_mode=write_mode or WriteMode.DIRECT,
            any_state=any_state is AnyState.ALLOWED or (any_state is AnyState.UNSET and not is_shared),
            min_trust=min_trust,
            default_ttl=default_ttl,
        )

    def locks_bind(self, region: Region, key: str) -> bool:
        """Tell whether a held lock over a key keeps out who does not claim it."""
        for rule in self._longest_first:
            if rule.lock_enforcement is not LockEnforcement.UNSET and rule.covers(region, key):
                return rule.lock_enforcement is LockEnforcement.MANDATORY
        return True

    def counters(self) -> tuple[tuple[CounterKey, Quota], ...]:
        """List the counters that must be kept: the board's, and one for each rule with a quota."""
        return self._counters
