"""Reading and writing keys: get, put, rm, append, ls, status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slateboard.cli import options, output, problems, state, text, values

if TYPE_CHECKING:
    from slateboard import Board, Conflict, Entry

_WRITES = {"put", "rm", "append"}
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, e.g. plan/current.")]
ValueArgument = Annotated[
    str | None, typer.Argument(metavar="VALUE|-", help="The value; - reads it from standard input.")
]
File = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Take the value from a file.")
]
AsText = Annotated[bool, typer.Option("--text", help="Text, also where it looks like JSON.")]
AsJson = Annotated[
    bool, typer.Option("--json-value", help="JSON, which the value must then be: also a string in quotes.")
]
ContentType = Annotated[str | None, typer.Option(metavar="TYPE", help="What the bytes are, e.g. image/png.")]
TrustOption = Annotated[
    str | None,
    typer.Option(
        metavar="TRUST", help="external, agent, user, verified or system; what is stored can be lower."
    ),
]
DerivedFrom = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY@VERSION", help="What the value was made from. May be repeated."),
]
Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="Absent from then on, e.g. 2030-01-31T12:00:00Z.")
]
Ttl = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Absent after so long, e.g. 90s, 15m, 12h or 30d.")
]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Why, for those who read the history.")]
Label = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label. May be repeated.")]
Expect = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only if the key is at this version.")]
AnyState = Annotated[
    bool, typer.Option("--any-state", help="Whatever is there, where the board allows that.")
]
Etag = Annotated[str | None, typer.Option(metavar="ETAG", help="Only if the value has this etag.")]


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    options.command(slate)(get)
    options.command(slate)(put)
    options.command(slate)(rm)
    options.command(slate)(append)
    options.command(slate, "ls")(list_)
    options.command(slate)(status)


def get(
    key: Key,
    at: Annotated[
        int | None, typer.Option(metavar="REVISION", min=1, help="As it was at a revision.")
    ] = None,
    min_trust: Annotated[
        str | None, typer.Option(metavar="TRUST", help="Without value if it is trusted less.")
    ] = None,
) -> None:
    """Show a value. In a pipe: its bytes exactly, and nothing else."""
    with state.board() as (_, board):
        entry = _find(board, key, at=at, min_trust=min_trust)
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    state.show(lambda: documents.entry(entry), lambda: _show(entry))


def _find(board: Board, key: str, **how: Any) -> Entry:
    from slateboard import NotFound, Trust  # noqa: PLC0415 -- brings in grpc

    if how.get("min_trust") is not None:
        how["min_trust"] = values.member(Trust, how["min_trust"], "trust")
    try:
        return board.get(key, region=state.region(), **how)
    except NotFound as error:
        if error.reason != "KEY_NOT_FOUND":
            raise
        raise problems.CliError(
            f"nothing is stored under {key!r} on the board {board.name!r}, or you may not see it. "
            f"`slate ls` lists what is there.",
            problems.NOT_FOUND,
        ) from error


def _show(entry: Entry) -> None:
    if entry.raw is None:
        raise problems.CliError(
            f"{entry.key!r} is at version {entry.version}, trusted as {entry.trust.name.lower()}: its value is held "
            "back. A lower --min-trust shows it.",
            problems.DENIED,
        )
    if not output.on_terminal():
        output.raw(entry.raw)
        return
    facts = (
        f"{entry.key}  version {entry.version}  revision {entry.mod_revision}  {entry.trust.name.lower()}  "
        f"by {entry.provenance.principal or '?'}  {text.time(entry.commit_time)}"
    )
    output.out(output.dim(text.line(facts)))
    value = entry.value
    if isinstance(value, bytes):
        output.out(f"<{text.size(len(value))} of {text.line(entry.content_type)}: redirect it into a file>")
    elif isinstance(value, str):
        output.out(text.block(value))
    else:
        try:
            output.json_text(text.to_json(value, indent=2))
        except (ValueError, RecursionError):
            output.out(text.block(entry.raw.decode("utf-8", "replace")))


def put(
    key: Key,
    value: ValueArgument = None,
    file: File = None,
    expect: Expect = None,
    absent: Annotated[
        bool, typer.Option("--absent", help="Only if the key is absent; this is the default.")
    ] = False,
    any_state: AnyState = False,
    etag: Etag = None,
    as_text: AsText = False,
    as_json: AsJson = False,
    content_type: ContentType = None,
    trust: TrustOption = None,
    derived_from: DerivedFrom = None,
    expires: Expires = None,
    ttl: Ttl = None,
    note: Note = "",
    label: Label = None,
) -> None:
    """Write a value: create the key, or with --expect N replace that version.

    What is a JSON object, array, number, true, false or null is stored as JSON; else valid UTF-8 as text; else as bytes.
    --json-value, --text and --content-type say otherwise. A value that begins with a dash goes behind two of them:
    slate put KEY -- -5
    """
    given = [expect is not None, absent, any_state, etag is not None]
    if sum(given) > 1:
        raise problems.usage("give one of --expect N, --absent, --any-state and --etag ETAG")
    made = values.typed(values.read(value, file), as_text=as_text, as_json=as_json, content_type=content_type)
    from slateboard import Conflict  # noqa: PLC0415 -- brings in grpc

    region = state.region()
    content = values.content(
        made,
        trust=trust,
        derived_from=derived_from or (),
        expires=expires,
        ttl=ttl,
        note=note,
        labels=label or (),
        region=region,
    )
    with state.board() as (_, board):
        try:
            written = board.put(
                key,
                made.raw,
                expect=expect,
                absent=absent or not any(given),
                any_state=any_state,
                etag=etag,
                region=region,
                **content,
            )
        except Conflict as error:
            raise _contention(error, key) from error
    _show_written(written)


def _contention(error: Conflict, key: str) -> Exception:
    """Who was there first, and the command that replaces what they wrote."""
    found = next((one for one in error.violations if one.key == key and not one.guard), None)
    if found is None or error.reason not in {"VERSION_CONFLICT", ""}:
        return error
    again = _again(state.current().arguments, found.current_version)
    if not found.current_version:
        first = f"{key!r} is absent, expected: {found.expected}. Nothing was written."
        return problems.CliError(f"{first}\nTo create it: {again}", problems.CONTENTION)
    by = (
        f"written by {found.current_principal!r}"
        if found.current_principal
        else "by a writer hidden from you"
    )
    first = f"{key!r} is at version {found.current_version}, {by}, expected: {found.expected}. Nothing was written."
    return problems.CliError(
        f"{first}\nTo replace that version, once you have looked at it: {again}", problems.CONTENTION
    )


def _again(arguments: list[str], version: int) -> str:
    """The same command, with what it should have expected; the credential stays out of it."""
    words = ["slate"]
    rest = iter(arguments)
    credential = ""
    for word in rest:
        name, equals, _ = word.partition("=")
        if word in {"--server", "--board", "--region"}:
            # Their values may look like a command.
            words += [word, next(rest, "")]
        elif word == "--":
            words += [word, *rest]
        elif name in {"--expect", "--etag", "--token"}:
            if not equals:
                next(rest, None)
            if name == "--token":
                credential = ' --token "$SLATE_TOKEN"'
        elif word not in {"--absent", "--any-state"}:
            words.append(word)
        if (
            len(words) > 1
            and words[-1] in _WRITES
            and words[-1] == word
            and "--expect" not in words
            and version
        ):
            words += ["--expect", str(version)]
    return text.command(words[:1]) + credential + " " + text.command(words[1:])


def _show_written(entry: Entry) -> None:
    document = {
        "key": entry.key,
        "region": entry.region,
        "version": entry.version,
        "revision": entry.mod_revision,
        "etag": entry.etag,
        "trust": entry.trust.name.lower(),
    }
    people = f"{text.line(entry.key)}  version {entry.version}  revision {entry.mod_revision}"
    state.show(lambda: document, lambda: output.out(people))


def append(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Where to add it, e.g. inbox/analyst/.")],
    value: ValueArgument = None,
    file: File = None,
    as_text: AsText = False,
    as_json: AsJson = False,
    content_type: ContentType = None,
    trust: TrustOption = None,
    derived_from: DerivedFrom = None,
    expires: Expires = None,
    ttl: Ttl = None,
    note: Note = "",
    label: Label = None,
) -> None:
    """Add a value below a prefix, under a key that the server names. Conflicts with nobody."""
    made = values.typed(values.read(value, file), as_text=as_text, as_json=as_json, content_type=content_type)
    region = state.region()
    content = values.content(
        made,
        trust=trust,
        derived_from=derived_from or (),
        expires=expires,
        ttl=ttl,
        note=note,
        labels=label or (),
        region=region,
    )
    with state.board() as (_, board):
        _show_written(board.append(values.prefix(prefix), made.raw, region=region, **content))


def rm(
    key: Key, expect: Expect = None, any_state: AnyState = False, etag: Etag = None, note: Note = ""
) -> None:
    """Remove a key, at the version it has now (or at --expect N). The history keeps what it held."""
    if sum((expect is not None, any_state, etag is not None)) > 1:
        raise problems.usage("give one of --expect N, --any-state and --etag ETAG")
    from slateboard import Conflict, View  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    with state.board() as (_, board):
        if not any_state:
            entry = _find(board, key, view=View.KEYS)
            expect = entry.version if expect is None and etag is None else expect
        try:
            done = board.delete(
                key, expect=expect, any_state=any_state, etag=etag, region=state.region(), note=note
            )
        except Conflict as error:
            raise _contention(error, key) from error
    removed = f"{text.line(key)}  removed  version {done.version}  revision {done.revision}"
    state.show(
        lambda: documents.op_result(done),
        lambda: output.out(removed) if done.changed else output.err(f"nothing was stored under {key!r}"),
    )


def list_(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="What is below it; default: all.")] = "",
    with_values: Annotated[bool, typer.Option("--values", help="With --json: the values, too.")] = False,
    at: Annotated[
        int | None, typer.Option(metavar="REVISION", min=1, help="As it was at a revision.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 1_000_000,
) -> None:
    """List the entries below a prefix. In a pipe: key, version, size, trust, type, writer, time, tabs between."""
    from slateboard import View  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    with state.board() as (_, board):
        pages = board.list(
            values.prefix(prefix),
            region=state.region(),
            view=View.FULL if with_values else View.META,
            at=at,
            page_size=min(limit, 500),
        )
        found = [entry for entry, _ in zip(pages, range(limit), strict=False)]
    headers = ("key", "version", "size", "trust", "type", "writer", "changed")
    state.show(
        lambda: [documents.entry(entry) for entry in found],
        lambda: output.table(headers, [_row(entry) for entry in found], empty="nothing is there"),
    )


def _row(entry: Entry) -> tuple[object, ...]:
    return (
        entry.key,
        entry.version,
        entry.size,
        entry.trust.name.lower(),
        entry.content_type.partition(";")[0],
        entry.provenance.principal,
        text.time(entry.commit_time),
    )


def status(key: Key) -> None:
    """Show how a key stands: its version, its writer, who has it locked, who waits, the last conflict over it."""
    from slateboard import LockScope, View  # noqa: PLC0415 -- brings in grpc
    from slateboard.cli import documents  # noqa: PLC0415 -- as above

    with state.board() as (_, board):
        entry = _find(board, key, view=View.META)
        last = next(iter(board.conflicts(key=key, region=state.region(), page_size=1)), None)
        place = LockScope(key, entry.region)
        holders = board.locks(place).all()
        waiting = board.waiters(place).all()
    document = {
        **documents.entry(entry),
        "locks": [documents.lock(one) for one in holders],
        "waiters": [documents.lock(one.lock) for one in waiting],
        "last_conflict": documents.conflict(last) if last else None,
    }
    state.show(
        lambda: document,
        lambda: output.fields(
            [
                ("key", entry.key),
                ("version", entry.version),
                ("revision", entry.mod_revision),
                ("etag", entry.etag),
                ("size", entry.size),
                ("type", entry.content_type),
                ("trust", entry.trust.name.lower()),
                ("writer", entry.provenance.principal),
                ("changed", text.time(entry.commit_time)),
                ("expires", text.time(entry.expire_time)),
                *(("locked by", f"{one.principal} ({one.lock_id}) {one.purpose}".strip()) for one in holders),
                *(("waits", f"{one.lock.principal} ({one.lock.lock_id})") for one in waiting),
                (
                    "last conflict",
                    f"{last.conflict_id} {text.time(last.time)} {last.principal}" if last else "none",
                ),
            ]
        ),
    )
