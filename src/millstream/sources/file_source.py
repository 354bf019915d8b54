"""Files of a folder as a source. What reads them is loaded when it is used."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path, PurePath
from types import UnionType
from typing import Any, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.format import Format
from millstream.source import PieceReader, Source, SourceContext, SourceReader

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


SUFFIXES = {
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".json": Format.JSON_LINES,
    ".txt": Format.TEXT,
    ".log": Format.TEXT,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")  # by the name of each file


@dataclass(frozen=True)
class FileSource(Source[V_co]):
    """`files` makes one."""

    gives_pieces = True
    path: str
    value_type: Any
    format: Format
    bounded: bool
    separator: str = ","  # of the cells of CSV
    columns: Mapping[str, str] = field(default_factory=dict)  # by field of the value: what the files call it

    @property
    def has_columns(self) -> bool:  # type: ignore[override]
        return self.format is Format.PARQUET

    @property
    def lenient(self) -> bool:  # type: ignore[override]
        """The cells of CSV are text: the type of the value says what they are, and what is kept is spelled by it."""
        return self.format is Format.CSV

    def describe(self) -> str:
        """A pattern and a format do not count: files are known by their names."""
        return f"files in {split(self.path)[0]}"

    def check(self, context: SourceContext) -> None:
        from millstream.sources.files import Looker, list_of

        list_of(self, context)
        if not context.finished:
            Looker(self, context.injector)

    def open(self, context: SourceContext) -> SourceReader:
        from millstream.sources.files import FilesReader

        return FilesReader(self, context)

    def piece_reader(self, context: SourceContext) -> PieceReader:
        from millstream.sources.reading import FilePieceReader

        return FilePieceReader(self, context)

    def left_over(self, context: SourceContext) -> str | None:
        from millstream.sources.files import came_later

        return came_later(self, context)

    def would_read(self, path: Path) -> bool:
        own, pattern = split(self.path)
        return not self.bounded and Path(own).resolve() == path.parent.resolve() and matcher(pattern)(path.name)


def files(
    path: str | PathLike[str],
    value: type[V] | UnionType,
    *,
    format: Format | None = None,
    bounded: bool = False,
    separator: str = ",",
    columns: Mapping[str, str] | None = None,
) -> Source[V]:
    """Files that match `path`, one record a line or row: those that are there, and those that come, unless `bounded`.

    A file is read once, when it is first seen: write it elsewhere and move it in when it is whole. They are read in the order
    of their times, and those of one time in the order of their names. `separator` is that of CSV. `columns` says what the
    files call a field of the value, where it is not the same.

        ms.files("clicks/*.jsonl", Click)
        ms.files("orders/*.csv", Order, separator=";", columns={"customer": "Kunde"})
    """
    path = arguments.path("files", path)
    arguments.pattern("files", path)
    bare = PurePath(path)
    while bare.suffix in COMPRESSED:
        bare = bare.with_suffix("")
    found = SUFFIXES.get(bare.suffix) if format is None else arguments.choice("files", "format", format, Format)
    if found is None:
        raise TopologyError(
            f"what do the files {path!r} hold? End the path in one of {', '.join(SUFFIXES)}, or say format=ms.Format.JSON_LINES"
        )
    if separator != "," and found is not Format.CSV:
        raise TopologyError(f"files(separator={separator!r}): only CSV has one, and these are {found.name}; say format=ms.Format.CSV")
    if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
        raise TopologyError(f"files(separator={separator!r}): give one character, such as ';'")
    names = arguments.renaming("files", "columns", {} if columns is None else columns)
    if names and found not in (Format.CSV, Format.PARQUET):
        raise TopologyError(f"files(columns={columns!r}): {found.name} has no columns; rename the fields of the value instead")
    kind = arguments.value_type("files", value)
    fields = arguments.fields_of(kind)
    if fields is not None and (missing := [name for name in names if name not in fields]):
        raise TopologyError(
            f"files(columns={columns!r}): {getattr(kind, '__name__', kind)} has no field {missing[0]!r}; "
            f"it has {', '.join(fields) or 'none'}. "
            f"Write what the value calls it first, then what the files do"
        )
    if found is Format.TEXT and kind is not str:
        raise TopologyError(f"files: a line of text is a str, not {kind}; give str, and take it apart where it is read")
    return FileSource(path, kind, found, arguments.flag("files", "bounded", bounded), separator, names)


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


def alternatives(pattern: str) -> list[str]:
    """`{a,b}` is either, as in Spark's patterns; `fnmatch` does not know it."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    return [each for part in found[1].split(",") for each in alternatives(pattern[: found.start()] + part + pattern[found.end() :])]
