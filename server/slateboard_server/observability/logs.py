"""Logs: structlog to standard error, one JSON object a line or coloured text for people.

What the libraries below us log goes the same way. Nothing that users send is logged: no values, no tokens.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def configure(log_format: Literal["console", "json"], level: str, replica_id: str) -> None:
    """Set logging up for the process. Call once, before anything logs."""

    def name_replica(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        # Not a context variable: threads and signal handlers log too.
        event["replica"] = replica_id
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        name_replica,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor]
    if log_format == "json":
        # Without the frames' local variables: there are tokens and values among them.
        stacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        render = [
            structlog.processors.ExceptionRenderer(stacks),
            structlog.processors.JSONRenderer(sort_keys=False),
        ]
    else:
        plain = structlog.dev.plain_traceback
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for chatty in ("asyncio", "psycopg", "psycopg.pool", "alembic", "grpc"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what gRPC says, with its stack, of a client that vanished while something was being sent to it.

    Our own line about the call tells what there is to tell (grpc/grpc#28999).
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (record.name.startswith("grpc.") and type(error).__name__ == "ExecuteBatchError")
