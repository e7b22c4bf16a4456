"""What a commit is made of: ops, guards, and the options of a value. Checks here what needs no server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias, TypedDict, Unpack

from slateboard import _values
from slateboard._entries import Derivation, Entry, Source
from slateboard._enums import Kind, Trust
from slateboard._values import Duration, Value
from slateboard.errors import Invalid, Reincarnated
from slateboard.v1 import commit_pb2, types_pb2

MAX_SOURCES = 256
"""Sources of one derivation, as the API bounds them."""

Used: TypeAlias = Entry | Source | Derivation
"""Something a value was made from."""


class ContentOptions(TypedDict, total=False):
    """What can be said about a value beside the value. Each is optional."""

    content_type: str
    """Default: text for str, bytes for bytes, else JSON."""
    kind: Kind
    subject: str
    """Who or what it is about."""
    attribute: str
    """Which property of the subject."""
    topics: Sequence[str]
    labels: Mapping[str, str]
    confidence: float
    """0 to 1; default 1."""
    importance: float
    """0 to 1; default 0.5."""
    valid_from: datetime
    valid_to: datetime
    expire_time: datetime
    """From this moment on the entry is absent; with a time zone."""
    ttl: Duration
    """Instead of expire_time: absent this long after the commit, by the server's clock. At least a second."""
    trust: Trust
    """The trust asked for; the stored one can only be lower."""
    turn: str
    tool: str
    source_uris: Sequence[str]
    traceparent: str
    note: str
    derived_from: Sequence[Used]
    """What on the board the value was made from; all of it was used. Derivations in it are independent statements.
    `[]` states that nothing was, although this client has read things (audited)."""


