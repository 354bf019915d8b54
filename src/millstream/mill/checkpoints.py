"""The checkpoints that Spark writes for lanes, made durable."""

from __future__ import annotations

import os
from pathlib import Path


class Checkpoints:
    """In a folder `lane N` for each lane."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: dict[Path, int] = {}  # when each file was modified

    def sync(self, lane: int) -> None:
        """Spark syncs none of its files; what a lane joined with must outlive a power loss before it lets the journal go (rule 14)."""
        for path, _, names in os.walk(self._folder / f"lane {lane}"):
            new = [file for name in names if self._synced.get(file := Path(path) / name) != _modified(file)]
            for file in new:
                if (modified := _modified(file)) >= 0:
                    _sync(file)
                    self._synced[file] = modified
            if new:
                _sync(Path(path))


def _modified(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return -1  # Spark tidies up beside us


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
