"""Ways to run `slate`: in this process (fast), as a process of its own, and on a terminal."""

import contextlib
import io
import json
import os
import pty
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from slateboard import cli

_TIMEOUT = 30.0


@dataclass(frozen=True)
class Ran:
    """How a command line ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """A document a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


class Slate:
    """Runs command lines against one server and board, and nothing of this machine's own."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)

    def with_env(self, **changed: str | None) -> "Slate":
        """The same with other variables; None removes one."""
        merged: dict[str, str | None] = {**self.env, **changed}
        return Slate({name: value for name, value in merged.items() if value is not None})

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLATE")}
        kept.pop("NO_COLOR", None)
        return {**kept, "TERM": "xterm", **self.env}

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        """In this process."""
        out, err = io.BytesIO(), io.BytesIO()
        code: object = None
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("SLATE")]:
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            # Held here: a wrapper that nobody holds closes what it wraps.
            out_text = io.TextIOWrapper(out, "utf-8", write_through=True)
            err_text = io.TextIOWrapper(err, "utf-8", write_through=True)
            patch.setattr(sys, "stdout", out_text)
            patch.setattr(sys, "stderr", err_text)
            try:
                cli.main(arguments)
            except SystemExit as left:
                code = left.code
        out_text.flush()
        err_text.flush()
        return Ran(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue().decode())

    def ok(self, *arguments: str, stdin: bytes = b"") -> Ran:
        """In this process, and it must work."""
        ran = self(*arguments, stdin=stdin)
        assert ran.code == 0, ran.stderr
        return ran

    def process(self, *arguments: str, stdin: bytes = b"") -> Ran:
        """As a process of its own, its output in pipes."""
        done = subprocess.run(
            [sys.executable, "-m", "slateboard.cli", *arguments],
            input=stdin,
            capture_output=True,
            env=self._environment(),
            timeout=_TIMEOUT,
        )
        return Ran(done.returncode, done.stdout, done.stderr.decode())

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process that goes on; it is killed at the end, if it still runs."""
        process = subprocess.Popen(
            [sys.executable, "-m", "slateboard.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def terminal(self, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
        """On a terminal of its own: exit code and all that it shows."""
        master, slave = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "slateboard.cli", *arguments],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={**self._environment(), "COLUMNS": "200"},
                start_new_session=True,
            )
        finally:
            os.close(slave)
        if typed:
            os.write(master, typed)
        shown = b""
        until = time.monotonic() + _TIMEOUT
        try:
            while time.monotonic() < until:
                ready, _, _ = select.select([master], [], [], until - time.monotonic())
                # Linux says EIO where other systems say end of file, once the last holder of the terminal is gone.
                try:
                    piece = os.read(master, 65_536) if ready else b""
                except OSError:
                    piece = b""
                if not piece:
                    break
                shown += piece
            code = process.wait(max(until - time.monotonic(), 1))
        finally:
            process.kill()
            process.wait()
            os.close(master)
        return code, shown.decode().replace("\r\n", "\n")


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """An address that is taken, so that no server comes up there, and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
