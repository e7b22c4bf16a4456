"""Races, retries and their answers, from outside: one winner, typed conflicts, nothing twice, nothing lost."""

import asyncio
import random
import uuid

import grpc
import pytest

from slateboard.v1 import commit_pb2, entry_service_pb2, types_pb2
from tests.grpc.conftest import Api, NewApi, Refusal, append, delete, put, refusal_of, refused


async def outcome(
    api: Api, *ops: commit_pb2.Op, **fields: object
) -> entry_service_pb2.CommitResponse | Refusal:
    """Commit, and return the answer or the refusal."""
    try:
        return await api.commit(*ops, **fields)
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)


async def test_exactly_one_of_many_racing_creators_wins(api: Api) -> None:
    """dapr/components-contrib#994 (T18), beads#4657 (M51): the losers learn who holds the key."""
    results = await asyncio.gather(*(outcome(api, put("task/1", str(n).encode())) for n in range(32)))
    winners = [result for result in results if not isinstance(result, Refusal)]
    losers = [result for result in results if isinstance(result, Refusal)]
    assert (len(winners), len(losers)) == (1, 31)
    for loser in losers:
        assert (loser.code, loser.reason) == (grpc.StatusCode.ABORTED, "VERSION_CONFLICT")
        assert loser.conflict is not None
        violation = loser.conflict.violations[0]
        assert (violation.current_version, violation.current_principal) == (1, "local")
        assert loser.retry_ms is not None


async def test_increments_with_retries_add_up(api: Api) -> None:
    """oh-my-claudecode#1160 (M09), spicedb PR#1552 (T25): 50 writers on one key; only OK and ABORTED, none lost.

    No SQLSTATE, SQL or driver text in any answer, and every loser can go on from what it is told.
    """
    await api.commit(put("counter", b"0"))
    rng = random.Random(7)

    async def increment() -> int:
        attempts = 0
        while True:
            attempts += 1
            entry = (await api.get("counter")).entries[0]
            result = await outcome(
                api, put("counter", str(int(entry.content.value) + 1).encode(), version=entry.version)
            )
            if not isinstance(result, Refusal):
                return attempts
            assert (result.code, result.reason) == (grpc.StatusCode.ABORTED, "VERSION_CONFLICT")
            for word in ("SQL", "sqlite", "psycopg", "Traceback", "SELECT", "UNIQUE"):
                assert word not in result.text
            await asyncio.sleep(rng.uniform(0, 0.01))

    attempts = await asyncio.gather(*(increment() for _ in range(50)))
    entry = (await api.get("counter")).entries[0]
    assert entry.content.value == b"50"
    assert entry.version == 51
    assert sum(attempts) >= 50


async def test_a_full_rewrite_from_an_old_snapshot_is_refused_with_the_newer_version(api: Api) -> None:
    """ironclaw#7776 (M08): the conflict names the version that is there, who wrote it and when."""
    await api.commit(put("plan", b"1"))
    await api.commit(put("plan", b"2", version=1))
    said = await refused(api.commit(put("plan", b"stale", version=1)))
    assert said.conflict is not None
    violation = said.conflict.violations[0]
    assert (violation.expected, violation.current_version, violation.current_mod_revision) == (
        "version 1",
        2,
        2,
    )
    assert violation.current_commit_time.seconds > 0
    assert (await api.get("plan")).entries[0].content.value == b"2"


async def test_a_commit_with_one_stale_op_writes_nothing_and_lists_all_violations(api: Api) -> None:
    """components-contrib#1244 (T20): five ops, the last stale: no write, no revision."""
    await api.commit(put("a"), put("b"))
    said = await refused(
        api.commit(put("c"), put("d"), put("a", version=7), put("e"), put("b"), guards=[_unchanged("a", 9)])
    )
    assert said.conflict is not None
    assert [(item.guard, item.index) for item in said.conflict.violations] == [
        (False, 2),
        (False, 4),
        (True, 0),
    ]
    listing = await api.list()
    assert (listing.header.revision, [entry.key for entry in listing.entries]) == (1, ["a", "b"])
    kept = await api.entries.GetConflict(
        entry_service_pb2.GetConflictRequest(board=api.board, conflict_id=said.conflict.conflict_id),
        metadata=api.auth,
    )
    assert len(kept.conflict.violations) == 3


def _unchanged(key: str, version: int) -> commit_pb2.Guard:
    return commit_pb2.Guard(version=commit_pb2.VersionGuard(key=types_pb2.KeyRef(key=key), version=version))


