"""A lineage graph as one reader may see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.entry import SourceRef
from slateboard_server.domain.lineage import Direction, LineageGraph, LineageWalk
from tests.judging import source


@dataclass(frozen=True)
class Edge:
    derived: SourceRef
    source: SourceRef
    derivation: int


def _edge(derived: str, origin: str, derivation: int = 0) -> Edge:
    return Edge(source(derived, 1), source(origin, 1), derivation)


def _see_all(_: SourceRef) -> bool:
    return True


def _hide(*keys: str) -> Callable[[SourceRef], bool]:
    return lambda ref: ref.key not in keys


def _walk(
    edges: list[Edge],
    visible: Callable[[SourceRef], bool] = _see_all,
    *,
    root: str = "r",
    max_depth: int = 64,
    max_nodes: int = 1_000,
    direction: Direction = Direction.SOURCES,
    asked: list[SourceRef] | None = None,
) -> LineageGraph:
    walk = LineageWalk(source(root, 1), max_depth, max_nodes, direction)
    while wanted := walk.frontier():
        if asked is not None:
            asked.extend(wanted)
        near = "derived" if direction is Direction.SOURCES else "source"
        walk.add([edge for edge in edges if getattr(edge, near) in wanted], visible)
    return walk.graph()


def _plain(graph: LineageGraph) -> set[tuple[str, str, int]]:
    names = {node.id: "?" if node.ref is None else str(node.ref.key) for node in graph.nodes}
    return {(names[edge.derived], names[edge.source], edge.derivation) for edge in graph.edges}


DIAMOND = [_edge("r", "a"), _edge("r", "b", 1), _edge("a", "c"), _edge("b", "c"), _edge("c", "d")]


def test_a_walk_finds_every_source_once_at_its_shortest_distance() -> None:
    """And asks for each version's edges once."""
    asked: list[SourceRef] = []
    graph = _walk([*DIAMOND, _edge("r", "d", 2)], asked=asked)
    assert [(str(node.ref.key), node.depth) for node in graph.nodes if node.ref] == [
        ("r", 0),
        ("a", 1),
        ("b", 1),
        ("d", 1),
        ("c", 2),
    ]
    assert [node.id for node in graph.nodes] == list(range(5))
    assert _plain(graph) == {
        (e.derived.key, e.source.key, e.derivation) for e in [*DIAMOND, _edge("r", "d", 2)]
    }
    assert not graph.truncated
    assert len(asked) == len(set(asked)) == 5


def test_an_impact_walk_goes_the_other_way() -> None:
    """From a version to what was made of it; edges keep their meaning."""
    graph = _walk(DIAMOND, root="d", direction=Direction.DERIVED)
    assert [str(node.ref.key) for node in graph.nodes if node.ref] == ["d", "c", "a", "b", "r"]
    assert _plain(graph) == {(e.derived.key, e.source.key, e.derivation) for e in DIAMOND}


def test_a_walk_may_begin_at_every_version_of_a_key() -> None:
    """All at depth 0."""
    roots = [source("k", 1), source("k", 2)]
    walk = LineageWalk(roots, 4, 10, Direction.DERIVED)
    assert list(walk.frontier()) == roots
    walk.add(
        [Edge(source("x", 1), roots[0], 0), Edge(source("x", 1), roots[1], 0), Edge(roots[1], roots[0], 0)],
        _see_all,
    )
    graph = walk.graph()
    assert [node.depth for node in graph.nodes] == [0, 0, 1]
    assert len(graph.edges) == 3


def test_nothing_behind_a_hidden_version_is_walked() -> None:
    """Not even what could be seen by itself: the way to it is not the reader's to know."""
    asked: list[SourceRef] = []
    graph = _walk(DIAMOND, _hide("a", "b"), asked=asked)
    assert _plain(graph) == {("r", "?", 0), ("r", "?", 1)}
    assert [ref.key for ref in asked] == ["r"]
    assert [node.hidden for node in graph.nodes] == [False, True]
    assert graph.nodes[-1].depth == 0


def test_the_opaque_node_tells_no_number() -> None:
    """One hidden source or fifty, of one derivation: the same graph."""
    few = [_edge("r", "h1"), _edge("r", "a")]
    many = [*few, *(_edge("r", f"h{number}") for number in range(2, 50)), _edge("h1", "h2")]
    hide = _hide(*(f"h{number}" for number in range(1, 50)))
    assert _walk(few, hide) == _walk(many, hide)
    assert _plain(_walk(many, hide)) == {("r", "?", 0), ("r", "a", 0)}


def test_an_impact_does_not_tell_how_many_statements_a_hidden_version_makes() -> None:
    """The number of a derivation belongs to the version that was made; hidden ones keep theirs."""
    one = [_edge("x", "r", 0)]
    more = [_edge("x", "r", 0), _edge("x", "r", 1), _edge("y", "r", 7)]
    hide = _hide("x", "y")
    assert _walk(one, hide, direction=Direction.DERIVED) == _walk(more, hide, direction=Direction.DERIVED)


