"""Opaque names of versions: `<first 8 of the incarnation>.<keyed digest of region, key and version>`.

An etag says which incarnation it belongs to, so that one kept from an earlier life of a board is told apart from a
mere mismatch. The digest is keyed by the board: nobody makes one up.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import blake2b

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import Etag, Incarnation, Version

_FORM = re.compile(r"([0-9A-Za-z]{8})\.[A-Za-z0-9_-]{12}")
_DIGEST_BYTES = 9


def make_etag(secret: bytes, incarnation: Incarnation, region: str, key: str, version: Version) -> Etag:
    """Return the etag of a version. `secret` is the board's, at most 64 bytes."""
    digest = blake2b(
        f"{incarnation}\0{region}\0{key}\0{version}".encode(), key=secret, digest_size=_DIGEST_BYTES
    ).digest()
    return Etag(f"{incarnation[:8]}.{urlsafe_b64encode(digest).decode()}")


def check_etag(text: str, field: str) -> Etag:
    """Refuse what cannot be an etag (ETAG_INVALID): an empty or garbled one must never mean 'no condition'."""
    if not _FORM.fullmatch(text):
        raise SlateboardError(
            Reason.ETAG_INVALID,
            f"{field} is {'empty' if not text else 'not an etag of this server'}; pass it as it was read",
            field=field,
        )
    return Etag(text)


def of_other_incarnation(etag: Etag, incarnation: Incarnation) -> bool:
    """Tell whether a well-formed etag was made in another life of the board."""
    return etag[:8] != incarnation[:8]
