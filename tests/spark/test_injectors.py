"""Every kind of source, on Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.clicks import NOON, Click, Count, T, click, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark
USUAL = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}


def counting(topology: ms.Topology, stream: ms.Stream[Click]) -> ms.MemoryTarget:
    count, kept = Count(), ms.memory()
    topology.compute("count", count).reads(stream)
    topology.deliver("counts", count.counts, kept)
    return kept


def pairs(kept: ms.MemoryTarget) -> list[tuple[str, int]]:
    return sorted((record.key, record.value) for record in kept.records)


def test_csv_and_parquet_files(spark: SparkSession, tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "ä %41+b.csv").write_text('page,user,at\n/,anna,2026-01-01T12:00:00Z\n"/,x",bert,2026-01-01T12:00:01Z\n')
    rows = [("anna", "/p", NOON), ("carl", "/q", NOON)]
    spark.createDataFrame(rows, "user string, page string, at timestamp").coalesce(1).write.parquet(str(tmp_path / "parquet"))
    topology = ms.Topology("formats")
    csv = topology.inject("csv", ms.files(f"{tmp_path}/parquet/../csv/*.csv", Click, bounded=True), **USUAL)
    parquet = topology.inject("parquet", ms.files(f"{tmp_path}/parquet/*.parquet", Click, bounded=True), **USUAL)
    count, kept = Count(), ms.memory()
    topology.compute("count", count).reads(csv, parquet)
    topology.deliver("counts", count.counts, kept)
    drained(topology)
    assert pairs(kept) == [("anna", 1), ("anna", 2), ("bert", 1), ("carl", 1)]


def test_a_batch_frame_with_columns_for_key_and_time_runs_no_python_for_each_record(
    spark: SparkSession, at: Path, drained: Callable[..., ms.Run]
) -> None:
    rows = [(f"u{n % 3}", "/", click("", n).at) for n in range(30)]
    frame = spark.createDataFrame(rows, "user string, page string, at timestamp")
    topology = ms.Topology("frame")
    options = {"key": "user", "timestamp": "at", "partition": "page", "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    kept = counting(topology, topology.inject("clicks", ms.dataframe(frame, Click), **options))
    run = drained(topology)
    assert pairs(kept) == sorted((f"u{n % 3}", n // 3 + 1) for n in range(30))
    injector = run.status().injectors["clicks"]
    assert (injector.finished, injector.injected) == (True, 30)
    epochs = {row["epoch"] for row in DeltaTable(str(at / "log")).to_pyarrow_table(filters=[("stream", "=", "clicks")]).to_pylist()}
    assert len(epochs) == 1, "all of it is in one commit"
    again = ms.Topology("frame")
    rest = counting(again, again.inject("clicks", ms.dataframe(frame, Click), **options))
    assert drained(again).status().injectors["clicks"].injected == 30, "what has ended stays ended"
    assert pairs(rest) == []


def test_a_time_without_a_zone_is_utc_whatever_the_zone_of_the_session(spark: SparkSession, drained: Callable[..., ms.Run]) -> None:
    frame = spark.createDataFrame([("anna", "/", NOON.replace(tzinfo=None))], "user string, page string, at timestamp_ntz")
    topology = ms.Topology("zone")
    options = {"key": "user", "timestamp": "at", "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    kept = counting(topology, topology.inject("clicks", ms.dataframe(frame, Click), **options))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        drained(topology)
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"  # the user's session is as it was
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [record.timestamp for record in kept.records] == [T]


def test_what_has_ended_stays_ended(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"

    def build() -> tuple[ms.Topology, ms.MemoryTarget]:
        topology = ms.Topology("ended")
        return topology, counting(topology, topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click, bounded=True), **USUAL))

    write_lines(folder / "1.jsonl", [click("anna", 1)])
    first, kept = build()
    assert drained(first).status().injectors["clicks"].finished
    write_lines(folder / "2.jsonl", [click("anna", 2)])
    second, rest = build()
    assert drained(second).status().injectors["clicks"].injected == 1
    assert (pairs(kept), pairs(rest)) == ([("anna", 1)], [])


def test_an_input_that_never_ends_cannot_be_drained(tmp_path: Path, drained: Callable[..., ms.Run], started: Callable[..., ms.Run]) -> None:
    (tmp_path / "clicks").mkdir()

    def build() -> tuple[ms.Topology, ms.MemoryTarget]:
        topology = ms.Topology("endless")
        return topology, counting(topology, topology.inject("clicks", ms.files(f"{tmp_path}/clicks/*.jsonl", Click), **USUAL))

    with pytest.raises(ms.TopologyError, match=r"injector 'clicks' never ends, so the run would never be drained; give it a bounded"):
        drained(build()[0])
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1)])
    topology, kept = build()
    run = started(topology)  # the refused run has let go of the folder
    run.drain()
    assert pairs(kept) == [("anna", 1)]
    assert not run.status().injectors["clicks"].finished


def test_values_that_come_fast_are_not_held(started: Callable[..., ms.Run]) -> None:
    """They come five milliseconds apart until the first is delivered: nobody waits for more of them."""
    delivered, given = threading.Event(), []

    def values(taken: int) -> Iterator[Click]:
        while not delivered.is_set() and len(given) < 20_000:
            given.append(click("anna", len(given)))
            yield given[-1]
            delivered.wait(0.005)

    topology, count = ms.Topology("fast"), Count()
    topology.compute("count", count).reads(topology.inject("clicks", ms.values(values, Click), **USUAL))
    topology.deliver("counts", count.counts, ms.function(lambda step, records: delivered.set()))
    run = started(topology)
    assert delivered.wait(60)
    assert len(given) < 10_000
    run.drain()


def test_a_streaming_frame_made_by_a_function(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    topology = ms.Topology("stream")
    source = ms.dataframe(lambda spark: spark.readStream.schema("user string, page string, at timestamp").json(str(folder)), Click)
    kept = counting(topology, topology.inject("clicks", source, **USUAL))
    run = started(topology)
    write_lines(folder / "1.json", [click("anna", 1), click("bert", 2)])
    wait_until(lambda: len(kept.records) == 2)
    write_lines(folder / "2.json", [click("anna", 3)])
    run.drain()
    assert pairs(kept) == [("anna", 1), ("anna", 2), ("bert", 1)]


def test_a_function_goes_on_with_the_values_after_those_taken(drained: Callable[..., ms.Run], started: Callable[..., ms.Run]) -> None:
    asked: list[int] = []

    def build(upto: int) -> tuple[ms.Topology, ms.MemoryTarget]:
        def values(taken: int) -> Iterator[Click]:
            asked.append(taken)
            for n in range(taken, upto):
                yield click(f"u{n % 2}", n)
            if upto < 10:
                import time

                time.sleep(3600)  # more will come, but not today

        topology = ms.Topology("generated")
        return topology, counting(topology, topology.inject("clicks", ms.values(values, Click), **USUAL))

    first, kept = build(5)
    run = started(first)
    wait_until(lambda: len(kept.records) == 5)
    run.stop()
    second, rest = build(10)
    drained(second)
    assert asked == [0, 5]
    assert pairs(kept) + pairs(rest) == [
        ("u0", 1),
        ("u0", 2),
        ("u0", 3),
        ("u1", 1),
        ("u1", 2),
        ("u0", 4),
        ("u0", 5),
        ("u1", 3),
        ("u1", 4),
        ("u1", 5),
    ]


def test_the_low_watermark_is_the_least_over_the_partitions_of_a_source(started: Callable[..., ms.Run], tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    topology = ms.Topology("partitions")
    options = {**USUAL, "partition": lambda c: c.page}
    counting(topology, topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click), **options))
    run = started(topology)
    write_lines(folder / "1.jsonl", [click("anna", 100, "/left"), click("bert", 7, "/right"), click("carl", 10**10, "/right")])
    run.drain()
    assert run.status().computations["count"].low_watermark == T + 6 * ms.SECOND
    assert run.status().injectors["clicks"].dead == 1, "a far future moves nothing"


def test_a_silent_partition_is_left_out_after_its_time(started: Callable[..., ms.Run], tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    topology = ms.Topology("idle")
    options = {**USUAL, "partition": lambda c: c.page, "low_watermark": ms.BoundedDisorder(ms.SECOND, idle_after=2 * ms.SECOND)}

    class Alarm(ms.Computation[None]):
        rung: ms.Output[str]

        def process_record(self, record: ms.Record[Click]) -> None:
            self.set_timer("alarm", at=record.timestamp + 10 * ms.SECOND)

        def process_timer(self, timer: ms.Timer) -> None:
            self.rung.produce(timer.tag, timestamp=timer.at)

    alarm, kept = Alarm(), ms.memory()
    topology.compute("alarm", alarm).reads(topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click), **options))
    topology.deliver("rung", alarm.rung, kept)
    run = started(topology)
    write_lines(folder / "1.jsonl", [click("slow", 0, "/right"), click("fast", 20, "/left")])
    wait_until(lambda: run.status().computations != {} and run.status().computations["alarm"].tally.received == 2)
    for n in range(2, 400):
        write_lines(folder / f"{n}.jsonl", [click("fast", 20 + n, "/left")])
        if kept.records:
            break
        import time

        time.sleep(0.5)
    assert [record.key for record in kept.records][:1] == ["slow"]


def test_an_explicit_low_watermark_is_believed(started: Callable[..., ms.Run], tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    topology = ms.Topology("explicit")
    options = {**USUAL, "low_watermark": ms.Explicit(lambda c: ms.to_timestamp(c.at) - ms.HOUR)}
    counting(topology, topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click), **options))
    run = started(topology)
    write_lines(folder / "1.jsonl", [click("anna", 0), click("bert", 7)])
    run.drain()
    assert run.status().computations["count"].low_watermark == T + 7 * ms.SECOND - ms.HOUR


def test_what_cannot_be_a_record_is_set_aside_and_counted(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    lines = [
        '{"user":"anna","page":"/","at":"2026-01-01T12:00:00Z"}',
        "{ this is no JSON",
        '{"user":"bert","page":"/","at":null}',
        '{"user":"carl","page":"/","at":"2999-01-01T00:00:00Z"}',
        '{"user":"dora","page":"bad","at":"2026-01-01T12:00:00Z"}',
        "",
    ]
    (folder / "1.jsonl").write_text("\n".join(lines) + "\n")
    topology = ms.Topology("bad")
    options = {**USUAL, "key": lambda c: c.user if c.page != "bad" else 7, "errors": ms.Errors.DEAD_LETTER}
    kept = counting(topology, topology.inject("clicks", ms.files(f"{folder}/*.jsonl", Click, bounded=True), **options))
    letters = ms.memory()
    topology.deliver("dead", topology.dead_letters, letters)
    run = drained(topology)
    assert pairs(kept) == [("anna", 1)]
    assert (run.status().injectors["clicks"].injected, run.status().injectors["clicks"].dead) == (1, 4)
    reasons = " | ".join(sorted(record.value.reason for record in letters.records))
    for part in ("cannot be decoded", "Expected `datetime`, got `null`", "after the clock", "a key is text"):
        assert part in reasons
    assert {record.value.value for record in letters.records} == set(lines[1:5])
