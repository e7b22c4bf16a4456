"""Reading through the feed and the store: one snapshot, the right one, cut down to the caller."""

import asyncio

import pytest

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.filters import parse_filter
from slateboard_server.domain.limits import MAX_MESSAGE_BYTES
from slateboard_server.domain.names import SHARED, private_region
from slateboard_server.domain.principal import Action, Right
from slateboard_server.domain.values import Key, Micros, PrincipalId, Region, Revision, Trust
from slateboard_server.services.model import Consistency, GetResult, Mode, RecordsPage, Want
from slateboard_server.services.settings import DataPathSettings
from tests.services.conftest import BOARD, Team, append, delete, put


def places(*keys: str, region: str = SHARED) -> list[tuple[Region, Key]]:
    return [(Region(region), Key(key)) for key in keys]


def exact(revision: int) -> Want:
    return Want(Consistency(Mode.EXACT, Revision(revision)))


async def get(team: Team, who: str, *keys: str, region: str = SHARED, want: Want | None = None) -> GetResult:
    return await team.reads.get(team[who], BOARD, places(*keys, region=region), want or Want())


async def list_all(
    team: Team, who: str, prefix: str = "", size: int = 100, region: str = SHARED, want: Want | None = None
) -> list[str]:
    keys: list[str] = []
    token = ""
    while True:
        page = await team.reads.list(
            team[who], BOARD, Region(region), prefix, (), size, token, want or Want()
        )
        keys += [record.key for record in page.records]
        token = page.next_page_token
        if not token:
            return keys


def reason(error: pytest.ExceptionInfo[SlateboardError]) -> Reason:
    return error.value.reason


async def test_a_get_answers_in_the_order_asked_and_names_what_is_absent(team: Team) -> None:
    """Found and absent keys are told apart; nothing is an error."""
    await team.commit("ann", put("a", b"1"), put("b", b"2"))
    result = await get(team, "bob", "b", "nothing", "a")
    assert [record.value for record in result.found] == [b"2", b"1"]
    assert list(result.absent) == places("nothing")
    assert result.stamp.revision == 1


async def test_the_cache_answers_only_what_was_acknowledged_and_is_current(team: Team) -> None:
    """After each acknowledgement the synchronous path gives the new value."""
    for number in range(1, 20):
        await team.commit("ann", put("counter", str(number).encode(), expect=number - 1))
        result = team.reads.try_get(team["bob"], BOARD, places("counter"), Want())
        assert result is not None
        assert result.found[0].value == str(number).encode()
        assert result.stamp.revision == number


async def test_concurrent_commits_are_both_visible_once_acknowledged(team: Team) -> None:
    """spicedb#3212 (T23): acknowledged concurrent writes never go missing from the in-memory path."""
    for number in range(200):
        await asyncio.gather(
            team.commit("ann", put(f"ann/{number}")), team.commit("bob", put(f"bob/{number}"))
        )
        result = await get(team, "lead", f"ann/{number}", f"bob/{number}")
        assert len(result.found) == 2


async def test_a_foreign_private_region_answers_like_one_that_was_never_written(team: Team) -> None:
    """ai-memory-mcp#1468 (M04): private rows do not leak through any read path."""
    mine = private_region(PrincipalId("ann"))
    await team.commit("ann", put("diary", b"secret", region=mine))
    assert [record.value for record in (await get(team, "ann", "diary", region=mine)).found] == [b"secret"]
    for stranger in ("bob", "lead"):
        for region in (mine, "private/nobody"):
            result = await get(team, stranger, "diary", region=region)
            assert (list(result.found), len(result.absent)) == ([], 1)
            assert await list_all(team, stranger, region=region) == []
            page = await team.reads.list_versions(
                team[stranger], BOARD, Region(region), Key("diary"), 10, "", Want()
            )
            assert page.records == ()
            with pytest.raises(SlateboardError) as refused:
                await team.reads.two_versions(team[stranger], BOARD, Region(region), Key("diary"), 0, 0, None)
            assert reason(refused) is Reason.KEY_NOT_FOUND
    assert await team.store.list_audit(None, 10) == []


