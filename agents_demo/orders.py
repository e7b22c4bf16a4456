"""Order lines out of a CSV file, one at a time, with errors that name line and column.

The shape is that of the Online Retail data set: a header with the eight names of `COLUMNS` in any order
(others are ignored), UTF-8, comma separated. A row is read in two steps, because most of the team need only
the first: `raw_rows` gives the eight texts as they stand (enough to find duplicates), `parse_row` makes an
`OrderLine` of them.

Times have no offset and are taken as they stand: local time of the shop. A week is the ISO week of that date.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Final

from agents_demo import money
from agents_demo.rows import RowRange

COLUMNS: Final = (
    "InvoiceNo",
    "StockCode",
    "Description",
    "Quantity",
    "InvoiceDate",
    "UnitPrice",
    "CustomerID",
    "Country",
)
"""The columns a file must have, in the order of `RawRow.fields`."""

BUNDLED: Final = Path(__file__).parent / "data" / "online_retail_2011_02.csv.gz"
"""The data that comes with the demo; `data/README.md` says what it is and whom to cite."""

MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line is not a line of orders; reading stops there instead of filling the memory."""

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2})?", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHOWN: Final = 40


class MalformedOrders(ValueError):
    """The file is not of the shape above. `line` counts from 1, header included; `column` is None for a whole line."""

    def __init__(self, line: int, column: str | None, problem: str) -> None:
        self.line = line
        self.column = column
        self.problem = problem
        where = f"line {line}" if column is None else f"line {line}, column {column}"
        super().__init__(f"{where}: {problem}")

    def __reduce__(self) -> tuple[type[MalformedOrders], tuple[int, str | None, str]]:
        # Crosses process borders; an exception is otherwise rebuilt from its message alone.
        return type(self), (self.line, self.column, self.problem)


@dataclass(frozen=True, slots=True)
class RawRow:
    """One data row as it stands in the file."""

    row: int
    """Position among the data rows, from 0; blank lines are no rows."""
    line: int
    """Line of the file on which the row starts, from 1, header included."""
    fields: tuple[str, ...]
    """Eight texts in the order of `COLUMNS`."""


@dataclass(frozen=True, slots=True)
class OrderLine:
    """One line of one invoice."""

    row: int
    """Position among the data rows of the file, from 0."""
    invoice_no: str
    """Begins with C where the line cancels an earlier one."""
    stock_code: str
    description: str
    """May be empty."""
    quantity: Decimal
    """Units; negative where goods came back."""
    invoice_date: datetime
    """Naive, as it stands in the file."""
    unit_price: Decimal
    """In the currency of the file."""
    customer_id: str
    """Empty where the customer is not known."""
    country: str

    @property
    def amount(self) -> Decimal:
        """Quantity x unit price, exact."""
        return money.multiply(self.quantity, self.unit_price)

    @property
    def week(self) -> str:
        """ISO year and week of the invoice date: `2011-W06`."""
        year, week, _ = self.invoice_date.isocalendar()
        return f"{year:04d}-W{week:02d}"


def raw_rows(lines: Iterable[bytes]) -> Iterator[RawRow]:
    """Rows out of the lines of a file (each with its line end), read lazily.

    Raises:
        MalformedOrders: While iterating: no header, a column missing or named twice, a row of another width, not
            UTF-8, broken quoting, an overlong line.
    """
    records = _records(lines)
    line, header = next(records, (1, []))
    if not header:
        raise MalformedOrders(1, None, f"the file is empty; expected a header with {', '.join(COLUMNS)}")
    places = _places(line, header)
    for row, (line, texts) in enumerate(records):
        if len(texts) != len(header):
            raise MalformedOrders(line, None, f"{len(texts)} fields where the header has {len(header)}")
        yield RawRow(row, line, tuple(texts[place] for place in places))


