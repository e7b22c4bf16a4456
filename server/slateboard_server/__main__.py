"""`python -m slateboard_server --data DIR --listen 127.0.0.1:7400`."""

from __future__ import annotations

import os
import sys

# What gRPC's core has to say about a port that is taken, the server says in words of its own. Read at its import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from slateboard_server.app import main

if __name__ == "__main__":
    sys.exit(main())
