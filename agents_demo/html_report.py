"""The weekly report as one HTML page: charts inline, nothing fetched, light and dark, readable without its charts.

The page forbids itself every outside resource (Content-Security-Policy), has no script, and escapes all it
is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from agents_demo import charts, money
from agents_demo.charts import Bar, text
from agents_demo.report import TOP_COUNTRIES, Table, TeamStats, headline, tables
from agents_demo.weekly import Row, WeeklyReport

_DWARFS: Final = Decimal(4)
"""A country with more than this many times the revenue of the next is said in words, or no other bar could be seen."""

_STYLE: Final = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1c1f23; --muted: #565d66;
  --grid: #d9dce0; --bar: #2166a5; --minus: #b3402b; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1d2125; --ink: #eceff1;
  --muted: #a9b1ba; --grid: #3a4047; --bar: #6cb0ee; --minus: #f08d77; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 0 0 .75rem; }
.summary { font-size: 1.05rem; max-width: 46rem; } .muted, footer { color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0; padding: 0; }
.tiles div, section { background: var(--card); border: 1px solid var(--grid); border-radius: .5rem; }
.tiles div { padding: .75rem 1rem; } .tiles dt { color: var(--muted); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
section { padding: 1rem 1.25rem; margin: 1rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .35rem .6rem; text-align: left; border-bottom: 1px solid var(--grid); }
thead th { color: var(--muted); font-weight: 600; } tbody th { font-weight: 400; }
.number { text-align: right; white-space: nowrap; } tfoot th, tfoot td { font-weight: 600; border-bottom: 0; }
.chart { display: block; width: 100%; height: auto; } .chart + .scroll { margin-top: 1rem; } .chart text { fill: var(--ink); font-size: 14px; }
.chart .name { fill: var(--muted); } .chart .bar { fill: var(--bar); } .chart .minus { fill: var(--minus); }
.chart .axis { stroke: var(--muted); stroke-width: 1; }
@media print { section, .tiles div { break-inside: avoid; } }
"""


def html_page(
    report: WeeklyReport,
    team: TeamStats | None,
    summary: str,
    *,
    summary_note: str = "",
    language: str = "en",
) -> str:
    """The whole page; the same input gives the same bytes.

    Args:
        report: The figures.
        team: What the board did; its sections are left out where it is None.
        summary: The paragraph under the heading.
        summary_note: Who worded it, in small print.
        language: Language of the page, for screen readers.
    """
    weeks, countries, *others = tables(report, team)
    sections = [
        _section("Revenue by ISO week", _week_chart(report), _table(weeks)),
        _section("Revenue by country", _country_chart(report), _table(countries)),
        _section("Cancellations", _cancellation_chart(report)),
        *(_section(table.title, _table(table)) for table in others),
    ]
    body = "\n".join(sections)
    note = f'<p class="muted">{text(summary_note)}</p>\n' if summary_note else ""
    return f"""<!DOCTYPE html>
<html lang="{text(language)}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(headline(report))}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{text(headline(report))}</h1>
<p class="summary">{text(summary)}</p>
{note}{_tiles(report, team)}
{body}
<footer>Amounts are in the currency of the file and were added exactly; they are rounded only here.</footer>
</main>
</body>
</html>
"""


def _tiles(report: WeeklyReport, team: TeamStats | None) -> str:
    shown = [
        ("net revenue", money.show(report.total.net)),
        ("order lines", f"{report.lines:,}"),
        ("duplicates left out", f"{report.duplicates:,}"),
        ("cancellation lines", f"{report.cancellations:,}"),
    ]
    if team is not None:
        shown.append(("conflicts merged", f"{team.conflicts_merged:,}"))
    tiles = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in shown)
    return f'<dl class="tiles">{tiles}</dl>'


def _week_chart(report: WeeklyReport) -> str:
    bars = [Bar(row.name, row.figures.net) for row in report.weeks]
    best = max(report.weeks, key=lambda row: row.figures.net, default=None)
    said = "No weeks." if best is None else f"Highest: {best.name} with {money.show(best.figures.net)}."
    description = f"One bar for each of {len(bars)} ISO weeks. {said}"
    return charts.columns("weeks", "Net revenue by ISO week", description, bars, money.show)


def _country_chart(report: WeeklyReport) -> str:
    shown, caption = _comparable(report.countries[:TOP_COUNTRIES], report.total.net)
    bars = [Bar(row.name, row.figures.net) for row in shown]
    listed = "; ".join(f"{row.name or '(none)'} {money.show(row.figures.net)}" for row in shown[:3])
    description = f"{len(bars)} countries, the highest first: {listed}." if bars else "No countries."
    chart = charts.rows("countries", "Net revenue by country", description, bars, money.show)
    return (f"<p>{text(caption)}</p>\n" if caption else "") + chart


def _comparable(rows: Sequence[Row], net: Decimal) -> tuple[Sequence[Row], str]:
    """Rows that can share a scale, and words for the one that would dwarf them."""
    if len(rows) < 2 or rows[0].figures.net <= _DWARFS * abs(rows[1].figures.net):
        return rows, ""
    first = rows[0]
    share = money.show_percent(money.ratio(first.figures.net, net))
    return rows[1:], (
        f"{first.name or '(none)'} alone makes {money.show(first.figures.net)}, {share} of the net revenue; "
        "the chart compares the countries after it."
    )


def _cancellation_chart(report: WeeklyReport) -> str:
    bars = [Bar(row.name, row.figures.cancelled_share) for row in report.weeks]
    whole = money.show_percent(report.total.cancelled_share)
    description = f"Cancelled value as a share of gross sales in each week; {whole} over all weeks."
    chart = charts.rows("cancellations", "Cancellations by ISO week", description, bars, money.show_percent)
    return f"<p>{text(description)}</p>\n{chart}"


def _section(title: str, *parts: str) -> str:
    body = "\n".join(parts)
    return f"<section>\n<h2>{text(title)}</h2>\n{body}\n</section>"


def _table(table: Table) -> str:
    head = "".join(_cell("th", table, place, cell, "col") for place, cell in enumerate(table.columns))
    body = "\n".join(_table_row(table, row) for row in table.rows)
    foot = f"<tfoot>{_table_row(table, table.foot)}</tfoot>\n" if table.foot is not None else ""
    # Reachable by keyboard, because a wide table scrolls inside its section.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(table.title)}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n{foot}</table></div>"
    )


def _table_row(table: Table, row: Sequence[str]) -> str:
    cells = [_cell("td" if place else "th", table, place, cell, "row") for place, cell in enumerate(row)]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, table: Table, place: int, content: str, scope: str) -> str:
    kind = ' class="number"' if place >= table.texts else ""
    scoped = f' scope="{scope}"' if tag == "th" else ""
    return f"<{tag}{kind}{scoped}>{text(content)}</{tag}>"
