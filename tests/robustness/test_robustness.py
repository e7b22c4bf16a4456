"""Recorded histories under faults: short and seeded in `make test`, long in `make robustness`.

`SLATEBOARD_SEED=n` repeats a run's choices (which processes meet when is never the same); a failure leaves its history below
build/.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fix_etcd import MakeEtcd
from tests.fix_postgres import PostgresCluster
from tests.fix_server import MakeServer
from tests.robustness import faults
from tests.robustness.faults import Field, Proxy
from tests.robustness.run import Report, run
from tests.robustness.second_opinion import linearizable

SEED = int(os.environ.get("SLATEBOARD_SEED", "0")) or 20_261
"""Of the short runs: the same choices each time, so that `make test` is the same test each time."""
LONG_SEED = int(os.environ.get("SLATEBOARD_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
"""Of the long runs, which look further each time."""
SHORT = 14.0
LONG = float(os.environ.get("SLATEBOARD_ROBUSTNESS_SECONDS", "180"))
REPLICA = "tests.robustness.replica"


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the history goes; kept below build/ where the test failed."""
    made = tmp_path / "history"
    made.mkdir()
    yield made
    if any(made.glob("broken.json")):
        kept = Path("build") / f"history-{request.node.name.replace('[', '-').rstrip(']')}-{SEED}"
        shutil.copytree(made, kept, dirs_exist_ok=True)


@pytest.fixture
def cluster(
    make_server: MakeServer, make_etcd: MakeEtcd, private_postgres: PostgresCluster
) -> Iterator[Callable[..., Field]]:
    """Replicas over PostgreSQL and three etcd members, with a proxy before each of these."""
    proxies: list[Proxy] = []

    def make(replicas: int = 2, env: dict[str, str] | None = None) -> Field:
        etcd = make_etcd(3)
        dsn = private_postgres.create_database()
        database = Proxy(private_postgres.port)
        proxies.append(database)
        between = [Proxy(member.client_port) for member in etcd.members]
        proxies.extend(between)
        through = psycopg.conninfo.conninfo_to_dict(dsn) | {"port": str(database.port)}
        url = f"postgresql://{through['user']}:{through['password']}@127.0.0.1:{through['port']}/{through['dbname']}"
        endpoints = json.dumps([f"127.0.0.1:{proxy.port}" for proxy in between])
        settings = {"SLATEBOARD_ETCD_ENDPOINTS": endpoints, **(env or {})}
        servers = [make_server(database_url=url, env=settings, program=REPLICA) for _ in range(replicas)]
        return Field(
            servers,
            etcd=etcd,
            postgres_pid=private_postgres.pid,
            database_proxy=database,
            etcd_proxies=between,
        )

    yield make
    for proxy in proxies:
        proxy.close()


def judged(report: Report, folder: Path, seed: int = SEED) -> None:
    """Fail with what is broken; otherwise see that the run was worth something."""
    print(f"\nseed {seed}: {report.summary()}")
    assert not report.broken, f"seed {seed}: " + "\n".join(report.broken[:20])
    kinds = {one.kind for one in report.history if one.outcome == "ok"}
    assert {"read", "write", "append", "increment", "done", "watched"} <= kinds
    assert len(report.faults) >= 1
    assert linearizable(folder) is not False, f"seed {seed}: porcupine finds the history illegal"


@pytest.mark.timeout(150)
def test_a_short_run_on_one_embedded_server(make_server: MakeServer, folder: Path) -> None:
    """Kill -9, SIGSTOP of server and agents: every promise holds of the recorded history."""
    place = Field([make_server(program=REPLICA)])
    judged(run(place, folder, seed=SEED, seconds=SHORT, faults=faults.EMBEDDED), folder)


@pytest.mark.timeout(200)
def test_a_short_run_on_two_replicas(cluster: Callable[..., Field], folder: Path) -> None:
    """Two replicas, PostgreSQL, three etcd members: four faults drawn by the seed."""
    chosen = random.Random(SEED).sample(faults.CLUSTER, 4)
    judged(run(cluster(), folder, seed=SEED, seconds=SHORT + 6, faults=chosen), folder)


@pytest.mark.timeout(150)
def test_without_the_fence_the_pause_of_a_holder_loses_an_update(
    make_server: MakeServer, folder: Path
) -> None:
    """The mechanism is what makes the difference: switched off, the same traffic and fault lose updates, and it is found."""
    server = make_server(program=REPLICA, env={"SLATEBOARD_TEST_UNFENCED": "1"})
    place = Field([server])
    report = run(
        place,
        folder,
        seed=SEED,
        seconds=SHORT + 4,
        faults=(faults.stop_holder,),
        workloads=("unchecked",) * 4,
    )
    assert any("lost update" in broken for broken in report.broken), report.summary()
    assert linearizable(folder) is not True
    (folder / "broken.json").unlink()


@pytest.mark.timeout(150)
def test_clocks_that_jump_break_no_promise(make_server: MakeServer, folder: Path, tmp_path: Path) -> None:
    """The wall clock goes back an hour and forth again: leases count monotonic time, boards' time never runs back."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    server = make_server(program=REPLICA, env={"SLATEBOARD_TEST_CLOCK_FILE": str(clock)})

    def jump(_: Field, chance: random.Random) -> None:
        clock.write_text(str(chance.choice([-3_600, 3_600, 0, 30, -30])))

    workloads = ("register", "append", "bank", "locked", "locked", "watch")
    report = run(Field([server]), folder, seed=SEED, seconds=10, faults=(jump,), workloads=workloads)
    print(report.summary())
    assert not report.broken, f"seed {SEED}: " + "\n".join(report.broken[:20])


@pytest.mark.robustness
@pytest.mark.timeout(LONG + 400)
def test_a_long_run_on_three_replicas(cluster: Callable[..., Field], folder: Path) -> None:
    """All faults, again and again."""
    judged(
        run(cluster(replicas=3), folder, seed=LONG_SEED, seconds=LONG, faults=faults.CLUSTER),
        folder,
        LONG_SEED,
    )


@pytest.mark.robustness
@pytest.mark.timeout(LONG + 300)
def test_a_long_run_on_one_embedded_server(make_server: MakeServer, folder: Path) -> None:
    """All faults an embedded server can meet, again and again."""
    place = Field([make_server(program=REPLICA)])
    judged(run(place, folder, seed=LONG_SEED, seconds=LONG, faults=faults.EMBEDDED), folder, LONG_SEED)
