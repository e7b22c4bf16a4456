import time
import uuid
from collections.abc import Iterator

import pytest

import slateboard
from agents_demo import board_keys
from agents_demo.board_keys import Claim, Step, Task
from agents_demo.follow import Follow, Overdue
from agents_demo.worker import ClaimLost, Worker
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


def test_a_task_that_another_has_claimed_is_not_found(board: Board) -> None:
    """As long as the other one's session is alive."""
    with board.session() as session:
        assert Worker(board, "worker-1", 1)._find_task(session) is not None
        assert Worker(board, "worker-2", 1)._find_task(session) is None
    assert Claim.from_json(board.get(CLAIM).value).worker == "worker-1"


def test_a_claim_of_a_dead_session_is_taken_over_by_one_of_all_who_try(board: Board) -> None:
    """The second replaces a version that is no longer there, and finds nothing to do."""
    board.put(CLAIM, Claim("worker-1", "nobody's").to_json(), absent=True)
    with board.session() as session:
        found = Worker(board, "worker-2", 1)._find_task(session)
        assert found is not None
        assert Worker(board, "worker-3", 1)._find_task(session) is None
    claim = board.get(CLAIM)
    assert claim.version == 2
    assert Claim.from_json(claim.value) == Claim("worker-2", session.id, taken_from="worker-1")


def test_who_has_lost_the_claim_publishes_nothing(board: Board) -> None:
    """The result and the claim go in one commit, so the late one cannot put its result either."""
    given = board.get(f"tasks/{TASK.name}")
    mine = board.put(CLAIM, Claim("worker-1", "a").to_json(), absent=True)
    theirs = board.put(CLAIM, Claim("worker-2", "b", taken_from="worker-1").to_json(), expect=mine)
    with pytest.raises(ClaimLost):
        Worker(board, "worker-1", 1)._publish(TASK, mine, [[5, 3]], [given])
    assert board.get(TASK.result_key, None) is None
    Worker(board, "worker-2", 1)._publish(TASK, theirs, [[5, 3]], [given])
    assert board.get(TASK.result_key).value == [[5, 3]]
    assert Claim.from_json(board.get(CLAIM).value).done


def test_a_result_whose_input_has_changed_is_refused(board: Board) -> None:
    """What was computed from the old input says nothing about the new one."""
    given = board.get(f"tasks/{TASK.name}")
    claim = board.put(CLAIM, Claim("worker-1", "a").to_json(), absent=True)
    board.put(given.key, {}, expect=given)
    with pytest.raises(slateboard.Conflict):
        Worker(board, "worker-1", 1)._publish(TASK, claim, [], [given])
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
