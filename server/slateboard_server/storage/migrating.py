"""Bringing a database's schema up to this program's, all or nothing."""

from __future__ import annotations

import json
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
_RUNS_WITH = "runs_with"
"""Row of `meta`: the schemas whose programs run on this one."""
_ALEMBIC = threading.Lock()
"""Alembic keeps its environment in module globals."""


def migrate(connection: sa.Connection) -> tuple[str, str]:
    """Run the steps this database has not seen, in the transaction that is open on `connection`.

    Returns the schema before ("" for an empty database) and after. STORAGE_DOWN where the schema was made by a newer
    program that this one does not go with.
    """
    config, script = _script(connection)
    before = _present(connection, script)
    head = script.get_current_head() or ""
    if before is None or before == head:
        return before or _newer(connection), before or _newer(connection)
    log.info("migrating", before=before or "empty", after=head)
    with _ALEMBIC:
        command.upgrade(config, "head")
    connection.execute(sa.text("DELETE FROM meta WHERE name = :name"), {"name": _RUNS_WITH})
    connection.execute(
        sa.text("INSERT INTO meta (name, value) VALUES (:name, :value)"),
        {"name": _RUNS_WITH, "value": json.dumps(_goes_with(script)).encode()},
    )
    return before, head


def check(connection: sa.Connection) -> None:
    """See that this program goes with the database's schema as it is; STORAGE_DOWN, with what to do, where not."""
    _, script = _script(connection)
    before = _present(connection, script)
    if before is not None and before != script.get_current_head():
        state = f"has schema {before}, which is older than this program" if before else "is empty"
        raise SlateboardError(
            Reason.STORAGE_DOWN,
            f"the database {state}; run `slate migrate` once, then start the servers (or set auto_migrate)",
            schema=before,
        )


def _script(connection: sa.Connection) -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config, ScriptDirectory.from_config(config)


def _present(connection: sa.Connection, script: ScriptDirectory) -> str | None:
    """Return the database's schema, "" for none; None for a newer one that this program goes with all the same."""
    known = {step.revision for step in script.walk_revisions()}
    present = MigrationContext.configure(connection).get_current_heads()
    foreign = [step for step in present if step not in known]
    if not foreign:
        return present[0] if present else ""
    rows = connection.execute(
        sa.text("SELECT value FROM meta WHERE name = :name"), {"name": _RUNS_WITH}
    ).fetchall()
    if rows and script.get_current_head() in json.loads(bytes(rows[0][0])):
        log.warning("the schema is newer than this program, and made to go with it", schema=foreign[0])
        return None
    raise SlateboardError(
        Reason.STORAGE_DOWN,
        f"the database has schema {', '.join(foreign)}, made by a newer Slateboard; this one knows schemas up to"
        f" {script.get_current_head()}: start the newer version, or restore a backup that this one made",
        schema=",".join(foreign),
    )


def _newer(connection: sa.Connection) -> str:
    return ",".join(MigrationContext.configure(connection).get_current_heads())


def _goes_with(script: ScriptDirectory) -> list[str]:
    """List the programs, by the schema they were written for, that run on the newest one.

    A step that only adds says `expands = True`: programs of the step before go on working while servers are replaced one
    by one. What takes something away comes in a later release, once none of these is left.
    """
    found: list[str] = []
    for step in script.walk_revisions():
        found.append(step.revision)
        if not getattr(step.module, "expands", False):
            break
    return found


def migration_failed(error: sa.exc.DBAPIError) -> SlateboardError:
    """Say that nothing was changed; the database's own words go to the log only."""
    log.error("migration failed", error=str(error.orig))
    return SlateboardError(
        Reason.STORAGE_DOWN,
        "the database's schema could not be brought up to date and was left as it was; the server's log says why: mend"
        " that, or start the version that wrote it",
    )
