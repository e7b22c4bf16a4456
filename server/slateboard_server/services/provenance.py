"""Where values came from and what became of them, as far as the caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slateboard_server.domain.entry import SourceRef, VersionRecord
from slateboard_server.domain.errors import field_invalid
from slateboard_server.domain.limits import MAX_LINEAGE_DEPTH, MAX_LINEAGE_NODES
from slateboard_server.domain.lineage import Direction, LineageGraph, LineageWalk
from slateboard_server.domain.values import Key, Region, Version
from slateboard_server.ports import AuditRecord, Clock, Store
from slateboard_server.services.directory import BoardDirectory, BoardHandle
from slateboard_server.services.model import Caller, Stamp
from slateboard_server.services.reads import key_not_found
from slateboard_server.services.scope import Scope

_DEFAULT_DEPTH: Final = 16
_DEFAULT_NODES: Final = 500
_VERSIONS_CHUNK: Final = 500
_EDGES_PER_NODE: Final = 8

Lineage = tuple[Stamp, LineageGraph, dict[SourceRef, VersionRecord]]
"""A graph, and the versions that its nodes stand for, without values."""


class Provenance:
    """ProvenanceService's Trace and Impact."""

    def __init__(self, directory: BoardDirectory, store: Store, clock: Clock) -> None:
        """Look at the boards of `directory`."""
        self._directory = directory
        self._store = store
        self._clock = clock

    async def trace(
        self,
        caller: Caller,
        board: str,
        region: Region,
        key: Key,
        version: int = 0,
        max_depth: int = 0,
        max_nodes: int = 0,
    ) -> Lineage:
        """Follow the sources of a version (0: the newest) upwards. KEY_NOT_FOUND if it is not there to be seen."""
        depth, nodes = _bounds(version, max_depth, max_nodes)
        scope = Scope(caller)
        handle = await self._enter(caller, board, scope, region, key)
        stamp, roots = await self._roots(handle, region, key, version)
        walk = LineageWalk(roots, depth, nodes, Direction.SOURCES)
        while wanted := walk.frontier():
            edges = await self._store.sources_of(handle.board_id, wanted)
            walk.add(edges, lambda ref: scope.may_read(ref.region, ref.key))
        return await self._finish(caller, handle, scope, stamp, walk.graph())

    async def impact(
        self,
        caller: Caller,
        board: str,
        region: Region,
        key: Key,
        version: int = 0,
        all_versions: bool = False,
        max_depth: int = 0,
        max_nodes: int = 0,
    ) -> Lineage:
        """Follow what was derived from a version (0: the newest), or from every version of the key."""
        depth, nodes = _bounds(version, max_depth, max_nodes)
        if all_versions and version:
            raise field_invalid("version", "must be 0 together with all_versions")
        scope = Scope(caller)
        handle = await self._enter(caller, board, scope, region, key)
        if all_versions:
            stamp, roots = await self._every_version(handle, region, key, nodes + 1)
        else:
            stamp, roots = await self._roots(handle, region, key, version)
        walk = LineageWalk(roots, depth, nodes, Direction.DERIVED)
        limit = nodes * _EDGES_PER_NODE
        while wanted := walk.frontier():
            edges = await self._store.derived_from(handle.board_id, wanted, limit)
            walk.add(edges, lambda ref: scope.may_read(ref.region, ref.key), cut=len(edges) >= limit)
        return await self._finish(caller, handle, scope, stamp, walk.graph())

    async def _enter(self, caller: Caller, board: str, scope: Scope, region: Region, key: Key) -> BoardHandle:
        handle = await self._directory.enter(caller, board, scope, [region])
        if not scope.may_read(region, key):
            raise key_not_found(region, key)
        return handle

    async def _roots(
        self, handle: BoardHandle, region: Region, key: Key, version: int
    ) -> tuple[Stamp, list[SourceRef]]:
        below = Version(version + 1) if version else None
        page = await self._store.versions(handle.board_id, region, key, below, 1, values=False)
        if not page.records or (version and page.records[0].version != version):
            raise key_not_found(region, key, version)
        stamp = Stamp(page.head.revision, page.head.floor, page.head.incarnation)
        return stamp, [SourceRef(region, key, page.records[0].version)]

    async def _every_version(
        self, handle: BoardHandle, region: Region, key: Key, limit: int
    ) -> tuple[Stamp, list[SourceRef]]:
        roots: list[SourceRef] = []
        below: Version | None = None
        while True:
            page = await self._store.versions(
                handle.board_id, region, key, below, _VERSIONS_CHUNK, values=False
            )
            roots += [SourceRef(region, key, record.version) for record in page.records]
            if not page.more or not page.records or len(roots) >= limit:
                break
            below = page.records[-1].version
        if not roots:
            raise key_not_found(region, key)
        stamp = Stamp(page.head.revision, page.head.floor, page.head.incarnation)
        return stamp, roots[:limit]

    async def _finish(
        self, caller: Caller, handle: BoardHandle, scope: Scope, stamp: Stamp, graph: LineageGraph
    ) -> Lineage:
        refs = [node.ref for node in graph.nodes if node.ref is not None]
        # The walk may have led an operator into regions that the root did not name.
        foreign = scope.enters_foreign(list(dict.fromkeys(ref.region for ref in refs[1:])))
        if foreign:
            await self._audit(caller, handle, foreign)
        return stamp, graph, await self._store.read_versions(handle.board_id, refs, values=False)

    async def _audit(self, caller: Caller, handle: BoardHandle, regions: Sequence[Region]) -> None:
        now = self._clock.now()
        await self._store.audit(
            [
                AuditRecord(now, caller.principal.id, "private.read", handle.meta.name, region, "lineage")
                for region in regions
            ]
        )


def _bounds(version: int, max_depth: int, max_nodes: int) -> tuple[int, int]:
    if version < 0:
        raise field_invalid("version", "a version is 1 or more")
    if not 0 <= max_depth <= MAX_LINEAGE_DEPTH:
        raise field_invalid("max_depth", f"must be 1 to {MAX_LINEAGE_DEPTH}", limit=MAX_LINEAGE_DEPTH)
    if not 0 <= max_nodes <= MAX_LINEAGE_NODES:
        raise field_invalid("max_nodes", f"must be 1 to {MAX_LINEAGE_NODES}", limit=MAX_LINEAGE_NODES)
    return max_depth or _DEFAULT_DEPTH, max_nodes or _DEFAULT_NODES
