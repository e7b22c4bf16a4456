"""Reading order lines: what is accepted, and that every refusal names its line and column."""

import gzip
import pickle
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents_demo import money, orders, rows
from agents_demo.orders import MalformedOrders, OrderLine, RawRow
from agents_demo.rows import RowRange

HEADER = ",".join(orders.COLUMNS)
GOOD = "543272,82494L,WOODEN FRAME ,6,2011-02-06 11:11:00,2.95,14810.0,United Kingdom"


def _read(*lines: str) -> list[OrderLine]:
    data = "\n".join(lines).encode() + b"\n"
    return [orders.parse_row(raw) for raw in orders.raw_rows(data.splitlines(keepends=True))]


def _refusal(*lines: str) -> MalformedOrders:
    with pytest.raises(MalformedOrders) as caught:
        _read(*lines)
    return caught.value


def test_a_line_is_read_as_it_stands() -> None:
    """Texts keep their spaces, numbers are decimals, the time has no offset."""
    (line,) = _read(HEADER, GOOD)
    assert line == OrderLine(
        0,
        "543272",
        "82494L",
        "WOODEN FRAME ",
        Decimal(6),
        datetime(2011, 2, 6, 11, 11),  # noqa: DTZ001  # the file's times are naive by definition
        Decimal("2.95"),
        "14810.0",
        "United Kingdom",
    )
    assert line.amount == Decimal("17.70")
    assert line.week == "2011-W05"


def test_columns_may_stand_in_any_order_among_others() -> None:
    """A file saved by another program with an index column is still the same data."""
    header, good = HEADER.split(","), GOOD.split(",")
    assert _read(",".join(["", *header[::-1]]), ",".join(["7", *good[::-1]])) == _read(HEADER, GOOD)


def test_a_week_belongs_to_its_iso_year() -> None:
    """1 January 2011 was a Saturday of the last week of 2010."""
    (line,) = _read(HEADER, GOOD.replace("2011-02-06", "2011-01-01"))
    assert line.week == "2010-W52"


def test_blank_lines_are_no_rows_and_a_byte_order_mark_is_no_text() -> None:
    """Neither shifts the positions that entries record."""
    assert [line.row for line in _read("\ufeff" + HEADER, "", GOOD, "", GOOD)] == [0, 1]


@pytest.mark.parametrize("name", orders.COLUMNS)
def test_a_missing_column_is_named(name: str) -> None:
    """Each of the eight."""
    refusal = _refusal(HEADER.replace(name, "Other"), GOOD)
    assert (refusal.line, refusal.column) == (1, name)
    assert name in refusal.problem


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        (",6,", ",six,", "Quantity"),
        (",6,", ",,", "Quantity"),
        (",6,", ",NaN,", "Quantity"),
        (",6,", ",Infinity,", "Quantity"),
        (",6,", ",1_000,", "Quantity"),
        (",6,", ",\u0666,", "Quantity"),
        (",6,", ",1e99,", "Quantity"),
        (",6,", "," + "9" * 70 + ",", "Quantity"),
        ("2.95", "2.9.5", "UnitPrice"),
        ("2.95", "1e-13", "UnitPrice"),
        ("2011-02-06 11:11:00", "12/1/2010 8:26", "InvoiceDate"),
        ("2011-02-06 11:11:00", "2011-02-30 11:11:00", "InvoiceDate"),
        ("2011-02-06 11:11:00", "2011-02-06 11:11:00+01:00", "InvoiceDate"),
        ("2011-02-06 11:11:00", "2011-W05-7 11:11", "InvoiceDate"),
        ("543272", "", "InvoiceNo"),
        ("United Kingdom", "United\x1b[2JKingdom", "Country"),
    ],
)
def test_a_bad_field_is_named_by_line_and_column(old: str, new: str, column: str) -> None:
    """The line is that of the file, the header included, so that an editor finds it."""
    refusal = _refusal(HEADER, GOOD, GOOD.replace(old, new))
    assert (refusal.line, refusal.column) == (3, column)
    assert str(refusal).startswith(f"line 3, column {column}: ")
    assert len(str(refusal)) < 250


def test_the_line_of_a_row_counts_line_ends_inside_quotes() -> None:
    """A description over three lines moves what follows."""
    quoted = GOOD.replace("WOODEN FRAME ", '"a\nb\nc"')
    assert _refusal(HEADER, quoted, GOOD.replace(",6,", ",x,")).line == 5


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        ((), 1, "empty"),
        ((HEADER, GOOD, GOOD + ",extra"), 3, "9 fields where the header has 8"),
        ((HEADER, GOOD, "543272,82494L"), 3, "2 fields"),
        ((HEADER, GOOD.replace("WOODEN FRAME ", '"never closed')), 2, "not CSV"),
        ((HEADER + ",Country", GOOD + ",x"), 1, "twice"),
        ((HEADER, GOOD, "x" * 70_000), 3, "longer than 65536 bytes"),
    ],
)
def test_a_line_of_another_shape_is_refused(lines: tuple[str, ...], line: int, said: str) -> None:
    """Rather than read with its fields shifted."""
    refusal = _refusal(*lines)
    assert refusal.line == line
    assert said in refusal.problem


def test_another_encoding_is_named_by_line() -> None:
    """Files of this data set are often found in Windows-1252, with pound signs."""
    with pytest.raises(MalformedOrders, match="line 2: byte 3 is not UTF-8"):
        list(orders.raw_rows([HEADER.encode() + b"\n", b"12\xa3\n"]))


