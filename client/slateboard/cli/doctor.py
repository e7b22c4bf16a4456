"""`slate doctor`: what may keep Slateboard from working on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sqlite3
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from slateboard.cli import options, output, state, text
from slateboard.cli.version import installed

_OLDEST_PYTHON = (3, 11)
_SQLITE_FIXED = (3, 51, 3)
_LOW_SPACE = 1 << 30
_NO_SPACE = 64 << 20
_SKEW = 5.0
_LOCK = "slateboard.lock"
"""Held by an embedded server as long as it runs."""
Status = Literal["ok", "warning", "error"]
_COLOUR = {"ok": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    status: Status
    detail: str


def add_to(slate: typer.Typer) -> None:
    """Add the command."""
    options.command(slate)(doctor)


def doctor(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The data directory; default SLATE_DATA.")
    ] = None,
) -> None:
    """Look for what may keep Slateboard from working: versions, the data directory, the server. 1 on an error."""
    if data is not None:
        os.environ["SLATE_DATA"] = str(data)
    from slateboard import _config  # noqa: PLC0415 -- brings in grpc

    directory = _config.data_dir()
    checks = [*_programs(), *_directory(directory), *_server()]
    failed = any(check.status == "error" for check in checks)
    state.show(
        lambda: {
            "ok": not failed,
            "checks": [
                {"name": check.name, "status": check.status, "detail": check.detail} for check in checks
            ],
        },
        lambda: _show(checks),
    )
    raise typer.Exit(1 if failed else 0)


def _show(checks: list[Check]) -> None:
    if not output.on_terminal():
        output.table((), [(check.status, check.name, check.detail) for check in checks])
        return
    for check in checks:
        status = check.status.ljust(8)
        shown = f"{_COLOUR[check.status]}{status}\x1b[0m" if output.coloured() else status
        output.out(f"{shown} {check.name.ljust(16)} {text.line(check.detail)}")


def _programs() -> Iterator[Check]:
    fits = sys.version_info >= _OLDEST_PYTHON
    yield Check("python", "ok" if fits else "error", f"{platform.python_version()} ({platform.system()})")
    for package in ("grpcio", "protobuf"):
        found = installed(package)
        yield Check(package, "ok" if found else "error", found or "not installed")
    try:
        # Loading it says more than its version: generated code refuses a runtime that is too old.
        from slateboard.v1 import board_service_pb2_grpc  # noqa: F401, PLC0415 -- looks whether it loads
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is the finding
        yield Check("generated code", "error", f"cannot be loaded: {error}")
    try:
        import slateboard_server  # noqa: F401, PLC0415 -- looks whether it is there

        yield Check("server", "ok", "installed")
    except ModuleNotFoundError:
        yield Check(
            "server", "warning", "not installed: `slate serve` needs pip install 'slateboard[server]'"
        )
    if sqlite3.sqlite_version_info < _SQLITE_FIXED:
        wanted = ".".join(map(str, _SQLITE_FIXED))
        yield Check(
            "sqlite",
            "warning",
            f"{sqlite3.sqlite_version}: older than {wanted}, which mends a rare loss of commits when the write-ahead "
            "log is reset (WAL reset). Do not open the database with other programs while the server runs",
        )
    else:
        yield Check("sqlite", "ok", sqlite3.sqlite_version)


def _directory(directory: Path) -> Iterator[Check]:
    if not directory.exists():
        yield Check("data directory", "warning", f"{directory} is not there yet; `slate serve` makes it")
        place = next(parent for parent in directory.absolute().parents if parent.exists())
    elif not directory.is_dir():
        yield Check("data directory", "error", f"{directory} is not a directory")
        return
    else:
        place = directory
        yield _permissions(directory)
        yield _holder(directory)
    free = shutil.disk_usage(place).free
    status: Status = "error" if free < _NO_SPACE else "warning" if free < _LOW_SPACE else "ok"
    yield Check("free space", status, f"{text.size(free)} at {place}")
    for name in ("operator", "local"):
        path = directory / f"{name}.token"
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Check(f"{name}.token", "error", f"{path}: {error.strerror}")
            continue
        if mode & 0o077:
            detail = f"{path} has mode {mode:04o}: others may read it. chmod 600, then rotate the token"
            yield Check(f"{name}.token", "error", detail)
        elif not os.access(path, os.R_OK):
            yield Check(f"{name}.token", "warning", f"{path} belongs to somebody else")
        else:
            yield Check(f"{name}.token", "ok", f"mode {mode:04o}")


def _holder(directory: Path) -> Check:
    """Whether a server runs on the directory: it keeps a file locked there, and has written who it is into it."""
    name = "running server"
    path = directory / _LOCK
    try:
        import fcntl  # noqa: PLC0415 -- not on every platform

        with path.open("rb") as file:
            who = file.read(200).decode("utf-8", "replace").strip()
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Check(name, "ok", f"one has this directory: {who or 'unnamed'}")
    except FileNotFoundError:
        return Check(name, "ok", "none has ever used this directory")
    except (ImportError, OSError) as error:
        return Check(name, "warning", f"cannot tell: {error}")
    return Check(name, "ok", "none has this directory")


def _permissions(directory: Path) -> Check:
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return Check("data directory", "error", f"{directory} cannot be written by this user")
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o022:
        return Check(
            "data directory", "warning", f"{directory} has mode {mode:04o}: others may write. chmod 700"
        )
    return Check("data directory", "ok", f"{directory}, mode {mode:04o}")


def _port() -> Iterator[Check]:
    """Whether a server that is started could have the port, where it is one of this machine's."""
    from slateboard import _config  # noqa: PLC0415 -- as above

    for target in _config.parse_addresses(state.current().server):
        if target.startswith("unix") or not _config.is_loopback(target):
            continue
        host, _, port = target.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        with socket.socket(family) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind((host.strip("[]"), int(port)))
            except OSError as error:
                detail = (
                    f"{target} cannot be had: {error.strerror}. Something else than a server may be there"
                )
                yield Check("port", "warning", detail)
            else:
                yield Check("port", "ok", f"{target} is free for a server")


