"""Segments: files that frames are appended to. A part is read back only if its checksum fits."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from millstream.core.parts import Columns, Dealt, Frame, Part, RowsPart, decode_columns
from millstream.errors import LogError
from millstream.journal.disk import Appending, Disk
from millstream.journal.errors import Damaged, Missing, refusal
from millstream.journal.sealed import decoded

SEGMENTS = "segments"
BYTES_PER_SEGMENT = 64 << 20  # the next frame after this many begins a new one
BYTES_PER_READ = 8 << 20  # of redo, at once
SMALL_GAP = 256 << 10  # read over it rather than read twice

_FIRST_PAUSE = 0.01  # seconds; doubled from reading to reading
_LONGEST_PAUSE = 1.0


def segment_path(segment: str) -> str:
    """Where the segment lies that a frame names."""
    return f"{SEGMENTS}/{segment}"


class SegmentWriter:
    """Appends frames of one writer to segments of its own, whose names nobody else has.

    After an error of a write or a sync it is broken for good: what the kernel has dropped cannot be known (rule 19).
    """

    def __init__(self, disk: Disk, prefix: str, unique: Callable[[], str]) -> None:
        self._disk = disk
        self._prefix = prefix
        self._unique = unique
        self._file: Appending | None = None
        self._segment = ""
        self._size = 0
        self._entered = False  # whether the folder's entry is synced
        self._synced = True
        self._broken: str | None = None

    def append(self, dealt: Sequence[Dealt], *, rows: bytes | None = None, row_count: int = 0, lane: int) -> Frame:
        """Write a frame and sync it: once this returns, the frame may be reported."""
        frame = self.write(dealt, rows=rows, row_count=row_count, lane=lane)
        self.sync()
        return frame

    def write(self, dealt: Sequence[Dealt], *, rows: bytes | None = None, row_count: int = 0, lane: int) -> Frame:
        """Write a frame without syncing it: nobody may be told of it before `sync`."""
        if not dealt and rows is None:
            raise ValueError("a frame without parts and rows is not written; leave it out of the report")
        contents = [each.encoded() for each in dealt]
        if rows is not None:
            contents.append(rows)
        if self._size >= BYTES_PER_SEGMENT:
            self.roll()
        with self._breaking():
            file = self._file or self._begin()
            file.append(contents)
        self._synced = False
        parts: list[Part] = []
        offset = self._size
        for each, content in zip(dealt, contents, strict=False):  # the rows come after them
            parts.append(each.placed(offset, len(content), zlib.crc32(content)))
            offset += len(content)
        rows_part = None
        if rows is not None:
            rows_part = RowsPart(offset, len(rows), zlib.crc32(rows), row_count)
            offset += len(rows)
        self._size = offset
        return Frame(self._segment, lane, parts, rows_part)

    def sync(self) -> None:
        """What was written survives a power loss once this returns."""
        with self._breaking():
            if self._file is None or self._synced:
                return
            self._file.sync()
            if not self._entered:
                self._disk.sync_folder(SEGMENTS)
                self._entered = True
            self._synced = True

    def roll(self) -> None:
        """The next frame begins a new segment."""
        self.sync()
        self.close()

    def close(self) -> None:
        """Let go of the file. What was not synced may be lost."""
        file, self._file = self._file, None
        self._size, self._synced = 0, True
        if file is not None:
            file.close()

    def _begin(self) -> Appending:
        self._segment = f"{self._prefix}-{self._unique()}"
        self._disk.make_folder(SEGMENTS)
        self._file = self._disk.create(segment_path(self._segment))
        self._entered = False
        return self._file

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Any error inside breaks the writer; one of the system says which file and what to do."""
        if self._broken is not None:
            raise LogError(f"{self._broken}; nothing more is written there: start again")
        try:
            yield
        except BaseException as error:
            path = segment_path(self._segment)
            self._broken = f"{path} could not be written: {error}"
            if isinstance(error, OSError):
                raise refusal(path, error) from error
            raise


class SegmentReader:
    """Reads parts of segments that commits name.

    On a network file system the size that a reader knows lags behind what another machine appended: what is short or does
    not fit its checksum is read again through a fresh open, for `timeout` seconds of pauses, before it is damage.
    """

    def __init__(self, disk: Disk, *, sleep: Callable[[float], None], timeout: float = 5.0) -> None:
        self._disk = disk
        self._sleep = sleep
        self._timeout = timeout

    def part(self, segment: str, part: Part) -> Columns:
        path = segment_path(segment)
        return decoded(f"{path} at byte {part.offset}", self._checked(path, part), decode_columns)

    def rows(self, segment: str, part: RowsPart) -> bytes:
        return self._checked(segment_path(segment), part)

    def rows_of(self, frames: Iterable[tuple[int, Frame]]) -> Iterator[tuple[int, bytes]]:
        """The changed rows of frames, with their epochs, in the order given; a frame without rows is left out.

        Rows that lie close to one another in a segment are read at once: give the frames of one lane in the order of epochs.
        """
        for segment, group in _neighbours(frames):
            path = segment_path(segment)
            start = group[0][1].offset
            content = self._read(path, start, group[-1][1].offset + group[-1][1].length - start)
            for epoch, part in group:
                rows = content[part.offset - start : part.offset - start + part.length]
                yield epoch, rows if _fits(rows, part) else self.rows(segment, part)

    def _checked(self, path: str, part: Part | RowsPart) -> bytes:
        content = self._read(path, part.offset, part.length)
        waited, pause = 0.0, _FIRST_PAUSE
        while not _fits(content, part):
            if waited >= self._timeout:
                what = "is cut" if len(content) < part.length else "has a wrong checksum"
                raise Damaged(f"{path} is damaged: the part of {part.length} bytes at byte {part.offset} {what}; restore it from a copy")
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LONGEST_PAUSE)
            self._disk.forget(path)
            content = self._read(path, part.offset, part.length)
        return content

    def _read(self, path: str, offset: int, length: int) -> bytes:
        try:
            return self._disk.read(path, offset, length)
        except FileNotFoundError as error:
            raise Missing(f"{path} is missing, and a commit names it; restore it from a copy") from error
        except OSError as error:
            if error.errno == errno.ESTALE:  # NFS: another machine removed the file that is open here; a fresh open will tell
                return b""
            raise refusal(path, error) from error


def _fits(content: bytes, part: Part | RowsPart) -> bool:
    return len(content) == part.length and zlib.crc32(content) == part.checksum


def _neighbours(frames: Iterable[tuple[int, Frame]]) -> Iterator[tuple[str, list[tuple[int, RowsPart]]]]:
    """Rows parts in groups, each of one segment and small enough to be read at once."""
    segment, group = "", list[tuple[int, RowsPart]]()
    for epoch, frame in frames:
        rows = frame.rows
        if rows is None:
            continue
        if group:
            start, end = group[0][1].offset, group[-1][1].offset + group[-1][1].length
            near = frame.segment == segment and end <= rows.offset <= end + SMALL_GAP
            if not near or rows.offset + rows.length - start > BYTES_PER_READ:
                yield segment, group
                group = []
        segment = frame.segment
        group.append((epoch, rows))
    if group:
        yield segment, group
