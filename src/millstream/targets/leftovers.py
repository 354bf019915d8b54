"""What writers that were killed have left in a target: files that nothing names, an hour after their last byte.

A writer that sleeps and wakes up may still want them: the hour is to disturb nobody who works, and whoever slept so long finds
that its commit is refused, or its file gone, and stops (rules 16 and 17).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from millstream.timestamp import HOUR, Timestamp

ENTRIES_READ = 10_000  # of a table at most, from the newest back; what is older stays


def old_files(folder: Path, called: re.Pattern[str], now: Timestamp) -> Iterator[tuple[Path, re.Match[str]]]:
    """Those of a folder that have such a name, and that nobody has written to for an hour."""
    for file in folder.glob("*"):
        if found := called.fullmatch(file.name):
            try:
                modified = Timestamp(file.stat().st_mtime_ns // 1000)
            except FileNotFoundError:
                continue  # whoever wrote it has moved or removed it
            if now - modified >= HOUR:
                yield file, found


def sweep_table(
    path: Path, table: DeltaTable, application: str, called: re.Pattern[str], *, staged: Collection[str], now: Timestamp
) -> None:
    """Remove files of a delivery that no version of its table names, nor did. `called` finds in a name the epoch that the table
    had when the file was begun: only a commit that goes on from there can have named it.

    Files that have left the table, by somebody's compaction or deletion, are named by older versions: they are the table's.
    """
    old = {file.name: int(found[1]) for file, found in old_files(path, called, now) if file.name not in staged}
    live = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    for name in old.keys() & set(live):
        del old[name]
    if old:
        named, since = _named(path / "_delta_log", table.version(), application, down_to=min(old.values()))
        for name, epoch in old.items():
            if epoch >= since and name not in named:
                (path / name).unlink(missing_ok=True)


def _named(entries: Path, version: int, application: str, *, down_to: int) -> tuple[set[str], int]:
    """What the newest entries name, and since which epoch of the application these are all entries."""
    named: set[str] = set()
    since, oldest = None, max(0, version - ENTRIES_READ)
    for number in range(version, oldest - 1, -1):
        try:
            lines = (entries / f"{number:020d}.json").read_bytes().splitlines()
        except FileNotFoundError:  # cleaned away, and with it all that are older
            break
        for line in filter(None, lines):
            action: dict[str, Any] = msgspec.json.decode(line)
            for kind in ("add", "remove"):
                if kind in action:
                    named.add(unquote(action[kind]["path"]))
            if action.get("txn", {}).get("appId") == application:
                since = action["txn"]["version"]
        if number == 0:
            since = -1
        if since is not None and since <= down_to:
            break
    return named, down_to + 1 if since is None else since
