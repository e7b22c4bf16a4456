"""The words of the API as Python enums. Their values are the numbers on the wire; that never shows elsewhere."""

from enum import Enum, IntEnum


class Trust(IntEnum):
    """How far an entry can be believed, lowest first; compare with `<` and `>=`."""

    QUARANTINED = 1
    """Held back; not shown to ordinary readers."""
    EXTERNAL = 2
    """Came from outside the team: mail, web pages, tool output."""
    AGENT = 3
    """Said by an agent."""
    USER = 4
    """Said by the user the team works for."""
    VERIFIED = 5
    """Checked by somebody who may vouch for it."""
    SYSTEM = 6
    """Said by whoever runs the system."""


class Kind(Enum):
    """What sort of memory an entry is. Only recall and context building treat kinds differently."""

    WORKING = 1
    EPISODIC = 2
    SEMANTIC = 3
    PREFERENCE = 4
    PROCEDURAL = 5


class View(Enum):
    """How much of an entry a read returns."""

    KEYS = 1
    """Region, key, version, etag and revisions."""
    META = 2
    """Everything but the value."""
    FULL = 3
    """Everything."""


class Tombstone(Enum):
    """Why a version marks an absence."""

    DELETED = 1
    EXPIRED = 2
    PURGED = 3


class Role(Enum):
    """What a principal is for; it gives the rights where none are spelled out."""

    OPERATOR = 1
    """Runs the server: every call, every board."""
    SUPERVISOR = 2
    """Leads teams: all rights on the shared regions of its boards, their policies and compaction."""
    WORKER = 3
    """Does work: reads and writes the shared regions of its boards, or just what its rights say."""
    OBSERVER = 4
    """Only reads."""


class Action(Enum):
    """What a right allows."""

    READ = 1
    WRITE = 2
    """Put and delete; includes APPEND."""
    APPEND = 3
    LOCK = 4
    ENDORSE = 5


class WriteMode(Enum):
    """How writes enter a region."""

    DIRECT = 1
    READ_ONLY = 2


class AnyState(Enum):
    """Whether `any_state` may be used. Unset: forbidden in shared regions, allowed in private ones."""

    ALLOWED = 1
    FORBIDDEN = 2


class RegionScope(Enum):
    """Which regions a rule speaks of."""

    SHARED = 1
    PRIVATE = 2
    """Every principal's private region."""


class SessionState(Enum):
    """State of a session by the server's clock."""

    ACTIVE = 1
    STALE = 2
    """No heartbeat for longer than its ttl. Final."""
    ENDED = 3


class DiffKind(Enum):
    """What happened at a place in a JSON value."""

    ADDED = 1
    REMOVED = 2
    CHANGED = 3


class LockMode(Enum):
    """Whether others may hold it too."""

    EXCLUSIVE = 1
    SHARED = 2


class LockState(Enum):
    """Where a lock stands."""

    WAITING = 1
    HELD = 2
    RELEASED = 3
    EXPIRED = 4
    """Its lease ended, or max_hold had passed."""
    REVOKED = 5
    """By force."""
    TRANSFERRED = 6
    ABANDONED = 7
    """Ended before it was granted."""


class LockEnforcement(Enum):
    """Whether a held lock keeps others from writing what it covers. Unset: mandatory."""

    MANDATORY = 1
    ADVISORY = 2
    """Only claims are checked."""


class ReleaseOutcome(Enum):
    """How a lock that is released had ended."""

    RELEASED = 1
    ALREADY_RELEASED = 2
    EXPIRED = 3
    REVOKED = 4
    TRANSFERRED = 5
