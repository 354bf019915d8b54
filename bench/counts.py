"""Millstream against Spark SQL and `transformWithState`: the same files, a durable result, in turns, medians of three.

Two jobs: the README's example, a count by key and second with a timer for nearly every record; and a running count by key
with a result for every record. Each contestant runs in a process of its own and is timed from its start to its end. What its
start takes, of Spark and of its own queries, is measured with a thousand records; ratios are given with and without it.
"""

from __future__ import annotations

import argparse
import json
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

import psutil

from bench.goals import at_least
from bench.traffic import write_queries

SCHEMA = "text STRING, at TIMESTAMP"
FILES_PER_BATCH = 5  # about as much as Millstream reads at once


@dataclass(frozen=True)
class Took:
    seconds: float
    memory: int  # bytes of all its processes together, at the most; shared pages counted once
    counts: int


def session() -> Any:
    """The session that Millstream makes: the same settings for all contestants."""
    from millstream.spark.session import LOCAL_CHECKPOINTS, QUERY_SETTINGS, session_for

    spark, _ = session_for(None, spark_log=Path("/dev/null"), sources=())
    for setting, value in {**QUERY_SETTINGS, **LOCAL_CHECKPOINTS}.items():
        spark.conf.set(setting, value)
    return spark


def by_second(base: Path) -> int:
    """The topology of the README, from files to a Delta table."""
    from bench.readme import topology_of

    return _run(topology_of(base / "queries", base / "counts"), base)


def running(base: Path) -> int:
    """One result for every record."""
    from bench.readme import running_topology

    return _run(running_topology(base / "queries", base / "counts"), base)


def _run(topology: Any, base: Path) -> int:
    from deltalake import DeltaTable

    import millstream as ms

    ms.run(topology, at=base / "mill", until=ms.DRAINED)
    return int(DeltaTable(str(base / "counts")).count())


def sql_by_second(base: Path) -> int:
    """A window in Spark SQL, with its own watermark; what is still open at the end is not counted."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = session()
    queries = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).json(str(base / "queries"))
    counts = queries.withWatermark("at", "2 seconds").groupBy("text", F.window("at", "1 second")).count()
    return _finish(spark, counts, base)


def sql_running(base: Path) -> int:
    """In update mode: a row for every key that a batch has, so fewer results than records."""
    spark = session()
    queries = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).json(str(base / "queries"))

    def write(frame: Any, batch: int) -> None:
        frame.write.mode("append").parquet(str(base / "out"))

    writer = queries.groupBy("text").count().writeStream.outputMode("update").foreachBatch(write)
    writer.option("checkpointLocation", str(base / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    return int(spark.read.parquet(str(base / "out")).count())


def plain_running(base: Path) -> int:
    """What Python could do at the best: two processes with half of the files each, which decode, count, encode and write Parquet.

    No shuffle, no journal, no log, nothing that survives a crash, and counts that are wrong where a key is in both halves.
    """
    from concurrent.futures import ProcessPoolExecutor

    names = sorted((base / "queries").iterdir())
    with ProcessPoolExecutor(2) as pool:
        return sum(pool.map(_count_plainly, (names[0::2], names[1::2]), (base / "0.parquet", base / "1.parquet")))


def _count_plainly(names: list[Path], out: Path) -> int:
    import msgspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bench.readme import _readme

    decode, encode = msgspec.json.Decoder(_readme().Query).decode, msgspec.json.Encoder().encode
    counts: dict[str, int] = {}
    keys, values, times = [], [], []
    for name in names:
        for line in name.read_bytes().splitlines():
            query = decode(line)
            counts[query.text] = count = counts.get(query.text, 0) + 1
            keys.append(query.text)
            values.append(encode(count))
            times.append(query.at)
    pq.write_table(pa.table({"key": keys, "value": values, "timestamp": times}), out, compression="zstd", compression_level=1)
    return len(keys)


def transform_with_state(base: Path) -> int:
    """A processor for each key with state and timers, as PySpark offers it: the same logic as the README's computation."""

    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class PerSecond(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._handle = handle
            self._counts = handle.getMapState("counts", "second LONG", "count LONG")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            found: dict[int, int] = {}
            for row in rows:
                second = int(row.at.timestamp())
                found[second] = found.get(second, 0) + 1
            for second, count in found.items():
                old = self._counts.getValue((second,))
                self._counts.updateValue((second,), (count + (0 if old is None else old[0]),))
                self._handle.registerTimer((second + 1) * 1000)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            second = expiredTimerInfo.getExpiryTimeInMs() // 1000 - 1
            count = self._counts.getValue((second,))
            if count is not None:
                self._counts.removeKey((second,))
                yield Row(text=key[0], second=second, count=count[0])

        def close(self) -> None:
            pass

    spark = session()
    queries = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).json(str(base / "queries"))
    grouped = queries.withWatermark("at", "2 seconds").groupBy("text")
    counts = grouped.transformWithState(PerSecond(), "text STRING, second LONG, count LONG", "Append", "EventTime")
    return _finish(spark, counts, base)


