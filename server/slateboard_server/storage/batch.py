"""One batch in one transaction: what is loaded for the judge, and what is written for its verdicts.

Written once for both databases. Loading is one round of reads and writing one round of statements, so that a database
with a network in between can send each as a pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

from slateboard_server.domain.entry import SourceRef
from slateboard_server.domain.errors import board_not_found
from slateboard_server.domain.locks import LockState
from slateboard_server.domain.names import prefix_end
from slateboard_server.domain.picture import (
    BoardState,
    KeyState,
    Needs,
    Picture,
    PrefixChange,
    SourceState,
    StoredAnswer,
)
from slateboard_server.domain.policy import CounterKey, Scope, Usage
from slateboard_server.domain.values import (
    BoardId,
    Incarnation,
    Key,
    Micros,
    PrincipalId,
    Region,
    Revision,
    Tombstone,
    Trust,
    Version,
)
from slateboard_server.storage import codec
from slateboard_server.storage.rows import (
    LOCK_COLUMNS,
    PRINCIPAL_COLUMNS,
    SESSION_COLUMNS,
    TOKEN_COLUMNS,
    lock_from_row,
    principal_from_row,
    session_from_row,
    token_from_row,
)

Params: TypeAlias = Mapping[str, Any]
Query: TypeAlias = tuple[str, Params]
Rows: TypeAlias = Sequence[Sequence[Any]]


class Dialect(Protocol):
    """Where the two databases differ in words."""

    @property
    def join(self) -> str:
        """Return what joins a list given as a parameter (outer) to a table, so that the planner keeps that order."""
        ...

    @property
    def for_update(self) -> str:
        """Return what locks the rows of a SELECT; empty where a transaction locks everything."""
        ...

    @property
    def version_at(self) -> str:
        """Return what joins to `current c` the version v that its key had at :revision, if any."""
        ...

    def pairs(self, name: str) -> str:
        """Return a FROM item `(region, key)` over the parameter `name`, a JSON array of [region, key]."""
        ...

    def triples(self, name: str) -> str:
        """Return a FROM item `(region, key, version)` over the parameter `name`."""
        ...

    def words(self, name: str) -> str:
        """Return a FROM item `(word)` over the parameter `name`, a JSON array of texts."""
        ...

    def numbers(self, name: str) -> str:
        """Return a FROM item `(number)` over the parameter `name`, a JSON array of integers."""
        ...

    def insert(self, table: str) -> str:
        """Return the INSERT of a whole row."""
        ...

    def upsert(self, table: str) -> str:
        """Return the INSERT of a whole row that replaces one with the same primary key."""
        ...


def key_digest(secret: bytes, region: str, key: str) -> str:
    """Name a gone key without saying it: keyed, so that the name cannot be guessed from the database."""
    return blake2b(f"{region}\0{key}".encode(), key=secret, digest_size=16, person=b"counter").hexdigest()


# The newest change under a prefix after a revision, found on the shorter of two ways: back along the log, or over the keys
# under the prefix. A guard of late walks the log, one over few keys looks at these; of an old guard over many keys, the
# newest stretch of the log mostly decides. So neither a large board nor a long log makes guards slow, and the way not
# taken is an empty range of its index (SQLite would try a condition beside it on every row) behind a condition without
# columns (PostgreSQL tries it once, before whatever plan it made). Compaction takes only tombstones up to the floor from
# `current`, and a guard below the floor is refused anyway.
_GUARD_NEAR = 64
_GUARD_FAR = 10_000
_GUARD_FEW = 1_000
_PREFIX_GUARD = """
WITH way AS MATERIALIZED (
    SELECT board_id, CASE
        WHEN :since >= head - :near THEN :since
        WHEN :few > (SELECT count(*) FROM (
            SELECT 1 FROM current WHERE board_id = :board_id AND region = :region AND key >= :low AND key < :high
            LIMIT :few
        ) AS first_keys) THEN head
        WHEN :since >= head - :far THEN :since
        ELSE head - :far END AS walk_from
    FROM boards WHERE board_id = :board_id
)
SELECT key, revision, version, principal, session_id, commit_time FROM (
    SELECT key, revision, version, principal, session_id, commit_time FROM versions
    WHERE board_id = :board_id AND revision > (SELECT walk_from FROM way)
    AND revision > :since -- which is below; but PostgreSQL plans by it
    AND region = :region AND key >= :low AND key < :high ORDER BY revision DESC, op_index DESC LIMIT 1
) AS walked
UNION ALL
SELECT key, mod_revision, version, principal, session_id, commit_time FROM (
    SELECT key, mod_revision, version, principal, session_id, commit_time FROM current
    WHERE board_id = (SELECT board_id FROM way WHERE walk_from > :since) AND (SELECT walk_from > :since FROM way)
    AND region = :region AND key >= :low AND key < :high AND mod_revision > :since
    ORDER BY mod_revision DESC, op_index DESC LIMIT 1
) AS scanned
LIMIT 1
"""
_ROOT_GUARD = _PREFIX_GUARD.replace(" AND key < :high", "")


def picture_queries(dialect: Dialect, board_id: BoardId, wanted: Needs, secret: bytes) -> dict[str, Query]:
    """Return the reads a batch needs, by name. `board` comes first: it takes the row lock that all else is read under."""
    board = {"board_id": board_id}
    queries: dict[str, Query] = {
        "board": (
            "SELECT name, incarnation, secret, head, floor, last_commit_time, policy, conflict_seq"
            f" FROM boards WHERE board_id = :board_id AND deleted = 0{dialect.for_update}",
            board,
        ),
        "usage": (
            "SELECT scope, prefix, entries, bytes, window_start, commits FROM usage WHERE board_id = :board_id",
            board,
        ),
    }
    if wanted.principals:
        queries["principals"] = (
            f"SELECT {PRINCIPAL_COLUMNS} FROM {dialect.words('names')} AS w {dialect.join} principals ON id = w.word",
            {"names": _json(wanted.principals)},
        )
    if wanted.tokens:
        queries["tokens"] = (
            f"SELECT {TOKEN_COLUMNS} FROM {dialect.words('names')} AS w {dialect.join} tokens ON token_id = w.word",
            {"names": _json(wanted.tokens)},
        )
    if wanted.sessions:
        queries["sessions"] = (
            f"SELECT {SESSION_COLUMNS} FROM {dialect.words('names')} AS w"
            f" {dialect.join} sessions ON board_id = :board_id AND session_id = w.word",
            board | {"names": _json(wanted.sessions)},
        )
    if wanted.keys:
        queries["keys"] = (
            "SELECT c.region, c.key, c.version, c.create_revision, c.mod_revision, c.commit_time, c.principal,"
            f" c.session_id, c.tombstone, c.expire_time, c.size FROM {dialect.pairs('places')} AS w"
            f" {dialect.join} current c ON c.board_id = :board_id AND c.region = w.region AND c.key = w.key",
            board | {"places": _json(wanted.keys)},
        )
        queries["counters"] = (
            f"SELECT k.key_digest, k.last_version FROM {dialect.words('digests')} AS w"
            f" {dialect.join} counters k ON k.board_id = :board_id AND k.key_digest = w.word",
            board | {"digests": _json([key_digest(secret, *place) for place in wanted.keys])},
        )
    if wanted.sources:
        queries["sources"] = (
            f"SELECT v.region, v.key, v.version, v.trust, v.tombstone FROM {dialect.triples('places')} AS w"
            f" {dialect.join} versions v ON v.board_id = :board_id AND v.region = w.region AND v.key = w.key"
            " AND v.version = w.version",
            board | {"places": _json([[ref.region, ref.key, ref.version] for ref in wanted.sources])},
        )
    if wanted.replays:
        queries["replays"] = (
            f"SELECT r.principal, r.request_id, r.fingerprint, r.answer FROM {dialect.pairs('places')} AS w"
            f" {dialect.join} requests r ON r.board_id = :board_id AND r.principal = w.region AND r.request_id = w.key",
            board | {"places": _json(wanted.replays)},
        )
    if wanted.lock_places:
        queries["held"] = (
            f"SELECT {LOCK_COLUMNS} FROM {dialect.pairs('places')} AS w"
            f" {dialect.join} lock_scopes s ON s.board_id = :board_id AND s.region = w.region AND s.path = w.key"
            f" {dialect.join} locks l ON l.board_id = :board_id AND l.lock_id = s.lock_id WHERE l.state = :held",
            board | {"places": _json(wanted.lock_places), "held": int(LockState.HELD)},
        )
    if wanted.claims:
        queries["claimed"] = (
            f"SELECT {LOCK_COLUMNS} FROM {dialect.words('names')} AS w"
            f" {dialect.join} locks l ON l.board_id = :board_id AND l.lock_id = w.word",
            board | {"names": _json(wanted.claims)},
        )
    for number, (region, prefix, since) in enumerate(wanted.prefix_guards):
        queries[f"prefix {number}"] = (
            _PREFIX_GUARD if prefix else _ROOT_GUARD,
            board
            | {"since": since, "region": region, "low": prefix, "high": prefix_end(prefix)}
            | {"near": _GUARD_NEAR, "far": _GUARD_FAR, "few": _GUARD_FEW},
        )
    return queries


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def board_state(board_id: BoardId, results: Mapping[str, Rows]) -> tuple[BoardState, int]:
    """Build the board's state from its reads; also the number of its last conflict."""
    if not results["board"]:
        raise board_not_found(str(board_id))
    name, incarnation, secret, head, floor, last, policy, conflict_seq = results["board"][0]
    usage = {
        CounterKey(Scope(scope), prefix): Usage(entries, size, window, commits)
        for scope, prefix, entries, size, window, commits in results["usage"]
    }
    state = BoardState(
        board_id=board_id,
        name=name,
        incarnation=Incarnation(incarnation),
        etag_secret=bytes(secret),
        head=Revision(head),
        floor=Revision(floor),
        last_commit_time=Micros(last),
        policy=codec.policy_from_text(policy),
        usage=usage,
    )
    return state, conflict_seq


