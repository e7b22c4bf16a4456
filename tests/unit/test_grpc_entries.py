"""Entries on the wire: what is encoded by hand is what protobuf writes, and nobody learns of hidden sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard.v1 import types_pb2
from slateboard_server.domain.entry import Annotations, SourceRef, VersionRecord
from slateboard_server.domain.etag import make_etag
from slateboard_server.domain.principal import Action, Principal, Right, Role
from slateboard_server.domain.values import (
    Incarnation,
    Key,
    Kind,
    Micros,
    PrincipalId,
    Region,
    Revision,
    SessionId,
    Tombstone,
    Trust,
    Version,
)
from slateboard_server.grpc_api.wire import Headers, delimited, tag, varint
from slateboard_server.grpc_api.write_entries import EntryWriter, View
from slateboard_server.services.model import Caller, Stamp
from slateboard_server.services.scope import Scope
from tests.judging import INCARNATION, OPERATOR, RIVAL, SHARED, WORKER, a_principal, source

SECRET = bytes(range(32))
PRIVATE = Region("private/worker")
EVERYBODY = {
    "worker": a_principal(WORKER),
    "rival": a_principal(RIVAL),
    "operator": a_principal(OPERATOR, Role.OPERATOR),
    "narrow": a_principal(
        PrincipalId("narrow"), rights=[Right("plan/", frozenset({Action.READ, Action.WRITE}))]
    ),
}


def writer(principal: Principal, incarnation: Incarnation = INCARNATION) -> EntryWriter:
    return EntryWriter(SECRET, incarnation, Scope(Caller(principal, None)))


def record(
    value: bytes | None = b"v",
    derivations: tuple[tuple[SourceRef, ...], ...] = (),
    tombstone: Tombstone = Tombstone.NONE,
) -> VersionRecord:
    return VersionRecord(
        region=SHARED,
        key=Key("plan/a"),
        version=Version(3),
        create_revision=Revision(4),
        mod_revision=Revision(9),
        op_index=0,
        commit_time=Micros(1_700_000_000_000_001),
        principal=WORKER,
        session_id=SessionId("s"),
        trust=Trust.AGENT,
        tombstone=tombstone,
        value=value,
        size=0 if value is None else len(value),
        content_type="text/plain",
        kind=Kind.SEMANTIC,
        annotations=Annotations(subject="sub", topics=("t",), labels=(("a", "1"),), confidence=0.0, note="n"),
        derivations=derivations,
    )


def sources_of(entry: types_pb2.Entry) -> list[list[tuple[str, str, int, bool]]]:
    return [
        [(one.region, one.key, one.version, one.hidden) for one in derivation.sources]
        for derivation in entry.content.provenance.derivations
    ]


@given(st.binary(max_size=300))
def test_a_full_entry_has_its_value_and_everything_else(value: bytes) -> None:
    """Written by hand around the value, read by protobuf."""
    entry = writer(EVERYBODY["worker"]).message(record(value), View.FULL)
    assert entry.content.value == value
    assert entry.size == len(value)
    assert (entry.version, entry.create_revision, entry.mod_revision) == (3, 4, 9)
    assert entry.etag == make_etag(SECRET, INCARNATION, SHARED, "plan/a", Version(3))
    assert (entry.commit_time.seconds, entry.commit_time.nanos) == (1_700_000_000, 1_000)
    content = entry.content
    assert (content.kind, content.trust) == (types_pb2.KIND_SEMANTIC, types_pb2.TRUST_AGENT)
    assert content.HasField("confidence")
    assert (content.confidence, content.importance) == (0.0, 0.5)
    assert (dict(content.labels), list(content.topics), content.subject) == ({"a": "1"}, ["t"], "sub")
    assert (content.provenance.principal, content.provenance.session_id) == ("worker", "s")


@pytest.mark.parametrize("value", [b"", b"x", b"x" * 127, b"x" * 128, b"x" * (1 << 20)])
def test_the_encoding_by_hand_is_the_one_of_protobuf(value: bytes) -> None:
    """Byte for byte, at each length of a length."""
    written = writer(EVERYBODY["worker"]).encode(record(value), View.FULL)
    assert types_pb2.Entry.FromString(written).SerializeToString(deterministic=True) == written


def test_views_leave_out_what_they_promise_to() -> None:
    """KEYS has no content, META no value; the size is told all the same."""
    entries = writer(EVERYBODY["worker"])
    keys, meta = entries.message(record(), View.KEYS), entries.message(record(), View.META)
    assert not keys.HasField("content")
    assert (keys.key, keys.version, keys.size) == ("plan/a", 3, 1)
    assert meta.content.value == b""
    assert (meta.content.subject, meta.size) == ("sub", 1)


def test_what_is_withheld_shows_its_name_and_trust_only() -> None:
    """A follower with a floor learns that the key changed."""
    entry = types_pb2.Entry.FromString(writer(EVERYBODY["worker"]).encode_withheld(record()))
    assert entry.content == types_pb2.Content(trust=types_pb2.TRUST_AGENT)
    assert (entry.key, entry.version) == ("plan/a", 3)


def test_a_tombstone_has_no_kind_and_no_shares() -> None:
    """It marks an absence."""
    entry = writer(EVERYBODY["worker"]).message(record(None, tombstone=Tombstone.DELETED), View.FULL)
    assert entry.tombstone == types_pb2.TOMBSTONE_DELETED
    assert not entry.content.HasField("confidence")
    assert entry.content.kind == types_pb2.KIND_UNSPECIFIED


MIXED = ((source("plan/s", 1), source("mine", 2, PRIVATE)), (source("mine", 7, PRIVATE),), (source("x", 5),))
SEEN = {
    "worker": [
        [("shared", "plan/s", 1, False), ("private/worker", "mine", 2, False)],
        [("private/worker", "mine", 7, False)],
        [("shared", "x", 5, False)],
    ],
    "rival": [
        [("shared", "plan/s", 1, False), ("", "", 0, True)],
        [("", "", 0, True)],
        [("shared", "x", 5, False)],
    ],
    "narrow": [[("shared", "plan/s", 1, False), ("", "", 0, True)], [("", "", 0, True)]],
}
SEEN["operator"] = SEEN["worker"]


@given(st.permutations(list(EVERYBODY)))
def test_hidden_sources_stay_hidden_whoever_read_the_entry_before(order: list[str]) -> None:
    """The kept encoding of one reader is never the answer of another who may see less, or more."""
    mixed, shared = record(derivations=MIXED), record(derivations=MIXED[2:])
    for name in order * 2:
        entries = writer(EVERYBODY[name])
        assert sources_of(entries.message(mixed, View.META)) == SEEN[name]
        alone = [[("", "", 0, True)]] if name == "narrow" else [[("shared", "x", 5, False)]]
        assert sources_of(entries.message(shared, View.FULL)) == alone


def test_how_many_derivations_are_hidden_is_not_told() -> None:
    """Ten that may not be seen look like one."""
    many = record(derivations=tuple((source(f"k{n}", 1, PRIVATE),) for n in range(10)))
    assert sources_of(writer(EVERYBODY["rival"]).message(many, View.META)) == [[("", "", 0, True)]]


def test_an_etag_of_an_earlier_life_is_not_kept() -> None:
    """The kept encoding belongs to an incarnation."""
    kept = record()
    other = Incarnation("ffffffffffffffffffffffffffffffff")
    first = writer(EVERYBODY["worker"]).message(kept, View.KEYS)
    second = writer(EVERYBODY["worker"], other).message(kept, View.KEYS)
    assert first.etag != second.etag
    assert second.etag == make_etag(SECRET, other, SHARED, "plan/a", Version(3))


def test_a_header_by_hand_is_the_one_of_protobuf() -> None:
    """Also with the largest revision, and with none."""
    headers = Headers("replica-1")
    for revision in (0, 1, 300, (1 << 63) - 1):
        stamp = Stamp(Revision(revision), Revision(min(revision, 7)), INCARNATION)
        assert headers.field(stamp) == delimited(tag(1), headers.message(stamp).SerializeToString())
    assert headers.no_board == types_pb2.ResponseHeader(replica_id="replica-1")


@given(st.integers(0, (1 << 63) - 1))
def test_a_varint_reads_back(number: int) -> None:
    """As field 3 of an Entry."""
    assert types_pb2.Entry.FromString(b"\x18" + varint(number)).version == number
