"""From the requests that read to what the services take: keys, subtrees, filters, consistency, views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slateboard.v1 import entry_service_pb2, types_pb2
from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.filters import (
    EQUALS,
    GREATER_OR_EQUAL,
    IN,
    LESS,
    NOT_EQUALS,
    FilterSpec,
    parse_filter,
)
from slateboard_server.domain.limits import MAX_FILTERS, MAX_GET_KEYS, MAX_WATCH_PREFIXES
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.values import SECOND, Incarnation, Key, Region, Revision, Trust
from slateboard_server.grpc_api.shape import check_count, check_trust, read_key, read_prefix
from slateboard_server.grpc_api.times import read_duration
from slateboard_server.grpc_api.write_entries import View
from slateboard_server.services.model import LATEST, Consistency, Mode, Want, WatchSpec

_VIEWS: Final = {0: View.FULL, 1: View.KEYS, 2: View.META, 3: View.FULL}
_MODES: Final = {0: Mode.LATEST, 1: Mode.LATEST, 2: Mode.AT_LEAST, 3: Mode.EXACT, 4: Mode.STALE}
_OPERATORS: Final = {0: EQUALS, 1: EQUALS, 2: NOT_EQUALS, 3: IN, 4: GREATER_OR_EQUAL, 5: LESS}
_MIN_PROGRESS: Final = 1
_MAX_PROGRESS: Final = 60

_WANTS: Final[dict[tuple[View, Trust | None], Want]] = {
    (view, trust): Want(LATEST, view is View.FULL, trust, None) for view in View for trust in (None, *Trust)
}
"""What most reads ask for, made once."""


def read_view(number: int) -> View:
    """Read a view; unset: FULL."""
    view = _VIEWS.get(number)
    if view is None:
        raise field_invalid("view", f"there is no view {number}")
    return view


def read_consistency(consistency: types_pb2.Consistency) -> Consistency:
    """Read a consistency. The revision is required with AT_LEAST and EXACT and forbidden otherwise."""
    mode = _MODES.get(consistency.mode)
    if mode is None:
        raise field_invalid("consistency.mode", f"there is no mode {consistency.mode}")
    revision = consistency.revision
    if mode in {Mode.AT_LEAST, Mode.EXACT}:
        if revision < 1:
            raise field_invalid("consistency.revision", f"{mode.value} needs a revision, 1 or more")
    elif revision:
        raise field_invalid("consistency.revision", "must be 0 but with AT_LEAST and EXACT")
    return Consistency(mode, Revision(revision))


def read_want(request: entry_service_pb2.GetRequest | entry_service_pb2.ListRequest) -> tuple[View, Want]:
    """Read what Get and List ask for besides their keys."""
    view = read_view(request.view)
    min_trust = check_trust(request.min_trust, "min_trust")
    if not request.HasField("consistency") and not request.incarnation:
        return view, _WANTS[view, min_trust]
    return view, Want(
        read_consistency(request.consistency),
        view is View.FULL,
        min_trust,
        Incarnation(request.incarnation) if request.incarnation else None,
    )


def read_version_want(request: entry_service_pb2.ListVersionsRequest) -> tuple[View, Want]:
    """Read what ListVersions asks for besides its key."""
    view = read_view(request.view)
    return view, _WANTS[view, check_trust(request.min_trust, "min_trust")]


def read_keys(refs: Sequence[types_pb2.KeyRef]) -> list[tuple[Region, Key]]:
    """Read 1 to 100 keys; DUPLICATE_KEY for one named twice."""
    if not refs:
        raise field_invalid("keys", "1 to 100 keys are required", limit=MAX_GET_KEYS)
    check_count(refs, MAX_GET_KEYS, "keys")
    keys = [read_key(ref, f"keys[{index}]") for index, ref in enumerate(refs)]
    if len(keys) > 1 and len(set(keys)) < len(keys):
        index = next(index for index, place in enumerate(keys) if place in keys[:index])
        region, key = keys[index]
        raise SlateboardError(
            Reason.DUPLICATE_KEY, f"keys[{index}] stands twice in the request", field=f"keys[{index}]",
            region=region, key=key,
        )  # fmt: skip
    return keys


def read_subtree(request: entry_service_pb2.ListRequest) -> tuple[Region, str]:
    """Read the subtree of a List; unset: the whole shared region."""
    return read_prefix(request.prefix, "prefix") if request.HasField("prefix") else (SHARED, "")


def read_filters(filters: Sequence[entry_service_pb2.Filter]) -> tuple[FilterSpec, ...]:
    """Read filters; an unknown field or operator is UNKNOWN_FILTER, never ignored."""
    check_count(filters, MAX_FILTERS, "filters")
    made: list[FilterSpec] = []
    for index, one in enumerate(filters):
        operator = _OPERATORS.get(one.operator, str(one.operator))
        made.append(parse_filter(one.field, operator, one.values, f"filters[{index}]"))
    return tuple(made)


def read_watch(request: entry_service_pb2.WatchRequest, progress_interval: float) -> tuple[View, WatchSpec]:
    """Read what a watch follows; `progress_interval` (s) holds where it names none."""
    check_count(request.prefixes, MAX_WATCH_PREFIXES, "prefixes")
    prefixes = tuple([read_prefix(ref, f"prefixes[{index}]") for index, ref in enumerate(request.prefixes)])
    after: Revision | None = None
    if request.HasField("after_revision"):
        if request.snapshot:
            raise field_invalid("after_revision", "must be unset with snapshot")
        if request.after_revision < 0:
            raise field_invalid("after_revision", "must not be negative")
        after = Revision(request.after_revision)
    view = read_view(request.view)
    return view, WatchSpec(
        prefixes=prefixes or ((SHARED, ""),),
        after=after,
        snapshot=request.snapshot,
        values=view is View.FULL,
        min_trust=check_trust(request.min_trust, "min_trust"),
        progress_interval=_progress(request, progress_interval),
        incarnation=Incarnation(request.incarnation) if request.incarnation else None,
    )


def _progress(request: entry_service_pb2.WatchRequest, default: float) -> float:
    if not request.HasField("progress_interval"):
        return default
    interval = read_duration(request.progress_interval, "progress_interval") / SECOND
    if not _MIN_PROGRESS <= interval <= _MAX_PROGRESS:
        raise field_invalid(
            "progress_interval", f"must be {_MIN_PROGRESS} s to {_MAX_PROGRESS} s", limit=_MAX_PROGRESS
        )
    return interval
