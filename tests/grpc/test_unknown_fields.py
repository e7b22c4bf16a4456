"""A read that is narrowed down by something this server does not know is refused, never widened in silence."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from slateboard.v1 import entry_service_pb2 as entries
from slateboard.v1 import provenance_service_pb2 as provenance
from slateboard.v1 import types_pb2
from tests.grpc.conftest import Api, put, refused

# Field 1000, a string: what a condition of a later version of the API looks like to this one.
UNKNOWN = b"\xc2\x3e\x06secret"
KEY = types_pb2.KeyRef(key="a")


@pytest.mark.parametrize(
    "request_of",
    [
        lambda board: entries.GetRequest(board=board, keys=[KEY]),
        lambda board: entries.ListRequest(board=board),
        lambda board: entries.ListVersionsRequest(board=board, key=KEY),
        lambda board: entries.DiffRequest(board=board, key=KEY),
        lambda board: entries.ListCommitsRequest(board=board),
        lambda board: entries.ListConflictsRequest(board=board),
        lambda board: provenance.TraceRequest(board=board, key=KEY),
        lambda board: provenance.ImpactRequest(board=board, key=KEY),
    ],
    ids=["Get", "List", "ListVersions", "Diff", "ListCommits", "ListConflicts", "Trace", "Impact"],
)
async def test_a_condition_of_a_later_api_is_an_error_never_ignored(
    api: Api, request_of: Callable[[str], entries.GetRequest]
) -> None:
    """mem0#6423, mem0#3887 (M07): a filter that is dropped returns what the caller asked not to see."""
    await api.commit(put("a"))
    request = request_of(api.board)
    name = request.DESCRIPTOR.name.removesuffix("Request")
    service = "ProvenanceService" if name in {"Trace", "Impact"} else "EntryService"
    call: Any = api.channel.unary_unary(f"/slateboard.v1.{service}/{name}")
    raw = request.SerializeToString()
    assert await call(raw, metadata=api.auth, timeout=10)
    said = await refused(call(raw + UNKNOWN, metadata=api.auth, timeout=10))
    assert (said.code, said.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")


async def test_an_unknown_part_inside_a_filter_or_prefix_is_an_error_too(api: Api) -> None:
    """Also deeper in the message, and for a watch."""
    one = entries.Filter(field="kind", values=["working"])
    one.MergeFromString(UNKNOWN)
    said = await refused(api.list(filters=[one]))
    assert said.reason == "FIELD_INVALID"
    prefix = types_pb2.PrefixRef(prefix="a/")
    prefix.MergeFromString(UNKNOWN)
    said = await refused(api.watch(prefixes=[prefix]).read())
    assert said.reason == "FIELD_INVALID"
