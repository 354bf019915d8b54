"""Files, as a lane reads them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from millstream.errors import MillstreamError, RecordError
from millstream.source import BYTES_PER_PIECE, Batch, Piece, PieceReader, SourceContext
from millstream.sources.file_source import FileSource
from millstream.sources.formats import Lines, can_be_cut, check_size, read_bytes, read_records

# A record's id says its file and its place there. Both stand in the minor, but for what a number of 63 bits cannot hold.
PLACE_BITS = 43
FILE_BITS = 20
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


class FilePieceReader(PieceReader):
    """A file that cannot be cut stays open from piece to piece."""

    def __init__(self, source: FileSource[Any], context: SourceContext) -> None:
        self._source, self._context = source, context
        self._at_once = 1
        self._open: tuple[int, int, Iterator[Lines]] | None = None  # a file, how many of its records were given, and the rest

    def read(self, piece: Piece, at_most: int) -> Iterator[Batch]:
        """The last batch says how far the source is read; the others before it say nothing of that."""
        waiting, major, self._at_once = Lines([], []), 0, at_most
        positions: dict[str, int] = {}
        for some_file in _decode_pieces(piece.content):
            if waiting.texts and some_file.number >> FILE_BITS != major:
                yield _batch(waiting, major)
                waiting = Lines([], [])
            major = some_file.number >> FILE_BITS
            high = (some_file.number & ((1 << FILE_BITS) - 1)) << PLACE_BITS
            for lines in self._lines(some_file, positions):
                _extend(waiting, lines, high)
                while len(waiting.texts) >= at_most:
                    some, waiting = _cut(waiting, at_most)
                    yield _batch(some, major)
        last = _batch(waiting, major)
        last.positions = positions
        yield last

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
            rest = read_records(self._source, self._context, piece.path, piece.start, self._at_once)
        for lines in rest:
            if lines.after <= piece.start:
                continue
            fresh = _cut(lines, sum(place < piece.start for place in lines.places))[1]
            yield fresh
            size += sum(map(len, fresh.texts))
            if piece.at_most is not None and (lines.after - piece.start >= piece.at_most or size >= BYTES_PER_PIECE):
                self._open = (piece.number, lines.after, rest)
                return position(piece.number, record=lines.after)
        return position(piece.number + 1)

    def _refused(self, piece: FilePiece, why: str) -> RecordError:
        return RecordError(f"injector {self._context.injector!r}, {piece.path}", why)


def _batch(lines: Lines, major: int) -> Batch:
    return Batch(lines.texts, lines.places, {}, major=major, columns=lines.columns, reasons=lines.reasons)


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
