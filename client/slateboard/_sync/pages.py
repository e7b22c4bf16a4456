# Made from _async/pages.py by tools/async_to_sync.py; do not edit.
"""Lists that come in pages."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Pages(Generic[T]):
    """Iterates over a list, fetching page after page as it is read; one page is held at a time.

    A list of entries shows one revision throughout: that of its first page.
    """

    def __init__(self, fetch: Callable[[str], tuple[Sequence[T], str, int]]) -> None:
        self._fetch = fetch
        self._items: Sequence[T] = ()
        self._at = 0
        self._token = ""
        self._begun = False
        self.revision = 0
        """The revision shown; 0 before the first page was fetched."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while self._at >= len(self._items):
            if self._begun and not self._token:
                raise StopIteration
            # A page may be empty and still not be the last: filters work after the page was cut.
            self._items, self._token, self.revision = self._fetch(self._token)
            self._begun, self._at = True, 0
        item = self._items[self._at]
        self._at += 1
        return item

    def all(self) -> list[T]:
        """The rest of the list at once."""
        items: list[T] = []
        for item in self:
            items += [item]
        return items
