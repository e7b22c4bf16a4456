"""Lineage as a caller may see it: up to the sources, down to what was made of them, one node for the rest."""

import pytest

from slateboard_server.domain.entry import SourceRef
from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.lineage import LineageGraph
from slateboard_server.domain.names import SHARED, private_region
from slateboard_server.domain.principal import Action, Right
from slateboard_server.domain.values import Key, PrincipalId, Version
from slateboard_server.services.provenance import Provenance
from tests.services.conftest import BOARD, Team, delete, put


@pytest.fixture
def provenance(team: Team) -> Provenance:
    return Provenance(team.directory, team.store, team.clock)


def ref(key: str, version: int = 1, region: str = SHARED) -> SourceRef:
    return SourceRef(
        private_region(PrincipalId(region)) if region != SHARED else SHARED, Key(key), Version(version)
    )


def edges(graph: LineageGraph) -> set[tuple[str, str]]:
    names = ["?" if node.ref is None else f"{node.ref.key}@{node.ref.version}" for node in graph.nodes]
    return {(names[edge.derived], names[edge.source]) for edge in graph.edges}


async def build(team: Team) -> None:
    """From raw -> clean -> report (2 versions), and one of ann's private notes -> report."""
    await team.commit("ann", put("raw"))
    await team.commit("ann", put("notes/a", region="private/ann"))
    await team.commit("ann", put("clean", derivations=((ref("raw"),),)))
    await team.commit("ann", put("report", derivations=((ref("clean"), ref("notes/a", 1, "ann")),)))
    await team.commit("ann", put("report", expect=1, derivations=((ref("report"), ref("clean")),)))


async def test_a_figure_is_traced_back_to_its_source_rows(team: Team, provenance: Provenance) -> None:
    await build(team)
    stamp, graph, records = await provenance.trace(team["ann"], BOARD, SHARED, Key("report"))
    assert edges(graph) == {
        ("report@2", "report@1"),
        ("report@2", "clean@1"),
        ("report@1", "clean@1"),
        ("report@1", "notes/a@1"),
        ("clean@1", "raw@1"),
    }
    assert not graph.truncated
    assert stamp.revision == 5
    assert {record.key for record in records.values()} == {"report", "clean", "raw", "notes/a"}
    assert all(record.value is None for record in records.values())


async def test_what_may_not_be_seen_is_one_opaque_node(team: Team, provenance: Provenance) -> None:
    await build(team)
    _, graph, records = await provenance.trace(team["bob"], BOARD, SHARED, Key("report"), 1)
    assert edges(graph) == {("report@1", "clean@1"), ("report@1", "?"), ("clean@1", "raw@1")}
    assert len(records) == len(graph.nodes) - 1
    narrow = await team.join("narrow", rights=(Right("raw", frozenset({Action.READ})),))
    _, graph, _ = await provenance.impact(narrow, BOARD, SHARED, Key("raw"))
    assert edges(graph) == {("?", "raw@1")}


async def test_impact_follows_what_was_made_of_it(team: Team, provenance: Provenance) -> None:
    await build(team)
    _, graph, _ = await provenance.impact(team["bob"], BOARD, SHARED, Key("raw"))
    assert edges(graph) == {
        ("clean@1", "raw@1"),
        ("report@1", "clean@1"),
        ("report@2", "clean@1"),
        ("report@2", "report@1"),
    }


async def test_impact_can_begin_with_every_version(team: Team, provenance: Provenance) -> None:
    await team.commit("ann", put("a"))
    await team.commit("ann", put("b", derivations=((ref("a"),),)))
    await team.commit("ann", put("a", expect=1))
    await team.commit("ann", put("c", derivations=((ref("a", 2),),)))
    _, graph, _ = await provenance.impact(team["bob"], BOARD, SHARED, Key("a"))
    assert edges(graph) == {("c@1", "a@2")}
    _, graph, _ = await provenance.impact(team["bob"], BOARD, SHARED, Key("a"), all_versions=True)
    assert edges(graph) == {("c@1", "a@2"), ("b@1", "a@1")}
    _, graph, _ = await provenance.impact(
        team["bob"], BOARD, SHARED, Key("a"), all_versions=True, max_nodes=2
    )
    assert graph.truncated
    with pytest.raises(SlateboardError) as caught:
        await provenance.impact(team["bob"], BOARD, SHARED, Key("a"), 1, all_versions=True)
    assert caught.value.reason is Reason.FIELD_INVALID


async def test_bounds_cut_the_graph_and_say_so(team: Team, provenance: Provenance) -> None:
    await build(team)
    _, graph, _ = await provenance.trace(team["ann"], BOARD, SHARED, Key("report"), 1, max_depth=1)
    assert (edges(graph), graph.truncated) == ({("report@1", "clean@1"), ("report@1", "notes/a@1")}, True)
    _, graph, _ = await provenance.trace(team["ann"], BOARD, SHARED, Key("report"), max_nodes=1)
    assert (len(graph.nodes), graph.truncated) == (1, True)


async def test_a_root_that_is_not_there_or_may_not_be_seen_answers_the_same(
    team: Team, provenance: Provenance
) -> None:
    await build(team)
    narrow = await team.join("narrow", rights=(Right("open/", frozenset({Action.READ})),))
    for caller, region, key, version in (
        (team["bob"], SHARED, "nothing", 0),
        (team["bob"], SHARED, "raw", 2),
        (team["bob"], private_region(PrincipalId("ann")), "notes/a", 0),
        (narrow, SHARED, "raw", 0),
    ):
        for call in (provenance.trace, provenance.impact):
            with pytest.raises(SlateboardError) as caught:
                await call(caller, BOARD, region, Key(key), version)
            assert caught.value.reason is Reason.KEY_NOT_FOUND


@pytest.mark.parametrize(
    "bounds", [{"version": -1}, {"max_depth": 65}, {"max_depth": -1}, {"max_nodes": 2_001}, {"max_nodes": -1}]
)
async def test_bounds_out_of_bounds_are_refused(
    team: Team, provenance: Provenance, bounds: dict[str, int]
) -> None:
    with pytest.raises(SlateboardError) as caught:
        await provenance.trace(team["ann"], BOARD, SHARED, Key("a"), **bounds)
    assert (caught.value.reason, caught.value.metadata["field"]) == (Reason.FIELD_INVALID, next(iter(bounds)))


async def test_a_deleted_key_can_be_traced_by_version(team: Team, provenance: Provenance) -> None:
    await build(team)
    await team.commit("ann", delete("report", 2))
    _, graph, records = await provenance.trace(team["ann"], BOARD, SHARED, Key("report"))
    assert [record.is_value for record in records.values()] == [False]
    _, graph, _ = await provenance.trace(team["ann"], BOARD, SHARED, Key("report"), 2)
    assert ("report@2", "clean@1") in edges(graph)


async def test_an_operator_sees_into_private_regions_and_leaves_a_trace(
    team: Team, provenance: Provenance
) -> None:
    await build(team)
    _, graph, _ = await provenance.trace(team["op"], BOARD, SHARED, Key("report"), 1)
    assert ("report@1", "notes/a@1") in edges(graph)
    records = [record for _, record in await team.store.list_audit(None, 10)]
    assert ("op", "private.read", "private/ann") in {
        (record.principal, record.action, record.target) for record in records
    }
