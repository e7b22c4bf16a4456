"""A board's rules as JSON, both ways."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from slateboard.cli import problems, text, values

if TYPE_CHECKING:
    from slateboard import Policy, Quota, RegionRule

E = TypeVar("E", bound=Enum)
_QUOTA = ("max_entries", "max_bytes", "max_commits_per_second", "max_watches")
_RULE = ("prefix", "scope", "write_mode", "any_state", "min_trust", "default_ttl", "quota")
_POLICY = ("version", "rules", "quota", "history_retention", "update_time", "updated_by")


def document(made: Policy) -> dict[str, Any]:
    """The rules as JSON; durations in seconds, null for what is not set."""
    return {
        "version": made.version,
        "rules": [_rule_document(rule) for rule in made.rules],
        "quota": _quota_document(made.quota),
        "history_retention": made.history_retention,
        "update_time": text.iso(made.update_time),
        "updated_by": made.updated_by,
    }


def _word(member: Enum | None) -> str | None:
    return None if member is None else member.name.lower()


def _rule_document(rule: RegionRule) -> dict[str, Any]:
    return {
        "prefix": rule.prefix,
        "scope": _word(rule.scope),
        "write_mode": _word(rule.write_mode),
        "any_state": _word(rule.any_state),
        "min_trust": _word(rule.min_trust),
        "default_ttl": rule.default_ttl,
        "quota": _quota_document(rule.quota),
    }


def _quota_document(quota: Quota | None) -> dict[str, int] | None:
    return None if quota is None else {name: getattr(quota, name) for name in _QUOTA}


def parse(given: Any) -> Policy:
    """The rules from JSON, in the shape of `document`.

    Raises:
        CliError: a field that does not exist, or a value that it cannot have.
    """
    from slateboard import Policy  # noqa: PLC0415 -- brings in grpc

    _check(given, _POLICY, "the rules")
    rules = given.get("rules") or []
    version = given.get("version") or 0
    if not isinstance(rules, list):
        raise problems.usage("rules: a list is needed")
    if not isinstance(version, int):
        raise problems.usage("version: a whole number is needed")
    return Policy(
        rules=tuple(_rule(rule) for rule in rules),
        quota=_quota(given.get("quota")),
        history_retention=_seconds(given.get("history_retention"), "history_retention"),
        version=version,
    )


def _check(given: Any, known: tuple[str, ...], what: str) -> None:
    if not isinstance(given, dict):
        raise problems.usage(f"{what}: a JSON object is needed")
    if unknown := sorted(set(given) - set(known)):
        raise problems.usage(f"{what}: no field {unknown[0]!r}; there are {', '.join(known)}")


def _member(enum: type[E], word: Any, what: str) -> E | None:
    if word is None:
        return None
    if not isinstance(word, str):
        raise problems.usage(f"{what}: a word is needed")
    return values.member(enum, word, what)


def _seconds(given: Any, what: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, str):
        return values.duration(given, what)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise problems.usage(f"{what}: seconds are needed")
    return float(given)


def _rule(given: Any) -> RegionRule:
    from slateboard import AnyState, RegionRule, RegionScope, Trust, WriteMode  # noqa: PLC0415 -- brings in grpc

    _check(given, _RULE, "a rule")
    prefix = given.get("prefix", "")
    if not isinstance(prefix, str):
        raise problems.usage("prefix: a text is needed")
    return RegionRule(
        prefix=prefix,
        scope=_member(RegionScope, given.get("scope"), "scope") or RegionScope.SHARED,
        write_mode=_member(WriteMode, given.get("write_mode"), "write_mode"),
        any_state=_member(AnyState, given.get("any_state"), "any_state"),
        min_trust=_member(Trust, given.get("min_trust"), "min_trust"),
        default_ttl=_seconds(given.get("default_ttl"), "default_ttl"),
        quota=_quota(given.get("quota")),
    )


def _quota(given: Any) -> Quota | None:
    from slateboard import Quota  # noqa: PLC0415 -- brings in grpc

    if given is None:
        return None
    _check(given, _QUOTA, "quota")
    for name, bound in given.items():
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 0:
            raise problems.usage(f"quota: {name} is a whole number, 0 for none")
    return Quota(**given)
