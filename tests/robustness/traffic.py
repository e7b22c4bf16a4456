"""Clients at work: `python -m tests.robustness.traffic WORKLOAD ADDRESSES TOKEN BOARD FILE SECONDS SEED NAME`.

Each runs as a process of its own, so that it can be stopped and killed, and records what it asks and hears. All of them go
through the public client with short timeouts: an answer that does not come is an unknown outcome, and stays one.
"""

import random
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import slateboard
from slateboard import Append, Board, Put, RetryPolicy
from tests.robustness.model import Recorder

ACCOUNTS = 4
OPENING = 100
_PAUSE = 0.005


class Agent:
    """One client and its record."""

    def __init__(self, board: Board, record: Recorder, seed: int, name: str) -> None:
        self.board = board
        self.record = record
        self.random = random.Random(seed)
        self.name = name
        self.count = 0
        self.hesitates = 0.1
        """Seconds, at most, between reading and writing under the lock."""

    def unique(self) -> str:
        """A value nobody else writes."""
        self.count += 1
        return f"{self.name}-{self.count}"

    # Registers, compare-and-set

    def register(self) -> None:
        """Reads a register, or sets one by the version that was read."""
        key = f"register/{self.random.randrange(3)}"
        read = self.record.begin("read", key)
        entry = self.board.get(key, None)
        revision = entry.mod_revision if entry is not None else 0
        self.record.end(
            read,
            "ok",
            value=None if entry is None else entry.value,
            version=0 if entry is None else entry.version,
            extra={"mod_revision": revision},
        )
        if self.random.random() < 0.5:
            return
        value, request_id = self.unique(), str(uuid.uuid4())
        write = self.record.begin(
            "write",
            key,
            value=value,
            request_id=request_id,
            extra={"expected": 0 if entry is None else entry.version},
        )
        put = Put(key, value, absent=True) if entry is None else Put(key, value, expect=entry)
        self._commit(write, [put], request_id)

    # A set that only grows

    def grow(self) -> None:
        """Adds an element under a key of its own."""
        key, request_id = f"set/{self.unique()}", str(uuid.uuid4())
        write = self.record.begin("write", key, value=key, request_id=request_id, extra={"expected": 0})
        self._commit(write, [Put(key, key, absent=True)], request_id)

    # A log

    def append(self) -> None:
        """Appends an element, or reads the list."""
        if self.random.random() < 0.2:
            read = self.record.begin("list", "log/")
            entries = self.board.list("log/", page_size=1_000)
            values = [entry.value for entry in entries]
            self.record.end(read, "ok", value=values, revision=entries.revision)
            return
        value, request_id = self.unique(), str(uuid.uuid4())
        write = self.record.begin("append", "log/", value=value, request_id=request_id)
        self._commit(write, [Append("log/", value)], request_id)

    # A bank

    def bank(self) -> None:
        """Moves money between accounts in a transaction, or takes stock in one snapshot."""
        names = [f"bank/{number}" for number in range(ACCOUNTS)]
        if self.random.random() < 0.3:
            look = self.record.begin("snapshot", "bank/")
            found = self.board.get_many(names)
            self.record.end(look, "ok", value=[found[name].value for name in names], revision=found.revision)
            return
        source, target = self.random.sample(names, 2)
        amount = self.random.randrange(1, 10)
        move = self.record.begin("transfer", "bank/", value=amount)
        try:
            with self.board.transaction(timeout=8) as tx:
                first, second = tx.get(source), tx.get(target)
                tx.put(source, first.value - amount)
                tx.put(target, second.value + amount)
        except slateboard.Conflict:
            self.record.end(move, "failed")
        else:
            self.record.end(move, "ok", revision=tx.result.revision if tx.result else 0)

    # A counter behind a lock, written blindly: whoever is not alone loses an update

    def locked(self) -> None:
        """Adds one under a lock, without any check of versions."""
        try:
            with self.board.lock("locked/", ttl=2, wait=8) as held:
                read = held.get("locked/counter")
                time.sleep(self.random.random() * self.hesitates)
                value, request_id = read.value + 1, str(uuid.uuid4())
                add = self.record.begin(
                    "increment",
                    "locked/counter",
                    value=value,
                    request_id=request_id,
                    token=held.token,
                    extra={"read": read.value, "lock_id": held.lock_id},
                )
                try:
                    result = held.commit(
                        [Put("locked/counter", value, exists=True)],
                        note=f"token {held.token}",
                        request_id=request_id,
                        timeout=8,
                    )
                except (slateboard.LockLost, slateboard.LockHeld) as error:
                    self.record.end(add, "failed", extra={**add.extra, "error": str(error)})
                else:
                    self.record.end(add, "ok", revision=result.revision, version=result.results[0].version)
        except (slateboard.LockHeld, slateboard.LockLost):
            pass

    def unchecked(self) -> None:
        """The same by a program that does not look whether it still holds the lock: only the server's fence is left."""
        self.board_lock_check_off()
        self.hesitates = 0.4
        self.locked()

    def board_lock_check_off(self) -> None:
        """Make the client trust its claims blindly, as a client in another language might."""
        setattr(slateboard.Lock, "check", lambda _: None)  # noqa: B010 -- a method replaced

    # Tasks

    def tasks(self) -> None:
        """Claims a task and finishes it, or adds one."""
        queue = slateboard.TaskQueue(self.board, "tasks/", ttl=2)
        if self.random.random() < 0.5:
            queue.add(self.unique())
            return
        claimed = queue.claim_next()
        if claimed is None:
            return
        with claimed:
            finish = self.record.begin("done", claimed.task.key, value=self.name, token=claimed.lock.token)
            try:
                claimed.done(self.name)
            except slateboard.LockLost:
                self.record.end(finish, "failed")
            else:
                self.record.end(finish, "ok")

    def _commit(self, operation: object, ops: list[Put | Append], request_id: str) -> None:
        try:
            result = self.board.commit(ops, request_id=request_id, timeout=8)
        except slateboard.Conflict:
            self.record.end(operation, "failed")  # type: ignore[arg-type]
        else:
            self.record.end(
                operation,  # type: ignore[arg-type]
                "ok",
                revision=result.revision,
                version=result.results[0].version,
                extra={**operation.extra, "key": result.results[0].key},  # type: ignore[attr-defined]
            )


