"""From errors to exit codes and one or two lines on standard error."""

from __future__ import annotations

import os
import traceback

from slateboard import errors
from slateboard.cli import output

FAILED = 1
USAGE = 2
CONTENTION = 3
NOT_FOUND = 4
DENIED = 5
INTERRUPTED = 130
BROKEN_PIPE = 141


class CliError(Exception):
    """What keeps a command from being done, in words, with its exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def usage(message: str) -> CliError:
    """The command line makes no sense."""
    return CliError(message, USAGE)


_CODES: tuple[tuple[type[errors.SlateError], int], ...] = (
    (errors.Conflict, CONTENTION),
    (errors.LockHeld, CONTENTION),
    (errors.LockLost, CONTENTION),
    (errors.AlreadyExists, CONTENTION),
    (errors.NotFound, NOT_FOUND),
    (errors.Denied, DENIED),
    (errors.Unauthenticated, DENIED),
    (errors.Invalid, USAGE),
)


def code_of(error: errors.SlateError) -> int:
    """The exit code of a client's error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


_HINTS: tuple[tuple[type[errors.SlateError], str], ...] = (
    (
        errors.OutcomeUnknown,
        "Nobody knows whether it was written: look (`slate get`, `slate commits`) first.",
    ),
    (errors.Unavailable, "Is a server running there? `slate serve` starts one, `slate doctor` looks closer."),
    (
        errors.Unauthenticated,
        "The token comes from --token, SLATE_TOKEN, or the data directory of this machine's server (SLATE_DATA).",
    ),
    (errors.Denied, "`slate whoami` shows who you are here and what you may do."),
    (errors.Conflict, "Read again (`slate get KEY --json`, `slate conflicts`), then decide again."),
    (
        errors.LockHeld,
        "`slate lock ls` shows who holds it, `slate lock waiters` who waits; `--wait 30s` waits.",
    ),
    (errors.LockLost, "Others may hold it now: read again, acquire again."),
    (errors.Compacted, "Read the present state instead (`slate ls`), and follow from there."),
)


def lines_of(error: errors.SlateError) -> list[str]:
    """What happened, why, and what to do next."""
    said = [str(error)]
    if isinstance(error, errors.Conflict):
        said[0] += "".join(f"; {_violation(violation)}" for violation in error.violations[:3])
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
    if hint:
        said.append(hint)
    return said


def _violation(violation: errors.Violation) -> str:
    now = f"at version {violation.current_version}" if violation.current_version else "absent"
    by = f", written by {violation.current_principal!r}" if violation.current_principal else ""
    return f"{violation.key!r} is {now}{by}, expected: {violation.expected}"


def report(error: BaseException) -> int:
    """Say what went wrong; returns the exit code."""
    if os.environ.get("SLATE_DEBUG") and not isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        traceback.print_exception(error)
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            return BROKEN_PIPE
        case CliError():
            output.err(str(error))
            return error.code
        case errors.SlateError():
            for said in lines_of(error):
                output.err(said)
            return code_of(error)
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            output.err(f"{where}{error.strerror or error}")
            return FAILED
        case _:
            output.err(f"a fault of slate itself: {type(error).__name__}: {error}")
            output.err("SLATE_DEBUG=1 shows where; please report it.")
            return FAILED
