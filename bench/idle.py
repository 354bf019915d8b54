"""What a run costs while nothing happens: the share of one core that all its processes use together."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil

SETTLE = 20.0  # seconds until the JVM has done its compiling
WATCH_SECONDS = 30.0


def main() -> None:
    import millstream as ms
    from bench.readme import topology_of
    from bench.traffic import write_queries

    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        base = Path(folder)
        write_queries(base / "queries", records=1_000, keys=10, files=2)
        topology = topology_of(base / "queries", base / "counts", bounded=False)
        with ms.start(topology, at=base / "mill") as run:
            while run.status().epoch < 1:
                time.sleep(0.2)
            time.sleep(SETTLE)
            before = used()
            time.sleep(WATCH_SECONDS)
            took = used() - before
        print(f"idle: {100 * took / WATCH_SECONDS:.1f} % of a core, all processes together")


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
