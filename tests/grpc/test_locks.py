"""LockService from outside, on one embedded server."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator

import grpc
import grpc.aio
import pytest

from slateboard.v1 import (
    admin_service_pb2,
    board_service_pb2,
    commit_pb2,
    entry_service_pb2,
    error_reason_pb2,
    lock_service_pb2,
    policy_pb2,
    session_service_pb2,
)
from tests.fix_server import MakeServer, Server
from tests.grpc.conftest import Api, NewApi, append, claim, put, refused

WAITING = lock_service_pb2.LOCK_STATE_WAITING
HELD = lock_service_pb2.LOCK_STATE_HELD
SHARED = lock_service_pb2.LOCK_MODE_SHARED
ABORTED = grpc.StatusCode.ABORTED
LOST = {"LOCK_LOST", "LOCK_EXPIRED"}


@pytest.fixture(scope="module", params=["embedded", "server"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Everything holds in both modes: leases in the process over SQLite, leases in etcd over PostgreSQL."""
    folder = tmp_path_factory.mktemp("locks") / "data"
    if request.param == "embedded":
        made = Server(folder)
        dsn = None
    else:
        cluster, database = request.getfixturevalue("etcd"), request.getfixturevalue("postgres")
        dsn = database.create_database()
        env = {
            "SLATEBOARD_ETCD_ENDPOINTS": json.dumps(cluster.endpoints),
            "SLATEBOARD_ETCD_PREFIX": f"{uuid.uuid4().hex}/",
        }
        made = Server(folder, database_url=dsn, env=env)
    try:
        yield made.start()
    finally:
        made.stop()
        if dsn is not None:
            request.getfixturevalue("postgres").drop_database(dsn)


async def until(check: Callable[[], Awaitable[bool]], seconds: float = 15.0) -> float:
    """Wait until something holds; returns how long that took."""
    begin = time.monotonic()
    while not await check():
        assert time.monotonic() - begin < seconds, "it never came to hold"
        await asyncio.sleep(0.02)
    return time.monotonic() - begin


async def waits(api: Api, count: int = 1) -> bool:
    """Tell whether so many wait on the board."""
    return len(await api.list_waiters()) == count


# What a lock keeps out


async def test_a_locked_key_is_written_only_with_the_claim(api: Api, join: NewApi) -> None:
    """Mandatory by default: who does not hold the lock is refused, and told who does."""
    other = await join()
    lock = await api.acquire("plan/current", purpose="replan")
    assert (lock.state, lock.fencing_token > 0) == (HELD, True)

    for writer in (other, api):
        refusal = await refused(writer.commit(put("plan/current")))
        assert (refusal.code, refusal.reason) == (ABORTED, "KEY_LOCKED")
        assert refusal.conflict is not None
        [violation] = refusal.conflict.violations
        assert (violation.lock_id, violation.lock_holder) == (lock.lock_id, lock.principal)
        assert refusal.retry_ms is not None
    assert "claim" in (await refused(api.commit(put("plan/current")))).text

    await other.commit(put("plan/other"))  # a neighbour is free
    answer = await api.commit(put("plan/current"), claims=[claim(lock)])
    assert answer.results[0].version == 1


async def test_a_prefix_covers_what_lies_below_it_and_appends_too(api: Api, join: NewApi) -> None:
    """`plan/` covers plan/a and what is appended below, not `planner` nor `plan` itself."""
    other = await join()
    lock = await api.acquire("plan/")
    for op in (put("plan/a"), put("plan/deep/er"), append("plan/"), append("plan/log/")):
        assert (await refused(other.commit(op))).reason == "KEY_LOCKED"
    await other.commit(put("planner"), put("plan"), append("plans/"))
    await api.commit(put("plan/a"), append("plan/log/"), claims=[claim(lock)])


