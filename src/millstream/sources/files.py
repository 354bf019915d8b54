"""Files of a folder: a thread of the driver finds them, lists them, and offers ranges of them to the lanes."""

from __future__ import annotations

import fnmatch
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.core.ledger import Commit, SourceProgress
from millstream.errors import LogError, MillstreamError, TopologyError
from millstream.injector import FileSource, Injection
from millstream.journal.disk import LocalDisk
from millstream.mill.messages import Fed, Range
from millstream.sources.file_list import FileList, Listed
from millstream.sources.formats import can_be_cut
from millstream.sources.reading import BYTES_PER_RANGE, FilePiece, encode_pieces

LOOK_EVERY = 0.1  # seconds
LOOK_ANYWAY = 5.0  # seconds; also where the folder seems not to have changed, for clocks of file systems are coarse
COARSE = 0.1  # seconds by which the time of a folder may be wrong
OPENING = 4 << 10  # bytes that a file counts for at least: to open it takes time too
PIECES_PER_RANGE = 1_000
RECORDS_PER_RANGE = 50_000  # of a file that cannot be cut
MAX_OFFERED = 64  # ranges that are not read yet


class Looker:
    """Finds the files of a source, in the order in which they are read: by their times, those of one time by their names."""

    def __init__(self, injection: Injection) -> None:
        source = _files(injection)
        self._folder, pattern = split(source.path)
        where = f"injector {injection.name!r}"
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


def has_folder(injection: Injection) -> bool:
    return Path(split(_files(injection).path)[0]).is_dir()


def split(path: str) -> tuple[str, str]:
    """A folder, and the pattern of the files in it."""
    found = Path(path)
    if found.is_dir():
        return os.path.normpath(found.absolute()), "*"
    return os.path.normpath(found.parent.absolute()), found.name


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a file of this name is one; those that are hidden, or being copied by Hadoop, never are."""
    matches = re.compile("|".join(fnmatch.translate(each) for each in alternatives(pattern))).match
    return lambda name: matches(name) is not None and not name.startswith((".", "_")) and not name.endswith("._COPYING_")


def would_read(source: FileSource[Any], folder: Path, name: str) -> bool:
    """Whether the source takes a file of this name for its own, were it in that folder."""
    own, pattern = split(source.path)
    return Path(own).resolve() == folder.resolve() and matcher(pattern)(name)


def alternatives(pattern: str) -> list[str]:
    """`{a,b}` is either, as in Spark's patterns; `fnmatch` does not know it."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    return [each for part in found[1].split(",") for each in alternatives(pattern[: found.start()] + part + pattern[found.end() :])]


def list_of(inputs: Path, injection: Injection, source: SourceProgress | None) -> tuple[FileList, deque[Listed]]:
    """The list of an injector, and what of it is not read. Refuses one that commits know more of."""
    if source is not None and source.batch >= 0:
        raise LogError(
            f"injector {injection.name!r} was read by a query of Spark's in this folder, as an older version did with files: it would "
            f"be read again; give it another name, or use that version"
        )
    listed, (first, place) = FileList(LocalDisk(inputs), injection.name), _place(source)
    unread = deque(listed.load(first))
    if listed.count < first or (place and not unread):
        raise LogError(
            f"{inputs / injection.name} lists {listed.count} files of injector {injection.name!r}, and commits have read up to file "
            f"{first + bool(place)}: they would be read again; restore it from the copy that the journal is from"
        )
    if source is not None and place and bool(source.positions["byte"]) != can_be_cut(_files(injection), unread[0].path):
        raise LogError(
            f"injector {injection.name!r} was in the middle of {unread[0].path} with another format, where its position means nothing; "
            f"give it back the format that it had, or another name"
        )
    return listed, unread


def _place(source: SourceProgress | None) -> tuple[int, int]:
    """The file that comes next, and how many of its bytes or records are read."""
    positions = {} if source is None else source.positions
    return positions.get("file", 0), positions.get("byte", 0) or positions.get("record", 0)


def _files(injection: Injection) -> FileSource[Any]:
    assert isinstance(injection.source, FileSource)
    return injection.source


