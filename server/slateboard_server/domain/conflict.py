"""Why a commit met contention: what is told to the loser and kept for inspection."""

from __future__ import annotations

from dataclasses import dataclass

from slateboard_server.domain.values import Micros, PrincipalId, Region, Revision, SessionId, Version


@dataclass(frozen=True, slots=True)
class Violation:
    """One precondition or guard that did not hold.

    The fields about the current version are empty where the writer may not read the key: the loser of a race learns
    who won only if it could have read that anyway.
    """

    index: int
    """Into the ops, or into the guards where `guard` is set."""
    guard: bool
    region: Region
    key: str
    """A key, or the changed key under the prefix of a prefix guard."""
    expected: str
    """In words: `version 3`, `absent`, `present`, `etag ...`, `prefix plan/ unchanged since 41`."""
    reason: str
    """VERSION_CONFLICT, GUARD_CHANGED or KEY_LOCKED."""
    current_version: Version = Version(0)
    current_mod_revision: Revision = Revision(0)
    current_principal: PrincipalId | None = None
    current_session_id: SessionId | None = None
    current_commit_time: Micros | None = None
    lock_holder: str = ""
    lock_id: str = ""
    hidden: bool = False
    """The writer may not read the key, so that nothing is said about its state."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A commit refused for contention, with all its violations."""

    conflict_id: str
    time: Micros
    principal: PrincipalId
    session_id: SessionId | None
    request_id: str
    reason: str
    revision: Revision
    """The board's head when it was judged."""
    violations: tuple[Violation, ...]
    kept: bool = True
    """False where a validate_only commit met it: that writes nothing, so it cannot be looked up later."""