async def test_conflicts_of_locks_are_kept_beside_those_of_versions(api: Api, join: NewApi) -> None:
    """ListConflicts shows who ran into which lock."""
    other = await join()
    lock = await api.acquire("k")
    await refused(other.commit(put("k")))
    listed = await api.entries.ListConflicts(
        entry_service_pb2.ListConflictsRequest(board=api.board), metadata=api.auth
    )
    [conflict] = listed.conflicts
    assert conflict.violations[0].reason == "KEY_LOCKED"
    assert conflict.violations[0].lock_id == lock.lock_id


async def test_under_a_shared_lock_nobody_writes(api: Api, join: NewApi) -> None:
    """Its holders read a still picture; not even they write, claim or not."""
    other = await join()
    mine = await api.acquire("data/", mode=SHARED)
    theirs = await other.acquire("data/", mode=SHARED)
    for writer, claims in ((api, [claim(mine)]), (other, [claim(theirs)]), (other, [])):
        refusal = await refused(writer.commit(put("data/x"), claims=claims))
        assert refusal.reason == "KEY_LOCKED"
        assert "shared" in refusal.text


async def test_in_an_advisory_region_only_claims_are_checked(api: Api, join: NewApi) -> None:
    """Who presents none writes past the lock; a claim must hold all the same."""
    other = await join()
    policy = policy_pb2.Policy(
        rules=[policy_pb2.RegionRule(prefix="loose/", lock_enforcement=policy_pb2.LOCK_ENFORCEMENT_ADVISORY)]
    )
    request = board_service_pb2.SetPolicyRequest(board=api.board, policy=policy, expected_version=1)
    await api.boards.SetPolicy(request, metadata=api.auth)
    lock = await api.acquire("loose/", "tight/")
    await other.commit(put("loose/a"))
    assert (await refused(other.commit(put("tight/a")))).reason == "KEY_LOCKED"
    await api.release(lock)
    assert (await refused(api.commit(put("loose/b"), claims=[claim(lock)]))).reason in LOST


async def test_a_replay_is_answered_even_if_the_lock_has_ended_since(api: Api, join: NewApi) -> None:
    """T22: a retried commit that happened never hears LOCK_LOST."""
    lock = await api.acquire("k")
    request_id = str(uuid.uuid4())
    first = await api.commit(put("k"), claims=[claim(lock)], request_id=request_id)
    await api.release(lock)
    again = await api.commit(put("k"), claims=[claim(lock)], request_id=request_id)
    assert (again.replayed, again.header.revision) == (True, first.header.revision)


# Asking


async def test_a_failed_try_names_who_is_in_the_way(api: Api, join: NewApi) -> None:
    """T15 consul#2767: holder, mode, queue length and a delay, never a blank."""
    other, third = await join(), await join()
    lock = await api.acquire("k", purpose="count")
    queued = asyncio.create_task(third.acquire("k", wait=10))
    await until(lambda: waits(api))
    refusal = await refused(other.acquire("k"))
    assert (refusal.code, refusal.reason) == (ABORTED, "LOCK_WAIT_TIMEOUT")
    assert refusal.metadata["holder"] == lock.principal
    assert refusal.metadata["lock_id"] == lock.lock_id
    assert refusal.metadata["mode"] == "exclusive"
    assert refusal.metadata["purpose"] == "count"
    assert refusal.metadata["waiting"] == "1"
    assert int(refusal.metadata["retry_after_ms"]) > 0
    assert refusal.retry_ms is not None
    await api.release(lock)
    await queued


async def test_waiters_are_granted_in_the_order_of_asking(api: Api, join: NewApi) -> None:
    """FIFO; a shared request queues behind an earlier exclusive one."""
    names = [await join() for _ in range(4)]
    first = await api.acquire("k", mode=SHARED)
    order: list[int] = []

    async def ask(number: int) -> None:
        mode = SHARED if number in {1, 2} else 0
        lock = await names[number].acquire("k", wait=15, mode=mode)
        order.append(number)
        await asyncio.sleep(0.05)
        await names[number].release(lock)

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(ask(number)))
        await until(lambda: waits(api, len(tasks)))
    [head, *_] = await api.list_waiters()
    assert head.blockers[0].lock_id == first.lock_id
    assert head.lock.fencing_token == 0
    assert head.lock.state == WAITING
    await api.release(first)
    await asyncio.gather(*tasks)
    assert order[0] == 0
    assert set(order[1:3]) == {1, 2}
    assert order[3] == 3


