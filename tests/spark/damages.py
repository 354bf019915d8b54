"""Ways to damage a file, and how it is undone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk

Damage = Callable[[Path], None]


def torn(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def turned(path: Path) -> None:
    """One bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def turned_digit(path: Path) -> None:
    """One bit of a number, so that what is left can be read."""
    content = bytearray(path.read_bytes())
    last = max(
        place for place, byte in enumerate(content) if byte in b"0123456789" and content[place + 1 : place + 2] in (b",", b"}", b"]")
    )
    content[last] ^= 1
    path.write_bytes(content)


def turned_page(path: Path) -> None:
    """One bit of the values in a Parquet file."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def unchecked(damage: Damage) -> Damage:
    """Without the checksum that Hadoop keeps beside the file."""

    def both(path: Path) -> None:
        damage(path)
        path.with_name(f".{path.name}.crc").unlink()

    both.__name__ = f"{damage.__name__} without checksum"
    return both


def replaced_by_file(other: Path) -> Damage:
    content = other.read_bytes()

    def replace(path: Path) -> None:
        path.write_bytes(content)

    return replace


def cut_off(log: Path) -> None:
    """Without its newer entries, which commits know of."""
    for entry in sorted(log.glob("*.json"))[3:]:
        entry.unlink()


def turned_first_digit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[next(place for place, byte in enumerate(content) if byte in b"123456789")] ^= 1
    path.write_bytes(content)


def turned_rows(epoch: int) -> Damage:
    """One bit of the rows that a lane has to redo."""

    def turn(path: Path) -> None:
        commit = Commits(LocalDisk(path.parent.parent)).read(epoch)
        assert commit is not None
        rows = next(frame.rows for frame in commit.frames if frame.rows is not None and frame.segment == path.name)
        content = bytearray(path.read_bytes())
        content[rows.offset + rows.length // 2] ^= 0x10
        path.write_bytes(content)

    return turn


def replaced_by(copy: Path) -> Damage:
    """What was there at an earlier moment."""

    def replace(path: Path) -> None:
        shutil.rmtree(path)
        shutil.copytree(copy, path)

    return replace


@contextmanager
def damaged(path: Path, damage: Damage) -> Iterator[None]:
    """Damaged inside; afterwards it is put back, it alone."""
    with tempfile.TemporaryDirectory() as aside:
        both = [file for file in (path, path.with_name(f".{path.name}.crc")) if file.exists()]
        for file in both:
            _copy(file, Path(aside, file.name))
        damage(path)
        assert path.is_dir() or not path.exists() or path.read_bytes() != Path(aside, path.name).read_bytes()
        yield
        for file in both:
            _copy(Path(aside, file.name), file)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