class FilesThread(threading.Thread):
    """Offers what is to be read, in order, some ranges ahead of what commits say is read. `error` is why it stopped."""

    def __init__(
        self,
        injection: Injection,
        inputs: Path,
        source: SourceProgress | None,
        *,
        offer: Callable[[list[Range]], None],
        feed: Callable[[Fed], None],
        most: int = BYTES_PER_RANGE,
    ) -> None:
        super().__init__(name=f"millstream lists files of {injection.name}", daemon=True)
        self._injector, self._offer, self._feed, self._most = injection.name, offer, feed, min(most, BYTES_PER_RANGE)
        self._source = _files(injection)
        self._looker = Looker(injection)
        self._list, self._unread = list_of(inputs, injection, source)
        self._read = self._next = _place(source)  # a file, and a place in it: committed, offered
        self._ends: deque[tuple[int, int]] = deque()  # of the ranges that are offered and not read
        self._whole: tuple[int, int] | None = None  # a file that cannot be cut, of which some is offered: where it goes on is not known
        self._offered = 0
        self._news = threading.Condition()
        self._stopped = self._finishing = self._looked_last = False
        self.error: MillstreamError | None = None

    def on_commit(self, commit: Commit) -> None:
        """Called by another thread."""
        change = commit.sources.get(self._injector)
        if change is not None and change.positions:
            with self._news:
                self._read = _place(SourceProgress(positions=change.positions))
                self._news.notify()

    def stop(self) -> None:
        """Offer nothing more. Does not wait."""
        with self._news:
            self._stopped = True
            self._news.notify()

    def finish(self) -> None:
        """No more files but those that are there now; it ends when they are read. Does not wait either."""
        with self._news:
            self._finishing = True
            self._news.notify()

    def run(self) -> None:
        try:
            while self._turn():
                pass
        except MillstreamError as error:
            self.error = error
        except Exception as error:  # the run watches for it: a thread has nobody to raise to
            why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self.error = LogError(f"injector {self._injector!r}: {self._source.path} cannot be listed: {why}")

    def _turn(self) -> bool:
        with self._news:
            last, read = self._finishing or self._source.bounded, self._read
            if self._stopped:
                return False
        self._pass_over(read)
        if not self._looked_last:
            self._looked_last = last
            found = self._looker.look(self._list.knows, anyway=last)
            self._unread.extend(self._list.add(found) if found else ())
        self._offer_some()
        if last and not self._unread and not self._ends:
            if self._source.bounded:
                self._feed(Fed(self._injector, [], {}, finished=True))
            return False
        with self._news:
            self._news.wait_for(lambda: self._stopped or self._read != read or (self._finishing and not last), self._pause)
        return True

    @property
    def _pause(self) -> float:
        """Until the next look: a folder of very many files is not looked at all the time."""
        return max(LOOK_EVERY, 10 * self._looker.took)

    def _pass_over(self, read: tuple[int, int]) -> None:
        """What commits have read."""
        while self._ends and self._ends[0] <= read:
            self._ends.popleft()
        if self._whole is not None and read > self._whole:
            if read[0] > self._whole[0]:
                self._unread.popleft()
            self._next, self._whole = read, None

    def _offer_some(self) -> None:
        made: list[Range] = []
        while self._unread and self._whole is None and len(self._ends) < MAX_OFFERED:
            made.append(self._next_range())
        if made:
            self._offer(made)

    def _next_range(self) -> Range:
        pieces: list[FilePiece] = []
        size, lane = 0, self._offered
        while self._unread and size < self._most and len(pieces) < PIECES_PER_RANGE:
            file, (number, place) = self._unread[0], self._next
            if can_be_cut(self._source, file.path):
                upto = place + self._most - size
                end = None if upto >= file.size - self._most // 2 else upto  # a short rest is no range of its own
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
                pieces.append(FilePiece(number, file.path, file.size, place, at_most=RECORDS_PER_RANGE))
                size = self._most
                break
            if end is None:
                self._unread.popleft()
                self._next = (number + 1, 0)
            else:
                self._next = (number, end)
        self._offered += 1
        if self._whole is None:
            self._ends.append(self._next)
        return Range(self._injector, lane, size, encode_pieces(pieces))
