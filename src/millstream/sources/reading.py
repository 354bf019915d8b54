"""Files, as a lane reads them: ranges of them become records that wait for the next epoch."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.parts import RECORDS_PER_PART, Slice
from millstream.core.route import Dealer
from millstream.errors import MillstreamError, RecordError
from millstream.injector import FileSource, Injection
from millstream.mill.messages import Range
from millstream.sources.dealing import Intake
from millstream.sources.formats import Lines, can_be_cut, check_size, read_bytes, read_records
from millstream.timestamp import Timestamp

# A record's id says its file and its place there. Both stand in the minor, but for what a number of 63 bits cannot hold.
PLACE_BITS = 43
FILE_BITS = 20
BYTES_PER_RANGE = 2 << 20
INSTEAD = "an empty file in its place to go on without it"


class FilePiece(msgspec.Struct, array_like=True, frozen=True):
    """Some of a file: the lines that begin in a range of bytes, or records from one on where it cannot be cut."""

    number: int  # of the file, in the list
    path: str
    size: int  # of the file, when it was first seen
    start: int = 0
    end: int | None = None  # a byte; None for the end of the file
    at_most: int | None = None  # records, of one that cannot be cut


def position(file: int, *, byte: int = 0, record: int = 0) -> dict[str, int]:
    """How far a source is read: files before this one wholly, and of this one so many bytes, or records if it cannot be cut."""
    return {"file": file, "byte": byte, "record": record}


encode_pieces = msgspec.msgpack.Encoder().encode
_decode_pieces = msgspec.msgpack.Decoder(list[FilePiece]).decode


class RangesReader:
    """All sources of a topology that a lane reads. Made once in each process."""

    def __init__(self, graph: Graph, lanes: Lanes, *, at_once: int) -> None:
        self._injections, self._dealer, self._at_once = graph.injections, Dealer(graph, lanes), min(at_once, RECORDS_PER_PART)
        self._readers: dict[str, FileReader] = {}

    def read(self, of: Range, now: Timestamp) -> Iterator[Slice]:
        reader = self._readers.get(of.injector)
        if reader is None:
            injection = self._injections[of.injector]
            reader = self._readers[of.injector] = FileReader(injection, Intake(injection, self._dealer), at_once=self._at_once)
        return reader.read(of, now)


class FileReader:
    """Reads ranges of one injector. A file that cannot be cut stays open from range to range."""

    def __init__(self, injection: Injection, intake: Intake, *, at_once: int) -> None:
        assert isinstance(injection.source, FileSource)
        self._injection, self._source, self._intake, self._at_once = injection, injection.source, intake, at_once
        self._open: tuple[int, int, Iterator[Lines]] | None = None  # a file, how many of its records were given, and the rest

    def read(self, of: Range, now: Timestamp) -> Iterator[Slice]:
        """A slice at a time, so that memory is bounded whatever a range holds; the last one says how far the source is read."""
        waiting, major = Lines([], []), 0
        positions: dict[str, int] = {}
        for piece in _decode_pieces(of.content):
            if waiting.texts and piece.number >> FILE_BITS != major:
                yield self._slice(waiting, major, now)
                waiting = Lines([], [])
            major = piece.number >> FILE_BITS
            high = (piece.number & ((1 << FILE_BITS) - 1)) << PLACE_BITS
            for lines in self._lines(piece, positions):
                _extend(waiting, lines, high)
                while len(waiting.texts) >= self._at_once:
                    some, waiting = _cut(waiting, self._at_once)
                    yield self._slice(some, major, now)
        last = self._slice(waiting, major, now)
        last.positions = positions
        yield last

    def _slice(self, lines: Lines, major: int, now: Timestamp) -> Slice:
        taken = self._intake.read(lines.places, lines.texts, now=now, major=major, columns=lines.columns, reasons=lines.reasons)
        return self._intake.slice(taken, major)

    def _lines(self, piece: FilePiece, positions: dict[str, int]) -> Iterator[Lines]:
        try:
            if not check_size(piece.path, piece.size):
                done = position(piece.number + 1)
            elif can_be_cut(self._source, piece.path):
                yield read_bytes(self._source, piece.path, piece.start, piece.end)
                done = position(piece.number + 1) if piece.end is None else position(piece.number, byte=piece.end)
            else:
                done = yield from self._records(piece)
        except FileNotFoundError as error:
            raise self._refused(piece, f"it is gone; put it back, or {INSTEAD}") from error
        except EOFError as error:
            raise self._refused(piece, f"it was cut: {error}; put it back as it was, or {INSTEAD}") from error
        except (MillstreamError, MemoryError):
            raise
        except Exception as error:  # whatever a library says of content that is not right
            raise self._refused(piece, f"it cannot be read: {type(error).__name__}: {error}") from error
        positions.update(done)

    def _records(self, piece: FilePiece) -> Generator[Lines, None, dict[str, int]]:
        """Returns how far the source is read then."""
        kept, self._open, size = self._open, None, 0
        if kept is not None and kept[0] == piece.number and kept[1] <= piece.start:
            rest = kept[2]  # another lane may have read some in between
        else:
            rest = read_records(self._injection, piece.path, piece.start, self._at_once)
        for lines in rest:
            if lines.after <= piece.start:
                continue
            fresh = _cut(lines, sum(place < piece.start for place in lines.places))[1]
            yield fresh
            size += sum(map(len, fresh.texts))
            if piece.at_most is not None and (lines.after - piece.start >= piece.at_most or size >= BYTES_PER_RANGE):
                self._open = (piece.number, lines.after, rest)
                return position(piece.number, record=lines.after)
        return position(piece.number + 1)

    def _refused(self, piece: FilePiece, why: str) -> RecordError:
        return RecordError(f"injector {self._injection.name!r}, {piece.path}", why)


def _extend(waiting: Lines, lines: Lines, high: int) -> None:
    begin = len(waiting.texts)
    waiting.texts += lines.texts
    waiting.places += [high | place for place in lines.places]
    if lines.columns is not None:
        waiting.columns = [*(waiting.columns or []), *lines.columns]
    if lines.reasons:
        waiting.reasons = {**waiting.reasons, **{begin + position: why for position, why in lines.reasons.items()}}


def _cut(lines: Lines, count: int) -> tuple[Lines, Lines]:
    def of(begin: int, end: int) -> Lines:
        columns: list[dict[str, Any]] | None = None if lines.columns is None else lines.columns[begin:end]
        reasons = {position - begin: why for position, why in lines.reasons.items() if begin <= position < end}
        return Lines(lines.texts[begin:end], lines.places[begin:end], columns, reasons)

    return of(0, count), of(count, len(lines.texts))
