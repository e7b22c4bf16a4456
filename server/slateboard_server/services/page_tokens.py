"""Page tokens: where a listing goes on. Opaque, bound to the request, to the board's incarnation and, by a MAC, to us."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any

from slateboard_server.domain.errors import Reason, SlateboardError, field_invalid
from slateboard_server.domain.limits import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from slateboard_server.domain.values import Incarnation

_MAC_BYTES = 12


def page_size(asked: int) -> int:
    """Return the page size in force: 0 means the default. FIELD_INVALID outside 0..1000."""
    if not 0 <= asked <= MAX_PAGE_SIZE:
        raise field_invalid("page_size", f"{asked} is not between 1 and {MAX_PAGE_SIZE}", limit=MAX_PAGE_SIZE)
    return asked or DEFAULT_PAGE_SIZE


class PageTokens:
    """Makes and reads the tokens of one listing: its kind, and whatever makes it the same request on every page."""

    def __init__(self, secret: bytes, incarnation: Incarnation, *request: object) -> None:
        """Bind to a board's secret and incarnation (empty for listings of no board) and to the request."""
        self._secret = secret
        self._incarnation = incarnation
        self._request = sha256(json.dumps([str(part) for part in request]).encode()).hexdigest()[:16]

    def make(self, **position: Any) -> str:  # whatever JSON holds
        """Return the token for a position."""
        body = json.dumps(
            {"i": self._incarnation, "r": self._request, "p": position},
            separators=(",", ":"),
            ensure_ascii=False,
        ).encode()
        return urlsafe_b64encode(self._mac(body) + body).decode().rstrip("=")

    def read(self, token: str) -> dict[str, Any] | None:
        """Return the position of a token, None for the empty one.

        PAGE_TOKEN_INVALID for a garbled or foreign one, BOARD_REINCARNATED for one of an earlier life of the board.
        """
        if not token:
            return None
        try:
            raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError as error:
            raise _invalid() from error
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not body or not hmac.compare_digest(mac, self._mac(body)):
            raise _invalid()
        fields = json.loads(body)
        if fields["i"] != self._incarnation:
            raise SlateboardError(
                Reason.BOARD_REINCARNATED,
                "the board began a new life since this page token was handed out; start at the first page",
                incarnation=self._incarnation,
            )
        if fields["r"] != self._request:
            raise _invalid()
        position: dict[str, Any] = fields["p"]
        return position

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, b"page token\0" + body, sha256)[:_MAC_BYTES]


def _invalid() -> SlateboardError:
    return SlateboardError(
        Reason.PAGE_TOKEN_INVALID,
        "the page token is garbled or belongs to another request; start at the first page, and change nothing but the"
        " token from page to page",
        field="page_token",
    )
