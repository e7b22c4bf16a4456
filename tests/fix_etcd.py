"""Fixtures that give a test an etcd of its own, or three.

`etcd` is one member that all tests share, each under a prefix of its own (`etcd_prefix`); `make_etcd` starts a cluster for
one test, to be killed, stopped and cut as it likes. Members listen on random ports of 127.0.0.1, keep their data in a
temporary folder, and are ended by their own pid.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import grpc
import pytest

from slateboard_server.liveness.connection import STATUS
from slateboard_server.liveness.etcdpb import etcd_pb2

ROOT = Path(__file__).parents[1]
_START_TIMEOUT = 30.0
_FIXTURES = frozenset({"etcd", "make_etcd"})


class EtcdUnavailable(Exception):
    """etcd cannot be run here; the message says why."""


def find_etcd() -> str:
    """The path of an etcd server; built first where that is possible."""
    found = subprocess.run(
        ["sh", str(ROOT / "tools" / "ensure_etcd.sh")], capture_output=True, text=True, timeout=600
    )
    if found.returncode:
        raise EtcdUnavailable(found.stderr.strip()[-500:])
    return found.stdout.strip().splitlines()[-1]


class Member:
    """One etcd process."""

    def __init__(self, binary: str, root: Path, name: str, extra: tuple[str, ...], scheme: str) -> None:
        self.name = name
        self.client_port = _free_port()
        self.peer_port = _free_port()
        self.endpoint = f"127.0.0.1:{self.client_port}"
        self.peer = f"{name}=http://127.0.0.1:{self.peer_port}"
        self._binary = binary
        self._scheme = scheme
        self._data = root / name
        self.log = root / f"{name}.log"
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self._process is not None
        return self._process.pid

    def launch(self, cluster: str) -> None:
        """Start the process, without waiting for it to answer."""
        client = f"{self._scheme}://{self.endpoint}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        self._output = self.log.open("ab")
        command = [self._binary, "--name", self.name, "--data-dir", str(self._data), "--log-level", "warn"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", cluster, "--heartbeat-interval", "100", "--election-timeout", "1000"]
        self._process = subprocess.Popen(
            [*command, *self._extra], stdout=self._output, stderr=self._output, start_new_session=True
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it, and see that it is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGCONT)
                self.send(signal.SIGKILL)
            self._process.wait(timeout=10)
            self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def forget_data(self) -> None:
        """Lose all it knew, while it is down."""
        shutil.rmtree(self._data, ignore_errors=True)


class EtcdCluster:
    """One to three members."""

    def __init__(self, size: int, *, extra: tuple[str, ...] = (), scheme: str = "http") -> None:
        """Make folders and ports; starts nothing."""
        binary = find_etcd()
        self.root = Path(tempfile.mkdtemp(prefix="slateboard-etcd-"))
        self.members = [Member(binary, self.root, f"m{number}", extra, scheme) for number in range(size)]
        self._secure = scheme == "https"

    @property
    def endpoints(self) -> list[str]:
        """HOST:PORT of each member."""
        return [member.endpoint for member in self.members]

    def start(self) -> "EtcdCluster":
        """Start all members; returns when there is a leader."""
        for member in self.members:
            member.launch(self._names())
        self.wait()
        return self

    def restart(self, member: Member) -> None:
        """Start a member that was killed."""
        member.launch(self._names())

    def _names(self) -> str:
        return ",".join(member.peer for member in self.members)

    def wait(self, timeout: float = _START_TIMEOUT) -> None:
        """Wait until some member knows a leader."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if self._secure:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", self.members[0].client_port), 1).close()
                    time.sleep(1)
                    return
            elif self.leader() is not None:
                return
            time.sleep(0.05)
        logs = "\n".join(member.log.read_text(errors="replace")[-500:] for member in self.members)
        raise EtcdUnavailable(f"etcd did not start within {timeout:.0f} s: {logs}")

    def leader(self) -> Member | None:
        """The member that leads, as those who answer say."""
        for member in self.members:
            with grpc.insecure_channel(member.endpoint) as channel:
                call = channel.unary_unary(
                    STATUS.path,
                    request_serializer=etcd_pb2.StatusRequest.SerializeToString,
                    response_deserializer=etcd_pb2.StatusResponse.FromString,
                )
                with contextlib.suppress(grpc.RpcError):
                    status = call(etcd_pb2.StatusRequest(), timeout=0.5)
                    if status.leader and status.leader == status.header.member_id:
                        return member
        return None

    def destroy(self) -> None:
        """Kill all members and remove their data."""
        for member in self.members:
            member.kill()
        shutil.rmtree(self.root, ignore_errors=True)


class MakeEtcd(Protocol):
    """Starts a cluster of this test's own."""

    def __call__(
        self, size: int = 1, *, extra: tuple[str, ...] = (), scheme: str = "http"
    ) -> EtcdCluster: ...


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdCluster]:
    """One member that all tests of the run share."""
    cluster = _made(1)
    try:
        yield cluster.start()
    finally:
        cluster.destroy()


@pytest.fixture
def etcd_prefix() -> str:
    """A prefix for this test's keys."""
    return f"test-{secrets.token_hex(6)}/"


@pytest.fixture
def make_etcd() -> Iterator[MakeEtcd]:
    """Start clusters of this test's own; ended after it."""
    made: list[EtcdCluster] = []

    def make(size: int = 1, *, extra: tuple[str, ...] = (), scheme: str = "http") -> EtcdCluster:
        cluster = _made(size, extra=extra, scheme=scheme)
        made.append(cluster)
        return cluster.start()

    yield make
    for cluster in made:
        cluster.destroy()


def _made(size: int, *, extra: tuple[str, ...] = (), scheme: str = "http") -> EtcdCluster:
    try:
        return EtcdCluster(size, extra=extra, scheme=scheme)
    except EtcdUnavailable as error:
        if os.environ.get("SLATEBOARD_REQUIRE_ETCD") == "1":
            raise
        pytest.skip(f"no etcd here: {error}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs etcd, so that it can be chosen or left out: `-m etcd`."""
    for item in items:
        if _FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("etcd")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
