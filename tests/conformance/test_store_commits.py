from slateboard_server.domain.errors import Reason
from slateboard_server.domain.judge import Accepted, Refused, Replayed, Validated
from slateboard_server.domain.values import Key, Revision
from tests.judging import (
    ABSENT,
    ANY,
    OPERATOR,
    PRESENT,
    RIVAL,
    SHARED,
    WORKER,
    append,
    at_version,
    commit,
    content,
    delete,
    no_change_under,
    put,
    source,
    unchanged,
)
from tests.storing import Desk, accepted, refused


async def test_commits_are_numbered_from_one_without_gaps(desk: Desk) -> None:
    for number in range(1, 6):
        logged = await desk.commit(put(f"k/{number}", ABSENT))
        assert logged.commit.revision == number
    await desk.refuse(put("k/1", ABSENT))
    assert (await desk.commit(put("k/6", ABSENT))).commit.revision == 6
    assert [logged.commit.revision for logged in await desk.log()] == [1, 2, 3, 4, 5, 6]


async def test_a_commit_happens_whole_or_not_at_all(desk: Desk) -> None:
    await desk.commit(put("taken", ABSENT))
    error = await desk.refuse(put("new/1", ABSENT), put("taken", ABSENT), put("new/2", ABSENT))
    assert error.reason is Reason.VERSION_CONFLICT
    assert await desk.keys() == ["taken"]
    assert await desk.head() == 1


async def test_what_is_written_is_read_back_whole(desk: Desk) -> None:
    value = bytes(range(256)) * 64
    await desk.commit(put("a", ABSENT, content(b"source")))
    new = content(value, sources=[[source("a", 1)]], expire_time=desk.clock.now() + 10_000_000)
    logged = await desk.commit(put("b/c", ABSENT, new), note="why")
    record = await desk.get("b/c")
    assert record == logged.versions[0]
    assert record is not None
    assert record.value == value
    assert record.derivations == ((source("a", 1),),)
    _, found, _ = await desk.store.find_commit(desk.id, revision=Revision(2))
    assert found is not None
    assert found.commit == logged.commit
    assert found.commit.note == "why"
    assert found.versions[0].value is None
    assert found.versions[0].size == len(value)


async def test_versions_rise_over_delete_and_re_creation(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, b"1"))
    await desk.commit(delete("k", at_version(1)))
    assert await desk.get("k") is None
    assert (await desk.commit(put("k", ABSENT, b"3"))).versions[0].version == 3
    assert [(version.version, version.value) for version in await desk.history("k")] == [
        (1, b"1"),
        (2, None),
        (3, b"3"),
    ]


async def test_versions_rise_over_compaction_too(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, b"1"))
    await desk.commit(delete("k", at_version(1)))
    await desk.compact(2)
    assert (await desk.refuse(put("k", at_version(2)))).reason is Reason.VERSION_CONFLICT
    assert (await desk.commit(put("k", ABSENT, b"3"))).versions[0].version == 3
    await desk.commit(delete("k", at_version(3)))
    await desk.compact(await desk.head())
    assert (await desk.commit(put("k", ABSENT, b"5"))).versions[0].version == 5


async def test_the_same_request_is_answered_again_and_done_once(desk: Desk) -> None:
    item = commit(put("k", ABSENT, b"1"), request_id="r-1")
    first, copy = await desk.batch(item, item)
    later = (await desk.batch(item))[0]
    assert isinstance(first, Accepted)
    assert isinstance(copy, Replayed)
    assert isinstance(later, Replayed)
    assert first.answer == copy.answer == later.answer
    assert await desk.head() == 1
    _, logged, stored = await desk.store.find_commit(desk.id, request=(WORKER, "r-1"))
    assert logged is not None
    assert stored is not None
    assert (logged.commit.revision, stored.answer) == (1, first.answer)


async def test_a_request_id_serves_one_content_and_one_principal(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, b"1"), request_id="r-1")
    other = refused((await desk.batch(commit(put("k", ANY, b"2"), request_id="r-1")))[0])
    assert other.reason is Reason.REQUEST_ID_REUSED
    await desk.commit(put("other", ABSENT, b"1"), by=OPERATOR, request_id="r-1")


async def test_commits_of_a_batch_see_those_before_them(desk: Desk) -> None:
    verdicts = await desk.batch(
        commit(put("k", ABSENT, b"1")),
        commit(put("k", ABSENT, b"2"), by=RIVAL),
        commit(put("k", at_version(1), b"3"), by=RIVAL),
        commit(delete("k", at_version(2))),
    )
    assert [type(verdict) for verdict in verdicts] == [Accepted, Refused, Accepted, Accepted]
    assert refused(verdicts[1]).reason is Reason.VERSION_CONFLICT
    assert await desk.get("k") is None
    assert [record.version for record in await desk.history("k")] == [1, 2, 3]


