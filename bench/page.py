"""Whether a run feels its page: 1,000 records a second, in turns without the dashboard and with it open in a browser."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import millstream as ms
from bench.goals import at_least, at_most
from bench.latency import Count, Event

RATE = 1_000
TURN = 30.0  # seconds
TURNS = 3  # of each
SETTLE = 5.0  # seconds after a page was opened or closed that count for neither


def main() -> None:
    from tests.dashboard.opened import opened

    waits: list[tuple[float, float]] = []  # when a record was delivered, and how long it took
    over = threading.Event()

    def values(taken: int) -> Iterator[Event]:
        began = time.time()
        for n in itertools.count(taken):
            while not over.is_set() and n - taken >= (time.time() - began) * RATE:
                time.sleep(0.001)
            if over.is_set():
                return
            yield Event(f"k{n % 1000}", time.time_ns() // 1000, n)

    def take(step: int, records: list[ms.Record[Event]]) -> None:
        now = time.time_ns() // 1000
        waits.extend((now / 1e6, (now - record.value.at) / 1e3) for record in records)

    topology, count = ms.Topology("page"), Count()
    events = topology.inject(
        "events",
        ms.values(values, Event),
        key=lambda event: event.key,
        timestamp=lambda event: ms.Timestamp(event.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("count", count).reads(events)
    topology.deliver("seen", count.out, ms.function(take))
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        at = Path(folder) / "mill"
        run = ms.start(topology, at=at)
        spans: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
        try:
            time.sleep(TURN)
            for _ in range(TURNS):
                spans["without"].append(_turn())
                with opened(at) as seen:
                    seen.page.locator("#graph .node").first.wait_for()
                    spans["with"].append(_turn())
        finally:
            over.set()
            run.stop()
    found = {name: [wait for at, wait in waits if any(since <= at < upto for since, upto in of)] for name, of in spans.items()}
    rates = {name: len(found[name]) / sum(upto - since for since, upto in of) for name, of in spans.items()}
    p95 = {name: statistics.quantiles(of, n=100)[94] for name, of in found.items()}
    for name in spans:
        print(f"{name} a page: p50 {statistics.median(found[name]):.1f} ms, p95 {p95[name]:.1f} ms, {rates[name]:,.0f} records/s")
    at_least("throughput with a page", rates["with"] / rates["without"], 0.97)
    at_most("p95 with a page", p95["with"] / p95["without"], 1.25)


def _turn() -> tuple[float, float]:
    time.sleep(SETTLE)
    since = time.time()
    time.sleep(TURN)
    return since, time.time()
