"""One run: start servers, let agents work, disturb them, let all come to rest, judge the history."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import slateboard
from tests.fix_server import Server
from tests.robustness.faults import Fault, Field
from tests.robustness.model import Operation, read_history
from tests.robustness.traffic import ACCOUNTS, OPENING
from tests.robustness.validate import Truth, read_truth, validate

BOARD = "arena"
WORKLOADS = ("register", "grow", "append", "bank", "locked", "locked", "locked", "tasks", "tasks", "watch")


@dataclass(frozen=True)
class Report:
    """What a run showed."""

    broken: list[str]
    history: list[Operation]
    truth: Truth
    faults: list[str]

    def summary(self) -> str:
        """Count outcomes, for people."""
        counts = Counter(f"{one.kind} {one.outcome}" for one in self.history)
        return f"faults {self.faults}; revisions {self.truth.head}; locks {len(self.truth.tenures)}; {dict(counts)}"


def run(
    place: Field,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    faults: Sequence[Fault],
    workloads: Sequence[str] = WORKLOADS,
) -> Report:
    """Let agents work for `seconds` while `faults` happen one after the other, in an order drawn from the seed."""
    chance = random.Random(seed)
    token = place.servers[0].local_token
    addresses = ",".join(server.address for server in place.servers)
    with slateboard.connect(addresses.split(","), token=token) as client:
        board = client.create_board(BOARD)
        board.put("locked/counter", 0, absent=True)
        for number in range(ACCOUNTS):
            board.put(f"bank/{number}", OPENING, absent=True)
    files: list[Path] = []
    done: list[str] = []
    logs = (folder / "agents.log").open("ab")
    try:
        for number, workload in enumerate(workloads):
            files.append(folder / f"{number}-{workload}.jsonl")
            words = [
                workload,
                addresses,
                token,
                BOARD,
                str(files[-1]),
                str(seconds),
                str(chance.random())[2:11],
            ]
            place.agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.robustness.traffic", *words, f"{workload}{number}"],
                    stdout=logs,
                    stderr=logs,
                    env={name: value for name, value in os.environ.items() if not name.startswith("SLATE")},
                )
            )
        begin = time.monotonic()
        time.sleep(1.5)  # everybody is at work
        queue: list[Fault] = []
        while time.monotonic() - begin < seconds - 2:
            if not queue:
                queue = chance.sample(list(faults), len(faults))
            fault = queue.pop()
            done.append(fault.__name__)
            fault(place, chance)
            time.sleep(0.3 + chance.random())
        for agent in place.agents:
            agent.wait(timeout=60)
    finally:
        for agent in place.agents:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
            agent.wait()
        logs.close()
    truth = _at_rest(place, token)
    history = read_history(files)
    report = Report(validate(history, truth), history, truth, done)
    if report.broken:
        (folder / "broken.json").write_text(json.dumps(report.broken, indent=1), encoding="utf-8")
    return report


def _at_rest(place: Field, token: str, patience: float = 60.0) -> Truth:
    """Wait until what was under way has ended (a lock's ttl is 2 s), then read what the server says."""
    until = time.monotonic() + patience
    addresses = [server.address for server in place.servers]
    while True:
        try:
            with slateboard.connect(addresses, token=token, timeout=20) as client:
                board = client.board(BOARD)
                if not board.locks().all() and not board.waiters().all():
                    before = board.info().revision
                    time.sleep(1.0)
                    if board.info().revision == before:
                        return read_truth(board)
        except slateboard.SlateError:
            if time.monotonic() > until:
                raise
        if time.monotonic() > until:
            raise AssertionError("the board did not come to rest")
        time.sleep(0.3)


def embedded(server: Server) -> Field:
    """One embedded server to be disturbed."""
    return Field([server])
