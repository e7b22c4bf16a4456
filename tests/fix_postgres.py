"""Fixtures that give a test a PostgreSQL of its own.

`postgres` is one throw-away cluster for the whole run; `postgres_dsn` is a fresh database in it. A test that stops or
kills the server asks for `private_postgres`, a cluster nobody else uses.

The cluster lives in a temporary folder, listens on a random port of 127.0.0.1 and nowhere else, and keeps fsync on, so
that what survives a kill here is what the code asked PostgreSQL to keep. It never runs as root: PostgreSQL refuses to.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psycopg
import psycopg.sql
import pytest

_USER = "slateboard"
_START_TIMEOUT = 30.0  # seconds; recovery after a kill included
_FIXTURES = frozenset({"postgres", "postgres_dsn", "private_postgres"})


class PostgresUnavailable(Exception):
    """PostgreSQL cannot be run here; the message says why."""


class PostgresCluster:
    """One PostgreSQL server with a data directory, a port and a password of its own.

    `start()` and `stop()` may be called any number of times: port, password and data stay the same.
    """

    def __init__(self, *, fsync: bool = True) -> None:
        """Makes the data directory; does not start the server.

        Raises:
            PostgresUnavailable: the programs are missing or there is no user to run them as.
        """
        self._bin = _find_programs()
        self._owner = _unprivileged_user()
        self._fsync = fsync
        self._password = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.root = Path(tempfile.mkdtemp(prefix="slateboard-pg-"))
        self.log = self.root / "server.log"
        password_file = self.root / "password"
        password_file.write_text(self._password)
        password_file.chmod(0o600)
        if self._owner is not None:
            for path in (self.root, password_file):
                os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        command = [str(self._bin / "initdb"), "-D", str(self.root / "data"), "-U", _USER, "-E", "UTF8"]
        command += ["--no-locale", "--no-sync", "-A", "scram-sha-256", f"--pwfile={password_file}"]
        made = self._popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = made.communicate(timeout=60)
        if made.returncode != 0:
            self.destroy()
            raise PostgresUnavailable(f"initdb failed: {output.decode(errors='replace')[-2000:]}")

    def dsn(self, database: str = "postgres") -> str:
        """The connection URL of a database of this cluster, whether it exists or not."""
        return f"postgresql://{_USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Makes an empty database of a fresh name; returns its DSN."""
        name = f"sb_{secrets.token_hex(6)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drops a database that `create_database` made, cutting whoever is still connected."""
        name = dsn.rsplit("/", 1)[1]
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            statement = psycopg.sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(statement.format(psycopg.sql.Identifier(name)))

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Starts the server and returns when it answers; nothing to do if it runs.

        Raises:
            PostgresUnavailable: it did not answer in time; the end of its log is in the message.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            if (
                self.pid is None
            ):  # not started yet, or it gave up: a killed server's backends may still be going
                self._process = self._launch()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn(), connect_timeout=5).close()
                return
            time.sleep(0.05)
        tail = self.log.read_text(errors="replace")[-2000:]
        self.kill()
        raise PostgresUnavailable(f"PostgreSQL did not start within {_START_TIMEOUT:.0f} s: {tail}")

    def stop(self) -> None:
        """Stops the server in order, cutting its clients; returns when it is gone."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's "fast shutdown"
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kills the server and its backends at once, as a crash of the machine would end them."""
        if self._process is not None and (pid := self.pid) is not None:
            backends = _children(pid)
            self._process.kill()
            self._process.wait()
            for backend in backends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(backend, signal.SIGKILL)

    def destroy(self) -> None:
        """Stops the server and removes everything it wrote."""
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "shared_buffers": "32MB",
            "max_connections": "100",
            "max_wal_senders": "0",
            "log_min_messages": "warning",
        }
        command = [str(self._bin / "postgres"), "-D", str(self.root / "data")]
        command += [f"--{name}={value}" for name, value in settings.items()]
        if (setpriv := shutil.which("setpriv")) is not None:
            # If the test run itself is killed, the server goes with it instead of staying behind.
            command = [setpriv, "--pdeathsig", "INT", "--", *command]
        with self.log.open("ab") as log:
            return self._popen(command, stdout=log, stderr=log)

    def _popen(
        self, command: list[str], *, stdout: int | IO[bytes], stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        owner = self._owner
        return subprocess.Popen(
            command,
            cwd=self.root,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            user=owner.pw_uid if owner is not None else None,
            group=owner.pw_gid if owner is not None else None,
            extra_groups=[] if owner is not None else None,
            start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then stops the server in order
        )


def _find_programs() -> Path:
    """The folder with initdb and postgres: from PATH, Debian's newest, or pg_config's word."""
    candidates = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    if (pg_config := shutil.which("pg_config")) is not None:
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True)
        candidates.append(Path(asked.stdout.strip()))
    for folder in candidates:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise PostgresUnavailable("PostgreSQL's programs (initdb, postgres) are not installed")


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Whom to run as: None for ourselves, or somebody harmless where we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable("running as root, and there is neither a user postgres nor a user nobody")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _cluster() -> PostgresCluster:
    fsync = os.environ.get("SLATEBOARD_TEST_PG_FSYNC", "on") != "off"
    try:
        cluster = PostgresCluster(fsync=fsync)
        try:
            cluster.start()
        except BaseException:
            cluster.destroy()
            raise
    except PostgresUnavailable as reason:
        if os.environ.get("SLATEBOARD_REQUIRE_POSTGRES"):
            pytest.fail(f"PostgreSQL is required here: {reason}")
        pytest.skip(str(reason))
    return cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    """A running cluster shared by the whole run: do not stop it."""
    cluster = _cluster()
    yield cluster
    cluster.destroy()


@pytest.fixture
def postgres_dsn(postgres: PostgresCluster) -> Iterator[str]:
    """The DSN of an empty database that only this test uses."""
    dsn = postgres.create_database()
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture
def private_postgres() -> Iterator[PostgresCluster]:
    """A running cluster that this test may stop, start and kill."""
    cluster = _cluster()
    yield cluster
    cluster.destroy()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what uses these fixtures, so that `-m 'not postgres'` leaves it out."""
    for item in items:
        if isinstance(item, pytest.Function) and not _FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("postgres")
