"""What a lane takes in memory with ten times the keys that fit, against its bound."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import psutil

from bench.rows import Lane

BOUND = 64 << 20
TIMES = 10
FEW = 10_000  # keys, to measure the base


class FileStore:
    """A store beside the process, as Spark's is: only where a page lies is kept here."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        self._places: dict[str, tuple[int, int]] = {}
        self._end = self.trips = 0

    def get(self, key: str) -> bytes | None:
        self.trips += 1
        place = self._places.get(key)
        return None if place is None else os.pread(self._handle, place[1], place[0])

    def put(self, key: str, value: bytes) -> None:
        self.trips += 1
        os.write(self._handle, value)
        self._places[key] = (self._end, len(value))
        self._end += len(value)

    def remove(self, key: str) -> None:
        self.trips += 1
        self._places.pop(key, None)


def measure(kind: str, path: str) -> None:
    """In a process of its own: its size with few keys, and at the most with many of them."""
    me = psutil.Process()
    fits = Lane(kind, FEW)
    keys = TIMES * FEW * BOUND // fits.held.resident
    del fits
    base = me.memory_info().rss
    lane = Lane(kind, FEW, memory=BOUND, store=FileStore(path))
    lane.keys = [f"k{number}" for number in range(keys)]
    names = me.memory_info().rss - base  # the benchmark's own list
    most = 0
    for start in range(0, keys, 20_000):
        lane.run(lane.packet(lane.keys[start : start + 20_000]))
        most = max(most, me.memory_info().rss)
    for _ in range(50):
        lane.run(lane.some(20_000))
        most = max(most, me.memory_info().rss)
    taken = most - names - base
    print(
        f"  {kind}: {keys:,} keys, ten times what fits into {BOUND >> 20} MB: {taken / BOUND:.2f} times the bound above a base of "
        f"{base >> 20} MB, with the epochs of 20,000 records at hand",
        flush=True,
    )


def main() -> None:
    print("memory of a lane", flush=True)
    for kind in ("counter", "sessions"):
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            subprocess.run([sys.executable, "-m", "bench.memory", kind, f"{folder}/store"], check=True)


if __name__ == "__main__":
    measure(*sys.argv[1:])
