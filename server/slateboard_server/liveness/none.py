"""No leases at all: server mode without etcd. Everything but locks works, and locks say why they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.ports import Lease


class NoLiveness:
    """Refuses whatever needs a lease."""

    async def start(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """There is nothing to let go."""

    def describe(self) -> str:
        """Say what is missing."""
        return "none (etcd_endpoints is not set)"

    async def grant(self, lease: Lease, ttl: int) -> int:
        """Refuse."""
        raise _not_configured()

    async def renew(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Refuse."""
        raise _not_configured()

    async def revoke(self, leases: Sequence[Lease]) -> None:
        """There are none."""

    async def alive(self, leases: Sequence[Lease]) -> set[Lease]:
        """Refuse."""
        raise _not_configured()

    async def time_left(self, leases: Sequence[Lease]) -> dict[Lease, float]:
        """Refuse."""
        raise _not_configured()

    def steady(self) -> bool:
        """There is nobody to hear from."""
        return False

    async def deaths(self) -> AsyncIterator[Lease]:
        """Wait for nothing."""
        nothing: tuple[Lease, ...] = ()
        while True:
            await asyncio.Event().wait()
            for lease in nothing:
                yield lease

    async def adopt(self, leases: Sequence[tuple[Lease, int]]) -> None:
        """There are none."""


def _not_configured() -> SlateboardError:
    return SlateboardError(
        Reason.LOCK_BACKEND_DOWN,
        "this server keeps no locks: several replicas need etcd for that; set etcd_endpoints",
    )
