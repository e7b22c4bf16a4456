"""The report as text and as a page: complete, escaped, self-contained, readable without its charts."""

import io
import re
from decimal import Decimal
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from agents_demo import charts, report
from agents_demo.aggregate import Figures
from agents_demo.charts import Bar
from agents_demo.html_report import html_page
from agents_demo.report import LineageStep, TakeOver, TeamStats, plain_text, print_report, printable
from agents_demo.weekly import Row, WeeklyReport

EVIL = "</title><script>alert('x')</script>\"&\x1b[2J\x00"
TEAM = TeamStats(
    workers=4,
    commits=57,
    conflicts_met=6,
    conflicts_merged=5,
    takeovers=(TakeOver("aggregate/3", "worker-2", "worker-4"),),
    figure="net revenue of 2011-W06",
    lineage=(
        LineageStep(0, "report/weekly", 9, "worker-1", "rows 0 to 12,219"),
        LineageStep(1, "partial/000000000000-000000003055", 1, "worker-3", "rows 0 to 3,054"),
    ),
)


def _report(*countries: tuple[str, str], weeks: int = 2, source: str = "orders.csv") -> WeeklyReport:
    rows = tuple(
        Row(name, Figures(10, 1, 2, Decimal(5), Decimal(-1), Decimal(net), Decimal(-10)))
        for name, net in countries
    )
    total = sum((row.figures for row in rows), Figures())
    week_rows = tuple(Row(f"2011-W{week:02d}", total) for week in range(1, weeks + 1))
    return WeeklyReport(source, total.lines + 3, 3, total, week_rows, rows)


USUAL = _report(("United Kingdom", "200000"), ("EIRE", "7000"), ("France", "3000"))


class _Page(HTMLParser):
    """Checks nesting, and gathers texts, tags and attributes."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "line", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_plain_text_holds_figures_and_what_the_board_did() -> None:
    """Everything a reader without a browser needs."""
    text = plain_text(USUAL, TEAM, "All is well.")
    assert text.startswith("Weekly report: orders.csv, 2011-W01 to 2011-W02\n\nAll is well.\n")
    for said in ("United Kingdom", "199,990.00", "conflicts merged", "worker-4", "rows 0 to 3,054"):
        assert said in text
    assert not re.search(r"[^\x20-\x7e\n·]", text)
    assert all(line == line.rstrip() for line in text.split("\n"))


def test_without_a_team_nothing_is_said_about_one() -> None:
    """The pure half can report by itself."""
    assert "board" not in plain_text(USUAL, None, "")
    assert "board did" not in html_page(USUAL, None, "")


def test_countries_beyond_the_top_are_summed_up() -> None:
    """So that the table's lines still add up to all lines."""
    many = _report(*((f"Country {place:02d}", str(1000 - place)) for place in range(15)))
    countries = report.tables(many, None)[1]
    assert len(countries.rows) == report.TOP_COUNTRIES + 1
    assert countries.rows[-1][:2] == ("5 others", "50")


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    """Escape sequences, and marks that turn the direction of writing."""
    text = plain_text(_report((EVIL, "1"), ("a\u202eb", "2"), source=EVIL), None, EVIL)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert printable("a\x1b[31m\nb") == "a?[31m?b"


def test_a_pipe_gets_plain_text_and_a_terminal_gets_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by the stream, and rich markup in names stays text."""
    pipe, screen = io.StringIO(), io.StringIO()
    print_report(USUAL, TEAM, "All is well.", pipe)
    assert pipe.getvalue() == plain_text(USUAL, TEAM, "All is well.")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    print_report(_report(("[bold]France[/bold]", "3")), TEAM, "All [red]well[/red].", screen)
    assert "\x1b[" in screen.getvalue()
    assert "[bold]France[/bold]" in screen.getvalue()
    assert "All [red]well[/red]." in screen.getvalue()
    assert Console(file=pipe).is_terminal is False


def test_a_stream_that_cannot_show_a_name_gets_a_question_mark() -> None:
    """A demo must not fail at its last step because of a terminal's encoding, or a file name that is not UTF-8."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_report(_report(("Österreich", "3"), source="\udcff.csv"), None, "", stream)
    assert b"?sterreich" in raw.getvalue()
    stream.close()


