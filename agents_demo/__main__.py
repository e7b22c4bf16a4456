"""`python -m agents_demo [CSV]`: a team of agents makes a weekly report over a board. `slate demo` calls `main`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO, TypeAlias

import slateboard
from agents_demo import board_keys, curator, evidence, orders
from agents_demo.aggregate import to_json
from agents_demo.follow import Overdue
from agents_demo.html_report import html_page
from agents_demo.report import TeamStats, print_report, printable
from agents_demo.story import SUPERVISOR
from agents_demo.summary import endpoint_from
from agents_demo.supervisor import Job, Outcome, Supervisor, SupervisorError
from agents_demo.team import ProcessFailed, Team
from agents_demo.weekly import closing_line
from slateboard import Action, Client, Right, Role, Trust

MIN_WORKERS: Final = 4
MAX_WORKERS: Final = 32
Say: TypeAlias = Callable[[str, str], None]
"""Is told who did what."""

_TOKEN_TTL: Final = 3_600.0
_DEFAULT_HTML: Final = Path("demo-output") / "report.html"


class DemoError(Exception):
    """The demo cannot start; the message says what to do."""


class Interrupted(BaseException):
    """A signal asked the demo to stop."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0, 1 where anything failed, or 128 + the signal that stopped it.

    Raises:
        SystemExit: The options make no sense (2), or help was asked for (0).
    """
    options = _parser().parse_args(argv)
    # With --json standard output is for the document alone.
    story: TextIO = sys.stderr if options.json else sys.stdout
    try:
        with _signals_raise():
            _run(options, story)
    except (KeyboardInterrupt, Interrupted) as error:
        number = error.number if isinstance(error, Interrupted) else int(signal.SIGINT)
        print(f"demo stopped by {signal.Signals(number).name}; all its processes are gone", file=sys.stderr)
        return 128 + number
    except orders.MalformedOrders as error:
        return _failed(f"{options.csv}: {error}")
    except (
        DemoError,
        ProcessFailed,
        SupervisorError,
        evidence.EvidenceError,
        curator.RehearsalError,
        Overdue,
        slateboard.SlateError,
        OSError,
        ValueError,
    ) as error:
        return _failed(str(error) or type(error).__name__)
    return 0


def _failed(message: str) -> int:
    sys.stdout.flush()
    print(f"demo failed: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agents_demo",
        description="A supervisor and workers, each a process of its own, make a weekly report of order lines. "
        "They share nothing but a board.",
    )
    parser.add_argument(
        "csv",
        nargs="?",
        type=Path,
        default=orders.BUNDLED,
        metavar="CSV",
        help=f"order lines with {', '.join(orders.COLUMNS)}; plain or gzip (default: the bundled ones)",
    )
    parser.add_argument(
        "--workers",
        type=_worker_count,
        default=MIN_WORKERS,
        metavar="N",
        help=f"{MIN_WORKERS} to {MAX_WORKERS} (default {MIN_WORKERS})",
    )
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="use a running server instead of one of its own"
    )
    parser.add_argument(
        "--token", help="an operator's token for --server (better: SLATE_TOKEN, which other users cannot see)"
    )
    parser.add_argument(
        "--html", type=Path, default=_DEFAULT_HTML, metavar="FILE", help=f"default {_DEFAULT_HTML}"
    )
    parser.add_argument("--keep", type=Path, metavar="DATA_DIR", help="keep the server's data there")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="which task has the accident, and who tries what first (default 1)",
    )
    return parser


def _worker_count(text: str) -> int:
    if not text.isdecimal() or not MIN_WORKERS <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{MIN_WORKERS} to {MAX_WORKERS} workers, not {text!r}")
    return int(text)


def _run(options: argparse.Namespace, story: TextIO) -> None:
    if options.keep is not None and options.server is not None:
        raise DemoError("--keep is for the demo's own server: a given --server keeps its data itself")
    started = time.monotonic()
    # Before anything is started: a malformed file is the commonest reason to fail.
    job = Job.of(options.csv, options.workers, random.Random(options.seed).randrange(options.workers))  # noqa: S311  # a rehearsal

    def say(who: str, said: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {who:<11}  {printable(said)}", file=story, flush=True)

    with tempfile.TemporaryDirectory(prefix="slateboard-demo-") as scratch, Team(Path(scratch)) as team:
        server, token = _server(options, team, Path(scratch), say)
        with slateboard.connect(server, token=token) as operator:
            outcome, stats, board = _work(operator, server, job, team, options, say)
    _write_html(options.html, outcome, stats)
    closing = closing_line(outcome.report, stats.conflicts_merged)
    if options.json:
        print(json.dumps(_document(outcome, stats, board, closing), ensure_ascii=False, indent=2))
    else:
        print(file=story)
        print_report(outcome.report, stats, outcome.summary.text, sys.stdout)
        print(f"\n{outcome.summary.note}\nHTML report: {options.html}")
        if options.keep is not None:
            print(f"The board: slate serve --data {options.keep}, then slate --board {board} ls")
    print(closing, file=story, flush=True)


def _server(options: argparse.Namespace, team: Team, scratch: Path, say: Say) -> tuple[str, str]:
    """Address and operator's token of the given server, or of one just started."""
    if options.server is not None:
        token = options.token or os.environ.get("SLATE_TOKEN")
        if not token:
            raise DemoError(
                "--server needs an operator's token to make principals: set SLATE_TOKEN, or give --token"
            )
        return options.server, token
    data = options.keep if options.keep is not None else scratch / "data"
    data.mkdir(parents=True, exist_ok=True)
    address = team.start_server(data)
    say("demo", f"has started an embedded server on {address}")
    return address, (data / "operator.token").read_text(encoding="ascii").strip()


