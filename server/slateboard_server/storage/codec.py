"""Records to rows and back. What is never searched by SQL is kept as compact JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slateboard_server.domain.commit import Advice, CommitAnswer, OpOutcome
from slateboard_server.domain.conflict import Violation
from slateboard_server.domain.entry import NO_ANNOTATIONS, Annotations, Derivation, SourceRef, VersionRecord
from slateboard_server.domain.policy import AnyState, LockEnforcement, Policy, Quota, Rule, Scope, WriteMode
from slateboard_server.domain.values import (
    Key,
    Kind,
    Micros,
    PrincipalId,
    Region,
    Revision,
    Tombstone,
    Trust,
    Version,
)

# One encoder for all: json.dumps would make one for each call.
_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


_NOTE_FIELDS = (
    ("s", "subject", ""),
    ("a", "attribute", ""),
    ("t", "topics", ()),
    ("l", "labels", ()),
    ("c", "confidence", 1.0),
    ("i", "importance", 0.5),
    ("f", "valid_from", None),
    ("u", "valid_to", None),
    ("n", "turn", ""),
    ("o", "tool", ""),
    ("r", "source_uris", ()),
    ("p", "traceparent", ""),
    ("m", "note", ""),
    ("w", "derivation_waived", False),
)


def notes_to_text(notes: Annotations) -> str | None:
    """Encode annotations; None for those that say nothing."""
    if notes is NO_ANNOTATIONS or notes == NO_ANNOTATIONS:
        return None
    fields = {
        short: getattr(notes, name)
        for short, name, default in _NOTE_FIELDS
        if getattr(notes, name) != default
    }
    return _dump(fields)


def notes_from_text(text: str | None) -> Annotations:
    """Decode annotations."""
    if text is None:
        return NO_ANNOTATIONS
    fields: dict[str, Any] = json.loads(text)
    return Annotations(
        subject=fields.get("s", ""),
        attribute=fields.get("a", ""),
        topics=tuple(fields.get("t", ())),
        labels=tuple((name, value) for name, value in fields.get("l", ())),
        confidence=fields.get("c", 1.0),
        importance=fields.get("i", 0.5),
        valid_from=fields.get("f"),
        valid_to=fields.get("u"),
        turn=fields.get("n", ""),
        tool=fields.get("o", ""),
        source_uris=tuple(fields.get("r", ())),
        traceparent=fields.get("p", ""),
        note=fields.get("m", ""),
        derivation_waived=fields.get("w", False),
    )


def derivations_to_text(derivations: tuple[Derivation, ...]) -> str | None:
    """Encode derivations; None for none."""
    if not derivations:
        return None
    return _dump([[[ref.region, ref.key, ref.version] for ref in derivation] for derivation in derivations])


def derivations_from_text(text: str | None) -> tuple[Derivation, ...]:
    """Decode derivations."""
    if text is None:
        return ()
    return tuple(
        tuple(SourceRef(Region(region), Key(key), Version(version)) for region, key, version in derivation)
        for derivation in json.loads(text)
    )


def record_to_row(board_id: int, record: VersionRecord) -> dict[str, Any]:
    """Return the row of `versions`."""
    return {
        "board_id": board_id,
        "revision": record.mod_revision,
        "op_index": record.op_index,
        "region": record.region,
        "key": record.key,
        "version": record.version,
        "create_revision": record.create_revision,
        "commit_time": record.commit_time,
        "principal": record.principal,
        "session_id": record.session_id,
        "trust": int(record.trust),
        "tombstone": int(record.tombstone),
        "compacted": 0,
        "size": record.size,
        "kind": int(record.kind),
        "expire_time": record.expire_time,
        "content_type": record.content_type,
        "notes": notes_to_text(record.annotations),
        "derivations": derivations_to_text(record.derivations),
        "value": record.value,
    }


VERSION_NAMES = (
    "revision",
    "op_index",
    "region",
    "key",
    "version",
    "create_revision",
    "commit_time",
    "principal",
    "session_id",
    "trust",
    "tombstone",
    "compacted",
    "size",
    "kind",
    "expire_time",
    "content_type",
    "notes",
    "derivations",
)
"""What a record is read from, in order; `value` or NULL comes last."""


def record_from_row(row: Sequence[Any]) -> VersionRecord:
    """Build a record from a row of VERSION_NAMES followed by `value`."""
    value = row[18]
    return VersionRecord(
        region=Region(row[2]),
        key=Key(row[3]),
        version=Version(row[4]),
        create_revision=Revision(row[5]),
        mod_revision=Revision(row[0]),
        op_index=row[1],
        commit_time=Micros(row[6]),
        principal=PrincipalId(row[7]),
        session_id=row[8],
        trust=Trust(row[9]),
        tombstone=Tombstone(row[10]),
        compacted=bool(row[11]),
        value=value if value is None or type(value) is bytes else bytes(value),
        size=row[12],
        content_type=row[15],
        kind=Kind(row[13]),
        expire_time=row[14],
        annotations=notes_from_text(row[16]),
        derivations=derivations_from_text(row[17]),
    )


def answer_to_text(answer: CommitAnswer) -> str:
    """Encode a stored answer."""
    return _dump(
        [
            answer.revision,
            answer.commit_id,
            answer.commit_time,
            [
                [
                    out.region,
                    out.key,
                    out.version,
                    int(out.trust),
                    int(out.changed),
                    out.expire_time,
                    out.create_revision,
                ]
                for out in answer.outcomes
            ],
            [[advice.code, advice.message] for advice in answer.warnings],
        ]
    )


def answer_from_text(text: str) -> CommitAnswer:
    """Decode a stored answer."""
    revision, commit_id, commit_time, outcomes, warnings = json.loads(text)
    return CommitAnswer(
        revision,
        commit_id,
        commit_time,
        tuple(
            OpOutcome(Region(region), Key(key), version, Trust(trust), bool(changed), expire, created)
            for region, key, version, trust, changed, expire, created in outcomes
        ),
        tuple(Advice(code, message) for code, message in warnings),
    )


_VIOLATION_FIELDS = tuple(Violation.__dataclass_fields__)


def violations_to_text(violations: Sequence[Violation]) -> str:
    """Encode the violations of a conflict."""
    return _dump([[getattr(violation, name) for name in _VIOLATION_FIELDS] for violation in violations])


def violations_from_text(text: str) -> tuple[Violation, ...]:
    """Decode the violations of a conflict."""
    return tuple(
        Violation(**dict(zip(_VIOLATION_FIELDS, fields, strict=True))) for fields in json.loads(text)
    )


def policy_to_text(policy: Policy) -> str:
    """Encode a policy."""
    return _dump(
        {
            "version": policy.version,
            "rules": [
                {
                    "scope": int(rule.scope),
                    "prefix": rule.prefix,
                    "write_mode": int(rule.write_mode),
                    "any_state": int(rule.any_state),
                    "min_trust": rule.min_trust,
                    "default_ttl": rule.default_ttl,
                    "quota": _quota_to_list(rule.quota),
                    "locks": int(rule.lock_enforcement),
                }
                for rule in policy.rules
            ],
            "quota": _quota_to_list(policy.quota),
            "history_retention": policy.history_retention,
            "updated": policy.updated,
            "updated_by": policy.updated_by,
        }
    )


def policy_from_text(text: str) -> Policy:
    """Decode a policy."""
    fields: Mapping[str, Any] = json.loads(text)
    return Policy(
        version=fields["version"],
        rules=tuple(
            Rule(
                scope=Scope(rule["scope"]),
                prefix=rule["prefix"],
                write_mode=WriteMode(rule["write_mode"]),
                any_state=AnyState(rule["any_state"]),
                min_trust=None if rule["min_trust"] is None else Trust(rule["min_trust"]),
                default_ttl=rule["default_ttl"],
                quota=Quota(*rule["quota"]),
                lock_enforcement=LockEnforcement(rule.get("locks", 0)),
            )
            for rule in fields["rules"]
        ),
        quota=Quota(*fields["quota"]),
        history_retention=fields["history_retention"],
        updated=Micros(fields["updated"]),
        updated_by=fields["updated_by"],
    )


def _quota_to_list(quota: Quota) -> list[int]:
    return [
        quota.max_entries,
        quota.max_bytes,
        quota.max_commits_per_second,
        quota.max_watches,
        quota.max_locks,
    ]