def watch(board: Board, record: Recorder, seconds: float) -> None:
    """Follows everything from the beginning, and records each revision as it comes."""
    until = time.monotonic() + seconds
    with board.watch(after=0, progress=True, progress_interval=1.0, reconnect_for=seconds + 30) as batches:
        for batch in batches:
            if batch.entries:
                operation = record.begin("watched", "", revision=batch.revision)
                record.end(
                    operation, "ok", value=sorted(f"{entry.key}@{entry.version}" for entry in batch.entries)
                )
            if time.monotonic() > until:
                return


def main(arguments: list[str]) -> None:
    """Work for some seconds, whatever fails."""
    workload, addresses, token, board_name, path, seconds, seed, name = arguments
    record = Recorder(Path(path), name)
    retry = RetryPolicy(attempts=3, attempt_timeout=2.5, conflict_attempts=8)
    with slateboard.connect(addresses, token=token, timeout=8, retry=retry) as client:
        board = client.board(board_name)
        if workload == "watch":
            watch(board, record, float(seconds))
            return
        agent = Agent(board, record, int(seed), name)
        step: Callable[[], None] = getattr(agent, workload)
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            try:
                step()
            except slateboard.SlateError:
                time.sleep(0.05)  # recorded as unknown, if it was a write
            time.sleep(_PAUSE)
    record.close()


if __name__ == "__main__":
    main(sys.argv[1:])
