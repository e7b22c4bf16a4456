"""What the ops of a commit make of their keys: policy, sources, trust, expiry and the versions to be written.

Nothing here looks at preconditions: that comes last, when everything else about the commit is known to be in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from slateboard_server.domain.batch import Batch, State
from slateboard_server.domain.commit import Advice, Append, CommitItem, Delete, Expect, NewContent, Op, Put
from slateboard_server.domain.entry import Annotations, Derivation, OpRef, SourceRef, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.names import append_key, revision_of_append
from slateboard_server.domain.policy import Effective, WriteMode
from slateboard_server.domain.principal import Action, Principal, Role
from slateboard_server.domain.values import (
    LAST_MOMENT,
    Key,
    Micros,
    Region,
    Revision,
    SessionId,
    Tombstone,
    Trust,
    Version,
)


@dataclass(slots=True)
class Change:
    """What one op makes of its key; `after` is None where it changes nothing. Not frozen only because it is hot."""

    region: Region
    key: Key
    before: State | None
    after: VersionRecord | None
    trust: Trust


def make_changes(
    batch: Batch,
    item: CommitItem,
    principal: Principal | None,
    session_id: SessionId | None,
    advice: list[Advice],
) -> list[Change]:
    """Return one change an op; adds to `advice` where trust was capped. `principal` None: the server itself.

    Raises POLICY_FORBIDS, TRUST_TOO_LOW, SOURCE_NOT_FOUND, SOURCE_PURGED, FIELD_INVALID for an expire_time that has
    passed, and DUPLICATE_KEY or KEY_INVALID for a put that would take the name of an append.
    """
    maker = _Maker(batch, item, principal, session_id, advice)
    for index, op in enumerate(item.ops):
        maker.make(index, op)
    return maker.changes


class _Maker:
    """One commit's changes in the making."""

    __slots__ = ("advice", "batch", "ceiling", "changes", "item", "principal", "revision", "session_id")

    def __init__(
        self,
        batch: Batch,
        item: CommitItem,
        principal: Principal | None,
        session_id: SessionId | None,
        advice: list[Advice],
    ) -> None:
        self.batch = batch
        self.item = item
        self.principal = principal
        self.ceiling = Trust.SYSTEM if principal is None else principal.trust_ceiling
        self.session_id = session_id
        self.advice = advice
        self.revision = Revision(batch.board.head + 1)
        self.changes: list[Change] = []

    def make(self, index: int, op: Op) -> None:
        batch = self.batch
        region = op.region
        if isinstance(op, Append):
            key = append_key(op.prefix, self.revision, index)
            before = None
        else:
            key = op.key
            before = batch.state(region, key)
        rules = batch.board.policy.effective(region, key)
        if self.principal is not None:
            _check_rules(op, key, rules, index, self.principal)
        if isinstance(op, Delete):
            after, trust = self._tombstone(index, op, before), self.ceiling
        else:
            if before is None and isinstance(op, Put):
                self._check_name(index, op)
            after = self._value(index, op, key, before, rules)
            trust = after.trust
        if self.principal is not None and rules.min_trust is not None and trust < rules.min_trust:
            raise SlateboardError(
                Reason.TRUST_TOO_LOW,
                f"ops[{index}]: {region}:{key} takes writes of trust {rules.min_trust.name} or more, this one would"
                f" have {trust.name}; write elsewhere, or have a trusted principal write it",
                field=f"ops[{index}]",
                trust=trust.name.lower(),
                min_trust=rules.min_trust.name.lower(),
            )
        self.changes.append(Change(region, key, before, after, trust))

    def _check_name(self, index: int, op: Put) -> None:
        """Keep the names of appends free, this commit's and all later ones': an append finds its name unused."""
        named = revision_of_append(op.key)
        if named is None or named < self.revision:
            return
        for other, rival in enumerate(self.item.ops):
            if (
                isinstance(rival, Append)
                and rival.region == op.region
                and append_key(rival.prefix, self.revision, other) == op.key
            ):
                raise SlateboardError(
                    Reason.DUPLICATE_KEY,
                    f"ops[{index}] names {op.region}:{op.key}, which ops[{other}] appends; a commit changes a key once",
                    field=f"ops[{index}]",
                    region=op.region,
                    key=op.key,
                )
        raise SlateboardError(
            Reason.KEY_INVALID,
            f"ops[{index}]: the name of {op.region}:{op.key} is one the server will give to an append; choose another",
            field=f"ops[{index}].put.key",
            region=op.region,
            key=op.key,
        )

    def _tombstone(self, index: int, op: Delete, before: State | None) -> VersionRecord | None:
        if before is None:
            return None
        if op.tombstone is not Tombstone.EXPIRED and not before.present_at(self.batch.now):
            return None
        return VersionRecord(
            region=op.region,
            key=op.key,
            version=Version(before.version + 1),
            create_revision=before.create_revision,
            mod_revision=self.revision,
            op_index=index,
            commit_time=self.batch.now,
            principal=self.item.principal,
            session_id=self.session_id,
            trust=self.ceiling,
            tombstone=op.tombstone,
            annotations=Annotations(note=op.note),
        )

    def _value(
        self, index: int, op: Put | Append, key: Key, before: State | None, rules: Effective
    ) -> VersionRecord:
        now = self.batch.now
        content = op.content
        trust = self.ceiling if content.trust is None else min(content.trust, self.ceiling)
        derivations: tuple[Derivation, ...] = ()
        if content.derivations:
            derivations, lowest = self._resolve(index, content)
            trust = min(trust, lowest)
        if content.trust is not None and trust < content.trust:
            self.advice.append(
                Advice(
                    "TRUST_CAPPED",
                    f"ops[{index}]: asked for {content.trust.name}, stored as {trust.name}: trust only sinks",
                )
            )
        expire_time = _expiry(index, content, now, rules)
        if before is None:
            version, created = Version(1), self.revision
        else:
            version = Version(before.version + 1)
            created = before.create_revision if before.present_at(now) else self.revision
        return VersionRecord(
            region=op.region,
            key=key,
            version=version,
            create_revision=created,
            mod_revision=self.revision,
            op_index=index,
            commit_time=now,
            principal=self.item.principal,
            session_id=self.session_id,
            trust=trust,
            value=content.value,
            size=len(content.value),
            content_type=content.content_type,
            kind=content.kind,
            expire_time=expire_time,
            annotations=content.annotations,
            derivations=derivations,
        )

    def _resolve(self, index: int, content: NewContent) -> tuple[tuple[Derivation, ...], Trust]:
        """Return the derivations with every source a version, and the lowest trust among all of them."""
        lowest = Trust.SYSTEM
        resolved: list[Derivation] = []
        for number, derivation in enumerate(content.derivations):
            sources: list[SourceRef] = []
            for place, source in enumerate(derivation):
                if isinstance(source, OpRef):
                    made = self.changes[source.op].after
                    assert (
                        made is not None
                    )  # check_ops: an earlier put or append, which always makes a version
                    ref, trust = SourceRef(made.region, made.key, made.version), made.trust
                else:
                    field = f"ops[{index}].content.provenance.derivations[{number}].sources[{place}]"
                    ref, trust = source, self._source_trust(source, field)
                sources.append(ref)
                lowest = min(lowest, trust)
            resolved.append(tuple(sources))
        return tuple(resolved), lowest

    def _source_trust(self, source: SourceRef, field: str) -> Trust:
        principal = self.principal
        state = self.batch.source(source)
        visible = principal is None or principal.may(Action.READ, source.region, source.key)
        if state is None or not visible or state.tombstone in {Tombstone.DELETED, Tombstone.EXPIRED}:
            # One answer for the missing and for the invisible: a source must not tell what exists elsewhere.
            raise SlateboardError(
                Reason.SOURCE_NOT_FOUND,
                f"{field}: there is no {source.region}:{source.key} version {source.version} to derive from",
                field=field,
            )
        if state.tombstone is Tombstone.PURGED:
            raise SlateboardError(
                Reason.SOURCE_PURGED,
                f"{field}: {source.region}:{source.key} version {source.version} was purged; derive again from what is"
                " left",
                field=field,
            )
        return state.trust


