"""The processes of a run: our server, the yardsticks, and what they cost in CPU and memory.

Everything listens on 127.0.0.1 and is stopped when its context ends, also after an error.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from slateboard.v1 import board_service_pb2, board_service_pb2_grpc

_ROOT = Path(__file__).parents[2]
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 20.0
ANNOUNCEMENT = "slateboard listening on "
"""What the server writes, with its address, once it can be called."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Target:
    """Where load goes. A yardstick ignores token and board."""

    address: str
    pid: int
    token: str = ""
    board: str = "bench"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The credential, sent alike to ours and to a yardstick."""
        return (("authorization", f"Bearer {self.token or 'yardstick'}"),)


class SlateboardServer:
    """Our server as a process of its own on a data directory that stays."""

    def __init__(
        self,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        runner: Sequence[str] = ("-m", "slateboard_server"),
    ) -> None:
        """Describe a server; the context starts and stops it. `runner` replaces the module that is run."""
        self._data = data
        self._environment = {**os.environ, **(environment or {})}
        # The command line that people use: what it costs is what they get.
        self._command = [
            sys.executable,
            *runner,
            "--data",
            str(data),
            "--listen",
            "127.0.0.1:0",
            *arguments,
        ]
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        self.start_seconds = 0.0
        """From the start of the process to the line that says it listens."""

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        """Start and wait until it listens."""
        self._data.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        self._log = (self._data / "bench-server.log").open("a")
        self._process = subprocess.Popen(
            self._command,
            cwd=_ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.address = self._announced()
        except BaseException:
            self._stop()
            raise
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it in order."""
        self._stop()

    def _announced(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout
        deadline = time.monotonic() + _START_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([output], [], [], left)[0]:
                break
            line = output.readline()
            if line.startswith(ANNOUNCEMENT):
                return line.removeprefix(ANNOUNCEMENT).split()[0]
            if not line:
                break
        self._log.flush()
        tail = (self._data / "bench-server.log").read_text(errors="replace")[-2_000:]
        raise RuntimeError(f"the server did not say that it listens; the end of its log:\n{tail}")

    def _stop(self) -> None:
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._log.close()

    def target(self, board: str = "bench") -> Target:
        """Return where load for a board goes, as the local supervisor of every board."""
        token = (self._data / "local.token").read_text().strip()
        return Target(self.address, self.pid, token, board)

    def create_board(self, board: str = "bench") -> Target:
        """Make a board."""
        target = self.target(board)
        with grpc.insecure_channel(self.address) as channel:
            boards = board_service_pb2_grpc.BoardServiceStub(channel)
            request = board_service_pb2.CreateBoardRequest(name=board, request_id=str(uuid.uuid4()))
            boards.CreateBoard(request, timeout=30, metadata=target.metadata)
        return target


class Child:
    """A yardstick in a process of its own: `serve(pipe, *arguments)` sends one greeting, then obeys or serves."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Describe a child; the context starts and stops it."""
        self.pipe, self._theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=serve, args=(self._theirs, *arguments), daemon=True)
        self.greeting: Any = None

    def __enter__(self) -> Self:
        """Start and wait for the greeting."""
        self._process.start()
        self._theirs.close()
        self.greeting = receive(self.pipe, _START_TIMEOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it: it holds nothing worth an orderly end."""
        self.pipe.close()
        self._process.terminate()
        self._process.join(_STOP_TIMEOUT)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    @property
    def target(self) -> Target:
        """Where load goes, for a child whose greeting is its address."""
        assert self._process.pid is not None
        return Target(str(self.greeting), self._process.pid)


def receive(pipe: Connection[Any, Any], timeout: float) -> Any:
    """Take one message from a child; an exception it sent is raised here.

    Raises:
        TimeoutError: nothing came within `timeout` seconds.
        EOFError: the child is gone.
    """
    if not pipe.poll(timeout):
        raise TimeoutError(f"a process of the bench said nothing for {timeout:.0f} s")
    message = pipe.recv()
    if isinstance(message, BaseException):
        raise message
    return message


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder on the disk of the project: fsync on a memory file system would flatter everybody alike."""
    base = _ROOT / "build" / "bench-data"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=base) as folder:
        yield Path(folder)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, all threads, user and system; 0 where /proc is missing."""
    try:
        # The second field may hold spaces; what follows its closing parenthesis does not.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where /proc is missing."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS:"))