def picture_of(
    state: BoardState, now: Micros, wanted: Needs, results: Mapping[str, Rows], secret: bytes
) -> Picture:
    """Build the picture from the reads of `picture_queries`."""
    picture = Picture(board=state, now=now)
    for row in results.get("principals", ()):
        principal = principal_from_row(row)
        picture.principals[principal.id] = principal
    picture.live_tokens = {
        token.token_id for row in results.get("tokens", ()) if (token := token_from_row(row)).alive(now)
    }
    for row in results.get("sessions", ()):
        session = session_from_row(row)
        picture.sessions[session.session_id] = session  # type: ignore[index]
    for row in results.get("keys", ()):
        picture.keys[Region(row[0]), Key(row[1])] = KeyState(
            Version(row[2]), Revision(row[3]), Revision(row[4]), Micros(row[5]), PrincipalId(row[6]), row[7],
            Tombstone(row[8]), row[9], row[10],
        )  # fmt: skip
    last_versions: dict[str, int] = {row[0]: row[1] for row in results.get("counters", ())}
    if last_versions:
        for place in wanted.keys:
            last = last_versions.get(key_digest(secret, *place))
            if last is not None and place not in picture.keys:
                picture.keys[place] = KeyState(Version(last), tombstone=Tombstone.DELETED)
    for region, key, version, trust, tombstone in results.get("sources", ()):
        picture.sources[SourceRef(region, key, version)] = SourceState(Trust(trust), Tombstone(tombstone))
    for principal_id, request_id, fingerprint, answer in results.get("replays", ()):
        picture.replays[principal_id, request_id] = StoredAnswer(
            bytes(fingerprint), codec.answer_from_text(answer)
        )
    held = [lock_from_row(row) for row in results.get("held", ())]
    picture.held = list({lock.lock_id: lock for lock in held}.values())
    claimed = [lock_from_row(row) for row in results.get("claimed", ())]
    picture.claimed = {lock.lock_id: lock for lock in claimed}
    for number, guard in enumerate(wanted.prefix_guards):
        found = results[f"prefix {number}"]
        if found:
            key, revision, version, writer, session_id, commit_time = found[0]
            picture.prefix_changes[guard] = PrefixChange(
                key, revision, version, writer, session_id, commit_time
            )
    return picture
