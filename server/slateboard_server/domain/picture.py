"""What the judge sees: everything a batch depends on, loaded inside its transaction under the board's row lock.

`needs` says what to load; the store loads it and builds a `Picture`; the judge reads the picture and, as it accepts
commits, moves its board on. What else they change, it keeps beside the picture: a picture serves one batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from slateboard_server.domain.commit import Append, CommitAnswer, CommitItem, Delete, VersionGuard
from slateboard_server.domain.entry import SourceRef
from slateboard_server.domain.locks import LockRecord
from slateboard_server.domain.policy import CounterKey, Policy, Usage
from slateboard_server.domain.principal import Principal, SessionRecord
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
    LockId,
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


@dataclass(frozen=True, slots=True)
class KeyState:
    """The present state of a key that exists or once did.

    A key whose tombstone was compacted away is a counter row: `tombstone` DELETED, the last version, and nothing else.
    """

    version: Version
    create_revision: Revision = Revision(0)
    mod_revision: Revision = Revision(0)
    commit_time: Micros = Micros(0)
    principal: PrincipalId = PrincipalId("")
    session_id: SessionId | None = None
    tombstone: Tombstone = Tombstone.NONE
    expire_time: Micros | None = None
    size: int = 0

    def present_at(self, now: Micros) -> bool:
        """Tell whether it is a value that has not expired at `now`: an expired entry is absent to the judge at once."""
        return self.tombstone is Tombstone.NONE and (self.expire_time is None or self.expire_time > now)


@dataclass(frozen=True, slots=True)
class SourceState:
    """What matters of a version that is named as a source."""

    trust: Trust
    tombstone: Tombstone


@dataclass(frozen=True, slots=True)
class PrefixChange:
    """The newest change under a prefix after a revision."""

    key: Key
    revision: Revision
    version: Version
    principal: PrincipalId
    session_id: SessionId | None
    commit_time: Micros


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What an earlier commit with the same (principal, request_id) was and answered."""

    fingerprint: bytes
    answer: CommitAnswer


@dataclass(slots=True)
class BoardState:
    """The board's row. The judge moves `head`, `last_commit_time` and `usage`."""

    board_id: BoardId
    name: str
    incarnation: Incarnation
    etag_secret: bytes
    head: Revision
    floor: Revision
    """The oldest revision that can be read; 1 on a board never compacted."""
    last_commit_time: Micros
    policy: Policy
    usage: dict[CounterKey, Usage]


@dataclass(slots=True)
class Picture:
    """Everything a batch depends on. Names that are missing from a mapping do not exist. Only `board` is changed."""

    board: BoardState
    now: Micros
    """max(clock, last commit time): time never runs backwards on a board."""
    principals: dict[PrincipalId, Principal] = field(default_factory=dict)
    live_tokens: set[TokenId] = field(default_factory=set)
    """Those of the batch's tokens that are neither revoked nor expired at `now`."""
    sessions: dict[SessionId, SessionRecord] = field(default_factory=dict)
    keys: dict[tuple[Region, Key], KeyState] = field(default_factory=dict)
    sources: dict[SourceRef, SourceState] = field(default_factory=dict)
    prefix_changes: dict[tuple[Region, str, Revision], PrefixChange] = field(default_factory=dict)
    """For each prefix guard that something violates: the newest change."""
    replays: dict[tuple[PrincipalId, str], StoredAnswer] = field(default_factory=dict)
    held: list[LockRecord] = field(default_factory=list)
    """Held locks over anything the batch writes."""
    claimed: dict[LockId, LockRecord] = field(default_factory=dict)
    """The locks that claims name, live or ended."""


@dataclass(slots=True)
class Needs:
    """What a batch depends on, without duplicates, in a fixed order."""

    principals: list[PrincipalId]
    tokens: list[TokenId]
    sessions: list[SessionId]
    keys: list[tuple[Region, Key]]
    sources: list[SourceRef]
    prefix_guards: list[tuple[Region, str, Revision]]
    replays: list[tuple[PrincipalId, str]]
    lock_places: list[tuple[Region, str]]
    """What a lock over a written key can cover: the key and every subtree it lies in."""
    claims: list[LockId]


def needs(items: Iterable[CommitItem]) -> Needs:
    """List what must be loaded to judge a batch."""
    principals: dict[PrincipalId, None] = {}
    tokens: dict[TokenId, None] = {}
    sessions: dict[SessionId, None] = {}
    keys: dict[tuple[Region, Key], None] = {}
    sources: dict[SourceRef, None] = {}
    prefixes: dict[tuple[Region, str, Revision], None] = {}
    replays: dict[tuple[PrincipalId, str], None] = {}
    lock_places: dict[tuple[Region, str], None] = {}
    claims: dict[LockId, None] = {}
    for item in items:
        if not item.internal:
            principals[item.principal] = None
        if item.token_id is not None:
            tokens[item.token_id] = None
        if item.session is not None:
            sessions[item.session.session_id] = None
        if item.request_id and not item.validate_only:
            replays[item.principal, item.request_id] = None
        for claim in item.claims:
            claims[claim.lock_id] = None
        for op in item.ops:
            if not isinstance(op, Append):
                keys[op.region, op.key] = None
            _add_places(lock_places, op.region, op.prefix if isinstance(op, Append) else op.key)
            if isinstance(op, Delete):
                continue
            for derivation in op.content.derivations:
                for source in derivation:
                    if isinstance(source, SourceRef):
                        sources[source] = None
        for guard in item.guards:
            if isinstance(guard, VersionGuard):
                keys[guard.region, guard.key] = None
            else:
                prefixes[guard.region, guard.prefix, guard.since] = None
    return Needs(
        list(principals),
        list(tokens),
        list(sessions),
        list(keys),
        list(sources),
        list(prefixes),
        list(replays),
        list(lock_places),
        list(claims),
    )


def _add_places(places: dict[tuple[Region, str], None], region: Region, path: str) -> None:
    places[region, path] = None
    # Up from the key: where a subtree is listed, so are all those above it.
    end = path.rfind("/", 0, -1) + 1
    while (region, path[:end]) not in places:
        places[region, path[:end]] = None
        end = path.rfind("/", 0, max(end - 1, 0)) + 1
