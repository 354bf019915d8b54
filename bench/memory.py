"""What a lane takes in memory with ten times the keys that fit, against its bound."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import tempfile

import psutil

from bench.goals import at_most
from bench.rows import Lane

BOUND = 32 << 20
TIMES = 10
FEW = 10_000  # keys, to measure the base
PER_EPOCH = 20_000  # records


class FileStore:
    """A store that takes next to no memory of the process, as Spark's takes none."""

    def __init__(self, path: str) -> None:
        self._rows = sqlite3.connect(path, isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.execute("CREATE TABLE rows (name TEXT PRIMARY KEY, content BLOB) WITHOUT ROWID")
        self.trips = 0

    def get(self, key: str) -> bytes | None:
        self.trips += 1
        found = self._rows.execute("SELECT content FROM rows WHERE name = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def put(self, key: str, value: bytes) -> None:
        self.trips += 1
        self._rows.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, value))

    def remove(self, key: str) -> None:
        self.trips += 1
        self._rows.execute("DELETE FROM rows WHERE name = ?", (key,))


def measure(kind: str, path: str) -> None:
    """In a process of its own: its size with few keys, and at the most with many of them."""
    me = psutil.Process()
    fits = Lane(kind, FEW)
    keys = TIMES * FEW * BOUND // fits.held.resident
    for _ in range(10):  # with what an epoch takes while it runs
        fits.run(fits.some(PER_EPOCH))
    base = me.memory_info().rss - fits.held.resident
    del fits
    lane, chance = Lane(kind, FEW, memory=BOUND, store=FileStore(path)), random.Random(1)
    most = 0
    for start in range(0, keys, PER_EPOCH):
        lane.run(lane.packet([f"k{number}" for number in range(start, min(keys, start + PER_EPOCH))]))
        most = max(most, me.memory_info().rss)
    for _ in range(50):
        lane.run(lane.packet([f"k{chance.randrange(keys)}" for _ in range(PER_EPOCH)]))
        most = max(most, me.memory_info().rss)
    print(f"  {kind}: {keys:,} keys, ten times what fits into {BOUND >> 20} MB: {most >> 20} MB, its base {base >> 20} MB", flush=True)
    at_most("above its base", (most - base) / BOUND, 1.5, "times the bound")


def main() -> None:
    print("memory of a lane", flush=True)
    for kind in ("counter", "sessions"):
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            subprocess.run([sys.executable, "-m", "bench.memory", kind, f"{folder}/store"], check=True)


if __name__ == "__main__":
    measure(*sys.argv[1:])
