"""What a run costs while nothing happens: the share of one core that all its processes use together.

Without files and with them: a folder is looked at again and again for what is new in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.goals import at_most

RECORDS = 1_000
SETTLE = 20.0  # seconds until the JVM has done its compiling, and lanes their first checkpoint
WATCH_SECONDS = 30.0
GOALS = {"values": 3.0, "files": 4.0}  # by source: % of a core


def main() -> None:
    for source, most in GOALS.items():
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            command = [sys.executable, "-m", "bench.idle", source, folder]
            share = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
        print(f"idle, with a source of {source}: {100 * share:.1f} % of a core, all processes together", flush=True)
        at_most("idle", 100 * share, most, "% of a core")


def measure(source: str, base: Path) -> float:
    """In a process of its own: a run that has taken in what there is, and waits for more."""
    import millstream as ms
    from bench.readme import topology_of, topology_over
    from bench.traffic import START, write_queries

    over = threading.Event()

    def then_nothing(kind: Any) -> ms.Source[Any]:
        def values(taken: int) -> Iterator[Any]:
            for n in range(taken, RECORDS):
                yield kind(f"k{n % 10}", START)
            over.wait()

        return ms.values(values, kind)

    if source == "files":
        write_queries(base / "queries", records=RECORDS, keys=10, files=2)
        topology = topology_of(base / "queries", base / "counts", bounded=False)
    else:
        topology = topology_over(then_nothing, base / "counts")
    with ms.start(topology, at=base / "mill") as run:
        while run.status().injected < RECORDS:
            time.sleep(0.2)
        time.sleep(SETTLE)
        before = used()
        time.sleep(WATCH_SECONDS)
        took = used() - before
        over.set()
    return took / WATCH_SECONDS


def used() -> float:
    """Seconds of processor time of this process and all below it."""
    total = 0.0
    for member in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source", choices=tuple(GOALS))
    parser.add_argument("base", type=Path)
    given = parser.parse_args()
    print(json.dumps(measure(given.source, given.base)))
