"""Locks."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
expands = True


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def _big(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _small(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "locks",
        _big("board_id"),
        _text("lock_id"),
        _big("number"),
        _small("state"),
        _small("mode"),
        _text("scopes"),
        _text("principal"),
        _text("session_id", nullable=True),
        _text("holder"),
        _text("purpose"),
        _big("ttl"),
        _big("asked"),
        _text("request_id"),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        _text("attempt"),
        _big("max_hold", nullable=True),
        _big("token"),
        _big("granted", nullable=True),
        _big("ended", nullable=True),
        _text("ended_by"),
        _text("end_reason"),
        _text("end_request_id"),
        _text("successor"),
        _big("sequence"),
        sa.PrimaryKeyConstraint("board_id", "lock_id"),
    )
    op.create_index("locks_by_request", "locks", ["board_id", "principal", "request_id"])
    op.create_index("locks_by_sequence", "locks", ["board_id", "sequence"])
    for name, columns, where in (
        ("locks_live", ["board_id", "principal", "number"], "state <= 2"),
        ("locks_waiting", ["board_id", "principal", "number"], "state = 1"),
        ("locks_ended", ["ended"], "ended IS NOT NULL"),
    ):
        op.create_index(name, "locks", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    op.create_table(
        "lock_scopes",
        _big("board_id"),
        _text("region"),
        _text("path"),
        _text("lock_id"),
        sa.PrimaryKeyConstraint("board_id", "region", "path", "lock_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("lock_scopes_by_lock", "lock_scopes", ["board_id", "lock_id"])
