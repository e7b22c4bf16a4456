"""Charts as inline SVG, drawn by hand: no script, no font, nothing fetched.

A chart has a title and a description for screen readers, takes its colours from CSS variables of the page
(`--ink`, `--muted`, `--grid`, `--bar`, `--minus`), and scales with its column. All text from outside is
escaped here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from typing import Final

_WIDTH: Final = 720
_ROW: Final = 30
_LABEL_CHARACTERS: Final = 22
_COLUMN_HEIGHT: Final = 220
_MAX_COLUMN: Final = 120
_INVALID: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Format = Callable[[Decimal], str]
Draw = Callable[[str, str, str, "Sequence[Bar]", Format], str]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what it stands for and how long it is. Negative bars point the other way, in another colour."""

    label: str
    value: Decimal


def text(value: str) -> str:
    """Text for a page: escaped for elements and attributes, characters that no page may hold replaced."""
    return escape(_INVALID.sub("\N{REPLACEMENT CHARACTER}", value), quote=True)


def columns(chart_id: str, title: str, description: str, bars: Sequence[Bar], show: Format) -> str:
    """Upright bars in the order given, for a course of time.

    Args:
        chart_id: Unique in the page; letters, digits and hyphens.
        title: What is shown.
        description: What can be seen, for who cannot see it.
        bars: The values; with many of them, only some are labelled.
        show: How a value is written.
    """
    top, bottom, left = 28, 34, 8
    low, high = _span(bars)
    scale = _COLUMN_HEIGHT / (high - low)
    zero = top + high * scale
    slot = (_WIDTH - 2 * left) / max(len(bars), 1)
    width = min(slot * 0.7, _MAX_COLUMN)
    # Labels need some 80 units each; with more bars than that allows, every n-th is labelled.
    every = max(1, -(-len(bars) * 80 // (_WIDTH - 2 * left)))
    drawn: list[str] = []
    for place, bar in enumerate(bars):
        middle = left + slot * (place + 0.5)
        height = abs(float(bar.value)) * scale
        y = zero - height if bar.value >= 0 else zero
        drawn.append(_rect(middle - width / 2, y, width, height, bar, show))
        if place % every == 0:
            above = y - 8 if bar.value >= 0 else y + height + 16
            drawn.append(_label(middle, above, show(bar.value), "value", "middle"))
            drawn.append(
                _label(middle, top + _COLUMN_HEIGHT + bottom - 8, _short(bar.label), "name", "middle")
            )
    axis = f'<line class="axis" x1="{left}" y1="{zero:.1f}" x2="{_WIDTH - left}" y2="{zero:.1f}"/>'
    return _svg(chart_id, title, description, top + _COLUMN_HEIGHT + bottom, [*drawn, axis])


def rows(chart_id: str, title: str, description: str, bars: Sequence[Bar], show: Format) -> str:
    """Lying bars in the order given, for a ranking: the name on the left, the value at the end of the bar.

    Args:
        chart_id: Unique in the page; letters, digits and hyphens.
        title: What is shown.
        description: What can be seen, for who cannot see it.
        bars: The values.
        show: How a value is written.
    """
    names, values = 180, 110
    low, high = _span(bars)
    # Negative bars need room on the left of the zero line for their value as well.
    start = names + (values if low < 0 else 0)
    scale = (_WIDTH - start - values) / (high - low)
    zero = start - low * scale
    drawn: list[str] = []
    for place, bar in enumerate(bars):
        y = place * _ROW + 4
        length = abs(float(bar.value)) * scale
        x = zero if bar.value >= 0 else zero - length
        drawn.append(_label(names - 10, y + 16, _short(bar.label), "name", "end"))
        drawn.append(_rect(x, y, length, _ROW - 8, bar, show))
        beside, anchor = (x + length + 8, "start") if bar.value >= 0 else (x - 8, "end")
        drawn.append(_label(beside, y + 16, show(bar.value), "value", anchor))
    height = max(len(bars), 1) * _ROW + 4
    axis = f'<line class="axis" x1="{zero:.1f}" y1="0" x2="{zero:.1f}" y2="{height}"/>'
    return _svg(chart_id, title, description, height, [*drawn, axis])


def _span(bars: Sequence[Bar]) -> tuple[float, float]:
    """The lowest and highest value, zero included and never equal. Floats will do for drawing."""
    values = [0.0, *(float(bar.value) for bar in bars)]
    low, high = min(values), max(values)
    return (low, high) if low < high else (0.0, 1.0)


def _short(label: str) -> str:
    label = label or "(none)"
    return label if len(label) <= _LABEL_CHARACTERS else label[: _LABEL_CHARACTERS - 1] + "…"


def _rect(x: float, y: float, width: float, height: float, bar: Bar, show: Format) -> str:
    kind = "bar" if bar.value >= 0 else "bar minus"
    tip = text(f"{bar.label or '(none)'}: {show(bar.value)}")
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" '
        f'height="{max(height, 0.5):.1f}" rx="2"><title>{tip}</title></rect>'
    )


def _label(x: float, y: float, content: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(content)}</text>'


def _svg(chart_id: str, title: str, description: str, height: float, body: Sequence[str]) -> str:
    if re.fullmatch(r"[a-z][a-z0-9-]*", chart_id, re.ASCII) is None:
        raise ValueError(f"{chart_id!r} is not an id")
    lines = "\n".join(body)
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'aria-labelledby="{chart_id}-title {chart_id}-desc">\n'
        f'<title id="{chart_id}-title">{text(title)}</title>\n'
        f'<desc id="{chart_id}-desc">{text(description)}</desc>\n'
        f"{lines}\n</svg>"
    )