def _server() -> Iterator[Check]:
    from slateboard import SlateError, Unavailable  # noqa: PLC0415 -- brings in grpc

    try:
        with state.client() as client:
            before = datetime.now(UTC)
            info = client.server_info(timeout=5)
            after = datetime.now(UTC)
    except Unavailable as error:
        yield Check("answers", "warning", f"no server answers: {error.message}. `slate serve` starts one")
        yield from _port()
        return
    except SlateError as error:
        yield Check("answers", "error", str(error))
        return
    yield Check("answers", "ok", f"version {info.version}, {info.mode}, {info.storage}")
    limits = info.limits
    yield Check(
        "limits",
        "ok",
        f"{limits.max_ops} ops and {limits.max_guards} guards a commit, values up to "
        f"{text.size(limits.max_value_bytes)}, keys up to {limits.max_key_bytes} bytes in {limits.max_key_segments} "
        "segments",
    )
    if info.server_time is not None:
        # Anywhere between sending and receiving is no skew.
        ahead = (info.server_time - after).total_seconds()
        behind = (before - info.server_time).total_seconds()
        skew = max(ahead, behind, 0.0)
        status: Status = "warning" if skew > _SKEW else "ok"
        direction = "ahead" if ahead > behind else "behind"
        detail = f"the server's clock is {skew:.1f} s {direction}" if skew else "the server's clock agrees"
        yield Check("clock", status, detail)
    with state.client() as client:
        try:
            me = client.whoami(timeout=5)
            yield Check("credential", "ok", f"{me.id}, {me.role.name.lower()}")
        except SlateError as error:
            yield Check("credential", "error", str(error))
