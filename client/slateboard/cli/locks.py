"""Locks: `slate lock ...`."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from slateboard.cli import options, output, problems, state, text, values

if TYPE_CHECKING:
    from slateboard import Lock, LockInfo

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Keys, or prefixes ending with `/`; '' is the whole region."),
]
Path = Annotated[
    str | None, typer.Argument(metavar="PATH", help="Only what covers, or lies in, a key or prefix.")
]
LockId = Annotated[str, typer.Argument(metavar="ID", help="The lock's id.")]
Token = Annotated[int, typer.Argument(metavar="TOKEN", min=0, help="Its fencing token.")]
Ttl = Annotated[str, typer.Option("--ttl", metavar="SPAN", help="How long it lives without a renewal.")]
Wait = Annotated[str, typer.Option("--wait", metavar="SPAN", help="How long to wait for it; 0: not at all.")]
Shared = Annotated[bool, typer.Option("--shared", help="Others may hold it too, and nobody writes.")]
Purpose = Annotated[str, typer.Option("--purpose", metavar="TEXT", help="What it is for.")]
MaxHold = Annotated[
    str | None, typer.Option("--max-hold", metavar="SPAN", help="It ends then, renewed or not.")
]

_STOP_TIMEOUT = 5.0
"""Seconds a command gets to end after SIGTERM, once the lock is lost."""


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    group = options.app("Hold keys and prefixes, and see who does.", no_args_is_help=True)
    options.command(group)(acquire)
    options.command(group)(renew)
    options.command(group)(release)
    options.command(group, "force-release")(force_release)
    options.command(group, "ls")(list_)
    options.command(group)(waiters)
    options.command(group)(watch)
    options.command(group)(run)
    slate.add_typer(group, name="lock")


@contextmanager
def _held(
    paths: list[str], ttl: str, wait: str, shared: bool, purpose: str, max_hold: str | None
) -> Iterator[tuple[str, Lock]]:
    with (
        state.board() as (_, board),
        board.lock(
            paths,
            ttl=values.duration(ttl, "--ttl"),
            wait=0 if wait.strip() in {"0", "0s"} else values.duration(wait, "--wait"),
            shared=shared,
            purpose=purpose,
            max_hold=None if max_hold is None else values.duration(max_hold, "--max-hold"),
            region=state.region(),
        ) as held,
    ):
        yield board.name, held


def acquire(
    paths: Paths,
    ttl: Ttl = "60s",
    wait: Wait = "0",
    shared: Shared = False,
    purpose: Purpose = "",
    max_hold: MaxHold = None,
) -> None:
    """Acquire a lock and leave it held for its ttl: `slate lock renew` lengthens it. Prints id and fencing token.

    Exit code 3 where somebody else holds it.
    """
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with _held(paths, ttl, wait, shared, purpose, max_hold) as (_, held):
        info = held.granted
        held.detach()
    state.show(
        lambda: documents.lock(info),
        lambda: output.fields([("lock", info.lock_id), ("token", info.token), ("ttl", f"{info.ttl:g} s")]),
    )


def renew(lock_id: LockId, fencing_token: Token) -> None:
    """Lengthen a lock of one's own to its full ttl."""
    with state.board() as (_, board), board.adopt_lock(lock_id, fencing_token) as held:
        left = held.time_left
        held.detach()
    state.show(
        lambda: {"lock_id": lock_id, "ttl_left": round(left, 3)},
        lambda: output.out(f"{text.line(lock_id)} for another {left:.0f} s"),
    )


def release(lock_id: LockId, fencing_token: Token) -> None:
    """Release a lock of one's own; says how it had ended, if it had."""
    with state.board() as (_, board):
        outcome = board.release_lock(lock_id, fencing_token)
    word = outcome.name.lower()
    state.show(
        lambda: {"lock_id": lock_id, "outcome": word},
        lambda: output.out(f"{text.line(lock_id)} {word.replace('_', ' ')}"),
    )


def force_release(
    lock_id: LockId,
    seen: Annotated[
        int, typer.Option("--token-seen", metavar="TOKEN", min=0, help="Its fencing token, as `ls` shows it.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the audit keeps it.")],
) -> None:
    """End somebody else's lock, if it still has that token. For supervisors and operators; audited."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        info = board.force_release(lock_id, expected_token=seen, reason=reason)
    state.show(
        lambda: documents.lock(info),
        lambda: output.out(f"{info.lock_id} of {text.line(info.principal)} was ended"),
    )


def list_(
    path: Path = None,
    principal: Annotated[str, typer.Option(metavar="ID", help="Only this principal's.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Also those that ended in the last 24 h.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 100,
) -> None:
    """List held locks, oldest first: what they cover, whose they are, for what, how long, what is left of their ttl."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        pages = board.locks(path, principal=principal, include_ended=all_, page_size=min(limit, 500))
        found = [one for one, _ in zip(pages, range(limit), strict=False)]
    state.show(lambda: [documents.lock(one) for one in found], lambda: _table(found))