async def test_several_scopes_are_granted_together_or_not_at_all(api: Api, join: NewApi) -> None:
    """A waiter for two keys holds neither until it holds both."""
    other, third = await join(), await join()
    lock = await api.acquire("b")
    both = asyncio.create_task(other.acquire("a", "b", wait=10))
    await until(lambda: waits(api))
    assert (
        await refused(third.acquire("a"))
    ).reason == "LOCK_WAIT_TIMEOUT"  # an earlier waiter is not passed
    await third.commit(put("a"))  # but it holds nothing yet
    await api.release(lock)
    granted = await both
    assert {scope.path for scope in granted.scopes} == {"a", "b"}
    assert (await refused(third.commit(put("a", version=1)))).reason == "KEY_LOCKED"


async def test_waiting_ends_with_its_timeout_and_leaves_nothing(api: Api, join: NewApi) -> None:
    """LOCK_WAIT_TIMEOUT; nobody waits any more, and the lock can be had as before."""
    other = await join()
    lock = await api.acquire("k")
    begin = time.monotonic()
    assert (await refused(other.acquire("k", wait=0.5))).reason == "LOCK_WAIT_TIMEOUT"
    assert time.monotonic() - begin >= 0.5
    assert not await api.list_waiters()
    await api.release(lock)
    assert (await other.acquire("k")).state == HELD


async def test_three_locks_in_rotated_order_end_in_a_reported_deadlock(api: Api, join: NewApi) -> None:
    """M55: somebody hears DEADLOCK with the cycle, nobody waits past its deadline."""
    agents = [await join() for _ in range(3)]
    locks = [await agent.acquire(f"k{number}") for number, agent in enumerate(agents)]
    waiting = []
    for number in (0, 1):
        waiting.append(asyncio.create_task(agents[number].acquire(f"k{number + 1}", wait=20)))
        await until(lambda: waits(api, len(waiting)))
    refusal = await refused(agents[2].acquire("k0", wait=20))
    assert (refusal.code, refusal.reason) == (ABORTED, "DEADLOCK")
    names = [lock.principal for lock in locks]
    assert refusal.metadata["cycle"] == " -> ".join([names[2], names[0], names[1], names[2]])
    await agents[2].release(locks[2])
    second = await waiting[1]
    await agents[1].release(locks[1])
    first = await waiting[0]
    assert {first.state, second.state} == {HELD}


async def test_a_session_does_not_wait_for_itself(api: Api) -> None:
    """Not reentrant, and one agent at work would wait forever: a cycle of one."""
    started = await api.sessions.StartSession(
        session_service_pb2.StartSessionRequest(board=api.board, request_id=str(uuid.uuid4())),
        metadata=api.auth,
    )
    token = started.session_token
    lock = await api.acquire("plan/", session_token=token)
    assert (await refused(api.acquire("plan/a", wait=10, session_token=token))).reason == "DEADLOCK"
    outcome = await api.renew(lock)  # without the session it is nobody's
    assert outcome[0].reason == error_reason_pb2.ERROR_REASON_LOCK_LOST
    outcome = await api.renew(lock, session_token=token)
    assert outcome[0].reason == error_reason_pb2.ERROR_REASON_UNSPECIFIED


