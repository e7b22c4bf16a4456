"""From a CommitRequest to a CommitItem: what is refused, where, and by which limit."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from slateboard.v1 import commit_pb2, entry_service_pb2, types_pb2
from slateboard_server.domain.commit import Append, CommitItem, Delete, Expect, Put
from slateboard_server.domain.entry import OpRef, SourceRef
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import SECOND, Kind, TokenId, Trust
from slateboard_server.grpc_api.read_commit import read_commit
from slateboard_server.grpc_api.shape import check_no_unknown, check_request_id
from slateboard_server.grpc_api.times import read_duration, read_time
from slateboard_server.services.auth import hash_secret
from slateboard_server.services.model import Caller
from tests.judging import WORKER, a_principal

CALLER = Caller(a_principal(WORKER), TokenId("t-1"))
REQUEST_ID = "0F1E2D3C-4B5A-6978-8796-A5B4C3D2E1F0"
Key = types_pb2.KeyRef
Source = types_pb2.Source


def put_op(key: str = "k", **content: Any) -> commit_pb2.Op:
    return commit_pb2.Op(
        put=commit_pb2.PutOp(
            key=Key(key=key),
            precondition=commit_pb2.Precondition(must_not_exist=True),
            content=types_pb2.Content(**content),
        )
    )


def with_provenance(**provenance: Any) -> commit_pb2.Op:
    return put_op(provenance=types_pb2.Provenance(**provenance))


def with_sources(*sources: types_pb2.Source) -> commit_pb2.Op:
    return with_provenance(derivations=[types_pb2.Derivation(sources=sources)])


def request(*ops: commit_pb2.Op, **more: Any) -> entry_service_pb2.CommitRequest:
    return entry_service_pb2.CommitRequest(
        board="team", ops=ops or [put_op()], **{"request_id": REQUEST_ID, **more}
    )


async def read(*ops: commit_pb2.Op, **more: Any) -> CommitItem:
    return await read_commit(CALLER, request(*ops, **more))


async def refused(*ops: commit_pb2.Op, **more: Any) -> SlateboardError:
    with pytest.raises(SlateboardError) as caught:
        await read(*ops, **more)
    return caught.value


def guard(version: int | None = 1) -> commit_pb2.Guard:
    return commit_pb2.Guard(version=commit_pb2.VersionGuard(key=Key(key="g"), version=version))


def claim(lock_id: str = "l", token: int = 1) -> commit_pb2.Claim:
    return commit_pb2.Claim(lock_id=lock_id, fencing_token=token)


CONTENT = "ops[0].put.content"
PROVENANCE = f"{CONTENT}.provenance"
AT_THEIR_LIMITS = {
    "ops": [put_op(f"k{n}") for n in range(128)],
    "value": [put_op(value=b"x" * (1 << 20))],
    "content_type": [put_op(content_type="a/" + "b" * 126)],
    "subject": [put_op(subject="\u00e4" * 128)],
    "attribute": [put_op(attribute="a" * 256)],
    "topics": [put_op(topics=["t" * 128] * 32)],
    "labels": [put_op(labels={f"{n:0128}": "v" * 128 for n in range(32)})],
    "turn and tool": [with_provenance(turn="t" * 256, tool="t" * 256, note="n" * 1_024)],
    "source_uris": [with_provenance(source_uris=["u" * 2_048] * 32)],
    "derivations": [
        with_provenance(derivations=[types_pb2.Derivation(sources=[Source(key="s", version=1)])] * 32)
    ],
    "sources": [with_sources(*[Source(key="s", version=1)] * 256)],
    "shares": [put_op(confidence=0.0, importance=1.0)],
}
PAST_THEIR_LIMITS: dict[str, tuple[list[commit_pb2.Op], Reason, str, int]] = {
    "ops": ([put_op(f"k{n}") for n in range(129)], Reason.TOO_MANY, "ops", 128),
    "value": ([put_op(value=b"x" * ((1 << 20) + 1))], Reason.TOO_LARGE, f"{CONTENT}.value", 1 << 20),
    "content_type": (
        [put_op(content_type="a/" + "b" * 127)],
        Reason.TOO_LARGE,
        f"{CONTENT}.content_type",
        128,
    ),
    "subject": ([put_op(subject="\u00e4" * 129)], Reason.TOO_LARGE, f"{CONTENT}.subject", 256),
    "attribute": ([put_op(attribute="a" * 257)], Reason.TOO_LARGE, f"{CONTENT}.attribute", 256),
    "topics": ([put_op(topics=["t"] * 33)], Reason.TOO_MANY, f"{CONTENT}.topics", 32),
    "a topic": ([put_op(topics=["t", "t" * 129])], Reason.TOO_LARGE, f"{CONTENT}.topics[1]", 128),
    "labels": (
        [put_op(labels={str(n): "" for n in range(33)})],
        Reason.TOO_MANY,
        f"{CONTENT}.labels",
        32,
    ),
    "a label's name": ([put_op(labels={"n" * 129: ""})], Reason.TOO_LARGE, f"{CONTENT}.labels", 128),
    "a label": ([put_op(labels={"n": "v" * 129})], Reason.TOO_LARGE, f"{CONTENT}.labels['n']", 128),
    "turn": ([with_provenance(turn="t" * 257)], Reason.TOO_LARGE, f"{PROVENANCE}.turn", 256),
    "tool": ([with_provenance(tool="t" * 257)], Reason.TOO_LARGE, f"{PROVENANCE}.tool", 256),
    "note": ([with_provenance(note="n" * 1_025)], Reason.TOO_LARGE, f"{PROVENANCE}.note", 1_024),
    "source_uris": (
        [with_provenance(source_uris=["u"] * 33)],
        Reason.TOO_MANY,
        f"{PROVENANCE}.source_uris",
        32,
    ),
    "a uri": (
        [with_provenance(source_uris=["u" * 2_049])],
        Reason.TOO_LARGE,
        f"{PROVENANCE}.source_uris[0]",
        2_048,
    ),
    "derivations": (
        [with_provenance(derivations=[types_pb2.Derivation(sources=[Source(key="s", version=1)])] * 33)],
        Reason.TOO_MANY,
        f"{PROVENANCE}.derivations",
        32,
    ),
    "sources": (
        [with_sources(*[Source(key="s", version=1)] * 257)],
        Reason.TOO_MANY,
        f"{PROVENANCE}.derivations[0].sources",
        256,
    ),
}


@pytest.mark.parametrize("case", list(AT_THEIR_LIMITS))
async def test_what_is_just_within_a_limit_is_read(case: str) -> None:
    """Limits are inclusive, and count bytes."""
    assert (await read(*AT_THEIR_LIMITS[case])).ops


@pytest.mark.parametrize("case", list(PAST_THEIR_LIMITS))
async def test_what_passes_a_limit_is_refused_naming_field_and_limit(case: str) -> None:
    """One more than allowed."""
    ops, reason, field, limit = PAST_THEIR_LIMITS[case]
    error = await refused(*ops)
    assert (error.reason, error.metadata["field"], error.metadata["limit"]) == (reason, field, str(limit))


async def test_guards_and_claims_have_limits_of_their_own() -> None:
    """256 and 16."""
    item = await read(guards=[guard()] * 256, claims=[claim()] * 16)
    assert (len(item.guards), len(item.claims)) == (256, 16)
    for error, limit in (
        (await refused(guards=[guard()] * 257), "256"),
        (await refused(claims=[claim()] * 17), "16"),
    ):
        assert (error.reason, error.metadata["limit"]) == (Reason.TOO_MANY, limit)


WRONG: dict[str, tuple[commit_pb2.Op, str]] = {
    "an op of no kind": (commit_pb2.Op(), "ops[0]"),
    "a put without content": (
        commit_pb2.Op(
            put=commit_pb2.PutOp(key=Key(key="k"), precondition=commit_pb2.Precondition(must_not_exist=True))
        ),
        CONTENT,
    ),
    "JSON that is cut": (put_op(value=b"{", content_type="application/json"), f"{CONTENT}.value"),
    "empty JSON": (put_op(content_type="application/json"), f"{CONTENT}.value"),
    "JSON with NaN": (put_op(value=b"[NaN]", content_type="application/json"), f"{CONTENT}.value"),
    "JSON with -Infinity": (
        put_op(value=b"-Infinity", content_type="application/json; charset=utf-8"),
        f"{CONTENT}.value",
    ),
    "JSON that is not UTF-8": (put_op(value=b'"\xff"', content_type="application/json"), f"{CONTENT}.value"),
    "JSON nested without end": (
        put_op(value=b"[" * 200_000, content_type="application/json"),
        f"{CONTENT}.value",
    ),
    "text that is not UTF-8": (put_op(value=b"\xc3", content_type="text/plain"), f"{CONTENT}.value"),
    "a content type with a line break": (put_op(content_type="text/\nplain"), f"{CONTENT}.content_type"),
    "an unknown kind": (put_op(kind=6), f"{CONTENT}.kind"),
    "a negative kind": (put_op(kind=-1), f"{CONTENT}.kind"),
    "an unknown trust": (put_op(trust=7), f"{CONTENT}.trust"),
    "confidence above 1": (put_op(confidence=1.0000001), f"{CONTENT}.confidence"),
    "confidence below 0": (put_op(confidence=-0.1), f"{CONTENT}.confidence"),
    "confidence that is no number": (put_op(confidence=float("nan")), f"{CONTENT}.confidence"),
    "importance without end": (put_op(importance=float("inf")), f"{CONTENT}.importance"),
    "a label without a name": (put_op(labels={"": "v"}), f"{CONTENT}.labels"),
    "validity of no time at all": (
        put_op(valid_from=Timestamp(seconds=5), valid_to=Timestamp(seconds=5)),
        f"{CONTENT}.valid_to",
    ),
    "expiry after the year 9999": (
        put_op(expire_time=Timestamp(seconds=253_402_300_800)),
        f"{CONTENT}.expire_time",
    ),
    "nanos above a second": (put_op(valid_from=Timestamp(nanos=1_000_000_000)), f"{CONTENT}.valid_from"),
    "a ttl below a second": (put_op(ttl=Duration(nanos=999_999_999)), f"{CONTENT}.ttl"),
    "a negative ttl": (put_op(ttl=Duration(seconds=-1)), f"{CONTENT}.ttl"),
    "a ttl beside an expire_time": (
        put_op(ttl=Duration(seconds=5), expire_time=Timestamp(seconds=5)),
        f"{CONTENT}.ttl",
    ),
    "a source without a version": (
        with_sources(Source(key="s")),
        f"{PROVENANCE}.derivations[0].sources[0].version",
    ),
    "a source that is both": (
        with_sources(Source(key="s", version=1, op=0)),
        f"{PROVENANCE}.derivations[0].sources[0]",
    ),
    "a derivation from nothing": (with_sources(), f"{PROVENANCE}.derivations[0].sources"),
}


@pytest.mark.parametrize("case", list(WRONG))
async def test_what_no_content_can_be_is_refused_at_its_field(case: str) -> None:
    """FIELD_INVALID with the path of the field."""
    op, field = WRONG[case]
    error = await refused(op)
    assert (error.reason, error.metadata["field"]) == (Reason.FIELD_INVALID, field)


async def test_large_json_is_judged_like_small_json() -> None:
    """Above 64 KiB it is looked at in a thread; the verdict is the same."""
    padding = b'"' + b"x" * (70 << 10) + b'"'
    assert (await read(put_op(value=b"[" + padding + b"]", content_type="application/json"))).ops
    error = await refused(put_op(value=b"[" + padding, content_type="application/json"))
    assert error.reason is Reason.FIELD_INVALID


async def test_a_number_of_many_digits_is_json() -> None:
    """It is not read as a number: that would take quadratic time, or fail past 4,300 digits."""
    assert (await read(put_op(value=b"9" * 60_000, content_type="application/json"))).ops


PRECONDITIONS: list[tuple[commit_pb2.Precondition, Reason]] = [
    (commit_pb2.Precondition(), Reason.PRECONDITION_REQUIRED),
    (commit_pb2.Precondition(must_not_exist=False), Reason.FIELD_INVALID),
    (commit_pb2.Precondition(must_exist=False), Reason.FIELD_INVALID),
    (commit_pb2.Precondition(any_state=False), Reason.FIELD_INVALID),
    (commit_pb2.Precondition(version_equals=0), Reason.FIELD_INVALID),
    (commit_pb2.Precondition(version_equals=-3), Reason.FIELD_INVALID),
    (commit_pb2.Precondition(etag_equals=""), Reason.ETAG_INVALID),
    (commit_pb2.Precondition(etag_equals="*"), Reason.ETAG_INVALID),
]


@pytest.mark.parametrize(("condition", "reason"), PRECONDITIONS)
async def test_a_precondition_that_says_nothing_never_means_no_condition(
    condition: commit_pb2.Precondition, reason: Reason
) -> None:
    """For puts and for deletes."""
    op = put_op()
    op.put.precondition.CopyFrom(condition)
    remove = commit_pb2.Op(delete=commit_pb2.DeleteOp(key=Key(key="k"), precondition=condition))
    for error, kind in ((await refused(op), "put"), (await refused(remove), "delete")):
        assert error.reason is reason
        assert error.metadata["field"].startswith(f"ops[0].{kind}.precondition")


async def test_guards_and_claims_without_their_number_are_refused() -> None:
    """A guard's version 0 is a statement; its absence is a mistake."""
    assert (await read(guards=[guard(0)])).guards
    for error, field in (
        (await refused(guards=[guard(None)]), "guards[0].version.version"),
        (await refused(guards=[guard(), guard(-1)]), "guards[1].version.version"),
        (await refused(guards=[commit_pb2.Guard()]), "guards[0]"),
        (await refused(claims=[claim("")]), "claims[0].lock_id"),
        (await refused(claims=[claim(token=0)]), "claims[0].fencing_token"),
    ):
        assert (error.reason, error.metadata["field"]) == (Reason.FIELD_INVALID, field)


