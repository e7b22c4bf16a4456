"""Reads and writes that are checked together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import random
from types import TracebackType
from typing import TypeVar, Unpack, overload

from slateboard import _results
from slateboard import _shim_async as shim
from slateboard._async.core import AsyncCore
from slateboard._async.reading import MISSING, AsyncReader, Missing
from slateboard._entries import Entry, Snapshot
from slateboard._ops import Append, ContentOptions, Delete, Guard, Op, Put, Unchanged, make_precondition
from slateboard._retry import backoff
from slateboard._values import Duration, Value
from slateboard.errors import Conflict, Invalid, NotFound

T = TypeVar("T")
Self = TypeVar("Self", bound="AsyncTransaction")

_Place = tuple[str, str]


class AsyncTransaction:
    """See `board.transaction`. All reads show one revision; writes are kept until the end.

    A key that was read may be written without a precondition: what was read must still hold. One that was not needs
    one of expect, absent, exists and any_state, as everywhere. A key can be read again after it was written: the
    answer is what will be written, with version 0.
    """

    def __init__(self, core: AsyncCore, region: str, *, note: str, timeout: Duration | None) -> None:
        self._core = core
        self._region = region
        self._reader = AsyncReader(core, region)
        self._note = note
        self._timeout = timeout
        self._revision: int | None = None
        self._incarnation = ""
        self._read: dict[_Place, Entry | None] = {}
        self._listed: dict[_Place, None] = {}
        self._sources: dict[_Place, Entry] = {}
        self._writes: dict[_Place, Op] = {}
        self._appends: list[Op] = []
        self._open = False
        self.result: _results.CommitResult | None = None
        """The commit, once it is done; None where nothing was written."""

    async def __aenter__(self: Self) -> Self:
        if self._open or self.result is not None:
            raise Invalid("a transaction runs once", metadata={"field": "transaction"})
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if kind is None:
            await self._commit()

    @overload
    async def get(self, key: str, *, region: str | None = None) -> Entry: ...

    @overload
    async def get(self, key: str, default: T, *, region: str | None = None) -> Entry | T: ...

    async def get(self, key: str, default: T | Missing = MISSING, *, region: str | None = None) -> Entry | T:
        """An entry. That it (or its absence) is unchanged is checked at the commit.

        Raises:
            NotFound: the key is absent and no default was given.
        """
        found = await self.get_many([key], region=region)
        if key in found:
            return found[key]
        if isinstance(default, Missing):
            raise NotFound(
                f"nothing is stored under {key!r}, or you may not see it. `default=` avoids this error",
                reason="KEY_NOT_FOUND",
                metadata={"key": key},
            )
        return default

    async def get_many(self, keys: Iterable[str], *, region: str | None = None) -> Snapshot:
        """Several entries, as `get`."""
        self._check_open()
        where = await self._where(region)
        wanted = list(dict.fromkeys(keys))
        unread = [key for key in wanted if (where, key) not in self._read | self._writes]
        if unread or self._revision is None:
            fresh = await self._reader.get_many(
                unread or wanted,
                region=where,
                at=self._revision or None,
                incarnation=self._incarnation,
                timeout=self._timeout,
            )
            self._pin(fresh.revision, fresh.incarnation)
            for key in unread:
                self._read[where, key] = entry = fresh.get(key)
                if entry is not None:
                    self._sources[where, key] = entry
        found: dict[str, Entry] = {}
        for key in wanted:
            written = self._writes.get((where, key))
            entry = self._pending(written, where) if written is not None else self._read[where, key]
            if entry is not None:
                found[key] = entry
        absent = [key for key in wanted if key not in found]
        return Snapshot(found, revision=self._revision or 0, incarnation=self._incarnation, absent=absent)

    async def list(self, prefix: str = "", *, region: str | None = None) -> Sequence[Entry]:
        """What was below a prefix, without this transaction's own writes.

        That nothing below it has changed, nor been added, is checked at the commit.
        """
        self._check_open()
        where = await self._where(region)
        pages = self._reader.list(prefix, region=where, at=self._revision or None, timeout=self._timeout)
        entries = await pages.all()
        self._pin(pages.revision, entries[0].incarnation if entries else self._incarnation)
        self._listed[where, prefix] = None
        for entry in entries:
            self._sources[where, entry.key] = entry
        return entries

    async def put(
        self,
        key: str,
        value: Value,
        *,
        expect: Entry | int | None = None,
        absent: bool = False,
        exists: bool = False,
        any_state: bool = False,
        region: str | None = None,
        **options: Unpack[ContentOptions],
    ) -> None:
        """Writes a value at the commit. Made from all that was read before, unless `derived_from` says otherwise."""
        self._check_open()
        where = await self._where(region)
        expect, absent = self._implied(where, key, expect, absent, exists, any_state)
        self._record(options)
        op = Put(
            key,
            value,
            expect=expect,
            absent=absent,
            exists=exists,
            any_state=any_state,
            region=where,
            **options,
        )
        self._writes[where, key] = op

    async def delete(
        self,
        key: str,
        *,
        expect: Entry | int | None = None,
        absent: bool = False,
        exists: bool = False,
        any_state: bool = False,
        region: str | None = None,
        note: str = "",
    ) -> None:
        """Removes a key at the commit."""
        self._check_open()
        where = await self._where(region)
        expect, absent = self._implied(where, key, expect, absent, exists, any_state)
        if absent:
            # Nothing was there: what this transaction wrote itself is taken back, and absence is checked.
            self._writes.pop((where, key), None)
            return
        op = Delete(key, expect=expect, exists=exists, any_state=any_state, region=where, note=note)
        self._writes[where, key] = op

    async def append(
        self,
        prefix: str,
        value: Value,
        *,
        region: str | None = None,
        **options: Unpack[ContentOptions],
    ) -> None:
        """Adds a value below a prefix at the commit."""
        self._check_open()
        self._record(options)
        where = await self._where(region)
        self._appends.append(Append(prefix, value, region=where, **options))

    async def _commit(self) -> None:
        ops = [*self._writes.values(), *self._appends]
        if not ops:
            return
        self.result = await self._core.commit(
            ops,
            self._guards(),
            region=self._region,
            note=self._note,
            incarnation=self._incarnation,
            timeout=self._timeout,
        )

    def _guards(self) -> Sequence[Guard]:
        """What was read and is not already checked by the op that writes it."""
        guards: list[Guard] = []
        for (region, key), entry in self._read.items():
            op = self._writes.get((region, key))
            if isinstance(op, (Put, Delete)) and _same_check(op, entry):
                continue
            version = 0 if entry is None else entry.version
            guards.append(Unchanged(key=key, version=version, region=region))
        for region, prefix in self._listed:
            guards.append(Unchanged(prefix=prefix, since=self._revision or 0, region=region))
        return guards

    def _implied(
        self,
        region: str,
        key: str,
        expect: Entry | int | None,
        absent: bool,
        exists: bool,
        any_state: bool,
    ) -> tuple[Entry | int | None, bool]:
        """The precondition: the one given, else the one of an earlier write here, else what was read."""
        if expect is not None or absent or exists or any_state:
            if isinstance(expect, Entry) and expect.version == 0:
                expect = None  # read back from this transaction
            else:
                return expect, absent
        earlier = self._writes.get((region, key))
        if isinstance(earlier, (Put, Delete)):
            if earlier.precondition.WhichOneof("condition") == "must_not_exist":
                return None, True
            if earlier.expect is not None:
                return earlier.expect, False
        if (region, key) in self._read:
            entry = self._read[region, key]
            return entry, entry is None
        make_precondition(key, expect, absent, exists, None, any_state)  # raises: none was given
        return expect, absent

    def _record(self, options: ContentOptions) -> None:
        if "derived_from" not in options and self._sources:
            options["derived_from"] = list(self._sources.values())

    def _pending(self, op: Op, region: str) -> Entry | None:
        if not isinstance(op, Put):
            return None
        return Entry(
            board=self._core.name,
            region=region,
            key=op.key,
            version=0,
            size=len(op.content.value),
            raw=op.content.value,
            content_type=op.content.content_type,
        )

    def _pin(self, revision: int, incarnation: str) -> None:
        """Later reads show the revision of the first. A board at revision 0 is empty and cannot be read `at` it."""
        if not self._revision:
            self._revision = revision
        self._incarnation = self._incarnation or incarnation

    async def _where(self, region: str | None) -> str:
        return await self._core.region(region or self._region)

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid(
                "the transaction is over, or was not entered: `with board.transaction() as tx`",
                metadata={"field": "transaction"},
            )


async def run(
    core: AsyncCore,
    region: str,
    fn: Callable[[AsyncTransaction], Awaitable[T]],
    *,
    note: str,
    timeout: Duration | None,
) -> T:
    """See `board.run`."""
    until = shim.monotonic() + core.calls.seconds(timeout)
    policy = core.calls.retry
    failures = 0
    while True:
        left = max(0.001, until - shim.monotonic())
        try:
            async with AsyncTransaction(core, region, note=note, timeout=left) as transaction:
                answer = await fn(transaction)
            return answer
        except Conflict as error:
            failures += 1
            pause = backoff(policy, failures, random(), error)  # noqa: S311 -- spreads retries, guards nothing
            if failures >= policy.conflict_attempts or shim.monotonic() + pause >= until:
                raise
            await shim.sleep(pause)


def _same_check(op: Put | Delete, entry: Entry | None) -> bool:
    """Whether an op's precondition already says that what was read still holds."""
    if entry is None:
        return op.precondition.WhichOneof("condition") == "must_not_exist"
    return op.precondition.version_equals == entry.version
