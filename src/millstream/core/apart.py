"""Rows that are too large for a page: each lives alone in the store, so that its neighbours are not rewritten with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from millstream.core.row import END, HeldRow, Row

LARGE = 16_384  # bytes of state and timers; a row larger than this lives apart

# What things take in memory beside the bytes of keys, states and timers; measured (tests/mill/test_memory.py).
ROW_OVERHEAD = 150
TIMED_OVERHEAD = 190  # of a row with timers, beside that of any row


class Store(Protocol):
    """What rows are kept in: a map of Spark's state, or a dictionary. Every call may be a round trip."""

    def get(self, key: str) -> bytes | None: ...
    def put(self, key: str, value: bytes) -> None: ...
    def remove(self, key: str) -> None: ...


class MemoryBudget:
    """What all rows of a lane take in memory together, and what is called when that is too much."""

    __slots__ = ("encoded", "limit", "make", "used")

    def __init__(self, limit: int, make: Callable[[], None]) -> None:
        self.used, self.encoded, self.limit, self.make = 0, 0, limit, make


_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], HeldRow] = msgspec.msgpack.Decoder(HeldRow).decode


def length_of(row: HeldRow) -> int:
    """The bytes of a row's content."""
    return len(row.state or b"") + len(row.timers or b"") if isinstance(row, Row) else len(row)


def size_of(row: HeldRow | None) -> int:
    """What a row takes in memory beside its key, about."""
    if row.__class__ is bytes:
        return ROW_OVERHEAD + len(row)
    if row is None:
        return 0
    return ROW_OVERHEAD + TIMED_OVERHEAD + length_of(row)


def place_of(row: HeldRow) -> Row:
    """What stands on the page of a row that lives apart: its minima, so that it is found when it is due."""
    return Row(None, None, row.count, row.low, row.wall, row.hold) if isinstance(row, Row) else Row(None, None, 0, END, END, END)


class Apart:
    """The large rows of one computation in a bucket, as far as they are held."""

    def __init__(self, store: Store, prefix: str, room: MemoryBudget) -> None:
        self._store, self._prefix, self._room = store, prefix, room
        self.rows: dict[str, HeldRow] = {}
        self.dirty: set[str] = set()  # the store does not have them as they are; those that are not held are to be removed
        self._marks: set[str] = set()  # touched since the clock's hand came by

    def attach(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> HeldRow:
        self._marks.add(key)
        row = self.rows.get(key)
        if row is None:
            stored = self._store.get(f"{self._prefix}{key}")
            if stored is None:
                raise LookupError(f"the row {self._prefix}{key} is missing from the state")
            row = self.rows[key] = _decode(stored)
            self._room.used += size_of(row)
        return row

    def put(self, key: str, row: HeldRow) -> None:
        self._drop(key)
        self.rows[key] = row
        self.dirty.add(key)
        self._marks.add(key)
        self._room.used += size_of(row)

    def remove(self, key: str) -> None:
        self._drop(key)
        self.dirty.add(key)

    def write_back(self, most: int) -> int:
        """Write dirty rows, up to so many; returns how many."""
        written = 0
        while self.dirty and written < most:
            self._write(self.dirty.pop())
            written += 1
        return written

    def let_go(self, key: str) -> None:
        """The clock's hand has come to a row: it goes if it was not touched since the last time."""
        if key in self._marks:
            self._marks.discard(key)
        elif key in self.rows:
            if key in self.dirty:
                self.dirty.discard(key)
                self._write(key)
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._room.used -= size_of(self.rows.pop(key, None))
        self._marks.discard(key)

    def _write(self, key: str) -> None:
        row = self.rows.get(key)
        if row is None:
            self._store.remove(f"{self._prefix}{key}")
        else:
            self._store.put(f"{self._prefix}{key}", _encode(row))
