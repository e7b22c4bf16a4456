"""Where things came from and what became of them: `slate trace`, `slate impact`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

from slateboard.cli import options, output, problems, state, text

if TYPE_CHECKING:
    from slateboard import Lineage, LineageNode

_FORMATS = ("tree", "mermaid", "dot", "table")
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Version = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Which version; default: the present one.")
]
Depth = Annotated[int, typer.Option(metavar="N", min=1, help="How many steps.")]
Nodes = Annotated[int, typer.Option(metavar="N", min=1, help="How many versions in all.")]
Format = Annotated[
    str, typer.Option("--format", metavar="|".join(_FORMATS), help="How to draw it, without --json.")
]


def add_to(slate: typer.Typer) -> None:
    """Add the commands."""
    options.command(slate)(trace)
    options.command(slate)(impact)


def trace(
    key: Key, version: Version = None, depth: Depth = 16, nodes: Nodes = 500, shape: Format = "tree"
) -> None:
    """Show what a version was made from, and what that was made from."""
    _check(shape)
    with state.board() as (_, board):
        found = board.trace(key, version=version, max_depth=depth, max_nodes=nodes, region=state.region())
    _show(found, shape, down=False)


def impact(
    key: Key,
    version: Version = None,
    all_versions: Annotated[bool, typer.Option("--all-versions", help="Of every version.")] = False,
    depth: Depth = 16,
    nodes: Nodes = 500,
    shape: Format = "tree",
) -> None:
    """Show what was made from a version, and what from that."""
    _check(shape)
    if all_versions and version is not None:
        raise problems.usage("give --version N or --all-versions, not both")
    with state.board() as (_, board):
        found = board.impact(
            key,
            version=version,
            all_versions=all_versions,
            max_depth=depth,
            max_nodes=nodes,
            region=state.region(),
        )
    _show(found, shape, down=True)


def _check(shape: str) -> None:
    if shape not in _FORMATS:
        raise problems.usage(f"--format is one of {', '.join(_FORMATS)}, not {shape!r}")


def _show(found: Lineage, shape: str, *, down: bool) -> None:
    from slateboard.cli import documents  # noqa: PLC0415 -- brings in grpc

    def draw() -> None:
        if shape == "table":
            _table(found)
            return
        drawn = {"tree": tree, "mermaid": mermaid, "dot": dot}[shape]
        for line in drawn(found, down=down):
            output.out(line)
        if found.truncated:
            output.err("the graph was cut off; --depth and --nodes show more")

    state.show(lambda: documents.lineage(found), draw)


def name(node: LineageNode) -> str:
    """A version, for people: KEY@VERSION, its trust and writer."""
    if node.entry is None:
        return "(hidden from you)"
    entry = node.entry
    shown = f"{entry.key}@{entry.version} {entry.trust.name.lower()}"
    if entry.provenance.principal:
        shown += f" by {entry.provenance.principal}"
    if entry.tombstone is not None:
        shown += f" ({entry.tombstone.name.lower()})"
    return text.line(shown)


def tree(found: Lineage, *, down: bool) -> list[str]:
    """The graph as a tree. A version met again is marked, and not unfolded twice."""
    below: dict[int, list[int]] = defaultdict(list)
    for edge in found.edges:
        parent, child = (edge.source, edge.derived) if down else (edge.derived, edge.source)
        if child not in below[parent]:
            below[parent].append(child)
    nodes = {node.id: node for node in found.nodes}
    lines: list[str] = []
    unfolded: set[int] = set()
    for root in (node for node in found.nodes if node.depth == 0):
        # A stack, not recursion: a chain may be longer than Python's stack.
        stack: list[tuple[int, str, str]] = [(root.id, "", "")]
        while stack:
            current, lead, indent = stack.pop()
            again = current in unfolded and bool(below[current])
            lines.append(lead + name(nodes[current]) + (" (see above)" if again else ""))
            if again:
                continue
            unfolded.add(current)
            children = [child for child in below[current] if child in nodes]
            for index, child in reversed(list(enumerate(children))):
                last = index == len(children) - 1
                stack.append(
                    (child, indent + ("└── " if last else "├── "), indent + ("    " if last else "│   "))
                )
    return lines


def mermaid(found: Lineage, *, down: bool) -> list[str]:
    """The graph for Mermaid; arrows go from source to derived."""
    lines = ["flowchart TD" if down else "flowchart BT"]
    lines += [f'    n{node.id}["{_mermaid(name(node))}"]' for node in found.nodes]
    return lines + [f"    n{source} --> n{derived}" for source, derived in _pairs(found)]


def _mermaid(shown: str) -> str:
    """A label in quotes: what Mermaid or HTML would obey becomes an entity."""
    return "".join(char if char.isalnum() or char in " ./@_-()" else f"#{ord(char)};" for char in shown)


def dot(found: Lineage, *, down: bool) -> list[str]:
    """The graph for Graphviz; arrows go from source to derived."""
    lines = ["digraph lineage {", f"    rankdir={'TB' if down else 'BT'};", "    node [shape=box];"]
    for node in found.nodes:
        label = name(node).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'    n{node.id} [label="{label}"];')
    lines += [f"    n{source} -> n{derived};" for source, derived in _pairs(found)]
    return [*lines, "}"]


def _pairs(found: Lineage) -> list[tuple[int, int]]:
    return list(dict.fromkeys((edge.source, edge.derived) for edge in found.edges))


def _table(found: Lineage) -> None:
    sources: dict[int, list[int]] = defaultdict(list)
    for source, derived in _pairs(found):
        sources[derived].append(source)
    rows = []
    for node in found.nodes:
        entry = node.entry
        rows.append(
            (
                node.id,
                node.depth,
                entry.key if entry else "(hidden)",
                entry.version if entry else "",
                entry.trust.name.lower() if entry else "",
                entry.provenance.principal if entry else "",
                " ".join(map(str, sources[node.id])),
            )
        )
    output.table(("node", "depth", "key", "version", "trust", "writer", "made from"), rows)
