"""Rules of a board by region and prefix, and how the rule for a key is found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from slateboard_server.domain.names import SHARED
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


class Scope(IntEnum):
    """Which regions a rule or a usage counter speaks of. SHARED and PRIVATE are numbers of the API."""

    BOARD = 0
    """The whole board: counters and the board's own quota only."""
    SHARED = 1
    PRIVATE = 2


@dataclass(frozen=True, slots=True)
class Quota:
    """Upper bounds; 0 means none."""

    max_entries: int = 0
    max_bytes: int = 0
    max_commits_per_second: int = 0
    max_watches: int = 0

    @property
    def is_set(self) -> bool:
        """Tell whether anything is bounded."""
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

    def covers(self, region: Region, key: str) -> bool:
        """Tell whether it speaks of a key."""
        return (self.scope is Scope.SHARED) == (region == SHARED) and key.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for one key after falling back."""

    write_mode: WriteMode
    any_state: bool
    min_trust: Trust | None
    default_ttl: int | None


@dataclass(frozen=True, slots=True)
class CounterKey:
    """Names a usage counter: the board's, or that of a rule with a quota."""

    scope: Scope
    prefix: str = ""

    def covers(self, region: Region, key: str) -> bool:
        """Tell whether a key counts here."""
        if self.scope is Scope.BOARD:
            return True
        return (self.scope is Scope.SHARED) == (region == SHARED) and key.startswith(self.prefix)


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

    def effective(self, region: Region, key: str) -> Effective:
        """Find what holds for a key: longest prefix first, field by field."""
        write_mode = WriteMode.UNSET
        any_state = AnyState.UNSET
        min_trust: Trust | None = None
        default_ttl: int | None = None
        for rule in sorted(
            (rule for rule in self.rules if rule.covers(region, key)), key=lambda rule: -len(rule.prefix)
        ):
            write_mode = write_mode or rule.write_mode
            any_state = any_state or rule.any_state
            min_trust = min_trust if min_trust is not None else rule.min_trust
            default_ttl = default_ttl if default_ttl is not None else rule.default_ttl
        return Effective(
            write_mode=write_mode or WriteMode.DIRECT,
            any_state=any_state is AnyState.ALLOWED or (any_state is AnyState.UNSET and region != SHARED),
            min_trust=min_trust,
            default_ttl=default_ttl,
        )

    def counters(self) -> tuple[tuple[CounterKey, Quota], ...]:
        """List the counters that must be kept: the board's, and one for each rule with a quota."""
        return (
            (BOARD_COUNTER, self.quota),
            *((CounterKey(rule.scope, rule.prefix), rule.quota) for rule in self.rules if rule.quota.is_set),
        )
