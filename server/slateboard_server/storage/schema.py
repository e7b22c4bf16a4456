"""The tables, for SQLite and PostgreSQL alike.

Times are microseconds since the epoch, UTC. `versions` is the log: its primary key is the order of changes. `current`
points at the newest version of each key, tombstones included; `counters` holds the last version of keys that compaction
took out of `current`. Text that orders keys compares by code point: BINARY in SQLite, "C" in PostgreSQL.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)

metadata = MetaData()

_TEXT = Text().with_variant(Text(collation="C"), "postgresql")


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, _TEXT, nullable=nullable)


def _big(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _small(name: str) -> Column[int]:
    return Column(name, SmallInteger, nullable=False)


def _bytes(name: str, *, nullable: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=nullable)


boards = Table(  # `compacted`: the revision up to which superseded values were dropped; it follows `floor`
    "boards",
    metadata,
    Column("board_id", BigInteger, primary_key=True, autoincrement=False),
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
    Index(
        "boards_live_name",
        "name",
        unique=True,
        sqlite_where=text("deleted = 0"),
        postgresql_where=text("deleted = 0"),
    ),
)

meta = Table("meta", metadata, Column("name", _TEXT, primary_key=True), _bytes("value"))
"""What belongs to the whole database: `server_secret`."""

board_ids = Table("board_ids", metadata, Column("one", Integer, primary_key=True), _big("last"))
"""One row: the last board number handed out, so that none is reused."""

usage = Table(
    "usage",
    metadata,
    _big("board_id"),
    _small("scope"),
    _text("prefix"),
    _big("entries"),
    _big("bytes"),
    _big("window_start"),
    _big("commits"),
    PrimaryKeyConstraint("board_id", "scope", "prefix"),
    sqlite_with_rowid=False,
)

versions = Table(
    "versions",
    metadata,
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
    PrimaryKeyConstraint("board_id", "revision", "op_index"),
    # With the revision in it, "which version at that revision" is answered from the index alone.
    Index("versions_by_key", "board_id", "region", "key", "version", "revision", unique=True),
)

current = Table(
    "current",
    metadata,
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
    PrimaryKeyConstraint("board_id", "region", "key"),
    Index(
        "current_expiring",
        "expire_time",
        sqlite_where=text("expire_time IS NOT NULL AND tombstone = 0"),
        postgresql_where=text("expire_time IS NOT NULL AND tombstone = 0"),
    ),
    Index(
        "current_gone",
        "board_id",
        "mod_revision",
        sqlite_where=text("tombstone <> 0"),
        postgresql_where=text("tombstone <> 0"),
    ),
    sqlite_with_rowid=False,
)

counters = Table(
    "counters",
    metadata,
    _big("board_id"),
    _text("key_digest"),
    _big("last_version"),
    PrimaryKeyConstraint("board_id", "key_digest"),
    sqlite_with_rowid=False,
)

commits = Table(
    "commits",
    metadata,
    _big("board_id"),
    _big("revision"),
    _text("commit_id"),
    _text("batch_id"),
    _text("principal"),
    _text("session_id", nullable=True),
    _text("request_id"),
    _big("commit_time"),
    _text("note"),
    PrimaryKeyConstraint("board_id", "revision"),
    Index("commits_by_batch", "board_id", "batch_id"),
    sqlite_with_rowid=False,
)

requests = Table(
    "requests",
    metadata,
    _big("board_id"),
    _text("principal"),
    _text("request_id"),
    _bytes("fingerprint"),
    _big("revision"),
    _big("commit_time"),
    _text("answer"),
    PrimaryKeyConstraint("board_id", "principal", "request_id"),
    Index("requests_by_time", "commit_time"),
    sqlite_with_rowid=False,
)

lineage = Table(
    "lineage",
    metadata,
    _big("board_id"),
    _text("derived_region"),
    _text("derived_key"),
    _big("derived_version"),
    _small("derivation"),
    _text("source_region"),
    _text("source_key"),
    _big("source_version"),
    PrimaryKeyConstraint(
        "board_id",
        "derived_region",
        "derived_key",
        "derived_version",
        "derivation",
        "source_region",
        "source_key",
        "source_version",
    ),
    Index("lineage_by_source", "board_id", "source_region", "source_key", "source_version"),
    sqlite_with_rowid=False,
)

conflicts = Table(
    "conflicts",
    metadata,
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
    PrimaryKeyConstraint("board_id", "number"),
    Index("conflicts_by_id", "board_id", "conflict_id"),
    Index("conflicts_by_time", "time"),
)

sessions = Table(
    "sessions",
    metadata,
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
    PrimaryKeyConstraint("board_id", "session_id"),
    Index("sessions_by_start", "board_id", "started", "session_id"),
    Index("sessions_by_request", "board_id", "principal", "request_id"),
)

locks = Table(  # `sequence`: of the lock's last change; live ones have state 1 (waiting) or 2 (held)
    "locks",
    metadata,
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
    _bytes("fingerprint"),
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
    PrimaryKeyConstraint("board_id", "lock_id"),
    Index("locks_by_request", "board_id", "principal", "request_id"),
    Index("locks_by_sequence", "board_id", "sequence"),
    Index(
        "locks_live",
        "board_id",
        "principal",
        "number",
        sqlite_where=text("state <= 2"),
        postgresql_where=text("state <= 2"),
    ),
    Index(
        "locks_waiting",
        "board_id",
        "principal",
        "number",
        sqlite_where=text("state = 1"),
        postgresql_where=text("state = 1"),
    ),
    Index(
        "locks_ended",
        "ended",
        sqlite_where=text("ended IS NOT NULL"),
        postgresql_where=text("ended IS NOT NULL"),
    ),
)

lock_scopes = Table(  # of live locks only
    "lock_scopes",
    metadata,
    _big("board_id"),
    _text("region"),
    _text("path"),
    _text("lock_id"),
    PrimaryKeyConstraint("board_id", "region", "path", "lock_id"),
    Index("lock_scopes_by_lock", "board_id", "lock_id"),
    sqlite_with_rowid=False,
)

principals = Table(
    "principals",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _small("role"),
    _text("boards"),
    _text("rights"),
    _small("trust_ceiling"),
    _big("created"),
    _text("created_by"),
    _small("disabled"),
    _text("display_name"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", _TEXT, primary_key=True),
    _text("principal"),
    _bytes("secret_hash"),
    _big("created"),
    _big("expires", nullable=True),
    _small("revoked"),
    Index("tokens_by_principal", "principal", "created"),
)

audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _text("record_id"),
    _big("time"),
    _text("principal"),
    _text("action"),
    _text("board"),
    _text("target"),
    _text("detail"),
    Index("audit_by_record", "record_id", unique=True),
)