def _prefix_unchanged(prefix: str, since: int) -> commit_pb2.Guard:
    return commit_pb2.Guard(
        prefix=commit_pb2.PrefixGuard(
            prefix=types_pb2.PrefixRef(prefix=prefix), unchanged_since_revision=since
        )
    )


async def test_guards_on_what_was_read_see_changes_and_phantoms(api: Api) -> None:
    """Read sets count: a changed key and a new key under a prefix both stop the commit, others do not."""
    await api.commit(put("data/1"))
    revision = (await api.list("data/")).header.revision
    await api.commit(put("elsewhere"))
    await api.commit(put("sum/1"), guards=[_prefix_unchanged("data/", revision), _unchanged("data/1", 1)])
    await api.commit(put("data/2"))
    said = await refused(api.commit(put("sum/2"), guards=[_prefix_unchanged("data/", revision)]))
    assert said.reason == "GUARD_CHANGED"
    assert said.conflict is not None
    assert said.conflict.violations[0].key == "data/2"
    revision = (await api.list("data/")).header.revision
    await api.commit(delete("data/2", 1))
    said = await refused(api.commit(put("sum/2"), guards=[_prefix_unchanged("data/", revision)]))
    assert said.reason == "GUARD_CHANGED"


async def test_a_retry_answers_the_same_and_writes_once(api: Api) -> None:
    """jetcd#1444 (T21), FoundationDB's unknown result (T22): never a conflict against itself."""
    request_id = str(uuid.uuid4())
    first = await api.commit(put("k"), request_id=request_id)
    await api.commit(put("k", b"newer", version=1))
    again = await api.commit(put("k"), request_id=request_id.upper())
    assert again.replayed
    assert not first.replayed
    assert (again.header.revision, again.commit_id, list(again.results)) == (
        first.header.revision,
        first.commit_id,
        list(first.results),
    )
    assert (await api.get("k")).entries[0].version == 2
    said = await refused(api.commit(put("k", b"other"), request_id=request_id))
    assert (said.code, said.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED")


async def test_many_copies_of_one_request_at_once_make_one_commit(api: Api) -> None:
    """mem0#6515 (M11): concurrent identical writes, also within one batch, leave one."""
    request_id = str(uuid.uuid4())
    answers = await asyncio.gather(*(api.commit(append("log/"), request_id=request_id) for _ in range(20)))
    assert len({answer.header.revision for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    assert len((await api.list("log/")).entries) == 1


async def test_a_request_id_belongs_to_its_principal(api: Api, join: NewApi) -> None:
    """Two principals may draw the same id; neither hears of the other's commit."""
    request_id = str(uuid.uuid4())
    worker = await join()
    await api.commit(put("a"), request_id=request_id)
    answer = await worker.commit(put("b"), request_id=request_id)
    assert not answer.replayed
    found = await worker.entries.GetCommit(
        entry_service_pb2.GetCommitRequest(board=api.board, request_id=request_id), metadata=worker.auth
    )
    assert [result.key for result in found.commit.results] == ["b"]


async def test_a_failed_commit_is_not_stored(api: Api) -> None:
    """The same request may succeed later: failures are judged anew."""
    request_id = str(uuid.uuid4())
    assert (
        await refused(api.commit(put("k", version=1), request_id=request_id))
    ).reason == "VERSION_CONFLICT"
    await api.commit(put("k"))
    answer = await api.commit(put("k", version=1), request_id=request_id)
    assert not answer.replayed


async def test_an_unknown_outcome_can_be_asked_for(api: Api) -> None:
    """GetCommit finds what happened, and says what did not."""
    request_id = str(uuid.uuid4())
    asked = entry_service_pb2.GetCommitRequest(board=api.board, request_id=request_id)
    said = await refused(api.entries.GetCommit(asked, metadata=api.auth))
    assert (said.code, said.reason) == (grpc.StatusCode.NOT_FOUND, "COMMIT_NOT_FOUND")
    made = await api.commit(put("k"), request_id=request_id)
    found = await api.entries.GetCommit(asked, metadata=api.auth)
    assert found.commit.revision == made.header.revision


async def test_validate_only_judges_and_writes_nothing(api: Api) -> None:
    """It gives the verdict, uses no revision, stores no answer and keeps no conflict."""
    verdict = await api.commit(put("k"), validate_only=True, request_id="")
    assert verdict.header.revision == 1
    assert (await refused(api.commit(put("k", version=3), validate_only=True))).reason == "VERSION_CONFLICT"
    listing = await api.list()
    assert (listing.header.revision, len(listing.entries)) == (0, 0)
    conflicts = await api.entries.ListConflicts(
        entry_service_pb2.ListConflictsRequest(board=api.board), metadata=api.auth
    )
    assert len(conflicts.conflicts) == 0


async def test_an_etag_of_another_version_or_key_never_matches(api: Api) -> None:
    """js-sdk#551 (T19): garbage is an error, another version a conflict; the right one passes."""
    made = await api.commit(put("a"), put("b"))
    etag_a, etag_b = (result.etag for result in made.results)

    def by_etag(etag: str) -> commit_pb2.Op:
        op = put("a", b"2")
        op.put.precondition.etag_equals = etag
        return op

    assert (await refused(api.commit(by_etag(etag_b)))).reason == "VERSION_CONFLICT"
    await api.commit(by_etag(etag_a))
    assert (await refused(api.commit(by_etag(etag_a)))).reason == "VERSION_CONFLICT"


async def test_versions_rise_over_deletes_for_ever(api: Api) -> None:
    """No ABA: after delete, compaction and re-creation an old version never matches again."""
    await api.commit(put("k"))
    await api.commit(delete("k", 1))
    await api.commit(put("k"))
    assert (await refused(api.commit(put("k", version=1)))).reason == "VERSION_CONFLICT"
    assert (await api.get("k")).entries[0].version == 3
    entry = (await api.get("k")).entries[0]
    assert entry.create_revision == 3


async def test_a_conflict_of_128_long_keys_is_still_a_conflict(api: Api) -> None:
    """grpc/grpc#37852 (T43): the details stay small enough for the trailer and say how many were left out."""
    keys = ["/".join([f"{n:03}" + "k" * 120] * 4) for n in range(128)]
    said = await refused(api.commit(*(put(key, version=1) for key in keys)))
    assert said.code is grpc.StatusCode.ABORTED
    assert said.conflict is not None
    assert said.conflict.ByteSize() <= 6 * 1024
    assert len(said.conflict.violations) + said.conflict.omitted == 128
    assert said.details_size < 8 * 1024
    whole = await api.entries.GetConflict(
        entry_service_pb2.GetConflictRequest(board=api.board, conflict_id=said.conflict.conflict_id),
        metadata=api.auth,
    )
    assert len(whole.conflict.violations) == 128


async def test_thousands_of_keys_come_in_pages_below_the_message_limit(api: Api) -> None:
    """grpc.io#1254 (T43): every page fits, every key comes once, in order, at one revision."""
    for start in range(0, 2_000, 125):
        await api.commit(*(put(f"k/{n:05}", b"x" * 200) for n in range(start, start + 125)))
    seen: list[str] = []
    token = ""
    revisions = set()
    while True:
        page = await api.list("k/", page_size=1_000, page_token=token)
        assert page.ByteSize() < 3_670_016
        seen += [entry.key for entry in page.entries]
        revisions.add(page.header.revision)
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"k/{n:05}" for n in range(2_000)]
    assert len(revisions) == 1


async def test_a_benign_conflict_is_an_info_line_not_a_stack_trace(api: Api, server: object) -> None:
    """letta#3366 (M57): conflicts are counted and logged at INFO, without keys or values."""
    await api.commit(put("letta-key", b"letta-value"))
    await refused(api.commit(put("letta-key")))
    log = server.log()  # type: ignore[attr-defined]  # the Server fixture
    lines = [line for line in log.splitlines() if '"VERSION_CONFLICT"' in line]
    assert lines
    assert all('"level": "info"' in line or '"level":"info"' in line for line in lines)
    assert "letta-value" not in log
    assert "letta-key" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize("times", [3])
async def test_overlapping_commits_come_once_each_to_a_watch(api: Api, times: int) -> None:
    """spicedb#1272 (T35): concurrent transactions neither loop nor vanish from a watch."""
    stream = api.watch(after_revision=0)
    await asyncio.gather(*(api.commit(put(f"k/{n}")) for n in range(40 * times)))
    seen: list[int] = []
    while len(seen) < 40 * times:
        message = await asyncio.wait_for(stream.read(), 10)
        if message.WhichOneof("event") == "batch":
            seen.append(message.batch.revision)
    stream.cancel()
    assert seen == list(range(1, 40 * times + 1))
