"""The processes of the demo: a server of its own where none is given, and one process a worker. None outlives the team."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ANNOUNCEMENT: Final = "slateboard listening on "
_START_TIMEOUT: Final = 45.0
_STOP_TIMEOUT: Final = 15.0
_LEAVE_TIMEOUT: Final = 15.0
_LOG_SHOWN: Final = 2_000


class ProcessFailed(Exception):
    """A process of the team did not do what it is for; the message has the end of what it said."""


class Team:
    """A server and workers, as processes that this one has started; a context manager that ends them all.

    Args:
        logs: A directory for what the processes write on standard error.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._server: subprocess.Popen[bytes] | None = None
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _uninterrupted():
            self._end_workers()
            failure = self._end_server()
        if failure and kind is None:
            raise ProcessFailed(failure)

    def start_server(self, data: Path) -> str:
        """Start an embedded server on a free port of this machine, and return its address once it listens.

        Raises:
            ProcessFailed: It ended, or did not listen in time.
        """
        command = [sys.executable, "-m", "slateboard_server", "--data", str(data), "--listen", "127.0.0.1:0"]
        # Settings of another server must not reach this one.
        env = _environment(without=("SLATEBOARD_", "SLATE_"))
        # On Linux the server stops with this process even where that is killed and cannot see to it.
        setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "TERM", "--", *command]
        with self._log("server").open("wb") as log:
            # A session of its own: Ctrl-C is for this process, which then ends the others in order.
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        return self._announced(self._server)

    def start_worker(
        self, name: str, start: Mapping[str, str | float], module: str = "agents_demo.worker"
    ) -> None:
        """Start a worker (or another `module` of the team) and tell it through a pipe who it is: a token on a command line is everybody's to read."""
        with self._log(name).open("wb") as log:
            process = self._workers[name] = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=_environment(without=("SLATE_",)),
                start_new_session=True,
            )
        assert process.stdin is not None
        # It stays open: when it closes, whatever ended this process, the worker leaves.
        process.stdin.write(json.dumps({**start, "name": name}).encode() + b"\n")
        process.stdin.flush()

    def kill(self, name: str) -> None:
        """SIGKILL a worker, and wait until it is gone."""
        self._killed.add(name)
        process = self._workers[name]
        process.kill()
        process.wait(_STOP_TIMEOUT)

    def pause(self, name: str) -> None:
        """SIGSTOP: it does not notice, and cannot do anything, until `resume`."""
        self._workers[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT after `pause`."""
        self._workers[name].send_signal(signal.SIGCONT)

    def check(self) -> None:
        """See that all is well.

        Raises:
            ProcessFailed: The server has ended, or a worker failed that nobody killed.
        """
        if self._server is not None and self._server.poll() is not None:
            raise ProcessFailed(self._said("server", self._server.returncode))
        for name, process in self._workers.items():
            if name not in self._killed and process.poll():
                raise ProcessFailed(self._said(name, process.returncode))

    def wait_for_workers(self) -> None:
        """Wait until all workers have left by themselves.

        Raises:
            ProcessFailed: One failed, or did not leave in time.
        """
        until = time.monotonic() + _LEAVE_TIMEOUT
        for name, process in self._workers.items():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise ProcessFailed(f"{name} did not leave when the work was done") from None
        self.check()

    def _announced(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        until = time.monotonic() + _START_TIMEOUT
        said = b""
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([process.stdout], [], [], left)
            piece = os.read(process.stdout.fileno(), 4096) if ready else b""
            if not piece:
                break
            said += piece
            for line in said.decode(errors="replace").splitlines(keepends=True):
                if line.startswith(ANNOUNCEMENT) and line.endswith("\n"):
                    return line.removeprefix(ANNOUNCEMENT).strip()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        if process.poll() is None:
            raise ProcessFailed(f"the server did not listen within {_START_TIMEOUT:.0f} s")
        raise ProcessFailed(self._said("server", process.returncode))

    def _end_workers(self) -> None:
        for process in self._workers.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
        for process in self._workers.values():
            _wait_or_kill(process, 3.0)

    def _end_server(self) -> str:
        """SIGTERM, which drains; returns what was wrong with its end, if anything."""
        process = self._server
        if process is None:
            return ""
        if process.poll() is None:
            process.terminate()
            if not _wait_or_kill(process, _STOP_TIMEOUT):
                return f"the server did not stop within {_STOP_TIMEOUT:.0f} s and was killed"
        if process.stdout is not None:
            process.stdout.close()
        return self._said("server", process.returncode) if process.returncode else ""

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _said(self, name: str, code: int) -> str:
        try:
            said = self._log(name).read_text(errors="replace").strip()[-_LOG_SHOWN:]
        except OSError:
            said = ""
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{name} {how}" + (f":\n{said}" if said else "")


def _wait_or_kill(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether a process ended within `timeout` seconds; it is gone either way."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def _environment(without: Sequence[str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(tuple(without))}
    # gRPC's own log lines are not what a reader of the demo wants to see.
    return {"GRPC_VERBOSITY": "NONE", **kept}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no signal in while processes are ended, which takes seconds at most: a second Ctrl-C must leave none behind.

    Ignored rather than blocked: a mask is a thread's own, and gRPC has threads that would take the signal.
    """
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        before = {name: signal.signal(name, signal.SIG_IGN) for name in names}
    except ValueError:  # not the main thread, which alone gets them
        yield
        return
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
