"""What is logged, and what never is."""

import json
import logging
import subprocess
import sys
from typing import Literal

import pytest

from slateboard_server.observability.logs import _is_news

PROGRAM = """
import logging, structlog
from slateboard_server.observability.logs import configure
configure({format!r}, "info", "r1")
def work(token):
    value = b"a value of a user"
    raise RuntimeError("broken")
try:
    work("slate_secret")
except RuntimeError as error:
    structlog.get_logger("a").error("call failed", exc_info=error)
    logging.getLogger("b").error("library failed", exc_info=error)
"""


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_stack_in_the_log_shows_where_and_no_variable(format: Literal["console", "json"]) -> None:  # noqa: A002
    """A frame's local variables are tokens and values: they must not get into a log by way of an incident."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(format=format)], capture_output=True, text=True, check=True
    )
    assert "broken" in done.stderr
    assert "work" in done.stderr
    assert "slate_secret" not in done.stderr.replace('work("slate_secret")', "")
    assert "a value of a user" not in done.stderr
    if format == "json":
        assert [json.loads(line)["replica"] for line in done.stderr.splitlines()] == ["r1", "r1"]


def test_a_client_that_vanished_is_no_news() -> None:
    """grpc#28999: gRPC prints a stack where a client dies at the wrong moment."""

    class ExecuteBatchError(Exception):
        """By gRPC's name."""

    def record(name: str, error: Exception | None) -> logging.LogRecord:
        info = None if error is None else (type(error), error, None)
        return logging.LogRecord(name, logging.ERROR, "", 0, "failed", None, info)

    assert not _is_news(record("grpc._cython.cygrpc", ExecuteBatchError()))
    assert _is_news(record("grpc._cython.cygrpc", RuntimeError()))
    assert _is_news(record("slateboard.calls", ExecuteBatchError()))
    assert _is_news(record("grpc._cython.cygrpc", None))