def _finish(spark: Any, counts: Any, base: Path) -> int:
    writer = counts.writeStream.format("parquet").outputMode("append").option("path", str(base / "out"))
    query = writer.option("checkpointLocation", str(base / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return int(spark.read.parquet(str(base / "out")).count())


CONTESTANTS = {
    "by key and second": by_second,
    "by key and second, SQL": sql_by_second,
    "by key and second, transformWithState": transform_with_state,
    "running": running,
    "running, SQL": sql_running,
    "running, plain Python": plain_running,
}
JOBS = {"by key and second": "a count by key and second", "running": "a running count by key"}
GOALS = {  # by job and keys: times the speed of SQL, without starts. Those of a running count are out of reach: docs/decisions/0017
    "by key and second": {10_000: 2.0, 100_000: 2.0, 1_000_000: 1.3},
    "running": {10_000: 3.0, 100_000: 3.0, 1_000_000: 2.0},
}
KEYS = (10_000, 100_000, 1_000_000)
ROUNDS = 3
FEW = 1_000  # records, to measure a start


def measure(name: str, base: Path, *, limit: float) -> Took | None:
    """Run a contestant in a process of its own; None if it is not done within `limit` seconds."""
    process = subprocess.Popen([sys.executable, "-m", "bench.counts", name, str(base)], stdout=subprocess.PIPE)
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.5):
            most = max(most, sum(_memory(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        for member in [*psutil.Process(process.pid).children(recursive=True), process]:
            member.kill()
        return None
    finally:
        done.set()
        watcher.join()
    if process.returncode != 0:
        raise RuntimeError(f"{name} failed")
    return Took(time.monotonic() - began, most, json.loads(out.splitlines()[-1]))


def _memory(pid: int) -> Iterator[int]:
    """The proportional size of a process and all below it: pages shared by forked workers count once."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            yield member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def compare(*, records: int, keys: Sequence[int] = KEYS, limit: float, rounds: int = ROUNDS) -> None:
    """Print every contestant's time as a ratio to Millstream's."""
    for job, words in JOBS.items():
        names = (job, f"{job}, SQL")
        starts = {name: _median([_measure(name, FEW, 100, limit) for _ in range(rounds)]) for name in names}
        print(f"{words}; a start takes {starts[job]:.1f} s, that of SQL {starts[names[1]]:.1f} s", flush=True)
        for count in keys:
            took: dict[str, list[Took | None]] = {name: [] for name in names}
            for _ in range(rounds):
                for name in names:
                    took[name].append(_measure(name, records, count, limit))
            ratio = _compare_with_sql(records, count, took[job], took[names[1]], starts[job], starts[names[1]])
            if (goal := GOALS[job].get(count)) is not None:
                why = " (out of reach: docs/decisions/0017)" if job == "running" else ""
                at_least(f"against SQL, without starts{why}", ratio, goal, "times as fast")
    bound = "running, plain Python"
    start = _median([_measure(bound, FEW, 100, limit) for _ in range(rounds)])
    found = [_measure(bound, records, 100_000, limit) for _ in range(rounds)]
    print(f"{bound}, without its start: {records / (_median(found) - start) / 1_000:,.0f}k records/s", flush=True)
    other = "by key and second, transformWithState"
    found = _measure(other, records // 10, 10_000, limit)
    print(f"transformWithState, {records // 10:,} records, 10,000 keys: {_told(found, limit)}", flush=True)


def _compare_with_sql(
    records: int, keys: int, mine: list[Took | None], other: list[Took | None], start: float, other_start: float
) -> float:
    """How many times as fast, without starts."""
    ours, theirs = _median(mine), _median(other)
    most = max(took.memory for took in mine if took is not None)
    counts = {took.counts for took in mine if took is not None}
    net = ours - start
    ratio = (theirs - other_start) / net
    print(
        f"  {records:,} records, {keys:,} keys: {ours:.1f} s against {theirs:.1f}, {theirs / ours:.2f} times as fast; "
        f"without starts {ratio:.2f} times; {records / net / 1_000:,.0f}k records/s; {min(counts):,} results, "
        f"{most / 2**30:.2f} GiB at the most",
        flush=True,
    )
    return ratio


def _measure(name: str, records: int, keys: int, limit: float) -> Took | None:
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        write_queries(Path(folder) / "queries", records=records, keys=keys)
        return measure(name, Path(folder), limit=limit)


def _median(found: list[Took | None]) -> float:
    return statistics.median([took.seconds for took in found if took is not None])


def _told(took: Took | None, limit: float) -> str:
    if took is None:
        return f"not done after {limit:.0f} s"
    return f"{took.seconds:.0f} s, {took.counts:,} counts, {took.memory / 2**30:.2f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant")
    parser.add_argument("base", type=Path)
    arguments = parser.parse_args()
    print(CONTESTANTS[arguments.contestant](arguments.base))


if __name__ == "__main__":
    main()
