"""One scope filter below every surface: what may not be seen leaves no trace on any path."""

import asyncio
import uuid

import grpc
import pytest

from slateboard.v1 import (
    admin_service_pb2,
    board_service_pb2,
    entry_service_pb2,
    policy_pb2,
    provenance_service_pb2,
    session_service_pb2,
    types_pb2,
)
from tests.fix_server import Server
from tests.grpc.conftest import Api, NewApi, put, refused

CANARY = "canary-7f3a91"


async def everything_readable(api: Api, regions: tuple[str, ...]) -> str:
    """Walk every read RPC as a caller and return all it was told, as text."""
    told: list[object] = []

    async def ask(call: object) -> None:
        try:
            told.append(await call)  # type: ignore[misc]  # any call of a stub
        except grpc.aio.AioRpcError as error:
            told.append((error.code(), error.details(), error.trailing_metadata()))

    e, m, b = api.entries, api.auth, api.board
    for region in regions:
        key = types_pb2.KeyRef(region=region, key="diary")
        prefix = types_pb2.PrefixRef(region=region)
        for view in (types_pb2.VIEW_KEYS, types_pb2.VIEW_META, types_pb2.VIEW_FULL):
            await ask(api.get("diary", region=region, view=view))
            await ask(api.list(region=region, view=view))
        await ask(
            api.get(
                "diary",
                region=region,
                consistency=types_pb2.Consistency(mode=types_pb2.CONSISTENCY_MODE_EXACT, revision=1),
            )
        )
        await ask(e.ListVersions(entry_service_pb2.ListVersionsRequest(board=b, key=key), metadata=m))
        await ask(e.Diff(entry_service_pb2.DiffRequest(board=b, key=key), metadata=m))
        await ask(e.ListCommits(entry_service_pb2.ListCommitsRequest(board=b, prefix=prefix), metadata=m))
        await ask(e.ListConflicts(entry_service_pb2.ListConflictsRequest(board=b, key=key), metadata=m))
        await ask(api.lineage.Trace(provenance_service_pb2.TraceRequest(board=b, key=key), metadata=m))
        await ask(api.lineage.Impact(provenance_service_pb2.ImpactRequest(board=b, key=key), metadata=m))
        await ask(api.commit(put("diary", region=region)))
        watch = api.watch(prefixes=[prefix], after_revision=0)
        for _ in range(2):
            try:
                told.append(await asyncio.wait_for(watch.read(), 0.3))
            except (TimeoutError, asyncio.CancelledError, grpc.aio.AioRpcError):
                break
        watch.cancel()
        snapshot = api.watch(prefixes=[prefix], snapshot=True)
        told.append(await snapshot.read())
        snapshot.cancel()
    await ask(e.ListCommits(entry_service_pb2.ListCommitsRequest(board=b), metadata=m))
    await ask(e.ListConflicts(entry_service_pb2.ListConflictsRequest(board=b), metadata=m))
    await ask(e.GetCommit(entry_service_pb2.GetCommitRequest(board=b, revision=1), metadata=m))
    await ask(api.boards.GetBoard(board_service_pb2.GetBoardRequest(board=b), metadata=m))
    await ask(api.sessions.ListSessions(session_service_pb2.ListSessionsRequest(board=b), metadata=m))
    return "\n".join(str(item) for item in told)


async def test_a_private_region_shows_on_no_path_to_anybody_else(api: Api, join: NewApi) -> None:
    """ai-memory-mcp#1468 (M04), agentmemory#817 (M05): values, keys and notes of A never reach B, whatever B asks."""
    name = f"ann-{uuid.uuid4().hex[:8]}"
    ann, bob = await join(name=name), await join()
    mine = f"private/{name}"
    await ann.commit(
        put("diary", CANARY.encode(), region=mine, subject=CANARY, labels={CANARY: "x"}), note=CANARY
    )
    await refused(ann.commit(put("diary", CANARY.encode(), region=mine)))
    assert CANARY in await everything_readable(ann, (mine,))
    for stranger in (bob, api, await join(role=admin_service_pb2.ROLE_OBSERVER)):
        told = await everything_readable(stranger, ("", mine))
        assert CANARY not in told
    # A region of nobody answers the same, but for the name that was asked for.
    real = await everything_readable(bob, (mine,))
    nobody = f"private/{name[:-1]}z"
    assert real.replace(mine, "?").count("KEY_NOT_FOUND") == (
        await everything_readable(bob, (nobody,))
    ).replace(nobody, "?").count("KEY_NOT_FOUND")


