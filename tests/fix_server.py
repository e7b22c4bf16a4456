"""Fixtures that give a test real servers, in processes of their own.

`server` is one embedded server shared by the whole run; `live_server` is its address and the local token. `make_server`
starts more: on a new or given data directory, with other options, on PostgreSQL; all are stopped at the end of the test.
`pg_server` is a server over a fresh database in PostgreSQL. Every server listens on a random port of 127.0.0.1.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

_ANNOUNCEMENT = "slateboard listening on "
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 20.0


class ServerFailed(Exception):
    """A server did not start; holds its exit code and the end of what it said."""

    def __init__(self, code: int | None, said: str) -> None:
        super().__init__(f"the server ended with {code} before it listened: {said[-2_000:]}")
        self.code = code
        self.said = said


class Server:
    """One server process, which may be stopped, killed and started again on the same data and port."""

    def __init__(
        self,
        data_dir: Path,
        *,
        database_url: str | None = None,
        listen: str = "127.0.0.1:0",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        migrates: bool = True,
        program: str = "slateboard_server",
    ) -> None:
        self._program = program
        self._migrates = migrates
        self.data_dir = data_dir
        self.address = ""
        self._database_url = database_url
        self._listen = listen
        self._options = list(options)
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        data_dir.mkdir(parents=True, exist_ok=True)
        self._log_path = data_dir.parent / f"{data_dir.name}.log"

    def start(self) -> "Server":
        """Start it and wait until it listens; ServerFailed where it does not."""
        assert self._process is None, "it runs already"
        command = [sys.executable, "-m", self._program, "--data", str(self.data_dir)]
        command += ["--listen", self._listen, "--log-format", "json", *self._options]
        if self._database_url is not None:
            command += ["--database-url", self._database_url]
            if self._migrates:
                command.append("--auto-migrate")
        if (setpriv := shutil.which("setpriv")) is not None:
            # If the test run itself is killed, the server goes with it instead of staying behind.
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        settings = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLATEBOARD_", "SLATE_")) or name.startswith("SLATEBOARD_TEST_")
        }
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**settings, **self._env},
                start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then stops it in order
            )
        self.address = self._wait_for_announcement(self._process)
        # The port stays the same over restarts, so that clients find the server again.
        self._listen = self.address
        return self

    def _wait_for_announcement(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + _START_TIMEOUT
        said = b""
        while time.monotonic() < deadline:
            ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
            piece = os.read(process.stdout.fileno(), 4_096) if ready else b""
            if not piece:
                break
            said += piece
            for line in said.decode().splitlines(keepends=True):
                if line.startswith(_ANNOUNCEMENT) and line.endswith("\n"):
                    return line.removeprefix(_ANNOUNCEMENT).strip()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
        code = process.poll()
        self._end(signal.SIGKILL)
        raise ServerFailed(code, self.log())

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def operator_token(self) -> str:
        """The token of administration that the server left on its first start."""
        return (self.data_dir / "operator.token").read_text().strip()

    @property
    def local_token(self) -> str:
        """The token of a supervisor of every board that the server left on its first start."""
        return (self.data_dir / "local.token").read_text().strip()

    def log(self) -> str:
        """What the server said on standard error, over all starts."""
        return self._log_path.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal and go on."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = _STOP_TIMEOUT) -> int:
        """Wait until the process has ended by itself; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout)
        self._forget()
        return code

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what is not on disk is lost."""
        self._end(signal.SIGKILL)

    def restart(self) -> "Server":
        """Stop it if it runs, and start it on the same data and port."""
        if self._process is not None:
            self.stop()
        return self.start()

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()
        return process.returncode

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


MakeServer = Callable[..., Server]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """An embedded server shared by the whole run: do not stop it, and use boards of your own."""
    root = Path(tempfile.mkdtemp(prefix="slateboard-server-"))
    made = Server(root / "data")
    try:
        yield made.start()
    finally:
        made.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def live_server(server: Server) -> tuple[str, str]:
    """Address and local token of the shared server."""
    return server.address, server.local_token


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """A function that starts servers of this test's own, on a new or given data directory."""
    made: list[Server] = []

    def make(
        data_dir: Path | None = None,
        *,
        database_url: str | None = None,
        listen: str = "127.0.0.1:0",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        start: bool = True,
        migrates: bool = True,
        program: str = "slateboard_server",
    ) -> Server:
        directory = tmp_path / f"server-{len(made)}" if data_dir is None else data_dir
        one = Server(
            directory,
            database_url=database_url,
            listen=listen,
            options=options,
            env=env,
            migrates=migrates,
            program=program,
        )
        made.append(one)
        return one.start() if start else one

    yield make
    for one in reversed(made):
        one.stop()


@pytest.fixture
def pg_server(make_server: MakeServer, postgres_dsn: str) -> Server:
    """A server over a database in PostgreSQL that only this test uses."""
    return make_server(database_url=postgres_dsn)
