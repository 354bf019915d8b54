"""The tree of minima: what is due, and how far the low watermark is held back, without reading a page."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from millstream.core.row import END, HeldRow, Minima, Row
from millstream.timestamp import Timestamp

PAGES_PER_CHUNK = 64

Least = tuple[int, int, int]  # low-watermark timer, wall timer, hold
NO_MINIMA: Least = (END, END, END)


def least_of(rows: Iterable[HeldRow]) -> Least:
    """The minima of some rows."""
    low = wall = hold = END
    for row in rows:
        if row.__class__ is Row:
            if row.low < low:
                low = row.low
            if row.wall < wall:
                wall = row.wall
            if row.hold < hold:
                hold = row.hold
    return low, wall, hold


class Tree:
    """For every page, for every chunk of pages and for all of them: the least of each of the three minima.

    It is lazy. What stands for a page is a lower bound, exact unless the page is *loose*: a row that had the least of it has
    moved on. A smaller value goes up at once; a loose page is scanned only when it decides the root, in `tighten`, after
    which the roots are exact. Timers of one epoch tie across a whole page, and eager minima would scan it for every record.
    """

    __slots__ = ("_chunks", "_per_chunk", "doubt", "loose", "pages", "root")

    def __init__(self, pages: int = 1, stored: tuple[bytes, bytes, bytes] = (b"", b"", b"")) -> None:
        """For as many pages; `stored` is what `stored()` gave."""
        self._per_chunk = PAGES_PER_CHUNK
        self.pages = tuple(array("q", of) if of else array("q", [END]) * pages for of in stored)
        starts = range(0, pages, self._per_chunk)
        self._chunks = tuple(array("q", [min(of[start : start + self._per_chunk]) for start in starts]) for of in self.pages)
        self.root = [min(of) for of in self._chunks]
        self.loose = bytearray(pages)
        self.doubt = False  # whether a loose page may decide a root

    def stored(self) -> tuple[bytes, bytes, bytes]:
        """The minima of all pages, empty where none has one. They must be exact: looseness is not kept."""
        low, wall, hold = (b"" if root == END else of.tobytes() for root, of in zip(self.root, self.pages, strict=True))
        return low, wall, hold

    def minima(self) -> Minima:
        return Minima(*cast(list[Timestamp], self.root))

    def grow(self) -> None:
        """One page more, with nothing on it."""
        if len(self.loose) % self._per_chunk == 0:
            for chunks in self._chunks:
                chunks.append(END)
        for pages in self.pages:
            pages.append(END)
        self.loose.append(0)

    def shrink(self) -> None:
        """The last page is gone; its rows stand for another one now."""
        last = len(self.loose) - 1
        self.put(last, NO_MINIMA)
        for pages in self.pages:
            pages.pop()
        self.loose.pop()
        if last % self._per_chunk == 0:
            for chunks in self._chunks:
                chunks.pop()

    def came(self, page: int, row: Row) -> None:
        """A row with minima stands on a page now."""
        low, wall, hold = self.pages
        if row.low < low[page]:
            self._lower(0, page, row.low)
        if row.wall < wall[page]:
            self._lower(1, page, row.wall)
        if row.hold < hold[page]:
            self._lower(2, page, row.hold)

    def _lower(self, kind: int, page: int, value: int) -> None:
        self.pages[kind][page] = value
        chunks, chunk = self._chunks[kind], page // self._per_chunk
        if value < chunks[chunk]:
            chunks[chunk] = value
            if value < self.root[kind]:
                self.root[kind] = value

    def left(self, page: int, old: Row, new: HeldRow | None) -> None:
        """A row was replaced. If it had the least of its page, that may be more now."""
        lows, walls, holds = self.pages
        low, wall, hold = lows[page], walls[page], holds[page]
        kept = new if new.__class__ is Row else None
        if (
            (old.low == low < END and (kept is None or kept.low > old.low))
            or (old.wall == wall < END and (kept is None or kept.wall > old.wall))
            or (old.hold == hold < END and (kept is None or kept.hold > old.hold))
        ):
            self.loose[page] = 1
            root = self.root
            if low == root[0] or wall == root[1] or hold == root[2]:
                self.doubt = True

    def put(self, page: int, least: Least) -> None:
        """The exact minima of a page."""
        self.loose[page] = 0
        chunk = page // self._per_chunk
        for kind in (0, 1, 2):
            pages, chunks = self.pages[kind], self._chunks[kind]
            before, after = pages[page], least[kind]
            if before == after:
                continue
            pages[page] = after
            of_chunk = chunks[chunk]
            if after < of_chunk:
                chunks[chunk] = after
            elif before == of_chunk:
                start = chunk * self._per_chunk
                chunks[chunk] = min(pages[start : start + self._per_chunk])
            else:
                continue
            if chunks[chunk] < self.root[kind]:
                self.root[kind] = chunks[chunk]
            elif of_chunk == self.root[kind] and chunks[chunk] > of_chunk:
                self.root[kind] = min(chunks)
                self.doubt = True  # what decides now may be loose

    def tighten(self, scan: Callable[[int], Least]) -> None:
        """Make the roots exact: `scan` gives the minima of a page."""
        for kind in (0, 1, 2):
            while (value := self.root[kind]) != END:
                chunk = self._chunks[kind].index(value)
                page = self.pages[kind].index(value, chunk * self._per_chunk)
                if not self.loose[page]:
                    break
                self.put(page, scan(page))
        self.doubt = False

    def is_due(self, low_watermark: int, now: int) -> bool:
        low, wall, _ = self.root
        return (low <= low_watermark and low < END) or (wall <= now and wall < END)

    def due(self, low_watermark: int, now: int) -> Iterator[int]:
        """The pages that may have a timer that is due; nothing is due at the end of time itself."""
        if low_watermark == END:
            low_watermark -= 1
        if now == END:
            now -= 1
        low, wall, _ = self.pages
        for chunk, (earliest_low, earliest_wall) in enumerate(zip(self._chunks[0], self._chunks[1], strict=True)):
            if earliest_low <= low_watermark or earliest_wall <= now:
                start = chunk * self._per_chunk
                for page in range(start, min(start + self._per_chunk, len(low))):
                    if low[page] <= low_watermark or wall[page] <= now:
                        yield page