async def test_a_dead_session_must_start_anew_before_it_locks(api: Api, join: NewApi) -> None:
    """M15 codedb#411: crashed by the server's clock means no lock, no renewal, and its locks go to others."""
    other = await join()
    request = session_service_pb2.StartSessionRequest(board=api.board, request_id=str(uuid.uuid4()))
    request.ttl.FromSeconds(2)
    started = await api.sessions.StartSession(request, metadata=api.auth)
    token = started.session_token
    lock = await api.acquire("k", ttl=2, session_token=token)

    async def dead() -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await api.renew(lock, session_token=token)
            return False
        return True

    await until(dead)
    assert (await refused(api.renew(lock, session_token=token))).reason == "SESSION_DEAD"
    assert (await refused(api.acquire("j", session_token=token))).reason == "SESSION_DEAD"
    assert (await other.acquire("k", wait=10)).state == HELD
    refusal = await refused(api.commit(put("k"), claims=[claim(lock)], session_token=token))
    assert refusal.reason == "SESSION_DEAD"


async def test_ending_a_session_ends_its_locks(api: Api, join: NewApi) -> None:
    """Who goes home leaves nothing locked."""
    other = await join()
    started = await api.sessions.StartSession(
        session_service_pb2.StartSessionRequest(board=api.board, request_id=str(uuid.uuid4())),
        metadata=api.auth,
    )
    await api.acquire("k", session_token=started.session_token)
    await api.sessions.EndSession(
        session_service_pb2.EndSessionRequest(board=api.board, session_token=started.session_token),
        metadata=api.auth,
    )
    assert (await other.acquire("k")).state == HELD


async def test_a_retried_acquire_answers_the_same_lock_and_another_body_is_refused(api: Api) -> None:
    """The request_id names the ask: no second lock, no second place."""
    request_id = str(uuid.uuid4())
    lock = await api.acquire("k", request_id=request_id)
    again = await api.acquire("k", request_id=request_id)
    assert (again.lock_id, again.fencing_token) == (lock.lock_id, lock.fencing_token)
    assert (await refused(api.acquire("j", request_id=request_id))).reason == "REQUEST_ID_REUSED"
    await api.release(lock)
    assert (await refused(api.acquire("k", request_id=request_id))).reason == "LOCK_LOST"


async def test_a_retried_wait_keeps_its_place(api: Api, join: NewApi) -> None:
    """A call that was cut off and sent again stands where it stood, ahead of who came later."""
    early, late = await join(), await join()
    lock = await api.acquire("k")
    request_id = str(uuid.uuid4())
    first = asyncio.create_task(early.acquire("k", wait=15, request_id=request_id))
    await until(lambda: waits(api))
    behind = asyncio.create_task(late.acquire("k", wait=15))
    await until(lambda: waits(api, 2))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    retried = asyncio.create_task(early.acquire("k", wait=15, request_id=request_id))
    await asyncio.sleep(2.5)  # past the moment that a place is kept for nobody
    assert await waits(api, 2)
    await api.release(lock)
    granted = await retried
    assert not behind.done()
    await early.release(granted)
    await behind


# Ends


async def test_an_expired_lock_goes_to_the_next_and_its_old_holder_changes_nothing(
    api: Api, join: NewApi
) -> None:
    """M13, M14, M16, T02: an unrenewed lock ends; renew, release and write of the old holder are refused."""
    other = await join()
    await api.commit(put("k"))
    old = await api.acquire("k", ttl=2)
    new = await other.acquire("k", wait=10)
    assert new.fencing_token > old.fencing_token
    assert (await api.find_lock(old)).state == lock_service_pb2.LOCK_STATE_EXPIRED

    assert (await api.renew(old))[0].reason == error_reason_pb2.ERROR_REASON_LOCK_EXPIRED
    assert await api.release(old) == lock_service_pb2.RELEASE_OUTCOME_EXPIRED
    refusal = await refused(api.commit(put("k", version=1), claims=[claim(old)]))  # the version is right
    assert (refusal.code, refusal.reason in LOST) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    assert (await other.find_lock(new)).state == HELD
    await other.commit(put("k", version=1), claims=[claim(new)])


