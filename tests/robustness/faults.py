"""What goes wrong: processes that die, stop and come back, connections that are cut, stall or slow down, clocks that jump."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import slateboard
from tests.fix_etcd import EtcdCluster
from tests.fix_server import Server


class Proxy:
    """A TCP proxy on loopback that passes on, cuts, stalls or delays; made for what lies between replica and database."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.mode = "pass"
        """`pass`, `cut` (connections end, new ones are refused), `stall` (nothing passes), `delay` (50 ms a piece)."""
        self._open = True
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def set(self, mode: str) -> None:
        """Change what it does; `cut` ends what is open."""
        self.mode = mode
        if mode == "cut":
            for pair in list(self._pairs):
                self._end(pair)

    def _accept(self) -> None:
        while self._open:
            ready, _, _ = select.select([self._listener], [], [], 0.2)
            if not ready:
                continue
            try:
                near, _ = self._listener.accept()
            except OSError:
                continue
            try:
                far = None if self.mode == "cut" else socket.create_connection(("127.0.0.1", self._target), 2)
            except OSError:
                far = None
            if far is None:
                near.close()
            else:
                pair = (near, far)
                self._pairs.add(pair)
                self._spawn(self._pump, pair)

    def _pump(self, pair: tuple[socket.socket, socket.socket]) -> None:
        near, far = pair
        try:
            while self._open and pair in self._pairs:
                ready, _, _ = select.select([near, far], [], [], 0.2)
                if self.mode == "stall":
                    time.sleep(0.05)
                    continue
                for side in ready:
                    data = side.recv(65_536)
                    if not data:
                        return
                    if self.mode == "delay":
                        time.sleep(0.05)
                    (far if side is near else near).sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        for side in pair:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def close(self) -> None:
        """End all connections and the proxy."""
        self._open = False
        for pair in list(self._pairs):
            self._end(pair)
        for thread in self._threads:
            thread.join(timeout=5)
        self._listener.close()


@dataclass
class Field:
    """What there is to be disturbed."""

    servers: list[Server]
    agents: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    etcd: EtcdCluster | None = None
    postgres_pid: int | None = None
    database_proxy: Proxy | None = None
    etcd_proxies: list[Proxy] = field(default_factory=list)


Fault = Callable[[Field, random.Random], None]


def kill_replica(place: Field, chance: random.Random) -> None:
    """Kill -9 of a replica, and its restart."""
    server = chance.choice(place.servers)
    server.kill()
    time.sleep(0.3)
    server.start()


def stop_replica(place: Field, chance: random.Random) -> None:
    """SIGSTOP of a replica for longer than a lock's ttl."""
    server = chance.choice(place.servers)
    server.send(signal.SIGSTOP)
    time.sleep(3)
    server.send(signal.SIGCONT)


def stop_agent(place: Field, chance: random.Random) -> None:
    """SIGSTOP of a client, which may hold a lock, for longer than its ttl."""
    agent = chance.choice(place.agents)
    with contextlib.suppress(ProcessLookupError):
        agent.send_signal(signal.SIGSTOP)
        time.sleep(4)
        agent.send_signal(signal.SIGCONT)


def stop_holder(place: Field, chance: random.Random) -> None:
    """SIGSTOP of the very client that holds a lock, for longer than its ttl; another one gets the lock meanwhile."""
    del chance
    server = place.servers[0]
    pids = {agent.pid for agent in place.agents}
    with slateboard.connect(server.address, token=server.local_token) as client:
        for _ in range(200):
            held = [int(lock.holder.rpartition("/")[2]) for lock in client.board("arena").locks("locked/")]
            holder = next((pid for pid in held if pid in pids), None)
            if holder is not None:
                os.kill(holder, signal.SIGSTOP)
                time.sleep(5)
                os.kill(holder, signal.SIGCONT)
                return
            time.sleep(0.02)


def kill_etcd_leader(place: Field, chance: random.Random) -> None:
    """Kill -9 of the etcd leader, and its restart."""
    del chance
    leader = place.etcd.leader() if place.etcd is not None else None
    if leader is None or place.etcd is None:
        return
    leader.kill()
    time.sleep(2)
    place.etcd.restart(leader)


def stop_etcd_leader(place: Field, chance: random.Random) -> None:
    """SIGSTOP of the etcd leader: another one is elected, and it comes back believing that it leads."""
    del chance
    leader = place.etcd.leader() if place.etcd is not None else None
    if leader is None:
        return
    leader.send(signal.SIGSTOP)
    time.sleep(3)
    leader.send(signal.SIGCONT)


def lose_etcd(place: Field, chance: random.Random) -> None:
    """All of etcd's data is lost: every lease is gone, and every lock ends."""
    del chance
    if place.etcd is None:
        return
    for member in place.etcd.members:
        member.kill()
        member.forget_data()
    for member in place.etcd.members:
        place.etcd.restart(member)
    place.etcd.wait()


def stop_backend(place: Field, chance: random.Random) -> None:
    """SIGSTOP of a PostgreSQL backend, which may be inside a transaction."""
    if place.postgres_pid is None:
        return
    children = Path(f"/proc/{place.postgres_pid}/task/{place.postgres_pid}/children").read_text().split()
    backends = [int(pid) for pid in children if b"slateboard" in _command(int(pid))]
    if not backends:
        return
    backend = chance.choice(backends)
    with contextlib.suppress(ProcessLookupError):
        os.kill(backend, signal.SIGSTOP)
        time.sleep(2)
        os.kill(backend, signal.SIGCONT)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def disturb_database(place: Field, chance: random.Random) -> None:
    """The network to PostgreSQL is cut, stalls, or slows down."""
    _disturb([place.database_proxy] if place.database_proxy is not None else [], chance)


def disturb_etcd(place: Field, chance: random.Random) -> None:
    """The network to etcd, all members of it."""
    _disturb(place.etcd_proxies, chance)


def _disturb(proxies: list[Proxy], chance: random.Random) -> None:
    mode = chance.choice(["cut", "stall", "delay"])
    for proxy in proxies:
        proxy.set(mode)
    time.sleep(1.5 if mode != "delay" else 3)
    for proxy in proxies:
        proxy.set("pass")


EMBEDDED: tuple[Fault, ...] = (kill_replica, stop_agent, stop_holder, stop_replica)
CLUSTER: tuple[Fault, ...] = (
    stop_holder,
    kill_replica,
    stop_replica,
    kill_etcd_leader,
    stop_etcd_leader,
    stop_backend,
    disturb_database,
    disturb_etcd,
    lose_etcd,
)
