# ruff: noqa: SIM117 -- nested blocks show what happens inside of what
"""Update, transactions: nobody's change is lost, and what was read is recorded."""

import itertools
from typing import Any

import pytest

import slateboard.aio
from slateboard import Conflict, Invalid, NotFound, Overlap, RetryPolicy
from slateboard import _shim_async as shim
from tests.client.fake import FakeServer

FAST = RetryPolicy(conflict_backoff=0.001, max_conflict_backoff=0.01)


def interfere(server: FakeServer, key: str, *values: bytes) -> None:
    """Just before each of the next commits, somebody else writes."""
    pending = list(values)

    def write(_: Any) -> None:
        if pending:
            server.put("b", key, pending.pop(0))

    server.before_commit = write


async def test_changes_in_different_places_merge_by_themselves(server: FakeServer) -> None:
    server.put("b", "report", b'{"de": 1, "fr": 1}')
    interfere(server, "report", b'{"de": 1, "fr": 2}')
    calls = []
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        board = client.board("b")

        def change(report: Any) -> Any:
            calls.append(report)
            return {**report, "de": 5}

        entry = await board.update("report", change)
        assert entry.value == {"de": 5, "fr": 2}
        assert (entry.merged, entry.conflicts, entry.reran, entry.version) == (True, 1, 0, 3)
        assert len(calls) == 1
        assert (board.stats.conflicts, board.stats.merged, board.stats.commits) == (1, 1, 1)
    provenance = server.boards["b"].requests[-1].ops[0].put.content.provenance
    assert [source.version for source in provenance.derivations[0].sources] == [1, 2]


async def test_two_who_insist_on_one_place_conflict(server: FakeServer) -> None:
    """Two plans, both "confirmed": the second must not win without a trace."""
    server.put("b", "plan", b'{"step": 1}')
    interfere(server, "plan", b'{"step": 2}')
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        with pytest.raises(Conflict) as caught:
            await client.board("b").update("plan", lambda plan: {**plan, "step": 3})
        assert caught.value.overlaps == ("/step",)
        assert (await client.board("b").get("plan")).value == {"step": 2}


async def test_a_stale_body_never_takes_back_what_another_wrote(server: FakeServer) -> None:
    """ironclaw#7776: the retry reads again, then writes the body it had before."""
    server.put("b", "doc", b'{"n": 1, "items": [1]}')
    interfere(server, "doc", b'{"n": 2, "items": [1, 2]}')
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        with pytest.raises(Conflict):
            await client.board("b").update("doc", lambda doc: {"n": doc["n"] + 1, "items": [1]})


async def test_overlaps_go_to_the_callback(server: FakeServer) -> None:
    server.put("b", "plan", b'{"step": 1, "by": "x"}')
    interfere(server, "plan", b'{"step": 2, "by": "y"}', b'{"step": 7, "by": "y"}')
    seen: list[Overlap] = []

    def settle(overlap: Overlap) -> Any:
        seen.append(overlap)
        return {**overlap.merged, "step": max(overlap.theirs["step"], overlap.mine["step"])}

    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        entry = await client.board("b").update("plan", lambda plan: {**plan, "step": 3}, on_conflict=settle)
        assert (entry.value, entry.conflicts) == ({"step": 7, "by": "y"}, 2)
    assert seen[0].pointers == ("/step",)
    assert (seen[0].base["step"], seen[0].theirs["step"], seen[0].mine["step"]) == (1, 2, 3)
    assert seen[0].entry is not None
    assert seen[0].entry.provenance.principal == "peer"


async def test_increments_add_up_although_they_look_alike(server: FakeServer) -> None:
    """Both made 5 a 6: that is not agreement."""
    server.put("b", "n", b"5")
    interfere(server, "n", b"6")
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        entry = await client.board("b").update("n", lambda n: n + 1)
        assert (entry.value, entry.reran) == (7, 1)


async def test_a_list_that_both_changed_is_computed_again(server: FakeServer) -> None:
    server.put("b", "l", b"[1]")
    interfere(server, "l", b"[1,2]")
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        entry = await client.board("b").update("l", lambda items: [*items, 3])
        assert entry.value == [1, 2, 3]
        server.put("b", "l", b"[1]")
        interfere(server, "l", b"[1,2]")
        with pytest.raises(Conflict):
            await client.board("b").update("l", lambda _: [1, 3])


async def test_many_conflicts_end_in_the_retry_policy(server: FakeServer) -> None:
    """ksonnet#787: never for ever, and each time from a fresh read."""
    numbers = itertools.count(1)
    server.put("b", "n", b"0")

    def write(_: Any) -> None:
        server.put("b", "n", str(next(numbers)).encode())

    server.before_commit = write
    policy = RetryPolicy(conflict_attempts=4, conflict_backoff=0.001)
    async with slateboard.aio.connect(server.address, retry=policy) as client:
        with pytest.raises(Conflict):
            await client.board("b").update("n", lambda n: n + 1)
    assert server.calls["Commit"] == 4
    versions = [request.ops[0].put.precondition.version_equals for request in server.boards["b"].requests]
    assert versions == [1, 2, 3, 4]
    ids = {request.request_id for request in server.boards["b"].requests}
    assert len(ids) == 4


async def test_fifty_contenders_all_get_through(server: FakeServer) -> None:
    """oh-my-claudecode#1160: N writers, every acknowledged increment is there at the end."""
    server.put("b", "n", b"0")
    async with slateboard.aio.connect(server.address, timeout=30) as client:

        async def increment() -> None:
            await client.board("b").update("n", lambda n: n + 1)

        tasks = [shim.Task(increment, f"contender-{number}", shim.Scope()) for number in range(50)]
        for task in tasks:
            await task.join()
        assert (await client.board("b").get("n")).value == 50


