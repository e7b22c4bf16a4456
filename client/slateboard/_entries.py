"""Entries and where they came from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from slateboard import _values
from slateboard._enums import Kind, Tombstone, Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One version that was used to make a value."""

    region: str = "shared"
    key: str = ""
    version: int = 0
    op: int | None = None
    """Index of an earlier put or append of the same commit; key and version then stay empty."""
    hidden: bool = False
    """In answers: the caller may not see the source; the other fields are empty."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """Sources that were all used. Several derivations of one version are independent statements of it."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a version came from."""

    principal: str = ""
    """Who wrote it. Empty in what a write returns: the reply does not repeat it."""
    session_id: str = ""
    turn: str = ""
    tool: str = ""
    source_uris: tuple[str, ...] = ()
    derivations: tuple[Derivation, ...] = ()
    traceparent: str = ""
    note: str = ""
    derivation_waived: bool = False
    """The writer stated that none of what it had read was used (`derived_from=[]`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A version of a key. What the read's view left out is None or empty."""

    board: str
    region: str
    key: str
    version: int
    """1, 2, 3 ...; deletes count. 0 only inside a transaction, for what is not committed yet."""
    etag: str = ""
    create_revision: int = 0
    """Revision of the first version since the key last came into being; 0 where a write's reply cannot tell."""
    mod_revision: int = 0
    """Revision that made this version."""
    commit_time: datetime | None = None
    incarnation: str = ""
    """Which life of the board the version and revisions belong to."""
    tombstone: Tombstone | None = None
    """Set where this version marks an absence; only history and watch return such entries."""
    compacted: bool = False
    size: int = 0
    """Bytes of the value, also where the view leaves the value out."""
    raw: bytes | None = None
    """The value as stored; None where it was not read."""
    content_type: str = ""
    kind: Kind = Kind.WORKING
    subject: str = ""
    attribute: str = ""
    topics: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    confidence: float = 1.0
    importance: float = 0.5
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expire_time: datetime | None = None
    trust: Trust = Trust.QUARANTINED
    """The trust that counts. Where a view leaves it out, the lowest."""
    provenance: Provenance = Provenance()
    _decoded: list[Any] = field(init=False, default_factory=list, repr=False, compare=False)

    @property
    def value(self) -> Any:
        """The value: JSON decoded, `text/*` as str, everything else as bytes. None where it was not read.

        Decoded once, at first use. Do not change it in place: the entry stays what was read only in `raw`.
        """
        if not self._decoded:
            self._decoded.append(None if self.raw is None else _values.decode(self.raw, self.content_type))
        return self._decoded[0]

    @property
    def present(self) -> bool:
        """Whether the version holds a value, rather than marking an absence."""
        return self.tombstone is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated(Entry):
    """What `board.update()` made, and what it took."""

    conflicts: int = 0
    """How often somebody else was faster."""
    merged: bool = False
    """Whether the value holds somebody else's concurrent change beside one's own."""
    reran: int = 0
    """How often the function ran again on somebody else's value."""
    changed: bool = True
    """False where the function changed nothing, so nothing was committed."""


class Snapshot(Mapping[str, Entry]):
    """Entries of several keys at one revision. Absent keys are not in it."""

    __slots__ = ("_entries", "absent", "incarnation", "revision")

    def __init__(
        self, entries: Mapping[str, Entry], *, revision: int, incarnation: str, absent: Sequence[str]
    ) -> None:
        self._entries = dict(entries)
        self.revision = revision
        """The revision all of it was read at."""
        self.incarnation = incarnation
        self.absent = tuple(absent)
        """Keys that were asked for and are not there."""

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Snapshot(revision={self.revision}, keys={list(self._entries)}, absent={list(self.absent)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All visible changes of one revision."""

    revision: int
    entries: tuple[Entry, ...]
    """Deletes are entries whose `tombstone` is set. Empty where `progress=True` was asked for and nothing happened."""
    incarnation: str = ""
    commit_time: datetime | None = None
    principal: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPage(Batch):
    """Present entries at one revision, a page of them. At `first`, forget what was kept before."""

    first: bool
    last: bool
