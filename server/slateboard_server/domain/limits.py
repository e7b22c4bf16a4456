"""Every limit of the API in one place. GetServerInfo and `slate doctor` show them; errors name them."""

from __future__ import annotations

from typing import Final

MAX_OPS: Final = 128
MAX_GUARDS: Final = 256
MAX_CLAIMS: Final = 16
MAX_VALUE_BYTES: Final = 1 << 20
MAX_MESSAGE_BYTES: Final = 3_670_016
"""3.5 MiB: below the 4 MiB that gRPC clients accept by default."""
MAX_WATCH_BATCH_BYTES: Final = 3 << 20
MAX_KEY_BYTES: Final = 512
MAX_KEY_SEGMENTS: Final = 16
APPEND_SUFFIX_BYTES: Final = 23
"""Length of the key's last segment that an append adds: 19 digits, '-', 3 digits."""
MAX_GET_KEYS: Final = 100
DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1_000
MAX_FILTERS: Final = 16
MAX_FILTER_VALUES: Final = 100
MAX_WATCH_PREFIXES: Final = 32
MAX_NAME_BYTES: Final = 256
"""subject, attribute, turn, tool, purpose, task, display_name."""
MAX_NOTE_BYTES: Final = 1_024
MAX_TOPICS: Final = 32
MAX_LABELS: Final = 32
MAX_TAG_BYTES: Final = 128
"""A topic, a label's name or value, a content type."""
MAX_SOURCE_URIS: Final = 32
MAX_URI_BYTES: Final = 2_048
MAX_DERIVATIONS: Final = 32
MAX_SOURCES: Final = 256
MAX_RULES: Final = 64
MAX_RIGHTS: Final = 64
MAX_PRINCIPAL_BOARDS: Final = 100
MAX_LINEAGE_DEPTH: Final = 64
MAX_LINEAGE_NODES: Final = 2_000
MAX_CONFLICTS_KEPT: Final = 10_000
CONFLICT_RETENTION_S: Final = 24 * 3600
IDEMPOTENCY_RETENTION_S: Final = 48 * 3600
"""Promised are 24 h; stored answers are dropped after twice that, so that no clock skew breaks the promise."""
PROMISED_IDEMPOTENCY_S: Final = 24 * 3600
MAX_TTL_S: Final = 100 * 366 * 86_400
"""Of a region's default lifetime: far enough, and no moment it gives lies past what a timestamp can say."""
MIN_SESSION_TTL_S: Final = 2
MAX_SESSION_TTL_S: Final = 3_600
DEFAULT_SESSION_TTL_S: Final = 15
SOFT_LIMIT_SHARE: Final = 0.8
"""From this share of a quota on, replies carry a warning."""
MAX_LOCK_SCOPES: Final = 16
MAX_LOCKS_PER_PRINCIPAL: Final = 1_000
"""Held or waited for, on one board."""
MIN_LOCK_TTL_S: Final = 2
MAX_LOCK_TTL_S: Final = 3_600
DEFAULT_LOCK_TTL_S: Final = 30
MAX_LOCK_WAIT_S: Final = 3_600
MAX_RENEWALS: Final = 100
LOCK_RETENTION_S: Final = 24 * 3600
"""How long a lock can be looked up after its end."""
