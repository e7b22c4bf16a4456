"""Several replicas over one PostgreSQL and one etcd, as `slate serve --config` starts them, through the Python client."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import slateboard
from tests.fix_etcd import EtcdCluster
from tests.fix_server import MakeServer, Server, ServerFailed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def replicas(make_server: MakeServer, postgres_dsn: str, etcd: EtcdCluster, etcd_prefix: str) -> list[Server]:
    """Three replicas, started by a configuration file each; the schema was made before, by `slate migrate`."""
    migrated = subprocess.run(
        [sys.executable, "-m", "slateboard.cli", "migrate", "--database-url", postgres_dsn],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert migrated.returncode == 0, migrated.stderr
    assert "to 0002" in migrated.stdout
    example = (ROOT / "deploy" / "server.toml").read_text(encoding="utf-8")
    made = []
    for _ in range(3):
        server = make_server(database_url=postgres_dsn, migrates=False, start=False)
        config = server.data_dir / "server.toml"
        endpoints = "etcd_endpoints = " + json.dumps(etcd.endpoints)
        lines = [
            endpoints
            if line.startswith("etcd_endpoints")
            else f'etcd_prefix = "{etcd_prefix}"'
            if line.startswith("etcd_prefix")
            else line
            for line in example.splitlines()
            if not line.startswith(("listen", "database_url", "tls_", "log_format"))
        ]
        config.write_text("\n".join(lines), encoding="utf-8")
        server._options = ["--config", str(config)]
        made.append(server.start())
    return made


@contextmanager
def client(replicas: list[Server]) -> Iterator[slateboard.Client]:
    addresses = [server.address for server in replicas]
    with slateboard.connect(addresses, token=replicas[0].local_token) as made:
        yield made


def test_a_server_in_server_mode_refuses_a_database_that_was_not_migrated(
    make_server: MakeServer, postgres_dsn: str
) -> None:
    with pytest.raises(ServerFailed) as failed:
        make_server(database_url=postgres_dsn, migrates=False)
    assert "slate migrate" in failed.value.said


def test_a_rolling_restart_fails_no_idempotent_call(replicas: list[Server]) -> None:
    """Each replica in turn is ended by SIGTERM and started again, under load: the default client policy hides it."""
    with client(replicas) as made:
        board = made.create_board("roll")
        board.put("counter", 0, absent=True)
        stop = threading.Event()
        failed: list[BaseException] = []
        done = [0] * 4

        def work(number: int) -> None:
            while not stop.is_set():
                try:
                    board.update("counter", lambda value: value + 1)
                    board.put(f"w/{number}/{done[number]}", done[number], absent=True)
                    assert board.get(f"w/{number}/{done[number]}").value == done[number]
                    done[number] += 1
                except Exception as error:  # noqa: BLE001 -- any failure is what this test looks for
                    failed.append(error)
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        with board.lock("held", ttl=5, wait=5) as held:
            for server in replicas:
                time.sleep(0.5)
                server.stop()
                server.start()
            held.put("held", "still", absent=True)
        time.sleep(0.5)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed, failed[0]
        assert min(done) > 0
        assert board.get("counter").value == sum(done)


def test_a_replica_killed_under_load_costs_no_acknowledged_commit_and_no_lock(replicas: list[Server]) -> None:
    """T21: kill -9 between the database's COMMIT and the reply: the retry elsewhere is a replay, never a second one."""
    with client(replicas) as made:
        board = made.create_board("kill")
        board.put("counter", 0, absent=True)
        stop = threading.Event()
        acknowledged = [0] * 4

        def work(number: int) -> None:
            while not stop.is_set():
                board.update("counter", lambda value: value + 1)
                acknowledged[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        with board.lock("held", ttl=6) as held:
            for server in replicas[:2]:
                time.sleep(0.7)
                server.kill()
                time.sleep(0.7)
                server.start()
            time.sleep(0.5)
            assert held.gate() > 0
        stop.set()
        for thread in threads:
            thread.join()
        assert board.get("counter").value == sum(acknowledged)


def test_a_stopped_replica_is_passed_over(replicas: list[Server]) -> None:
    """SIGSTOP: calls go to the others after one timeout; locks are renewed there."""
    with client(replicas) as made:
        board = made.create_board("stop")
        with board.lock("k", ttl=20) as held:
            replicas[0].send(signal.SIGSTOP)
            try:
                begin = time.monotonic()
                for number in range(20):
                    held.put(f"x/{number}", number, absent=True)
                assert time.monotonic() - begin < 45
                assert held.gate() > 0
            finally:
                replicas[0].send(signal.SIGCONT)
