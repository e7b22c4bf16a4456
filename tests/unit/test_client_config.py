"""How a client finds its server and its token, and how patient it is."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard import Conflict, Invalid, RateLimited, RetryPolicy, Unavailable
from slateboard._config import data_dir, find_token, is_loopback, parse_addresses, read_token_file
from slateboard._retry import Repeat, Rotation, backoff, may_repeat, outcome_open
from slateboard.errors import DeadlineExceeded


@pytest.mark.parametrize(
    ("given_", "targets"),
    [
        ("host", ("host:7400",)),
        ("host:1", ("host:1",)),
        ("a:1, b:2,a:1", ("a:1", "b:2")),
        (["a", "10.0.0.1:3"], ("a:7400", "10.0.0.1:3")),
        ("[::1]:5", ("[::1]:5",)),
        ("::1", ("[::1]:7400",)),
        ("[::1]", ("[::1]:7400",)),
        ("unix:/run/slate.sock", ("unix:/run/slate.sock",)),
        (None, ("127.0.0.1:7400",)),
    ],
)
def test_addresses_are_read_as_people_write_them(
    given_: str | list[str] | None, targets: tuple[str, ...]
) -> None:
    assert parse_addresses(given_, {}) == targets


def test_the_environment_names_the_server() -> None:
    assert parse_addresses(None, {"SLATE_SERVER": "x:1,y:2"}) == ("x:1", "y:2")
    assert parse_addresses("z:3", {"SLATE_SERVER": "x:1"}) == ("z:3",)


@pytest.mark.parametrize("bad", ["", " , ", "host:", "host:0", "host:70000", "host:port", ":7400", []])
def test_what_is_no_address_is_refused(bad: str | list[str]) -> None:
    with pytest.raises(Invalid):
        parse_addresses(bad, {})


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/x", True),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
        ("127.0.0.1.example:1", False),
        ("0.0.0.0:1", False),
    ],
)
def test_only_this_machine_is_loopback(target: str, local: bool) -> None:
    assert is_loopback(target) is local


def test_a_token_is_looked_for_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "local.token").write_text("from-file\n")
    env = {"SLATE_TOKEN": "from-env", "SLATE_DATA": str(tmp_path)}
    local = ("127.0.0.1:7400",)
    assert find_token("given", local, env) == "given"
    assert find_token(None, local, env) == "from-env"
    assert find_token(None, local, {"SLATE_DATA": str(tmp_path)}) == "from-file"
    assert find_token(None, local, {"SLATE_DATA": str(tmp_path / "none")}) is None
    assert read_token_file("operator", tmp_path) is None


def test_a_local_token_is_nobody_elses_business(tmp_path: Path) -> None:
    (tmp_path / "local.token").write_text("from-file\n")
    assert find_token(None, ("127.0.0.1:1", "board.example:1"), {"SLATE_DATA": str(tmp_path)}) is None


def test_a_token_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(Invalid) as caught:
        find_token("s3cret\nx", ("127.0.0.1:1",), {})
    assert "s3cret" not in str(caught.value)


def test_the_data_directory_follows_the_environment() -> None:
    assert data_dir({"SLATE_DATA": "/d"}) == Path("/d")
    assert data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/slateboard")
    assert data_dir({}) == Path("~/.local/share/slateboard").expanduser()


@given(st.integers(1, 100), st.floats(0, 0.999))
def test_waits_are_bounded_and_jittered(failures: int, chance: float) -> None:
    policy = RetryPolicy()
    assert 0 < backoff(policy, failures, chance) <= policy.max_backoff
    assert 0 < backoff(policy, failures, chance, Conflict("")) <= policy.max_conflict_backoff
    asked = Conflict("", retry_after=timedelta(seconds=9))
    assert 9 <= backoff(policy, failures, chance, asked) <= 9 * 1.5


def test_what_may_have_happened_is_repeated_only_where_that_is_harmless() -> None:
    lost, refused = Unavailable(""), Unavailable("", sent=False)
    assert may_repeat(lost, Repeat.SAFE)
    assert not may_repeat(lost, Repeat.UNSAFE)
    assert may_repeat(refused, Repeat.UNSAFE)
    assert may_repeat(RateLimited(""), Repeat.UNSAFE)
    assert not may_repeat(DeadlineExceeded(""), Repeat.UNSAFE)
    assert not may_repeat(Conflict(""), Repeat.SAFE)
    assert outcome_open(lost)
    assert not outcome_open(refused)
    assert not outcome_open(Conflict(""))


def test_an_address_that_failed_is_passed_over_until_it_had_its_rest() -> None:
    rotation = Rotation(["a", "b", "c"], rest=5)
    assert [rotation.pick(0) for _ in range(4)] == ["a", "b", "c", "a"]
    rotation.failed("b", 0)
    assert [rotation.pick(1) for _ in range(3)] == ["c", "a", "c"]
    assert {rotation.pick(6) for _ in range(3)} == {"a", "b", "c"}
    for address in "abc":
        rotation.failed(address, 6)
    assert {rotation.pick(7) for _ in range(3)} == {"a", "b", "c"}
    rotation.answered("b")
    assert [rotation.pick(7) for _ in range(2)] == ["b", "b"]
    assert rotation.pick(7, avoid=["b"]) != "b"


def test_an_address_that_keeps_failing_is_tried_less_and_less() -> None:
    """A server that hangs costs whoever tries it a whole attempt."""
    rotation = Rotation(["a", "b"], rest=5)
    for now, until in [(0, 5), (5, 15), (15, 35), (35, 75), (75, 135), (135, 195)]:
        rotation.failed("a", now)
        rotation.failed("a", now)  # another call that was under way
        assert {rotation.pick(until - 0.1) for _ in range(3)} == {"b"}
        assert {rotation.pick(until) for _ in range(3)} == {"a", "b"}
    rotation.answered("a")
    rotation.failed("a", 200)
    assert "a" in {rotation.pick(205) for _ in range(2)}


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"jitter": 2}, {"attempt_timeout": 0}, {"max_backoff": -1}])
def test_a_retry_policy_that_makes_no_sense_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        RetryPolicy(**bad)
