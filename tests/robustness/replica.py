"""A server with something of it bent, for tests alone: `python -m tests.robustness.replica --server-options...`.

SLATEBOARD_TEST_UNFENCED=1 switches the fence off: claims and locks are not looked at when a commit is judged. The
SLATEBOARD_TEST_CLOCK_FILE names a file with seconds by which the wall clock is wrong; it is read at every look.
"""

import os
import sys
import time
from pathlib import Path

from slateboard_server import app
from slateboard_server.domain import judge
from slateboard_server.domain.values import Micros


def _bend() -> None:
    if os.environ.get("SLATEBOARD_TEST_UNFENCED") == "1":
        setattr(judge, "check_claims", lambda *_: frozenset())  # noqa: B010 -- a name of the module's own
        setattr(judge, "lock_violations", lambda *_: [])  # noqa: B010 -- as above
    if clock := os.environ.get("SLATEBOARD_TEST_CLOCK_FILE"):
        path = Path(clock)

        def now(_: app.SystemClock) -> Micros:
            return Micros(time.time_ns() // 1_000 + round(float(path.read_text() or 0) * 1_000_000))

        setattr(app.SystemClock, "now", now)  # noqa: B010 -- a method replaced


if __name__ == "__main__":
    _bend()
    sys.exit(app.main(sys.argv[1:]))
