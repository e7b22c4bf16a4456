"""What a caller may see of a board: the one filter below every surface.

Get, list, history, watch, lineage, commits, conflicts and counts all ask here, so that a new surface cannot forget a
rule. A key that may not be read is absent on every path, and a region that may not be seen answers like one that was
never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slateboard_server.domain.conflict import Conflict
from slateboard_server.domain.entry import LoggedCommit, VersionRecord
from slateboard_server.domain.names import SHARED, owner_of
from slateboard_server.domain.principal import Action, Principal, Role
from slateboard_server.domain.values import Key, PrincipalId, Region, Trust
from slateboard_server.services.model import Caller, VisibleCommit


class Scope:
    """A caller on a board it has a part in."""

    __slots__ = ("_principal", "floor", "sees_all_shared")

    def __init__(self, caller: Caller, min_trust: Trust | None = None) -> None:
        """Look at the board as `caller`; entries of less trust than `min_trust` are absent."""
        self._principal = caller.principal
        self.floor = min_trust
        self.sees_all_shared = caller.principal.may(Action.READ, SHARED, "")

    @property
    def principal(self) -> Principal:
        """Return whose view this is."""
        return self._principal

    def may_read(self, region: Region, key: str) -> bool:
        """Tell whether a key may be read."""
        if region == SHARED and self.sees_all_shared:
            return True
        return self._principal.may(Action.READ, region, key)

    def may_read_some(self, region: Region, prefix: str) -> bool:
        """Tell whether anything below a prefix could be readable."""
        return self._principal.may_read_some(region, prefix)

    def visible(self, record: VersionRecord) -> bool:
        """Tell whether a version may be shown: its key may be read and its trust is not below the floor."""
        if self.floor is not None and record.trust < self.floor and record.is_value:
            return False
        return self.may_read(record.region, record.key)

    def enters_foreign(self, regions: Sequence[Region]) -> list[Region]:
        """List the private regions of others among `regions`: only an operator sees into them, and that is audited."""
        if self._principal.role is not Role.OPERATOR:
            return []
        return [region for region in regions if owner_of(region) not in {None, self._principal.id}]

    def of_commit(self, logged: LoggedCommit) -> VisibleCommit:
        """Cut a commit down to what may be seen of it.

        A commit of which nothing may be seen keeps its revision and time, which are public on a board, and nothing
        else: not who made it, nor why.
        """
        if logged.commit.principal == self._principal.id:
            return VisibleCommit(logged, hidden_ops=False)
        shown = tuple(record for record in logged.versions if self.may_read(record.region, record.key))
        commit = replace(logged.commit, request_id="")
        if not shown and logged.versions:
            commit = replace(commit, principal=PrincipalId(""), session_id=None, note="")
        return VisibleCommit(LoggedCommit(commit, shown), hidden_ops=len(shown) < len(logged.versions))

    def of_conflict(self, conflict: Conflict) -> Conflict | None:
        """Cut a conflict down to the violations that may be seen; None if there are none."""
        if conflict.principal == self._principal.id:
            return conflict
        shown = tuple(
            violation for violation in conflict.violations if self.may_read(violation.region, violation.key)
        )
        return replace(conflict, violations=shown, request_id="") if shown else None


def watched_regions(prefixes: Sequence[tuple[Region, str]]) -> list[Region]:
    """List the regions of prefixes, each once."""
    return list(dict.fromkeys(region for region, _ in prefixes))


def without_covered(prefixes: Sequence[tuple[Region, str]]) -> tuple[tuple[Region, str], ...]:
    """Drop prefixes that another one covers, so that nothing is shown twice."""
    kept: list[tuple[Region, str]] = []
    for region, prefix in sorted(set(prefixes), key=lambda place: (place[0], len(place[1]), place[1])):
        if not any(region == other and prefix.startswith(cover) for other, cover in kept):
            kept.append((region, prefix))
    return tuple(kept)


def place(region: Region, key: Key) -> str:
    """Write a key with its region, for logs and audit."""
    return f"{region}:{key}"
