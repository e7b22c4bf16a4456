"""The fingerprint of a commit: equal for a retry, different for anything else, and documented byte for byte."""

from __future__ import annotations

import hmac
from dataclasses import fields, replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.commit import (
    Claim,
    CommitItem,
    Delete,
    NewContent,
    Op,
    PrefixGuard,
    SessionClaim,
    VersionGuard,
)
from slateboard_server.domain.entry import Annotations, OpRef
from slateboard_server.domain.fingerprint import canonical_encoding, fingerprint
from slateboard_server.domain.values import (
    FencingToken,
    Incarnation,
    Key,
    Kind,
    LockId,
    Micros,
    PrincipalId,
    Revision,
    SessionId,
    TokenId,
    Tombstone,
    Trust,
    Version,
)
from tests.judging import ABSENT, SHARED, append, at_version, delete, put, source, with_etag
from tests.judging_strategies import commits

SECRET = bytes(range(32))


def _item(*ops: Op) -> CommitItem:
    return CommitItem(PrincipalId("worker"), ops, request_id="r")


FULL = NewContent(
    value=b"\x00\xff",
    content_type="text/plain",
    kind=Kind.SEMANTIC,
    expire_time=Micros(7),
    trust=Trust.USER,
    annotations=Annotations(
        subject="ä",
        attribute="at",
        topics=("t1", "t2"),
        labels=(("l", "v"),),
        confidence=0.25,
        importance=1.0,
        valid_from=Micros(-1),
        valid_to=Micros(2),
        turn="tu",
        tool="to",
        source_uris=("u",),
        traceparent="tp",
        note="no",
        derivation_waived=True,
    ),
    derivations=((source("k", 3), OpRef(0)),),
)
EMPTY_CONTENT = (
    b"b0:s24:application/octet-streami1:1n0:n0:s0:s0:i1:0i1:0s3:1.0s3:0.5n0:n0:s0:s0:i1:0s0:s0:i1:0i1:0"
)
FULL_CONTENT = (
    b"b2:\x00\xffs10:text/plaini1:3i1:7i1:4s2:\xc3\xa4s2:ati1:2s2:t1s2:t2i1:1s1:ls1:vs4:0.25s3:1.0i2:-1i1:2"
    b"s2:tus2:toi1:1s1:us2:tps2:noi1:1i1:1i1:2s6:shareds1:ki1:3s2:opi1:0"
)
VECTORS = [
    (
        _item(append("log/", NewContent(b""))),
        b"s19:slateboard commit 1s0:n0:n0:i1:1s6:shareds6:appends4:log/" + EMPTY_CONTENT + b"i1:0i1:0",
        "append",
    ),
    (
        _item(append("log/", NewContent(b"")), put("plan", at_version(12), FULL)),
        b"s19:slateboard commit 1s0:n0:n0:i1:2s6:shareds6:appends4:log/"
        + EMPTY_CONTENT
        + b"s6:shareds3:puts4:plans7:versioni2:12s0:"
        + FULL_CONTENT
        + b"i1:0i1:0",
        "put with everything",
    ),
    (
        replace(
            _item(Delete(SHARED, Key("plan"), with_etag("e"), "gone")),
            note="n",
            incarnation=Incarnation("inc"),
            session=SessionClaim(SessionId("s"), b"h"),
            guards=(
                VersionGuard(SHARED, Key("g"), Version(4)),
                PrefixGuard(SHARED, "p/", Revision(5)),
            ),
            claims=(Claim(LockId("l"), FencingToken(6)),),
        ),
        (
            b"s19:slateboard commit 1s1:ns3:incs1:si1:1s6:shareds6:deletes4:plans4:etagi1:0s1:es4:gonei1:1"
            b"i1:2s6:shareds7:versions1:gi1:4s6:shareds6:prefixs2:p/i1:5i1:1s1:li1:6"
        ),
        "delete with guards, claim and session",
    ),
]


@pytest.mark.parametrize(("item", "encoding", "name"), VECTORS, ids=[name for _, _, name in VECTORS])
def test_the_encoding_is_what_it_always_was(item: CommitItem, encoding: bytes, name: str) -> None:
    """Stored fingerprints outlive an upgrade: a retry after it must still match. Written out by hand."""
    assert canonical_encoding(item) == encoding
    assert fingerprint(SECRET, item) == hmac.new(SECRET, encoding, sha256).digest()


def test_a_whole_fingerprint_is_fixed_too() -> None:
    """The MAC over the first vector."""
    assert fingerprint(SECRET, VECTORS[0][0]).hex() == (
        "92f4b98f4677b38a5c93ccd82a226314ba40ec67f7376258ecddadb6fe0b8ff2"
    )


