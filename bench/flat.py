"""A run at 1,000 records a second for an hour: latency, memory and the journal, in the first tenth of it and in the last.

Flat is: the median of the last tenth is at most 1.2 times that of the first. What grows with the age of a run would be at 19
times, for the middles of these tenths lie at 1/20 and at 19/20 of it; and a leak of which a fifth of what a run takes comes
together in an hour is seen. Less than a fifth is what a shared machine makes of two tenths of the same run. A tenth of an hour
has six checkpoints, so that medians do not depend on where between two of them it begins; a shorter run says less.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

import millstream as ms
from bench.goals import at_most
from bench.latency import Count, Event

RATE = 1_000
WARM_UP = 60.0  # seconds
SAMPLE_EVERY = 5.0
FLAT = 1.2  # times, from the first tenth to the last


class Sizes:
    """What a run takes, sampled beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.memory: list[tuple[float, int]] = []
        self.journal: list[tuple[float, int]] = []
        self.processor: list[tuple[float, float]] = []

    def sample(self, over: threading.Event) -> None:
        while not over.wait(SAMPLE_EVERY):
            memory, used = 0, 0.0
            for member in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    memory += member.memory_full_info().pss
                    times = member.cpu_times()
                    used += times.user + times.system
                except psutil.NoSuchProcess:
                    continue
            now = time.time()
            self.memory.append((now, memory))
            self.processor.append((now, used))
            self.journal.append((now, sum(file.stat().st_size for file in _files(self._folder / "journal"))))


def _files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file():
            yield file


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        base, called, waits = Path(name), array("d"), array("d")

        def values(taken: int) -> Iterator[Event]:
            n, began = taken, time.time()
            while time.time() - began < WARM_UP + seconds:
                due = taken + int((time.time() - began) * RATE)
                while n < due:
                    yield Event(f"k{n % 10_000}", time.time_ns() // 1000, n)
                    n += 1
                time.sleep(0.001)

        def take(step: int, records: list[ms.Record[Event]]) -> None:
            now = time.time_ns() // 1000
            called.append(now / 1e6)  # the longest of a step, in arrays: so memory stays small here
            waits.append((now - records[0].value.at) / 1000)

        topology = ms.Topology("flat")
        stream = topology.inject(
            "in",
            ms.values(values, Event),
            key=lambda event: event.key,
            timestamp=lambda event: ms.Timestamp(event.at),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
        )
        count = Count()
        topology.compute("count", count).reads(stream)
        topology.deliver("out", count.out, ms.function(take))
        sizes, over = Sizes(base / "mill"), threading.Event()
        sampler = threading.Thread(target=sizes.sample, args=(over,))
        sampler.start()
        ms.start(topology, at=base / "mill", options=ms.Options(checkpoint_every=ms.MINUTE), until=ms.DRAINED).wait()
        over.set()
        sampler.join()
        begin, end = called[0] + WARM_UP, called[-1]
        tenth = (end - begin) / 10

        def both(found: Iterable[tuple[float, float]]) -> tuple[float, float]:
            found = list(found)
            first = [value for when, value in found if begin <= when < begin + tenth]
            last = [value for when, value in found if end - tenth < when <= end]
            return statistics.median(first), statistics.median(last)

        latency, memory, journal = both(zip(called, waits, strict=True)), both(sizes.memory), both(sizes.journal)
        used = {when: value for when, value in sizes.processor if begin <= when <= end}
        share = (max(used.values()) - min(used.values())) / (max(used) - min(used))
        print(f"{(end - begin) / 60:.0f} minutes at {RATE:,}/s, first and last tenth; {100 * share:.0f} % of a core", flush=True)
        at_most(f"latency, {latency[0]:.1f} and {latency[1]:.1f} ms", latency[1] / latency[0], FLAT)
        at_most(f"memory, {memory[0] / 2**20:.0f} and {memory[1] / 2**20:.0f} MB", memory[1] / memory[0], FLAT)
        at_most(f"journal, {journal[0] / 2**20:.1f} and {journal[1] / 2**20:.1f} MB", journal[1] / journal[0], FLAT)
