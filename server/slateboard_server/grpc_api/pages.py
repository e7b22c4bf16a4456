"""Pages that fit into a reply, where the size of an element is not known before it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from slateboard_server.domain.limits import MAX_MESSAGE_BYTES
from slateboard_server.services.page_tokens import page_size

Page = TypeVar("Page")
Reply = TypeVar("Reply", bound=Message)

MAX_REPLY_BYTES: Final = MAX_MESSAGE_BYTES + (128 << 10)
"""What no reply passes. A lone entry may be as large as a request could make it, and a little more for its header; gRPC's
own limit is 4 MiB."""


async def fitting_page(
    size: int, ask: Callable[[int], Awaitable[Page]], write: Callable[[Page], tuple[Reply, int]]
) -> Reply:
    """Ask for a page of `size` elements, and for smaller ones as long as the reply passes 3.5 MiB.

    `write` returns the reply and how many elements it has. The page token of the page that was taken goes on right
    behind it, whatever its size.
    """
    wanted = page_size(size)
    while True:
        reply, count = write(await ask(wanted))
        length = reply.ByteSize()
        if length <= MAX_MESSAGE_BYTES or wanted <= 1:
            return reply
        # Elements differ in size: a quarter of the room stays free, so that the next try is mostly the last.
        wanted = max(1, min(wanted // 2, count * MAX_MESSAGE_BYTES * 3 // (length * 4)))
