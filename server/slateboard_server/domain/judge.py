"""The judge: decides every commit of a batch, in arrival order, against one picture of the board.

Pure: no I/O, no clock, no randomness. It takes what `picture.needs` asked for, `now` and the batch, and gives one
verdict per commit together with the versions to write. Accepted commits move the picture on, so a batch gives exactly
the verdicts that the same commits would get one by one.

Order within a commit, the same for every caller:

1. the credential is alive, the principal enabled and part of the board; the rights to every written key and every guard
2. replay: a stored answer for (principal, request_id) is given again, whatever has happened since
3. incarnation, session, claims
4. policy: read-only, any_state; sources exist; trust and its floor; expiry
5. quotas and rates
6. guards and preconditions: all violations are listed
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from slateboard_server.domain.commit import (
    Advice,
    Append,
    CommitAnswer,
    CommitItem,
    Delete,
    Expect,
    NewContent,
    Op,
    OpOutcome,
    PrefixGuard,
    Put,
    VersionGuard,
)
from slateboard_server.domain.conflict import Conflict, Violation
from slateboard_server.domain.entry import (
    Annotations,
    CommitRecord,
    Derivation,
    LoggedCommit,
    OpRef,
    SourceRef,
    VersionRecord,
)
from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found
from slateboard_server.domain.etag import make_etag, of_other_incarnation
from slateboard_server.domain.limits import SOFT_LIMIT_SHARE
from slateboard_server.domain.names import append_key
from slateboard_server.domain.picture import BoardState, KeyState, Picture, PrefixChange, SourceState, StoredAnswer
from slateboard_server.domain.policy import CounterKey, Effective, Quota, Usage, WriteMode
from slateboard_server.domain.principal import Action, Principal, Role
from slateboard_server.domain.values import (
    SECOND,
    Key,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    Tombstone,
    Trust,
    Version,
)

RETRY_AFTER: Final = timedelta(milliseconds=25)
"""What a conflict suggests to wait before reading again; clients add jitter."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The commit happens: what to write and what to answer."""

    logged: LoggedCommit
    answer: CommitAnswer
    stored: tuple[PrincipalId, str, StoredAnswer] | None
    """What to keep for retries; None for the server's own commits."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """An earlier commit with the same request_id is answered again."""

    answer: CommitAnswer


@dataclass(frozen=True, slots=True)
class Validated:
    """A validate_only commit would have been accepted like this."""

    answer: CommitAnswer


@dataclass(frozen=True, slots=True)
class Refused:
    """The commit does not happen. With contention `error.conflict` is set, and is to be kept for inspection."""

    error: SlateboardError


Verdict: TypeAlias = Accepted | Replayed | Validated | Refused


def judge(picture: Picture, items: Sequence[CommitItem], batch_id: str) -> list[Verdict]:
    """Judge a batch in arrival order. Moves `picture` on; `batch_id` names the transaction and its conflicts."""
    bench = _Bench(picture, batch_id)
    verdicts: list[Verdict] = []
    for index, item in enumerate(items):
        try:
            verdicts.append(bench.judge_one(item, index))
        except SlateboardError as error:
            verdicts.append(Refused(error))
    return verdicts


@dataclass(frozen=True, slots=True)
class _Change:
    """What one op makes of its key; `after` is None where it changes nothing."""

    region: Region
    key: Key
    before: KeyState | None
    after: VersionRecord | None
    trust: Trust


class _Bench:
    """One batch being judged."""

    def __init__(self, picture: Picture, batch_id: str) -> None:
        self._picture = picture
        self._board: BoardState = picture.board
        self._now = picture.now
        self._batch_id = batch_id
        self._changed_in_batch: list[VersionRecord] = []

    def judge_one(self, item: CommitItem, index: int) -> Verdict:
        """Decide one commit; raises the refusal."""
        principal = self._authorise(item)
        replayed = self._replay(item)
        if replayed is not None:
            return replayed
        self._check_incarnation(item)
        session_id = self._check_session(item)
        self._check_claims(item)
        revision = Revision(self._board.head + 1)
        advice: list[Advice] = []
        changes = self._make_changes(item, principal, session_id, revision, advice)
        usage = self._count(changes)
        if not item.internal:
            self._check_quotas(usage, advice)
        violations = [*self._preconditions(item, principal), *self._guards(item, principal)]
        if violations:
            raise self._conflict(item, index, session_id, violations)
        commit = CommitRecord(
            revision=revision,
            commit_id=f"{self._board.incarnation}-{revision}",
            batch_id=self._batch_id,
            principal=item.principal,
            session_id=session_id,
            request_id=item.request_id,
            commit_time=self._now,
            note=item.note,
        )
        answer = CommitAnswer(
            revision=revision,
            commit_id=commit.commit_id,
            commit_time=self._now,
            outcomes=tuple(_outcome(change) for change in changes),
            warnings=tuple(advice),
        )
        if item.validate_only:
            return Validated(answer)
        logged = LoggedCommit(commit, tuple(change.after for change in changes if change.after is not None))
        stored = StoredAnswer(item.fingerprint, answer)
        self._apply(item, logged, usage, stored)
        return Accepted(logged, answer, None if item.internal else (item.principal, item.request_id, stored))

    # 1. Who may

    def _authorise(self, item: CommitItem) -> Principal | None:
        if item.internal:
            return None
        principal = self._picture.principals.get(item.principal)
        if (
            principal is None
            or principal.disabled
            or (item.token_id is not None and item.token_id not in self._picture.live_tokens)
        ):
            raise SlateboardError(
                Reason.TOKEN_INVALID, "the credential is no longer accepted; get a new token from an operator"
            )
        if not principal.has_board(self._board.name):
            raise board_not_found(self._board.name)
        for op in item.ops:
            action = Action.APPEND if isinstance(op, Append) else Action.WRITE
            path = op.prefix if isinstance(op, Append) else op.key
            if not principal.may(action, op.region, path):
                raise _denied(principal, action, op.region, path)
        for guard in item.guards:
            path = guard.prefix if isinstance(guard, PrefixGuard) else guard.key
            if not principal.may(Action.READ, guard.region, path):
                raise _denied(principal, Action.READ, guard.region, path)
        return principal

    # 2. Replay

    def _replay(self, item: CommitItem) -> Replayed | None:
        if item.validate_only or not item.request_id:
            return None
        stored = self._picture.replays.get((item.principal, item.request_id))
        if stored is None:
            return None
        if not hmac.compare_digest(stored.fingerprint, item.fingerprint):
            raise SlateboardError(
                Reason.REQUEST_ID_REUSED,
                f"request_id {item.request_id} was used for another commit (revision {stored.answer.revision}); send"
                " other content under a new request_id",
                request_id=item.request_id,
                revision=stored.answer.revision,
            )
        return Replayed(stored.answer)

    # 3. Incarnation, session, claims

    def _check_incarnation(self, item: CommitItem) -> None:
        if item.incarnation is not None and item.incarnation != self._board.incarnation:
            raise _reincarnated(self._board)

    def _check_session(self, item: CommitItem) -> SessionId | None:
        if item.session is None:
            return None
        session = self._picture.sessions.get(item.session.session_id)
        if (
            session is None
            or session.principal != item.principal
            or not hmac.compare_digest(session.secret_hash, item.session.secret_hash)
        ):
            raise SlateboardError(
                Reason.SESSION_NOT_FOUND, "the session token is not one of this board and principal; start a session"
            )
        if not session.alive_at(self._now):
            how = "ended" if session.ended is not None else "missed its heartbeats and went stale"
            raise SlateboardError(
                Reason.SESSION_DEAD,
                f"session {session.session_id} {how}; others may have taken over its work: start a session and read"
                " again",
                session_id=session.session_id,
            )
        return item.session.session_id

    def _check_claims(self, item: CommitItem) -> None:
        for claim in item.claims:
            # No lock is held that the picture does not hold, and lock ids are never reused: it is gone for good.
            raise SlateboardError(
                Reason.LOCK_LOST,
                f"lock {claim.lock_id} is not held with token {claim.token}; stop the protected work and acquire again",
                lock_id=claim.lock_id,
            )

    # 4. What each op makes of its key

    def _make_changes(
        self,
        item: CommitItem,
        principal: Principal | None,
        session_id: SessionId | None,
        revision: Revision,
        advice: list[Advice],
    ) -> list[_Change]:
        changes: list[_Change] = []
        for index, op in enumerate(item.ops):
            key = append_key(op.prefix, revision, index) if isinstance(op, Append) else op.key
            before = None if isinstance(op, Append) else self._picture.keys.get((op.region, op.key))
            rules = self._board.policy.effective(op.region, key)
            if principal is not None:
                self._check_rules(op, key, rules, index, principal)
            if isinstance(op, Delete):
                changes.append(
                    self._make_tombstone(op, before, principal, item.principal, session_id, revision, index)
                )
            else:
                changes.append(
                    self._make_value(
                        op, key, before, rules, principal, item.principal, session_id, revision, index, changes, advice
                    )
                )
            if principal is not None and rules.min_trust is not None and changes[-1].trust < rules.min_trust:
                raise SlateboardError(
                    Reason.TRUST_TOO_LOW,
                    f"ops[{index}]: {op.region}:{key} takes writes of trust {rules.min_trust.name} or more, this one"
                    f" would have {changes[-1].trust.name}; write elsewhere, or have a trusted principal write it",
                    field=f"ops[{index}]",
                    trust=changes[-1].trust.name.lower(),
                    min_trust=rules.min_trust.name.lower(),
                )
        return changes

    def _check_rules(self, op: Op, key: Key, rules: Effective, index: int, principal: Principal) -> None:
        if rules.write_mode is WriteMode.READ_ONLY and principal.role is not Role.OPERATOR:
            raise SlateboardError(
                Reason.POLICY_FORBIDS,
                f"ops[{index}]: {op.region}:{key} is read-only by the board's policy",
                field=f"ops[{index}]",
                rule="read_only",
                region=op.region,
                key=key,
            )
        if not isinstance(op, Append) and op.precondition.expect is Expect.ANY and not rules.any_state:
            raise SlateboardError(
                Reason.POLICY_FORBIDS,
                f"ops[{index}]: any_state is forbidden for {op.region}:{key} by the board's policy; expect a version, or"
                " have the policy allow it",
                field=f"ops[{index}]",
                rule="any_state",
                region=op.region,
                key=key,
            )

    def _make_tombstone(
        self,
        op: Delete,
        before: KeyState | None,
        principal: Principal | None,
        writer: PrincipalId,
        session_id: SessionId | None,
        revision: Revision,
        index: int,
    ) -> _Change:
        trust = Trust.SYSTEM if principal is None else principal.trust_ceiling
        expired = op.tombstone is Tombstone.EXPIRED
        if before is None or (not before.present_at(self._now) and not expired):
            return _Change(op.region, op.key, before, None, trust)
        record = VersionRecord(
            region=op.region,
            key=op.key,
            version=Version(before.version + 1),
            create_revision=before.create_revision,
            mod_revision=revision,
            op_index=index,
            commit_time=self._now,
            principal=writer,
            session_id=session_id,
            trust=trust,
            tombstone=op.tombstone,
            annotations=Annotations(note=op.note),
        )
        return _Change(op.region, op.key, before, record, trust)

    def _make_value(
        self,
        op: Put | Append,
        key: Key,
        before: KeyState | None,
        rules: Effective,
        principal: Principal | None,
        writer: PrincipalId,
        session_id: SessionId | None,
        revision: Revision,
        index: int,
        earlier: Sequence[_Change],
        advice: list[Advice],
    ) -> _Change:
        content = op.content
        ceiling = Trust.SYSTEM if principal is None else principal.trust_ceiling
        asked = ceiling if content.trust is None else content.trust
        derivations, lowest = self._resolve_sources(content, principal, index, earlier)
        trust = min(asked, ceiling) if lowest is None else min(asked, ceiling, lowest)
        if content.trust is not None and trust < content.trust:
            advice.append(
                Advice("TRUST_CAPPED", f"ops[{index}]: asked for {asked.name}, stored as {trust.name}: trust only sinks")
            )
        expire_time = content.expire_time
        if expire_time is None and rules.default_ttl is not None:
            expire_time = Micros(self._now + rules.default_ttl)
        if expire_time is not None and expire_time <= self._now:
            raise SlateboardError(
                Reason.FIELD_INVALID,
                f"ops[{index}].content.expire_time is not in the future by the server's clock",
                field=f"ops[{index}].content.expire_time",
            )
        is_present = before is not None and before.present_at(self._now)
        record = VersionRecord(
            region=op.region,
            key=key,
            version=Version((0 if before is None else before.version) + 1),
            create_revision=before.create_revision if before is not None and is_present else revision,
            mod_revision=revision,
            op_index=index,
            commit_time=self._now,
            principal=writer,
            session_id=session_id,
            trust=trust,
            value=content.value,
            size=len(content.value),
            content_type=content.content_type,
            kind=content.kind,
            expire_time=expire_time,
            annotations=content.annotations,
            derivations=derivations,
        )
        return _Change(op.region, key, before, record, trust)

    def _resolve_sources(
        self, content: NewContent, principal: Principal | None, index: int, earlier: Sequence[_Change]
    ) -> tuple[tuple[Derivation, ...], Trust | None]:
        if not content.derivations:
            return (), None
        lowest: Trust | None = None
        resolved: list[Derivation] = []
        for number, derivation in enumerate(content.derivations):
            sources: list[SourceRef] = []
            for place, source in enumerate(derivation):
                if isinstance(source, OpRef):
                    made = earlier[source.op].after
                    assert made is not None  # check_ops: an earlier put or append, which always makes a version  # noqa: S101
                    ref, trust = SourceRef(made.region, made.key, made.version), made.trust
                else:
                    field = f"ops[{index}].content.provenance.derivations[{number}].sources[{place}]"
                    ref, trust = source, self._source_trust(source, principal, field)
                sources.append(ref)
                lowest = trust if lowest is None else min(lowest, trust)
            resolved.append(tuple(sources))
        return tuple(resolved), lowest

    def _source_trust(self, source: SourceRef, principal: Principal | None, field: str) -> Trust:
        state = self._picture.sources.get(source)
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

    # 5. Quotas

    def _count(self, changes: Iterable[_Change]) -> dict[CounterKey, Usage]:
        """Return the counters as they would be after the changes; only those that a change touches."""
        usage: dict[CounterKey, Usage] = {}
        window = self._now // SECOND
        counters = self._board.policy.counters()
        for change in changes:
            if change.after is None:
                continue
            counted = change.before is not None and change.before.tombstone is Tombstone.NONE
            size_before = change.before.size if change.before is not None and counted else 0
            is_value = change.after.is_value
            for counter, _ in counters:
                if not counter.covers(change.region, change.key):
                    continue
                old = usage.get(counter)
                if old is None:
                    kept = self._board.usage.get(counter, Usage())
                    commits = kept.commits if kept.window == window else 0
                    old = Usage(kept.entries, kept.bytes, window, commits + 1)
                usage[counter] = Usage(
                    old.entries + int(is_value) - int(counted),
                    old.bytes + (change.after.size if is_value else 0) - size_before,
                    old.window,
                    old.commits,
                )
        return usage

    def _check_quotas(self, usage: dict[CounterKey, Usage], advice: list[Advice]) -> None:
        for counter, quota in self._board.policy.counters():
            after = usage.get(counter)
            if after is None or not quota.is_set:
                continue
            before = self._board.usage.get(counter, Usage())
            self._check_quota(counter, quota, before, after, advice)

    def _check_quota(
        self, counter: CounterKey, quota: Quota, before: Usage, after: Usage, advice: list[Advice]
    ) -> None:
        where = "the board" if counter.scope.value == 0 else f"{counter.scope.name.lower()}:{counter.prefix or '/'}"
        if quota.max_commits_per_second and after.commits > quota.max_commits_per_second:
            wait = SECOND - self._now % SECOND
            raise SlateboardError(
                Reason.RATE_LIMITED,
                f"{where} takes {quota.max_commits_per_second} commits a second; slow down",
                retry_after=timedelta(microseconds=wait),
                quota="max_commits_per_second",
                limit=quota.max_commits_per_second,
                retry_after_ms=wait // 1000,
            )
        for name, limit, old, new in (
            ("max_entries", quota.max_entries, before.entries, after.entries),
            ("max_bytes", quota.max_bytes, before.bytes, after.bytes),
        ):
            if not limit:
                continue
            # A commit that shrinks what is there passes even above the limit: deleting must always be possible.
            if new > limit and new > old:
                raise SlateboardError(
                    Reason.QUOTA,
                    f"{where} holds {old} of {name} {limit} and this commit would make it {new}; delete something, or"
                    " have the policy changed",
                    quota=name,
                    limit=limit,
                    actual=new,
                )
            if new >= limit * SOFT_LIMIT_SHARE and new > old:
                advice.append(
                    Advice(f"QUOTA_{name[4:].upper()}_SOFT", f"{where} holds {new} of {name} {limit}; writes stop there")
                )

    # 6. Guards and preconditions

    def _preconditions(self, item: CommitItem, principal: Principal | None) -> list[Violation]:
        violations: list[Violation] = []
        for index, op in enumerate(item.ops):
            if isinstance(op, Append):
                continue
            state = self._picture.keys.get((op.region, op.key))
            if not self._holds(op, state):
                violations.append(
                    self._violation(
                        index, False, op.region, op.key, op.precondition.in_words(), Reason.VERSION_CONFLICT, state,
                        principal,
                    )
                )  # fmt: skip
        return violations

    def _holds(self, op: Put | Delete, state: KeyState | None) -> bool:
        wanted = op.precondition
        if isinstance(op, Delete) and op.tombstone is Tombstone.EXPIRED:
            # The sweeper speaks of a value that is absent to everybody else already.
            return state is not None and state.tombstone is Tombstone.NONE and state.version == wanted.version
        present = state is not None and state.present_at(self._now)
        match wanted.expect:
            case Expect.ANY:
                return True
            case Expect.ABSENT:
                return not present
            case Expect.PRESENT:
                return present
            case Expect.VERSION:
                return state is not None and present and state.version == wanted.version
            case Expect.ETAG:
                if of_other_incarnation(wanted.etag, self._board.incarnation):
                    raise _reincarnated(self._board)
                return (
                    state is not None
                    and present
                    and hmac.compare_digest(
                        make_etag(
                            self._board.etag_secret, self._board.incarnation, op.region, op.key, state.version
                        ),
                        wanted.etag,
                    )
                )

    def _guards(self, item: CommitItem, principal: Principal | None) -> list[Violation]:
        violations: list[Violation] = []
        for index, guard in enumerate(item.guards):
            if isinstance(guard, VersionGuard):
                state = self._picture.keys.get((guard.region, guard.key))
                present = state is not None and state.present_at(self._now)
                current = state.version if state is not None and present else 0
                if current != guard.version:
                    expected = f"version {guard.version}" if guard.version else "absent"
                    violations.append(
                        self._violation(
                            index, True, guard.region, guard.key, expected, Reason.GUARD_CHANGED, state, principal
                        )
                    )
                continue
            if guard.since > self._board.head:
                raise SlateboardError(
                    Reason.FUTURE_REVISION,
                    f"guards[{index}] speaks of revision {guard.since}, the board is at {self._board.head}; check which"
                    " board and incarnation the revision came from",
                    field=f"guards[{index}]",
                    revision=self._board.head,
                )
            change = self._prefix_change(guard)
            if change is not None:
                violations.append(
                    Violation(
                        index=index,
                        guard=True,
                        region=guard.region,
                        key=change.key,
                        expected=f"prefix {guard.prefix or '(all)'} unchanged since {guard.since}",
                        reason=Reason.GUARD_CHANGED,
                        current_version=change.version,
                        current_mod_revision=change.revision,
                        current_principal=change.principal,
                        current_session_id=change.session_id,
                        current_commit_time=change.commit_time,
                    )
                )
        return violations

    def _prefix_change(self, guard: PrefixGuard) -> PrefixChange | None:
        for record in reversed(self._changed_in_batch):
            if record.region == guard.region and record.key.startswith(guard.prefix):
                return PrefixChange(
                    record.key, record.mod_revision, record.version, record.principal, record.session_id,
                    record.commit_time,
                )  # fmt: skip
        return self._picture.prefix_changes.get((guard.region, guard.prefix, guard.since))

    def _violation(
        self,
        index: int,
        guard: bool,
        region: Region,
        key: Key,
        expected: str,
        reason: Reason,
        state: KeyState | None,
        principal: Principal | None,
    ) -> Violation:
        readable = principal is None or principal.may(Action.READ, region, key)
        if state is None or not readable:
            return Violation(index, guard, region, key, expected, reason)
        return Violation(
            index=index,
            guard=guard,
            region=region,
            key=key,
            expected=expected,
            reason=reason,
            current_version=state.version if state.present_at(self._now) else Version(0),
            current_mod_revision=state.mod_revision,
            current_principal=state.principal or None,
            current_session_id=state.session_id,
            current_commit_time=state.commit_time or None,
        )

    def _conflict(
        self, item: CommitItem, index: int, session_id: SessionId | None, violations: Sequence[Violation]
    ) -> SlateboardError:
        first = violations[0]
        reason = Reason(first.reason)
        conflict = Conflict(
            conflict_id=f"c-{self._batch_id}-{index}",
            time=self._now,
            principal=item.principal,
            session_id=session_id,
            request_id=item.request_id,
            reason=reason,
            revision=self._board.head,
            violations=tuple(violations),
        )
        now_at = f"version {first.current_version}" if first.current_version else "absent"
        by = f", written by {first.current_principal}" if first.current_principal and first.current_version else ""
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        return SlateboardError(
            reason,
            f"{first.region}:{first.key}: expected {first.expected}, found {now_at}{by}{more}; read it again and decide"
            " again",
            conflict=None if item.validate_only else conflict,
            retry_after=RETRY_AFTER,
            conflict_id=conflict.conflict_id,
            region=first.region,
            key=first.key,
            current_version=first.current_version,
        )

    # Accepting

    def _apply(
        self, item: CommitItem, logged: LoggedCommit, usage: dict[CounterKey, Usage], stored: StoredAnswer
    ) -> None:
        board, picture = self._board, self._picture
        board.head = logged.commit.revision
        board.last_commit_time = self._now
        board.usage.update(usage)
        for record in logged.versions:
            picture.keys[record.region, record.key] = KeyState(
                version=record.version,
                create_revision=record.create_revision,
                mod_revision=record.mod_revision,
                commit_time=record.commit_time,
                principal=record.principal,
                session_id=record.session_id,
                tombstone=record.tombstone,
                expire_time=record.expire_time,
                size=record.size,
            )
            picture.sources[SourceRef(record.region, record.key, record.version)] = SourceState(
                record.trust, record.tombstone
            )
            self._changed_in_batch.append(record)
        if item.request_id:
            picture.replays[item.principal, item.request_id] = stored


def _outcome(change: _Change) -> OpOutcome:
    if change.after is None:
        return OpOutcome(change.region, change.key, Version(0), change.trust, changed=False)
    return OpOutcome(
        change.region, change.key, change.after.version, change.trust, expire_time=change.after.expire_time
    )


def _denied(principal: Principal, action: Action, region: Region, path: str) -> SlateboardError:
    return SlateboardError(
        Reason.DENIED,
        f"{principal.id} may not {action.name.lower()} {region}:{path or '/'}; ask an operator for the right",
        action=action.name.lower(),
        region=region,
        key=path,
    )


def _reincarnated(board: BoardState) -> SlateboardError:
    return SlateboardError(
        Reason.BOARD_REINCARNATED,
        "the board began a new life since these versions, etags or revisions were read; read the present state again",
        incarnation=board.incarnation,
    )