@pytest.mark.parametrize("rounds", [100, pytest.param(500, marks=pytest.mark.robustness)])
async def test_a_released_lock_is_granted_at_once_every_time(api: Api, join: NewApi, rounds: int) -> None:
    """T06 python-etcd3#1107: no release between check and wait is missed."""
    other = await join()
    for _ in range(rounds):
        lock = await api.acquire("k")
        asked = asyncio.create_task(other.acquire("k", wait=10))
        await asyncio.sleep(0)
        await api.release(lock)
        begin = time.monotonic()
        granted = await asked
        assert time.monotonic() - begin < 1
        await other.release(granted)


async def test_a_retried_release_leaves_the_next_lock_alone(api: Api) -> None:
    """T04 etcd#22082: the reply got lost, the lock was acquired again; the retry does not delete the new one."""
    request_id = str(uuid.uuid4())
    first = await api.acquire("k")
    assert await api.release(first, request_id=request_id) == lock_service_pb2.RELEASE_OUTCOME_RELEASED
    second = await api.acquire("k")
    assert await api.release(first, request_id=request_id) == lock_service_pb2.RELEASE_OUTCOME_RELEASED
    assert await api.release(first) == lock_service_pb2.RELEASE_OUTCOME_ALREADY_RELEASED
    assert (await api.find_lock(second)).state == HELD


