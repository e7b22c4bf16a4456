"""All services on one gRPC server."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from slateboard_server.grpc_api import admin, boards, entries, locks, provenance, sessions, watching
from slateboard_server.grpc_api.boards import Facts
from slateboard_server.grpc_api.calls import Calls
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.observability.stats import CallStats
from slateboard_server.ports import Clock
from slateboard_server.services.auth import Authenticator
from slateboard_server.services.boards import Boards
from slateboard_server.services.commits import Commits
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.lock_views import LockViews
from slateboard_server.services.locks import Locks
from slateboard_server.services.principals import Principals
from slateboard_server.services.provenance import Provenance
from slateboard_server.services.reads import Reads
from slateboard_server.services.sessions import Sessions
from slateboard_server.services.watches import Watches

__all__ = ["Api", "Facts", "add_services"]


@dataclass(frozen=True, slots=True)
class Api:
    """What the edge needs of the rest."""

    auth: Authenticator
    directory: BoardDirectory
    boards: Boards
    commits: Commits
    reads: Reads
    watches: Watches
    sessions: Sessions
    locks: Locks
    lock_views: LockViews
    provenance: Provenance
    principals: Principals
    clock: Clock
    facts: Facts
    replica_id: str
    stats: CallStats
    certificates: bool = False
    """Whether a client certificate may stand for a principal."""
    write_timeout: float = 30.0
    """Seconds a watcher may take no message before it is ended with WATCH_TOO_SLOW."""


def add_services(server: grpc.aio.Server, api: Api) -> tuple[str, ...]:
    """Put the services on a server; returns their full names, for health and reflection."""
    calls = Calls(api.auth, api.stats, certificates=api.certificates, write_timeout=api.write_timeout)
    headers = Headers(api.replica_id)
    directory, clock = api.directory, api.clock
    services = {
        # The busiest first: gRPC asks one after the other.
        entries.SERVICE: {
            **entries.EntryServicer(directory, api.commits, api.reads, headers).handlers(calls),
            **watching.WatchServicer(directory, api.watches, headers, api.facts.progress_interval).handlers(
                calls
            ),
        },
        locks.SERVICE: locks.LockServicer(
            api.locks, api.lock_views, headers, api.facts.progress_interval
        ).handlers(calls),
        sessions.SERVICE: sessions.SessionServicer(api.sessions, clock, headers).handlers(calls),
        boards.SERVICE: boards.BoardServicer(api.boards, api.facts, clock, headers).handlers(calls),
        provenance.SERVICE: provenance.ProvenanceServicer(directory, api.provenance, headers).handlers(calls),
        admin.SERVICE: admin.AdminServicer(api.principals, headers).handlers(calls),
    }
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items())
    )
    return tuple(services)
