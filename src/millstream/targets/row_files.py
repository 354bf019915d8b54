"""Which files of a table of rows hold which keys, and which of them are to become one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from millstream.errors import LogError
from millstream.log.rows import ROWS_PER_FILE

BYTES_PER_FILE = 64 << 20  # of rows, as they are in memory
MERGED = 8  # so many files of a size become one
FULL = 0.5  # what holds so much of what a file may is not merged with others

Hashes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"


@dataclass(frozen=True)
class RowFile:
    """A file, with the hashes of its keys in order: eight bytes a row. Python's own hashes do, for they never leave the process."""

    path: str
    size: int
    hashes: Hashes
    load: float  # how much of what a file may hold it holds

    def holds(self, wanted: Hashes) -> bool:
        """Whether it may hold a row with one of these hashes: surely, if it does."""
        few, many = (wanted, self.hashes) if len(wanted) < len(self.hashes) else (self.hashes, wanted)
        if not len(few):
            return False
        at = np.searchsorted(many, few)
        at[at == len(many)] = 0
        return bool((many[at] == few).any())


class RowFiles:
    """The files of a table at one version, and what a step that is under way makes of them."""

    def __init__(self, root: Path, key: str) -> None:
        self._root, self._key = root, key
        self._files: dict[str, RowFile] = {}
        self.version: int | None = None  # that they are of; None if that is not known

    def __len__(self) -> int:
        return len(self._files)

    def follow(self, table: DeltaTable) -> None:
        """The files of the table as it stands. Of those that are new here the keys are read."""
        if self.version != table.version():
            listed = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"]).to_pylist()
            live = {unquote(each["path"]): each["size_bytes"] for each in listed}
            self._files = {path: self._files.get(path) or self._opened(path, size) for path, size in live.items()}
            self.version = table.version()

    def forget(self) -> None:
        """What is under way comes to nothing."""
        self.version = None

    def add(self, path: str, size: int, rows: pa.Table) -> None:
        load = max(rows.num_rows / ROWS_PER_FILE, rows.nbytes / BYTES_PER_FILE)
        self._files[path] = RowFile(path, size, hashes(rows[self._key].to_pylist()), load)

    def remove(self, path: str) -> None:
        del self._files[path]

    def holding(self, keys: Collection[str]) -> list[RowFile]:
        """Those that may hold a row of one of these keys."""
        wanted = hashes(keys)
        return [file for file in self._files.values() if file.holds(wanted)]

    def to_merge(self) -> list[RowFile]:
        """Small ones, if there are many of a size: the number of files follows the rows, and a row is written again for each time
        that its file becomes `MERGED` times as large."""
        sizes: dict[int, list[RowFile]] = {}
        for file in self._files.values():
            if file.load < FULL:
                sizes.setdefault(_size_class(file.load), []).append(file)
        return [file for files in sizes.values() if len(files) >= MERGED for file in files]

    def read(self, path: str, columns: list[str] | None = None) -> pa.Table:
        try:
            return pq.read_table(self._root / path, columns=columns, page_checksum_verification=True, partitioning=None)
        except FileNotFoundError as error:
            raise LogError(f"{self._root / path} is missing, and the table names it; restore it from a copy") from error
        except (pa.ArrowException, OSError) as error:
            raise LogError(f"{self._root / path} is damaged: {error}; restore it from a copy") from error

    def _opened(self, path: str, size: int) -> RowFile:
        keys = self.read(path, [self._key])
        try:
            with pq.ParquetFile(self._root / path) as file:
                groups = file.metadata
                weight = sum(groups.row_group(n).total_byte_size for n in range(groups.num_row_groups))
        except (pa.ArrowException, OSError) as error:
            raise LogError(f"{self._root / path} is damaged: {error}; restore it from a copy") from error
        load = max(keys.num_rows / ROWS_PER_FILE, weight / BYTES_PER_FILE)
        return RowFile(path, size, hashes(keys[self._key].to_pylist()), load)


def hashes(keys: Iterable[str]) -> Hashes:
    return np.sort(np.fromiter(map(hash, keys), np.int64))


def slices(rows: pa.Table) -> Iterator[pa.Table]:
    """As many as fit a file each."""
    if not rows.num_rows:
        return
    fit = max(1, min(ROWS_PER_FILE, rows.num_rows * BYTES_PER_FILE // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, fit):
        yield rows.slice(start, fit)


def _size_class(load: float) -> int:
    """Counts from the largest: in each a file has up to `MERGED` times what it has in the next."""
    found = 0
    while load * MERGED < FULL and found < 6:
        load, found = load * MERGED, found + 1
    return found
