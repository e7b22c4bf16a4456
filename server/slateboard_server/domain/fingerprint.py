"""A keyed MAC over a commit's content: tells a retry from another commit under the same request_id.

It is taken over an encoding of our own (every field length-prefixed, in fixed order), not over protobuf bytes: those
are not canonical, and a retry through another client library must still match. It is keyed, since it is kept for days
and would otherwise let a reader of the database test guesses of a purged value.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from slateboard_server.domain.commit import Append, CommitItem, Guard, NewContent, Op, PrefixGuard, Put
from slateboard_server.domain.entry import NO_ANNOTATIONS, Annotations, SourceRef

_NOTHING: Final = b"n0:"


def _text(value: str | None) -> bytes:
    if value is None:
        return _NOTHING
    data = value.encode()
    return b"s%d:%b" % (len(data), data)


def _integer(value: int | None) -> bytes:
    if value is None:
        return _NOTHING
    data = b"%d" % value
    return b"i%d:%b" % (len(data), data)


def _number(value: float) -> bytes:
    """Write a number in the shortest way that reads back as the same; an integer and both zeros as the same float."""
    return _text(repr(float(value) + 0.0))


def _texts(values: Sequence[str]) -> bytes:
    return _integer(len(values)) + b"".join([_text(value) for value in values])


def _annotations(notes: Annotations) -> bytes:
    return b"".join(
        (
            _text(notes.subject),
            _text(notes.attribute),
            _texts(notes.topics),
            _integer(len(notes.labels)),
            *[_text(name) + _text(value) for name, value in notes.labels],
            _number(notes.confidence),
            _number(notes.importance),
            _integer(notes.valid_from),
            _integer(notes.valid_to),
            _text(notes.turn),
            _text(notes.tool),
            _texts(notes.source_uris),
            _text(notes.traceparent),
            _text(notes.note),
            _integer(notes.derivation_waived),
        )
    )


_NO_ANNOTATIONS: Final = _annotations(NO_ANNOTATIONS)


def _content(content: NewContent) -> bytes:
    parts = [
        b"b%d:%b" % (len(content.value), content.value),
        _text(content.content_type),
        _integer(content.kind),
        _integer(content.expire_time),
        # A text where a trust would be a number: no other content is encoded like it.
        b"" if content.ttl is None else b"s3:ttl" + _integer(content.ttl),
        _integer(content.trust),
        # Most writers say nothing here: encoded once, not for each of their commits.
        _NO_ANNOTATIONS if content.annotations is NO_ANNOTATIONS else _annotations(content.annotations),
        _integer(len(content.derivations)),
    ]
    for derivation in content.derivations:
        parts.append(_integer(len(derivation)))
        for source in derivation:
            if isinstance(source, SourceRef):
                parts += (_text(source.region), _text(source.key), _integer(source.version))
            else:
                parts += (b"s2:op", _integer(source.op))
    return b"".join(parts)


def _op(op: Op) -> Iterator[bytes]:
    yield _text(op.region)
    if isinstance(op, Append):
        yield b"s6:append"
        yield _text(op.prefix)
        yield _content(op.content)
        return
    yield b"s3:put" if isinstance(op, Put) else b"s6:delete"
    yield _text(op.key)
    wanted = op.precondition
    yield _text(wanted.expect.value)
    yield _integer(wanted.version)
    yield _text(wanted.etag)
    if isinstance(op, Put):
        yield _content(op.content)
    else:
        yield _text(op.note)
        yield _integer(op.tombstone)


def _guard(guard: Guard) -> bytes:
    if isinstance(guard, PrefixGuard):
        return _text(guard.region) + b"s6:prefix" + _text(guard.prefix) + _integer(guard.since)
    return _text(guard.region) + b"s7:version" + _text(guard.key) + _integer(guard.version)


def canonical_encoding(item: CommitItem) -> bytes:
    """Encode what makes a commit the same commit: each field as `<type letter><length>:<bytes>`.

    Letters: b bytes, s text (UTF-8), i integer (decimal), n nothing. `validate_only`, the principal and the credential
    are left out: the first writes nothing, the others are part of the row's key or may change between tries.
    """
    parts = [
        b"s19:slateboard commit 1",
        _text(item.note),
        _text(item.incarnation),
        _text(item.session.session_id if item.session else None),
        _integer(len(item.ops)),
    ]
    for op in item.ops:
        parts += _op(op)
    parts.append(_integer(len(item.guards)))
    parts += [_guard(guard) for guard in item.guards]
    parts.append(_integer(len(item.claims)))
    parts += [_text(claim.lock_id) + _integer(claim.token) for claim in item.claims]
    return b"".join(parts)


def fingerprint(secret: bytes, item: CommitItem) -> bytes:
    """Return HMAC-SHA256 over the canonical encoding, 32 bytes."""
    return hmac.digest(secret, canonical_encoding(item), sha256)
