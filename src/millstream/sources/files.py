"""Files of a folder: found and listed in the driver, and given to the lanes in pieces."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.errors import LogError, TopologyError
from millstream.journal.disk import LocalDisk
from millstream.source import BYTES_PER_PIECE, Piece, Position, SourceContext, SourceReader
from millstream.sources.file_list import FileList, Listed
from millstream.sources.file_source import FileSource, matcher, split
from millstream.sources.formats import can_be_cut
from millstream.sources.reading import FilePiece, encode_pieces

LOOK_EVERY = 0.1  # seconds
LOOK_ANYWAY = 5.0  # seconds; also where the folder seems not to have changed, for clocks of file systems are coarse
COARSE = 0.1  # seconds by which the time of a folder may be wrong
OPENING = 4 << 10  # bytes that a file counts for at least: to open it takes time too
FILES_PER_PIECE = 1_000
RECORDS_PER_PIECE = 50_000  # of a file that cannot be cut
MAX_GIVEN = 64  # pieces that are not read yet


class Looker:
    """Finds the files of a source, in the order in which they are read: by their times, those of one time by their names."""

    def __init__(self, source: FileSource[Any], injector: str) -> None:
        self._folder, pattern = split(source.path)
        where = f"injector {injector!r}"
        if any(sign in self._folder for sign in "*?["):
            raise TopologyError(f"{where}: only the last part of a path may be a pattern, not {source.path!r}")
        if not Path(self._folder).is_dir():
            raise TopologyError(f"{where}: there is no folder {self._folder}; make it, or fix the path {source.path!r}")
        if Path(self._folder, "_spark_metadata").exists():
            raise TopologyError(
                f"{where}: {self._folder} was written by a streaming query of Spark's, which alone knows the files that count; "
                "read it with ms.dataframe(lambda spark: spark.readStream…)"
            )
        self._matches = matcher(pattern)
        self._seen = (0, 0.0)  # the time of the folder, and when it was looked at
        self.took = 0.0  # seconds, for the last look

    def look(self, passes: Callable[[str], bool], *, anyway: bool = False) -> list[Listed]:
        """Those that are new. Costs next to nothing while the folder stays as it is, unless it must be looked at anyway."""
        now, changed = time.time(), Path(self._folder).stat().st_mtime_ns
        known, looked = self._seen
        if changed == known and changed / 1e9 < looked - COARSE and now - looked < LOOK_ANYWAY and not anyway:
            return []
        began, found = time.perf_counter(), list[tuple[int, str, int]]()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not self._matches(entry.name):
                    continue
                with suppress(FileNotFoundError):  # one that is gone again
                    if entry.is_file() and not passes(entry.path):
                        if not _is_text(entry.name):
                            raise LogError(f"{entry.path!r} has a name that is not UTF-8, and could not be remembered; rename it")
                        stat = entry.stat()
                        found.append((stat.st_mtime_ns, entry.path, stat.st_size))
        self._seen, self.took = (changed, now), time.perf_counter() - began
        return [Listed(path, size) for _, path, size in sorted(found)]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def list_of(source: FileSource[Any], context: SourceContext) -> tuple[FileList, deque[Listed]]:
    """The list of an injector, and what of it is not read. Refuses one that commits know more of."""
    assert context.folder is not None
    injector, (first, place) = context.injector, _place(context.positions)
    listed = FileList(LocalDisk(context.folder.parent), context.folder.name)
    unread = deque(listed.load(first))
    if listed.count < first or (place and not unread):
        raise LogError(
            f"{context.folder} lists {listed.count} files of injector {injector!r}, and commits have read up to file "
            f"{first + bool(place)}: they would be read again; restore it from the copy that the journal is from"
        )
    if place and bool(context.positions["byte"]) != can_be_cut(source, unread[0].path):
        raise LogError(
            f"injector {injector!r} was in the middle of {unread[0].path} with another format, where its position means nothing; "
            f"give it back the format that it had, or another name"
        )
    return listed, unread


def came_later(source: FileSource[Any], context: SourceContext) -> str | None:
    """Of an input that had ended."""
    listed, _ = list_of(source, context)
    if not Path(split(source.path)[0]).is_dir():
        return None
    later = Looker(source, context.injector).look(listed.knows)
    if not later:
        return None
    return (
        f"{len(later)} files that came since are not read, such as {later[0].path}; inject them under another name, or leave out "
        f"bounded=True in a new folder"
    )


def _place(positions: Mapping[str, Position]) -> tuple[int, int]:
    """The file that comes next, and how many of its bytes or records are read."""
    return int(positions.get("file", 0)), int(positions.get("byte", 0)) or int(positions.get("record", 0))


class FilesReader(SourceReader):
    """Gives what is to be read, in order, some pieces ahead of what commits say is read."""

    def __init__(self, source: FileSource[Any], context: SourceContext) -> None:
        self._source, self._injector, self._most = source, context.injector, min(context.max_bytes, BYTES_PER_PIECE)
        self._looker = Looker(source, context.injector)
        self._list, self._unread = list_of(source, context)
        self._next = _place(context.positions)  # a file, and a place in it, that was not given yet
        self._ends: deque[tuple[int, int]] = deque()  # of the pieces that are given and not read
        self._whole: tuple[int, int] | None = None  # a file that cannot be cut, of which some is given: where it goes on is not known
        self._given = 0
        self._looked_last = False

    def poll(self, at_most: int, timeout: float) -> list[Piece]:
        deadline = time.monotonic() + timeout
        while True:
            self._look()
            made: list[Piece] = []
            while self._unread and self._whole is None and len(self._ends) < MAX_GIVEN:
                made.append(self._next_piece())
            # A folder of very many files is not looked at all the time.
            pause = min(max(LOOK_EVERY, 10 * self._looker.took), deadline - time.monotonic())
            if made or pause <= 0 or self._looked_last:
                return made
            time.sleep(pause)

    def confirm(self, positions: Mapping[str, Position]) -> None:
        read = _place(positions)
        while self._ends and self._ends[0] <= read:
            self._ends.popleft()
        if self._whole is not None and read > self._whole:
            if read[0] > self._whole[0]:
                self._unread.popleft()
            self._next, self._whole = read, None

    def ended(self) -> bool:
        return self._looked_last and not self._unread and not self._ends

    def _look(self) -> None:
        last = self.finishing or self._source.bounded
        if self._looked_last:
            return
        self._looked_last = last
        try:
            found = self._looker.look(self._list.knows, anyway=last)
        except OSError as error:
            raise LogError(f"injector {self._injector!r}: {self._source.path} cannot be listed: {error.strerror}") from error
        self._unread.extend(self._list.add(found) if found else ())

    def _next_piece(self) -> Piece:
        pieces: list[FilePiece] = []
        size, lane = 0, self._given
        while self._unread and size < self._most and len(pieces) < FILES_PER_PIECE:
            file, (number, place) = self._unread[0], self._next
            if can_be_cut(self._source, file.path):
                upto = place + self._most - size
                end = None if upto >= file.size - self._most // 2 else upto  # a short rest is no piece of its own
                pieces.append(FilePiece(number, file.path, file.size, place, end))
                size += max(OPENING, (file.size if end is None else end) - place)
            elif file.size <= self._most and not place:
                end = None
                pieces.append(FilePiece(number, file.path, file.size))
                size += max(OPENING, file.size)
            else:
                if pieces:
                    break
                self._whole, lane = (number, place), number
                pieces.append(FilePiece(number, file.path, file.size, place, at_most=RECORDS_PER_PIECE))
                size = self._most
                break
            if end is None:
                self._unread.popleft()
                self._next = (number + 1, 0)
            else:
                self._next = (number, end)
        self._given += 1
        if self._whole is None:
            self._ends.append(self._next)
        return Piece(encode_pieces(pieces), size, lane=lane)