async def test_an_operator_sees_a_private_region_and_is_audited(team: Team) -> None:
    """Also when the value is in the cache already."""
    mine = private_region(PrincipalId("ann"))
    await team.commit("ann", put("diary", b"secret", region=mine))
    await get(team, "ann", "diary", region=mine)
    assert team.reads.try_get(team["op"], BOARD, places("diary", region=mine), Want()) is None
    assert len((await get(team, "op", "diary", region=mine)).found) == 1
    audit = await team.store.list_audit(None, 10)
    assert [(record.principal, record.action, record.target) for _, record in audit] == [
        ("op", "private.read", mine)
    ]


async def test_rights_by_prefix_hide_what_they_do_not_cover(team: Team) -> None:
    """A reader of plan/ sees plan/ in a list of everything, and nothing else."""
    await team.commit("ann", put("plan/a"), put("planner"), put("secret/a"))
    await team.join("narrow", rights=(Right("plan/", frozenset({Action.READ})),))
    assert await list_all(team, "narrow") == ["plan/a"]
    result = await get(team, "narrow", "plan/a", "planner", "secret/a")
    assert [record.key for record in result.found] == ["plan/a"]


async def test_sibling_prefixes_do_not_bleed_into_each_other(team: Team) -> None:
    """langgraph#8300 (M01): `%`, `_` and longer names never widen a match."""
    names = ["a", "ab", "a_b", "a%", "a-b", "A", "\uff41"]
    await team.commit("ann", *(put(f"{name}/x") for name in names))
    for name in names:
        assert await list_all(team, "bob", f"{name}/") == [f"{name}/x"]
    assert len(await list_all(team, "bob")) == len(names)


async def test_pages_are_of_one_revision_and_hold_every_key_once(team: Team) -> None:
    """Commits between pages neither show up nor make an entry vanish."""
    keys = [f"k/{number:03}" for number in range(25)]
    await team.commit("ann", *(put(key) for key in keys))
    first = await team.reads.list(team["bob"], BOARD, SHARED, "k/", (), 10, "", Want())
    await team.commit("ann", delete("k/015", 1), put("k/0155"), put("k/020", b"new", expect=1))
    seen = [record.key for record in first.records]
    token = first.next_page_token
    values: dict[str, bytes | None] = {}
    while token:
        page = await team.reads.list(team["bob"], BOARD, SHARED, "k/", (), 10, token, Want())
        assert page.stamp.revision == first.stamp.revision
        seen += [record.key for record in page.records]
        values |= {record.key: record.value for record in page.records}
        token = page.next_page_token
    assert seen == keys
    assert values["k/020"] == b"v"
    assert "k/0155" in await list_all(team, "bob", "k/")


async def test_a_page_ends_before_the_reply_gets_too_large(team: Team) -> None:
    """grpc.io#1254 (T43): pages and multi-gets stay below the message limit and say what was left."""
    big = b"x" * (1 << 20)
    for number in range(5):
        await team.commit("ann", put(f"big/{number}", big))
    page = await team.reads.list(team["bob"], BOARD, SHARED, "big/", (), 100, "", Want())
    assert 1 <= len(page.records) <= 3
    assert page.next_page_token
    assert await list_all(team, "bob", "big/") == [f"big/{number}" for number in range(5)]
    result = await get(team, "bob", *(f"big/{number}" for number in range(5)))
    assert sum(record.size for record in result.found) < MAX_MESSAGE_BYTES
    assert len(result.found) + len(result.unread) == 5
    rest = await get(team, "bob", *(key for _, key in result.unread), want=exact(result.stamp.revision))
    assert len(rest.found) == len(result.unread)


