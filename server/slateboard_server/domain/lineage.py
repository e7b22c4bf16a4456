"""A lineage graph as one reader may see it, built from edges that are loaded level by level.

The walk does no I/O: it says which versions it wants edges of (`frontier`), takes them (`add`) and gives the graph. What
the reader may not see becomes one opaque node, and nothing behind it is walked: neither how many versions stand there
nor what they lead to can be told from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from slateboard_server.domain.entry import SourceRef


class Direction(Enum):
    """Where a walk goes from its roots."""

    SOURCES = "sources"
    """Up: what a version was made from."""
    DERIVED = "derived"
    """Down: what was made from it."""


class StoredEdge(Protocol):
    """`derived` names `source` in its derivation number `derivation`."""

    @property
    def derived(self) -> SourceRef:
        """The version that was made."""
        ...

    @property
    def source(self) -> SourceRef:
        """The version it was made from."""
        ...

    @property
    def derivation(self) -> int:
        """Which of the derivations of `derived` names the source."""
        ...


@dataclass(frozen=True, slots=True)
class LineageNode:
    """A version in the graph, or (`ref` None) the one node for all that the reader may not see; its depth is 0."""

    id: int
    """Its index in the graph's nodes."""
    ref: SourceRef | None
    depth: int
    """Shortest distance from a root."""

    @property
    def hidden(self) -> bool:
        """Tell the opaque node from a version."""
        return self.ref is None


@dataclass(frozen=True, slots=True)
class LineageEdge:
    """Node `derived` was made from node `source`. An edge from the opaque node has derivation 0, whatever it is."""

    derived: int
    source: int
    derivation: int


@dataclass(frozen=True, slots=True)
class LineageGraph:
    """Nodes nearest first, the opaque one last. `truncated`: a bound cut something that may be seen or is opaque."""

    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    truncated: bool


class LineageWalk:
    """Builds a graph around one or more roots, breadth first.

    ```
    walk = LineageWalk(root, max_depth=16, max_nodes=500)
    while wanted := walk.frontier():
        walk.add(edges_of(wanted), visible)
    graph = walk.graph()
    ```
    The roots are taken as visible: the caller has checked them. The loop ends: each version is asked for once, and
    there are at most `max_nodes` of them, the opaque node included. `max_depth` is the greatest distance from a root.
    """

    def __init__(
        self,
        roots: SourceRef | Sequence[SourceRef],
        max_depth: int,
        max_nodes: int,
        direction: Direction = Direction.SOURCES,
    ) -> None:
        """Start at the roots; those past `max_nodes` are cut."""
        self._max_depth = max_depth
        self._max_nodes = max_nodes
        self._up = direction is Direction.SOURCES
        self._depth: dict[SourceRef, int] = {}
        """Depth of each visible version, in the order it was found: the order is the node's id."""
        self._edges: dict[tuple[SourceRef, SourceRef, int], None] = {}
        self._hidden_edges: dict[tuple[SourceRef, int], None] = {}
        """(visible end, derivation) of edges whose other end is opaque."""
        self._has_hidden = False
        self._truncated = False
        self._frontier: list[SourceRef] = []
        self._next: list[SourceRef] = []
        for root in (roots,) if isinstance(roots, SourceRef) else roots:
            self._place(root, 0)
        self._frontier, self._next = self._next, []

    def frontier(self) -> Sequence[SourceRef]:
        """Return the versions whose edges are wanted now; empty: the walk is over.

        Those at the greatest depth are asked for too: only their edges tell whether the bound cut anything.
        """
        return tuple(self._frontier)

    def add(
        self, edges: Iterable[StoredEdge], visible: Callable[[SourceRef], bool], *, cut: bool = False
    ) -> None:
        """Take the edges of the whole frontier, and move on. `cut`: the store had more of them than it gave."""
        here = set(self._frontier)
        seen: dict[SourceRef, bool] = {}
        self._truncated = self._truncated or cut
        for edge in edges:
            near, far = (edge.derived, edge.source) if self._up else (edge.source, edge.derived)
            if near not in here:
                continue
            if far not in seen:
                seen[far] = far in self._depth or visible(far)
            depth = self._depth[near] + 1
            if not seen[far]:
                self._add_hidden(near, edge.derivation if self._up else 0, depth)
            elif self._place(far, depth):
                self._edges[edge.derived, edge.source, edge.derivation] = None
        self._frontier, self._next = self._next, []

    def graph(self) -> LineageGraph:
        """Return what was found so far."""
        ids = {ref: number for number, ref in enumerate(self._depth)}
        nodes = [LineageNode(ids[ref], ref, depth) for ref, depth in self._depth.items()]
        opaque = len(nodes)
        if self._has_hidden:
            nodes.append(LineageNode(opaque, None, 0))
        edges = [
            LineageEdge(ids[derived], ids[source], derivation) for derived, source, derivation in self._edges
        ]
        for ref, derivation in self._hidden_edges:
            derived, source = (ids[ref], opaque) if self._up else (opaque, ids[ref])
            edges.append(LineageEdge(derived, source, derivation))
        edges.sort(key=lambda edge: (edge.derived, edge.derivation, edge.source))
        return LineageGraph(tuple(nodes), tuple(edges), self._truncated)

    def _has_room(self, depth: int) -> bool:
        fits = depth <= self._max_depth and len(self._depth) + self._has_hidden < self._max_nodes
        self._truncated = self._truncated or not fits
        return fits

    def _place(self, ref: SourceRef, depth: int) -> bool:
        """Make a node unless there is one; tell whether there is one now."""
        if ref in self._depth:
            return True
        if not self._has_room(depth):
            return False
        self._depth[ref] = depth
        self._next.append(ref)
        return True

    def _add_hidden(self, near: SourceRef, derivation: int, depth: int) -> None:
        if depth > self._max_depth:
            self._truncated = True
            return
        if not self._has_hidden:
            if not self._has_room(depth):
                return
            self._has_hidden = True
        self._hidden_edges[near, derivation] = None
