"""What in a folder must fit together, looked at before a run changes anything in it.

A checkpoint that is older than the journal would not fail by itself: input would be taken twice or passed over. Of
Spark's checkpoints only the names of files are looked at: `offsets/N` stands before batch N runs, `commits/N` after it.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from millstream.core.ledger import Ledger
from millstream.core.parts import Redo
from millstream.errors import LogError
from millstream.journal.commits import Commits
from millstream.journal.notes import Notes
from millstream.journal.segments import segment_path
from millstream.log.folder import Folder

CHUNK = struct.Struct(">I")  # of Hadoop's checksums
CHECKSUMS = b"crc\0"


@dataclass(frozen=True)
class QueryCheckpoint:
    """How far Spark says that a query has come; -1 before the first batch."""

    path: Path
    done: int
    planned: int

    @property
    def begun(self) -> bool:
        return self.planned >= 0


def checkpoint_of(folder: Folder, query: str) -> QueryCheckpoint:
    """Refuses one that lacks a file in the middle: Spark would run a batch again, or leave one out, without a word."""
    path = folder.checkpoint(query)
    done = _newest(path / "commits")  # first, for another run may be under way where the lock does not reach
    planned = _newest(path / "offsets")
    if done > planned:
        raise LogError(f"{path / 'offsets' / str(done)} is missing, but {path / 'commits' / str(done)} is there; restore it from a copy")
    if planned > _newest(path / "commits") + 1:
        raise LogError(f"{path / 'commits' / str(planned - 1)} is missing, but batch {planned} follows it; restore it from a copy")
    if planned >= 0 and not (path / "metadata").exists():
        raise LogError(f"{path / 'metadata'} is missing, but {path / 'offsets' / str(planned)} is there; restore it from a copy")
    return QueryCheckpoint(path, done, planned)


def check_injector(folder: Folder, name: str, taken: int) -> None:
    """A query that does not know what it has injected would take its source in from the beginning."""
    checkpoint = checkpoint_of(folder, f"inject {name}")
    if checkpoint.planned < taken:
        raise LogError(
            f"{_state_of(checkpoint)}, but commits have batch {taken} of injector {name!r}: it would take its source in again; "
            f"restore the checkpoint from the copy that the journal is from"
        )


def check_noted(folder: Folder, name: str, taken: int, notes: Notes) -> None:
    """What Spark says is done has left a note, or is in a commit."""
    done = checkpoint_of(folder, f"inject {name}").done
    for batch in range(taken + 1, done + 1):
        if not notes.known(name, batch):
            raise LogError(
                f"the journal ends with batch {taken} of injector {name!r}, its checkpoint with {done}, and the note of batch {batch} "
                f"is missing; restore journal and checkpoint from one copy"
            )


def check_lane(folder: Folder, lane: int, ledger: Ledger) -> None:
    """A lane whose checkpoint is gone would begin from nothing, and the journal no longer has all of it."""
    checkpoint = checkpoint_of(folder, f"lane {lane}")
    free = ledger.free_rows(lane)
    if not ledger.number and checkpoint.begun:
        raise LogError(f"{folder.journal} is gone or empty, and {checkpoint.path} is of a run that had one; restore it from a copy")
    if free and checkpoint.done < 0:
        raise LogError(
            f"{checkpoint.path} is gone or empty, and the journal has let go of what it held up to epoch {free}; restore it from a copy"
        )
    state = checkpoint.path / "state"
    if checkpoint.done >= 0 and free and not any(state.glob("0/*/*")):
        raise LogError(f"{state} is missing: it holds what all keys of lane {lane} have kept; restore it from a copy")


def check_segments(commits: Commits, ledger: Ledger, redo: Iterable[Redo]) -> None:
    """Every segment that is needed is there, and long enough; what is in it is checked when it is read."""
    ends: dict[str, int] = {}
    for segment, parts in ledger.waiting.items():
        ends[segment] = max(part.offset + part.length for _, part in parts.values())
    for each in redo:
        ends[each.segment] = max(ends.get(each.segment, 0), each.rows.offset + each.rows.length)
    for segment in ledger.segments:
        ends.setdefault(segment, 0)
    for segment, end in ends.items():
        path = segment_path(segment)
        if not commits.disk.exists(path):
            raise LogError(f"{path} is missing, and commits name it; restore it from a copy")
        if (size := commits.disk.size(path)) < end:
            raise LogError(f"{path} is cut: it has {size} bytes, and commits name {end}; restore it from a copy")


def check_position(
    place: str, *, before: int, after: int, recorded: int, newest: int, remedy: str = "restore both from copies of one moment"
) -> None:
    """A table that is from another copy than the journal would get something twice, or never.

    Another run may still go on: its position was read before and after the commits, which say `recorded` and `newest`.
    """
    if after < recorded:
        raise LogError(
            f"{place} ends with epoch {after}, but the commits say that it had {recorded}: it has lost what lies between; {remedy}"
        )
    if before > newest:
        raise LogError(f"{place} has epochs up to {before}, but commits end with {newest}: this folder is from an older copy; {remedy}")


def damaged_files(checkpoint: Path, *, state: bool) -> Iterator[Path]:
    """Files of Spark's that cannot be whole: empty, torn, or not what Hadoop's checksum beside them says; those of the
    state, which may be many, only if asked for.

    For naming the one to blame when Spark has failed; what is in them is Spark's own affair.
    """
    for file in sorted(checkpoint.rglob("*")):
        place = file.relative_to(checkpoint).parts[0]
        asked = file.is_file() and not file.name.startswith(".") and (state or place != "state")
        if asked and not is_whole(file, place):
            yield file


def is_whole(file: Path, place: str) -> bool:
    """As far as its checksum and its own form tell."""
    if file.stat().st_size == 0 or not _matches(file):
        return False
    if place in ("offsets", "commits", "sources", "metadata"):
        return _is_json_lines(file)
    return file.suffix != ".zip" or _is_zip(file)


def _is_json_lines(file: Path) -> bool:
    """As Spark's own logs are, but for a version at the top and a dash for nothing."""
    try:
        for line in file.read_text().splitlines():
            if line != "-" and not re.fullmatch(r"v\d+", line):
                msgspec.json.decode(line)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return False
    return True


