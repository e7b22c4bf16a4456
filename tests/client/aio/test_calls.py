"""What a caller sees of lost replies, refused calls and addresses that are down."""

import uuid
from typing import Any

import pytest

import slateboard.aio
from slateboard import (
    TLS,
    Conflict,
    Invalid,
    OutcomeUnknown,
    RateLimited,
    RetryPolicy,
    Unavailable,
)
from slateboard import _shim_async as shim
from tests.client.fake import FakeServer, Fault

FAST = RetryPolicy(initial_backoff=0.001, max_backoff=0.01, conflict_backoff=0.001)


async def test_a_commit_whose_reply_is_lost_is_made_once(server: FakeServer) -> None:
    """jetcd#1444, etcd#18424: a retry after UNAVAILABLE must not apply twice."""
    server.fail("Commit", Fault(after=True))
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        board = client.board("b")
        entry = await board.put("k", 1, absent=True)
        assert (entry.version, entry.mod_revision, server.boards["b"].revision) == (1, 1, 1)
        assert (board.stats.replayed, board.stats.retries, board.stats.commits) == (1, 1, 1)
    first, second = server.boards["b"].requests
    assert first == second


async def test_a_read_is_sent_again_until_a_server_answers(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    server.fail("Get", *[Fault() for _ in range(5)])
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        assert (await client.board("b").get("k")).value == 1
    assert server.calls["Get"] == 6


async def test_one_address_is_given_time_between_attempts(server: FakeServer) -> None:
    server.fail("Get", Fault(), Fault())
    policy = RetryPolicy(initial_backoff=0.1, jitter=0)
    async with slateboard.aio.connect(server.address, retry=policy) as client:
        began = shim.monotonic()
        await client.board("b").get("k", None)
        assert shim.monotonic() - began >= 0.3


async def test_attempts_are_bounded(server: FakeServer) -> None:
    server.fail("Get", *[Fault() for _ in range(9)])
    policy = RetryPolicy(attempts=3, initial_backoff=0.001)
    async with slateboard.aio.connect(server.address, retry=policy) as client:
        with pytest.raises(Unavailable):
            await client.board("b").get("k")
    assert server.calls["Get"] == 3


async def test_an_unknown_outcome_is_looked_up(server: FakeServer) -> None:
    """The last attempt was applied, its reply lost: the log of commits knows."""
    server.fail("Commit", Fault(), Fault(after=True))
    policy = RetryPolicy(attempts=2, initial_backoff=0.001)
    async with slateboard.aio.connect(server.address, retry=policy) as client:
        result = await client.board("b").commit([slateboard.Put("k", 1, absent=True)])
    assert (result.replayed, result.revision, result.results[0].version) == (True, 1, 1)
    assert server.calls["GetCommit"] == 1


async def test_an_outcome_that_stays_unknown_says_so_and_names_the_request(server: FakeServer) -> None:
    server.fail("Commit", Fault(), Fault())
    server.fail("GetCommit", Fault(), Fault())
    policy = RetryPolicy(attempts=2, initial_backoff=0.001)
    async with slateboard.aio.connect(server.address, retry=policy) as client:
        board = client.board("b")
        with pytest.raises(OutcomeUnknown) as caught:
            await board.put("k", 1, absent=True)
        assert str(uuid.UUID(caught.value.request_id)) == caught.value.request_id
        assert isinstance(caught.value.cause, Unavailable)
        again = await board.put("k", 1, absent=True, request_id=caught.value.request_id)
        assert again.version == 1


async def test_a_hung_server_does_not_hold_a_call_past_its_timeout(server: FakeServer) -> None:
    server.hanging.add("Commit")
    async with slateboard.aio.connect(server.address, timeout=0.3) as client:
        with pytest.raises(OutcomeUnknown):
            await client.board("b").put("k", 1, absent=True)


async def test_a_write_that_never_left_is_no_mystery(server: FakeServer) -> None:
    """With no server there, nothing can have happened."""
    server.stop()
    policy = RetryPolicy(attempts=2, initial_backoff=0.001)
    async with slateboard.aio.connect(server.address, retry=policy) as client:
        with pytest.raises(Unavailable) as caught:
            await client.board("b").put("k", 1, absent=True)
    assert type(caught.value) is Unavailable
    assert not caught.value.sent


async def test_rate_limited_waits_as_asked(server: FakeServer) -> None:
    fault = Fault("RESOURCE_EXHAUSTED", "RATE_LIMITED")
    fault.retry_after = 0.02
    server.fail("Commit", fault)
    async with slateboard.aio.connect(server.address, retry=FAST) as client:
        assert (await client.board("b").put("k", 1, absent=True)).version == 1
    server.fail("Commit", *[fault] * 3)
    once = RetryPolicy(attempts=2, initial_backoff=0.001)
    async with slateboard.aio.connect(server.address, retry=once) as client:
        with pytest.raises(RateLimited) as caught:
            await client.board("b").put("k", 1, exists=True)
    assert caught.value.retry_after is not None


async def test_an_address_that_is_down_is_not_noticed(server: FakeServer) -> None:
    down = FakeServer().start()
    down.stop()
    server.put("b", "k", b"1")
    policy = RetryPolicy(attempts=2, initial_backoff=60, max_backoff=60)
    addresses = [down.address, f"localhost:{server.port}"]
    async with slateboard.aio.connect(addresses, retry=policy, timeout=10) as client:
        for _ in range(4):
            assert (await client.board("b").get("k")).value == 1


async def test_calls_go_round_robin_over_the_addresses(server: FakeServer) -> None:
    other = FakeServer().start()
    try:
        async with slateboard.aio.connect(f"{server.address},{other.address}") as client:
            for _ in range(6):
                await client.board("b").get("k", None)
        assert (server.calls["Get"], other.calls["Get"]) == (3, 3)
    finally:
        other.stop()


async def test_a_conflict_explains_itself_and_is_not_retried(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        read = await board.get("k")
        server.put("b", "k", b"2")
        with pytest.raises(Conflict) as caught:
            await board.put("k", 3, expect=read)
        assert board.stats.conflicts == 1
    error = caught.value
    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == {"k": 2}
    assert error.violations[0].current_principal == "peer"
    assert error.conflict_id == "x-2"
    assert server.calls["Commit"] == 1


async def test_large_reads_come_whole_and_from_one_revision(server: FakeServer) -> None:
    """What did not fit into a reply is read at the same revision, whatever happens meanwhile."""
    for number in range(150):
        server.put("b", f"k{number}", b'"' + b"x" * 100 + b'"')
    server.get_bytes = 2_000
    async with slateboard.aio.connect(server.address) as client:
        found = await client.board("b").get_many([*(f"k{n}" for n in range(150)), "nothing"])
    assert list(found) == [f"k{n}" for n in range(150)]
    assert found.absent == ("nothing",)
    assert found.revision == 150
    assert server.calls["Get"] > 5


async def test_a_list_shows_one_revision(server: FakeServer) -> None:
    for number in range(5):
        server.put("b", f"p/{number}", b"1")
    async with slateboard.aio.connect(server.address) as client:
        pages = client.board("b").list("p/", page_size=2)
        keys = []
        async for entry in pages:
            keys.append(entry.key)
            server.put("b", f"p/{9 - len(keys)}x", b"1")
        assert keys == [f"p/{number}" for number in range(5)]
        assert pages.revision == 5


async def test_entries_of_an_earlier_life_never_match(server: FakeServer) -> None:
    server.put("b", "k", b"1")
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        old = await board.get("k")
        server.boards["b"].incarnation = "life-2"
        with pytest.raises(slateboard.Reincarnated):
            await board.put("k", 2, expect=old)
        with pytest.raises(slateboard.Reincarnated):
            await board.put("other", 2, absent=True, unchanged=[old])
        fresh = await board.get("k")
        assert (await board.put("k", 2, expect=fresh)).version == 2


async def test_the_private_region_is_the_principals_own(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        mine = client.board("b").private
        await mine.put("k", "mine", absent=True)
        assert (await mine.get("k")).region == "private/ann"
        assert await client.board("b").get("k", None) is None
    assert server.calls["WhoAmI"] == 1


async def test_values_come_back_as_they_were(server: FakeServer) -> None:
    async with slateboard.aio.connect(server.address) as client:
        board = client.board("b")
        values: list[Any] = ["text 中", b"\x00\xff", {"b": 1, "a": [1.0, True, None, "é"]}, 7, [], "", b""]
        for number, value in enumerate(values):
            entry = await board.put(f"k{number}", value, absent=True)
            read = await board.get(f"k{number}")
            assert read.value == entry.value == value
            assert type(read.value) is type(value)


async def test_the_token_travels_in_the_metadata_and_nowhere_else(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    server.fail("Get", Fault("UNAUTHENTICATED", "TOKEN_INVALID"))
    async with slateboard.aio.connect(server.address, token="s3cret") as client:
        with pytest.raises(slateboard.Unauthenticated) as caught:
            await client.board("b").get("k")
        assert "s3cret" not in repr(client) + repr(client.board("b")) + str(caught.value) + repr(
            caught.value.cause
        )
    assert server.metadata[-1]["authorization"] == "Bearer s3cret"
    assert "s3cret" not in caplog.text


def test_a_token_does_not_leave_the_machine_in_the_clear() -> None:
    with pytest.raises(Invalid, match="in the clear"):
        slateboard.aio.connect("board.example:7400", token="s3cret")
    slateboard.aio.connect("board.example:7400", token="s3cret", insecure=True)
    slateboard.aio.connect("board.example:7400", token="s3cret", tls=TLS())
    slateboard.aio.connect("board.example:7400")


async def test_a_closed_client_says_so(server: FakeServer) -> None:
    client = slateboard.aio.connect(server.address)
    await client.board("b").get("k", None)
    await client.close()
    await client.close()
    with pytest.raises(Invalid, match="closed"):
        await client.board("b").get("k")
