"""The rows of a bucket, many to a page, so that a round trip to the state store serves many keys.

Pages grow and shrink by linear hashing: one page is split or merged at a time, so the cost of a row stays flat
however many there are. Above the pages stands a tree of minima: for every page, and for every chunk of pages, the
earliest timer on each clock and the earliest hold. It answers which pages have a due timer, and how far the keys of
a bucket hold the low watermark back, without reading any page that is not due; it has no stale entries.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import msgspec

from millstream.core.row import NOTHING, Minima, Row, least
from millstream.timestamp import Timestamp

ROWS_A_PAGE = 32  # a page is split above this many rows on the average
ROWS_TO_MERGE = 8  # and merged below this many
PAGES_A_CHUNK = 64
LARGE = 16_384  # bytes; a row this large lives alone, so that its neighbours are not rewritten with it


class Store(Protocol):
    """What a bucket keeps things in: a map of Spark's state, or a dictionary."""

    def get(self, key: str) -> bytes | None: ...
    def put(self, key: str, value: bytes) -> None: ...
    def remove(self, key: str) -> None: ...


class Directory(msgspec.Struct, array_like=True):
    """What is known of the rows of one computation in a bucket without reading them."""

    rows: int = 0
    pages: int = 1
    timers: int = 0
    chunks: list[Minima] = msgspec.field(default_factory=lambda: [NOTHING])

    def minima(self) -> Minima:
        return least(self.chunks)


Page = dict[str, Row]

_encode = msgspec.msgpack.Encoder().encode
_decode_page = msgspec.msgpack.Decoder(Page).decode
_decode_chunk = msgspec.msgpack.Decoder(list[Minima]).decode
_decode_directories = msgspec.msgpack.Decoder(dict[str, Directory]).decode
_decode_row = msgspec.msgpack.Decoder(Row).decode


def hash_key(key: str) -> int:
    """32 bits that stay the same on every machine and in every version."""
    return zlib.crc32(key.encode("utf-8", "surrogatepass"))


def bucket_of(key: str, buckets: int) -> int:
    """Which bucket a key falls into; of other bits than its page, so that the pages of a bucket fill evenly."""
    return (hash_key(key) * 0x9E3779B97F4A7C15 >> 48 & 0xFFFF) % buckets


def page_of(hashed: int, pages: int) -> int:
    """Linear hashing: the address among `pages` pages, of which those before the split pointer are split already."""
    level = pages.bit_length() - 1
    wide = hashed & ((2 << level) - 1)
    return wide if wide < pages else hashed & ((1 << level) - 1)