def test_depth_is_bounded_and_only_a_real_cut_is_reported() -> None:
    """A graph that ends at the bound is whole."""
    chain = [_edge("r", "a"), _edge("a", "b"), _edge("b", "c")]
    assert not _walk(chain, max_depth=3).truncated
    cut = _walk(chain, max_depth=2)
    assert cut.truncated
    assert [str(node.ref.key) for node in cut.nodes if node.ref] == ["r", "a", "b"]
    assert _plain(cut) == {("r", "a", 0), ("a", "b", 0)}
    assert not _walk([*chain[:2], _edge("b", "a")], max_depth=2).truncated


def test_a_hidden_version_beyond_the_depth_is_not_shown() -> None:
    """It is cut like any other."""
    graph = _walk([_edge("r", "a"), _edge("a", "h")], _hide("h"), max_depth=1)
    assert graph.truncated
    assert not any(node.hidden for node in graph.nodes)


@pytest.mark.parametrize("max_nodes", range(1, 8))
def test_nodes_are_bounded_the_opaque_one_included(max_nodes: int) -> None:
    """Edges lead only between nodes that are there."""
    edges = [*(_edge("r", name) for name in "habcd"), _edge("a", "b"), _edge("a", "h")]
    graph = _walk(edges, _hide("h"), max_nodes=max_nodes)
    assert len(graph.nodes) == min(max_nodes, 6)
    assert graph.truncated is (max_nodes < 6)
    ids = {node.id for node in graph.nodes}
    assert all({edge.derived, edge.source} <= ids for edge in graph.edges)


def test_edges_between_nodes_that_are_there_are_kept_when_there_is_no_room_for_more() -> None:
    """A bound cuts nodes, not what is known about those that are shown."""
    graph = _walk([_edge("r", "a"), _edge("r", "b"), _edge("a", "b"), _edge("b", "c")], max_nodes=3)
    assert _plain(graph) == {("r", "a", 0), ("r", "b", 0), ("a", "b", 0)}
    assert graph.truncated


def test_a_store_that_gave_fewer_edges_than_it_had_makes_the_graph_truncated() -> None:
    """Its limit is a bound like ours."""
    walk = LineageWalk(source("r", 1), 4, 10)
    walk.add([_edge("r", "a")], _see_all, cut=True)
    assert walk.graph().truncated


def test_edges_of_versions_that_were_not_asked_for_are_ignored() -> None:
    """A store may be generous; the walk stays breadth first."""
    walk = LineageWalk(source("r", 1), 4, 10)
    walk.add([_edge("x", "y"), _edge("r", "a"), _edge("r", "a")], _see_all)
    assert _plain(walk.graph()) == {("r", "a", 0)}


NAMES = st.sampled_from("rabcdefgh")
EDGES = st.lists(st.builds(_edge, NAMES, NAMES, st.integers(0, 2)), max_size=25)


@given(EDGES, st.frozensets(st.sampled_from("abcdefgh")), st.sampled_from(Direction))
def test_a_graph_is_exactly_what_can_be_reached_through_what_may_be_seen(
    edges: list[Edge], hidden: frozenset[str], direction: Direction
) -> None:
    """Cycles and self-loops too, though no commit can make them: a walk must end on any data."""
    graph = _walk(edges, _hide(*hidden), direction=direction)
    up = direction is Direction.SOURCES
    steps = [
        (str(e.derived.key), str(e.source.key)) if up else (str(e.source.key), str(e.derived.key))
        for e in edges
    ]
    reached = {"r"}
    while more := {far for near, far in steps if near in reached and far not in hidden} - reached:
        reached |= more
    assert {str(node.ref.key) for node in graph.nodes if node.ref} == reached
    wanted = set()
    for edge in edges:
        derived, origin = str(edge.derived.key), str(edge.source.key)
        near, far = (derived, origin) if up else (origin, derived)
        if near in reached and far in reached:
            wanted.add((derived, origin, edge.derivation))
        elif near in reached:
            wanted.add((derived, "?", edge.derivation) if up else ("?", origin, 0))
    assert _plain(graph) == wanted
    assert len(graph.edges) == len(wanted)
    assert not graph.truncated


@given(EDGES, st.frozensets(st.sampled_from("abcdefgh")), st.integers(0, 4), st.integers(1, 6))
def test_bounds_hold_and_a_graph_that_is_not_truncated_is_whole(
    edges: list[Edge], hidden: frozenset[str], max_depth: int, max_nodes: int
) -> None:
    """Whatever the data."""
    bounded = _walk(edges, _hide(*hidden), max_depth=max_depth, max_nodes=max_nodes)
    whole = _walk(edges, _hide(*hidden))
    assert len(bounded.nodes) <= max_nodes
    assert all(node.depth <= max_depth for node in bounded.nodes)
    assert _plain(bounded) <= _plain(whole)
    assert bounded.truncated is (
        len(bounded.nodes) < len(whole.nodes) or len(bounded.edges) < len(whole.edges)
    )