@pytest.mark.parametrize(
    "text", ["", "1", "x" * 36, "{" + REQUEST_ID[:34] + "}", REQUEST_ID.replace("-", "")]
)
async def test_a_request_id_is_a_uuid(text: str) -> None:
    """Missing, short, braced or without its hyphens: another spelling would be another request."""
    assert (await refused(request_id=text)).reason is Reason.REQUEST_ID_INVALID


async def test_two_spellings_of_a_request_id_are_one_request() -> None:
    """Canonical: lower case."""
    assert (await read()).request_id == REQUEST_ID.lower()
    made = str(uuid.uuid4())
    assert check_request_id(made.upper()) == made


async def test_only_a_dry_run_needs_no_request_id() -> None:
    """A garbled one is refused there too."""
    assert (await read(request_id="", validate_only=True)).request_id == ""
    error = await refused(request_id="x", validate_only=True)
    assert error.reason is Reason.REQUEST_ID_INVALID


@pytest.mark.parametrize("token", ["x", ".x", "x.", "s." + "x" * 300])
async def test_a_garbled_session_token_names_no_session(token: str) -> None:
    """Nothing is looked up for it."""
    assert (await refused(session_token=token)).reason is Reason.SESSION_NOT_FOUND


async def test_a_commit_is_read_whole() -> None:
    """Defaults where nothing is said; otherwise what was said."""
    rich = put_op(
        "a",
        value=b'{"a": 1}',
        content_type="application/json",
        kind=types_pb2.KIND_SEMANTIC,
        trust=types_pb2.TRUST_EXTERNAL,
        labels={"b": "2", "a": "1"},
        confidence=0.25,
        expire_time=Timestamp(seconds=9, nanos=1_999),
        provenance=types_pb2.Provenance(
            principal="somebody",
            session_id="somebody's",
            derivations=[types_pb2.Derivation(sources=[Source(key="s", version=3), Source(op=0)])],
        ),
    )
    remove = commit_pb2.DeleteOp(
        key=Key(region="private/worker", key="d"),
        precondition=commit_pb2.Precondition(version_equals=4),
        note="old",
    )
    append = commit_pb2.AppendOp(prefix=types_pb2.PrefixRef(prefix="log/"), content=types_pb2.Content())
    item = await read(
        rich, commit_pb2.Op(delete=remove), commit_pb2.Op(append=append), session_token="sid.secret", note="n"
    )
    first, second, third = item.ops
    assert isinstance(first, Put)
    assert isinstance(second, Delete)
    assert isinstance(third, Append)
    assert (first.content.kind, first.content.trust) == (Kind.SEMANTIC, Trust.EXTERNAL)
    assert first.content.expire_time == 9 * SECOND + 1
    assert first.content.annotations.labels == (("a", "1"), ("b", "2"))
    assert (first.content.annotations.confidence, first.content.annotations.importance) == (0.25, 0.5)
    [[source, earlier]] = first.content.derivations
    assert isinstance(source, SourceRef)
    assert earlier == OpRef(0)
    assert (second.region, second.precondition.expect, second.precondition.version) == (
        "private/worker",
        Expect.VERSION,
        4,
    )
    assert (third.content.content_type, third.content.kind) == ("application/octet-stream", Kind.WORKING)
    assert item.session is not None
    assert (item.session.session_id, item.session.secret_hash) == ("sid", hash_secret("secret"))
    assert (item.principal, item.token_id, item.note) == (WORKER, "t-1", "n")


