import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import slateboard
from agents_demo import board_keys
from agents_demo.board_keys import Claim, Step, Task
from agents_demo.follow import Follow, Overdue
from agents_demo.worker import Claimed, ClaimLost, Worker
from slateboard import Board
from tests.fix_server import Server

TASK = Task(Step.DEDUPE, part=1, parts=4)
CLAIM = f"claims/{TASK.name}"


@pytest.fixture
def board(server: Server) -> Iterator[Board]:
    """A board of this test's own, with one task."""
    with slateboard.connect(server.address, token=server.operator_token) as client:
        made = client.create_board(f"demo-{uuid.uuid4().hex[:8]}")
        made.put(f"tasks/{TASK.name}", TASK.to_json(), absent=True)
        yield made


def find(board: Board, name: str, holding: ExitStack) -> Claimed | None:
    """Look for a task as a worker would, in a session of its own."""
    agent = _agent(board, holding)
    session = holding.enter_context(agent.session())
    return Worker(agent, name, 1)._find_task(session, holding)


def _agent(board: Board, holding: ExitStack) -> Board:
    """The same board for another agent: a board object has one session at a time."""
    client = slateboard.connect(_ADDRESS[0], token=_ADDRESS[1])
    return holding.enter_context(client).board(board.name)


_ADDRESS = ["", ""]


@pytest.fixture(autouse=True)
def _where(server: Server) -> None:
    _ADDRESS[:] = [server.address, server.operator_token]


def test_a_task_that_another_has_claimed_is_not_found(board: Board) -> None:
    """As long as the other one holds its lock."""
    with ExitStack() as first, ExitStack() as second:
        assert find(board, "worker-1", first) is not None
        assert find(board, "worker-2", second) is None
    assert Claim.from_json(board.get(CLAIM).value).worker == "worker-1"


def test_a_claim_that_nobody_holds_any_more_is_taken_over_by_one_of_all_who_try(board: Board) -> None:
    """What was begun and left lies there without a lock; the second who wants it finds it locked."""
    board.put(CLAIM, Claim("worker-1", "nobody's").to_json(), absent=True)
    with ExitStack() as second, ExitStack() as third:
        found = find(board, "worker-2", second)
        assert found is not None
        assert find(board, "worker-3", third) is None
        claim = board.get(CLAIM)
        assert claim.version == 2
        taken = Claim.from_json(claim.value)
        assert (taken.worker, taken.taken_from) == ("worker-2", "worker-1")


def test_a_claim_that_is_done_is_not_taken_again(board: Board) -> None:
    """Locked or not."""
    board.put(CLAIM, Claim("worker-1", "a", done=True).to_json(), absent=True)
    with ExitStack() as holding:
        assert find(board, "worker-2", holding) is None


def test_who_has_lost_the_lock_publishes_nothing(board: Board) -> None:
    """The result and the claim go in one commit under the lock, so the late one cannot put its result either."""
    # Leaving the lock's context says once more that it was lost.
    with ExitStack() as second, pytest.raises(slateboard.LockLost), ExitStack() as first:
        late = find(board, "worker-1", first)
        assert late is not None
        board.force_release(
            late.lock.lock_id, expected_token=late.lock.token, reason="it was silent for too long"
        )
        theirs = find(board, "worker-2", second)
        assert theirs is not None
        with pytest.raises(ClaimLost):
            Worker(board, "worker-1", 1)._publish(late, [[5, 3]], [late.given])
        assert board.get(TASK.result_key, None) is None
        Worker(board, "worker-2", 1)._publish(theirs, [[5, 3]], [theirs.given])
    assert board.get(TASK.result_key).value == [[5, 3]]
    assert Claim.from_json(board.get(CLAIM).value).done


def test_a_result_whose_input_has_changed_is_refused(board: Board) -> None:
    """What was computed from the old input says nothing about the new one."""
    with ExitStack() as holding:
        mine = find(board, "worker-1", holding)
        assert mine is not None
        board.put(mine.given.key, {}, expect=mine.given)
        with pytest.raises(slateboard.Conflict):
            Worker(board, "worker-1", 1)._publish(mine, [], [mine.given])
    assert board.get(TASK.result_key, None) is None


def test_a_wait_in_which_nothing_happens_ends_and_says_what_for(board: Board) -> None:
    """No wait of the demo is for ever."""
    with Follow(board, ["tasks/"], waiting_for="more tasks", patience=0.5, snapshot=True) as follow:
        began = time.monotonic()
        with pytest.raises(Overdue, match="waited for more tasks, but nothing changed"):
            for _ in follow:
                pass
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "value", [None, {}, {"step": "dedupe"}, {**TASK.to_json(), "part": "1"}, [TASK.to_json()]]
)
def test_what_is_no_task_is_refused(value: object) -> None:
    """What comes off a board is another agent's word."""
    with pytest.raises(ValueError, match="is not a task"):
        Task.from_json(value)


def test_every_task_has_keys_of_its_own() -> None:
    """A range means one thing in one step, another in the next."""
    steps = board_keys.tasks_of(4, [], 2)
    assert [task.name for task in steps[Step.DEDUPE]] == [f"dedupe/part-{part}" for part in range(4)]
    assert [task.accident for task in steps[Step.DEDUPE]] == [False, False, True, False]
    assert steps[Step.JOIN][0].result_key == board_keys.DUPLICATES
    assert all(Task.from_json(task.to_json()) == task for step in steps.values() for task in step)