async def test_an_absent_key_needs_a_default_and_is_created_once(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        with pytest.raises(NotFound):
            await board.update("k", lambda value: value)
        interfere(server, "k", b'{"fr": 2}')
        entry = await board.update("k", lambda value: {**value, "de": 1}, {})
        assert entry.value == {"fr": 2, "de": 1}


async def test_a_key_deleted_meanwhile_is_not_brought_back_by_accident(server: FakeServer) -> None:
    server.put("b", "k", b'{"a": 1}')
    removed: list[int] = []

    def remove(_: Any) -> None:
        if not removed:
            removed.append(server.remove("b", "k"))

    server.before_commit = remove
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        with pytest.raises(Conflict):
            await client.board("b").update("k", lambda value: {**value, "b": 2})


async def test_what_the_function_raises_is_raised_and_nothing_is_written(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    async with slateboard.aio.connect(server.address) as client:
        with pytest.raises(ZeroDivisionError):
            await client.board("b").update("k", lambda value: value / 0)
        with pytest.raises(Invalid, match="returned None"):
            server.put("b", "d", b"{}")
            await client.board("b").update("d", lambda value: value.update(a=1))
    assert server.calls["Commit"] == 0


async def test_no_change_is_no_commit(server: FakeServer) -> None:
    server.put("b", "k", b'{"a": 1}')
    async with slateboard.aio.connect(server.address) as client:
        entry = await client.board("b").update("k", lambda value: {"a": 1})
        assert (entry.changed, entry.version) == (False, 1)
    assert server.calls["Commit"] == 0


async def test_update_keeps_what_an_entry_says_beside_its_value(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        await board.put(
            "k",
            "# a",
            absent=True,
            content_type="text/markdown",
            kind=slateboard.Kind.SEMANTIC,
            labels={"l": "1"},
            topics=["t"],
        )
        entry = await board.update("k", lambda text: text + "!", subject="s")
        read = await board.get("k")
        for seen in (entry, read):
            assert (seen.content_type, seen.kind, seen.labels) == (
                "text/markdown",
                slateboard.Kind.SEMANTIC,
                {"l": "1"},
            )
            assert (seen.topics, seen.subject, seen.value) == (("t",), "s", "# a!")


async def test_sources_can_be_added_or_waived(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    server.put("b", "other", b"1")
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        other = await board.get("other")
        await board.update("k", lambda n: n + 1, derived_from=[other])
        await board.update("k", lambda n: n + 1, derived_from=[])
        await board.put("plain", 1, absent=True)
    added, waived, plain = (request.ops[0].put.content.provenance for request in server.boards["b"].requests)
    assert [source.key for source in added.derivations[0].sources] == ["k", "other"]
    assert (len(waived.derivations), waived.derivation_waived) == (0, True)
    assert (len(plain.derivations), plain.derivation_waived) == (0, False)


async def test_a_guard_that_changed_is_not_merged_away(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    server.put("b", "plan", b"1")
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        plan = await board.get("plan")
        server.put("b", "plan", b"2")
        with pytest.raises(Conflict) as caught:
            await board.update("k", lambda n: n + 1, unchanged=[plan])
        assert caught.value.violations[0].guard


async def test_a_transaction_checks_what_it_read_and_records_it(server: FakeServer) -> None:
    server.put("b", "a", b"1")
    server.put("b", "p/1", b"1")
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        async with board.transaction() as tx:
            a = await tx.get("a")
            assert await tx.get("none", None) is None
            below = await tx.list("p/")
            await tx.put("a", a.value + 1)
            assert (await tx.get("a")).value == 2
            await tx.put("a", (await tx.get("a")).value + 1)
            await tx.put("none", len(below))
            await tx.append("log/", "done")
        assert tx.result is not None
        assert [result.version for result in tx.result.results] == [2, 1, 1]
    request = server.boards["b"].requests[0]
    assert [guard.WhichOneof("kind") for guard in request.guards] == ["prefix"]
    assert request.ops[0].put.precondition.version_equals == 1
    assert request.ops[1].put.precondition.must_not_exist
    keys = [source.key for source in request.ops[2].append.content.provenance.derivations[0].sources]
    assert keys == ["a", "p/1"]


async def test_a_transaction_that_raises_writes_nothing(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        with pytest.raises(KeyError):
            async with board.transaction() as tx:
                await tx.put("k", 1, absent=True)
                raise KeyError
        with pytest.raises(Invalid, match="exactly one"):
            async with board.transaction() as tx:
                await tx.put("k", 1)
    assert server.calls["Commit"] == 0


async def test_a_phantom_is_noticed(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        await board.put("x", 1, absent=True)
        with pytest.raises(Conflict) as caught:
            async with board.transaction() as tx:
                assert await tx.list("claims/") == []
                server.put("b", "claims/1", b"1")
                await tx.put("free", True, absent=True)
        assert caught.value.reason == "GUARD_CHANGED"


async def test_reads_of_a_transaction_show_one_revision(server: FakeServer) -> None:
    server.put("b", "a", b"1")
    server.put("b", "z", b"1")
    async with slateboard.aio.connect(server.address) as client:
        async with client.board("b").transaction() as tx:
            await tx.get("a")
            server.put("b", "z", b"2")
            assert (await tx.get("z")).value == 1


async def test_run_goes_again_until_nobody_interferes(server: FakeServer) -> None:
    server.put("b", "n", b"0")
    interfere(server, "n", b"10", b"20")
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        board = client.board("b")

        async def step(tx: slateboard.aio.Transaction) -> int:
            entry = await tx.get("n")
            await tx.put("n", entry.value + 1)
            return int(entry.value)

        assert await board.run(step) == 20
        assert (await board.get("n")).value == 21
        assert board.stats.conflicts == 2
