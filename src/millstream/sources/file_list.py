"""The files that an injector has found, in the order in which it reads them: a list that only grows, kept with the run.

An entry is named by the number of its first file and created so that only one can have that name. So two runs that look at
the same folder, of which one does not know yet that it was overtaken, still make one list, and no file stands in it twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from millstream.errors import LogError
from millstream.journal.disk import Disk
from millstream.journal.errors import explained
from millstream.journal.sealed import seal, unseal

FILES_PER_ENTRY = 10_000
MERGE_AT = 256  # entries
_TRIES = 5  # to read a list that another process merges meanwhile
_MERGED = re.compile(r"(\d{12,})-(\d{12,})")


class Listed(msgspec.Struct, array_like=True, frozen=True):
    """A file as it was first seen."""

    path: str
    size: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Listed]).decode


class FileList:
    """Reads what there is when it is made. `count` is how many files there are, and the number of the next one."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk, self._folder = disk, folder
        self.count = self._merged = 0
        self._entries = 0  # that are not merged
        self._known: set[str] = set()

    def load(self, first: int = 0) -> list[Listed]:
        """The files from this number on."""
        with explained(self._folder):
            for _ in range(_TRIES):
                try:
                    found = self._load(first)
                except FileNotFoundError:  # another one merges it
                    continue
                if self._is_merged_beyond(self.count):
                    continue
                if self.count:  # whoever made the newest entry may have died before it was there for good
                    self._disk.sync_folder(self._folder)
                return found
        raise LogError(f"{self._folder}: entries of this list vanish while it is read; is another run using it?")

    def knows(self, path: str) -> bool:
        return path in self._known

    def add(self, found: Sequence[Listed]) -> list[Listed]:
        """Make it durable that these come next; returns all that are new to this process, also those that another has added."""
        added: list[Listed] = []
        with explained(self._folder):
            self._disk.make_folder(self._folder)
            while fresh := [file for file in found if file.path not in self._known]:
                entry = fresh[:FILES_PER_ENTRY]
                first = self.count
                created = self._disk.create_whole(self._path(first), seal(_encode(entry)))
                self._disk.sync_folder(self._folder)
                if self._is_merged_beyond(first):  # by another run: the name was free again, and what was created is nothing
                    added += self.load(first)
                elif created:
                    added += self._take(entry)
                else:
                    added += self._next() or []
            if self._entries >= MERGE_AT and not self._is_merged_beyond(self._merged):
                self._merge()
        return added

    def _load(self, first: int) -> list[Listed]:
        self.count = self._merged = self._entries = 0
        self._known = set()
        found: list[Listed] = []
        while (end := self._merged_from(self.count)) is not None:
            found += self._take(self._read(self._merged_path(self.count, end)))[max(0, first - self._merged) :]
            self._merged = end
        while (entry := self._next()) is not None:
            found += entry[max(0, first - (self.count - len(entry))) :]
        return found

    def _next(self) -> list[Listed] | None:
        """The next entry, if there is one."""
        path = self._path(self.count)
        if not self._disk.exists(path):
            return None
        return self._take(self._read(path))

    def _take(self, entry: list[Listed]) -> list[Listed]:
        self.count += len(entry)
        self._entries += 1
        self._known.update(file.path for file in entry)
        return entry

    def _read(self, path: str) -> list[Listed]:
        return unseal(path, self._disk.read(path), _decode)

    # Merging: many small files become few, each at least twice as long as the next.

    def _merge(self) -> None:
        begins, content = self._merged, [file for entry in self._entries_after(self._merged) for file in entry]
        folder = f"{self._folder}/merged"
        self._disk.make_folder(folder)
        for before, end in sorted(self._all_merged(), reverse=True):
            if end == begins and end - before <= 2 * len(content):
                content = self._read(self._merged_path(before, end)) + content
                begins = before
        self._disk.create_whole(self._merged_path(begins, self.count), seal(_encode(content)))
        self._disk.sync_folder(folder)
        for name in self._disk.names(self._folder):
            if name.isdigit() and int(name) < self.count:
                self._disk.remove(f"{self._folder}/{name}")
        for first, end in self._all_merged():
            if begins <= first and end < self.count:
                self._disk.remove(self._merged_path(first, end))
        self._merged, self._entries = self.count, 0

    def _entries_after(self, number: int) -> Iterator[list[Listed]]:
        while number < self.count:
            entry = self._read(self._path(number))
            yield entry
            number += len(entry)

    def _all_merged(self) -> list[tuple[int, int]]:
        found = (_MERGED.fullmatch(name) for name in self._disk.names(f"{self._folder}/merged"))
        return [(int(name[1]), int(name[2])) for name in found if name is not None]

    def _is_merged_beyond(self, number: int) -> bool:
        return any(end > number for _, end in self._all_merged())

    def _merged_from(self, number: int) -> int | None:
        return max((end for first, end in self._all_merged() if first == number), default=None)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}"

    def _merged_path(self, first: int, end: int) -> str:
        return f"{self._folder}/merged/{first:012d}-{end:012d}"
