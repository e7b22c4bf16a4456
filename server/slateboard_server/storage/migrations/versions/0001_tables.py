"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    kind = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def _big(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _small(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger(), nullable=False)


def _bytes(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        _text("record_id"),
        _big("time"),
        _text("principal"),
        _text("action"),
        _text("board"),
        _text("target"),
        _text("detail"),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("audit_by_record", "audit", ["record_id"], unique=True)
    op.create_table(
        "board_ids",
        sa.Column("one", sa.Integer(), nullable=False),
        _big("last"),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "boards",
        sa.Column("board_id", sa.BigInteger(), autoincrement=False, nullable=False),
        _text("name"),
        _small("deleted"),
        _text("description"),
        _big("created"),
        _text("created_by"),
        _text("create_request_id"),
        _bytes("secret"),
        _text("incarnation"),
        _big("head"),
        _big("floor"),
        _big("compacted"),
        _big("last_commit_time"),
        _big("lock_seq"),
        _text("policy"),
        _big("policy_version"),
        _big("conflict_seq"),
        _big("conflicts_dropped"),
        sa.PrimaryKeyConstraint("board_id"),
    )
    op.create_index(
        "boards_live_name",
        "boards",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted = 0"),
        postgresql_where=sa.text("deleted = 0"),
    )
    op.create_table(
        "commits",
        _big("board_id"),
        _big("revision"),
        _text("commit_id"),
        _text("batch_id"),
        _text("principal"),
        _text("session_id", nullable=True),
        _text("request_id"),
        _big("commit_time"),
        _text("note"),
        sa.PrimaryKeyConstraint("board_id", "revision"),
        sqlite_with_rowid=False,
    )
    op.create_index("commits_by_batch", "commits", ["board_id", "batch_id"], unique=False)
    op.create_table(
        "conflicts",
        _big("board_id"),
        _big("number"),
        _text("conflict_id"),
        _big("time"),
        _text("principal"),
        _text("session_id", nullable=True),
        _text("request_id"),
        _text("reason"),
        _big("revision"),
        _text("violations"),
        sa.PrimaryKeyConstraint("board_id", "number"),
    )
    op.create_index("conflicts_by_id", "conflicts", ["board_id", "conflict_id"], unique=False)
    op.create_index("conflicts_by_time", "conflicts", ["time"], unique=False)
    op.create_table(
        "counters",
        _big("board_id"),
        _text("key_digest"),
        _big("last_version"),
        sa.PrimaryKeyConstraint("board_id", "key_digest"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "current",
        _big("board_id"),
        _text("region"),
        _text("key"),
        _big("version"),
        _big("create_revision"),
        _big("mod_revision"),
        _small("op_index"),
        _big("commit_time"),
        _text("principal"),
        _text("session_id", nullable=True),
        _small("tombstone"),
        _big("expire_time", nullable=True),
        _big("size"),
        sa.PrimaryKeyConstraint("board_id", "region", "key"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "current_expiring",
        "current",
        ["expire_time"],
        unique=False,
        sqlite_where=sa.text("expire_time IS NOT NULL AND tombstone = 0"),
        postgresql_where=sa.text("expire_time IS NOT NULL AND tombstone = 0"),
    )
    op.create_index(
        "current_gone",
        "current",
        ["board_id", "mod_revision"],
        unique=False,
        sqlite_where=sa.text("tombstone <> 0"),
        postgresql_where=sa.text("tombstone <> 0"),
    )
    op.create_table(
        "lineage",
        _big("board_id"),
        _text("derived_region"),
        _text("derived_key"),
        _big("derived_version"),
        _small("derivation"),
        _text("source_region"),
        _text("source_key"),
        _big("source_version"),
        sa.PrimaryKeyConstraint(
            "board_id",
            "derived_region",
            "derived_key",
            "derived_version",
            "derivation",
            "source_region",
            "source_key",
            "source_version",
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "lineage_by_source",
        "lineage",
        ["board_id", "source_region", "source_key", "source_version"],
        unique=False,
    )
    op.create_table("meta", _text("name"), _bytes("value"), sa.PrimaryKeyConstraint("name"))
    op.create_table(
        "principals",
        _text("id"),
        _small("role"),
        _text("boards"),
        _text("rights"),
        _small("trust_ceiling"),
        _big("created"),
        _text("created_by"),
        _small("disabled"),
        _text("display_name"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "requests",
        _big("board_id"),
        _text("principal"),
        _text("request_id"),
        _bytes("fingerprint"),
        _big("revision"),
        _big("commit_time"),
        _text("answer"),
        sa.PrimaryKeyConstraint("board_id", "principal", "request_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("requests_by_time", "requests", ["commit_time"], unique=False)
    op.create_table(
        "sessions",
        _big("board_id"),
        _text("session_id"),
        _text("principal"),
        _text("request_id"),
        _bytes("secret_hash"),
        _big("started"),
        _big("last_seen"),
        _big("ttl"),
        _text("purpose"),
        _text("task"),
        _big("ended", nullable=True),
        sa.PrimaryKeyConstraint("board_id", "session_id"),
    )
    op.create_index("sessions_by_request", "sessions", ["board_id", "principal", "request_id"], unique=False)
    op.create_index("sessions_by_start", "sessions", ["board_id", "started", "session_id"], unique=False)
    op.create_table(
        "tokens",
        _text("token_id"),
        _text("principal"),
        _bytes("secret_hash"),
        _big("created"),
        _big("expires", nullable=True),
        _small("revoked"),
        sa.PrimaryKeyConstraint("token_id"),
    )
    op.create_index("tokens_by_principal", "tokens", ["principal", "created"], unique=False)
    op.create_table(
        "usage",
        _big("board_id"),
        _small("scope"),
        _text("prefix"),
        _big("entries"),
        _big("bytes"),
        _big("window_start"),
        _big("commits"),
        sa.PrimaryKeyConstraint("board_id", "scope", "prefix"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "versions",
        _big("board_id"),
        _big("revision"),
        _small("op_index"),
        _text("region"),
        _text("key"),
        _big("version"),
        _big("create_revision"),
        _big("commit_time"),
        _text("principal"),
        _text("session_id", nullable=True),
        _small("trust"),
        _small("tombstone"),
        _small("compacted"),
        _big("size"),
        _small("kind"),
        _big("expire_time", nullable=True),
        _text("content_type"),
        _text("notes", nullable=True),
        _text("derivations", nullable=True),
        _bytes("value", nullable=True),
        sa.PrimaryKeyConstraint("board_id", "revision", "op_index"),
    )
    op.create_index(
        "versions_by_key", "versions", ["board_id", "region", "key", "version", "revision"], unique=True
    )
    op.execute("INSERT INTO board_ids (one, last) VALUES (1, 0)")