_OPTIONS = frozenset(ContentOptions.__annotations__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """A guard: a key is still at a version (0: absent), or nothing under a prefix changed since a revision.

    `Unchanged(key="plan/current", version=3)`, `Unchanged(prefix="plan/", since=41)`.
    """

    key: str | None = None
    version: int | None = None
    prefix: str | None = None
    since: int | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        by_key = self.key is not None and self.version is not None
        by_prefix = self.prefix is not None and self.since is not None
        given = sum(field is not None for field in (self.key, self.version, self.prefix, self.since))
        if given != 2 or by_key == by_prefix:
            raise Invalid(
                "Unchanged takes key= and version=, or prefix= and since=", metadata={"field": "guards"}
            )


class Put:
    """An op that writes a value under a key, given exactly one precondition.

    `expect` is an Entry of the same key, or a version; `absent`, `exists` and `any_state` are flags.

    Raises:
        Invalid: no precondition or several, or options that make no sense.
    """

    __slots__ = ("content", "etag", "expect", "key", "options", "precondition", "region")

    def __init__(
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
        **options: Unpack[ContentOptions],
    ) -> None:
        self.key = key
        self.region = region
        self.expect = expect
        self.precondition = make_precondition(key, expect, absent, exists, etag, any_state)
        self.options = options
        self.content = make_content(value, options)

    def __repr__(self) -> str:
        return f"Put({self.key!r}, <{len(self.content.value)} bytes>)"


class Delete:
    """An op that removes a value, given exactly one precondition.

    Raises:
        Invalid: no precondition, or several.
    """

    __slots__ = ("expect", "key", "note", "precondition", "region")

    def __init__(
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
    ) -> None:
        self.key = key
        self.region = region
        self.expect = expect
        self.note = note
        self.precondition = make_precondition(key, expect, absent, exists, etag, any_state)

    def __repr__(self) -> str:
        return f"Delete({self.key!r})"


class Append:
    """An op that adds a value under a prefix; the server names the key, in the order of commits.

    Raises:
        Invalid: the prefix is empty, or options that make no sense.
    """

    __slots__ = ("content", "options", "prefix", "region")

    def __init__(
        self, prefix: str, value: Value, *, region: str | None = None, **options: Unpack[ContentOptions]
    ) -> None:
        if not prefix.endswith("/"):
            raise Invalid(f"append goes under a prefix: write {prefix + '/'!r}", metadata={"field": "prefix"})
        self.prefix = prefix
        self.region = region
        self.options = options
        self.content = make_content(value, options)

    def __repr__(self) -> str:
        return f"Append({self.prefix!r}, <{len(self.content.value)} bytes>)"


Op: TypeAlias = Put | Delete | Append
Guard: TypeAlias = Entry | Unchanged
"""What must not have changed: an entry as it was read, or an `Unchanged`."""


def make_precondition(
    key: str, expect: Entry | int | None, absent: bool, exists: bool, etag: str | None, any_state: bool
) -> commit_pb2.Precondition:
    """The one precondition that was given.

    Raises:
        Invalid: none or several were; or the entry expected is one of another key, or an absence.
    """
    given = [
        name
        for name, is_given in (
            ("expect", expect is not None),
            ("absent", absent),
            ("exists", exists),
            ("etag", etag is not None),
            ("any_state", any_state),
        )
        if is_given
    ]
    if len(given) != 1:
        found = "none was given" if not given else f"{' and '.join(given)} were given"
        raise Invalid(
            f"writing {key!r} needs exactly one of expect=, absent=True, exists=True, etag= and any_state=True; "
            f"{found}. To replace what you read, pass expect=<that entry>; to create, absent=True",
            reason="PRECONDITION_REQUIRED",
            metadata={"field": "precondition", "key": key},
        )
    if absent:
        return commit_pb2.Precondition(must_not_exist=True)
    if exists:
        return commit_pb2.Precondition(must_exist=True)
    if any_state:
        return commit_pb2.Precondition(any_state=True)
    if etag is not None:
        if not etag:
            raise Invalid("an empty etag matches nothing", reason="ETAG_INVALID", metadata={"field": "etag"})
        return commit_pb2.Precondition(etag_equals=etag)
    return commit_pb2.Precondition(version_equals=_expected_version(key, expect))


def _expected_version(key: str, expect: Entry | int | None) -> int:
    if isinstance(expect, Entry):
        if expect.key != key:
            raise Invalid(
                f"expect= is an entry of {expect.key!r}, but {key!r} is written", metadata={"field": "expect"}
            )
        if not expect.present:
            raise Invalid(
                f"expect= is a version of {key!r} that marks an absence: say absent=True",
                metadata={"field": "expect"},
            )
        expect = expect.version
    if not isinstance(expect, int) or isinstance(expect, bool) or expect < 1:
        raise Invalid(
            f"expect= takes an entry or its version (1, 2, 3 ...), not {expect!r}",
            metadata={"field": "expect"},
        )
    return expect


def make_content(value: Value, options: ContentOptions) -> types_pb2.Content:
    """The content of a put or append; its derivations are added when the commit is made.

    Raises:
        TypeError: an option that does not exist.
        Invalid: a value that cannot be encoded, or a time without a zone.
    """
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}; there are {', '.join(sorted(_OPTIONS))}")
    raw, content_type = _values.encode(value, options.get("content_type"))
    content = types_pb2.Content(
        value=raw,
        content_type=content_type,
        kind=options["kind"].value if "kind" in options else types_pb2.KIND_UNSPECIFIED,  # type: ignore[arg-type]
        subject=options.get("subject", ""),
        attribute=options.get("attribute", ""),
        topics=_texts(options.get("topics", ()), "topics"),
        labels=options.get("labels", {}),
        trust=options["trust"].value if "trust" in options else types_pb2.TRUST_UNSPECIFIED,  # type: ignore[arg-type]
        provenance=types_pb2.Provenance(
            turn=options.get("turn", ""),
            tool=options.get("tool", ""),
            source_uris=_texts(options.get("source_uris", ()), "source_uris"),
            traceparent=options.get("traceparent", ""),
            note=options.get("note", ""),
        ),
    )
    if "confidence" in options:
        content.confidence = options["confidence"]
    if "importance" in options:
        content.importance = options["importance"]
    if "valid_from" in options:
        content.valid_from.FromDatetime(_values.aware(options["valid_from"], "valid_from"))
    if "valid_to" in options:
        content.valid_to.FromDatetime(_values.aware(options["valid_to"], "valid_to"))
    if "expire_time" in options:
        content.expire_time.FromDatetime(_values.aware(options["expire_time"], "expire_time"))
    if "ttl" in options:
        if "expire_time" in options:
            raise Invalid("give expire_time or ttl, not both", metadata={"field": "ttl"})
        content.ttl.FromTimedelta(timedelta(seconds=_values.seconds(options["ttl"], "ttl")))
    return content


def options_of(entry: Entry) -> ContentOptions:
    """What an entry says about its value, so that a change of the value can keep it."""
    kept: ContentOptions = {
        "kind": entry.kind,
        "subject": entry.subject,
        "attribute": entry.attribute,
        "topics": entry.topics,
        "labels": entry.labels,
        "confidence": entry.confidence,
        "importance": entry.importance,
    }
    if entry.valid_from is not None:
        kept["valid_from"] = entry.valid_from
    if entry.valid_to is not None:
        kept["valid_to"] = entry.valid_to
    if entry.expire_time is not None:
        kept["expire_time"] = entry.expire_time
    return kept


