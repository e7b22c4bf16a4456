"""ProvenanceService: Trace and Impact."""

from __future__ import annotations

from typing import Final

import grpc

from slateboard.v1 import provenance_service_pb2 as pb
from slateboard_server.domain.lineage import LineageGraph
from slateboard_server.grpc_api.calls import Calls, Context
from slateboard_server.grpc_api.shape import check_no_unknown, read_key
from slateboard_server.grpc_api.wire import Headers
from slateboard_server.grpc_api.write_entries import EntryWriter, View
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.model import Caller
from slateboard_server.services.provenance import Lineage, Provenance

SERVICE: Final = "slateboard.v1.ProvenanceService"
_NODES_BYTES: Final = 1 << 20
"""Room for annotations; the bare names of 2,000 nodes with keys of 512 bytes and the edges need the rest of a reply."""


class ProvenanceServicer:
    """Converts, calls `Provenance`, converts back."""

    def __init__(self, directory: BoardDirectory, provenance: Provenance, headers: Headers) -> None:
        """Serve `provenance`."""
        self._directory = directory
        self._provenance = provenance
        self._headers = headers

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the methods, wrapped."""
        return {
            "Trace": calls.unary("Trace", pb.TraceRequest, self._trace),
            "Impact": calls.unary("Impact", pb.ImpactRequest, self._impact),
        }

    async def _trace(self, caller: Caller, request: pb.TraceRequest, _: Context) -> pb.TraceResponse:
        check_no_unknown(request)
        region, key = read_key(request.key, "key")
        found = await self._provenance.trace(
            caller, request.board, region, key, request.version, request.max_depth, request.max_nodes
        )
        return pb.TraceResponse(
            header=self._headers.message(found[0]),
            nodes=await self._nodes(caller, request.board, found),
            edges=_edges(found[1]),
            truncated=found[1].truncated,
        )

    async def _impact(self, caller: Caller, request: pb.ImpactRequest, _: Context) -> pb.ImpactResponse:
        check_no_unknown(request)
        region, key = read_key(request.key, "key")
        found = await self._provenance.impact(
            caller,
            request.board,
            region,
            key,
            request.version,
            request.all_versions,
            request.max_depth,
            request.max_nodes,
        )
        return pb.ImpactResponse(
            header=self._headers.message(found[0]),
            nodes=await self._nodes(caller, request.board, found),
            edges=_edges(found[1]),
            truncated=found[1].truncated,
        )

    async def _nodes(self, caller: Caller, board: str, found: Lineage) -> list[pb.LineageNode]:
        _, graph, records = found
        entries = EntryWriter.of(await self._directory.open(caller, board), caller)
        nodes: list[pb.LineageNode] = []
        left = _NODES_BYTES
        for node in graph.nodes:
            made = pb.LineageNode(id=node.id, hidden=node.hidden, depth=node.depth)
            record = None if node.ref is None else records.get(node.ref)
            if record is not None:
                # Where annotations are so long that not all fit, the later nodes are told by name and trust.
                encoded = entries.encode(record, View.META)
                if len(encoded) > left:
                    encoded = entries.encode_withheld(record)
                left -= len(encoded)
                made.entry.MergeFromString(encoded)
            elif node.ref is not None:
                made.entry.region, made.entry.key = node.ref.region, node.ref.key
                made.entry.version = node.ref.version
            nodes.append(made)
        return nodes


def _edges(graph: LineageGraph) -> list[pb.LineageEdge]:
    return [
        pb.LineageEdge(derived=edge.derived, source=edge.source, derivation=edge.derivation)
        for edge in graph.edges
    ]
