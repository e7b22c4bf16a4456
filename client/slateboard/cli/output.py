"""Where output goes: tables and colour on a terminal, plain lines in a pipe, JSON when asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from slateboard.cli import text


def on_terminal() -> bool:
    """Whether people are looking at standard output."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def out(shown: str = "") -> None:
    """A line on standard output. What came from outside has been escaped by then."""
    raw((shown + "\n").encode("utf-8", "backslashreplace"))


def raw(data: bytes) -> None:
    """Bytes on standard output as they are, at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def err(shown: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"slate: {text.block(shown)}\n")
    sys.stderr.flush()


def document(value: object) -> None:
    """One JSON document: spread out on a terminal, on one line in a pipe."""
    out(text.to_json(value, indent=2 if on_terminal() else None))


def json_text(shown: str) -> None:
    """JSON that `text.to_json` made, in colours where they are wanted."""
    if not coloured():
        out(shown)
        return
    from rich.console import Console  # noqa: PLC0415 -- only terminals pay for rich
    from rich.highlighter import JSONHighlighter  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    # Text, not str: square brackets are no markup here. Its lines are the terminal's to break.
    Console(highlight=False).print(JSONHighlighter()(Text(shown)), soft_wrap=True)


def record(value: object) -> None:
    """One JSON document of a stream: always one line."""
    out(text.to_json(value))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing") -> None:
    """A table on a terminal; in a pipe a line for each row, tabs between, no headers."""
    shown = [[text.line(str(cell)) for cell in row] for row in rows]
    if not on_terminal():
        for row in shown:
            out("\t".join(row))
        return
    if not shown:
        err(empty)
        return
    from rich import box  # noqa: PLC0415 -- only terminals pay for rich
    from rich.console import Console  # noqa: PLC0415 -- as above
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold" if coloured() else "none")
    for header in headers:
        made.add_column(header, overflow="fold")
    for row in shown:
        # Text, not str: square brackets in a value are no markup.
        made.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(made)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each; what is empty is left out."""
    kept = [(name, text.line(str(value))) for name, value in pairs if value not in (None, "", ())]
    if not on_terminal():
        for name, value in kept:
            out(f"{name}\t{value}")
        return
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        out(f"{dim(name.ljust(width))}  {value}")


def dim(shown: str) -> str:
    """Less bright, where there is colour."""
    return f"\x1b[2m{shown}\x1b[0m" if coloured() else shown


def coloured() -> bool:
    """Whether colour is wanted: on a terminal without NO_COLOR."""
    return on_terminal() and not os.environ.get("NO_COLOR")


def confirm(question: str, *, yes: bool) -> bool:
    """Ask a person before something final. Scripts, and `--yes`, are not asked."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{text.line(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