async def test_rights_by_prefix_hold_on_every_path(api: Api, join: NewApi) -> None:
    """A worker with rights to work/ alone sees and changes nothing else, also through conflicts and counts."""
    await api.commit(put("secret/diary", CANARY.encode(), subject=CANARY), put("work/1"))
    right = admin_service_pb2.Right(
        prefix="work/", actions=[admin_service_pb2.ACTION_READ, admin_service_pb2.ACTION_WRITE]
    )
    narrow = await join(rights=[right])
    assert [entry.key for entry in (await narrow.list()).entries] == ["work/1"]
    assert CANARY not in await everything_readable(narrow, ("",))
    said = await refused(narrow.commit(put("secret/diary", version=1)))
    assert (said.code, said.reason) == (grpc.StatusCode.PERMISSION_DENIED, "DENIED")
    source = types_pb2.Source(key="secret/diary", version=1)
    missing = types_pb2.Source(key="secret/nothing", version=1)
    answers = [
        await refused(
            narrow.commit(
                put(
                    "work/2",
                    provenance=types_pb2.Provenance(derivations=[types_pb2.Derivation(sources=[one])]),
                )
            )
        )
        for one in (source, missing)
    ]
    assert {answer.reason for answer in answers} == {"SOURCE_NOT_FOUND"}
    assert answers[0].text.replace("diary", "?") == answers[1].text.replace("nothing", "?")


async def test_what_may_not_be_seen_in_a_lineage_is_one_opaque_node(api: Api, join: NewApi) -> None:
    """Two private sources show as one node without a name or a number."""
    name = f"ann-{uuid.uuid4().hex[:8]}"
    ann, bob = await join(name=name), await join()
    mine = f"private/{name}"
    await ann.commit(put("a", region=mine), put("b", region=mine), put("public"))
    sources = [
        types_pb2.Source(region=mine, key="a", version=1),
        types_pb2.Source(region=mine, key="b", version=1),
        types_pb2.Source(key="public", version=1),
    ]
    await ann.commit(
        put("summary", provenance=types_pb2.Provenance(derivations=[types_pb2.Derivation(sources=sources)]))
    )
    request = provenance_service_pb2.TraceRequest(board=api.board, key=types_pb2.KeyRef(key="summary"))
    seen = await bob.lineage.Trace(request, metadata=bob.auth)
    assert sorted(node.entry.key for node in seen.nodes if not node.hidden) == ["public", "summary"]
    assert sum(node.hidden for node in seen.nodes) == 1
    assert len(seen.edges) == 2
    whole = await ann.lineage.Trace(request, metadata=ann.auth)
    assert len(whole.nodes) == 4
    entry = (await bob.get("summary")).entries[0]
    shown = entry.content.provenance.derivations[0].sources
    assert [(source.hidden, source.key) for source in shown if not source.hidden] == [(False, "public")]
    assert all(not source.key and not source.region for source in shown if source.hidden)


async def test_an_observer_reads_and_writes_nothing(api: Api, join: NewApi) -> None:
    """Nor has it a private region, or a say in policies."""
    await api.commit(put("k"))
    watcher = await join(role=admin_service_pb2.ROLE_OBSERVER)
    assert len((await watcher.get("k")).entries) == 1
    assert (await refused(watcher.commit(put("x")))).reason == "DENIED"
    policy = board_service_pb2.SetPolicyRequest(
        board=api.board, policy=policy_pb2.Policy(), expected_version=1
    )
    said = await refused(watcher.boards.SetPolicy(policy, metadata=watcher.auth))
    assert said.reason == "DENIED"