def test_a_condition_of_a_newer_client_is_refused_not_dropped() -> None:
    """Unknown fields, also nested ones, in a request that narrows down what is read."""
    known = entry_service_pb2.ListRequest(board="b", filters=[entry_service_pb2.Filter(field="kind")])
    check_no_unknown(known)
    # Field 1000, a varint: within the request, and within its filter.
    extra = b"\xc0\x3e\x01"
    inner = entry_service_pb2.Filter.FromString(known.filters[0].SerializeToString() + extra)
    for newer in (
        entry_service_pb2.ListRequest.FromString(known.SerializeToString() + extra),
        entry_service_pb2.ListRequest(board="b", filters=[inner]),
    ):
        with pytest.raises(SlateboardError) as caught:
            check_no_unknown(newer)
        assert caught.value.reason is Reason.FIELD_INVALID


def test_the_years_1_and_9999_are_the_edges_of_time() -> None:
    """Both included; what is finer than a microsecond is cut off towards the past."""
    first, last = Timestamp(seconds=-62_135_596_800), Timestamp(seconds=253_402_300_799, nanos=999_999_999)
    assert read_time(first, "t") == -62_135_596_800 * SECOND
    assert read_time(last, "t") == 253_402_300_800 * SECOND - 1
    for bad in (
        Timestamp(seconds=first.seconds - 1),
        Timestamp(seconds=last.seconds + 1),
        Timestamp(nanos=-1),
    ):
        with pytest.raises(SlateboardError, match=r"^t: "):
            read_time(bad, "t")


def test_a_duration_is_never_negative() -> None:
    """Nor longer than protobuf's own bound."""
    assert read_duration(Duration(seconds=2, nanos=5_000), "d") == 2 * SECOND + 5
    for bad in (Duration(seconds=-1), Duration(nanos=-1), Duration(seconds=315_576_000_001)):
        with pytest.raises(SlateboardError, match=r"^d: "):
            read_duration(bad, "d")
