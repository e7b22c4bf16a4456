"""Boards from outside: policies, compaction, new lives, figures, the server's own facts."""

import uuid

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from slateboard.v1 import admin_service_pb2, entry_service_pb2, policy_pb2, types_pb2
from slateboard.v1 import board_service_pb2 as pb
from tests.grpc.conftest import Api, NewApi, delete, put, refused


async def policy_of(api: Api) -> policy_pb2.Policy:
    request = pb.GetPolicyRequest(board=api.board)
    return (await api.boards.GetPolicy(request, metadata=api.auth, timeout=10)).policy


async def set_policy(api: Api, policy: policy_pb2.Policy, version: int) -> policy_pb2.Policy:
    request = pb.SetPolicyRequest(board=api.board, policy=policy, expected_version=version)
    return (await api.boards.SetPolicy(request, metadata=api.auth, timeout=10)).policy


async def board_of(api: Api) -> pb.GetBoardResponse:
    return await api.boards.GetBoard(pb.GetBoardRequest(board=api.board), metadata=api.auth, timeout=10)


async def name_of(api: Api) -> str:
    who = await api.admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), metadata=api.auth, timeout=10)
    return who.principal.id


async def test_a_policy_comes_back_as_it_was_set_and_binds_at_once(api: Api) -> None:
    """Every field of a rule survives the way through the database."""
    rule = policy_pb2.RegionRule(
        scope=policy_pb2.REGION_SCOPE_SHARED,
        prefix="plan/",
        write_mode=policy_pb2.WRITE_MODE_READ_ONLY,
        any_state=policy_pb2.ANY_STATE_ALLOWED,
        min_trust=types_pb2.TRUST_AGENT,
        default_ttl=Duration(seconds=90, nanos=500_000_000),
        quota=policy_pb2.Quota(max_entries=10, max_bytes=1_000, max_commits_per_second=100),
    )
    wanted = policy_pb2.Policy(
        rules=[rule, policy_pb2.RegionRule(scope=policy_pb2.REGION_SCOPE_PRIVATE)],
        quota=policy_pb2.Quota(max_watches=7),
        history_retention=Duration(seconds=3_600),
    )
    made = await set_policy(api, wanted, 1)
    found = await policy_of(api)
    assert made == found
    assert (found.version, found.updated_by) == (2, "local")
    assert list(found.rules) == list(wanted.rules)
    assert (found.quota, found.history_retention) == (wanted.quota, wanted.history_retention)
    said = await refused(api.commit(put("plan/a")))
    assert (said.code, said.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "POLICY_FORBIDS")
    assert said.metadata["rule"] == "read_only"
    await api.commit(put("other/a"))


async def test_a_policy_changed_meanwhile_is_a_conflict(api: Api, join: NewApi) -> None:
    """Two who govern a board do not overwrite each other; a worker governs nothing."""
    await set_policy(api, policy_pb2.Policy(quota=policy_pb2.Quota(max_entries=5)), 1)
    said = await refused(set_policy(api, policy_pb2.Policy(), 1))
    assert (said.code, said.reason) == (grpc.StatusCode.ABORTED, "VERSION_CONFLICT")
    worker = await join()
    said = await refused(set_policy(worker, policy_pb2.Policy(), 2))
    assert (said.code, said.reason) == (grpc.StatusCode.PERMISSION_DENIED, "DENIED")
    assert (await policy_of(worker)).quota.max_entries == 5


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (policy_pb2.Policy(rules=[policy_pb2.RegionRule(prefix="plan")]), "policy.rules[0].prefix"),
        (policy_pb2.Policy(rules=[policy_pb2.RegionRule()] * 2), "policy.rules[1]"),
        (policy_pb2.Policy(rules=[policy_pb2.RegionRule(prefix=f"{n}/") for n in range(65)]), "policy.rules"),
        (policy_pb2.Policy(quota=policy_pb2.Quota(max_bytes=-1)), "policy.quota.max_bytes"),
        (
            policy_pb2.Policy(rules=[policy_pb2.RegionRule(min_trust=9)]),  # type: ignore[arg-type]  # unknown on purpose
            "policy.rules[0].min_trust",
        ),
        (
            policy_pb2.Policy(rules=[policy_pb2.RegionRule(write_mode=7)]),  # type: ignore[arg-type]  # unknown on purpose
            "policy.rules[0].write_mode",
        ),
        (policy_pb2.Policy(history_retention=Duration(seconds=-1)), "policy.history_retention"),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused_by_field(
    api: Api, policy: policy_pb2.Policy, field: str
) -> None:
    """And the old one stays."""
    said = await refused(set_policy(api, policy, 1))
    assert said.code == grpc.StatusCode.INVALID_ARGUMENT
    assert said.metadata["field"].startswith(field)
    assert (await policy_of(api)).version == 1


