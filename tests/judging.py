"""What tests of the judge share: short ways to write commits, and a shelf that stands in for a store.

The shelf loads pictures the way a store does (from `needs`, out of everything ever written) and keeps what is accepted. It
decides nothing: what holds of a board is worked out anew from its versions, by code of the tests' own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slateboard_server.domain.commit import (
    Append,
    CommitItem,
    Delete,
    Expect,
    Guard,
    NewContent,
    Op,
    Precondition,
    PrefixGuard,
    Put,
    VersionGuard,
    check_ops,
)
from slateboard_server.domain.entry import LoggedCommit, OpRef, SourceRef, VersionRecord
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.fingerprint import fingerprint
from slateboard_server.domain.judge import Accepted, Refused, Verdict, judge
from slateboard_server.domain.picture import (
    BoardState,
    KeyState,
    Picture,
    PrefixChange,
    SourceState,
    StoredAnswer,
    needs,
)
from slateboard_server.domain.policy import BOARD_COUNTER, CounterKey, Policy, Usage
from slateboard_server.domain.principal import DEFAULT_CEILING, Principal, Right, Role, SessionRecord
from slateboard_server.domain.values import (
    SECOND,
    BoardId,
    Etag,
    Incarnation,
    Key,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    TokenId,
    Tombstone,
    Trust,
    Version,
)

SHARED = Region("shared")
SECRET = b"a board's secret of 32 bytes ...."
INCARNATION = Incarnation("0f1e2d3c4b5a69788796a5b4c3d2e1f0")
START = Micros(1_700_000_000 * SECOND)
TOKEN = TokenId("t-1")

WORKER = PrincipalId("worker")
RIVAL = PrincipalId("rival")
SUPERVISOR = PrincipalId("supervisor")
OPERATOR = PrincipalId("operator")
SYSTEM = PrincipalId("_slate")

ABSENT = Precondition(Expect.ABSENT)
PRESENT = Precondition(Expect.PRESENT)
ANY = Precondition(Expect.ANY)


def at_version(version: int) -> Precondition:
    return Precondition(Expect.VERSION, version=Version(version))


def with_etag(etag: str) -> Precondition:
    return Precondition(Expect.ETAG, etag=Etag(etag))


def content(
    value: bytes = b"x",
    *,
    trust: Trust | None = None,
    sources: Sequence[Sequence[SourceRef | OpRef]] = (),
    expire_time: int | None = None,
) -> NewContent:
    return NewContent(
        value,
        "text/plain",
        trust=trust,
        derivations=tuple(tuple(derivation) for derivation in sources),
        expire_time=None if expire_time is None else Micros(expire_time),
    )


def put(key: str, precondition: Precondition, new: NewContent | bytes = b"x", region: Region = SHARED) -> Put:
    return Put(region, Key(key), precondition, new if isinstance(new, NewContent) else content(new))


def delete(key: str, precondition: Precondition, region: Region = SHARED) -> Delete:
    return Delete(region, Key(key), precondition)


def append(prefix: str, new: NewContent | bytes = b"x", region: Region = SHARED) -> Append:
    return Append(region, prefix, new if isinstance(new, NewContent) else content(new))


def unchanged(key: str, version: int, region: Region = SHARED) -> VersionGuard:
    return VersionGuard(region, Key(key), Version(version))


def no_change_under(prefix: str, since: int, region: Region = SHARED) -> PrefixGuard:
    return PrefixGuard(region, prefix, Revision(since))


def source(key: str, version: int, region: Region = SHARED) -> SourceRef:
    return SourceRef(region, Key(key), Version(version))


def a_principal(
    name: PrincipalId,
    role: Role = Role.WORKER,
    *,
    rights: Iterable[Right] = (),
    ceiling: Trust | None = None,
    boards: Iterable[str] = ("team",),
    disabled: bool = False,
) -> Principal:
    return Principal(
        id=name,
        role=role,
        boards=frozenset(boards),
        rights=tuple(rights),
        trust_ceiling=DEFAULT_CEILING[role] if ceiling is None else ceiling,
        created=START,
        created_by="test",
        disabled=disabled,
    )


_numbers = iter(range(1, 1 << 62))


def commit(
    *ops: Op,
    by: PrincipalId = WORKER,
    guards: Sequence[Guard] = (),
    request_id: str | None = None,
    **more: object,
) -> CommitItem:
    """Write a commit as the edge would hand it over: its shape checked, its fingerprint taken."""
    check_ops(ops)
    item = CommitItem(
        principal=by,
        ops=ops,
        guards=tuple(guards),
        request_id=f"request-{next(_numbers)}" if request_id is None else request_id,
        token_id=TOKEN,
        **more,  # type: ignore[arg-type]  # the other fields of CommitItem
    )
    return _with_fingerprint(item)


def expiry(key: str, version: int, region: Region = SHARED) -> CommitItem:
    """Write what the sweeper commits."""
    op = Delete(region, Key(key), at_version(version), tombstone=Tombstone.EXPIRED)
    return CommitItem(principal=SYSTEM, ops=(op,), internal=True)


def _with_fingerprint(item: CommitItem) -> CommitItem:
    return CommitItem(
        **{name: getattr(item, name) for name in CommitItem.__slots__ if name != "fingerprint"},
        fingerprint=fingerprint(SECRET, item),
    )


@dataclass
class Shelf:
    """Everything a board ever held."""

    policy: Policy = field(default_factory=Policy)
    now: Micros = START
    head: Revision = Revision(0)
    floor: Revision = Revision(1)
    incarnation: Incarnation = INCARNATION
    principals: dict[PrincipalId, Principal] = field(default_factory=dict)
    live_tokens: set[TokenId] = field(default_factory=lambda: {TOKEN})
    sessions: dict[SessionId, SessionRecord] = field(default_factory=dict)
    versions: dict[tuple[Region, Key], list[VersionRecord]] = field(default_factory=dict)
    log: list[LoggedCommit] = field(default_factory=list)
    replays: dict[tuple[PrincipalId, str], StoredAnswer] = field(default_factory=dict)
    usage: dict[CounterKey, Usage] = field(default_factory=dict)
    batches: int = 0

    def __post_init__(self) -> None:
        """Let the usual team in."""
        for name, role in (
            (WORKER, Role.WORKER),
            (RIVAL, Role.WORKER),
            (SUPERVISOR, Role.SUPERVISOR),
            (OPERATOR, Role.OPERATOR),
        ):
            self.principals.setdefault(name, a_principal(name, role))

    def last(self, key: str, region: Region = SHARED) -> VersionRecord | None:
        history = self.versions.get((region, Key(key)))
        return history[-1] if history else None

    def present(self, key: str, region: Region = SHARED) -> VersionRecord | None:
        """Work out what a reader sees: the last version, unless it marks an absence or its time has passed."""
        record = self.last(key, region)
        if record is None or record.tombstone is not Tombstone.NONE:
            return None
        return None if record.expire_time is not None and record.expire_time <= self.now else record

    def wait(self, seconds: float) -> None:
        self.now = Micros(self.now + int(seconds * SECOND))

    def picture(self, items: Sequence[CommitItem]) -> Picture:
        """Load what the items need, as a store does."""
        wanted = needs(items)
        board = BoardState(
            board_id=BoardId(1),
            name="team",
            incarnation=self.incarnation,
            etag_secret=SECRET,
            head=self.head,
            floor=self.floor,
            last_commit_time=self.now,
            policy=self.policy,
            usage=dict(self.usage),
        )
        picture = Picture(board, self.now)
        picture.principals = {
            name: self.principals[name] for name in wanted.principals if name in self.principals
        }
        picture.live_tokens = {token for token in wanted.tokens if token in self.live_tokens}
        picture.sessions = {name: self.sessions[name] for name in wanted.sessions if name in self.sessions}
        for region, key in wanted.keys:
            record = self.last(key, region)
            if record is not None:
                picture.keys[region, key] = KeyState(
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
        for ref in wanted.sources:
            for record in self.versions.get((ref.region, ref.key), []):
                if record.version == ref.version:
                    picture.sources[ref] = SourceState(record.trust, record.tombstone)
        for region, prefix, since in wanted.prefix_guards:
            change = self._newest_change(region, prefix, since)
            if change is not None:
                picture.prefix_changes[region, prefix, since] = change
        picture.replays = {call: self.replays[call] for call in wanted.replays if call in self.replays}
        return picture

    def _newest_change(self, region: Region, prefix: str, since: Revision) -> PrefixChange | None:
        for logged in reversed(self.log):
            if logged.commit.revision <= since:
                return None
            for record in reversed(logged.versions):
                if record.region == region and record.key.startswith(prefix):
                    return PrefixChange(
                        record.key,
                        record.mod_revision,
                        record.version,
                        record.principal,
                        record.session_id,
                        record.commit_time,
                    )
        return None

    def judge(self, *items: CommitItem) -> list[Verdict]:
        """Judge one batch, and keep what was accepted."""
        self.batches += 1
        picture = self.picture(items)
        verdicts = judge(picture, items, f"b{self.batches}")
        for verdict in verdicts:
            if isinstance(verdict, Accepted):
                self._keep(verdict)
        assert picture.board.head == self.head
        self.usage = picture.board.usage
        return verdicts

    def _keep(self, verdict: Accepted) -> None:
        self.head = verdict.logged.commit.revision
        self.log.append(verdict.logged)
        for record in verdict.logged.versions:
            self.versions.setdefault((record.region, record.key), []).append(record)
        if verdict.stored is not None:
            principal, request_id, answer = verdict.stored
            self.replays[principal, request_id] = answer

    def one(self, item: CommitItem) -> Verdict:
        [verdict] = self.judge(item)
        return verdict

    def accept(self, *ops: Op, by: PrincipalId = WORKER, **more: object) -> Accepted:
        """Commit what must be accepted."""
        verdict = self.one(commit(*ops, by=by, **more))  # type: ignore[arg-type]  # handed through
        assert isinstance(verdict, Accepted), verdict
        return verdict

    def refuse(self, item: CommitItem) -> SlateboardError:
        """Commit what must be refused; nothing may have changed."""
        verdict = self.one(item)
        assert isinstance(verdict, Refused), verdict
        return verdict.error

    def why(self, *ops: Op, by: PrincipalId = WORKER, **more: object) -> Reason:
        """Tell why a commit is refused."""
        return self.refuse(commit(*ops, by=by, **more)).reason  # type: ignore[arg-type]  # handed through

    def recount(self, counter: CounterKey = BOARD_COUNTER) -> tuple[int, int]:
        """Count entries and bytes anew, of everything that no version has taken the place of."""
        kept = [
            history[-1]
            for (region, key), history in self.versions.items()
            if counter.covers(region, key) and history[-1].tombstone is Tombstone.NONE
        ]
        return len(kept), sum(len(record.value or b"") for record in kept)
