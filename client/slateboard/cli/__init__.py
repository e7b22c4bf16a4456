"""The command line, `slate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# What gRPC's core has to say about a lost connection, the CLI says in words of its own. Read when grpc starts.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave by SystemExit: 0 done, 1 failed, 2 usage, 3 contention, 4 not found, 5 denied."""
    try:
        from slateboard.cli import app  # noqa: PLC0415 -- so that Ctrl-C while this loads is quiet, too

        app.run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