def test_a_retry_may_come_with_another_credential_and_after_a_dry_run() -> None:
    """Tokens are rotated; validate_only writes nothing; the principal is part of the row's key."""
    item = VECTORS[2][0]
    same = replace(
        item, token_id=TokenId("t"), validate_only=True, principal=PrincipalId("other"), request_id="x"
    )
    assert canonical_encoding(same) == canonical_encoding(item)


def test_one_number_has_one_encoding() -> None:
    """Clients of other languages send 1 for 1.0, or a negative zero."""
    base = NewContent(b"", annotations=Annotations(confidence=1.0, importance=0.0))
    other = NewContent(b"", annotations=Annotations(confidence=1, importance=-0.0))
    assert canonical_encoding(_item(append("l/", base))) == canonical_encoding(_item(append("l/", other)))
    near = NewContent(b"", annotations=Annotations(confidence=1.0, importance=5e-324))
    assert canonical_encoding(_item(append("l/", base))) != canonical_encoding(_item(append("l/", near)))


CHANGED_CONTENT: dict[str, object] = {
    "value": b"\x00",
    "content_type": "text/html",
    "kind": Kind.EPISODIC,
    "expire_time": None,
    "ttl": 7,
    "trust": None,
    "derivations": ((source("k", 3),), (OpRef(0),)),
}
CHANGED_NOTES: dict[str, object] = {
    "subject": "a",
    "attribute": "",
    "topics": ("t1t2",),
    "labels": (("lv", ""),),
    "confidence": 0.5,
    "importance": 0.5,
    "valid_from": None,
    "valid_to": None,
    "turn": "",
    "tool": "",
    "source_uris": (),
    "traceparent": "",
    "note": "",
    "derivation_waived": False,
}


def test_every_field_of_content_and_annotations_counts() -> None:
    """A field that is added and forgotten here would let another commit pass for a retry."""
    assert {field.name for field in fields(NewContent)} == {*CHANGED_CONTENT, "annotations"}
    assert {field.name for field in fields(Annotations)} == set(CHANGED_NOTES)
    variants = [replace(FULL, **{name: value}) for name, value in CHANGED_CONTENT.items()]  # type: ignore[arg-type]  # by name
    variants += [
        replace(FULL, annotations=replace(FULL.annotations, **{name: value}))  # type: ignore[arg-type]  # by name
        for name, value in CHANGED_NOTES.items()
    ]
    encodings = {canonical_encoding(_item(put("k", ABSENT, content))) for content in [FULL, *variants]}
    assert len(encodings) == 1 + len(variants)


def test_no_text_moves_from_one_field_to_the_next_unseen() -> None:
    """Each field has its length; lists have theirs."""
    twins: list[tuple[Op, Op]] = [
        (
            append("a/", NewContent(b"", ttl=3_000_000)),
            append("a/", NewContent(b"", expire_time=Micros(3_000_000))),
        ),
        (append("a/", NewContent(b"", "bc")), append("a/", NewContent(b"b", "c"))),
        (put("ab", ABSENT), put("a", ABSENT)),
        (delete("a", at_version(1)), delete("a", at_version(11))),
        (
            append("l/", NewContent(b"", annotations=Annotations(topics=("a",), labels=(("b", "c"),)))),
            append("l/", NewContent(b"", annotations=Annotations(topics=("a", "b", "c")))),
        ),
        (
            Delete(SHARED, Key("a"), ABSENT, tombstone=Tombstone.DELETED),
            Delete(SHARED, Key("a"), ABSENT, tombstone=Tombstone.EXPIRED),
        ),
    ]
    for one, other in twins:
        assert canonical_encoding(_item(one)) != canonical_encoding(_item(other))


def _content_of(item: CommitItem) -> CommitItem:
    return replace(
        item, principal=PrincipalId(""), request_id="", token_id=None, fingerprint=b"", validate_only=False
    )


@given(st.lists(commits(), min_size=2, max_size=6))
def test_two_commits_have_one_encoding_only_if_they_are_one(items: list[CommitItem]) -> None:
    """Injective: no two contents share an encoding."""
    encodings = {canonical_encoding(item): _content_of(item) for item in items}
    for item in items:
        assert encodings[canonical_encoding(item)] == _content_of(item)
    assert len(encodings) == len(set(encodings.values()))


def test_fingerprints_of_other_boards_differ() -> None:
    """Keyed: a reader of the database cannot test a guess of a purged value."""
    assert fingerprint(SECRET, VECTORS[0][0]) != fingerprint(SECRET[::-1], VECTORS[0][0])