async def test_a_stranger_to_a_board_finds_no_board(api: Api, join: NewApi) -> None:
    """A board of others and a board that is not there answer alike, and lists leave it out."""
    stranger = await join(boards=("elsewhere",))
    said = await refused(stranger.get("k"))
    other = Api(stranger.address, stranger.token, "no-such-board")
    missing = await refused(other.get("k"))
    await other.channel.close()
    assert (said.reason, said.text.replace(api.board, "?")) == (
        missing.reason,
        missing.text.replace("no-such-board", "?"),
    )
    listed = await stranger.boards.ListBoards(
        board_service_pb2.ListBoardsRequest(page_size=1000), metadata=stranger.auth
    )
    assert api.board not in {board.name for board in listed.boards}


async def test_only_operators_administer(api: Api, join: NewApi) -> None:
    """Workers and supervisors cannot make principals or tokens for others."""
    worker = await join()
    request = admin_service_pb2.CreatePrincipalRequest(
        id="intruder", role=admin_service_pb2.ROLE_OPERATOR, request_id=str(uuid.uuid4())
    )
    for caller in (worker, api):
        assert (await refused(caller.admin.CreatePrincipal(request, metadata=caller.auth))).reason == "DENIED"
        listing = admin_service_pb2.ListPrincipalsRequest()
        assert (await refused(caller.admin.ListPrincipals(listing, metadata=caller.auth))).reason == "DENIED"
    me = await worker.admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), metadata=worker.auth)
    assert me.principal.role == admin_service_pb2.ROLE_WORKER


async def test_a_revoked_token_stops_writes_at_once_and_reads_soon(
    api: Api, operator: Api, join: NewApi
) -> None:
    """Writes are judged with the credential's state in the same transaction; reads and watches follow within 5 s."""
    worker = await join()
    await worker.commit(put("k"))
    me = await worker.admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), metadata=worker.auth)
    stream = worker.watch(after_revision=0)
    await stream.read()
    await operator.admin.RevokeToken(
        admin_service_pb2.RevokeTokenRequest(token_id=me.token_id), metadata=operator.auth
    )
    assert (await refused(worker.commit(put("k2")))).reason == "TOKEN_INVALID"

    async def until_ended() -> str:
        while True:
            try:
                await stream.read()
            except grpc.aio.AioRpcError as error:
                return error.code().name

    assert await asyncio.wait_for(until_ended(), 8) == "UNAUTHENTICATED"
    assert (await refused(worker.get("k"))).reason == "TOKEN_INVALID"


async def test_ids_of_principals_are_never_reused(operator: Api, join: NewApi) -> None:
    """Not even after the first bearer was disabled: nobody inherits a private region."""
    name = f"ann-{uuid.uuid4().hex[:8]}"
    ann = await join(name=name)
    await operator.admin.DisablePrincipal(
        admin_service_pb2.DisablePrincipalRequest(id=name), metadata=operator.auth
    )
    with pytest.raises(grpc.aio.AioRpcError) as taken:
        await join(name=name)
    assert taken.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert (await refused(ann.commit(put("k")))).reason == "TOKEN_INVALID"


async def test_parallel_teams_do_not_mix(server: Server, connect: object, api: Api) -> None:
    """graphiti#1676 (M43): two boards written at the same time hold only their own."""
    boards = []
    for name in ("red", "blue"):
        one = Api(api.address, api.token, f"{name}-{uuid.uuid4().hex[:8]}")
        await one.boards.CreateBoard(
            board_service_pb2.CreateBoardRequest(name=one.board, request_id=str(uuid.uuid4())),
            metadata=one.auth,
        )
        boards.append(one)
    await asyncio.gather(
        *(one.commit(put(f"k/{n}", one.board.encode())) for n in range(50) for one in boards)
    )
    for one in boards:
        entries = (await one.list("k/")).entries
        assert len(entries) == 50
        assert {entry.content.value for entry in entries} == {one.board.encode()}
        assert entries[0].mod_revision <= 50
        await one.channel.close()