def parse_row(raw: RawRow) -> OrderLine:
    """The order line in a row. Texts stay as they are, spaces included.

    Raises:
        MalformedOrders: An invoice number is empty, a quantity or price is no number, a date is no
            `YYYY-MM-DD HH:MM[:SS]`, or a control character stands in the invoice number or country.
    """
    invoice_no, stock_code, description, quantity, date, price, customer_id, country = raw.fields
    if not invoice_no:
        raise MalformedOrders(raw.line, "InvoiceNo", "is empty")
    for column, text in (("InvoiceNo", invoice_no), ("Country", country)):
        if _CONTROL.search(text) is not None:
            raise MalformedOrders(raw.line, column, f"{_shown(text)} has a control character")
    return OrderLine(
        row=raw.row,
        invoice_no=invoice_no,
        stock_code=stock_code,
        description=description,
        quantity=_number(raw.line, "Quantity", quantity),
        invoice_date=_date(raw.line, date),
        unit_price=_number(raw.line, "UnitPrice", price),
        customer_id=customer_id,
        country=country,
    )


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES:
            raise MalformedOrders(number, None, f"longer than {MAX_LINE_BYTES} bytes")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            problem = f"byte {error.start + 1} is not UTF-8; convert the file first"
            raise MalformedOrders(number, None, problem) from None


def _records(lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Records that are not blank, each with the line it starts on: a quoted field may hold line ends."""
    reader = csv.reader(_decoded(lines), strict=True)
    line = 1
    try:
        for texts in reader:
            if texts:
                yield line, texts
            line = reader.line_num + 1
    except csv.Error as error:
        raise MalformedOrders(line, None, f"not CSV: {error}") from None


def _places(line: int, header: list[str]) -> list[int]:
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        problem = f"the header lacks {', '.join(missing)}; it has {_shown(', '.join(header))}"
        raise MalformedOrders(line, missing[0], problem)
    for name in COLUMNS:
        if header.count(name) > 1:
            raise MalformedOrders(line, name, "the header names it twice")
    return [header.index(name) for name in COLUMNS]


def _number(line: int, column: str, text: str) -> Decimal:
    try:
        return money.parse(text)
    except ValueError as error:
        raise MalformedOrders(line, column, f"{_shown(text)} {error}") from None


def _date(line: int, text: str) -> datetime:
    problem = f"{_shown(text)} is not a date of the form YYYY-MM-DD HH:MM:SS"
    if _DATE.fullmatch(text) is None:
        raise MalformedOrders(line, "InvoiceDate", problem)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise MalformedOrders(line, "InvoiceDate", f"{problem}: {error}") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


# From here on: the file itself.


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file, plain or gzip (told by its first bytes, not its name), closed at the end of the block.

    Raises:
        OSError: It cannot be opened or read.
        MalformedOrders: While iterating: the compressed data is cut off or damaged.
    """
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=plain, mode="rb") as unpacked:
                yield _lines(unpacked)
        else:
            yield _lines(plain)


def _lines(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    number = 1
    try:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            number += 1
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise MalformedOrders(number, None, f"the compressed file is damaged: {error}") from None


def read_raw(path: Path, rows: RowRange | None = None) -> Iterator[RawRow]:
    """Rows of a file, or only those of a range; rows before the range are passed over, not parsed.

    Raises:
        OSError: It cannot be opened or read.
        MalformedOrders: While iterating, as `raw_rows`.
    """
    with open_lines(path) as lines:
        for raw in raw_rows(lines):
            if rows is not None and raw.row >= rows.stop:
                return
            if rows is None or raw.row >= rows.start:
                yield raw


def read_orders(path: Path, rows: RowRange | None = None) -> Iterator[OrderLine]:
    """Order lines of a file, or only those of a range.

    Raises:
        OSError: It cannot be opened or read.
        MalformedOrders: While iterating, as `raw_rows` and `parse_row`.
    """
    return map(parse_row, read_raw(path, rows))


def count_rows(path: Path) -> int:
    """How many data rows a file has.

    Raises:
        OSError: It cannot be opened or read.
        MalformedOrders: As `raw_rows`.
    """
    return sum(1 for _ in read_raw(path))


def content_digest(path: Path) -> str:
    """SHA-256 (hex) of the uncompressed content, by which workers see that they all read the same file.

    Raises:
        OSError: It cannot be opened or read.
        MalformedOrders: The compressed data is damaged.
    """
    digest = hashlib.sha256()
    with open_lines(path) as lines:
        for line in lines:
            digest.update(line)
    return digest.hexdigest()
