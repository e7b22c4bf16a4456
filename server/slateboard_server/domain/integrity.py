"""The hash chain over a board's commits: what is hashed, byte for byte. `docs/integrity.md` says it for other languages.

```
content_i    = SHA-256(salt_i, value, content type, annotations, screening)      what compaction and purge take away
version_i    = SHA-256(content_i, key, version, trust as written, derivations)   what stays of a version for ever
commit_r     = SHA-256(commit_(r-1), who, when, policy, version_1 ... version_n, amendments)
commit_start = SHA-256(board, incarnation, revision at which the chain begins)
```

Two levels, so that a compacted version's trust and lineage can still be checked: only `content_i` cannot be computed
again, and it is kept. The salt (32 random bytes, one a version) hides what was said: without it no guess at a purged
value can be tested against `content_i`. A purge deletes value and salt, and the chain still verifies.

The encoding is injective: each message begins with a tag of its own that ends in NUL, every field comes in fixed order,
whatever has no fixed length is preceded by it. A change of any of it is a new tag, never a new meaning of the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from struct import Struct
from typing import Final, Protocol

from slateboard_server.domain.entry import (
    NO_ANNOTATIONS,
    Annotations,
    CommitRecord,
    Derivation,
    VersionRecord,
)
from slateboard_server.domain.values import BoardId, Incarnation, Key, Micros, Region, Revision, Version

DIGEST_BYTES: Final = 32
SALT_BYTES: Final = 32
"""As much as the digest: a salt is what stands between a purged value and somebody who guesses it."""
NO_HASH: Final = bytes(DIGEST_BYTES)
"""What the first chain of a board, and the first audit record, is linked to."""

_CONTENT: Final = b"slateboard/content/1\0"
_VERSION: Final = b"slateboard/version/1\0"
_NOTE: Final = b"slateboard/note/1\0"
_COMMIT: Final = b"slateboard/commit/1\0"
_GENESIS: Final = b"slateboard/genesis/1\0"
_POLICY: Final = b"slateboard/policy/1\0"
_AUDIT: Final = b"slateboard/audit/1\0"

_ABSENT: Final = b"\0"
_PRESENT: Final = b"\1"
_count = Struct(">I").pack
_integer = Struct(">q").pack
_number = Struct(">d").pack
_stub_integers = Struct(">qqqqqqqq").pack
_commit_integers = Struct(">qqq").pack


class ScreeningFields(Protocol):
    """What the screening said when the version was written."""

    @property
    def verdict(self) -> int:
        """The verdict's number in the API."""
        ...

    @property
    def score(self) -> float:
        """How sure it was; never NaN."""
        ...

    @property
    def rules(self) -> Sequence[str]:
        """Ids of the rules that matched, in the order they are kept."""
        ...

    @property
    def rule_set(self) -> str:
        """Which rules were asked."""
        ...


