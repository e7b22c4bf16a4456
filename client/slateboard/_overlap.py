"""Decides how an update goes on after somebody else was faster. Pure."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slateboard import _values
from slateboard._entries import Entry
from slateboard._merge import ABSENT, at, changes, merge, same
from slateboard._ops import ContentOptions, Used, options_of
from slateboard.errors import Conflict, Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two changes of one place, for `on_conflict` to settle by returning the whole value to write."""

    key: str
    base: Any
    """The value both started from; None where there was none."""
    theirs: Any
    """What is there now; None where it was deleted."""
    mine: Any
    """What was to be written."""
    pointers: tuple[str, ...]
    """JSON pointers of the places that both changed; `""` is the whole value."""
    entry: Entry | None
    """The entry that is there now: who wrote it, when, in which session."""
    attempt: int
    """1 for the first conflict of this update."""
    merged: Any = None
    """Theirs with those of my changes that do not overlap."""


class Draft:
    """The state of one update: what it started from, what it wants to write, what it has read."""

    def __init__(self, key: str, entry: Entry | None, default: Any) -> None:
        self.key = key
        self.entry = entry
        self.default = default
        self.base: Any = self._start(entry)
        self.mine: Any = None
        self.merged = False
        self.reran = 0
        self.conflicts = 0
        self._sources: dict[int, Entry] = {}
        self._see(entry)

    def argument(self) -> Any:
        """A fresh copy of the base for the function, which may change it."""
        return copy.deepcopy(self.base)

    def answer(self, argument: Any, result: Any, before: Any = ABSENT) -> Any:
        """The function's result, as it will be read back. `before` is what the argument was, the base by default.

        Raises:
            Invalid: it changed its argument and returned nothing, or what JSON cannot say.
        """
        if result is None and not same(argument, self.base if before is ABSENT else before):
            raise Invalid(
                f"the function given to update({self.key!r}) changed its argument and returned None: return the "
                "value to write",
                metadata={"field": "fn"},
            )
        raw, content_type = _values.encode(result, self._content_type(result))
        return _values.decode(raw, content_type)

    def rebase(self, theirs: Entry | None) -> tuple[str, ...]:
        """Somebody was faster: takes their entry in. Places that both changed; empty: merged, commit again."""
        self.conflicts += 1
        value = self._start(theirs)
        if (theirs is None) != (self.entry is None) and self.default is ABSENT:
            # Deleted: there is nothing to merge with, and nobody said what an absent key means.
            self._see(theirs)
            return ("",)
        merge_ = merge(self.base, value, self.mine)
        # Also where both came to the same value: two increments look like one.
        places = (*merge_.overlaps, *merge_.agreed)
        if not places:
            self._move(theirs, merge_.value)
            self.merged = True
        return places

    def overlap(self, theirs: Entry | None, places: Sequence[str]) -> Overlap:
        """What the callback gets."""
        value = self._start(theirs) if theirs is not None else None
        return Overlap(
            key=self.key,
            base=copy.deepcopy(None if self.base is ABSENT else self.base),
            theirs=copy.deepcopy(value),
            mine=copy.deepcopy(self.mine),
            pointers=tuple(places),
            entry=theirs,
            attempt=self.conflicts,
            merged=copy.deepcopy(merge(self.base, self._start(theirs), self.mine).value)
            if theirs is not None
            else None,
        )

    def settle(self, theirs: Entry | None, value: Any) -> None:
        """The callback's word."""
        raw, content_type = _values.encode(value, self._content_type(value))
        self._move(theirs, _values.decode(raw, content_type))
        self.merged = True

    def rerun(self, theirs: Entry | None, second: Any, places: Sequence[str]) -> tuple[str, ...]:
        """Takes the function's answer to their value, unless it insists on its first answer against theirs.

        Returns:
            The places where it insists; empty: taken.
        """
        value = self._start(theirs)
        # Also where only they changed something: a function that answers from what it knew before takes it back.
        touched = dict.fromkeys((*places, *changes(self.base, value)))
        insisted = tuple(
            place
            for place in touched
            if same(at(second, place), at(self.mine, place)) and not same(at(second, place), at(value, place))
        )
        if not insisted:
            self.reran += 1
            self.merged = True
            self._move(theirs, second)
        return insisted

    def started_from(self, theirs: Entry | None) -> Any:
        """A fresh copy of their value for the function."""
        return copy.deepcopy(self._start(theirs))

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self.entry is None or not same(self.base, self.mine)

    def options(self, given: ContentOptions) -> ContentOptions:
        """What the new version says beside its value: as before, unless given."""
        options: ContentOptions = {} if self.entry is None else options_of(self.entry)
        content_type = self._content_type(self.mine)
        if content_type is not None:
            options["content_type"] = content_type
        options.update(given)
        extra = given.get("derived_from")
        if extra is None or len(extra) > 0:
            used: list[Used] = [*self._sources.values(), *(extra or ())]
            if used:
                options["derived_from"] = used
            else:
                options.pop("derived_from", None)
        return options

    def refused(self, error: Conflict, places: Sequence[str]) -> Conflict:
        """The error for an overlap that nobody settled."""
        where = ", ".join(repr(place) for place in places[:5] if place) or "the whole value"
        return Conflict(
            f"{self.key!r}: somebody else changed the same place ({where}). Pass on_conflict= to settle it, or read "
            "again and decide again",
            reason=error.reason,
            metadata=error.metadata,
            violations=error.violations,
            conflict_id=error.conflict_id,
            omitted=error.omitted,
            revision=error.revision,
            overlaps=places,
        )

    def _start(self, entry: Entry | None) -> Any:
        if entry is None:
            return copy.deepcopy(self.default)
        return _values.decode(entry.raw or b"", entry.content_type)

    def _move(self, theirs: Entry | None, mine: Any) -> None:
        self._see(theirs)
        self.entry = theirs
        self.base = self._start(theirs)
        self.mine = mine

    def _see(self, entry: Entry | None) -> None:
        if entry is not None:
            self._sources[entry.version] = entry

    def _content_type(self, value: Any) -> str | None:
        """The content type to keep: text stays Markdown, and a JSON text stays JSON. None: what the value says."""
        if self.entry is None:
            return None
        kept = self.entry.content_type
        if isinstance(value, bytes):
            return None if _values.is_json(kept) or kept.startswith("text/") else kept
        if _values.is_json(kept) or (isinstance(value, str) and kept.startswith("text/")):
            return kept
        return None
