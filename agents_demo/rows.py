"""Row ranges: how a file is cut into work units, and how an entry says which source rows it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

_LABEL = re.compile(r"([0-9]{1,12})-([0-9]{1,12})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class RowRange:
    """Data rows [start, stop) of a file, counted from 0 after the header; never empty.

    Raises:
        ValueError: Empty, reversed or negative.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"rows [{self.start}, {self.stop}) are not a range")

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and self.start <= row < self.stop

    @property
    def label(self) -> str:
        """The range as one key segment; labels sort like their ranges: `000000000000-000000002444`."""
        return f"{self.start:012d}-{self.stop:012d}"

    @classmethod
    def parse(cls, label: str) -> Self:
        """What `label` wrote.

        Raises:
            ValueError: Not such a label.
        """
        match = _LABEL.fullmatch(label)
        if match is None:
            raise ValueError(f"{label[:40]!r} is not a row range")
        return cls(int(match[1]), int(match[2]))

    def overlaps(self, other: RowRange) -> bool:
        """Whether any row is in both."""
        return self.start < other.stop and other.start < self.stop


def split(rows: int, parts: int) -> list[RowRange]:
    """Cut `rows` rows into at most `parts` ranges whose lengths differ by one at most; none where there are no rows.

    Raises:
        ValueError: Fewer than 0 rows or 1 part.
    """
    if rows < 0 or parts < 1:
        raise ValueError(f"cannot cut {rows} rows into {parts} parts")
    parts = min(parts, rows)
    edges = [rows * part // parts for part in range(parts + 1)] if parts else []
    return [RowRange(start, stop) for start, stop in pairwise(edges)]


def first_overlap(ranges: Iterable[RowRange]) -> tuple[RowRange, RowRange] | None:
    """Two ranges that share a row, or None."""
    ordered = sorted(ranges)
    for left, right in pairwise(ordered):
        if left.overlaps(right):
            return left, right
    return None


def describe(ranges: Iterable[RowRange]) -> str:
    """Ranges for people, neighbours joined, both ends included: `rows 0 to 2,443 and 4,888 to 7,331`."""
    joined: list[RowRange] = []
    for part in sorted(ranges):
        if joined and part.start <= joined[-1].stop:
            joined[-1] = RowRange(joined[-1].start, max(joined[-1].stop, part.stop))
        else:
            joined.append(part)
    if not joined:
        return "no rows"
    texts = [f"{part.start:,} to {part.stop - 1:,}" for part in joined]
    return "rows " + " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
