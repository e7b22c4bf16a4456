# Made from _async/core.py by tools/async_to_sync.py; do not edit.
"""What the objects of one board share: its calls, its session, its counters, its remembered incarnation."""

from __future__ import annotations

import copy
import logging
import threading
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from google.protobuf.message import Message

from slateboard import _methods, _ops, _results, _wire
from slateboard import _shim_sync as shim
from slateboard._locks import LockClaim
from slateboard._methods import Method
from slateboard._retry import Repeat, may_repeat, outcome_open
from slateboard._sync.calls import Calls
from slateboard._values import Duration
from slateboard.errors import Conflict, Invalid, NotFound, OutcomeUnknown, Reincarnated, SlateError
from slateboard.v1 import admin_service_pb2, entry_service_pb2, types_pb2

if TYPE_CHECKING:
    from slateboard._sync.lock_keeper import LockKeeper
    from slateboard._sync.session import Session

logger = logging.getLogger("slateboard")

PRIVATE = "private/"
"""Stands for the caller's own region until its name is known."""


class Claimed(Protocol):
    """A lock that calls are made under."""

    @property
    def claim(self) -> LockClaim:
        """What commits present."""

    def check(self) -> None:
        """Raises LockLost if it is known here to be lost."""


class Presented:
    """A claim as it was given, of a lock that somebody else keeps alive."""

    def __init__(self, claim: LockClaim) -> None:
        self.claim = claim

    def check(self) -> None:
        """The server is the one to know."""


class HasHeader(Protocol):
    """A reply about a board."""

    @property
    def header(self) -> types_pb2.ResponseHeader:
        """Comes first in every reply."""


Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


class Identity:
    """Whom the client's credential stands for; looked up once, as it never changes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._id = ""

    def principal(self) -> str:
        """The principal's id."""
        if not self._id:
            reply = self._calls.call(_methods.WHO_AM_I, admin_service_pb2.WhoAmIRequest())
            self._id = reply.principal.id
        return self._id


class Counters:
    """Counts of one board object; safe to add to from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> None:
        """One more."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1

    def stats(self) -> _results.Stats:
        """The counts now."""
        with self._lock:
            return _results.Stats(**self._counts)


