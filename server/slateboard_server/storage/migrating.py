"""Bringing a database's schema up to this program's, all or nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa
import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from slateboard_server.domain.errors import Reason, SlateboardError

log = structlog.get_logger(__name__)
MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps its environment in module globals."""


def migrate(connection: sa.Connection) -> None:
    """Run the steps this database has not seen, in the transaction that is open on `connection`.

    STORAGE_DOWN where the schema was made by a newer program.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    known = {step.revision for step in script.walk_revisions()}
    present = MigrationContext.configure(connection).get_current_heads()
    foreign = [step for step in present if step not in known]
    if foreign:
        raise SlateboardError(
            Reason.STORAGE_DOWN,
            f"the database has schema {', '.join(foreign)}, made by a newer Slateboard; this one knows schemas up to"
            f" {script.get_current_head()}: start the newer version, or restore a backup that this one made",
            schema=",".join(foreign),
        )
    if tuple(present) == tuple(script.get_heads()):
        return
    log.info("migrating", before=",".join(present) or "empty", after=script.get_current_head())
    with _ALEMBIC:
        command.upgrade(config, "head")


def migration_failed(error: sa.exc.DBAPIError) -> SlateboardError:
    """Say that nothing was changed; the database's own words go to the log only."""
    log.error("migration failed", error=str(error.orig))
    return SlateboardError(
        Reason.STORAGE_DOWN,
        "the database's schema could not be brought up to date and was left as it was; the server's log says why: mend"
        " that, or start the version that wrote it",
    )
