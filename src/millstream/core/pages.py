"""The rows of one computation in a bucket, many to a page, so that a round trip to the state store serves many keys.

Pages grow and shrink by linear hashing: one page is split or merged at a time, so the cost of a row stays flat however many
there are. A page that was touched is held, decoded; one that is let go is held as bytes; only then is it in the store alone.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import msgspec

from millstream.core import apart
from millstream.core.apart import ROW_OVERHEAD, TIMED_OVERHEAD, Apart, MemoryBudget, Store, length_of, place_of, size_of
from millstream.core.epoch import BucketReport
from millstream.core.minima import Least, Tree, least_of
from millstream.core.row import END, HeldRow, Row
from millstream.timestamp import Timestamp

ROWS_PER_PAGE = 32  # a page is split above this many rows on the average
ROWS_TO_MERGE = 8  # and merged below this many
ROWS_PER_REDO = 4_096  # or as many as there are: pages are split after each helping

# What pages take in memory beside their content; measured (tests/mill/test_memory.py).
ENCODED_OVERHEAD = 160
PAGE_OVERHEAD = 300
INDEX_OVERHEAD = 40  # of a page that is not held at all


class Directory(msgspec.Struct, array_like=True):
    """What is known of the rows without reading them; stored at a checkpoint."""

    pages: int = 1
    rows: int = 0
    timers: int = 0
    minima: tuple[bytes, bytes, bytes] = (b"", b"", b"")


Page = dict[str, HeldRow]

_encode = msgspec.msgpack.Encoder().encode
_decode_page = msgspec.msgpack.Decoder(Page).decode
_decode_directory = msgspec.msgpack.Decoder(Directory).decode
_EMPTY = _encode({})


def hash_key(key: str) -> int:
    """32 bits that stay the same on every machine and in every version."""
    try:
        return zlib.crc32(key.encode())
    except UnicodeEncodeError:  # it has lone surrogates; to name a handler of errors at once costs every key twice the time
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))


def bucket_of(key: str, buckets: int) -> int:
    """Which bucket a key falls into; of other bits than its page, so that the pages of a bucket fill evenly."""
    return (hash_key(key) * 0x9E3779B97F4A7C15 >> 48 & 0xFFFF) % buckets


def page_of(hashed: int, pages: int) -> int:
    """Linear hashing: the address among `pages` pages, of which those before the split pointer are split already."""
    level = pages.bit_length() - 1
    wide = hashed & ((2 << level) - 1)
    return wide if wide < pages else hashed & ((1 << level) - 1)


class Pages:
    """The rows of one computation in a bucket, from epoch to epoch.

    `get` and right after it `put` of the same key: nothing is let go between the two.
    """

    def __init__(self, store: Store, prefix: str, room: MemoryBudget) -> None:
        """Reads the directory: one round trip."""
        self._store, self._prefix, self._room = store, prefix, room
        stored = store.get(f"{prefix}d")
        directory = Directory() if stored is None else _decode_directory(stored)
        self.count, self.rows, self.timers = directory.pages, directory.rows, directory.timers
        self.minima = Tree(self.count, directory.minima)
        self.decoded: dict[int, Page] = {}
        self.encoded: dict[int, bytes] = {}
        self.apart = Apart(store, f"{prefix}r/", room)  # large rows; on their page stands a `Row` without content
        self.dirty: set[int] = set()  # pages that the store does not have as they are; beyond the last one: to be removed
        self._marks = bytearray(self.count)  # pages that were touched since the clock's hand came by
        self._sizes = array("q", bytes(8 * self.count))  # in memory, as far as they are held
        self._altered = False  # whether the directory differs from the store's
        self._changed: dict[str, HeldRow | None] = {}
        self._at, self._on = 0, cast(Page, {})
        room.used += INDEX_OVERHEAD * self.count
        if stored is None:  # nothing is there, so the first page need not be asked for
            self.decoded[0], self._sizes[0] = {}, PAGE_OVERHEAD
            room.used += PAGE_OVERHEAD

    # An epoch.

    def get(self, key: str) -> HeldRow | None:
        hashed = hash_key(key)
        level = self.count.bit_length() - 1
        number = hashed & ((2 << level) - 1)
        if number >= self.count:
            number = hashed & ((1 << level) - 1)
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
        """Replace the row of a key; `old` is what `get` has just given."""
        if new.__class__ is not bytes or old.__class__ is not bytes or self.apart.rows or len(new) > apart.LARGE:
            number = self._at
            self._grow(number, self._exchange(number, self._on, key, old, new))
            if self.rows > self.count * ROWS_PER_PAGE:
                self._split()
            return
        # The plain case, a state for a state: no count changes and no minimum.
        number = self._at
        self._on[key] = self._changed[key] = new
        self.dirty.add(number)
        if grown := len(new) - len(old):
            self._grow(number, grown)

    def _exchange(self, number: int, page: Page, key: str, old: HeldRow | None, new: HeldRow | None) -> int:
        """Replace a row, whatever it was and becomes; returns by how much its page has grown."""
        if old is None and new is None:
            return 0
        self._changed[key] = new
        self._altered = True
        if old.__class__ is Row:
            self.timers -= old.count
        if new.__class__ is Row:
            self.timers += new.count
        before, after, size = page.get(key), new, size_of(new)
        if size > apart.LARGE and new is not None and length_of(new) > apart.LARGE:
            after = place_of(new)
            size = size_of(after)
            self.apart.put(key, new)
        elif key in self.apart.rows:
            self.apart.remove(key)
        grown = size - size_of(before)
        if after is None:
            del page[key]
            self.rows -= 1
            grown -= len(key)
        else:
            page[key] = after
            if before is None:
                self.rows += 1
                grown += len(key)
        if after is new or before != after:  # a large row may have changed without its page
            self.dirty.add(number)
        if before.__class__ is Row:
            self.minima.left(number, before, after)
        if after.__class__ is Row:
            self.minima.came(number, after)
        return grown

    def due(self, low_watermark: Timestamp, now: Timestamp) -> list[str]:
        """The keys with a timer that is due, sorted; reads only pages that may have one."""
        lw, clock = cast(int, low_watermark), cast(int, now)
        if not self.minima.is_due(lw, clock):
            return []
        keys: list[str] = []
        for number in list(self.minima.due(lw, clock)):
            page = self.decoded.get(number)
            for key, row in (self._fetch(number) if page is None else page).items():
                if row.__class__ is Row and ((row.low <= lw and row.low < END) or (row.wall <= clock and row.wall < END)):
                    keys.append(key)
        # After a redo pages may lie otherwise; the order of keys must not.
        keys.sort()
        return keys

    def holder(self) -> tuple[str, int] | None:
        """A key whose hold is the least of all, and that hold; after `settle`, or it may be one that has moved on."""
        least, pages = self.minima.root[2], self.minima.pages[2]
        if least == END:
            return None
        number = pages.index(least)
        page = self.decoded[number] if number in self.decoded else self._fetch(number)
        return next(((key, least) for key, row in page.items() if isinstance(row, Row) and row.hold == least), None)

    def settle(self) -> dict[str, HeldRow | None]:
        """The end of an epoch: few enough pages, exact minima. Returns the rows that changed."""
        while self.count > 1 and self.rows < self.count * ROWS_TO_MERGE:
            self._merge()
        if self.minima.doubt:
            self.minima.tighten(self._scan)
        changed, self._changed = self._changed, {}
        return changed

    def redo(self, changes: Mapping[str, HeldRow | None]) -> None:
        """Rows as epochs left them; they are not changes of this one."""
        items = iter(changes.items())
        while some := list(islice(items, max(ROWS_PER_REDO, self.rows))):  # at most twice the rows, so a split rehashes few of them
            self._redo(some)
            self._split_enough()
        self._changed = {}

    def _redo(self, changes: list[tuple[str, HeldRow | None]]) -> None:
        """Page by page: a page and its keys come into the processor's cache once, not once for each row. That halves the time
        where a million rows are redone (`python -m bench rows`)."""
        of_page: dict[int, list[Any]] = {}
        count, wide = self.count, (2 << (self.count.bit_length() - 1)) - 1
        for key, row in changes:
            hashed = hash_key(key)
            number = hashed & wide
            if number >= count:
                number = hashed & (wide >> 1)
            if number in of_page:
                of_page[number] += (key, row)
            else:
                of_page[number] = [key, row]
        small, minima = apart.LARGE, self.minima
        for number, flat in of_page.items():
            page = self.decoded.get(number)
            if page is None:
                page = self._fetch(number)
            grown, pairs = 0, iter(flat)
            for key, row in zip(pairs, pairs, strict=True):
                old = page.get(key)  # without content where it lives apart
                if row.__class__ is bytes and old.__class__ is bytes and len(row) <= small:
                    grown += len(row) - len(old)
                    page[key] = row
                elif row.__class__ is Row and old.__class__ is Row and length_of(old) and length_of(row) <= small:
                    grown += length_of(row) - length_of(old)
                    page[key] = row
                    self.timers += row.count - old.count
                    minima.loose[number] = 1
                    minima.came(number, row)
                    self._altered = minima.doubt = True
                else:
                    lives_apart = old.__class__ is Row and old.state is None and old.timers is None
                    grown += self._exchange(number, page, key, self.apart.get(key) if lives_apart else old, row)
            self._marks[number] = 1
            self.dirty.add(number)
            self._grow(number, grown)

    def report(self) -> BucketReport:
        """What is known after `settle`."""
        return BucketReport(self.minima.minima(), self.rows, self.timers)

    # The store.

    def write_back(self, most: int) -> int:
        """Write dirty pages and large rows, up to so many; returns how many."""
        written = 0
        while self.dirty and written < most:
            self._write(self.dirty.pop())
            written += 1
        return written + self.apart.write_back(most - written)

    def checkpoint(self) -> int:
        """Write all that is dirty, and the directory; returns how many pages and large rows were written."""
        written = self.write_back(sys.maxsize)
        if not self._altered:
            return written
        for number, page in self.decoded.items():  # a loose page is always held
            if self.minima.loose[number]:
                self.minima.put(number, least_of(page.values()))
        if self.rows:
            self._store.put(f"{self._prefix}d", _encode(Directory(self.count, self.rows, self.timers, self.minima.stored())))
        else:
            self._store.remove(f"{self._prefix}d")
        self._altered = False
        return written

    def attach(self, store: Store) -> None:
        """The same state in other hands."""
        self._store = store
        self.apart.attach(store)

    def _write(self, number: int) -> None:
        name = f"{self._prefix}p{number}"
        data = _EMPTY
        if number < self.count:
            data = self.encoded[number] if number in self.encoded else _encode(self.decoded[number])
        if data == _EMPTY:
            self._store.remove(name)
        else:
            self._store.put(name, data)  # one round trip a page, not a key

    def _fetch(self, number: int) -> Page:
        """A page that is not held decoded. Others are let go for it first."""
        if self._room.used > self._room.limit:
            self._room.make()
        return self._load(number)

    def _load(self, number: int) -> Page:
        data = self.encoded.pop(number, None)
        if data is None:
            data = self._store.get(f"{self._prefix}p{number}")
        else:
            self._room.used -= self._sizes[number]
            self._room.encoded -= self._sizes[number]
        page: Page = {} if data is None else _decode_page(data)
        timed = sum([row.__class__ is Row for row in page.values()])
        size = PAGE_OVERHEAD + (0 if data is None else len(data)) + ROW_OVERHEAD * len(page) + TIMED_OVERHEAD * timed
        self.decoded[number], self._sizes[number] = page, size
        self._room.used += size
        return page

    # Memory.

    def let_go(self, what: int | str) -> None:
        """The clock's hand has come to a page or a large row: it goes if it was not touched since the last time."""
        if isinstance(what, str):
            self.apart.let_go(what)
        elif what in self.decoded:
            if self._marks[what]:
                self._marks[what] = 0
                return
            page = self.decoded.pop(what)
            if self.minima.loose[what]:
                self.minima.put(what, least_of(page.values()))
            data = self.encoded[what] = _encode(page)
            size = ENCODED_OVERHEAD + len(data)
            self._room.used += size - self._sizes[what]
            self._room.encoded += size
            self._sizes[what] = size

    def let_go_encoded(self, number: int) -> None:
        """A page that is held as bytes goes to the store."""
        if number in self.encoded:
            if number in self.dirty:
                self.dirty.discard(number)
                self._write(number)
            del self.encoded[number]
            self._room.used -= self._sizes[number]
            self._room.encoded -= self._sizes[number]
            self._sizes[number] = 0

    def held(self) -> list[int | str]:
        """What the hand of the clock goes over: decoded pages and large rows."""
        return [*self.decoded, *self.apart.rows]

    def _grow(self, number: int, size: int) -> None:
        self._sizes[number] += size
        self._room.used += size
        if self._room.used > self._room.limit:
            self._room.make()

    # Splitting and merging.

    def _split_enough(self) -> None:
        while self.rows > self.count * ROWS_PER_PAGE:
            self._split()

    def _split(self) -> None:
        new = self.count
        old = new - (1 << (new.bit_length() - 1))
        page = self.decoded[old] if old in self.decoded else self._fetch(old)
        mask = (2 << (new.bit_length() - 1)) - 1
        stay: Page = {}
        go: Page = {}
        for key, row in page.items():
            (go if hash_key(key) & mask == new else stay)[key] = row
        self.count += 1
        self.minima.grow()
        self._marks.append(1)
        moved = self._sizes[old] * len(go) // max(1, len(page))
        self._sizes[old] -= moved
        self._sizes.append(moved + PAGE_OVERHEAD)
        self._room.used += PAGE_OVERHEAD + INDEX_OVERHEAD
        self.decoded[old], self.decoded[new] = stay, go
        self.dirty |= {old, new}
        self.minima.put(old, least_of(stay.values()))
        self.minima.put(new, least_of(go.values()))
        self._altered = True

    def _merge(self) -> None:
        last = self.count - 1
        into = last - (1 << (last.bit_length() - 1))
        page = self.decoded[into] if into in self.decoded else self._fetch(into)
        page.update(self.decoded[last] if last in self.decoded else self._load(last))  # no room is made: `into` stays
        del self.decoded[last]
        self.count -= 1
        self._marks.pop()
        self._sizes[into] += self._sizes.pop() - PAGE_OVERHEAD
        self._room.used -= PAGE_OVERHEAD + INDEX_OVERHEAD
        self.dirty |= {into, last}
        self.minima.put(into, least_of(page.values()))
        self.minima.shrink()
        self._altered = True

    def _scan(self, number: int) -> Least:
        return least_of(self.decoded[number].values())  # it is loose, so it is held
