"""A delivery into a folder of files, JSON lines or Parquet: each step has its names, so a repeated one replaces itself."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path

from millstream.core.parts import Columns
from millstream.errors import Fenced, LogError
from millstream.format import Format
from millstream.log.folder import sync_folder
from millstream.log.parquet import write_parquet
from millstream.log.rows import Rows
from millstream.targets.belonging import keep_reached
from millstream.targets.leftovers import old_files
from millstream.targets.steps import Steps, ways_out
from millstream.targets.typed import Gathered, Values, json_lines
from millstream.timestamp import Timestamp

STAGING = ".staging"


class FilesOutput:
    """Files are written aside and renamed by the commit, after the step is on the disk (rule 17)."""

    def __init__(self, name: str, path: str, format: Format, values: Values, *, steps: Steps, still_owner: Callable[[], bool]) -> None:
        self.name, self.streams = name, frozenset([values.stream])
        self._path, self._format, self._values = Path(path), format, values
        self._steps, self._still_owner = steps, still_owner
        self._prefix = prefix_of(name, steps.identity)
        self._gathered = Gathered(self._write)
        self._staged: list[Path] = []
        check_not_ahead(name, self._path, newest_step(name, self._path, steps.identity), steps.begun)

    def position(self) -> int:
        step = self._steps.open
        return self._steps.position if step is None else step.after

    def open_until(self) -> int | None:
        step = self._steps.open
        return None if step is None else step.upto

    def add(self, epoch: int, stream: str, origin: str, major: int, columns: Columns) -> None:
        self._gathered.add(epoch, origin, major, columns)

    def commit(self, to: int) -> int:
        self._gathered.flush()
        step = self._steps.open
        repeated = step is not None
        if step is None:
            if not self._staged:
                self._steps.skip(to)
                return to
            sync_folder(self._path / STAGING)
            step = self._steps.begin(self._steps.position, to)
        assert step.upto == to, f"step {step} is open, not one that ends with {to}"
        self._path.mkdir(parents=True, exist_ok=True)
        names = [file_name(self._prefix, step.number, n, self._format) for n in range(len(self._staged))]
        for staged, name in zip(self._staged, names, strict=True):
            self._check_owner()
            os.replace(staged, self._path / name)
        if repeated:  # read from the log, the same records may be dealt over fewer files than from the journal
            for file in self._path.glob("*"):
                if file.name.startswith(f"{self._prefix}{step.number:09d}-") and file.name not in names:
                    self._check_owner()
                    file.unlink()
        sync_folder(self._path)
        self._staged = []
        keep_reached(self.name, self._path, self._steps.identity, step.number)
        self._steps.done()
        return to

    def drop(self) -> None:
        self._gathered.drop()
        for staged in self._staged:
            staged.unlink(missing_ok=True)
        self._staged = []

    def sweep(self, now: Timestamp) -> None:
        """Remove what writers of this delivery that were killed have left, whichever identity it had then."""
        called = re.compile(re.escape(self.name) + r"-.{8}-[0-9a-f]{32}")
        for file, _ in old_files(self._path / STAGING, called, now):
            if file not in self._staged:
                file.unlink(missing_ok=True)

    def _write(self, rows: Rows) -> None:
        path = self._path / STAGING / f"{self._prefix}{uuid.uuid4().hex}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._format is Format.PARQUET:
            write_parquet(path, self._values.table(rows))
        else:
            with path.open("wb") as file:
                file.writelines(json_lines(rows))
                file.flush()
                os.fsync(file.fileno())
        self._staged.append(path)

    def _check_owner(self) -> None:
        if not self._still_owner():
            raise Fenced(f"a newer run delivers to {self._path}; this one stops")


def prefix_of(name: str, identity: str) -> str:
    """What the files of a delivery are called at their beginning."""
    return f"{name}-{identity[:8]}-"


def file_name(prefix: str, step: int, number: int, format: Format) -> str:
    return f"{prefix}{step:09d}-{number:04d}.{format.value}"


def newest_step(name: str, path: Path, identity: str) -> int:
    """Of the files that a delivery has in its target; -1 if it has none."""
    called = re.compile(re.escape(prefix_of(name, identity)) + r"(\d{9,})-\d{4,}\.")
    return max((int(found[1]) for file in path.glob("*") if (found := called.match(file.name))), default=-1)


def check_not_ahead(name: str, path: Path, newest: int, begun: int) -> None:
    """A folder of files that has steps which are not begun in this run's folder was written by a later copy of that."""
    if newest >= begun:
        raise LogError(
            f"{path} has files of step {newest} of delivery {name!r}, and this folder has begun {begun} steps: "
            f"it is from an older copy, and what it delivers now would be there twice; {ways_out(name)}"
        )
