"""A unified diff of two texts in bounded time.

Python's difflib is quadratic, on hostile input worse. This is the greedy algorithm of E. W. Myers, "An O(ND) Difference
Algorithm and Its Variations" (1986), given up after a fixed number of steps: what lies between the common beginning and
the common end is then shown as replaced, which is a correct diff, only not the shortest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MAX_STEPS: Final = 400_000
"""Of comparing lines; some 0.1 s of pure Python."""
CONTEXT_LINES: Final = 3
_NO_NEWLINE: Final = "\n\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines `before_start:before_end` of one text give way to `after_start:after_end` of the other."""

    before_start: int
    before_end: int
    after_start: int
    after_end: int


def unified_diff(before: str | None, after: str | None, max_bytes: int) -> tuple[str, bool]:
    """Return a unified diff of at most `max_bytes` of UTF-8, and whether it was cut. None is an absence.

    Lines end with a line feed only: other separators of Unicode are part of a line, as they are for `patch`.
    """
    old, new = _lines(before), _lines(after)
    parts: list[str] = []
    size = 0
    for line in _unified(old, new, before is None, after is None):
        data = line.encode()
        if size + len(data) > max_bytes:
            parts.append(data[: max_bytes - size].decode("utf-8", "ignore"))
            return "".join(parts), True
        size += len(data)
        parts.append(line)
    return "".join(parts), False


def edits(old: Sequence[str], new: Sequence[str], max_steps: int = MAX_STEPS) -> list[Edit]:
    """Return what to replace to make `new` of `old`, in order; the shortest way if it is found in `max_steps`."""
    start = 0
    shared = min(len(old), len(new))
    while start < shared and old[start] == new[start]:
        start += 1
    end = 0
    while end < shared - start and old[-1 - end] == new[-1 - end]:
        end += 1
    # Numbers instead of lines: a hostile pair shares long beginnings, and comparing them would cost each time.
    numbers: dict[str, int] = {}
    left = [numbers.setdefault(line, len(numbers)) for line in old[start : len(old) - end]]
    right = [numbers.setdefault(line, len(numbers)) for line in new[start : len(new) - end]]
    if not left and not right:
        return []
    pairs = _common(left, right, max_steps) if left and right else []
    found: list[Edit] = []
    x = y = 0
    for match_x, match_y in [*(pairs or []), (len(left), len(right))]:
        if match_x > x or match_y > y:
            found.append(Edit(start + x, start + match_x, start + y, start + match_y))
        x, y = match_x + 1, match_y + 1
    return found


def _lines(text: str | None) -> list[str]:
    """Split after each line feed, keeping it."""
    if not text:
        return []
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _common(left: Sequence[int], right: Sequence[int], max_steps: int) -> list[tuple[int, int]] | None:
    """Return matching places of a longest common subsequence; None where `max_steps` did not suffice."""
    n, m = len(left), len(right)
    furthest: dict[int, int] = {1: 0}
    trace: list[dict[int, int]] = []
    steps = 0
    for distance in range(n + m + 1):
        steps += 2 * distance + 1  # the copy kept for the way back, and the diagonals looked at
        if steps > max_steps:
            return None
        trace.append(dict(furthest))
        for diagonal in range(-distance, distance + 1, 2):
            if diagonal == -distance or (
                diagonal != distance and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            ):
                x = furthest[diagonal + 1]
            else:
                x = furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < n and y < m and left[x] == right[y]:
                x, y, steps = x + 1, y + 1, steps + 1
            furthest[diagonal] = x
            if x >= n and y >= m:
                return _way_back(trace, n, m)
    return None


def _way_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trace) - 1, -1, -1):
        furthest = trace[distance]
        diagonal = x - y
        if diagonal == -distance or (
            diagonal != distance and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
        ):
            before = diagonal + 1
        else:
            before = diagonal - 1
        before_x = furthest[before]
        before_y = before_x - before
        while x > before_x and y > before_y:
            x, y = x - 1, y - 1
            if x >= 0 and y >= 0:
                pairs.append((x, y))
        x, y = before_x, before_y
    pairs.reverse()
    return pairs


def _unified(
    old: Sequence[str], new: Sequence[str], absent_before: bool, absent_after: bool
) -> Iterator[str]:
    found = edits(old, new)
    if not found:
        return
    yield f"--- {'/dev/null' if absent_before else 'before'}\n"
    yield f"+++ {'/dev/null' if absent_after else 'after'}\n"
    for hunk in _hunks(found):
        first, last = hunk[0], hunk[-1]
        lead = min(CONTEXT_LINES, first.before_start)
        trail = min(CONTEXT_LINES, len(old) - last.before_end)
        before_range = _range(first.before_start - lead, last.before_end + trail)
        after_range = _range(first.after_start - lead, last.after_end + trail)
        yield f"@@ -{before_range} +{after_range} @@\n"
        at = first.before_start - lead
        for edit in hunk:
            yield from _marked(" ", old[at : edit.before_start])
            yield from _marked("-", old[edit.before_start : edit.before_end])
            yield from _marked("+", new[edit.after_start : edit.after_end])
            at = edit.before_end
        yield from _marked(" ", old[at : at + trail])


def _hunks(found: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Join edits whose contexts touch."""
    hunk: list[Edit] = []
    for edit in found:
        if hunk and edit.before_start - hunk[-1].before_end > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(edit)
    if hunk:
        yield hunk


def _range(start: int, end: int) -> str:
    """Write a range of lines as `diff -u` does: counted from 1, an empty one by the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else mark + line + _NO_NEWLINE
