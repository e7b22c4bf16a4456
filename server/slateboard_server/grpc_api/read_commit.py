"""From a CommitRequest to a CommitItem: every shape that no commit can have is refused here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from slateboard.v1 import commit_pb2, entry_service_pb2, types_pb2
from slateboard_server.domain.commit import (
    Append,
    Claim,
    CommitItem,
    Delete,
    Expect,
    Guard,
    NewContent,
    Op,
    Precondition,
    PrefixGuard,
    Put,
    SessionClaim,
    VersionGuard,
)
from slateboard_server.domain.entry import NO_ANNOTATIONS, Annotations, OpRef, SourceRef
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid, too_large
from slateboard_server.domain.etag import check_etag
from slateboard_server.domain.limits import (
    MAX_CLAIMS,
    MAX_DERIVATIONS,
    MAX_GUARDS,
    MAX_NAME_BYTES,
    MAX_NOTE_BYTES,
    MAX_OPS,
    MAX_SOURCE_URIS,
    MAX_SOURCES,
    MAX_TAG_BYTES,
    MAX_TOPICS,
    MAX_URI_BYTES,
    MAX_VALUE_BYTES,
)
from slateboard_server.domain.names import check_append_prefix, check_key, check_region
from slateboard_server.domain.values import (
    SECOND,
    FencingToken,
    Incarnation,
    Kind,
    LockId,
    Micros,
    Revision,
    SessionId,
    Version,
)
from slateboard_server.grpc_api.shape import (
    check_count,
    check_labels,
    check_request_id,
    check_text,
    check_texts,
    check_trust,
    check_value,
    read_key,
    read_prefix,
)
from slateboard_server.grpc_api.times import read_duration, read_time
from slateboard_server.services.auth import hash_secret
from slateboard_server.services.model import Caller

_DEFAULT_TYPE: Final = "application/octet-stream"


async def read_commit(caller: Caller, request: entry_service_pb2.CommitRequest) -> CommitItem:
    """Read a commit of a caller; the fingerprint is still to be filled in."""
    if request.validate_only and not request.request_id:
        request_id = ""
    else:
        request_id = check_request_id(request.request_id)
    if not request.ops:
        raise field_invalid("ops", "a commit has 1 to 128 ops", limit=MAX_OPS)
    check_count(request.ops, MAX_OPS, "ops")
    return CommitItem(
        principal=caller.principal.id,
        ops=tuple([await _op(op, f"ops[{index}]") for index, op in enumerate(request.ops)]),
        request_id=request_id,
        guards=_guards(request) if request.guards else (),
        claims=_claims(request) if request.claims else (),
        session=_session(request.session_token) if request.session_token else None,
        token_id=caller.token_id,
        note=check_text(request.note, MAX_NOTE_BYTES, "note"),
        validate_only=request.validate_only,
        incarnation=Incarnation(request.incarnation) if request.incarnation else None,
    )


async def _op(op: commit_pb2.Op, field: str) -> Op:
    match op.WhichOneof("kind"):
        case "put":
            put, field = op.put, f"{field}.put"
            region, key = read_key(put.key, field)
            precondition = _precondition(put, field)
            return Put(region, key, precondition, await _content(put, field))
        case "append":
            append, field = op.append, f"{field}.append"
            region = check_region(append.prefix.region, f"{field}.prefix.region")
            prefix = check_append_prefix(append.prefix.prefix, f"{field}.prefix.prefix")
            return Append(region, prefix, await _content(append, field))
        case "delete":
            delete, field = op.delete, f"{field}.delete"
            region, key = read_key(delete.key, field)
            note = check_text(delete.note, MAX_NOTE_BYTES, f"{field}.note")
            return Delete(region, key, _precondition(delete, field), note)
        case _:
            raise field_invalid(field, "an op is a put, a delete or an append")


def _precondition(op: commit_pb2.PutOp | commit_pb2.DeleteOp, field: str) -> Precondition:
    """Read a precondition. None, or one that says nothing, is refused: it must never mean 'no condition'."""
    wanted = op.precondition
    kind = wanted.WhichOneof("condition")
    field = f"{field}.precondition"
    match kind:
        case "version_equals":
            if wanted.version_equals < 1:
                raise field_invalid(
                    f"{field}.version_equals", "a version is 1 or more; must_not_exist expects an absent key"
                )
            return Precondition(Expect.VERSION, version=Version(wanted.version_equals))
        case "etag_equals":
            return Precondition(Expect.ETAG, etag=check_etag(wanted.etag_equals, f"{field}.etag_equals"))
        case "must_not_exist" | "must_exist" | "any_state":
            if not getattr(wanted, kind):
                raise field_invalid(f"{field}.{kind}", "must be true where it is given")
            return _FLAGS[kind]
        case _:
            raise SlateboardError(
                Reason.PRECONDITION_REQUIRED,
                f"{field}: say what is expected: version_equals, must_not_exist, must_exist, etag_equals, or any_state",
                field=field,
            )


_FLAGS: Final = {
    "must_not_exist": Precondition(Expect.ABSENT),
    "must_exist": Precondition(Expect.PRESENT),
    "any_state": Precondition(Expect.ANY),
}


async def _content(op: commit_pb2.PutOp | commit_pb2.AppendOp, field: str) -> NewContent:
    if not op.HasField("content"):
        raise field_invalid(f"{field}.content", "is required; an empty value needs a content as well")
    content, field = op.content, f"{field}.content"
    value = content.value
    if len(value) > MAX_VALUE_BYTES:
        raise too_large(f"{field}.value", len(value), MAX_VALUE_BYTES)
    content_type = _content_type(content.content_type, field) if content.content_type else _DEFAULT_TYPE
    await check_value(value, content_type, f"{field}.value")
    expire_time, ttl = _expiry(content, field)
    return NewContent(
        value=value,
        content_type=content_type,
        kind=_kind(content.kind, field) if content.kind else Kind.WORKING,
        expire_time=expire_time,
        ttl=ttl,
        trust=check_trust(content.trust, f"{field}.trust") if content.trust else None,
        annotations=_annotations(content, field),
        derivations=_derivations(content.provenance, f"{field}.provenance"),
    )


def _content_type(text: str, field: str) -> str:
    check_text(text, MAX_TAG_BYTES, f"{field}.content_type")
    if not (text.isascii() and text.isprintable()):
        raise field_invalid(
            f"{field}.content_type", "is a media type in printable ASCII, like application/json"
        )
    return text


def _kind(number: int, field: str) -> Kind:
    try:
        return Kind(number)
    except ValueError as error:
        raise field_invalid(f"{field}.kind", f"there is no kind {number}") from error


def _expiry(content: types_pb2.Content, field: str) -> tuple[Micros | None, int | None]:
    """Read expire_time or ttl; most contents have neither."""
    if not content.HasField("ttl"):
        has_time = content.HasField("expire_time")
        return (read_time(content.expire_time, f"{field}.expire_time") if has_time else None), None
    if content.HasField("expire_time"):
        raise field_invalid(f"{field}.ttl", "give expire_time or ttl, not both")
    ttl = read_duration(content.ttl, f"{field}.ttl")
    if ttl < SECOND:
        raise field_invalid(f"{field}.ttl", "must be at least 1 s")
    return None, ttl


_PLAIN: Final = frozenset({"value", "content_type", "kind", "trust", "expire_time", "ttl"})


def _annotations(content: types_pb2.Content, field: str) -> Annotations:
    if all(descriptor.name in _PLAIN for descriptor, _ in content.ListFields()):
        return NO_ANNOTATIONS
    provenance = content.provenance
    place = f"{field}.provenance"
    valid_from = (
        read_time(content.valid_from, f"{field}.valid_from") if content.HasField("valid_from") else None
    )
    valid_to = read_time(content.valid_to, f"{field}.valid_to") if content.HasField("valid_to") else None
    if valid_from is not None and valid_to is not None and valid_to <= valid_from:
        raise field_invalid(f"{field}.valid_to", "must be after valid_from")
    return Annotations(
        subject=check_text(content.subject, MAX_NAME_BYTES, f"{field}.subject"),
        attribute=check_text(content.attribute, MAX_NAME_BYTES, f"{field}.attribute"),
        topics=check_texts(content.topics, MAX_TOPICS, MAX_TAG_BYTES, f"{field}.topics"),
        labels=check_labels(list(content.labels.items()), f"{field}.labels"),
        confidence=_share(content.confidence, f"{field}.confidence")
        if content.HasField("confidence")
        else 1.0,
        importance=_share(content.importance, f"{field}.importance")
        if content.HasField("importance")
        else 0.5,
        valid_from=valid_from,
        valid_to=valid_to,
        turn=check_text(provenance.turn, MAX_NAME_BYTES, f"{place}.turn"),
        tool=check_text(provenance.tool, MAX_NAME_BYTES, f"{place}.tool"),
        source_uris=check_texts(
            provenance.source_uris, MAX_SOURCE_URIS, MAX_URI_BYTES, f"{place}.source_uris"
        ),
        traceparent=check_text(provenance.traceparent, MAX_TAG_BYTES, f"{place}.traceparent"),
        note=check_text(provenance.note, MAX_NOTE_BYTES, f"{place}.note"),
        derivation_waived=provenance.derivation_waived,
    )


def _share(number: float, field: str) -> float:
    if not 0.0 <= number <= 1.0:  # also refuses NaN
        raise field_invalid(field, "must be 0 to 1")
    return number + 0.0


def _derivations(provenance: types_pb2.Provenance, field: str) -> tuple[tuple[SourceRef | OpRef, ...], ...]:
    if not provenance.derivations:
        return ()
    check_count(provenance.derivations, MAX_DERIVATIONS, f"{field}.derivations")
    made: list[tuple[SourceRef | OpRef, ...]] = []
    for number, derivation in enumerate(provenance.derivations):
        place = f"{field}.derivations[{number}]"
        if not derivation.sources:
            raise field_invalid(f"{place}.sources", "a derivation names at least one source")
        check_count(derivation.sources, MAX_SOURCES, f"{place}.sources")
        made.append(
            tuple([_source(source, f"{place}.sources[{i}]") for i, source in enumerate(derivation.sources)])
        )
    return tuple(made)


def _source(source: types_pb2.Source, field: str) -> SourceRef | OpRef:
    if source.HasField("op"):
        if source.key or source.version or source.region:
            raise field_invalid(field, "name an op, or a key with its version, not both")
        return OpRef(source.op)
    if source.version < 1:
        raise field_invalid(f"{field}.version", "is required: the version that was read, 1 or more")
    region = check_region(source.region, f"{field}.region")
    return SourceRef(region, check_key(source.key, f"{field}.key"), Version(source.version))


def _guards(request: entry_service_pb2.CommitRequest) -> tuple[Guard, ...]:
    check_count(request.guards, MAX_GUARDS, "guards")
    return tuple([_guard(guard, f"guards[{index}]") for index, guard in enumerate(request.guards)])


def _guard(guard: commit_pb2.Guard, field: str) -> Guard:
    match guard.WhichOneof("kind"):
        case "version":
            field = f"{field}.version"
            region, key = read_key(guard.version.key, field)
            if not guard.version.HasField("version"):
                raise field_invalid(f"{field}.version", "is required; 0 asserts that the key is absent")
            if guard.version.version < 0:
                raise field_invalid(f"{field}.version", "must not be negative")
            return VersionGuard(region, key, Version(guard.version.version))
        case "prefix":
            field = f"{field}.prefix"
            region, prefix = read_prefix(guard.prefix.prefix, field)
            since = guard.prefix.unchanged_since_revision
            if since < 0:
                raise field_invalid(f"{field}.unchanged_since_revision", "must not be negative")
            return PrefixGuard(region, prefix, Revision(since))
        case _:
            raise field_invalid(field, "a guard speaks of a version or of a prefix")


def _claims(request: entry_service_pb2.CommitRequest) -> tuple[Claim, ...]:
    check_count(request.claims, MAX_CLAIMS, "claims")
    return read_claims(request.claims)


def read_claims(claims: Iterable[commit_pb2.Claim]) -> tuple[Claim, ...]:
    """Read what locks a caller says it holds."""
    read: list[Claim] = []
    for index, claim in enumerate(claims):
        field = f"claims[{index}]"
        if not claim.lock_id:
            raise field_invalid(f"{field}.lock_id", "is required")
        check_text(claim.lock_id, MAX_TAG_BYTES, f"{field}.lock_id")
        if claim.fencing_token < 1:
            raise field_invalid(f"{field}.fencing_token", "is required, and 1 or more")
        read.append(Claim(LockId(claim.lock_id), FencingToken(claim.fencing_token)))
    return tuple(read)


def read_session(token: str) -> SessionClaim | None:
    """Read a session token; None where there is none."""
    return _session(token) if token else None


def _session(token: str) -> SessionClaim:
    session_id, _, secret = token.partition(".")
    if not (session_id and secret) or len(token) > MAX_NAME_BYTES:
        raise SlateboardError(
            Reason.SESSION_NOT_FOUND,
            "the session token is garbled; pass it as StartSession returned it",
            field="session_token",
        )
    return SessionClaim(SessionId(session_id), hash_secret(secret))