def _is_zip(file: Path) -> bool:
    """As a snapshot of state is; with a checksum of each of its parts."""
    try:
        with zipfile.ZipFile(file) as snapshot:
            return snapshot.testzip() is None
    except Exception:  # zipfile has no error of its own for this: a turned bit may ask for a password, or for a place before the first
        return False


def _matches(file: Path) -> bool:
    beside = file.with_name(f".{file.name}.crc")
    try:
        checksums = beside.read_bytes()
    except FileNotFoundError:
        return True  # nothing is known of it
    if checksums[:4] != CHECKSUMS or len(checksums) < 8:
        return False
    (size,) = CHUNK.unpack(checksums[4:8])
    wanted = [found for (found,) in CHUNK.iter_unpack(checksums[8 : 8 + (len(checksums) - 8) // 4 * 4])]
    with file.open("rb") as content:
        return [zlib.crc32(part) for part in iter(lambda: content.read(size), b"")] == wanted


def _newest(path: Path) -> int:
    """The highest number among the names of a folder, `7` or `7.compact`; -1 if there is none."""
    if not path.is_dir():
        return -1
    return max(
        (int(file.name.removesuffix(".compact")) for file in path.iterdir() if file.name.removesuffix(".compact").isdigit()), default=-1
    )


def _state_of(checkpoint: QueryCheckpoint) -> str:
    return f"{checkpoint.path} ends with batch {checkpoint.planned}" if checkpoint.begun else f"{checkpoint.path} is gone or empty"