class Amended(IntEnum):
    """What a commit can do to a version that exists. Numbers are part of the encoding."""

    LOWERED = 1
    PURGED = 2
    NOTE_PURGED = 3
    """Of a commit, not of a version: region and key are empty, `version` is the commit's revision."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """A commit lowered the trust of an earlier version, or purged it: the only ways what was written ever changes."""

    region: Region
    key: Key
    version: Version
    action: Amended
    trust: int = 0
    """With LOWERED the trust it has from then on, unless it already has less; else 0."""


@dataclass(frozen=True, slots=True)
class PolicyStamp:
    """The policy a commit was judged under."""

    version: int
    digest: bytes
    """`policy_digest` of its text."""


def _text(value: str) -> bytes:
    data = value.encode()
    return _count(len(data)) + data


def _optional_text(value: str | None) -> bytes:
    return _ABSENT if value is None else _PRESENT + _text(value)


def _optional_integer(value: int | None) -> bytes:
    return _ABSENT if value is None else _PRESENT + _integer(value)


def _digest(value: bytes, what: str) -> bytes:
    # Digests and salts carry no length: one of another length would move a border between fields.
    if len(value) != DIGEST_BYTES:
        raise ValueError(f"{what} has {len(value)} bytes, not {DIGEST_BYTES}")
    return value


def _optional_digest(value: bytes | None, what: str) -> bytes:
    return _ABSENT if value is None else _PRESENT + _digest(value, what)


def _texts(values: Sequence[str]) -> bytes:
    return _count(len(values)) + b"".join([_text(value) for value in values])


def _float(value: float) -> bytes:
    return _number(value + 0.0)  # an integer, and minus zero, like the float that equals it


def _annotations(notes: Annotations) -> bytes:
    return b"".join(
        (
            _text(notes.subject),
            _text(notes.attribute),
            _texts(notes.topics),
            _count(len(notes.labels)),
            *[_text(name) + _text(value) for name, value in notes.labels],
            _float(notes.confidence),
            _float(notes.importance),
            _optional_integer(notes.valid_from),
            _optional_integer(notes.valid_to),
            _text(notes.turn),
            _text(notes.tool),
            _texts(notes.source_uris),
            _text(notes.traceparent),
            _text(notes.note),
            _PRESENT if notes.derivation_waived else _ABSENT,
        )
    )


_PLAIN_ANNOTATIONS: Final = _annotations(NO_ANNOTATIONS)
"""Most writers say nothing here: encoded once, not for each of their versions."""


def _screening(screening: ScreeningFields) -> bytes:
    return b"".join(
        (
            _PRESENT,
            _integer(screening.verdict),
            _float(screening.score),
            _texts(screening.rules),
            _text(screening.rule_set),
        )
    )


def _derivations(derivations: tuple[Derivation, ...]) -> bytes:
    parts = [_count(len(derivations))]
    for derivation in derivations:
        parts.append(_count(len(derivation)))
        for source in derivation:
            parts += (_text(source.region), _text(source.key), _integer(source.version))
    return b"".join(parts)


_NO_DERIVATIONS: Final = _derivations(())


def content_encoding(salt: bytes, record: VersionRecord, screening: ScreeningFields | None = None) -> bytes:
    """Encode what compaction and purge take away. The value goes in as its SHA-256: a large one is hashed once."""
    notes, value = record.annotations, record.value
    return b"".join(
        (
            _CONTENT,
            _digest(salt, "the salt"),
            _ABSENT if value is None else _PRESENT + sha256(value).digest(),
            _integer(record.size),
            _text(record.content_type),
            _PLAIN_ANNOTATIONS if notes is NO_ANNOTATIONS else _annotations(notes),
            _ABSENT if screening is None else _screening(screening),
        )
    )


def content_commitment(salt: bytes, record: VersionRecord, screening: ScreeningFields | None = None) -> bytes:
    """Commit to a version's content under its salt; 32 bytes, kept as long as the version's row.

    Raises ValueError for a salt of another length, and for text that is no Unicode.
    """
    return sha256(content_encoding(salt, record, screening)).digest()


def version_encoding(content: bytes, record: VersionRecord) -> bytes:
    """Encode what stays of a version for ever: place, writer, derivations, and trust and tombstone **as written**."""
    expire, sources = record.expire_time, record.derivations
    return b"".join(
        (
            _VERSION,
            _digest(content, "the content commitment"),
            _stub_integers(
                record.version,
                record.create_revision,
                record.mod_revision,
                record.op_index,
                record.commit_time,
                record.trust,
                record.tombstone,
                record.kind,
            ),
            _ABSENT if expire is None else _PRESENT + _integer(expire),
            _text(record.region),
            _text(record.key),
            _text(record.principal),
            _optional_text(record.session_id),
            _derivations(sources) if sources else _NO_DERIVATIONS,
        )
    )


def version_commitment(content: bytes, record: VersionRecord) -> bytes:
    """Commit to a version, given the commitment to its content; 32 bytes, what its commit's hash is over.

    `record.trust` and `record.tombstone` are those it was written with, whatever amendments have made of them since.
    """
    return sha256(version_encoding(content, record)).digest()


def note_commitment(salt: bytes, note: str) -> bytes:
    """Commit to a commit's note under a salt of its own, so that it can be erased like a value."""
    return sha256(b"".join((_NOTE, _digest(salt, "the salt"), _text(note)))).digest()


