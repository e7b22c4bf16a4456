"""Hostile and mistaken requests: each is refused with a reason that names the limit, and nothing is written."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from slateboard.v1 import commit_pb2, entry_service_pb2, types_pb2
from tests.grpc.conftest import Api, append, delete, put, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def keyed(key: str) -> commit_pb2.Op:
    return put(key)


BAD_KEYS = {
    "": None,
    "/a": None,
    "a/": None,
    "a//b": None,
    "a/../b": None,
    "./a": None,
    "a\0b": None,
    "a\nb": None,
    "a\u200bb": None,
    "e\u0301": None,
    "/".join("x" * 17): "16",
    "k" * 513: "512",
    "\u65e5" * 171: "512",
}


@pytest.mark.parametrize("key", list(BAD_KEYS), ids=lambda key: ascii(key)[:24])
async def test_a_malformed_key_is_refused_naming_field_and_limit(api: Api, key: str) -> None:
    """`..`, NUL, control and zero-width characters, empty segments, other normal forms, 17 segments, 513 bytes."""
    for call in (api.commit(put(key)), api.commit(put("ok"), guards=[_guard(key)]), api.get(key)):
        said = await refused(call)
        assert (said.code, said.reason) == (INVALID, "KEY_INVALID"), said
        assert "key" in said.metadata["field"]
        assert said.metadata.get("limit") == BAD_KEYS[key]
    assert (await api.list()).header.revision == 0


def _guard(key: str) -> commit_pb2.Guard:
    return commit_pb2.Guard(version=commit_pb2.VersionGuard(key=types_pb2.KeyRef(key=key), version=1))


@pytest.mark.parametrize("prefix", ["plan", "plan//", "/", "../", "a\0/"])
async def test_a_malformed_prefix_is_refused(api: Api, prefix: str) -> None:
    """A prefix ends with '/', or is empty."""
    assert (await refused(api.list(prefix))).reason == "KEY_INVALID"
    assert (await refused(api.commit(append(prefix)))).reason == "KEY_INVALID"
    stream = api.watch(prefixes=[types_pb2.PrefixRef(prefix=prefix)])
    assert (await refused(stream.read())).reason == "KEY_INVALID"


@pytest.mark.parametrize("region", ["private", "private/", "private/a/b", "Shared", "public", "private/a b"])
async def test_an_unknown_region_is_refused(api: Api, region: str) -> None:
    """Regions are `shared` and `private/<principal>`; a typo is not a new place."""
    assert (await refused(api.commit(put("k", region=region)))).reason == "KEY_INVALID"
    assert (await refused(api.get("k", region=region))).reason == "KEY_INVALID"


def _commit_cases() -> dict[str, tuple[Callable[[Api], Any], str, str | None]]:
    now = Timestamp(seconds=1)
    bad_time = Timestamp(seconds=300_000_000_000)
    return {
        "129 ops": (lambda api: api.commit(*(put(f"k{n}") for n in range(129))), "TOO_MANY", "128"),
        "no ops": (lambda api: api.commit(), "FIELD_INVALID", None),
        "an empty op": (lambda api: api.commit(commit_pb2.Op()), "FIELD_INVALID", None),
        "257 guards": (lambda api: api.commit(put("k"), guards=[_guard("g")] * 257), "TOO_MANY", "256"),
        "17 claims": (
            lambda api: api.commit(put("k"), claims=[commit_pb2.Claim(lock_id="l", fencing_token=1)] * 17),
            "TOO_MANY",
            "16",
        ),
        "a duplicate key": (lambda api: api.commit(put("k"), delete("k", 1)), "DUPLICATE_KEY", None),
        "an oversized value": (lambda api: api.commit(put("k", b"x" * 1_572_864)), "TOO_LARGE", "1048576"),
        "no precondition": (
            lambda api: api.commit(commit_pb2.Op(put=commit_pb2.PutOp(key=types_pb2.KeyRef(key="k")))),
            "PRECONDITION_REQUIRED",
            None,
        ),
        "a precondition that is false": (
            lambda api: api.commit(_with(commit_pb2.Precondition(must_not_exist=False))),
            "FIELD_INVALID",
            None,
        ),
        "version 0": (
            lambda api: api.commit(_with(commit_pb2.Precondition(version_equals=0))),
            "FIELD_INVALID",
            None,
        ),
        "a negative version": (
            lambda api: api.commit(_with(commit_pb2.Precondition(version_equals=-1))),
            "FIELD_INVALID",
            None,
        ),
        "an empty etag": (
            lambda api: api.commit(_with(commit_pb2.Precondition(etag_equals=""))),
            "ETAG_INVALID",
            None,
        ),
        "a garbage etag": (
            lambda api: api.commit(_with(commit_pb2.Precondition(etag_equals="x"))),
            "ETAG_INVALID",
            None,
        ),
        "no request id": (lambda api: api.commit(put("k"), request_id=""), "REQUEST_ID_INVALID", None),
        "a request id that is no UUID": (
            lambda api: api.commit(put("k"), request_id="1"),
            "REQUEST_ID_INVALID",
            None,
        ),
        "JSON that is none": (
            lambda api: api.commit(put("k", b"{", content_type="application/json")),
            "FIELD_INVALID",
            None,
        ),
        "JSON with NaN": (
            lambda api: api.commit(put("k", b"[NaN]", content_type="application/json")),
            "FIELD_INVALID",
            None,
        ),
        "text that is not UTF-8": (
            lambda api: api.commit(put("k", b"\xff", content_type="text/plain")),
            "FIELD_INVALID",
            None,
        ),
        "an unknown trust": (lambda api: api.commit(put("k", trust=99)), "FIELD_INVALID", None),
        "an unknown kind": (lambda api: api.commit(put("k", kind=99)), "FIELD_INVALID", None),
        "confidence above 1": (lambda api: api.commit(put("k", confidence=1.5)), "FIELD_INVALID", None),
        "confidence NaN": (lambda api: api.commit(put("k", confidence=float("nan"))), "FIELD_INVALID", None),
        "a time out of range": (
            lambda api: api.commit(put("k", expire_time=bad_time)),
            "FIELD_INVALID",
            None,
        ),
        "an expiry in the past": (lambda api: api.commit(put("k", expire_time=now)), "FIELD_INVALID", None),
        "validity that ends before it begins": (
            lambda api: api.commit(put("k", valid_from=Timestamp(seconds=5), valid_to=now)),
            "FIELD_INVALID",
            None,
        ),
        "a long note": (lambda api: api.commit(put("k"), note="n" * 1_025), "TOO_LARGE", "1024"),
        "a reserved key": (lambda api: api.commit(put("_slate/x")), "DENIED", None),
        "a guard without a version": (
            lambda api: api.commit(
                put("k"),
                guards=[commit_pb2.Guard(version=commit_pb2.VersionGuard(key=types_pb2.KeyRef(key="g")))],
            ),
            "FIELD_INVALID",
            None,
        ),
        "a claim on no lock": (
            lambda api: api.commit(put("k"), claims=[commit_pb2.Claim(lock_id="l-1", fencing_token=1)]),
            "LOCK_LOST",
            None,
        ),
        "a session token of nobody": (
            lambda api: api.commit(put("k"), session_token="s.x"),
            "SESSION_NOT_FOUND",
            None,
        ),
        "any_state where the policy forbids it": (
            lambda api: api.commit(put("k", version=None)),
            "POLICY_FORBIDS",
            None,
        ),
    }


def _with(condition: commit_pb2.Precondition) -> commit_pb2.Op:
    op = put("k")
    op.put.precondition.CopyFrom(condition)
    return op


@pytest.mark.parametrize("case", list(_commit_cases()))
async def test_a_bad_commit_is_refused_and_writes_nothing(api: Api, case: str) -> None:
    """Every mistake has its reason; limits are named; no revision is used up (dapr#2320, T19: etags never mean 'any')."""
    call, reason, limit = _commit_cases()[case]
    said = await refused(call(api))
    assert said.reason == reason, said
    if limit is not None:
        assert said.metadata["limit"] == limit
    if reason in {"TOO_MANY", "FIELD_INVALID", "TOO_LARGE", "PRECONDITION_REQUIRED", "ETAG_INVALID"}:
        assert said.code is INVALID
        assert said.metadata["field"]
    assert said.text.isprintable()
    assert (await api.list()).header.revision == 0


@pytest.mark.parametrize(
    ("field", "values", "operator", "reason"),
    [
        ("nonsense", ["x"], 1, "UNKNOWN_FILTER"),
        ("", ["x"], 1, "UNKNOWN_FILTER"),
        ("subject", ["x"], 4, "UNKNOWN_FILTER"),
        ("subject", ["x"], 99, "UNKNOWN_FILTER"),
        ("kind", ["no-such-kind"], 1, "FIELD_INVALID"),
        ("commit_time", ["2026-01-01T00:00:00"], 4, "FIELD_INVALID"),
        ("subject", [], 1, "FIELD_INVALID"),
    ],
)
async def test_an_unknown_filter_is_an_error_never_ignored(
    api: Api, field: str, values: list[str], operator: int, reason: str
) -> None:
    """mem0#6423 (M07): a filter that is dropped would widen what is returned. Naive times are refused too."""
    wanted = entry_service_pb2.Filter(field=field, values=values, operator=operator)  # type: ignore[arg-type]
    said = await refused(api.list(filters=[wanted]))
    assert (said.code, said.reason) == (INVALID, reason)
    assert said.metadata["field"].startswith("filters[0]")


@pytest.mark.parametrize("size", [-1, 1_001])
async def test_page_sizes_are_bounded(api: Api, size: int) -> None:
    """The limit is named."""
    said = await refused(api.list(page_size=size))
    assert (said.reason, said.metadata["limit"]) == ("FIELD_INVALID", "1000")


async def test_101_keys_and_duplicate_keys_are_refused_by_get(api: Api) -> None:
    """Get takes 1 to 100 keys, each once."""
    assert (await refused(api.get(*(f"k{n}" for n in range(101))))).metadata["limit"] == "100"
    assert (await refused(api.get())).reason == "FIELD_INVALID"
    assert (await refused(api.get("a", "a"))).reason == "DUPLICATE_KEY"


async def test_bytes_that_are_no_message_are_refused(api: Api) -> None:
    """Bad UTF-8 in a text field, and garbage, are INVALID_ARGUMENT, not an internal error."""
    path = "/slateboard.v1.EntryService/Get"
    call: Any = api.channel.unary_unary(path)
    for raw in (b"\x0a\x02\xff\xfe", b"\xff\xff\xff\xff"):
        said = await refused(call(raw, metadata=api.auth, timeout=10))
        assert said.code is INVALID


async def test_a_message_above_the_limit_is_refused_with_the_limit(api: Api) -> None:
    """grpc.io#1254 (T43): 3.5 MiB a request; four values of 1 MiB do not fit."""
    said = await refused(api.commit(*(put(f"k{n}", b"x" * (1 << 20)) for n in range(4))))
    assert said.code in {INVALID, grpc.StatusCode.RESOURCE_EXHAUSTED}
    ok = await api.commit(*(put(f"k{n}", b"x" * (1 << 20)) for n in range(3)))
    assert ok.header.revision == 1


async def test_a_garbled_page_token_is_refused(api: Api) -> None:
    """It never starts over in silence."""
    assert (await refused(api.list(page_token="xyz"))).reason == "PAGE_TOKEN_INVALID"


async def test_a_board_that_does_not_exist_says_so(api: Api) -> None:
    """On every call."""
    api.board = f"no-{uuid.uuid4().hex[:8]}"
    for call in (api.get("k"), api.list(), api.commit(put("k"))):
        said = await refused(call)
        assert (said.code, said.reason) == (grpc.StatusCode.NOT_FOUND, "BOARD_NOT_FOUND")
    assert (await refused(api.watch().read())).reason == "BOARD_NOT_FOUND"


@pytest.mark.parametrize("token", ["", "x", "slate_x_y", "slate_" + "a" * 16 + "_" + "b" * 43])
async def test_a_missing_or_wrong_token_is_unauthenticated(api: Api, token: str) -> None:
    """Unknown, garbled and missing credentials are told apart only by whether there was one."""
    api.token = token
    said = await refused(api.get("k"))
    assert said.code is grpc.StatusCode.UNAUTHENTICATED
    assert said.reason in {"TOKEN_INVALID", "TOKEN_MISSING"}
    call = api.entries.Get(entry_service_pb2.GetRequest(board=api.board), timeout=10)
    assert (await refused(call)).reason == "TOKEN_MISSING"


async def test_refusals_do_not_disturb_others(api: Api) -> None:
    """A stream of bad commits between good ones changes nothing for the good ones."""
    good = [api.commit(put(f"good/{n}")) for n in range(30)]
    bad = [refused(api.commit(put("a//b"))) for _ in range(30)]
    answers, _ = await asyncio.gather(asyncio.gather(*good), asyncio.gather(*bad))
    revisions = sorted(answer.header.revision for answer in answers)
    assert revisions == list(range(1, 31))
