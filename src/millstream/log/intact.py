"""What in a folder must fit together, looked at before a run changes anything in it.

A table that has lost commits, or a checkpoint that is older than the log, would not fail by itself: input would be
taken twice or passed over, records delivered twice or never. Of Spark's checkpoints only the names of files are
looked at: `offsets/N` stands before batch N runs, `commits/N` after it.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from millstream.core.backlog import Position
from millstream.core.graph import MILL, table_of
from millstream.core.plan import read_ledger
from millstream.errors import LogError
from millstream.log.folder import Folder, read_json
from millstream.log.table import Table, commit_file, newest_note, newest_version, read_commit

CHUNK = struct.Struct(">I")  # of Hadoop's checksums
CHECKSUMS = b"crc\0"


@dataclass(frozen=True)
class Checkpoint:
    """How far Spark says that a query has come; -1 before the first batch."""

    path: Path
    done: int
    planned: int

    @property
    def begun(self) -> bool:
        return self.planned >= 0


def checkpoint_of(folder: Folder, query: str) -> Checkpoint:
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
    return Checkpoint(path, done, planned)


def check_log(folder: Folder, *, injectors: Iterable[str], deliveries: Iterable[str]) -> None:
    """Nothing that somebody has read or written has left the log, and no checkpoint is older or newer than its table."""
    for path in sorted((folder.path / "log").glob("*/_delta_log")):
        _check_commits(path.parent)
    _check_consumers(folder)
    for name in injectors:
        done = checkpoint_of(folder, f"inject {name}").done
        _check_injected(folder, name, done)
    for name in deliveries:
        checkpoint_of(folder, f"deliver {name}")
    _check_mill(folder)


def check_injector(folder: Folder, name: str, *, files: bool) -> None:
    """A query that does not know what it has injected would take its source in from the beginning."""
    checkpoint = checkpoint_of(folder, f"inject {name}")
    committed = _committed(folder, name)
    if checkpoint.planned < committed:
        raise LogError(
            f"{_state_of(checkpoint)}, but injector {name!r} has brought epoch {committed} into the log: it would take its source in "
            f"again; restore the checkpoint from the copy that the log is from"
        )
    seen = checkpoint.path / "sources" / "0"
    if files and _newest(seen) < checkpoint.planned:
        raise LogError(
            f"{seen} does not say which files injector {name!r} has read (its newest entry is {_newest(seen)}, and batch "
            f"{checkpoint.planned} is planned): they would be read again; restore it from a copy"
        )


def files_planned(checkpoint: Path) -> set[str]:
    """The files that a query has taken into its batches, as its source writes them down before a batch runs."""
    found: set[str] = set()
    for log in (checkpoint / "sources" / "0").glob("[0-9]*"):
        for line in log.read_text("utf-8").splitlines()[1:]:  # the first is a version
            found.add(unquote(urlsplit(msgspec.json.decode(line)["path"]).path))
    return found


def damaged_files(checkpoint: Path, *, state: bool) -> Iterator[Path]:
    """Files of Spark's that cannot be whole: empty, torn, or not what Hadoop's checksum beside them says; those of the
    state, which may be many, only if asked for.

    For naming the one to blame when Spark has failed; what is in them is Spark's own affair.
    """
    for file in sorted(checkpoint.rglob("*")):
        place = file.relative_to(checkpoint).parts[0]
        asked = file.is_file() and not file.name.startswith(".") and (state or place != "state")
        if asked and not _is_whole(file, place):
            yield file


def _is_whole(file: Path, place: str) -> bool:
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
        told = beside.read_bytes()
    except FileNotFoundError:
        return True  # nothing is known of it
    if told[:4] != CHECKSUMS or len(told) < 8:
        return False
    (size,) = CHUNK.unpack(told[4:8])
    wanted = [found for (found,) in CHUNK.iter_unpack(told[8 : 8 + (len(told) - 8) // 4 * 4])]
    with file.open("rb") as content:
        return [zlib.crc32(part) for part in iter(lambda: content.read(size), b"")] == wanted


def _check_commits(table: Path) -> None:
    """All that are there can be read; Delta itself passes over a commit that has lost its end."""
    for version in range(newest_version(table), -1, -1):
        if read_commit(table, table.name, version) is None:
            return


def _check_consumers(folder: Folder) -> None:
    for path in sorted((folder.path / "consumers").glob("*.json")):
        for table, position in _positions(path).items():
            ends = newest_version(folder.table(table))
            if path.stem == MILL or position != Position():  # a delivery that has not begun takes what the table holds
                _check_unread(folder.table(table), position.version, ends)
            if position.version > ends + 1:
                raise LogError(
                    f"{folder.table(table)} {_ends(ends)}, but {path.stem!r} has read it up to version {position.version - 1}: "
                    f"the log has lost what lies between; restore it from a copy"
                )


def _positions(path: Path) -> dict[str, Position]:
    try:
        return read_json(path, dict[str, Position]) or {}
    except LogError as error:
        why = str(error).partition(";")[0]
        raise LogError(f"{why}; remove it while no run is on: it only says how far a reader has come, and is written again") from error


def _check_unread(table: Path, first: int, newest: int) -> None:
    """What a reader has still to read is all there: it would wait for a commit that is missing, for ever."""
    for version in range(first, newest + 1):
        file = commit_file(table, version)
        if not file.exists():
            raise LogError(f"{file} is missing, and {newest - version} commits follow it; restore it from a copy")


def _ends(version: int) -> str:
    return "is gone" if version < 0 else f"ends with version {version}"


def check_spool(folder: Folder, name: str) -> None:
    """How many values of an iterable were taken is known: else they would be taken again, or passed over."""
    told = folder.spool(name) / "taken.json"
    if _committed(folder, name) >= 0 and not told.exists() and not any(folder.spool(name).glob("*.jsonl")):
        raise LogError(f"{told} is missing: it says how many values injector {name!r} has taken; restore it from a copy")


def _check_injected(folder: Folder, name: str, done: int) -> None:
    committed = _committed(folder, name)
    if committed < done:
        raise LogError(
            f"{folder.table(table_of(name))} ends with epoch {committed} of injector {name!r}, its checkpoint with {done}: "
            f"the log has lost what lies between; restore it from a copy"
        )


def _committed(folder: Folder, name: str) -> int:
    path = folder.table(table_of(name))
    return -1 if newest_version(path) < 0 else Table(path, path.name, 0).committed(name)


def _check_mill(folder: Folder) -> None:
    before = _published(folder)
    checkpoint = checkpoint_of(folder, MILL)
    after = _published(folder)  # both, for another run may be under way where the lock does not reach
    if not before <= checkpoint.done <= after + 1:
        raise LogError(
            f"the log of {folder.path} ends with epoch {after}, its checkpoint {checkpoint.path} with {checkpoint.done}: "
            f"they do not belong together; restore both from one copy"
        )
    state = checkpoint.path / "state"
    if checkpoint.done >= 0 and not any(state.glob("0/*/*")):
        raise LogError(f"{state} is missing: it holds what all keys have kept; restore it from a copy")
    if checkpoint.done == after + 1:
        check_manifest(folder, checkpoint.done)


def check_manifest(folder: Folder, epoch: int) -> None:
    """An epoch that is done and not published yet is published from its manifest; its files are swept without one."""
    found = sorted(folder.manifests.glob(f"{epoch:012d}-*.json"))
    if not found:
        raise LogError(f"{folder.manifests} lacks the manifest of epoch {epoch}; restore it from a copy")
    read_json(found[-1], dict[str, Any])


def _published(folder: Folder) -> int:
    found = newest_note(folder.table(MILL), MILL)
    return -1 if found is None else read_ledger(found[1]).plan.epoch


def _newest(path: Path) -> int:
    """The highest number among the names of a folder, `7` or `7.compact`; -1 if there is none."""
    if not path.is_dir():
        return -1
    return max(
        (int(file.name.removesuffix(".compact")) for file in path.iterdir() if file.name.removesuffix(".compact").isdigit()), default=-1
    )


def _state_of(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.path} ends with batch {checkpoint.planned}" if checkpoint.begun else f"{checkpoint.path} is gone or empty"