def _expiry(index: int, content: NewContent, now: Micros, rules: Effective) -> Micros | None:
    """Return when the version expires: as the writer says, else as the region's policy says, else never."""
    if content.expire_time is not None:
        if content.expire_time <= now:
            raise SlateboardError(
                Reason.FIELD_INVALID,
                f"ops[{index}].content.expire_time is not in the future by the server's clock",
                field=f"ops[{index}].content.expire_time",
            )
        return content.expire_time
    if content.ttl is not None:
        if now + content.ttl > LAST_MOMENT:
            raise field_invalid(f"ops[{index}].content.ttl", "ends after the year 9999")
        return Micros(now + content.ttl)
    return None if rules.default_ttl is None else Micros(now + rules.default_ttl)


def _check_rules(op: Op, key: Key, rules: Effective, index: int, principal: Principal) -> None:
    if rules.write_mode is WriteMode.READ_ONLY and principal.role is not Role.OPERATOR:
        raise SlateboardError(
            Reason.POLICY_FORBIDS,
            f"ops[{index}]: {op.region}:{key} is read-only by the board's policy",
            field=f"ops[{index}]",
            rule="read_only",
            region=op.region,
            key=key,
        )
    if not rules.any_state and not isinstance(op, Append) and op.precondition.expect is Expect.ANY:
        raise SlateboardError(
            Reason.POLICY_FORBIDS,
            f"ops[{index}]: any_state is forbidden for {op.region}:{key} by the board's policy; expect a version, or"
            " have the policy allow it",
            field=f"ops[{index}]",
            rule="any_state",
            region=op.region,
            key=key,
        )
