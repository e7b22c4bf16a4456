"""Commits: `slate commit FILE`, and what is recorded of them: history, diff, conflicts, commits."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slateboard.cli import options, output, problems, state, text, values

if TYPE_CHECKING:
    from slateboard import Append, CommitInfo, ConflictInfo, Delete, Put, Source, Unchanged

Limit = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")]
By = Annotated[str, typer.Option("--principal", metavar="ID", help="Only this principal's.")]
Touching = Annotated[
    str | None, typer.Option("--prefix", metavar="PREFIX", help="Only those that touched what is below it.")
]
Over = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only those over this key.")]
_CONDITIONS = ("expect", "absent", "exists", "etag", "any_state")
_VALUES = ("value", "text", "base64")
_CONTENT = (
    "content_type",
    "kind",
    "subject",
    "attribute",
    "topics",
    "labels",
    "confidence",
    "importance",
    "valid_from",
    "valid_to",
    "expire_time",
    "ttl",
    "trust",
    "turn",
    "tool",
    "source_uris",
    "note",
    "derived_from",
)
_TIMES = ("valid_from", "valid_to", "expire_time")


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    options.command(slate)(commit)
    group = options.app("List a board's commits, newest first; show one.", invoke_without_command=True)
    group.callback()(_commits)
    options.command(group, "ls")(commits)
    options.command(group, "show")(commit_)
    slate.add_typer(group, name="commits")
    options.command(slate)(history)
    options.command(slate)(diff)
    group = options.app("List refused commits, newest first; show one.", invoke_without_command=True)
    group.callback()(_conflicts)
    options.command(group, "ls")(conflicts)
    options.command(group, "show")(conflict)
    slate.add_typer(group, name="conflicts")


def commit(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A JSON document; see docs/cli.md.")],
    validate_only: Annotated[
        bool, typer.Option("--validate-only", "--dry-run", help="Judge it and write nothing.")
    ] = False,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why, for those who read the history.")] = "",
) -> None:
    """Apply up to 128 ops, all or none, from a JSON document.

    \b
    {"note": "why",
     "ops": [{"put": {"key": "plan", "value": {"step": 2}, "expect": 3}},
             {"put": {"key": "log", "text": "plain text", "absent": true}},
             {"put": {"key": "image", "base64": "iVBORw==", "content_type": "image/png", "any_state": true}},
             {"delete": {"key": "draft", "expect": 1}},
             {"append": {"prefix": "inbox/", "value": 1, "derived_from": ["plan@2", {"op": 0}]}}],
     "guards": [{"key": "goal", "version": 4}, {"prefix": "tasks/", "since": 41}]}

    A put or delete says what it expects: one of expect, absent, exists, etag and any_state. A put or append has one of
    value (JSON), text and base64; besides content_type, kind, subject, attribute, topics, labels, confidence,
    importance, valid_from, valid_to, expire_time or ttl, trust, turn, tool, source_uris, note and derived_from. Every op
    and guard may name its region. A request_id (a UUID) makes it safe to run the same document twice. In a guard,
    version 0 says that the key is absent.
    """  # noqa: D301 -- the backslash keeps click from filling the lines of the example
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    given = values.read_json(file)
    if isinstance(given, list):
        given = {"ops": given}
    _known(given, ("ops", "guards", "note", "request_id"), "the document")
    ops = [_op(one, f"ops[{index}]") for index, one in enumerate(_list(given.get("ops"), "ops"))]
    guards = [
        _guard(one, f"guards[{index}]") for index, one in enumerate(_list(given.get("guards"), "guards"))
    ]
    said = note or given.get("note") or ""
    if not isinstance(said, str):
        raise problems.usage("note: a text is needed")
    request_id = given.get("request_id")
    if not isinstance(request_id, str | None):
        raise problems.usage("request_id: a UUID is needed")
    from slateboard import Append, Delete, Put  # noqa: PLC0415 -- brings in grpc

    assert all(isinstance(op, (Put, Delete, Append)) for op in ops)
    region = state.region()
    for op in ops:
        op.region = op.region or region
    with state.board() as (_, board):
        done = board.commit(ops, guards, note=said, validate_only=validate_only, request_id=request_id)
    for warning in done.warnings:
        output.err(f"warning: {warning.message} [{warning.code}]")
    document = documents.commit_result(done)
    if validate_only:
        document["validate_only"] = True
    rows = [
        (one.key, f"version {one.version}", "changed" if one.changed else "as it was") for one in done.results
    ]
    state.show(lambda: document, lambda: _show_commit(done.revision, rows, validate_only=validate_only))


def _show_commit(revision: int, rows: list[tuple[str, str, str]], *, validate_only: bool) -> None:
    output.out("it would be accepted; nothing was written" if validate_only else f"revision {revision}")
    output.table(("key", "version", ""), rows)


def _list(given: Any, what: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise problems.usage(f"{what}: a list is needed")
    return given


def _known(given: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(given, dict):
        raise problems.usage(f"{where}: a JSON object is needed")
    if unknown := sorted(set(given) - set(known)):
        raise problems.usage(f"{where}: no field {unknown[0]!r}; there are {', '.join(known)}")


def _text(given: dict[str, Any], name: str, where: str, default: str | None = None) -> Any:
    found = given.get(name, default)
    if not isinstance(found, str) and found is not default:
        raise problems.usage(f"{where}: {name} is a text")
    if found is None and default is None and name in {"key", "prefix"}:
        raise problems.usage(f"{where}: {name} is missing")
    return found


def _op(given: Any, where: str) -> Put | Delete | Append:
    from slateboard import Append, Delete, Put, SlateError  # noqa: PLC0415 -- brings in grpc

    _known(given, ("put", "delete", "append"), where)
    if len(given) != 1:
        raise problems.usage(f"{where}: one of put, delete and append is needed")
    [(kind, body)] = given.items()
    place = "prefix" if kind == "append" else "key"
    known: tuple[str, ...] = (place, "region")
    known += () if kind == "append" else _CONDITIONS
    known += ("note",) if kind == "delete" else (*_VALUES, *_CONTENT)
    where = f"{where}.{kind}"
    _known(body, known, where)
    name, region = _text(body, place, where), _text(body, "region", where)
    conditions = {name: body[name] for name in _CONDITIONS if body.get(name) not in (None, False)}
    try:
        if kind == "delete":
            return Delete(name, region=region, note=body.get("note", ""), **conditions)
        value, content = _content(body, where)
        if kind == "append":
            return Append(name, value, region=region, **content)
        return Put(name, value, region=region, **conditions, **content)
    except (SlateError, TypeError, ValueError) as error:
        raise problems.usage(f"{where}: {error}") from error


def _content(body: dict[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
    from slateboard import Kind, Trust  # noqa: PLC0415 -- brings in grpc

    given = [name for name in _VALUES if name in body]
    if len(given) != 1:
        raise problems.usage(f"{where}: one of value (JSON), text and base64 is needed")
    value = body[given[0]]
    content = {name: body[name] for name in _CONTENT if body.get(name) is not None}
    match given[0]:
        case "value":
            # A text under `value` is a JSON string, as the word says.
            content.setdefault("content_type", values.JSON)
        case "text" if not isinstance(value, str):
            raise problems.usage(f"{where}: text is a text")
        case "base64":
            try:
                value = base64.b64decode(value, validate=True)
            except (TypeError, binascii.Error) as error:
                raise problems.usage(f"{where}: base64: {error}") from error
    if "kind" in content:
        content["kind"] = values.member(Kind, str(content["kind"]), "kind")
    if "trust" in content:
        content["trust"] = values.member(Trust, str(content["trust"]), "trust")
    if "derived_from" in content:
        used = _list(content["derived_from"], f"{where}.derived_from")
        region = body.get("region") or state.region()
        content["derived_from"] = [_source(one, region, f"{where}.derived_from") for one in used]
    if isinstance(content.get("ttl"), str):
        content["ttl"] = values.duration(content["ttl"], f"{where}.ttl")
    for name in _TIMES:
        if name in content:
            content[name] = values.moment(str(content[name]), f"{where}.{name}")
    return value, content


def _source(given: Any, region: str | None, where: str) -> Source:
    """`KEY@VERSION`; {"key", "version", "region"}, as `slate get --json` shows it; or {"op": 0}, an earlier op."""
    from slateboard import Source  # noqa: PLC0415 -- brings in grpc

    if isinstance(given, str):
        return values.sources([given], region)[0]
    _known(given, ("key", "version", "region", "op"), where)
    numbers = [given[name] for name in ("version", "op") if name in given]
    if len(numbers) != 1 or ("op" in given) == ("key" in given) or type(numbers[0]) is not int:
        raise problems.usage(f'{where}: KEY@VERSION, {{"key": ..., "version": N}} or {{"op": N}} is needed')
    if "op" in given:
        return Source(op=given["op"])
    key, place = _text(given, "key", where), _text(given, "region", where)
    return Source(region=place or region or "shared", key=key, version=given["version"])


def _guard(given: Any, where: str) -> Unchanged:
    from slateboard import SlateError, Unchanged  # noqa: PLC0415 -- brings in grpc

    _known(given, ("key", "version", "prefix", "since", "region"), where)
    for name, found in given.items():
        wanted = int if name in {"version", "since"} else str
        if type(found) is not wanted:
            raise problems.usage(f"{where}: {name} is a {'whole number' if wanted is int else 'text'}")
    try:
        return Unchanged(**{"region": state.region(), **given})
    except SlateError as error:
        raise problems.usage(f"{where}: {error}") from error


def _commits(context: typer.Context, principal: By = "", prefix: Touching = None, limit: Limit = 20) -> None:
    if context.invoked_subcommand is None:
        commits(principal, prefix, limit)


def commits(principal: By = "", prefix: Touching = None, limit: Limit = 20) -> None:
    """List a board's commits, newest first."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        pages = board.commits(
            principal=principal,
            prefix=None if prefix is None else values.prefix(prefix),
            region=state.region(),
            page_size=min(limit, 500),
        )
        found = [one for one, _ in zip(pages, range(limit), strict=False)]
    headers = ("revision", "time", "principal", "keys", "note")
    rows = [
        (one.revision, text.time(one.commit_time), one.principal, _keys(one.results), one.note)
        for one in found
    ]
    state.show(
        lambda: [documents.commit_info(one) for one in found],
        lambda: output.table(headers, rows, empty="no commit yet"),
    )


