"""How long a record takes from the generator's `yield` to the first line of a delivered function.

Three rounds of: a bare query of Spark's (a Python source and sink that do nothing around an empty state processor), whose
cycle is the measure; then ours, with a checkpoint of each lane in it; beside it, two synced writes of 2 kB once a second.
A lane's checkpoint is a batch of its query: when Spark wrote its commit is when it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millstream as ms
from bench.goals import Rounds, at_least, at_most
from millstream.log.folder import Folder

WARM_UP = 30.0  # seconds


def bare(base: Path, seconds: float) -> dict[str, float]:
    """The cycle of a query that does nothing, in milliseconds, and the seconds from nothing to its first batch."""
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition, WriterCommitMessage
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from bench.counts import session

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"n": start["n"] + 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield pa.record_batch([pa.array([1], pa.int32())], names=["n"])

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: list[Any], batchId: int) -> None:
            pass

        def abort(self, messages: list[Any], batchId: int) -> None:
            pass

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def schema(self) -> str:
            return "n INT"

        def streamReader(self, schema: Any) -> Reader:
            return Reader()

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:
            return Writer()

    class Empty(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._state = handle.getMapState("rows", "name STRING", "content BINARY")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            for _ in rows:
                pass
            yield pd.DataFrame({"n": [1]})

        def close(self) -> None:
            pass

    launched = time.monotonic()
    spark = session()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.dataSource.register(Nothing)
    rows = spark.readStream.format("nothing").load().groupBy("n").transformWithStateInPandas(Empty(), "n INT", "Append", "None")
    query = rows.writeStream.format("nothing").option("checkpointLocation", str(base / "bare")).start()
    while query.lastProgress is None:
        time.sleep(0.02)
    first_batch = time.monotonic() - launched
    while query.lastProgress["batchId"] < 5:
        time.sleep(0.1)
    first, began = query.lastProgress["batchId"], time.monotonic()  # type: ignore[index]
    time.sleep(seconds)
    cycle = 1000 * (time.monotonic() - began) / max(1, query.lastProgress["batchId"] - first)  # type: ignore[index]
    query.stop()
    return {"cycle": cycle, "first": first_batch}


@dataclass(frozen=True)
class Event:
    key: str
    at: int
    n: int


class Count(ms.Computation[int]):
    out: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
        self.out.produce(record.value, timestamp=record.timestamp)


def ours(base: Path, seconds: float, rate: int, hops: int, busy: float) -> dict[str, float]:
    """Percentiles of the latency, in milliseconds, and of two synced writes beside it."""

    def values(taken: int) -> Iterator[Event]:
        n, began = taken, time.time()
        while time.time() - began < WARM_UP + seconds:
            due = taken + int((time.time() - began) * rate)
            while n < due:
                yield Event(f"k{n % 1000}", time.time_ns() // 1000, n)
                n += 1
            time.sleep(0.001)

    waits: list[tuple[float, float]] = []
    ended = time.perf_counter()

    def take(step: int, records: list[ms.Record[Event]]) -> None:
        now = time.time_ns() // 1000
        waits.extend((now / 1e6, (now - record.value.at) / 1000) for record in records)
        nonlocal ended
        called = time.perf_counter()
        end = called + min(0.005, (called - ended) * busy / (1 - busy))  # that share of the time, however often it is called
        while time.perf_counter() < end:
            sum(range(100))
        ended = time.perf_counter()

    topology = ms.Topology("latency")
    stream: ms.Stream[Event] = topology.inject(
        "in",
        ms.values(values, Event),
        key=lambda event: event.key,
        timestamp=lambda event: ms.Timestamp(event.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    for hop in range(hops):
        count = Count()
        topology.compute(f"count{hop}", count).reads(stream)
        stream = count.out
    topology.deliver("out", stream, ms.function(take))
    synced: list[float] = []
    over = threading.Event()
    sampler = threading.Thread(target=_sample, args=(base / "synced", synced, over))
    sampler.start()
    options = ms.Options(checkpoint_every=ms.Duration(int(max(20.0, seconds * 0.6) * 1e6)))
    began = time.time()
    run = ms.start(topology, at=base / "mill", options=options, until=ms.DRAINED)
    run.wait()
    over.set()
    sampler.join()
    begin = min(when for when, _ in waits) + WARM_UP
    counted = sorted(wait for when, wait in waits if when >= begin)
    first = min(when for when, _ in waits) - began
    found = {f"p{p}": percentile(counted, p) for p in (50, 95, 99, 100)}
    checkpointed = _checkpointed(Folder(base / "mill"), begin, max(when for when, _ in waits))
    return {
        **found,
        "synced": statistics.median(synced),
        "first": first,
        "lanes": len(checkpointed),
        "checkpointed": sum(checkpointed),
    }


def _checkpointed(folder: Folder, begin: float, end: float) -> list[bool]:
    """For each lane, whether Spark committed a batch of it between these moments."""
    pinned = folder.read_pinned()
    assert pinned is not None
    return [
        any(
            begin <= file.stat().st_mtime <= end
            for file in (folder.checkpoint(f"lane {lane}") / "commits").iterdir()
            if file.name.isdigit()
        )
        for lane in range(pinned.lanes)
    ]


def _sample(path: Path, found: list[float], over: threading.Event) -> None:
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while not over.wait(1.0):
        began = time.perf_counter()
        for _ in range(2):
            os.write(handle, b"x" * 2048)
            os.fdatasync(handle)
        found.append(1000 * (time.perf_counter() - began))
    os.close(handle)


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")


def _measure(base: Path, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.latency", str(base), *map(str, arguments)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


CASES = {  # records a second, computations one after the other, how much of the time the function computes
    "one computation, 200 records/s": (200, 1, 0.0),
    "three computations": (200, 3, 0.0),
    "5,000 records/s": (5_000, 1, 0.0),
    "a function that computes half of the time": (200, 1, 0.5),
}
PLAIN = next(iter(CASES))


def main(*, seconds: float = 300.0, rounds: int = 3, cases: Sequence[str] = tuple(CASES)) -> None:
    """Print each round, as ratios to the bare cycle of the same round, what of the goals holds in it, and in how many rounds."""
    held = Rounds()
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            base = Path(folder)
            reference = _measure(base, "bare", min(60.0, seconds))
            cycle = reference["cycle"]
            print(f"round {number + 1}: bare cycle {cycle:.0f} ms, first batch after {reference['first']:.1f} s", flush=True)
            plain: dict[str, float] = {}
            for name in cases:
                rate, hops, busy = CASES[name]
                place = base / str(len(os.listdir(base)))
                place.mkdir()
                # What is compared by p95 has one checkpoint of each lane in as long a time: it delays one record in some hundred.
                lasts = seconds if "records/s" in name else min(60.0, seconds)
                got = _measure(place, "ours", lasts, rate, hops, busy)
                plain = plain or got
                shares = ", ".join(f"{p} {got[p]:.1f} ms = 1/{cycle / got[p]:.1f}" for p in ("p50", "p95", "p99"))
                longest = f"longest {got['p100']:.0f} ms = {got['p100'] / cycle:.1f} cycles"
                writes = f"two synced writes {got['synced']:.2f} ms (p50 is {got['p50'] / got['synced']:.1f} of them)"
                print(f"  {name}: {shares}, {longest}; {writes}; first after {got['first']:.1f} s", flush=True)
                for what, figure, bound, unit in _goals(name, got, plain, reference):
                    held.add(f"{name}: {what}", at_most(what, figure, bound, unit))
                what = "a checkpoint in the time that is measured"
                held.add(f"{name}: {what}", at_least(what, got["checkpointed"], got["lanes"], "lanes"))
    held.tell()


def _goals(name: str, got: dict[str, float], plain: dict[str, float], reference: dict[str, float]) -> list[tuple[str, float, float, str]]:
    """What each is, how much it is, how much it may be, and of what."""
    cycle, writes = reference["cycle"], got["synced"]
    if name == PLAIN:
        return [
            ("p50, by 1/25 of a cycle or 6 times the writes", got["p50"], max(cycle / 25, 6 * writes), "ms"),
            ("p95, by 1/10 of a cycle or 10 times the writes", got["p95"], max(cycle / 10, 10 * writes), "ms"),
            ("p99, by 1/3 of a cycle", got["p99"], cycle / 3, "ms"),
            ("longest wait", got["p100"] / cycle, 4.0, "cycles"),
            ("first result, by 3 s after that of the bare query", got["first"], reference["first"] + 3, "s"),
        ]
    if name == "three computations":
        return [("p50, by 1/12 of a cycle", got["p50"], cycle / 12, "ms")]
    if name == "5,000 records/s":
        return [("p95, against that at 200", got["p95"] / plain["p95"], 2.0, "times")]
    return [("p50, against that without", got["p50"] / plain["p50"], 2.0, "times")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("what")
    parser.add_argument("seconds", type=float)
    parser.add_argument("more", nargs="*")
    arguments = parser.parse_args()
    if arguments.what == "bare":
        print(json.dumps(bare(arguments.base, arguments.seconds)))
    else:
        rate, hops, busy = arguments.more
        print(json.dumps(ours(arguments.base, arguments.seconds, int(rate), int(hops), float(busy))))
