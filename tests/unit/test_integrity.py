"""The hash chain's encoding: documented byte for byte, the same for a second implementation, different for all else.

The class `Doc` below is written from docs/integrity.md alone. It shares no code with the server's, and reads the vectors
as any other program would.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain import integrity
from slateboard_server.domain.checkpoint import parse_verifier_keys, sign, verify
from slateboard_server.domain.entry import NO_ANNOTATIONS, Annotations, CommitRecord, SourceRef, VersionRecord
from slateboard_server.domain.integrity import Amended, Amendment, PolicyStamp
from slateboard_server.domain.values import (
    BoardId,
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
from slateboard_server.signing import Ed25519Signer, signature_is_good
from tests.chaining import Screened

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("integrity_vectors.json").read_text(encoding="utf-8")
)
CHECKPOINTS = VECTORS.pop("checkpoint")


# From the page


class Doc:
    """Writes a message as docs/integrity.md says."""

    def __init__(self, tag: str) -> None:
        self.message = tag.encode("ascii") + b"\x00"

    def ints(self, *values: int) -> Doc:
        for value in values:
            self.message += value.to_bytes(8, "big", signed=True)
        return self

    def floats(self, *values: float) -> Doc:
        for value in values:
            self.message += struct.pack("!d", value if value != 0 else 0.0)
        return self

    def count(self, value: int) -> Doc:
        self.message += value.to_bytes(4, "big")
        return self

    def text(self, *values: str) -> Doc:
        for value in values:
            data = value.encode("utf-8")
            self.count(len(data)).message += data
        return self

    def digest(self, *values: str) -> Doc:
        for value in values:
            assert len(value) == 64
            self.message += bytes.fromhex(value)
        return self

    def flag(self, value: bool) -> Doc:
        self.message += b"\x01" if value else b"\x00"
        return self

    def maybe(self, value: Any, write: Callable[[Any], object]) -> Doc:
        self.flag(value is not None)
        if value is not None:
            write(value)
        return self

    def many(self, values: list[Any], write: Callable[[Any], object]) -> Doc:
        self.count(len(values))
        for value in values:
            write(value)
        return self


def doc_content(fields: dict[str, Any]) -> bytes:
    value, notes = fields["value"], fields["annotations"]
    doc = Doc("slateboard/content/1").digest(fields["salt"])
    doc.maybe(None if value is None else sha256(bytes.fromhex(value)).hexdigest(), doc.digest)
    doc.ints(fields["size"]).text(fields["content_type"])
    doc.text(notes["subject"], notes["attribute"]).many(notes["topics"], doc.text)
    doc.many(notes["labels"], lambda label: doc.text(label[0], label[1]))
    doc.floats(notes["confidence"], notes["importance"])
    doc.maybe(notes["valid_from"], doc.ints).maybe(notes["valid_to"], doc.ints)
    doc.text(notes["turn"], notes["tool"]).many(notes["source_uris"], doc.text)
    doc.text(notes["traceparent"], notes["note"]).flag(notes["derivation_waived"])

    def screening(said: dict[str, Any]) -> None:
        doc.ints(said["verdict"]).floats(said["score"]).many(said["rules"], doc.text).text(said["rule_set"])

    return doc.maybe(fields["screening"], screening).message


def doc_version(fields: dict[str, Any]) -> bytes:
    doc = Doc("slateboard/version/1").digest(fields["content"])
    doc.ints(fields["version"], fields["create_revision"], fields["mod_revision"], fields["op_index"])
    doc.ints(fields["commit_time"], fields["trust"], fields["tombstone"], fields["kind"])
    doc.maybe(fields["expire_time"], doc.ints).text(fields["region"], fields["key"], fields["principal"])
    doc.maybe(fields["session_id"], doc.text)
    return doc.many(
        fields["derivations"],
        lambda sources: doc.many(sources, lambda source: doc.text(source[0], source[1]).ints(source[2])),
    ).message


def doc_note(fields: dict[str, Any]) -> bytes:
    return Doc("slateboard/note/1").digest(fields["salt"]).text(fields["note"]).message


def doc_policy(fields: dict[str, Any]) -> bytes:
    return Doc("slateboard/policy/1").text(fields["policy"]).message


def doc_commit(fields: dict[str, Any]) -> bytes:
    doc = Doc("slateboard/commit/1").digest(fields["previous"])
    doc.ints(fields["revision"], fields["commit_time"], fields["policy_version"]).digest(fields["policy"])
    doc.text(fields["commit_id"], fields["principal"]).maybe(fields["session_id"], doc.text)
    doc.text(fields["request_id"])
    doc.maybe(fields["note"], doc.digest).maybe(fields["lineage"], doc.digest).maybe(
        fields["audit"], doc.digest
    )
    doc.many(fields["versions"], doc.digest)
    return doc.many(
        fields["amendments"],
        lambda each: doc.text(each["region"], each["key"]).ints(
            each["version"], each["action"], each["trust"]
        ),
    ).message


def doc_genesis(fields: dict[str, Any]) -> bytes:
    doc = Doc("slateboard/genesis/1").digest(fields["previous"])
    return (
        doc.ints(fields["revision"], fields["board_id"]).text(fields["name"], fields["incarnation"]).message
    )


def doc_audit(fields: dict[str, Any]) -> bytes:
    doc = Doc("slateboard/audit/1").digest(fields["previous"]).ints(fields["number"], fields["time"])
    doc.text(fields["record_id"], fields["principal"], fields["action"])
    return doc.text(fields["board"], fields["target"], fields["detail"]).message


DOC = {
    "content": doc_content,
    "version": doc_version,
    "note": doc_note,
    "policy": doc_policy,
    "commit": doc_commit,
    "genesis": doc_genesis,
    "audit": doc_audit,
}


# By the server


def _annotations(fields: dict[str, Any]) -> Annotations:
    return Annotations(
        **{
            **fields,
            "topics": tuple(fields["topics"]),
            "labels": tuple((name, value) for name, value in fields["labels"]),
            "source_uris": tuple(fields["source_uris"]),
        }
    )


def _record(fields: dict[str, Any]) -> VersionRecord:
    value = fields.get("value")
    return VersionRecord(
        region=Region(fields.get("region", "")),
        key=Key(fields.get("key", "")),
        version=Version(fields.get("version", 1)),
        create_revision=Revision(fields.get("create_revision", 1)),
        mod_revision=Revision(fields.get("mod_revision", 1)),
        op_index=fields.get("op_index", 0),
        commit_time=Micros(fields.get("commit_time", 0)),
        principal=PrincipalId(fields.get("principal", "")),
        session_id=fields.get("session_id"),
        trust=Trust(fields.get("trust", 3)),
        tombstone=Tombstone(fields.get("tombstone", 0)),
        value=None if value is None else bytes.fromhex(value),
        size=fields.get("size", 0),
        content_type=fields.get("content_type", ""),
        kind=Kind(fields.get("kind", 1)),
        expire_time=fields.get("expire_time"),
        annotations=_annotations(fields["annotations"]) if "annotations" in fields else NO_ANNOTATIONS,
        derivations=tuple(
            tuple(SourceRef(*source) for source in sources) for sources in fields.get("derivations", ())
        ),
    )


def _screening(fields: dict[str, Any] | None) -> Screened | None:
    return None if fields is None else Screened(**{**fields, "rules": tuple(fields["rules"])})


def _commit(fields: dict[str, Any]) -> bytes:
    record = CommitRecord(
        Revision(fields["revision"]),
        fields["commit_id"],
        "not hashed",
        PrincipalId(fields["principal"]),
        fields["session_id"],
        fields["request_id"],
        Micros(fields["commit_time"]),
        "hashed as its commitment",
    )
    return integrity.commit_hash(
        bytes.fromhex(fields["previous"]),
        record,
        _optional(fields["note"]),
        PolicyStamp(fields["policy_version"], bytes.fromhex(fields["policy"])),
        [bytes.fromhex(each) for each in fields["versions"]],
        [Amendment(**{**each, "action": Amended(each["action"])}) for each in fields["amendments"]],
        lineage=_optional(fields["lineage"]),
        audit=_optional(fields["audit"]),
    )


def _optional(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


SERVER: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "content": lambda fields: integrity.content_commitment(
        bytes.fromhex(fields["salt"]), _record(fields), _screening(fields["screening"])
    ),
    "version": lambda fields: integrity.version_commitment(bytes.fromhex(fields["content"]), _record(fields)),
    "note": lambda fields: integrity.note_commitment(bytes.fromhex(fields["salt"]), fields["note"]),
    "policy": lambda fields: integrity.policy_digest(fields["policy"]),
    "commit": _commit,
    "genesis": lambda fields: integrity.genesis(
        Incarnation(fields["incarnation"]),
        BoardId(fields["board_id"]),
        fields["name"],
        Revision(fields["revision"]),
        bytes.fromhex(fields["previous"]),
    ),
    "audit": lambda fields: integrity.audit_hash(
        bytes.fromhex(fields["previous"]),
        fields["number"],
        Micros(fields["time"]),
        **{name: fields[name] for name in ("record_id", "principal", "action", "board", "target", "detail")},
    ),
}
CASES = [
    pytest.param(kind, vector, id=f"{kind}-{vector['name']}")
    for kind, vectors in VECTORS.items()
    for vector in vectors
]


@pytest.mark.parametrize(("kind", "vector"), CASES)
def test_the_page_gives_the_published_bytes(kind: str, vector: dict[str, Any]) -> None:
    message = DOC[kind](vector["fields"])
    assert message.hex() == vector["message"]
    assert sha256(message).hexdigest() == vector["hash"]


@pytest.mark.parametrize(("kind", "vector"), CASES)
def test_the_server_gives_the_published_hash(kind: str, vector: dict[str, Any]) -> None:
    assert SERVER[kind](vector["fields"]).hex() == vector["hash"]


@pytest.mark.parametrize("vector", [pytest.param(each, id=each["name"]) for each in CHECKPOINTS])
def test_a_published_checkpoint_is_what_its_key_signs(vector: dict[str, Any]) -> None:
    signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["private_key"])))
    keys = parse_verifier_keys(vector["verifier_key"])
    assert keys == {signer.key_id: signer.public_key}
    checkpoint = verify(vector["text"], keys, signature_is_good)
    assert sign(checkpoint, signer) == vector["text"]


def test_there_are_vectors_of_every_kind() -> None:
    assert VECTORS.keys() == DOC.keys() == SERVER.keys()


# Whatever the fields hold

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
OPTIONAL_TEXTS = st.none() | TEXTS
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
CONTENTS = st.fixed_dictionaries(
    {
        "salt": HEX,
        "value": st.none() | st.binary(max_size=5).map(bytes.hex),
        "size": INTEGERS,
        "content_type": TEXTS,
        "annotations": st.fixed_dictionaries(
            {
                "subject": TEXTS,
                "attribute": TEXTS,
                "topics": st.lists(TEXTS, max_size=3),
                "labels": st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
                "confidence": FLOATS,
                "importance": FLOATS | st.sampled_from([0, 1, -0.0]),
                "valid_from": st.none() | INTEGERS,
                "valid_to": st.none() | INTEGERS,
                "turn": TEXTS,
                "tool": TEXTS,
                "source_uris": st.lists(TEXTS, max_size=3),
                "traceparent": TEXTS,
                "note": TEXTS,
                "derivation_waived": st.booleans(),
            }
        ),
        "screening": st.none()
        | st.fixed_dictionaries(
            {"verdict": INTEGERS, "score": FLOATS, "rules": st.lists(TEXTS, max_size=3), "rule_set": TEXTS}
        ),
    }
)
VERSIONS = st.fixed_dictionaries(
    {
        "content": HEX,
        "version": INTEGERS,
        "create_revision": INTEGERS,
        "mod_revision": INTEGERS,
        "op_index": INTEGERS,
        "commit_time": INTEGERS,
        "trust": st.sampled_from([int(each) for each in Trust]),
        "tombstone": st.sampled_from([int(each) for each in Tombstone]),
        "kind": st.sampled_from([int(each) for each in Kind]),
        "expire_time": st.none() | INTEGERS,
        "region": TEXTS,
        "key": TEXTS,
        "principal": TEXTS,
        "session_id": OPTIONAL_TEXTS,
        "derivations": st.lists(
            st.lists(st.tuples(TEXTS, TEXTS, INTEGERS), max_size=2).map(list), max_size=2
        ),
    }
)
COMMITS = st.fixed_dictionaries(
    {
        "previous": HEX,
        "revision": INTEGERS,
        "commit_time": INTEGERS,
        "policy_version": INTEGERS,
        "policy": HEX,
        "commit_id": TEXTS,
        "principal": TEXTS,
        "session_id": OPTIONAL_TEXTS,
        "request_id": TEXTS,
        "note": st.none() | HEX,
        "lineage": st.none() | HEX,
        "audit": st.none() | HEX,
        "versions": st.lists(HEX, max_size=3),
        "amendments": st.lists(
            st.fixed_dictionaries(
                {
                    "region": TEXTS,
                    "key": TEXTS,
                    "version": INTEGERS,
                    "action": st.sampled_from([1, 2, 3]),
                    "trust": INTEGERS,
                }
            ),
            max_size=2,
        ),
    }
)
FIELDS = (
    st.tuples(st.just("content"), CONTENTS)
    | st.tuples(st.just("version"), VERSIONS)
    | st.tuples(st.just("commit"), COMMITS)
)


@given(FIELDS)
def test_page_and_server_agree_on_any_fields(case: tuple[str, dict[str, Any]]) -> None:
    kind, values = case
    assert SERVER[kind](values) == sha256(DOC[kind](values)).digest()


@given(FIELDS, FIELDS)
def test_no_two_records_have_one_encoding(
    one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]
) -> None:
    if json.dumps(one) == json.dumps(other):
        return
    same = DOC[one[0]](one[1]) == DOC[other[0]](other[1])
    assert not same or one == other  # minus zero equals zero, and 1 equals 1.0


def test_a_border_between_fields_cannot_move() -> None:
    """What one field loses the next one gains: the bytes in a row are the same, the encoding is not."""
    record = _record({"region": "ab", "key": "c", "principal": "d"})
    moved = replace(record, region=Region("a"), key=Key("bc"))
    session = replace(record, principal=PrincipalId("dd"), session_id=SessionId(""))
    assert len({integrity.version_commitment(bytes(32), each) for each in (record, moved, session)}) == 3


def test_every_field_of_a_version_and_commit_is_committed_or_known_not_to_be() -> None:
    """A field added to a record has to be added here: to the format, under a new tag, or to what it leaves out."""
    content = {"value", "size", "content_type", "annotations"}
    stays = {
        "region", "key", "version", "create_revision", "mod_revision", "op_index", "commit_time", "principal",
        "session_id", "trust", "tombstone", "kind", "expire_time", "derivations",
    }  # fmt: skip
    assert {each.name for each in fields(VersionRecord)} == content | stays | {"compacted", "memo"}
    first = next(vector["fields"]["annotations"] for vector in VECTORS["content"])
    assert [each.name for each in fields(Annotations)] == list(first)
    assert {each.name for each in fields(CommitRecord)} == {
        "revision", "commit_id", "principal", "session_id", "request_id", "commit_time", "note",
    } | {"batch_id"}  # fmt: skip


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_salt_or_digest_of_another_length_is_refused(size: int) -> None:
    """They carry no length of their own: one that is too long would take bytes of the next field."""
    bad, good = bytes(size), bytes(32)
    record, policy = _record({}), PolicyStamp(1, bytes(32))
    commit = CommitRecord(Revision(1), "", "", PrincipalId(""), None, "", Micros(0))
    calls: list[Callable[[], bytes]] = [
        lambda: integrity.content_commitment(bad, record),
        lambda: integrity.version_commitment(bad, record),
        lambda: integrity.note_commitment(bad, ""),
        lambda: integrity.genesis(Incarnation("i"), BoardId(1), "n", Revision(0), bad),
        lambda: integrity.commit_hash(bad, commit, None, policy, []),
        lambda: integrity.commit_hash(good, commit, bad, policy, []),
        lambda: integrity.commit_hash(good, commit, None, PolicyStamp(1, bad), []),
        lambda: integrity.commit_hash(good, commit, None, policy, [good, bad]),
        lambda: integrity.commit_hash(good, commit, None, policy, [], lineage=bad),
        lambda: integrity.commit_hash(good, commit, None, policy, [], audit=bad),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="bytes"):
            call()


def test_commitments_of_wrong_lengths_that_add_up_are_refused() -> None:
    commit = CommitRecord(Revision(1), "", "", PrincipalId(""), None, "", Micros(0))
    with pytest.raises(ValueError, match="not 32"):
        integrity.commit_hash(bytes(32), commit, None, PolicyStamp(1, bytes(32)), [bytes(31), bytes(33)])


def test_a_value_cannot_be_guessed_without_its_salt() -> None:
    record = _record({"value": b"yes".hex(), "size": 3})
    one, other = (integrity.content_commitment(bytes([salt]) * 32, record) for salt in (1, 2))
    assert one != other