def commit_(
    selector: Annotated[
        str, typer.Argument(metavar="REVISION|REQUEST_ID", help="Which; a request id must be your own.")
    ],
) -> None:
    """Show a commit: of a revision, or of a request id whose outcome is unknown."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    by_revision = selector.isascii() and selector.isdigit()
    with state.board() as (_, board):
        if by_revision:
            found = board.get_commit(revision=int(selector))
        else:
            found = board.get_commit(request_id=selector)
    state.show(lambda: documents.commit_info(found), lambda: _show_recorded(found))


def _show_recorded(found: CommitInfo) -> None:
    output.fields(
        [
            ("revision", found.revision),
            ("commit", found.commit_id),
            ("time", text.time(found.commit_time)),
            ("principal", found.principal),
            ("session", found.session_id),
            ("request", found.request_id),
            ("note", found.note),
            ("other keys", "some are hidden from you" if found.hidden_ops else ""),
        ]
    )
    rows = [(one.key, one.version, one.trust.name.lower()) for one in found.results]
    output.table(("key", "version", "trust"), rows)


def _keys(results: Any) -> str:
    shown = [f"{one.key}@{one.version}" for one in results[:4]]
    return " ".join(shown) + (f" and {len(results) - 4} more" if len(results) > 4 else "")


def history(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    with_values: Annotated[bool, typer.Option("--values", help="With --json: the values, too.")] = False,
    limit: Limit = 50,
) -> None:
    """List the versions of a key, newest first, absences included."""
    from slateboard import View  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    with state.board() as (_, board):
        pages = board.history(
            key,
            region=state.region(),
            view=View.FULL if with_values else View.META,
            page_size=min(limit, 500),
        )
        found = [entry for entry, _ in zip(pages, range(limit), strict=False)]
    if not found:
        raise problems.CliError(
            f"there was never anything under {key!r}, or you may not see it.", problems.NOT_FOUND
        )
    headers = ("version", "revision", "time", "writer", "trust", "size", "state", "note")
    rows = [
        (
            one.version,
            one.mod_revision,
            text.time(one.commit_time),
            one.provenance.principal,
            one.trust.name.lower(),
            one.size,
            one.tombstone.name.lower() if one.tombstone else "compacted" if one.compacted else "present",
            one.provenance.note,
        )
        for one in found
    ]
    state.show(lambda: [documents.entry(one) for one in found], lambda: output.table(headers, rows))


def diff(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    a: Annotated[int | None, typer.Argument(metavar="A", min=1, help="Default: the one before B.")] = None,
    b: Annotated[int | None, typer.Argument(metavar="B", min=1, help="Default: the present one.")] = None,
) -> None:
    """Compare two versions of a key: by default the present one and the one before it."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        found = board.diff(key, a, b, region=state.region())
    state.show(lambda: documents.diff(key, found), lambda: _show_diff(found))