async def test_a_filtered_list_looks_at_a_bounded_number_of_entries_a_page(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that matches little ends a page early with a token; nothing that matches is lost."""
    object.__setattr__(team.directory, "settings", DataPathSettings(scan_limit=20))
    for start in range(0, 100, 50):
        await team.commit(
            "ann", *(put(f"k/{number:03}", b"x" * (number % 37 == 0)) for number in range(start, start + 50))
        )
    wanted = (parse_filter("size", "greater_or_equal", ["1"], "filters[0]"),)
    found: list[str] = []
    token, pages = "", 0
    while True:
        page: RecordsPage = await team.reads.list(team["bob"], BOARD, SHARED, "k/", wanted, 10, token, Want())
        found += [record.key for record in page.records]
        pages += 1
        token = page.next_page_token
        if not token:
            break
    assert found == ["k/000", "k/037", "k/074"]
    assert pages > 1


async def test_what_has_expired_is_absent_on_every_path_though_nobody_swept(team: Team) -> None:
    """langgraph#8902 (M21): expired rows are not returned by get, list or a second page, nor revived by a read."""
    now = team.clock.now()
    await team.commit(
        "ann", put("k/1"), put("k/2", expire_time=Micros(now + 60_000_000)), put("k/3"), put("k/4")
    )
    assert len((await get(team, "bob", "k/2")).found) == 1
    first = await team.reads.list(team["bob"], BOARD, SHARED, "k/", (), 1, "", Want())
    team.clock.advance(61)
    assert list((await get(team, "bob", "k/2")).absent) == places("k/2")
    assert await list_all(team, "bob", "k/") == ["k/1", "k/3", "k/4"]
    with pytest.raises(SlateboardError) as refused:
        await team.commit("bob", put("k/2", b"revived", expect=1))
    assert reason(refused) is Reason.VERSION_CONFLICT
    await team.commit("bob", put("k/2", b"new"))
    assert (await get(team, "bob", "k/2")).found[0].version == 2
    rest = await team.reads.list(team["bob"], BOARD, SHARED, "k/", (), 10, first.next_page_token, Want())
    assert [record.key for record in rest.records] == ["k/2", "k/3", "k/4"]
    assert (await get(team, "bob", "k/2", want=exact(1))).found[0].version == 1


async def test_time_travel_reads_the_board_as_it_was(team: Team) -> None:
    """EXACT gives old values, absences and the state of lists; outside the history it is an error."""
    await team.commit("ann", put("a", b"1"))
    await team.commit("ann", put("a", b"2", expect=1), put("b"))
    await team.commit("ann", delete("a", 2))
    assert [r.value for r in (await get(team, "bob", "a", "b", want=exact(1))).found] == [b"1"]
    assert [r.value for r in (await get(team, "bob", "a", want=exact(2))).found] == [b"2"]
    assert list((await get(team, "bob", "a", want=exact(3))).absent) == places("a")
    assert await list_all(team, "bob", want=exact(2)) == ["a", "b"]
    with pytest.raises(SlateboardError) as future:
        await get(team, "bob", "a", want=exact(4))
    assert reason(future) is Reason.FUTURE_REVISION
    board = (await team.directory.open(team["op"], BOARD)).board_id
    await team.store.compact(board, Revision(3), 100)
    with pytest.raises(SlateboardError) as compacted:
        await get(team, "bob", "a", want=exact(2))
    assert reason(compacted) is Reason.COMPACTED


async def test_at_least_waits_for_nothing_that_will_not_come(team: Team) -> None:
    """A revision above the head is an error at once; one at or below it is answered."""
    await team.commit("ann", put("a"))
    known = Want(Consistency(Mode.AT_LEAST, Revision(1)))
    assert len((await get(team, "bob", "a", want=known)).found) == 1
    with pytest.raises(SlateboardError) as refused:
        await get(team, "bob", "a", want=Want(Consistency(Mode.AT_LEAST, Revision(2))))
    assert reason(refused) is Reason.FUTURE_REVISION


async def test_min_trust_hides_entries_below_it(team: Team) -> None:
    """A reader that asks for a floor gets nothing below it, on either path."""
    await team.commit("ann", put("low", trust=Trust.EXTERNAL), put("high"))
    want = Want(min_trust=Trust.AGENT)
    for result in (
        await get(team, "bob", "low", "high", want=want),
        team.reads.try_get(team["bob"], BOARD, places("low", "high"), want),
    ):
        assert result is not None
        assert [record.key for record in result.found] == ["high"]
    assert await list_all(team, "bob", want=want) == ["high"]


async def test_an_append_gets_a_key_in_commit_order(team: Team) -> None:
    """Keys of appends sort by revision, also within one commit."""
    await team.commit("ann", append("log/", b"1"), append("log/", b"2"))
    await team.commit("bob", append("log/", b"3"))
    page = await team.reads.list(team["lead"], BOARD, SHARED, "log/", (), 10, "", Want())
    assert [record.value for record in page.records] == [b"1", b"2", b"3"]


async def test_a_board_of_others_does_not_exist(team: Team) -> None:
    """Not being a member and there being no such board are one answer."""
    stranger = await team.join("stranger", board="elsewhere")
    answers = []
    for board in (BOARD, "no-such-board"):
        with pytest.raises(SlateboardError) as refused:
            await team.reads.get(stranger, board, places("a"), Want())
        answers.append((refused.value.reason, refused.value.message.replace(board, "?")))
    assert answers[0] == answers[1]