@pytest.mark.parametrize("asks", [120, pytest.param(1_000, marks=pytest.mark.robustness)])
async def test_cancelled_asks_leave_no_ghosts(api: Api, join: NewApi, asks: int) -> None:
    """T13: Acquire cancelled at random points leaves nothing that outlives its ttl."""
    other = await join()

    async def ask_and_go(number: int) -> None:
        task = asyncio.create_task(other.acquire(f"g{number % 3}", wait=5, ttl=2))
        await asyncio.sleep((number % 40) / 2_000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await task

    holding = await api.acquire("g0", ttl=60)
    for start in range(0, asks, 20):
        await asyncio.gather(*(ask_and_go(number) for number in range(start, start + 20)))

    async def gone() -> bool:
        held = [lock for lock in await api.list_locks() if lock.lock_id != holding.lock_id]
        return not held and not await api.list_waiters()

    assert await until(gone, 12) < 10


async def test_max_hold_ends_a_lock_that_is_renewed(api: Api, join: NewApi) -> None:
    """However busily: after max_hold its writes are refused and the next one gets it."""
    other = await join()
    request = lock_service_pb2.AcquireRequest(
        board=api.board, request_id=str(uuid.uuid4()), scopes=[lock_service_pb2.LockScope(path="k")]
    )
    request.ttl.FromSeconds(30)
    request.max_hold.FromSeconds(1)
    lock = (await api.locks.Acquire(request, metadata=api.auth)).lock
    [renewal] = await api.renew(lock)
    assert renewal.ttl_left.ToMilliseconds() <= 1_000
    assert (await other.acquire("k", wait=10)).state == HELD
    assert (await refused(api.commit(put("k"), claims=[claim(lock)]))).reason == "LOCK_EXPIRED"


async def test_every_listed_lock_says_whose_it_is_and_an_orphan_can_be_ended(
    api: Api, operator: Api, join: NewApi
) -> None:
    """T17: ttl > 0, owner and age in every listing; a supervisor ends it with a reason, audited; workers may not."""
    worker = await join()
    lock = await worker.acquire("k", ttl=600, purpose="index", holder="host-1/42")
    [listed] = await api.list_locks()
    assert (listed.principal, listed.purpose, listed.holder) == (lock.principal, "index", "host-1/42")
    assert listed.ttl.seconds == 600
    assert 0 < listed.ttl_left.ToMilliseconds() <= 600_000
    assert listed.ask_time.seconds
    assert listed.grant_time.seconds
    request = lock_service_pb2.ForceReleaseRequest(
        board=api.board,
        request_id=str(uuid.uuid4()),
        lock_id=lock.lock_id,
        expected_token=lock.fencing_token,
        reason="its agent is gone",
    )
    assert (await refused(worker.locks.ForceRelease(request, metadata=worker.auth))).reason == "DENIED"
    request.expected_token += 1
    assert (await refused(api.locks.ForceRelease(request, metadata=api.auth))).reason == "LOCK_LOST"
    request.expected_token -= 1
    request.reason = " "
    assert (await refused(api.locks.ForceRelease(request, metadata=api.auth))).reason == "FIELD_INVALID"
    request.reason = "its agent is gone"
    ended = (await api.locks.ForceRelease(request, metadata=api.auth)).lock
    assert (ended.state, ended.end_reason) == (lock_service_pb2.LOCK_STATE_REVOKED, "its agent is gone")
    again = (await api.locks.ForceRelease(request, metadata=api.auth)).lock
    assert again.state == lock_service_pb2.LOCK_STATE_REVOKED
    assert (await worker.renew(lock))[0].reason == error_reason_pb2.ERROR_REASON_LOCK_REVOKED
    assert (await refused(worker.commit(put("k"), claims=[claim(lock)]))).reason == "LOCK_REVOKED"
    assert await worker.release(lock) == lock_service_pb2.RELEASE_OUTCOME_REVOKED
    assert (await worker.acquire("k")).state == HELD


async def test_a_lock_is_handed_on_without_a_gap(api: Api, join: NewApi) -> None:
    """Transfer: the receiver has a new id and token, the giver's claim is void, who waits goes on waiting."""
    other, third = await join(), await join()
    lock = await api.acquire("k")
    name = (await other.acquire("x")).principal
    waiting = asyncio.create_task(third.acquire("k", wait=15))
    await until(lambda: waits(api))
    request = lock_service_pb2.TransferRequest(
        board=api.board, request_id=str(uuid.uuid4()), claim=claim(lock), to_principal=name
    )
    handed = (await api.locks.Transfer(request, metadata=api.auth)).lock
    assert (handed.principal, handed.state) == (name, HELD)
    assert handed.lock_id != lock.lock_id
    assert handed.fencing_token > lock.fencing_token
    again = (await api.locks.Transfer(request, metadata=api.auth)).lock
    assert again.lock_id == handed.lock_id
    assert (await refused(api.commit(put("k"), claims=[claim(lock)]))).reason == "LOCK_LOST"
    await other.commit(put("k"), claims=[claim(handed)])
    assert (await other.renew(handed))[0].ttl_left.seconds > 0
    assert not waiting.done()
    await other.release(handed)
    assert (await waiting).state == HELD


# Who may


async def test_a_lock_needs_the_right_over_all_it_covers(api: Api, join: NewApi) -> None:
    """EXCLUSIVE needs to write the whole scope, SHARED the lock right; a foreign lock answers like none."""
    right = admin_service_pb2.Right(
        prefix="mine/", actions=[admin_service_pb2.ACTION_READ, admin_service_pb2.ACTION_WRITE]
    )
    narrow = await join(rights=[right])
    lock = await narrow.acquire("mine/")
    for paths in (("mine2/",), ("",), ("other",), ("mine/x", "other")):
        if paths[0] == "mine/x":
            await narrow.release(lock)
        assert (await refused(narrow.acquire(*paths))).reason == "DENIED"
    assert (await refused(narrow.acquire("mine/", mode=SHARED))).reason == "DENIED"

    hidden = await api.acquire("secret/")
    assert not await narrow.list_locks()
    unknown = lock_service_pb2.Lock(lock_id="l-0000000000000001", fencing_token=1)
    for of in (hidden, unknown):
        refusal = await refused(narrow.find_lock(of))
        assert refusal.reason == "LOCK_LOST"
        assert of.lock_id in refusal.text
        assert refusal.text.replace(of.lock_id, "") == (
            await refused(narrow.find_lock(unknown))
        ).text.replace(unknown.lock_id, "")
        assert (await refused(narrow.release(of))).reason == "LOCK_LOST"
    observer = await join(role=admin_service_pb2.ROLE_OBSERVER)
    assert (await refused(observer.acquire("k"))).reason == "DENIED"
    assert (await refused(api.acquire("_slate/"))).reason == "DENIED"


async def test_a_stolen_claim_is_worth_nothing(api: Api, join: NewApi) -> None:
    """Knowing id and token does not make one the holder."""
    other = await join()
    lock = await api.acquire("k")
    assert (await refused(other.commit(put("k"), claims=[claim(lock)]))).reason == "LOCK_LOST"
    assert (await refused(other.release(lock))).reason == "LOCK_LOST"
    assert (await other.renew(lock))[0].reason == error_reason_pb2.ERROR_REASON_LOCK_LOST
    forged = commit_pb2.Claim(lock_id=lock.lock_id, fencing_token=lock.fencing_token + 1)
    assert (await refused(api.commit(put("k"), claims=[forged]))).reason == "LOCK_LOST"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"paths": ()}, "FIELD_INVALID"),
        ({"paths": ("a", "a")}, "FIELD_INVALID"),
        ({"paths": ("a/", "a/b")}, "FIELD_INVALID"),
        ({"paths": ("a//b",)}, "KEY_INVALID"),
        ({"paths": tuple(f"k{n}" for n in range(17))}, "TOO_MANY"),
        ({"paths": ("a",), "ttl": 1}, "FIELD_INVALID"),
        ({"paths": ("a",), "ttl": 3_601}, "FIELD_INVALID"),
        ({"paths": ("a",), "wait": 3_601}, "FIELD_INVALID"),
        ({"paths": ("a",), "mode": 9}, "FIELD_INVALID"),
        ({"paths": ("a",), "purpose": "x" * 257}, "TOO_LARGE"),
        ({"paths": ("a",), "purpose": "a\0b"}, "FIELD_INVALID"),
        ({"paths": ("a",), "holder": "\0"}, "FIELD_INVALID"),
        ({"paths": ("a",), "request_id": "x"}, "REQUEST_ID_INVALID"),
        ({"paths": ("a",), "session_token": "nobody"}, "SESSION_NOT_FOUND"),
    ],
)
async def test_a_malformed_ask_is_refused_by_name(api: Api, fields: dict[str, object], reason: str) -> None:
    """Shapes that no lock can have."""
    paths = fields["paths"]
    assert isinstance(paths, tuple)
    rest = {name: value for name, value in fields.items() if name != "paths"}
    assert (await refused(api.acquire(*paths, **rest))).reason == reason  # type: ignore[arg-type]


