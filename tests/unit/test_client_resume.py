"""The position of a watch: whatever streams do, what comes out is the log."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard import Batch, Reincarnated, SnapshotPage
from slateboard._resume import Position
from slateboard.v1 import entry_service_pb2, types_pb2

LOG = {
    revision: [f"{revision}.{part}" for part in range(1 + revision % 3)] for revision in (1, 3, 4, 8, 9, 12)
}


def header(revision: int, incarnation: str = "life") -> types_pb2.ResponseHeader:
    return types_pb2.ResponseHeader(revision=revision, incarnation=incarnation)


def batch(revision: int, keys: list[str], complete: bool = True) -> entry_service_pb2.WatchResponse:
    made = entry_service_pb2.WatchBatch(revision=revision, continues=not complete)
    for key in keys:
        made.entries.add(key=key, version=1)
    return entry_service_pb2.WatchResponse(header=header(revision), batch=made)


def progress(revision: int) -> entry_service_pb2.WatchResponse:
    return entry_service_pb2.WatchResponse(
        header=header(revision), progress=entry_service_pb2.WatchProgress()
    )


def snapshot(revision: int, keys: list[str], last: bool) -> entry_service_pb2.WatchResponse:
    page = entry_service_pb2.WatchSnapshot(last=last)
    for key in keys:
        page.entries.add(key=key, version=1)
    return entry_service_pb2.WatchResponse(header=header(revision), snapshot=page)


def position(**fields: Any) -> Position:
    return Position("b", **{"after": 0, "snapshot": False, "progress": False, "incarnation": "", **fields})


def stream(after: int) -> list[entry_service_pb2.WatchResponse]:
    """What a server sends from a revision on: parts, whole batches, progress between them."""
    sent = []
    for revision, keys in LOG.items():
        if revision > after:
            sent += [batch(revision, [key], complete=key == keys[-1]) for key in keys]
            sent.append(progress(revision))
    return sent


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=8))
def test_every_revision_comes_once_whole_and_in_order_wherever_streams_break(
    cuts: list[tuple[int, int]],
) -> None:
    """Each cut ends a stream after some messages; the next server may send some revisions again."""
    at = position()
    seen: list[Batch] = []
    for length, overlap in [*cuts, (100, 0)]:
        assert at.revision is not None
        for message in stream(at.revision - overlap)[:length]:
            made = at.feed(message)
            if made is not None:
                seen.append(made)
        at.broken()
    assert [made.revision for made in seen] == list(LOG)
    assert [[entry.key for entry in made.entries] for made in seen] == list(LOG.values())


def test_progress_moves_the_position_but_never_past_a_batch_in_parts() -> None:
    """etcd#15220: progress ahead of events would lose them at the next reconnect."""
    at = position()
    at.feed(progress(5))
    assert at.revision == 5
    at.feed(batch(6, ["a"], complete=False))
    at.feed(progress(9))
    assert at.revision == 5
    at.broken()
    made = at.feed(batch(6, ["a", "b"]))
    assert made is not None
    assert [entry.key for entry in made.entries] == ["a", "b"]
    at.feed(progress(3))
    assert at.revision == 6


def test_a_snapshot_counts_only_when_it_is_whole() -> None:
    at = position(after=None, snapshot=True)
    first = at.feed(snapshot(7, ["a"], last=False))
    assert isinstance(first, SnapshotPage)
    assert (first.first, first.last, at.revision, at.snapshot_due) == (True, False, None, True)
    at.broken()
    again = at.feed(snapshot(8, ["a", "b"], last=True))
    assert isinstance(again, SnapshotPage)
    assert (again.first, again.last, at.revision, at.snapshot_due) == (True, True, 8, False)


def test_another_life_of_the_board_is_never_taken_for_the_same() -> None:
    at = position()
    at.feed(progress(5))
    other = progress(2)
    other.header.incarnation = "other"
    with pytest.raises(Reincarnated):
        at.feed(other)
    at.restart("other")
    assert (at.revision, at.snapshot_due) == (None, True)


def test_an_event_of_a_newer_server_is_passed_over() -> None:
    assert position().feed(entry_service_pb2.WatchResponse(header=header(1))) is None
