"""Rows in the order of their times: pages that lie side by side in time, so that what is due next lies together.

By a hash, as the rows of keys lie, each record that is due would be on a page of its own: with 100,000 of them one cost four
times as much as with 100. Here whole pages are due, one after the other, and those of a later time stay untouched in the store.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import cast

import msgspec

from millstream.core import pages
from millstream.core.apart import MemoryBudget, Store, size_of
from millstream.core.minima import NO_MINIMA, Tree, least_of
from millstream.core.pages import INDEX_OVERHEAD, PAGE_OVERHEAD, Page, Pages
from millstream.core.row import END, HeldRow, Row
from millstream.timestamp import Timestamp

TimeAndAddress = tuple[int, str]  # the time of a row, and its address
FIRST: TimeAndAddress = (-sys.maxsize - 1, "")

_Bounds = list[tuple[int, str, int]]  # where each page begins, and its number
_encode = msgspec.msgpack.Encoder().encode
_decode_bounds = msgspec.msgpack.Decoder(_Bounds).decode
_number = itemgetter(2)


def where(address: str) -> TimeAndAddress:
    """Addresses begin with the time of their row."""
    return int(address.partition("/")[0]), address


class Timeline(Pages):
    """Pages of rows whose addresses begin with their time; otherwise as any. A page that is empty gives its number back."""

    def __init__(self, store: Store, prefix: str, room: MemoryBudget) -> None:
        super().__init__(store, prefix, room)
        stored = store.get(f"{prefix}b") if self.rows else None
        self._bounds: _Bounds = [(*FIRST, 0)] if stored is None else _decode_bounds(stored)
        self._free = sorted(set(range(self.count)) - set(map(_number, self._bounds)))

    # An epoch.

    def get(self, key: str) -> HeldRow | None:
        number = self._bounds[self._find(where(key))][2]
        page = self.decoded.get(number)
        if page is None:
            page = self._fetch(number)
        self._marks[number] = 1
        self._at, self._on = number, page
        row = page.get(key)
        if row.__class__ is Row and row.state is None and row.timers is None:
            return self.apart.get(key)
        return row

    def put(self, key: str, old: HeldRow | None, new: HeldRow | None) -> None:
        number, page = self._at, self._on
        grown = self._exchange(number, page, key, old, new)
        if len(page) > pages.ROWS_PER_PAGE:
            self._split_at(self._find(where(key)))
        elif not page and len(self._bounds) > 1:
            self._sizes[number] += grown
            self._room.used += grown
            self._let_be(self._find(where(key)))
            return
        self._grow(number, grown)

    def earliest(self, low_watermark: Timestamp, most: int) -> list[tuple[int, str]]:
        """The first of the rows that are due by the low watermark, with the times at which they were; sorted by time."""
        found: list[tuple[int, str]] = []
        bound = min(int(low_watermark), END - 1)
        if self.minima.root[0] > bound:
            return found
        for time, _, number in self._bounds:
            if time >= bound or len(found) >= most:
                break
            page = self.decoded[number] if number in self.decoded else self._fetch(number)
            self._marks[number] = 1
            found += sorted((row.low, address) for address, row in page.items() if isinstance(row, Row) and row.low <= bound)
        return found[:most]

    def due_at_most(self, low_watermark: Timestamp) -> int:
        """How many rows may be due by the low watermark, without looking at any."""
        return bisect_left(self._bounds, (int(low_watermark), "", 0)) * pages.ROWS_PER_PAGE

    def take(self, low_watermark: Timestamp) -> list[tuple[str, Row]]:
        """All rows that are due by the low watermark, which are gone then; whole pages at a time, not row by row."""
        taken: list[tuple[str, Row]] = []
        bound = min(int(low_watermark), END - 1)
        while self.minima.root[0] <= bound:  # it may be less than it is, never more
            number = self._bounds[0][2]
            page = self.decoded[number] if number in self.decoded else self._fetch(number)
            due = [(address, row) for address, row in page.items() if isinstance(row, Row) and row.low <= bound]
            for address, row in due:
                taken.append((address, self._leave(number, page, address, row)))
            if page or len(self._bounds) == 1:
                self.minima.put(number, least_of(page.values()))
                break  # all that follows is of a later time
            self._let_be(0)
        return taken

    def _leave(self, number: int, page: Page, address: str, row: Row) -> Row:
        """A row is gone; the minima of its page are not."""
        size = size_of(row) + len(address)
        del page[address]
        self._sizes[number] -= size
        self._room.used -= size
        self._changed[address] = None
        self.rows -= 1
        self._altered = True
        self.dirty.add(number)
        if row.state is None:
            row = cast(Row, self.apart.get(address))
            self.apart.remove(address)
        return row

    def settle(self) -> dict[str, HeldRow | None]:
        """The end of an epoch; no pages are merged, for what is due goes as whole pages."""
        if not self.rows and self.count > 1:
            self._begin_anew()
        if self.minima.doubt:
            self.minima.tighten(self._scan)
        changed, self._changed = self._changed, {}
        return changed

    def redo(self, changes: Mapping[str, HeldRow | None]) -> None:
        for address, row in changes.items():
            self.put(address, self.get(address), row)
        self._changed = {}

    def checkpoint(self) -> int:
        altered = self._altered
        written = super().checkpoint()
        if altered and self.rows:
            self._store.put(f"{self._prefix}b", _encode(self._bounds))
        elif altered:
            self._store.remove(f"{self._prefix}b")
        return written

    def _write(self, number: int) -> None:
        if number in self.decoded or number in self.encoded:
            super()._write(number)
        else:  # its number was given back
            self._store.remove(f"{self._prefix}p{number}")

    # Where pages begin and end.

    def _find(self, place: TimeAndAddress) -> int:
        """Which page, in the order of time, has what lies there."""
        return bisect_right(self._bounds, (*place, END)) - 1

    def _split_at(self, position: int) -> None:
        """A page becomes two of half its rows each."""
        number = self._bounds[position][2]
        page = self.decoded[number]
        in_order = sorted(map(where, page))
        first = in_order[len(in_order) // 2]
        stay: Page = {}
        go: Page = {}
        for place in in_order:
            (go if place >= first else stay)[place[1]] = page[place[1]]
        new = self._free.pop() if self._free else self._grow_by_one()
        moved = self._sizes[number] * len(go) // len(page)
        self._sizes[number] -= moved
        self._sizes[new] = moved + PAGE_OVERHEAD
        self._room.used += PAGE_OVERHEAD
        self._marks[new] = 1
        self.decoded[number], self.decoded[new] = stay, go
        self._on = stay
        self._bounds.insert(position + 1, (*first, new))
        self.dirty |= {number, new}
        self.minima.put(number, least_of(stay.values()))
        self.minima.put(new, least_of(go.values()))

    def _grow_by_one(self) -> int:
        self.count += 1
        self.minima.grow()
        self._marks.append(0)
        self._sizes.append(0)
        self._room.used += INDEX_OVERHEAD
        return self.count - 1

    def _let_be(self, position: int) -> None:
        """The page before takes over the time of an empty one, or the one after it. It is dirty: a row has just left it."""
        _, _, number = self._bounds.pop(position)
        if position == 0:
            self._bounds[0] = (*FIRST, self._bounds[0][2])
        del self.decoded[number]
        self._room.used -= self._sizes[number]
        self._sizes[number] = 0
        self.minima.put(number, NO_MINIMA)
        self._free.append(number)

    def _begin_anew(self) -> None:
        """Nothing is left: one empty page, whatever there was."""
        ((_, _, number),) = self._bounds
        if number not in self.decoded:
            self._load(number)  # it may have been let go already
        self._room.used -= self._sizes[number] + INDEX_OVERHEAD * (self.count - 1)
        self.dirty |= set(range(self.count))
        self.decoded, self.count = {0: {}}, 1
        self.minima = Tree(1)
        self._marks, self._sizes = bytearray(1), array("q", [PAGE_OVERHEAD])
        self._room.used += PAGE_OVERHEAD
        self._bounds, self._free = [(*FIRST, 0)], []