class _Known:
    """What is known of a board, by all objects that stand for it."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.incarnation = ""


class Core:
    """One board as this client knows it."""

    def __init__(
        self,
        name: str,
        calls: Calls,
        identity: Identity,
        keeper: LockKeeper,
        session_token: str,
    ) -> None:
        self.name = name
        self.calls = calls
        self.identity = identity
        self.keeper = keeper
        self.counters = Counters()
        self.locks: tuple[Claimed, ...] = ()
        """Held ones that calls are made under."""
        self._known = _Known()
        self._session_token = session_token
        self._warned: set[str] = set()

    def under(self, *locks: Claimed) -> Core:
        """The same board, with calls made under locks: each checks that they are not lost, and commits claim them."""
        made = copy.copy(self)
        made.locks = (*self.locks, *locks)
        return made

    @property
    def session(self) -> Session | None:
        """What calls are made in."""
        return self._known.session

    @session.setter
    def session(self, session: Session | None) -> None:
        self._known.session = session

    @property
    def incarnation(self) -> str:
        """The board's life, as last heard of; empty before."""
        return self._known.incarnation

    @incarnation.setter
    def incarnation(self, incarnation: str) -> None:
        self._known.incarnation = incarnation

    @property
    def session_token(self) -> str:
        """What proves the session that calls are made in; empty where there is none."""
        return self.session.token if self.session is not None else self._session_token

    def check(self) -> None:
        """Raises if the session, or a lock, that calls are made in is lost."""
        if self.session is not None:
            self.session.check()
        for lock in self.locks:
            lock.check()

    def region(self, region: str) -> str:
        """The region's name on the wire."""
        return PRIVATE + self.identity.principal() if region == PRIVATE else region

    def call(
        self,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout: Duration | None = None,
        scope: shim.Scope | None = None,
    ) -> Reply:
        """Makes a call about this board.

        Raises:
            SessionDead, LockLost: the session or a lock these calls are made in is lost.
            SlateError: the call failed.
        """
        self.check()
        try:
            reply = self.calls.call(method, request, timeout=timeout, on_retry=self._retrying, scope=scope)
        except Reincarnated as error:
            # From now on bare versions and revisions are taken to belong to the new life: the caller has been told.
            self.incarnation = error.incarnation
            raise
        self.seen(reply)
        return reply

    def seen(self, reply: Any) -> None:
        """Remembers which life of the board a reply came from."""
        if reply.header.incarnation:
            self.incarnation = reply.header.incarnation

    def commit(
        self,
        ops: Sequence[_ops.Op],
        guards: Sequence[_ops.Guard] = (),
        *,
        region: str,
        note: str = "",
        claims: Sequence[Claimed] = (),
        validate_only: bool = False,
        request_id: str | None = None,
        incarnation: str = "",
        timeout: Duration | None = None,
    ) -> _results.CommitResult:
        """Commits ops, all or none; sent again with the same request_id until the outcome is known.

        Raises:
            LockLost: a claimed lock is known here to be lost, and nothing was sent; or the server says so.
            Conflict: a precondition or guard did not hold.
            OutcomeUnknown: time or attempts ran out before an answer came.
            SlateError: anything else; nothing was written.
        """
        where = self.region(region)
        rests_on_versions = (
            any(not isinstance(op, _ops.Append) and op.expect is not None for op in ops) or guards
        )
        life = _ops.incarnation_of(self.name, ops, guards) or incarnation
        request = entry_service_pb2.CommitRequest(
            board=self.name,
            request_id=request_id or str(uuid.uuid4()),
            ops=[_ops.make_op(op, where) for op in ops],
            guards=[_ops.make_guard(guard, where) for guard in guards],
            claims=[
                claim.message() for claim in dict.fromkeys(lock.claim for lock in (*self.locks, *claims))
            ],
            session_token=self.session_token,
            note=note,
            validate_only=validate_only,
            incarnation=life or (self.incarnation if rests_on_versions else ""),
        )
        until = shim.monotonic() + self.calls.seconds(timeout)
        failures: list[SlateError] = []
        try:
            self.check()
            for lock in claims:
                lock.check()
            reply = self.calls.call(_methods.COMMIT, request, timeout=timeout, on_retry=failures.append)
        except Reincarnated as error:
            self.incarnation = error.incarnation
            raise
        except Conflict:
            self.counters.add("conflicts")
            raise
        except SlateError as error:
            failures.append(error)
            # An earlier attempt may have been applied even if the last one certainly was not.
            unknown = any(outcome_open(failure) for failure in failures)
            if not unknown or not may_repeat(error, Repeat.SAFE):
                raise
            reply = self._resolve(request, until, error)
            failures.pop()
        for failure in failures:
            self._retrying(failure)
        self.seen(reply)
        result = _wire.commit_result(reply, request.request_id, len(failures) + 1)
        if not validate_only:
            self.counters.add("commits")
        if result.replayed:
            self.counters.add("replayed")
        for warning in result.warnings:
            # Every commit repeats it; once is enough to be told.
            level = logging.DEBUG if warning.code in self._warned else logging.WARNING
            self._warned.add(warning.code)
            logger.log(level, "board %s: %s (%s)", self.name, warning.message, warning.code)
        return result

    def _resolve(
        self, request: entry_service_pb2.CommitRequest, until: float, last: SlateError
    ) -> entry_service_pb2.CommitResponse:
        """The answer to a commit whose reply never came, from the board's log, if there is time to ask."""
        left = until - shim.monotonic()
        question = entry_service_pb2.GetCommitRequest(board=self.name, request_id=request.request_id)
        hint = "it may or may not have happened"
        if left > 0 and not request.validate_only:
            try:
                found = self.calls.call(_methods.GET_COMMIT, question, timeout=left)
            except NotFound:
                # An attempt may still be on its way, so this is no proof that it never will.
                hint = "it has not happened so far"
            except SlateError:
                pass
            else:
                if len(found.commit.results) == len(request.ops):
                    header = types_pb2.ResponseHeader()
                    header.CopyFrom(found.header)
                    header.revision = found.commit.revision
                    return entry_service_pb2.CommitResponse(
                        header=header,
                        commit_id=found.commit.commit_id,
                        commit_time=found.commit.commit_time,
                        results=found.commit.results,
                        replayed=True,
                    )
                hint = f"it happened, at revision {found.commit.revision}"
        raise OutcomeUnknown(
            f"no answer to a commit ({last.message}): {hint}. Sending it again with this request_id is safe",
            request_id=request.request_id,
            reason=last.reason,
            metadata=last.metadata,
        ) from last

    def _retrying(self, error: SlateError) -> None:
        self.counters.add("retries")
        logger.debug("board %s: sending again after: %s", self.name, error)


def consistency(at: int | None, at_least: int | None, stale: bool) -> types_pb2.Consistency | None:
    """Which state a read may answer from; None is the default, LATEST.

    Raises:
        Invalid: more than one was asked for, or a revision below 1.
    """
    if (at is not None) + (at_least is not None) + stale > 1:
        raise Invalid("a read takes one of at=, at_least= and stale=True", metadata={"field": "consistency"})
    if stale:
        return types_pb2.Consistency(mode=types_pb2.CONSISTENCY_MODE_STALE)
    revision = at if at is not None else at_least
    if revision is None:
        return None
    if revision < 1:
        raise Invalid(f"a revision is 1 or more, not {revision!r}", metadata={"field": "consistency"})
    exact = types_pb2.CONSISTENCY_MODE_EXACT
    mode = exact if at is not None else types_pb2.CONSISTENCY_MODE_AT_LEAST
    return types_pb2.Consistency(mode=mode, revision=revision)