def _show_diff(found: Any) -> None:
    if found.equal:
        output.err("no difference")
        return
    if found.unified:
        output.out(text.block(found.unified.rstrip("\n")))
    for one in found.changes:
        place = text.line(one.pointer) or "(the whole value)"
        if one.before:
            output.out(_paint(f"- {place}: {text.line(one.before)}", "31"))
        if one.after:
            output.out(_paint(f"+ {place}: {text.line(one.after)}", "32"))
    if not found.unified and not found.changes:
        output.out("the values differ; they are neither both JSON nor both text")
    if found.truncated:
        output.err("the rest was cut off")


def _paint(shown: str, colour: str) -> str:
    return f"\x1b[{colour}m{shown}\x1b[0m" if output.coloured() else shown


def _conflicts(context: typer.Context, key: Over = None, principal: By = "", limit: Limit = 20) -> None:
    if context.invoked_subcommand is None:
        conflicts(key, principal, limit)


def conflicts(key: Over = None, principal: By = "", limit: Limit = 20) -> None:
    """List refused commits, newest first."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        pages = board.conflicts(
            key=key, principal=principal, region=state.region(), page_size=min(limit, 500)
        )
        found = [one for one, _ in zip(pages, range(limit), strict=False)]
    headers = ("conflict", "time", "principal", "reason", "keys")
    rows = [
        (
            one.conflict_id,
            text.time(one.time),
            one.principal,
            one.reason,
            " ".join(violation.key for violation in one.violations[:4]),
        )
        for one in found
    ]
    state.show(
        lambda: [documents.conflict(one) for one in found],
        lambda: output.table(headers, rows, empty="no conflict is on record"),
    )


def conflict(
    conflict_id: Annotated[str, typer.Argument(metavar="ID", help="As `slate conflicts ls` lists it.")],
) -> None:
    """Show a refused commit with all that did not hold."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        found = board.get_conflict(conflict_id)
    state.show(lambda: documents.conflict(found), lambda: _show_conflict(found))


def _show_conflict(found: ConflictInfo) -> None:
    output.fields(
        [
            ("conflict", found.conflict_id),
            ("time", text.time(found.time)),
            ("principal", found.principal),
            ("reason", found.reason),
            ("revision", found.revision),
        ]
    )
    rows = [
        (
            one.key,
            "guard" if one.guard else "op",
            one.expected,
            one.current_version or "absent",
            one.current_principal,
            text.time(one.current_commit_time),
        )
        for one in found.violations
    ]
    output.table(("key", "by", "expected", "found", "writer", "changed"), rows)