class Bucket:
    """One bucket in one epoch. Reads its directories in one round trip; writes what changed at `flush`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        stored = store.get("directories")
        self._directories: dict[str, Directory] = {} if stored is None else _decode_directories(stored)
        self._pages: dict[str, Pages] = {}

    def pages(self, computation: str) -> Pages:
        found = self._pages.get(computation)
        if found is None:
            directory = self._directories.setdefault(computation, Directory())
            found = self._pages[computation] = Pages(self._store, computation, directory)
        return found

    def flush(self) -> dict[str, Directory]:
        """Write all that changed; returns the directories of the computations that were looked at."""
        written = False
        for pages in self._pages.values():
            written |= pages.flush()
        if written:
            self._store.put("directories", _encode(self._directories))
        return {name: self._directories[name] for name in self._pages}


class Pages:
    """The rows of one computation in a bucket."""

    def __init__(self, store: Store, computation: str, directory: Directory) -> None:
        self._store, self._computation, self._directory = store, computation, directory
        self._cache: dict[int, Page] = {}
        self._chunks: dict[int, list[Minima]] = {}
        self._dirty: set[int] = set()
        self._emptied: set[int] = set()

    def get(self, key: str) -> Row | None:
        row = self._page(page_of(hash_key(key), self._directory.pages)).get(key)
        if row is not None and row.alone and row.size() == 0:
            stored = self._store.get(self._alone(key))
            if stored is None:
                raise LookupError(f"the row of {key!r} of {self._computation!r} is missing from the state")
            whole = _decode_row(stored)
            row.state, row.timers = whole.state, whole.timers
        return row

    def put(self, key: str, old: Row | None, new: Row | None) -> None:
        """Replace the row of a key; `old` is what `get` gave."""
        if old is None and new is None:
            return
        number = page_of(hash_key(key), self._directory.pages)
        page = self._page(number)
        self._dirty.add(number)
        directory = self._directory
        directory.timers += (0 if new is None else new.count) - (0 if old is None else old.count)
        large = new is not None and new.size() > LARGE
        if old is not None and old.alone and not large:
            self._store.remove(self._alone(key))
        if new is None:
            directory.rows -= 1
            del page[key]
            return
        if old is None:
            directory.rows += 1
        if large:
            self._store.put(self._alone(key), _encode(new))
            new.alone = True
        page[key] = new

    def due(self, low_watermark: Timestamp, now: Timestamp) -> list[str]:
        """The keys with a timer that is due; reads only the chunks and pages that have one."""
        keys: list[str] = []
        for number, minima in enumerate(self._directory.chunks):
            if minima.due(low_watermark, now):
                for offset, of_page in enumerate(self._chunk(number)):
                    if of_page.due(low_watermark, now):
                        page = self._page(number * PAGES_A_CHUNK + offset)
                        keys += [key for key, row in page.items() if row.minima.due(low_watermark, now)]
        return keys

    def flush(self) -> bool:
        """Split or merge until the rows fit, then write the changed pages and their minima."""
        directory = self._directory
        while directory.rows > directory.pages * ROWS_A_PAGE:
            self._split()
        while directory.pages > 1 and directory.rows < directory.pages * ROWS_TO_MERGE:
            self._merge()
        for number in self._emptied:
            self._store.remove(f"{self._computation}/p{number}")
        chunks = {number // PAGES_A_CHUNK for number in self._dirty | self._emptied}
        touched = {chunk for chunk in chunks if chunk < len(directory.chunks)}
        for number in self._dirty:
            page = self._cache[number]
            for row in page.values():
                if row.alone:
                    row.state = row.timers = None
            # one round trip a page, not a key
            self._store.put(f"{self._computation}/p{number}", _encode(page))
            self._chunk(number // PAGES_A_CHUNK)[number % PAGES_A_CHUNK] = least([row.minima for row in page.values()])
        for chunk in touched:
            minima = self._chunk(chunk)
            self._store.put(f"{self._computation}/c{chunk}", _encode(minima))
            directory.chunks[chunk] = least(minima)
        changed = bool(self._dirty)  # a merge touches the page that it merges into
        self._dirty, self._emptied = set(), set()
        return changed

    def _split(self) -> None:
        directory = self._directory
        new = directory.pages
        old = new - (1 << (new.bit_length() - 1))
        page = self._page(old)
        directory.pages += 1
        if new % PAGES_A_CHUNK == 0:
            self._chunks[new // PAGES_A_CHUNK] = []
            directory.chunks.append(NOTHING)
        self._chunk(new // PAGES_A_CHUNK).append(NOTHING)
        moved = {key: row for key, row in page.items() if page_of(hash_key(key), directory.pages) == new}
        for key in moved:
            del page[key]
        self._cache[new] = moved
        self._dirty |= {old, new}

    def _merge(self) -> None:
        directory = self._directory
        last = directory.pages - 1
        into = last - (1 << (last.bit_length() - 1))
        self._page(into).update(self._page(last))
        directory.pages -= 1
        chunk = self._chunk(last // PAGES_A_CHUNK)
        chunk.pop()
        if last % PAGES_A_CHUNK == 0:
            del self._chunks[last // PAGES_A_CHUNK]
            directory.chunks.pop()
            self._store.remove(f"{self._computation}/c{last // PAGES_A_CHUNK}")
        del self._cache[last]
        self._dirty.discard(last)
        self._emptied.add(last)
        self._dirty.add(into)

    def _page(self, number: int) -> Page:
        page = self._cache.get(number)
        if page is None:
            stored = self._store.get(f"{self._computation}/p{number}")
            page = self._cache[number] = {} if stored is None else _decode_page(stored)
        return page

    def _chunk(self, number: int) -> list[Minima]:
        chunk = self._chunks.get(number)
        if chunk is None:
            stored = self._store.get(f"{self._computation}/c{number}")
            chunk = self._chunks[number] = [NOTHING] if stored is None else _decode_chunk(stored)
        return chunk

    def _alone(self, key: str) -> str:
        return f"{self._computation}/r/{key}"