def policy_digest(text: str) -> bytes:
    """Return the digest of a policy, given the text it is stored as."""
    return sha256(_POLICY + _text(text)).digest()


def genesis(
    incarnation: Incarnation,
    board_id: BoardId,
    name: str,
    revision: Revision,
    previous: bytes = NO_HASH,
) -> bytes:
    """Return what the first commit after `revision` is linked to.

    `previous` is the hash of `revision` where a board with a chain begins a new incarnation: its lives stay linked. It is
    NO_HASH for a new board (revision 0), and for one whose commits up to `revision` are older than the chain.
    """
    return sha256(
        b"".join(
            (
                _GENESIS,
                _digest(previous, "the previous hash"),
                _integer(revision),
                _integer(board_id),
                _text(name),
                _text(incarnation),
            )
        )
    ).digest()


def _amendments(amendments: Sequence[Amendment]) -> bytes:
    parts = [_count(len(amendments))]
    for amendment in amendments:
        parts += (
            _text(amendment.region),
            _text(amendment.key),
            _integer(amendment.version),
            _integer(amendment.action),
            _integer(amendment.trust),
        )
    return b"".join(parts)


_NO_AMENDMENTS: Final = _amendments(())


def commit_encoding(
    previous: bytes,
    commit: CommitRecord,
    note: bytes | None,
    policy: PolicyStamp,
    commitments: Sequence[bytes],
    amendments: Sequence[Amendment] = (),
    *,
    lineage: bytes | None = None,
    audit: bytes | None = None,
) -> bytes:
    """Encode a commit and its link to the one before. Of `commit`, the note goes in as its commitment, the batch not."""
    return b"".join(
        (
            _COMMIT,
            _digest(previous, "the previous hash"),
            _commit_integers(commit.revision, commit.commit_time, policy.version),
            _digest(policy.digest, "the policy digest"),
            _text(commit.commit_id),
            _text(commit.principal),
            _optional_text(commit.session_id),
            _text(commit.request_id),
            _optional_digest(note, "the note commitment"),
            _optional_digest(lineage, "the lineage digest"),
            _optional_digest(audit, "the audit digest"),
            _count(len(commitments)),
            *[_digest(each, "a version commitment") for each in commitments],
            _amendments(amendments) if amendments else _NO_AMENDMENTS,
        )
    )


def commit_hash(
    previous: bytes,
    commit: CommitRecord,
    note: bytes | None,
    policy: PolicyStamp,
    commitments: Sequence[bytes],
    amendments: Sequence[Amendment] = (),
    *,
    lineage: bytes | None = None,
    audit: bytes | None = None,
) -> bytes:
    """Return a commit's link of the chain, 32 bytes.

    `previous` is the hash of the commit before, or the genesis; `note` the note's commitment, None without a note;
    `commitments` those of the commit's versions, in op order. `lineage` and `audit` are digests of what else is to be
    bound to the commit, where a server keeps such.

    Raises ValueError where a digest has another length than 32 bytes, struct.error for a number beyond 64 bits.
    """
    return sha256(
        commit_encoding(previous, commit, note, policy, commitments, amendments, lineage=lineage, audit=audit)
    ).digest()


def audit_hash(
    previous: bytes,
    number: int,
    time: Micros,
    *,
    record_id: str,
    principal: str,
    action: str,
    board: str,
    target: str,
    detail: str,
) -> bytes:
    """Return the digest of the audit up to a record, given the digest up to the one before (NO_HASH at first)."""
    return sha256(
        b"".join(
            (
                _AUDIT,
                _digest(previous, "the previous digest"),
                _integer(number),
                _integer(time),
                _text(record_id),
                _text(principal),
                _text(action),
                _text(board),
                _text(target),
                _text(detail),
            )
        )
    ).digest()
