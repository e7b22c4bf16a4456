"""The client without a network: a transport of a dozen lines is enough."""

from typing import cast

import pytest

import slateboard
from slateboard import _shim_sync as shim
from slateboard._methods import Method, Reply, Request
from slateboard._sync.transport import Stream
from slateboard.v1 import entry_service_pb2, types_pb2


class Canned:
    """Answers Get with one entry; everything else is unavailable."""

    def __init__(self) -> None:
        self.closed = False
        self.asked: list[str] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        return ("one:1", "two:2")

    def unary(
        self,
        address: str,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout: float,
        scope: shim.Scope | None = None,
    ) -> Reply:
        self.asked.append(address)
        if isinstance(request, entry_service_pb2.GetRequest) and address == "two:2":
            found = types_pb2.Entry(key="k", version=2, size=1)
            found.content.value = b"7"
            found.content.content_type = "application/json"
            reply = entry_service_pb2.GetResponse(
                header=types_pb2.ResponseHeader(revision=5), entries=[found]
            )
            return cast("Reply", reply)
        raise slateboard.Unavailable("down")

    def stream(self, address: str, method: Method[Request, Reply], request: Request) -> Stream[Reply]:
        raise slateboard.Unavailable("down")

    def close(self) -> None:
        self.closed = True


def test_a_client_runs_over_any_transport() -> None:
    transport = Canned()
    with slateboard.Client(transport, retry=slateboard.RetryPolicy(initial_backoff=0)) as client:
        board = client.board("b")
        assert [board.get("k").value for _ in range(3)] == [7, 7, 7]
        assert board.get("k").version == 2
        # The address that is down was asked once, then left alone.
        assert transport.asked == ["one:1", "two:2", "two:2", "two:2", "two:2"]
        with pytest.raises(slateboard.OutcomeUnknown):
            board.put("k", 1, absent=True)
    assert transport.closed
