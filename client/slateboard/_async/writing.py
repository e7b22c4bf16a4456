"""What can be written to a board, from a board object or through a lock that is held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from slateboard._async.core import AsyncCore, Claimed, Presented
from slateboard._async.reading import MISSING, AsyncReader, Missing
from slateboard._async.transaction import AsyncTransaction, run
from slateboard._async.update import update
from slateboard._entries import Entry, Updated
from slateboard._locks import LockClaim
from slateboard._ops import Append, ContentOptions, Delete, Guard, Op, Put
from slateboard._overlap import Overlap
from slateboard._results import CommitResult, OpResult
from slateboard._shim_async import MaybeAwaitable
from slateboard._values import Duration, Value
from slateboard._written import written

if TYPE_CHECKING:
    from slateboard._async.lock import AsyncLock

T = TypeVar("T")


class AsyncWriter(AsyncReader):
    """Reads and writes in one region of a board.

    Every call may raise any SlateError; what is special is listed. `timeout` bounds a whole call, retries included.
    """

    async def put(
        self,
        key: str,
        value: Value,
        *,
        expect: Entry | int | None = None,
        absent: bool = False,
        exists: bool = False,
        etag: str | None = None,
        any_state: bool = False,
        region: str | None = None,
        unchanged: Sequence[Guard] = (),
        claims: Sequence[AsyncLock | LockClaim] = (),
        request_id: str | None = None,
        timeout: Duration | None = None,
        **options: Unpack[ContentOptions],
    ) -> Entry:
        """Writes a value, given exactly one of expect, absent, exists, etag and any_state.

        `expect` is an entry of the same key as it was read, or its version. `unchanged` names what else must not have
        changed; `claims` are locks that must still be held. A request_id is made for each call; give one only to repeat a write whose outcome is unknown.

        Returns:
            The entry as written. Its provenance lacks the principal.

        Raises:
            Conflict: the precondition, or something unchanged, did not hold.
            Invalid: none or several preconditions, or a value that JSON cannot say.
        """
        op = Put(
            key,
            value,
            expect=expect,
            absent=absent,
            exists=exists,
            etag=etag,
            any_state=any_state,
            region=region,
            **options,
        )
        result = await self.commit([op], unchanged, claims=claims, request_id=request_id, timeout=timeout)
        return written(self._core.name, op, result, 0)

    async def append(
        self,
        prefix: str,
        value: Value,
        *,
        region: str | None = None,
        unchanged: Sequence[Guard] = (),
        claims: Sequence[AsyncLock | LockClaim] = (),
        request_id: str | None = None,
        timeout: Duration | None = None,
        **options: Unpack[ContentOptions],
    ) -> Entry:
        """Adds a value below a prefix under a key the server names, in the order of commits. Conflicts with nobody."""
        op = Append(prefix, value, region=region, **options)
        result = await self.commit([op], unchanged, claims=claims, request_id=request_id, timeout=timeout)
        return written(self._core.name, op, result, 0)

    async def delete(
        self,
        key: str,
        *,
        expect: Entry | int | None = None,
        absent: bool = False,
        exists: bool = False,
        etag: str | None = None,
        any_state: bool = False,
        region: str | None = None,
        note: str = "",
        unchanged: Sequence[Guard] = (),
        claims: Sequence[AsyncLock | LockClaim] = (),
        request_id: str | None = None,
        timeout: Duration | None = None,
    ) -> OpResult:
        """Removes a key, given one precondition as for `put`. This makes a version too.

        Returns:
            What it did: `changed` is False where `any_state` found nothing to delete.
        """
        op = Delete(
            key,
            expect=expect,
            absent=absent,
            exists=exists,
            etag=etag,
            any_state=any_state,
            region=region,
            note=note,
        )
        result = await self.commit([op], unchanged, claims=claims, request_id=request_id, timeout=timeout)
        return result.results[0]

    async def commit(
        self,
        ops: Sequence[Op],
        guards: Sequence[Guard] = (),
        *,
        note: str = "",
        claims: Sequence[AsyncLock | LockClaim] = (),
        validate_only: bool = False,
        request_id: str | None = None,
        timeout: Duration | None = None,
    ) -> CommitResult:
        """Applies up to 128 ops, all or none, if nothing guarded has changed.

        `claims` are locks that must still be held; one that is written through need not be named. `validate_only`
        judges and writes nothing. Entries among the guards, or expected by ops, must come from the
        board's present life.

        Raises:
            Conflict: with all violations.
            LockHeld: somebody's lock covers a key.
            LockLost: a claimed lock is not held any more.
            OutcomeUnknown: no answer came in time; nobody knows whether it happened.
            Reincarnated: the board began a new life since the entries were read.
        """
        return await self._core.commit(
            ops,
            guards,
            region=self._region,
            note=note,
            claims=_presented(claims),
            validate_only=validate_only,
            request_id=request_id,
            timeout=timeout,
        )

    async def update(
        self,
        key: str,
        fn: Callable[[Any], MaybeAwaitable[Value]],
        default: Value | Missing = MISSING,
        *,
        on_conflict: Callable[[Overlap], MaybeAwaitable[Value]] | None = None,
        region: str | None = None,
        unchanged: Sequence[Guard] = (),
        claims: Sequence[AsyncLock | LockClaim] = (),
        timeout: Duration | None = None,
        **options: Unpack[ContentOptions],
    ) -> Updated:
        """Reads a value, changes it with `fn`, and commits; somebody else's concurrent change is never overwritten.

        If somebody was faster, the key is read again and the three values (base, theirs, mine) are merged: JSON changes
        in different places merge by themselves; a list only if one side changed it. Where both changed the same
        place, `on_conflict` decides and returns the whole value to write. Without it `fn` runs again on their value:
        if its answer there takes theirs into account (an increment, an append), that stands; if it insists on what it
        had answered before, Conflict is raised with `overlaps`.

        The versions read are recorded as sources, besides those in `derived_from`; `derived_from=[]` waives that. What
        the entry says beside its value (kind, labels ...) is kept unless given here.

        Args:
            key: The key.
            fn: Gets a fresh copy of the value and returns the new one; it may change its argument and return it. What
                it raises is raised here, and nothing is written.
            default: The value to start from where the key is absent.
            on_conflict: Settles an Overlap; what it raises is raised here.
            region: Another region than this board's.
            unchanged: What else must not have changed; if it has, Conflict is raised.
            claims: Locks that must still be held.
            timeout: Bounds the whole update.
            options: As for `put`.

        Raises:
            NotFound: the key is absent and no default was given.
            Conflict: overlapping changes, or no success within the retry policy.
        """
        return await update(
            self,
            self._under(claims),
            key,
            fn,
            default,
            on_conflict=on_conflict,
            region=await self._core.region(region or self._region),
            unchanged=unchanged,
            timeout=timeout,
            options=options,
        )

    def transaction(
        self,
        *,
        note: str = "",
        claims: Sequence[AsyncLock | LockClaim] = (),
        timeout: Duration | None = None,
    ) -> AsyncTransaction:
        """Reads and writes that are checked together, one attempt; a context manager that commits at its end.

        What is read in it must be unchanged at the commit (a listed prefix too), else Conflict is raised. If the body
        raises, nothing is written. What was read is recorded as the source of what is written. `claims` are locks that
        must be held all the while.
        """
        return AsyncTransaction(self._under(claims), self._region, note=note, timeout=timeout)

    async def run(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        note: str = "",
        claims: Sequence[AsyncLock | LockClaim] = (),
        timeout: Duration | None = None,
    ) -> T:
        """Runs `fn` in a transaction and returns what it returned; on Conflict runs it again, jittered and bounded.

        `fn` may run several times: apart from the transaction it should have no effects.

        Raises:
            Conflict: no success within the retry policy.
        """
        return await run(self._under(claims), self._region, fn, note=note, timeout=timeout)

    def _under(self, claims: Sequence[AsyncLock | LockClaim]) -> AsyncCore:
        return self._core.under(*_presented(claims)) if claims else self._core


def _presented(claims: Sequence[AsyncLock | LockClaim]) -> Sequence[Claimed]:
    return [Presented(one) if isinstance(one, LockClaim) else one for one in claims]