def test_a_refusal_survives_the_way_between_processes() -> None:
    """Workers hand it to their parent."""
    refusal = pickle.loads(pickle.dumps(MalformedOrders(3, "Quantity", "is wrong")))
    assert str(refusal) == "line 3, column Quantity: is wrong"


def test_gzip_and_plain_files_read_alike_whatever_their_name(tmp_path: Path) -> None:
    """The first bytes tell, not the suffix; the digest is that of the content."""
    content = f"{HEADER}\n{GOOD}\n".encode()
    plain, packed = tmp_path / "plain.csv.gz", tmp_path / "packed.csv"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert list(orders.read_orders(plain)) == list(orders.read_orders(packed)) == _read(HEADER, GOOD)
    assert orders.content_digest(plain) == orders.content_digest(packed)


@pytest.mark.parametrize("cut", [5, 20, -8, -1])
def test_a_cut_off_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    """Not read as a shorter file."""
    packed = tmp_path / "orders.csv.gz"
    packed.write_bytes(gzip.compress(f"{HEADER}\n{GOOD}\n".encode())[:cut])
    with pytest.raises(MalformedOrders, match="damaged"):
        orders.count_rows(packed)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    """One flipped byte in the compressed data."""
    data = bytearray(gzip.compress(f"{HEADER}\n{GOOD}\n".encode()))
    data[14] ^= 0xFF
    (tmp_path / "orders.csv.gz").write_bytes(data)
    with pytest.raises(MalformedOrders):
        orders.count_rows(tmp_path / "orders.csv.gz")


def test_a_missing_file_is_the_systems_own_error(tmp_path: Path) -> None:
    """It already says which file."""
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        orders.count_rows(tmp_path / "nowhere.csv")


def test_a_range_reads_the_rows_it_names(tmp_path: Path) -> None:
    """Positions are those of the whole file, and bad rows elsewhere are another worker's matter."""
    path = tmp_path / "orders.csv"
    bad = GOOD.replace(",6,", ",x,")
    path.write_text("\n".join([HEADER, bad, GOOD, GOOD, bad]), encoding="utf-8")
    assert [line.row for line in orders.read_orders(path, RowRange(1, 3))] == [1, 2]
    assert orders.count_rows(path) == 4


def test_raw_rows_are_read_lazily() -> None:
    """A large file never stands in memory whole."""

    def lines() -> Iterator[bytes]:
        yield HEADER.encode() + b"\n"
        yield GOOD.encode() + b"\n"
        raise AssertionError("read too far")

    assert next(orders.raw_rows(lines())) == RawRow(0, 2, tuple(GOOD.split(",")))


@given(st.integers(0, 5_000), st.integers(1, 60))
def test_ranges_cover_every_row_once(count: int, parts: int) -> None:
    """And differ by one row at most."""
    cut = rows.split(count, parts)
    assert [row for part in cut for row in range(part.start, part.stop)] == list(range(count))
    assert len(cut) == min(count, parts)
    assert len({len(part) for part in cut}) <= 2
    assert [RowRange.parse(part.label) for part in cut] == cut == sorted(cut, key=lambda part: part.label)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 2), (-1, 2)])
def test_an_empty_or_reversed_range_is_refused(start: int, stop: int) -> None:
    """A range of no rows would be a task without work."""
    with pytest.raises(ValueError, match="not a range"):
        RowRange(start, stop)


@pytest.mark.parametrize("label", ["", "1", "1-", "a-b", "-1-2", "1-2-3", "\u0661-\u0662", "2-1"])
def test_a_label_of_another_shape_is_refused(label: str) -> None:
    """Labels come off the board."""
    with pytest.raises(ValueError, match="range"):
        RowRange.parse(label)


def test_ranges_are_described_with_neighbours_joined() -> None:
    """Both ends included, as people count."""
    described = rows.describe([RowRange(2000, 3000), RowRange(0, 10), RowRange(10, 1000)])
    assert described == "rows 0 to 999 and 2,000 to 2,999"
    assert rows.describe([]) == "no rows"


decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**14), max_value=10**14, places=6)


@given(decimals, decimals)
def test_amounts_are_exact_and_spelled_one_way(left: Decimal, right: Decimal) -> None:
    """Also where the product needs more digits than Python's default context keeps."""
    product = money.multiply(left, right)
    assert product == Decimal(int(left * 10**6) * int(right * 10**6)).scaleb(-12, money._EXACT)
    assert money.from_text(money.to_text(product)) == product
    assert money.to_text(money.add(product, Decimal("0.000"))) == money.to_text(product)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("235481.8", "235,481.80"), ("0.005", "0.01"), ("-0.005", "-0.01"), ("-0.001", "0.00"), ("-0", "0.00")],
)
def test_amounts_are_shown_at_two_decimals(value: str, shown: str) -> None:
    """Halves away from zero, and never a minus zero."""
    assert money.show(Decimal(value)) == shown


@pytest.mark.parametrize("text", ["", "1e5", "NaN", "1.", "+1", " 1", "9" * 51, "--1"])
def test_an_amount_of_another_spelling_is_refused(text: str) -> None:
    """Amounts come off the board as text."""
    with pytest.raises(ValueError, match="not an amount"):
        money.from_text(text)
