"""What the fast way of Get remembers: what requests mean, never what was answered, and not without bound."""

from slateboard.v1 import entry_service_pb2, types_pb2
from slateboard_server.domain.principal import Action, Right, Role
from slateboard_server.grpc_api.entries import EntryServicer
from slateboard_server.grpc_api.wire import Headers
from tests.services.conftest import BOARD, Team, put


def request(key: str) -> bytes:
    keys = [types_pb2.KeyRef(key=key)]
    return entry_service_pb2.GetRequest(board=BOARD, keys=keys).SerializeToString()


async def test_a_remembered_request_is_answered_anew_for_each_caller_and_state(team: Team) -> None:
    """A change, and another caller's rights, show at once."""
    edge = EntryServicer(team.directory, team.commits, team.reads, Headers("r"))
    narrow = await team.join("eve", Role.WORKER, (Right("else/", frozenset({Action.READ})),))
    await team.commit("ann", put("k", b"one"))
    raw = request("k")
    for value in (b"one", b"two"):
        if value == b"two":
            await team.commit("ann", put("k", b"two", expect=1))
        answer = edge._try_get(team["ann"], raw)
        assert answer is not None
        assert entry_service_pb2.GetResponse.FromString(answer).entries[0].content.value == value
        hidden = edge._try_get(narrow, raw)
        assert hidden is not None
        assert not entry_service_pb2.GetResponse.FromString(hidden).entries
    assert len(edge._asked) == 1


async def test_what_is_remembered_is_bounded(team: Team) -> None:
    edge = EntryServicer(team.directory, team.commits, team.reads, Headers("r"))
    await team.commit("ann", put("k", b"one"))
    for number in range(3_000):
        edge._try_get(team["ann"], request(f"k{number}"))
    assert 0 < len(edge._asked) <= 1_024
    before = len(edge._asked)
    edge._try_get(team["ann"], request("k" * 500 + "/" + "k" * 10))
    assert len(edge._asked) <= before + 1
    assert max(map(len, edge._asked)) <= 512
