"""Cleaning that several workers can share: exact duplicates out, cancellations apart. Rows are named by position.

**Duplicates come first, and over the whole file.** A copy may stand thousands of rows after its original,
so a worker who sees only a row range cannot know what is a copy; and every later step must know, or counts
depend on how the file was cut. Two ways give the same answer:

- one worker calls `find_duplicates` on all rows; or
- `n` workers each call it on all rows with `part=0..n-1` of `n`: worker p looks only at rows whose fingerprint falls to p.
  Copies have equal fingerprints, so they always meet in one part; each worker holds 1/n of the
  fingerprints, and `join_duplicates` of the parts is the whole.

The result lists (row dropped, row kept) pairs. It is small, goes into a board entry as it is, and all later
steps, which do work on row ranges, take it as input and derive from it. The first occurrence stays.

Two rows are exact duplicates when all eight texts are equal as they stand: `2.50` is not `2.5`, a trailing
space counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from agents_demo.orders import OrderLine, RawRow

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True, order=True)
class Duplicate:
    """One row to leave out, and the earlier row that it repeats."""

    dropped: int
    kept: int


@dataclass(frozen=True, slots=True)
class Separated:
    """Order lines by what they are; both in file order."""

    sales: tuple[OrderLine, ...]
    cancellations: tuple[OrderLine, ...]


def fingerprint(fields: Collection[str]) -> bytes:
    """16 bytes that are equal for equal rows. Fields are length-prefixed, so ("ab", "c") is not ("a", "bc").

    With 128 bits, two different rows of a file of 10^9 share one with a chance below 10^-20.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for field in fields:
        data = field.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def find_duplicates(rows: Iterable[RawRow], *, part: int = 0, parts: int = 1) -> list[Duplicate]:
    """The duplicates among all rows of a file, or the share of one of several workers; ordered by dropped row.

    Args:
        rows: All rows of the file in file order, whatever the part.
        part: Which share, 0 to parts - 1.
        parts: How many shares there are.

    Raises:
        ValueError: No such part.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part {part} of {parts}")
    first: dict[bytes, int] = {}
    found: list[Duplicate] = []
    for raw in rows:
        mark = fingerprint(raw.fields)
        if parts > 1 and int.from_bytes(mark[:8], "big") % parts != part:
            continue
        kept = first.setdefault(mark, raw.row)
        if kept != raw.row:
            found.append(Duplicate(dropped=raw.row, kept=kept))
    return found


def join_duplicates(shares: Iterable[Iterable[Duplicate]]) -> list[Duplicate]:
    """The whole from its shares, in any order; a share given twice counts once."""
    return sorted({duplicate for share in shares for duplicate in share})


def duplicates_to_json(duplicates: Iterable[Duplicate]) -> list[list[int]]:
    """Pairs of row numbers, [dropped, kept], as they go into an entry."""
    return [[duplicate.dropped, duplicate.kept] for duplicate in duplicates]


def duplicates_from_json(value: object) -> list[Duplicate]:
    """What `duplicates_to_json` wrote.

    Raises:
        ValueError: Not such a value.
    """
    found: list[Duplicate] = []
    for pair in value if isinstance(value, list) else [value]:
        match pair:
            case [int(dropped), int(kept)] if 0 <= kept < dropped:
                found.append(Duplicate(dropped, kept))
            case _:
                raise ValueError(f"{pair!r:.40} is not a [dropped, kept] pair of row numbers")
    return found


def is_cancellation(invoice_no: str) -> bool:
    """Whether the invoice cancels an earlier one: its number begins with a capital C."""
    return invoice_no.startswith("C")


def without_duplicates(lines: Iterable[OrderLine], dropped: Collection[int]) -> list[OrderLine]:
    """The lines whose row is not among the dropped ones. `dropped` may speak of rows outside these lines."""
    return [line for line in lines if line.row not in dropped]


def separate(lines: Iterable[OrderLine]) -> Separated:
    """Sales and cancellations apart. Goods that came back without a cancellation invoice stay among the sales."""
    sales: list[OrderLine] = []
    cancellations: list[OrderLine] = []
    for line in lines:
        (cancellations if is_cancellation(line.invoice_no) else sales).append(line)
    return Separated(tuple(sales), tuple(cancellations))


def rows_of(lines: Iterable[OrderLine]) -> list[int]:
    """Row numbers, as a board entry records them."""
    return [line.row for line in lines]
