"""Decides whether and when a call is sent again. Time and chance come in as arguments."""

from collections.abc import Collection, Sequence
from enum import Enum
from threading import Lock

from slateboard._config import RetryPolicy
from slateboard.errors import Cancelled, Conflict, DeadlineExceeded, RateLimited, SlateError, Unavailable


class Repeat(Enum):
    """What sending a call twice would do."""

    SAFE = "safe"
    """Nothing: it reads, is idempotent, or carries a request_id."""
    UNSAFE = "unsafe"
    """Something may happen twice, so it is sent again only if it certainly never left."""


def may_repeat(error: SlateError, repeat: Repeat) -> bool:
    """Whether a call that failed with `error` may be sent again as it is."""
    if isinstance(error, RateLimited):
        return True  # refused before anything happened
    if isinstance(error, Unavailable):
        return repeat is Repeat.SAFE or not error.sent
    # CANCELLED reaches this place only from the far side: a server or proxy that gave up on the call.
    return isinstance(error, (DeadlineExceeded, Cancelled)) and repeat is Repeat.SAFE


def outcome_open(error: SlateError) -> bool:
    """Whether a write that failed with `error` may have happened all the same."""
    return isinstance(error, (DeadlineExceeded, Cancelled)) or (isinstance(error, Unavailable) and error.sent)


def backoff(policy: RetryPolicy, failures: int, chance: float, error: SlateError | None = None) -> float:
    """Seconds to wait after the given number of failures (>= 1); `chance` is drawn from [0, 1).

    Never shorter than the server's RetryInfo, which a jitter may only lengthen: all who were refused together were
    told the same delay.
    """
    contention = isinstance(error, Conflict)
    first = policy.conflict_backoff if contention else policy.initial_backoff
    limit = policy.max_conflict_backoff if contention else policy.max_backoff
    wait = min(limit, first * 2.0 ** min(failures - 1, 30))
    wait *= 1.0 - policy.jitter * chance
    asked = error.retry_after.total_seconds() if error is not None and error.retry_after is not None else 0.0
    return max(wait, asked * (1.0 + policy.jitter * chance))


class Rotation:
    """Whose turn it is among several addresses: round robin over those that answered lately.

    An address that failed is passed over for `rest` seconds, unless all are, and twice as long each time it fails again
    (at most 12 times as long): whoever tries a server that hangs pays for it with a whole attempt. gRPC's own round robin is not used: over a list it takes IP addresses only, and it would
    not take an address out that accepts connections but answers nothing.
    """

    def __init__(self, addresses: Sequence[str], rest: float = 5.0) -> None:
        self._addresses = tuple(addresses)
        self._rest = rest
        self._next = 0
        self._down_until: dict[str, float] = {}
        self._fails: dict[str, int] = {}
        self._lock = Lock()

    def pick(self, now: float, avoid: Collection[str] = ()) -> str:
        """The next address; one of `avoid` only if there is no other."""
        with self._lock:
            order = [
                self._addresses[(self._next + step) % len(self._addresses)]
                for step in range(len(self._addresses))
            ]
            up = [address for address in order if self._down_until.get(address, now) <= now]
            choice = next(
                (address for address in (*up, *order) if address not in avoid), up[0] if up else order[0]
            )
            self._next = (self._addresses.index(choice) + 1) % len(self._addresses)
            return choice

    def failed(self, address: str, now: float) -> None:
        """The address did not answer."""
        with self._lock:
            if self._down_until.get(address, now) <= now:  # calls that failed together count once
                fails = self._fails[address] = self._fails.get(address, 0) + 1
                self._down_until[address] = now + self._rest * min(12.0, 2.0 ** min(fails - 1, 10))

    def answered(self, address: str) -> None:
        """The address answered, be it with an error of ours."""
        if address in self._down_until:
            with self._lock:
                self._down_until.pop(address, None)
                self._fails.pop(address, None)
