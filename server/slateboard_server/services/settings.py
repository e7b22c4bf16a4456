"""Bounds of the data path, with their defaults. `config.py` fills them in; GetServerInfo shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataPathSettings:
    """How much the services hold and how long they wait."""

    exclusive: bool = True
    """True where this process makes every commit of its database (embedded): what it has applied is the head."""
    cache_bytes: int = 64 << 20
    """Bound of the entry cache, all boards together."""
    ring_bytes: int = 4 << 20
    """Bound of a board's ring of recent commits that watchers share; kept only while somebody watches."""
    queue_items: int = 4_096
    """Commits that may wait for a board."""
    queue_bytes: int = 64 << 20
    """Bytes of values that may wait for a board."""
    batch_items: int = 128
    """Commits judged in one transaction."""
    batch_ops: int = 512
    batch_bytes: int = 4 << 20
    commit_timeout: float = 10.0
    """Seconds a batch may take from BEGIN to the answer."""
    open_boards: int = 1_024
    """Boards held ready; idle ones beyond that are let go."""
    poll_interval: float = 1.0
    """Seconds between looks at the log for watched boards where wake-ups may get lost."""
    recheck_interval: float = 2.0
    """Seconds between checks that a watcher is still allowed to watch."""
    at_least_timeout: float = 5.0
    """Seconds a read waits for its revision."""
    scan_limit: int = 5_000
    """Entries a filtered list looks at for one page; the page then ends early, with a token."""
