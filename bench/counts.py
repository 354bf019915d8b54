"""The README's example against the same count in Spark SQL and in `transformWithState`: the same files, a durable result.

Each contestant runs in a process of its own and is timed from its start to its end, the start of Spark included; the
time of an empty session is measured too, and the ratios are given with and without it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.traffic import write_queries

SCHEMA = "text STRING, at TIMESTAMP"
FILES_AN_EPOCH = 5  # as many as Millstream takes in an epoch of its own


@dataclass(frozen=True)
class Took:
    seconds: float
    memory: int  # bytes of all its processes together, at the most; shared pages counted once
    counts: int


def session() -> Any:
    """The session that Millstream makes: the same settings for all contestants."""
    from millstream.spark.session import LOCAL_CHECKPOINTS, QUERY_SETTINGS, session_for

    spark, _ = session_for(None, words=Path("/dev/null"), sources=())
    for setting, value in {**QUERY_SETTINGS, **LOCAL_CHECKPOINTS}.items():
        spark.conf.set(setting, value)
    return spark


def nothing(base: Path) -> int:
    """What it takes to start Spark and stop again."""
    session().range(1).count()
    return 0


def millstream(base: Path) -> int:
    """The topology of the README, from files to a Delta table."""
    from deltalake import DeltaTable

    import millstream as ms
    from bench.readme import topology_of

    ms.run(topology_of(base / "queries", base / "counts"), at=base / "mill", until=ms.DRAINED)
    return int(DeltaTable(str(base / "counts")).count())


def sql(base: Path) -> int:
    """A window in Spark SQL, with its own watermark; what is still open at the end is not counted."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = session()
    queries = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_AN_EPOCH).json(str(base / "queries"))
    counts = queries.withWatermark("at", "2 seconds").groupBy("text", F.window("at", "1 second")).count()
    return _finish(spark, counts, base)


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
    queries = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_AN_EPOCH).json(str(base / "queries"))
    grouped = queries.withWatermark("at", "2 seconds").groupBy("text")
    counts = grouped.transformWithState(PerSecond(), "text STRING, second LONG, count LONG", "Append", "EventTime")
    return _finish(spark, counts, base)


def _finish(spark: Any, counts: Any, base: Path) -> int:
    writer = counts.writeStream.format("parquet").outputMode("append").option("path", str(base / "out"))
    query = writer.option("checkpointLocation", str(base / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return int(spark.read.parquet(str(base / "out")).count())


CONTESTANTS = {"nothing": nothing, "millstream": millstream, "sql": sql, "transformWithState": transform_with_state}


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


def compare(*, records: int, keys: int, limit: float) -> None:
    """Print every contestant's time as a ratio to Millstream's."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        base = Path(folder)
        print(f"{records:,} records, {keys:,} keys, counted by key and second", flush=True)
        took: dict[str, Took | None] = {}
        for name in CONTESTANTS:
            (base / name).mkdir()
            if name != "nothing":
                write_queries(base / name / "queries", records=records, keys=keys)
            took[name] = measure(name, base / name, limit=limit)
            print(f"  {name}: {_told(took[name], limit)}", flush=True)
        idle, mine = took["nothing"], took["millstream"]
        assert idle is not None
        assert mine is not None
        for name in ("sql", "transformWithState"):
            other = took[name]
            at_least = "at least " if other is None else ""
            seconds = limit if other is None else other.seconds
            whole, net = seconds / mine.seconds, (seconds - idle.seconds) / (mine.seconds - idle.seconds)
            print(f"millstream against {name}: {at_least}{whole:.1f} times as fast, {at_least}{net:.1f} without the start of Spark")
        print(f"millstream at the most {mine.memory / 2**30:.2f} GiB, driver and workers together")


def _told(took: Took | None, limit: float) -> str:
    if took is None:
        return f"not done after {limit:.0f} s"
    return f"{took.seconds:.0f} s, {took.counts:,} counts, {took.memory / 2**30:.2f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant")
    parser.add_argument("base", type=Path)
    told = parser.parse_args()
    print(CONTESTANTS[told.contestant](told.base))


if __name__ == "__main__":
    main()