def derive(content: types_pb2.Content, used: Iterable[Used] | None, region: str) -> None:
    """Writes into a content what it was derived from. None: unknown; empty: waived.

    Raises:
        Invalid: a mixture of single sources and derivations, too many sources, or an entry that is not committed.
    """
    if used is None:
        return
    items = list(used)
    provenance = content.provenance
    del provenance.derivations[:]
    provenance.derivation_waived = not items
    groups: list[Sequence[Entry | Source]] = [item.sources for item in items if isinstance(item, Derivation)]
    single = [item for item in items if not isinstance(item, Derivation)]
    if groups and single:
        raise Invalid(
            "derived_from= takes entries that were all used, or Derivations, not both",
            metadata={"field": "derived_from"},
        )
    if single:
        groups = [single]
    for group in groups:
        sources = {_source_key(item, region): _source(item, region) for item in group}
        if len(sources) > MAX_SOURCES:
            raise Invalid(
                f"{len(sources)} sources were read, at most {MAX_SOURCES} can be named: pass derived_from= with "
                "those that were used, or write in steps",
                reason="TOO_MANY",
                metadata={
                    "field": "derived_from",
                    "limit": str(MAX_SOURCES),
                    "actual": str(len(sources)),
                },
            )
        provenance.derivations.add(sources=list(sources.values()))


def make_guard(guard: Guard, region: str) -> commit_pb2.Guard:
    """The wire form of a guard."""
    if isinstance(guard, Entry):
        key = types_pb2.KeyRef(region=guard.region, key=guard.key)
        version = guard.version if guard.present else 0
        return commit_pb2.Guard(version=commit_pb2.VersionGuard(key=key, version=version))
    where = guard.region or region
    if guard.key is not None:
        key = types_pb2.KeyRef(region=where, key=guard.key)
        return commit_pb2.Guard(version=commit_pb2.VersionGuard(key=key, version=guard.version or 0))
    prefix = types_pb2.PrefixRef(region=where, prefix=guard.prefix or "")
    return commit_pb2.Guard(
        prefix=commit_pb2.PrefixGuard(prefix=prefix, unchanged_since_revision=guard.since or 0)
    )


def make_op(op: Op, region: str) -> commit_pb2.Op:
    """The wire form of an op.

    Raises:
        Invalid: as `derive`; or the entry expected is one of another region.
    """
    where = op.region or region
    if isinstance(op, Append):
        content = types_pb2.Content()
        content.CopyFrom(op.content)
        derive(content, op.options.get("derived_from"), where)
        prefix = types_pb2.PrefixRef(region=where, prefix=op.prefix)
        return commit_pb2.Op(append=commit_pb2.AppendOp(prefix=prefix, content=content))
    if isinstance(op.expect, Entry) and op.expect.region != where:
        raise Invalid(
            f"expect= is an entry of region {op.expect.region!r}, but {where!r} is written",
            metadata={"field": "expect"},
        )
    key = types_pb2.KeyRef(region=where, key=op.key)
    if isinstance(op, Delete):
        return commit_pb2.Op(delete=commit_pb2.DeleteOp(key=key, precondition=op.precondition, note=op.note))
    content = types_pb2.Content()
    content.CopyFrom(op.content)
    derive(content, op.options.get("derived_from"), where)
    return commit_pb2.Op(put=commit_pb2.PutOp(key=key, precondition=op.precondition, content=content))


def incarnation_of(board: str, ops: Iterable[Op], guards: Iterable[Guard]) -> str:
    """The one life of the board that the entries expected and guarded belong to; empty where none is.

    Raises:
        Invalid: an entry of another board.
        Reincarnated: entries of two lives.
    """
    rest = [op.expect for op in ops if not isinstance(op, Append) and isinstance(op.expect, Entry)]
    rest += [guard for guard in guards if isinstance(guard, Entry)]
    found = ""
    for entry in rest:
        if entry.board != board:
            raise Invalid(
                f"{entry.key!r} was read from board {entry.board!r}, this is {board!r}",
                metadata={"field": "board"},
            )
        if found and entry.incarnation and entry.incarnation != found:
            raise Reincarnated(
                "the entries come from two lives of the board: read them again", reason="BOARD_REINCARNATED"
            )
        found = found or entry.incarnation
    return found


def _source_key(item: Entry | Source, region: str) -> tuple[str, str, int, int | None]:
    if isinstance(item, Entry):
        return item.region, item.key, item.version, None
    return item.region or region, item.key, item.version, item.op


def _source(item: Entry | Source, region: str) -> types_pb2.Source:
    if isinstance(item, Source) and item.op is not None:
        return types_pb2.Source(op=item.op)
    if item.version < 1:
        raise Invalid(f"{item.key!r} has no committed version yet", metadata={"field": "derived_from"})
    return types_pb2.Source(region=item.region or region, key=item.key, version=item.version)


def _texts(texts: Sequence[str], field: str) -> Sequence[str]:
    if isinstance(texts, str):
        raise Invalid(f"{field}= takes a list of texts, not one text", metadata={"field": field})
    return texts