async def test_compaction_drops_values_and_keeps_lineage_and_versions(api: Api) -> None:
    """etcd#8668 (T31): below the floor reads say COMPACTED with the oldest revision; stubs keep the lineage."""
    await api.commit(put("a", b"1"))
    source = types_pb2.Derivation(sources=[types_pb2.Source(key="a", version=1)])
    await api.commit(put("b", provenance=types_pb2.Provenance(derivations=[source])))
    await api.commit(put("a", b"2", version=1))
    await api.commit(put("gone"))
    await api.commit(delete("gone", 1))
    compact = pb.CompactBoardRequest(board=api.board, revision=5)
    reply = await api.boards.CompactBoard(compact, metadata=api.auth, timeout=10)
    assert reply.header.oldest_revision == 5
    assert reply.compacted_versions >= 1
    exact = types_pb2.Consistency(mode=types_pb2.CONSISTENCY_MODE_EXACT, revision=2)
    said = await refused(api.get("a", consistency=exact))
    assert (said.reason, said.metadata["oldest_revision"]) == ("COMPACTED", "5")
    versions = entry_service_pb2.ListVersionsRequest(board=api.board, key=types_pb2.KeyRef(key="a"))
    newest, stub = (await api.entries.ListVersions(versions, metadata=api.auth, timeout=10)).versions
    assert (newest.content.value, stub.compacted, stub.content.value) == (b"2", True, b"")
    assert (await api.commit(put("gone"))).results[0].version == 3
    again = await api.boards.CompactBoard(compact, metadata=api.auth, timeout=10)
    assert again.compacted_versions == 0
    future = pb.CompactBoardRequest(board=api.board, revision=999)
    said = await refused(api.boards.CompactBoard(future, metadata=api.auth, timeout=10))
    assert said.reason == "FUTURE_REVISION"


async def test_what_was_handed_out_in_an_earlier_life_never_matches(api: Api, operator: Api) -> None:
    """After a restore, etags, cursors and page tokens of the lost future must not fit by chance."""
    etag = (await api.commit(put("a"), put("b"))).results[0].etag
    token = (await api.list(page_size=1)).next_page_token
    incarnation = (await board_of(api)).board.incarnation
    request = pb.ReincarnateBoardRequest(board=api.board, incarnation=incarnation)
    said = await refused(api.boards.ReincarnateBoard(request, metadata=api.auth, timeout=10))
    assert said.reason == "DENIED"
    reply = await operator.boards.ReincarnateBoard(request, metadata=operator.auth, timeout=10)
    assert reply.board.incarnation != incarnation
    stale = put("a", b"w")
    stale.put.precondition.etag_equals = etag
    calls = (
        api.commit(stale),
        api.commit(put("a", version=1), incarnation=incarnation),
        api.list(page_size=1, page_token=token),
        api.watch(after_revision=1, incarnation=incarnation).read(),
    )
    for call in calls:
        said = await refused(call)
        assert (said.code, said.reason) == (grpc.StatusCode.OUT_OF_RANGE, "BOARD_REINCARNATED")
    assert (await api.get("a")).entries[0].version == 1


async def test_a_deleted_board_is_gone_and_its_name_begins_a_new_life(api: Api, operator: Api) -> None:
    """A retry of the delete does not hit the board that was made anew meanwhile."""
    await api.commit(put("a"))
    old = (await board_of(api)).board.incarnation
    request = pb.DeleteBoardRequest(board=api.board, incarnation=old)
    await operator.boards.DeleteBoard(request, metadata=operator.auth, timeout=10)
    assert (await refused(api.get("a"))).reason == "BOARD_NOT_FOUND"
    create = pb.CreateBoardRequest(name=api.board, request_id=str(uuid.uuid4()))
    made = await api.boards.CreateBoard(create, metadata=api.auth, timeout=10)
    assert made.board.incarnation != old
    said = await refused(operator.boards.DeleteBoard(request, metadata=operator.auth, timeout=10))
    assert said.reason == "BOARD_REINCARNATED"
    assert not (await api.get("a")).entries


async def test_a_board_tells_its_figures_and_what_is_hot(api: Api, join: NewApi) -> None:
    """Counts move with commits; a private key is hot for its owner only."""
    await api.commit(put("a", b"12345"))
    await api.commit(put("a", b"123", version=1))
    await refused(api.commit(put("a")))
    found = await board_of(api)
    assert (found.board.entries, found.board.bytes) == (1, 3)
    assert (found.activity.commits, found.activity.conflicts) == (2, 1)
    worker = await join()
    private = f"private/{await name_of(worker)}"
    for version in range(3):
        await worker.commit(put("secret", version=version, region=private))
    hot = (await board_of(api)).activity.hot_keys
    assert [(one.key, one.writes, one.conflicts) for one in hot] == [("a", 2, 1)]
    assert {one.key for one in (await board_of(worker)).activity.hot_keys} == {"a", "secret"}


async def test_a_diff_shows_what_changed_between_two_versions(api: Api) -> None:
    """JSON by place, text by line."""
    json = "application/json"
    await api.commit(put("plan", b'{"step":1,"owner":"a"}', content_type=json))
    await api.commit(put("plan", b'{"step":2,"owner":"a"}', version=1, content_type=json))
    request = entry_service_pb2.DiffRequest(board=api.board, key=types_pb2.KeyRef(key="plan"))
    reply = await api.entries.Diff(request, metadata=api.auth, timeout=10)
    [change] = reply.changes
    assert (change.pointer, change.before, change.after) == ("/step", "1", "2")
    assert (reply.from_entry.version, reply.to_entry.version) == (1, 2)
    assert not reply.to_entry.content.value
    missing = entry_service_pb2.DiffRequest(board=api.board, key=types_pb2.KeyRef(key="none"))
    said = await refused(api.entries.Diff(missing, metadata=api.auth, timeout=10))
    assert said.reason == "KEY_NOT_FOUND"


async def test_the_server_tells_its_limits(api: Api) -> None:
    """What a client needs to know before it hits a limit."""
    reply = await api.boards.GetServerInfo(pb.GetServerInfoRequest(), metadata=api.auth, timeout=10)
    assert (reply.limits.max_ops, reply.limits.max_value_bytes) == (128, 1 << 20)
    assert reply.limits.max_message_bytes == 3_670_016
    assert reply.idempotency_retention.seconds >= 24 * 3600
    assert reply.mode in {"embedded", "server"}
    assert reply.storage.startswith(("sqlite", "postgresql"))
    assert reply.header.replica_id
