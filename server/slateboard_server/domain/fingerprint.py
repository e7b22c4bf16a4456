"""A keyed MAC over a commit's content: tells a retry from another commit under the same request_id.

It is taken over an encoding of our own (every field length-prefixed, in fixed order), not over protobuf bytes: those
are not canonical, and a retry through another client library must still match. It is keyed, since it is kept for days
and would otherwise let a reader of the database test guesses of a purged value.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from hashlib import sha256
from typing import TypeAlias

from slateboard_server.domain.commit import Append, CommitItem, Delete, NewContent, PrefixGuard, Put
from slateboard_server.domain.entry import SourceRef

_Field: TypeAlias = bytes | str | int | None


def _number(value: float) -> str:
    """Write a number in the shortest way that reads back as the same; an integer and both zeros as the same float."""
    return repr(float(value) + 0.0)


def _content(content: NewContent) -> Iterator[_Field]:
    yield content.value
    yield content.content_type
    yield int(content.kind)
    yield content.expire_time
    if content.ttl is not None:  # a text where a trust would be a number: no other content is encoded like it
        yield "ttl"
        yield content.ttl
    yield content.trust
    notes = content.annotations
    yield notes.subject
    yield notes.attribute
    yield len(notes.topics)
    yield from notes.topics
    yield len(notes.labels)
    for name, value in notes.labels:
        yield name
        yield value
    yield _number(notes.confidence)
    yield _number(notes.importance)
    yield notes.valid_from
    yield notes.valid_to
    yield notes.turn
    yield notes.tool
    yield len(notes.source_uris)
    yield from notes.source_uris
    yield notes.traceparent
    yield notes.note
    yield int(notes.derivation_waived)
    yield len(content.derivations)
    for derivation in content.derivations:
        yield len(derivation)
        for source in derivation:
            if isinstance(source, SourceRef):
                yield source.region
                yield source.key
                yield source.version
            else:
                yield "op"
                yield source.op


def _fields(item: CommitItem) -> Iterator[_Field]:
    yield "slateboard commit 1"
    yield item.note
    yield item.incarnation
    yield item.session.session_id if item.session else None
    yield len(item.ops)
    for op in item.ops:
        yield op.region
        if isinstance(op, Append):
            yield "append"
            yield op.prefix
            yield from _content(op.content)
            continue
        yield "put" if isinstance(op, Put) else "delete"
        yield op.key
        yield op.precondition.expect.value
        yield op.precondition.version
        yield op.precondition.etag
        if isinstance(op, Delete):
            yield op.note
            yield int(op.tombstone)
        else:
            yield from _content(op.content)
    yield len(item.guards)
    for guard in item.guards:
        yield guard.region
        if isinstance(guard, PrefixGuard):
            yield "prefix"
            yield guard.prefix
            yield guard.since
        else:
            yield "version"
            yield guard.key
            yield guard.version
    yield len(item.claims)
    for claim in item.claims:
        yield claim.lock_id
        yield claim.token


def canonical_encoding(item: CommitItem) -> bytes:
    """Encode what makes a commit the same commit: each field as `<type letter><length>:<bytes>`.

    Letters: b bytes, s text (UTF-8), i integer (decimal), n nothing. `validate_only`, the principal and the credential
    are left out: the first writes nothing, the others are part of the row's key or may change between tries.
    """
    parts: list[bytes] = []
    for value in _fields(item):
        if value is None:
            parts.append(b"n0:")
            continue
        if isinstance(value, bytes):
            letter, data = b"b", value
        elif isinstance(value, str):
            letter, data = b"s", value.encode()
        else:
            letter, data = b"i", b"%d" % value
        parts.append(b"%b%d:%b" % (letter, len(data), data))
    return b"".join(parts)


def fingerprint(secret: bytes, item: CommitItem) -> bytes:
    """Return HMAC-SHA256 over the canonical encoding, 32 bytes."""
    return hmac.digest(secret, canonical_encoding(item), sha256)