async def test_validate_only_writes_nothing(desk: Desk) -> None:
    verdict = (await desk.batch(commit(put("k", ABSENT), validate_only=True, request_id="")))[0]
    assert isinstance(verdict, Validated)
    assert await desk.head() == 0
    assert await desk.get("k") is None
    refused((await desk.batch(commit(put("k", PRESENT), validate_only=True, request_id="")))[0])
    page, _ = await desk.store.list_conflicts(desk.id, None, 10, None, None)
    assert page.conflicts == ()


async def test_appends_of_a_commit_are_ordered_by_revision(desk: Desk) -> None:
    await desk.commit(append("log/", b"1"), append("log/", b"2"))
    await desk.commit(append("log/", b"3"))
    records = (await desk.scan("log/")).records
    assert [record.value for record in records] == [b"1", b"2", b"3"]


async def test_guards_hold_over_what_was_only_read(desk: Desk) -> None:
    await desk.commit(put("plan/a", ABSENT), put("other", ABSENT))
    await desk.commit(put("plan/b", ABSENT))
    assert (
        await desk.refuse(put("x", ABSENT), guards=[unchanged("plan/a", 2)])
    ).reason is Reason.GUARD_CHANGED
    error = await desk.refuse(put("x", ABSENT), guards=[no_change_under("plan/", 1)])
    assert error.conflict is not None
    assert error.conflict.violations[0].key == "plan/b"
    await desk.commit(put("x", ABSENT), guards=[no_change_under("plan/", 2), unchanged("plan/a", 1)])
    assert (
        await desk.refuse(put("y", ABSENT), guards=[no_change_under("", 2)])
    ).reason is Reason.GUARD_CHANGED


async def test_a_prefix_guard_sees_changes_however_long_ago_its_revision_is(desk: Desk) -> None:
    await desk.commit(put("plan/a", ABSENT))
    await desk.commit(put("plan/b", ABSENT))
    await desk.commit(delete("plan/b", at_version(1)))
    for start in range(0, 3_000, 250):
        verdicts = await desk.batch(*[commit(put("noise", ANY)) for _ in range(start, start + 250)])
        assert all(isinstance(verdict, Accepted) for verdict in verdicts)
    for since, key in ((1, "plan/b"), (2, "plan/b")):
        error = await desk.refuse(put("x", ABSENT), guards=[no_change_under("plan/", since)])
        assert error.conflict is not None
        assert error.conflict.violations[0].key == key
    await desk.commit(put("x", ABSENT), guards=[no_change_under("plan/", 3)])


async def test_a_batch_of_many_principals_and_ops_is_written_whole(desk: Desk) -> None:
    items = [
        commit(*[put(f"n/{number}/{op}", ABSENT, b"v") for op in range(128)], by=(WORKER, RIVAL)[number % 2])
        for number in range(8)
    ]
    logged = [accepted(verdict) for verdict in await desk.batch(*items)]
    assert [entry.commit.revision for entry in logged] == list(range(1, 9))
    assert len({entry.commit.batch_id for entry in logged}) == 1
    assert len(await desk.keys()) == 1_000
    assert await desk.log() == logged
    meta = await desk.store.find_board("team")
    assert meta is not None
    assert (meta.entries, meta.bytes) == (1_024, 1_024)


async def test_two_regions_hold_the_same_key_apart(desk: Desk) -> None:
    await desk.commit(put("k", ABSENT, b"ours"), put("k", ABSENT, b"mine", region="private/worker"))  # type: ignore[arg-type]
    assert await desk.value("k") == b"ours"
    found = await desk.get("k", region="private/worker")  # type: ignore[arg-type]
    assert found is not None
    assert found.value == b"mine"
    read = await desk.store.read_keys(desk.id, [(SHARED, Key("k")), (SHARED, Key("none"))], desk.at(None))
    assert len(read.found) == 1


async def test_time_never_runs_backwards_on_a_board(desk: Desk) -> None:
    await desk.commit(put("a", ABSENT))
    desk.clock.forward(-3_600)
    await desk.commit(put("b", ABSENT))
    desk.clock.forward(7_200)
    await desk.commit(put("c", ABSENT))
    times = [logged.commit.commit_time for logged in await desk.log()]
    assert times == sorted(times)
    assert times[0] == times[1] < times[2]