async def test_nul_is_refused_alike_whichever_database_there_is(api: Api, operator: Api) -> None:
    """PostgreSQL cannot hold it, SQLite can: it is bad input on both, never a fault of the server."""
    odd = Api(api.address, api.token, "a\0b")
    assert (await refused(odd.get("k"))).reason == "BOARD_NOT_FOUND"
    await odd.channel.close()
    assert (await refused(api.commit(put("k"), note="a\0b"))).reason == "FIELD_INVALID"
    assert (await refused(api.commit(put("k", subject="\0")))).reason == "FIELD_INVALID"
    conflict = entry_service_pb2.GetConflictRequest(board=api.board, conflict_id="c-\0")
    assert (await refused(api.entries.GetConflict(conflict, metadata=api.auth))).reason == "FIELD_INVALID"
    session = session_service_pb2.StartSessionRequest(
        board=api.board, request_id=str(uuid.uuid4()), purpose="\0"
    )
    assert (await refused(api.sessions.StartSession(session, metadata=api.auth))).reason == "FIELD_INVALID"
    made = admin_service_pb2.CreatePrincipalRequest(
        id="nul", role=admin_service_pb2.ROLE_WORKER, display_name="\0", request_id=str(uuid.uuid4())
    )
    assert (
        await refused(operator.admin.CreatePrincipal(made, metadata=operator.auth))
    ).reason == "FIELD_INVALID"
    named = lock_service_pb2.Lock(lock_id="l-\0", fencing_token=1)
    assert (await refused(api.find_lock(named))).reason == "FIELD_INVALID"


