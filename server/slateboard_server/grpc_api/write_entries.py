"""From versions to entries, as one reader may see them.

The encoding of a version is kept in `VersionRecord.memo`, in two parts around the value: the value itself is not kept
twice. What depends on the reader (which sources may be seen) is never kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from slateboard.v1 import types_pb2
from slateboard_server.domain.entry import Derivation, VersionRecord
from slateboard_server.domain.etag import make_etag
from slateboard_server.domain.names import SHARED
from slateboard_server.domain.values import Etag, Incarnation, Key, Region, Version
from slateboard_server.grpc_api.times import set_time
from slateboard_server.grpc_api.wire import delimited, tag, varint
from slateboard_server.services.directory import BoardHandle
from slateboard_server.services.model import Caller
from slateboard_server.services.scope import Scope


class View(IntEnum):
    """How much of an entry is told. Numbers are those of the API."""

    KEYS = 1
    META = 2
    FULL = 3


_CONTENT: Final = tag(11)
_VALUE: Final = tag(1)
_MEMO: Final = "entry"


class EntryWriter:
    """Writes the entries of one board for one reader."""

    __slots__ = ("_all_sources", "_incarnation", "_scope", "_secret")

    def __init__(self, secret: bytes, incarnation: Incarnation, scope: Scope) -> None:
        """Name versions by etags of `secret` and `incarnation`; show the sources that `scope` lets see."""
        self._secret = secret
        self._incarnation = incarnation
        self._scope = scope
        self._all_sources = scope.sees_all_shared

    @classmethod
    def of(cls, handle: BoardHandle, caller: Caller) -> EntryWriter:
        """Write the entries of an open board for a caller."""
        return cls(handle.meta.secret, handle.feed.incarnation, Scope(caller))

    def etag(self, region: Region, key: Key, version: Version) -> Etag:
        """Return the etag of a version."""
        return make_etag(self._secret, self._incarnation, region, key, version)

    def encode(self, record: VersionRecord, view: View) -> bytes:
        """Return the encoded Entry."""
        head, rest = self._parts(record)
        if view is View.KEYS:
            return head
        if view is View.FULL and record.value:
            size = len(record.value)
            length = varint(size)
            whole = 1 + len(length) + size + len(rest)
            return b"".join((head, _CONTENT, varint(whole), _VALUE, length, record.value, rest))
        return b"".join((head, _CONTENT, varint(len(rest)), rest))

    def encode_withheld(self, record: VersionRecord) -> bytes:
        """Return the encoded Entry of a version below the reader's floor: its name and its trust."""
        head, _ = self._parts(record)
        return head + delimited(_CONTENT, types_pb2.Content(trust=_trust(record.trust)).SerializeToString())

    def message(self, record: VersionRecord, view: View) -> types_pb2.Entry:
        """Return the entry as a message, for replies that are put together by protobuf."""
        return types_pb2.Entry.FromString(self.encode(record, view))

    def _parts(self, record: VersionRecord) -> tuple[bytes, bytes]:
        memo = record.memo.get(_MEMO)
        if memo is not None and memo[0] == self._incarnation:  # type: ignore[index]  # only written below
            head, rest = memo[1], memo[2]  # type: ignore[index]
        else:
            head = self._head(record).SerializeToString()
            # With sources in private regions the encoding is nobody else's business.
            rest = (
                None if record.derivations and not self._can_keep(record.derivations) else self._rest(record)
            )
            record.memo[_MEMO] = (self._incarnation, head, rest)
        if rest is None or (record.derivations and not self._all_sources):
            rest = self._rest(record)
        return head, rest

    def _can_keep(self, derivations: Iterable[Derivation]) -> bool:
        """Tell whether everybody who sees the whole shared region sees the same derivations as this reader."""
        return self._all_sources and all(
            source.region == SHARED for derivation in derivations for source in derivation
        )

    def _head(self, record: VersionRecord) -> types_pb2.Entry:
        entry = types_pb2.Entry(
            region=record.region,
            key=record.key,
            version=record.version,
            etag=self.etag(record.region, record.key, record.version),
            create_revision=record.create_revision,
            mod_revision=record.mod_revision,
            tombstone=types_pb2.Tombstone.ValueType(record.tombstone),
            compacted=record.compacted,
            size=record.size,
        )
        set_time(entry.commit_time, record.commit_time)
        return entry

    def _rest(self, record: VersionRecord) -> bytes:
        """Encode the content without its value."""
        notes = record.annotations
        content = types_pb2.Content(
            content_type=record.content_type,
            subject=notes.subject,
            attribute=notes.attribute,
            topics=notes.topics,
            labels=dict(notes.labels),
            trust=_trust(record.trust),
        )
        if record.is_value and not record.compacted:
            content.kind = types_pb2.Kind.ValueType(record.kind)
            content.confidence = notes.confidence
            content.importance = notes.importance
        if notes.valid_from is not None:
            set_time(content.valid_from, notes.valid_from)
        if notes.valid_to is not None:
            set_time(content.valid_to, notes.valid_to)
        if record.expire_time is not None:
            set_time(content.expire_time, record.expire_time)
        provenance = content.provenance
        provenance.principal = record.principal
        provenance.session_id = record.session_id or ""
        provenance.turn = notes.turn
        provenance.tool = notes.tool
        provenance.source_uris.extend(notes.source_uris)
        provenance.traceparent = notes.traceparent
        provenance.note = notes.note
        provenance.derivation_waived = notes.derivation_waived
        provenance.derivations.extend(self._derivations(record.derivations))
        return content.SerializeToString()

    def _derivations(self, derivations: Iterable[Derivation]) -> list[types_pb2.Derivation]:
        """Show what may be seen. The rest of a derivation is one hidden source, and all hidden derivations are one."""
        shown: list[types_pb2.Derivation] = []
        has_hidden = False
        for derivation in derivations:
            made = types_pb2.Derivation()
            hides = False
            for source in derivation:
                if self._scope.may_read(source.region, source.key):
                    made.sources.add(region=source.region, key=source.key, version=source.version)
                else:
                    hides = True
            if hides and not made.sources:
                if has_hidden:
                    continue
                has_hidden = True
            if hides:
                made.sources.add(hidden=True)
            shown.append(made)
        return shown


def _trust(number: int) -> types_pb2.Trust.ValueType:
    return types_pb2.Trust.ValueType(number)
