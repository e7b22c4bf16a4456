"""No read or write of a board walks the board: SQLite is asked how it would run everything the store says."""

from typing import Any

import pytest

from slateboard_server.domain.policy import Policy
from slateboard_server.domain.values import Key, Revision, SessionId
from slateboard_server.storage.sqlite import SqliteTx
from tests.judging import (
    ABSENT,
    ANY,
    OPERATOR,
    RIVAL,
    SHARED,
    at_version,
    commit,
    content,
    delete,
    no_change_under,
    put,
    source,
)
from tests.storing import Desk, a_session

pytestmark = pytest.mark.parametrize("database", ["sqlite"])

LISTS = ("json_each", "way", "first_keys", "walked", "scanned", "CONSTANT")
TABLES = ("boards", "board_ids", "b", "meta", "audit", "principals", "usage", "u")
"""What may be walked: what came with the call or what a LIMIT cut, and tables that do not grow with a board's entries."""


async def test_nothing_the_store_says_walks_a_board(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {}

    def remember(sql: str, params: Any) -> None:
        said.setdefault(sql, params)

    for name in ("rows", "run"):
        real = getattr(SqliteTx, name)

        def noted(self: SqliteTx, sql: str, *, _real: Any = real, **params: Any) -> Any:
            remember(sql, params)
            return _real(self, sql, **params)

        monkeypatch.setattr(SqliteTx, name, noted)
    gather, execute_all = SqliteTx.gather, SqliteTx.execute_all

    def gathered(self: SqliteTx, queries: Any) -> Any:
        for sql, params in queries.values():
            remember(sql, params)
        return gather(self, queries)

    def executed(self: SqliteTx, statements: Any) -> None:
        for sql, rows in statements:
            remember(sql, rows[0])
        execute_all(self, statements)

    monkeypatch.setattr(SqliteTx, "gather", gathered)
    monkeypatch.setattr(SqliteTx, "execute_all", executed)

    store, revision = desk.store, Revision(1)
    await desk.commit(put("a", ABSENT), put("b", ABSENT))
    await desk.commit(
        put("c", ABSENT, content(sources=[[source("a", 1)]])),
        guards=[no_change_under("plan/", 1), no_change_under("none", 1)],
    )
    await desk.commit(put("a", ANY), delete("b", at_version(1)))
    await desk.batch(*[commit(put("a", ABSENT)) for _ in range(130)])
    for at in (None, 1):
        await desk.get("a", at)
        await desk.scan("a", at)
        await desk.scan("", at, after="a")
    await desk.history("a")
    await desk.log()
    await store.read_versions(desk.id, [source("a", 1)])
    await store.find_commit(desk.id, request=(OPERATOR, "r"))
    await store.find_commit(desk.id, revision=revision)
    await store.list_commits(desk.id, None, 10, RIVAL, SHARED, "a")
    await store.list_conflicts(desk.id, None, 10, (SHARED, Key("a")), RIVAL)
    await store.find_conflict(desk.id, "c")
    await store.sources_of(desk.id, [source("c", 1)])
    await store.derived_from(desk.id, [source("a", 1)], 10)
    await store.expired(desk.clock.now(), 10)
    await store.prune(desk.clock.now(), 10)
    await store.heads([desk.id])
    await store.list_boards("", 10)
    await store.start_session(desk.id, a_session("s"), "r")
    await store.touch_session(desk.id, SessionId("s"), desk.clock.now(), None)
    await store.list_sessions(desk.id, (desk.clock.now(), "s"), 10, None)
    await store.end_session(desk.id, SessionId("s"), desk.clock.now())
    await store.list_tokens(RIVAL)
    await store.set_policy(desk.id, Policy(), 1, OPERATOR, desk.clock.now())
    await desk.compact(3)

    def explain(tx: Any) -> list[str]:
        walks: list[str] = []
        for sql, params in said.items():
            for row in tx._connection.execute(f"EXPLAIN QUERY PLAN {sql}", params).fetchall():
                verb, what, *how = row[3].split()
                if what in (*LISTS, *TABLES) or verb not in {"SCAN", "SEARCH"}:
                    continue
                ends = (
                    verb == "SCAN" and "INDEX" in how and "LIMIT" in sql
                )  # in an index's order, until enough
                if (verb == "SCAN" and not ends) or how[-1] == "(board_id=?)":
                    walks.append(f"{row[3]}: {sql}")
        return walks

    assert await store._engine.read(explain) == []
    assert len(said) > 50
