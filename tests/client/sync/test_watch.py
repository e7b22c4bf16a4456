# Made from aio/test_watch.py by tools/async_to_sync.py; do not edit.
# ruff: noqa: SIM117 -- nested blocks show what happens inside of what
"""A watch skips nothing and repeats nothing, whatever happens to its streams."""

import pytest

import slateboard
from slateboard import Batch, Compacted, RetryPolicy, SnapshotPage
from slateboard import _shim_sync as shim
from tests.client.fake import FakeServer, Fault

FAST = RetryPolicy(initial_backoff=0.001, max_backoff=0.01)


def take(watch: slateboard.Watch, count: int) -> list[Batch]:
    batches = []
    for batch in watch:
        batches.append(batch)
        if len(batches) == count:
            return batches
    return batches


def test_batches_come_in_order_and_each_once_over_cut_streams(server: FakeServer) -> None:
    """neotoma#1464: what happened while the subscriber was away must not be lost."""
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").watch("p/", after=0) as watch:
            seen = []
            for round_ in range(4):
                for number in range(3):
                    server.put("b", f"p/{number}", str(round_).encode())
                    server.put("b", "elsewhere", b"1")
                seen += take(watch, 3)
                server.cut_watches()
            assert [batch.revision for batch in seen] == list(range(1, 25, 2))
            assert [batch.entries[0].value for batch in seen] == [n for n in range(4) for _ in range(3)]
            assert watch.revision is not None


def test_three_restarts_of_the_server_are_three_pauses(server: FakeServer) -> None:
    """python-etcd3#377, #997: after one error the watch never worked again."""
    with slateboard.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        with board.watch("p/", after=0) as watch:
            for round_ in range(1, 4):
                board.put(f"p/{round_}", round_, absent=True)
                assert [batch.entries[0].value for batch in take(watch, 1)] == [round_]
                server.stop()
                server.start()
            assert (board.get("p/1")).value == 1


def test_a_split_batch_comes_whole_even_if_cut_between_its_parts(server: FakeServer) -> None:
    server.split_batches, server.cut_after_part = True, 2
    with slateboard.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        board.commit([slateboard.Put(f"p/{n}", n, absent=True) for n in range(5)])
        board.put("p/5", 5, absent=True)
        with board.watch("p/", after=0) as watch:
            first, second = take(watch, 2)
        assert [entry.value for entry in first.entries] == [0, 1, 2, 3, 4]
        assert [entry.value for entry in second.entries] == [5]
        assert board.stats.reconnects == 2


def test_a_server_that_goes_away_is_left(server: FakeServer) -> None:
    other = FakeServer().start()
    other.boards = server.boards
    try:
        with slateboard.connect([server.address, other.address], retry=FAST) as client:
            with client.board("b").watch(after=0) as watch:
                server.put("b", "k", b"1")
                assert [batch.revision for batch in take(watch, 1)] == [1]
                for fake in (server, other):
                    fake.put("b", "k", b"1")
                    fake.send_going_away()
                assert [batch.revision for batch in take(watch, 2)] == [2, 3]
    finally:
        other.stop()


def test_a_slow_reader_goes_on_where_it_was(server: FakeServer) -> None:
    server.fail("Watch", Fault("RESOURCE_EXHAUSTED", "WATCH_TOO_SLOW", last_revision="0"))
    server.put("b", "k", b"1")
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").watch(after=0) as watch:
            assert (take(watch, 1))[0].revision == 1


def test_from_now_on_means_from_when_the_context_was_entered(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").watch() as watch:
            server.put("b", "k", b"2")
            server.fail("Watch", Fault(), Fault())
            assert (take(watch, 1))[0].revision == 2


def test_a_snapshot_is_followed_without_a_gap(server: FakeServer) -> None:
    for number in range(4):
        server.put("b", f"p/{number}", b"1")
    server.cut_after_part = 1
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").watch("p/", snapshot=True) as watch:
            pages = take(watch, 3)
            server.put("b", "p/9", b"1")
            follow = (take(watch, 1))[0]
    assert all(isinstance(page, SnapshotPage) for page in pages)
    # The first stream was cut after its first page: the second begins anew, and says so.
    assert [page.first for page in pages if isinstance(page, SnapshotPage)] == [True, True, False]
    assert [entry.key for page in pages[1:] for entry in page.entries] == [f"p/{n}" for n in range(4)]
    assert (follow.revision, isinstance(follow, SnapshotPage)) == (5, False)


def test_changes_that_were_compacted_away_are_an_error_or_a_new_snapshot(server: FakeServer) -> None:
    """posthog#101104, etcd#8668: never a silent jump forward."""
    for number in range(5):
        server.put("b", "k", str(number).encode())
    server.boards["b"].oldest = 4
    with slateboard.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        with pytest.raises(Compacted) as caught:
            with board.watch(after=1) as watch:
                take(watch, 1)
        assert caught.value.oldest_revision == 4
        with board.watch(after=1, resnapshot=True) as watch:
            page = (take(watch, 1))[0]
        assert isinstance(page, SnapshotPage)
        assert page.first
        assert page.entries[0].value == 4


def test_another_life_of_the_board_is_an_error_or_a_new_snapshot(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    with slateboard.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        with board.watch(after=0) as watch, board.watch(after=0, resnapshot=True) as patient:
            take(watch, 1)
            take(patient, 1)
            server.boards["b"].incarnation = "life-2"
            server.cut_watches()
            with pytest.raises(slateboard.Reincarnated):
                take(watch, 1)
            page = (take(patient, 1))[0]
            assert isinstance(page, SnapshotPage)
            assert (page.incarnation, patient.incarnation) == ("life-2", "life-2")


def test_a_lost_server_becomes_an_error_in_the_end(server: FakeServer) -> None:
    with slateboard.connect(server.address, retry=FAST) as client:
        with client.board("b").watch(after=0, reconnect_for=0.05) as watch:
            server.stop()
            with pytest.raises(slateboard.Unavailable):
                take(watch, 1)


def test_progress_is_a_tick_when_asked_for(server: FakeServer) -> None:
    server.put("b", "elsewhere", b"1")
    with slateboard.connect(server.address) as client:
        with client.board("b").watch("p/", after=0, progress=True) as watch:
            tick = (take(watch, 1))[0]
    assert (tick.revision, tick.entries) == (1, ())


def test_closing_wakes_a_reader_and_leaves_nothing(server: FakeServer) -> None:
    """python-etcd3#1227: close must be clean, also while a read waits."""
    with slateboard.connect(server.address) as client:
        watch = client.board("b").watch(after=0)
        ended = shim.Event()

        def follow() -> None:
            assert take(watch, 1) == []
            ended.set()

        reader = shim.Task(follow, "reader", shim.Scope())
        shim.wait(shim.Event(), 0.0)
        while server.watching == 0:
            shim.sleep(0.005)
        watch.close()
        assert shim.wait(ended, 10)
        reader.stop()
        assert take(watch, 1) == []
        while server.watching:
            shim.sleep(0.005)
