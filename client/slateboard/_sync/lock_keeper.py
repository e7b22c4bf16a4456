# Made from _async/lock_keeper.py by tools/async_to_sync.py; do not edit.
"""Renews the locks of a client in the background: one task for those of a board and session, many in one call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slateboard import _methods
from slateboard import _shim_sync as shim
from slateboard._sync.calls import Calls
from slateboard.errors import Denied, Invalid, NotFound, ServerFault, SessionDead, SlateError, Unauthenticated
from slateboard.v1 import lock_service_pb2

if TYPE_CHECKING:
    from slateboard._sync.lock import Lock

logger = logging.getLogger("slateboard")

MAX_RENEWALS = 100
"""Claims in one call, at most."""
_IDLE = 3_600.0


def renew(
    calls: Calls,
    board: str,
    session_token: str,
    locks: Sequence[Lock],
    *,
    timeout: float | None,
    scope: shim.Scope | None = None,
) -> None:
    """Renews up to MAX_RENEWALS locks in one call, and tells each what became of it.

    Raises:
        SlateError: nobody knows; or the server did: then the locks are lost.
    """
    request = lock_service_pb2.RenewRequest(
        board=board, claims=[lock.claim.message() for lock in locks], session_token=session_token
    )
    # Leases are counted from when this was sent: the server may have counted from then on.
    sent = shim.monotonic()
    try:
        reply = calls.call(_methods.RENEW, request, timeout=timeout, scope=scope)
    except (SessionDead, NotFound, Unauthenticated, Denied) as error:
        for lock in locks:
            lock.lose("LOCK_LOST", error.message)
        raise
    if len(reply.renewals) != len(locks):
        raise ServerFault(f"{len(reply.renewals)} answers for {len(locks)} locks")
    for lock, renewal in zip(locks, reply.renewals, strict=True):
        lock.settle(renewal, sent)


class LockKeeper:
    """The locks that a client holds, and who renews them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._mutex = threading.Lock()
        self._closed = False
        self.renewers: dict[tuple[str, str], Renewer] = {}
        """By board and session, as long as there is a lock to renew."""

    @property
    def locks(self) -> Sequence[Lock]:
        """Those that are renewed now."""
        with self._mutex:
            return [lock for renewer in self.renewers.values() for lock in renewer.locks()]

    def add(self, board: str, session_token: str, lock: Lock) -> None:
        """Renews a lock from now on."""
        place = board, session_token
        with self._mutex:
            if self._closed:
                raise Invalid("the client is closed")
            renewer = self.renewers.get(place)
            if renewer is None:
                renewer = Renewer(self._calls, board, session_token, self._ended)
                self.renewers[place] = renewer
            renewer.add(lock)

    def remove(self, board: str, session_token: str, lock: Lock) -> None:
        """Renews a lock no more. With the last one of its board the task goes, too."""
        place = board, session_token
        with self._mutex:
            renewer = self.renewers.get(place)
            if renewer is None or not renewer.remove(lock):
                return
            del self.renewers[place]
        renewer.stop()

    def wake(self) -> None:
        """Has every renewer look at what is due."""
        with self._mutex:
            for renewer in self.renewers.values():
                renewer.wake()

    def close(self) -> None:
        """Renews nothing any more; what is still held counts as lost."""
        with self._mutex:
            self._closed = True
            renewers = list(self.renewers.values())
            self.renewers.clear()
        for renewer in renewers:
            renewer.stop()
            renewer.lose_all("its client was closed")

    def _ended(self, renewer: Renewer) -> None:
        """A task ended that nobody had stopped: somebody cancelled all there are."""
        with self._mutex:
            if self.renewers.get(renewer.place) is renewer:
                del self.renewers[renewer.place]
        renewer.lose_all("its renewals were stopped")


class Renewer:
    """Renews the locks of one board and session, three times in the ttl of each, and says which are lost."""

    def __init__(
        self, calls: Calls, board: str, session_token: str, ended: Callable[[Renewer], None]
    ) -> None:
        self.place = board, session_token
        self._calls = calls
        self._ended = ended
        self._mutex = threading.Lock()
        self._locks: dict[Lock, None] = {}
        self._again_at = 0.0
        """After a failure: not before this."""
        self._stopping = False
        self._wake = shim.Event()
        self._scope = shim.Scope()
        self._task = shim.Task(self._work, f"slateboard-locks-{board}", self._scope)

    def locks(self) -> Sequence[Lock]:
        """Those it renews."""
        with self._mutex:
            return list(self._locks)

    def add(self, lock: Lock) -> None:
        """Renews one more."""
        with self._mutex:
            self._locks[lock] = None
        self._wake.set()

    def remove(self, lock: Lock) -> bool:
        """Renews one less; whether none is left."""
        with self._mutex:
            self._locks.pop(lock, None)
            return not self._locks

    def wake(self) -> None:
        """Has it look at what is due."""
        self._wake.set()

    def stop(self) -> None:
        """Ends it, at once."""
        self._stopping = True
        self._wake.set()
        self._task.stop()

    def lose_all(self, why: str) -> None:
        """Nobody renews them any more."""
        for lock in self.locks():
            lock.lose("LOCK_LOST", why)

    def _work(self) -> None:
        try:
            while not self._over():
                shim.wait(self._wake, self._pause())
                self._wake.clear()
                if not self._over() and (due := self._due()):
                    self._renew(due)
        finally:
            if not self._over():
                self._ended(self)

    def _over(self) -> bool:
        return self._stopping

    def _pause(self) -> float:
        """Seconds until there is something to do: a renewal is due, or a lock at its end."""
        now = shim.monotonic()
        moments = [min(lock.until, max(lock.due, self._again_at)) for lock in self.locks()]
        return max(0.0, min(moments, default=now + _IDLE) - now)

    def _due(self) -> Sequence[Lock]:
        """What is to be renewed now: as soon as one lock is due, also those that soon will be."""
        now = shim.monotonic()
        for lock in self.locks():
            lock.look_at_clock()
            if lock.lost.is_set():
                self.remove(lock)
        if now < self._again_at:
            return []
        live = sorted(self.locks(), key=lambda lock: lock.until)
        if not any(lock.due <= now for lock in live):
            return []
        return [lock for lock in live if lock.due - lock.ttl / 6 <= now][:MAX_RENEWALS]

    def _renew(self, due: Sequence[Lock]) -> None:
        live = self.locks()
        shortest = min(lock.ttl for lock in (*due, *live))
        now = shim.monotonic()
        # One answer that does not come must cost no lock its other tries, nor its end its notice.
        left = min(shortest / 3, min(lock.until for lock in (*due, *live)) - now)
        board, session_token = self.place
        try:
            renew(self._calls, board, session_token, due, timeout=max(0.001, left), scope=self._scope)
        except SlateError as error:
            logger.debug("board %s: %d locks were not renewed: %s", board, len(due), error)
        except Exception:
            # Whatever it is, the other tries are to be made, and the clock goes on.
            logger.exception("board %s: locks were not renewed", board)
        else:
            self._again_at = 0.0
            return
        self._again_at = shim.monotonic() + min(0.5, shortest / 10)
