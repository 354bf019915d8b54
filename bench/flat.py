"""A run at 1,000 records a second for an hour: latency, memory and the folder, in the first tenth of it and in the last."""

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
from bench.latency import Count, Event

RATE = 1_000
WARM_UP = 60.0  # seconds
SAMPLE_EVERY = 5.0


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
        print(
            f"{(end - begin) / 60:.0f} minutes at {RATE:,}/s, first and last tenth: latency {latency[0]:.1f} and {latency[1]:.1f} ms "
            f"({latency[1] / latency[0]:.2f} times), memory {memory[0] / 2**20:.0f} and {memory[1] / 2**20:.0f} MB "
            f"({memory[1] / memory[0]:.2f} times), journal {journal[0] / 2**20:.1f} and {journal[1] / 2**20:.1f} MB; "
            f"{100 * share:.0f} % of a core",
            flush=True,
        )