def _work(
    operator: Client, server: str, job: Job, team: Team, options: argparse.Namespace, say: Say
) -> tuple[Outcome, TeamStats, str]:
    """Make board and principals, have the job done, and ask the board what it did for the team."""
    # Ids are never reused, so each run has its own; before the point stands what the team calls them.
    run = secrets.token_hex(3)
    board = f"orders-{run}"
    names = [f"worker-{number}" for number in range(1, options.workers + 1)]
    curators = ["curator-1", "curator-2"]
    operator.create_board(board, description="agents_demo: a weekly report of order lines")
    with _principals(operator, run, board, names, curators) as tokens:
        say("demo", f"has made board {board} and a principal each for {SUPERVISOR} and {len(names)} workers")
        with slateboard.connect(server, token=tokens[SUPERVISOR]) as client:

            def start_workers() -> None:
                for name in names:
                    start = {"server": server, "board": board, "token": tokens[name], "seed": options.seed}
                    team.start_worker(name, start)

            supervisor = Supervisor(
                client.board(board), job, names, kill=team.kill, check=team.check, say=say
            )
            try:
                outcome = supervisor.run(start_workers, endpoint_from(os.environ))
            except slateboard.Unavailable:
                team.check()  # says more than "unavailable" where the server has ended
                raise
            team.wait_for_workers()

            def start_curator(name: str, think: float) -> None:
                start: dict[str, str | float] = {"server": server, "board": board, "token": tokens[name]}
                start["think"] = think
                team.start_worker(name, start, "agents_demo.curator")

            lock = curator.rehearse(
                client.board(board), start_curator, team.pause, team.resume, team.check, say
            )
            team.wait_for_workers()
            return outcome, evidence.gather(client.board(board), job.path, outcome, len(names), lock), board


@contextlib.contextmanager
def _principals(
    operator: Client, run: str, board: str, names: Sequence[str], curators: Sequence[str]
) -> Iterator[Mapping[str, str]]:
    """Principals for one run, by the names the team uses; disabled at its end, as far as the server still answers."""
    tokens: dict[str, str] = {}
    made: list[str] = []
    everything = Right("", (Action.READ,))
    try:
        for name in (SUPERVISOR, *names, *curators):
            leads = name == SUPERVISOR
            places = curator.WRITES if name in curators else board_keys.WORKERS_WRITE
            writes = [Right(prefix, (Action.WRITE,)) for prefix in places]
            new = operator.admin.create_principal(
                f"{name}.{run}",
                Role.SUPERVISOR if leads else Role.WORKER,
                boards=[board],
                rights=() if leads else (everything, *writes),
                trust_ceiling=Trust.USER if leads else Trust.AGENT,
                token_ttl=_TOKEN_TTL,
            )
            made.append(new.principal.id)
            tokens[name] = new.token
        yield tokens
    finally:
        with contextlib.suppress(slateboard.SlateError):
            for principal in made:
                operator.admin.disable_principal(principal, timeout=2)


def _write_html(path: Path, outcome: Outcome, stats: TeamStats) -> None:
    page = html_page(outcome.report, stats, outcome.summary.text, summary_note=outcome.summary.note)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _document(outcome: Outcome, stats: TeamStats, board: str, closing: str) -> dict[str, Any]:
    return {
        "source": outcome.report.source,
        "board": board,
        "report": to_json(outcome.whole),
        "summary": outcome.summary.text,
        "summary_note": outcome.summary.note,
        "team": asdict(stats),
        "closing_line": closing,
    }


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: in order, with all it has started."""

    def stop(number: int, frame: object) -> NoReturn:  # noqa: ARG001  # the signature of a handler
        raise Interrupted(number)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread: whoever runs this one sees to signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