async def test_quotas_bound_the_locks_of_a_board(api: Api, join: NewApi) -> None:
    """max_locks counts what is held and waited for."""
    policy = policy_pb2.Policy(quota=policy_pb2.Quota(max_locks=2))
    request = board_service_pb2.SetPolicyRequest(board=api.board, policy=policy, expected_version=1)
    await api.boards.SetPolicy(request, metadata=api.auth)
    held = [await api.acquire("a"), await api.acquire("b")]
    refusal = await refused((await join()).acquire("c"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA")
    await api.release(held[0])
    assert (await api.acquire("c")).state == HELD


# Watching, restarting


async def test_watching_locks_shows_each_change_and_resumes(api: Api, join: NewApi) -> None:
    """From a snapshot on; after_sequence picks up where another watch ended."""
    other = await join()
    lock = await api.acquire("k")
    call = api.locks.WatchLocks(
        lock_service_pb2.WatchLocksRequest(board=api.board), metadata=api.auth, timeout=30
    )
    first = await call.read()
    assert isinstance(first, lock_service_pb2.WatchLocksResponse)
    assert [(one.lock_id, one.state) for one in first.locks] == [(lock.lock_id, HELD)]
    waiting = asyncio.create_task(other.acquire("k", wait=10))
    await until(lambda: waits(api))
    await api.release(lock)
    granted = await waiting
    seen: dict[str, int] = {}
    while seen.get(granted.lock_id) != HELD:
        change = await call.read()
        assert isinstance(change, lock_service_pb2.WatchLocksResponse)
        seen |= {one.lock_id: one.state for one in change.locks}
    assert seen[lock.lock_id] == lock_service_pb2.LOCK_STATE_RELEASED
    call.cancel()
    resumed = api.locks.WatchLocks(
        lock_service_pb2.WatchLocksRequest(board=api.board, after_sequence=first.sequence),
        metadata=api.auth,
        timeout=30,
    )
    again = await resumed.read()
    assert isinstance(again, lock_service_pb2.WatchLocksResponse)
    assert {one.lock_id for one in again.locks} == {lock.lock_id, granted.lock_id}
    resumed.cancel()


async def test_a_restarted_server_keeps_held_locks_for_one_ttl(
    make_server: MakeServer, connect: Callable[[Server, str, str], Api]
) -> None:
    """Kill -9: who held a lock still does, with the same token, and renews it; who does not loses it after its ttl."""
    server = make_server()
    api = connect(server, server.local_token, "b")
    await api.boards.CreateBoard(
        board_service_pb2.CreateBoardRequest(name="b", request_id=str(uuid.uuid4())), metadata=api.auth
    )
    kept, dropped = await api.acquire("kept", ttl=3), await api.acquire("dropped", ttl=3)
    server.kill()
    server.restart()
    again = connect(server, server.local_token, "b")
    assert (await refused(again.commit(put("dropped")))).reason == "KEY_LOCKED"
    for _ in range(5):
        [renewal] = await again.renew(kept)
        assert renewal.reason == error_reason_pb2.ERROR_REASON_UNSPECIFIED
        await asyncio.sleep(0.8)
    await again.commit(put("kept"), claims=[claim(kept)])
    assert (await refused(again.commit(put("dropped"), claims=[claim(dropped)]))).reason in LOST
    newer = await again.acquire("dropped")
    assert newer.fencing_token > kept.fencing_token
