"""From a stream to its readers: which key each of them sees a record under, which lane carries that key, and what it sees of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import compress
from typing import Any

from millstream.core.codec import value_decoder
from millstream.core.graph import Graph, InputPlan
from millstream.core.lanes import Lanes
from millstream.core.parts import BYTES_PER_PART, NO_KEY, RECORDS_PER_PART, Columns, Dealt
from millstream.core.types import is_text, not_text
from millstream.record import Record
from millstream.stream import Hop
from millstream.timestamp import Timestamp


class Router:
    """Extracts the keys of one input. The key of the stream itself costs nothing; a `by` decodes the value."""

    def __init__(self, read: InputPlan) -> None:
        self.read = read
        self._decode: Callable[[bytes | str], Any] = value_decoder(read.stream.value_type) if read.rekeyed else _undecoded

    def keyed(self, columns: Columns, from_: str) -> Columns:
        """The records under the keys of this reader: one that has several stands under each. One that has none, or whose keys
        cannot be had, stands under its own, with the reason by position. `from_` is of their ids, all but the minor."""
        if not self.read.rekeyed:
            return columns
        keys: list[str] = []
        places: list[int] = []
        errors: dict[int, str] = {}
        records = zip(columns.keys, columns.values, columns.timestamps, columns.minors, strict=True)
        for place, (own, stored, timestamp, minor) in enumerate(records):
            try:
                found = self._extract(stored, own, timestamp, from_, minor)
                if not found:
                    found, errors[len(keys)] = (own,), NO_KEY
            except Exception as error:  # any code of the user's: reported with the record, by its computation's policy
                found, errors[len(keys)] = (own,), f"its key cannot be extracted: {type(error).__name__}: {error}"
            keys += found
            places += [place] * len(found)
        had = columns.keys if self.read.shows_records else []
        if len(set(places)) == len(places):  # each under one key
            return Columns(keys, columns.values, columns.timestamps, columns.minors, errors, had)
        values, timestamps, minors = columns.values, columns.timestamps, columns.minors
        had = [had[n] for n in places] if had else []
        return Columns(keys, [values[n] for n in places], [timestamps[n] for n in places], [minors[n] for n in places], errors, had)

    def _extract(self, stored: bytes, own: str, timestamp: Timestamp, from_: str, minor: int) -> Collection[str]:
        """The last of `by` and `by_each` decides."""
        value = self._decode(stored)
        keys: Collection[str] = ()
        for change in self.read.changes:
            if not change.is_key:
                value = Record(own, value, timestamp, False, from_, minor) if change.whole else change.apply(value)
                continue
            found = change.apply(value)
            if change.spreads and isinstance(found, str | bytes):
                raise TypeError(f"by_each(...) returned {found!r}; return several keys, such as a list, or use by(...)")
            keys = dict.fromkeys(found) if change.spreads else (found,)
            for key in keys:
                if not is_text(key):
                    raise TypeError(f"{'by_each' if change.spreads else 'by'}(...) returned {not_text('key', key, 'return')}")
        return keys


def _undecoded(stored: bytes | str) -> Any:
    raise AssertionError("a stream that is not rekeyed is not decoded to route it")


class Dealer:
    """Deals records to the lanes of their readers, where they are made: a lane then reads only what is its own.

    Every record stands once under its own key, in a plain part; each reader with `by` or `by_each` gets further parts under its
    keys.
    """

    def __init__(self, graph: Graph, lanes: Lanes) -> None:
        self._lanes = lanes
        self._read_plainly = {read.stream.name for read in graph.inputs if not read.rekeyed}
        self._routers: dict[str, list[Router]] = {}
        for read in graph.inputs:
            if read.rekeyed:
                self._routers.setdefault(read.stream.name, []).append(Router(read))

    def deal(self, stream: str, origin: str, major: int, columns: Columns, *, lane: int) -> list[Dealt]:
        """The parts of some records. What no computation reads under its own key is not dealt: it stays in a part of `lane`."""
        dealt: list[Dealt] = []
        split = self._split(columns.keys, columns) if stream in self._read_plainly else [(lane, columns)]
        for to, some in split:
            dealt += [Dealt(to, stream, "", origin, major, piece) for piece in _cut(some)]
        for router in self._routers.get(stream, ()):
            dealt += self.deal_to(router, router.read.reader, origin, major, columns)
        return dealt

    def deal_to(self, router: Router, reader: str, origin: str, major: int, columns: Columns) -> list[Dealt]:
        """The parts of some records for one reader alone, under the keys that it sees."""
        keyed, stream = router.keyed(columns, f"{origin}/{major}/"), router.read.stream.name
        split = self._split(keyed.keys, keyed)
        return [Dealt(to, stream, reader, origin, major, piece) for to, some in split for piece in _cut(some)]

    def _split(self, keys: Sequence[str], columns: Columns) -> list[tuple[int, Columns]]:
        if self._lanes.count == 1:
            return [(0, columns)]
        carriers = self._lanes.of_all(keys)
        first = carriers[0] if carriers else 0
        if carriers.count(first) == len(carriers):  # most small epochs
            return [(first, columns)]
        return [(lane, _chosen(columns, [carrier == lane for carrier in carriers])) for lane in sorted(set(carriers))]


def _chosen(columns: Columns, wanted: list[bool]) -> Columns:
    errors = columns.errors
    if errors:
        places = list(compress(range(len(wanted)), wanted))
        errors = {new: errors[old] for new, old in enumerate(places) if old in errors}
    return Columns(
        list(compress(columns.keys, wanted)),
        list(compress(columns.values, wanted)),
        list(compress(columns.timestamps, wanted)),
        list(compress(columns.minors, wanted)),
        errors,
        list(compress(columns.own, wanted)),
    )


def _cut(columns: Columns) -> Iterator[Columns]:
    """Pieces that an epoch can be bounded by: of so many records, or so many bytes, at most."""
    count = len(columns.keys)
    if count <= RECORDS_PER_PART and sum(map(len, columns.values)) <= BYTES_PER_PART:
        if count:
            yield columns
        return
    start = size = 0
    for place, value in enumerate(columns.values):
        if place > start and (place - start >= RECORDS_PER_PART or size + len(value) > BYTES_PER_PART):
            yield _slice(columns, start, place)
            start, size = place, 0
        size += len(value)
    yield _slice(columns, start, count)


def _slice(columns: Columns, start: int, end: int) -> Columns:
    errors = {place - start: why for place, why in columns.errors.items() if start <= place < end}
    return Columns(
        columns.keys[start:end],
        columns.values[start:end],
        columns.timestamps[start:end],
        columns.minors[start:end],
        errors,
        columns.own[start:end],
    )


class Reading:
    """One stream as one computation reads it."""

    def __init__(self, read: InputPlan, rank: int) -> None:
        hops = [change for change in read.changes if not change.is_key]
        self.stream, self.mapped, self.index, self.place = read.stream.name, bool(hops), read.index, read.place
        self.timeless, self.rank = read.timeless, rank  # rank: among records of one time
        decode = value_decoder(read.stream.value_type)
        self.decode: Callable[[bytes], Any] = _reading(decode, [hop.apply for hop in hops])
        self.show = _showing(decode, hops) if read.shows_records else None  # instead of `decode`, if it sees records whole


def _reading(decode: Callable[[bytes], Any], maps: list[Callable[[Any], Any]]) -> Callable[[bytes], Any]:
    """How a reader sees a value: decoded, then changed by the `map`s of its stream."""
    if not maps:
        return decode

    def read(stored: bytes) -> Any:
        value = decode(stored)
        for change in maps:
            value = change(value)
        return value

    return read


def _showing(decode: Callable[[bytes], Any], hops: list[Hop]) -> Callable[[str, Timestamp, str, int, bytes], Any]:
    """The same for a reader that sees records whole: what they are made of comes with the value."""

    def show(key: str, timestamp: Timestamp, from_: str, number: int, stored: bytes) -> Any:
        value = decode(stored)
        for hop in hops:
            value = Record(key, value, timestamp, False, from_, number) if hop.whole else hop.apply(value)
        return value

    return show
