"""A commit as asked for, after its shape was checked and before anything that depends on state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from slateboard_server.domain.entry import NO_ANNOTATIONS, Annotations, OpRef, SourceRef
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.values import (
    Etag,
    FencingToken,
    Incarnation,
    Key,
    Kind,
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


class Expect(Enum):
    """The kinds of precondition."""

    VERSION = "version"
    ABSENT = "absent"
    PRESENT = "present"
    ETAG = "etag"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must hold of a key; `version` (at least 1) only with VERSION, `etag` only with ETAG."""

    expect: Expect
    version: Version = Version(0)
    etag: Etag = Etag("")

    def in_words(self) -> str:
        """Say it as a conflict reports it."""
        match self.expect:
            case Expect.VERSION:
                return f"version {self.version}"
            case Expect.ETAG:
                return f"etag {self.etag}"
            case other:
                return str(other.value)


@dataclass(frozen=True, slots=True)
class NewContent:
    """What a writer puts into a version. `expire_time`, `ttl` and `trust` are what it asks for."""

    value: bytes
    content_type: str = "application/octet-stream"
    kind: Kind = Kind.WORKING
    expire_time: Micros | None = None
    ttl: int | None = None
    """Micros from the commit to its expiry, in place of `expire_time`; at least a second."""
    trust: Trust | None = None
    annotations: Annotations = NO_ANNOTATIONS
    derivations: tuple[tuple[SourceRef | OpRef, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value under a key."""

    region: Region
    key: Key
    precondition: Precondition
    content: NewContent


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a value. `tombstone` is EXPIRED only for the sweeper."""

    region: Region
    key: Key
    precondition: Precondition
    note: str = ""
    tombstone: Tombstone = Tombstone.DELETED


@dataclass(frozen=True, slots=True)
class Append:
    """Write a value under a key the server names."""

    region: Region
    prefix: str
    content: NewContent


Op: TypeAlias = Put | Delete | Append


@dataclass(frozen=True, slots=True)
class VersionGuard:
    """The key is still at this version; 0: absent."""

    region: Region
    key: Key
    version: Version


@dataclass(frozen=True, slots=True)
class PrefixGuard:
    """Nothing under the prefix has changed since a revision."""

    region: Region
    prefix: str
    since: Revision


Guard: TypeAlias = VersionGuard | PrefixGuard


@dataclass(frozen=True, slots=True)
class Claim:
    """A lock the writer says it holds."""

    lock_id: LockId
    token: FencingToken


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """The session a commit is made in, proved by its secret."""

    session_id: SessionId
    secret_hash: bytes


@dataclass(frozen=True, slots=True)
class CommitItem:
    """One commit of a batch."""

    principal: PrincipalId
    ops: tuple[Op, ...]
    request_id: str = ""
    """Canonical UUID text; empty only for `validate_only` and the server's own commits."""
    fingerprint: bytes = b""
    """Keyed MAC over the canonical encoding of the content; see `fingerprint.py`."""
    guards: tuple[Guard, ...] = ()
    claims: tuple[Claim, ...] = ()
    dead_claims: frozenset[LockId] = frozenset()
    """Claimed locks whose leases were seen to be gone, for good, before the commit was queued."""
    claims_unchecked: bool = False
    """Lock liveness could not be asked: a commit that was made before is answered again, a new one refused."""
    session: SessionClaim | None = None
    token_id: TokenId | None = None
    """The credential it came with, checked again inside the transaction; None with a client certificate."""
    note: str = ""
    validate_only: bool = False
    incarnation: Incarnation | None = None
    internal: bool = False
    """The server's own write (expiry): no rights, policy or quota, but preconditions hold."""


@dataclass(frozen=True, slots=True)
class OpOutcome:
    """What an op did; `version` 0 and `changed` False: nothing."""

    region: Region
    key: Key
    version: Version
    trust: Trust
    changed: bool = True
    expire_time: Micros | None = None
    create_revision: Revision = Revision(0)


@dataclass(frozen=True, slots=True)
class Advice:
    """A limit is near or something was capped; nothing was refused."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The answer of an accepted commit, stored for retries. Holds no values."""

    revision: Revision
    commit_id: str
    commit_time: Micros
    outcomes: tuple[OpOutcome, ...]
    warnings: tuple[Advice, ...] = ()


def check_ops(ops: tuple[Op, ...]) -> None:
    """Refuse what the ops of a commit cannot be, whatever the board's state.

    DUPLICATE_KEY for a key that is named twice (the names of appends are known only to the judge), FIELD_INVALID for an
    empty derivation, or for one that names a later op, a delete or no op of the commit as a source.
    """
    seen: set[tuple[Region, Key]] = set()
    for index, op in enumerate(ops):
        if not isinstance(op, Append):
            named = (op.region, op.key)
            if named in seen:
                raise SlateboardError(
                    Reason.DUPLICATE_KEY,
                    f"ops[{index}] names {op.region}:{op.key} again; a commit changes a key once",
                    field=f"ops[{index}]",
                    region=op.region,
                    key=op.key,
                )
            seen.add(named)
        if isinstance(op, Delete):
            continue
        for number, derivation in enumerate(op.content.derivations):
            place = f"ops[{index}].content.provenance.derivations[{number}]"
            if not derivation:
                # Made of nothing, it would survive every purge of what the value was really made of.
                raise field_invalid(place, "a derivation names at least one source")
            for source in derivation:
                if isinstance(source, OpRef) and not (
                    0 <= source.op < index and not isinstance(ops[source.op], Delete)
                ):
                    raise field_invalid(
                        place, f"op {source.op} is not an earlier put or append of the same commit"
                    )