@pytest.mark.parametrize("team", [None, TEAM])
def test_a_page_is_well_formed_and_fetches_nothing(team: TeamStats | None) -> None:
    """No script, no link, no address; and it forbids itself the rest."""
    page = html_page(USUAL, team, "All is well.", summary_note="Worded by the template.")
    parsed = _Page(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(parsed.tags)
    assert not {"src", "href", "style", "xlink:href"} & {name for name, _ in parsed.attributes}
    assert "url(" not in page
    assert "@import" not in page
    assert "://" not in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_each_chart_has_a_title_and_a_description_and_its_figures_as_text() -> None:
    """For who cannot see it."""
    page = html_page(USUAL, TEAM, "")
    drawings = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    assert len(drawings) == 3
    for drawing in drawings:
        title, description = drawing[0], drawing[1]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text
        assert description.text
        assert drawing.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert drawing.get("role") == "img"


def test_everything_from_outside_is_escaped_on_the_page() -> None:
    """File name, countries, summary, keys and principals alike."""
    team = TeamStats(
        1,
        1,
        1,
        1,
        (TakeOver(EVIL, EVIL, EVIL),),
        EVIL,
        (LineageStep(0, EVIL, 1, EVIL, EVIL),),
    )
    bad = _report((EVIL, "9"), (EVIL + "2", "8"), source=EVIL)
    page = html_page(bad, team, EVIL, summary_note=EVIL, language=EVIL)
    parsed = _Page(page)
    assert "script" not in parsed.tags
    assert "\x1b" not in page
    assert "\x00" not in page
    assert page.count("&lt;script&gt;") >= 10


def test_a_country_that_dwarfs_the_others_is_said_in_words() -> None:
    """Or their bars could not be told apart; the table still lists it first."""
    page = html_page(USUAL, None, "")
    assert "United Kingdom alone makes 199,990.00, 95.2 % of the net revenue" in page
    drawn = re.findall(r'<text class="name"[^>]*>([^<]*)<', page)
    assert "EIRE" in drawn
    assert "United Kingdom" not in drawn
    even = html_page(_report(("EIRE", "7000"), ("France", "6000")), None, "")
    assert "alone makes" not in even


@pytest.mark.parametrize("draw", [charts.columns, charts.rows])
@pytest.mark.parametrize(
    "values", [[], ["0"], ["5"], ["-5"], ["-5", "0", "7"], ["1e15", "-1e-12"], [str(n) for n in range(60)]]
)
def test_charts_stay_inside_their_frame(draw: charts.Draw, values: list[str]) -> None:
    """No bars, only zeros, losses, very different sizes, a year of weeks."""
    svg = draw("some", "Title", "Words", [Bar(f"bar {value}", Decimal(value)) for value in values], str)
    drawing = ET.fromstring(svg)
    _, _, width, height = (float(part) for part in (drawing.get("viewBox") or "").split())
    rects = drawing.findall("rect")
    assert len(rects) == len(values)
    for rect in rects:
        x, y, w, h = (float(rect.get(name) or "nan") for name in ("x", "y", "width", "height"))
        assert x >= 0 <= y
        assert w > 0 < h
        assert x + w <= width + 1
        assert y + h <= height + 1


def test_a_report_without_lines_is_still_a_report() -> None:
    """A file with a header alone."""
    nothing = WeeklyReport("empty.csv", 0, 0, Figures(), (), ())
    assert "no weeks" in plain_text(nothing, None, "")
    _Page(html_page(nothing, None, ""))


def test_the_same_report_gives_the_same_page() -> None:
    """Nothing in it depends on the hour or the machine."""
    assert html_page(USUAL, TEAM, "x") == html_page(USUAL, TEAM, "x")
