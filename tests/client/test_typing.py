"""Types as part of the promise: what is wrong must not pass mypy, whose unused ignores are errors.

None of this is run; `make check` judges it.
"""

from typing import assert_type

import slateboard
import slateboard.aio


def right(board: slateboard.Board) -> None:
    assert_type(board.get("k"), slateboard.Entry)
    assert_type(board.get("k", None), slateboard.Entry | None)
    assert_type(board.get("k", default=0), slateboard.Entry | int)
    assert_type(board.put("k", {"a": [1]}, absent=True, trust=slateboard.Trust.AGENT), slateboard.Entry)
    assert_type(board.update("k", lambda value: {**value, "a": 1}, {}), slateboard.Updated)
    assert_type(board.run(lambda tx: tx.get("k").version), int)
    assert_type(board.private, slateboard.Board)
    with board.lock("k") as held:
        assert_type(held, slateboard.Lock)
        assert_type(held.put("k", 1, absent=True), slateboard.Entry)
    for batch in board.watch("p/"):
        assert_type(batch, slateboard.Batch)
    for entry in board.list("p/"):
        assert_type(entry, slateboard.Entry)


async def right_async(board: slateboard.aio.Board) -> None:
    assert_type(await board.get("k", None), slateboard.Entry | None)

    async def body(tx: slateboard.aio.Transaction) -> str:
        return (await tx.get("k")).key

    assert_type(await board.run(body), str)


def wrong(board: slateboard.Board, entry: slateboard.Entry) -> None:
    board.put("k", object(), absent=True)  # type: ignore[arg-type]
    board.put("k", 1, expect="3")  # type: ignore[arg-type]
    board.put("k", 1, absent=True, colour="red")  # type: ignore[call-arg]
    board.put("k", 1, absent=True, kind="semantic")  # type: ignore[arg-type]
    board.get("k", min_trust="agent")  # type: ignore[call-overload]
    board.lock("k", wait="long")  # type: ignore[arg-type]
    board.lock(3)  # type: ignore[arg-type]
    entry.version = 4  # type: ignore[misc]


async def wrong_async(board: slateboard.aio.Board) -> None:
    print(board.get("k").version)  # type: ignore[attr-defined]


def test_nothing_here_is_run() -> None:
    assert right.__doc__ is None