def waiters(
    path: Path = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 100,
) -> None:
    """List who waits, since when, and for whom, in the order of asking."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board):
        found = [one for one, _ in zip(board.waiters(path), range(limit), strict=False)]
    headers = ("waits", "for", "since", "purpose", "behind")
    rows = [
        (
            _who(one.lock),
            _paths(one.lock),
            _age(one.lock.ask_time),
            one.lock.purpose,
            ", ".join(
                f"{_who(other)} ({other.state.name.lower()} {other.lock_id})" for other in one.blockers
            ),
        )
        for one in found
    ]
    state.show(
        lambda: [
            {**documents.lock(one.lock), "blockers": [documents.lock(other) for other in one.blockers]}
            for one in found
        ],
        lambda: output.table(headers, rows, empty="nobody waits"),
    )


def watch(
    path: Path = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Leave after so many changes.")
    ] = None,
) -> None:
    """Follow locks as they are asked for, granted and ended. With --json: a document a change, one a line."""
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    with state.board() as (_, board), board.watch_locks(path) as changes:
        for seen, info in enumerate(changes, 1):
            if state.current().json:
                output.record(documents.lock(info))
            else:
                row = (
                    info.lock_id,
                    info.token,
                    info.state.name.lower(),
                    _who(info),
                    _paths(info),
                    info.purpose,
                )
                output.out("\t".join(text.line(str(cell)) for cell in row))
            if count is not None and seen >= count:
                return


def run(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A key, or a prefix ending with `/`.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    ttl: Ttl = "30s",
    wait: Wait = "30s",
    shared: Shared = False,
    purpose: Purpose = "",
    max_hold: MaxHold = None,
) -> None:
    """Hold a lock while a command runs; leaves with the command's exit code.

    The lock is renewed meanwhile; `slate put` and the like, run by the command, present its claim. If the lock is lost
    the command is ended, and the exit code is 3.
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise problems.usage("say what to run: slate lock run PATH -- COMMAND")
    with _held([path], ttl, wait, shared, purpose or words[0], max_hold) as (board, held):
        code = _run(words, board, held)
        if held.lost.is_set():
            raise problems.CliError(
                f"lock {held.lock_id} was lost while the command ran, which was ended: what it did may have met others'"
                " work",
                problems.CONTENTION,
            )
    raise typer.Exit(code)


def _run(words: list[str], board: str, held: Lock) -> int:
    environment = {**os.environ, **state.exported(board, held.lock_id, held.token)}
    try:
        child = subprocess.Popen(words, env=environment)
    except OSError as error:
        raise problems.CliError(f"{words[0]} cannot be run: {error.strerror}", 127) from error
    over = threading.Event()

    def end_if_lost() -> None:
        while not over.is_set():
            if held.lost.wait(0.1):
                child.terminate()
                try:
                    child.wait(_STOP_TIMEOUT)
                except subprocess.TimeoutExpired:
                    child.kill()
                return

    watcher = threading.Thread(target=end_if_lost, name="slate-lock-lost", daemon=True)
    watcher.start()
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:
                continue  # the terminal sent it to the command as well, which decides
    finally:
        signal.signal(signal.SIGTERM, before)
        over.set()
        watcher.join()
    return code if code >= 0 else 128 - code


def _table(found: list[LockInfo]) -> None:
    headers = ("lock", "token", "state", "covers", "owner", "purpose", "held", "ttl", "left")
    rows = [
        (
            one.lock_id,
            one.token,
            one.state.name.lower() + (" shared" if one.mode.name == "SHARED" else ""),
            _paths(one),
            _who(one),
            one.purpose,
            _age(one.grant_time),
            f"{one.ttl:g}s",
            "" if one.ttl_left is None else f"{one.ttl_left:.0f}s",
        )
        for one in found
    ]
    output.table(headers, rows, empty="nothing is locked")


def _paths(info: LockInfo) -> str:
    return " ".join(
        (scope.path or "/") if scope.region == "shared" else f"{scope.region}:{scope.path}"
        for scope in info.scopes
    )


def _who(info: LockInfo) -> str:
    detail = info.session_id or info.holder
    return f"{info.principal} ({detail})" if detail else info.principal


def _age(since: datetime | None) -> str:
    if since is None:
        return ""
    return f"{max(0.0, (datetime.now(UTC) - since).total_seconds()):.0f}s"
