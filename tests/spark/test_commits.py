"""What Spark may do twice, or too late, must count once: sinks, feeders and blobs, asked without a query around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import millstream as ms
from millstream.core.backlog import Position
from millstream.core.epoch import Header
from millstream.core.graph import Graph, compile_topology, table_of
from millstream.core.plan import read_source
from millstream.injector import Format
from millstream.log.folder import Folder
from millstream.log.staged import MICROSECONDS, RECORDS, stage
from millstream.log.table import Table, newest_note, tail
from millstream.spark import inject as injecting
from millstream.spark import targets
from millstream.spark.deliver import in_order
from millstream.spark.inject import Injected, InjectorSettings
from millstream.spark.mill import MillWriter, Settings, Staged
from millstream.spark.owner import take_over
from millstream.spark.planner import find_manifest
from millstream.spark.ship import pack
from millstream.spark.spool import Feeder
from millstream.spark.targets import DeliverySettings, writer_for
from millstream.spark.wire import ARRIVALS, read_arrivals, to_blob
from tests.spark.clicks import Count, T, counted_by_page, inject

CLICKS = table_of("clicks")


@pytest.fixture
def graph() -> Graph:
    topology, count = ms.Topology("commits"), Count()
    topology.compute("count", count).reads(inject(topology, []))
    topology.deliver("out", count.counts, ms.memory())
    return compile_topology(topology)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path / "mill")
    found.open()
    return found


def injected(folder: Folder, *, upto: dict[str, int]) -> Injected:
    """What the tasks of an injector leave: one record."""
    record = pa.table([["a"], ["1"], pa.array([int(T)], pa.int64()).cast(MICROSECONDS), pa.array([0]), pa.array([0])], schema=RECORDS)
    files = stage(folder.table(CLICKS), "clicks", record, epoch=0)
    return Injected(files, {partition: T + seconds * ms.SECOND for partition, seconds in upto.items()}, 1, 0)


def test_an_epoch_that_an_injector_commits_again_is_there_once(folder: Folder, graph: Graph) -> None:
    settings = InjectorSettings(str(folder.path), take_over(folder, graph), "clicks", pack(graph), "r")
    for _ in range(2):
        injecting._commit(settings, [injected(folder, upto={"": 1})], 0)
    assert [file.rows for commit in tail(folder.table(CLICKS), CLICKS, Position()) for file in commit.files] == [1]
    note = newest_note(folder.table(CLICKS), CLICKS)
    assert note is not None
    assert read_source(note[1]).injected == 1


def test_partitions_that_are_idle_are_forgotten_in_the_log(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may come and go for ever, and every commit says what is known of all."""
    graph = compile_topology(counted_by_page(idle_after=10 * ms.SECOND))
    settings = InjectorSettings(str(folder.path), take_over(folder, graph), "clicks", pack(graph), "r")
    for epoch in range(50):
        monkeypatch.setattr(injecting, "_now", lambda epoch=epoch: T + epoch * ms.SECOND)
        injecting._commit(settings, [injected(folder, upto={f"p{epoch}": epoch})], epoch)
    note = newest_note(folder.table(CLICKS), CLICKS)
    assert note is not None
    assert list(read_source(note[1]).marks) == [f"p{n}" for n in range(39, 50)]


@pytest.mark.parametrize("format_", [None, Format.JSON_LINES, Format.PARQUET])
def test_an_epoch_that_is_delivered_again_is_there_once(
    tmp_path: Path, folder: Folder, graph: Graph, monkeypatch: pytest.MonkeyPatch, format_: Format | None
) -> None:
    monkeypatch.setattr(targets, "_part", lambda: 0)
    out = tmp_path / "out"
    settings = DeliverySettings(str(folder.path), "identity", "out", "count.counts", ("mill",), pack(graph), "r", str(out), format_)
    for _ in range(2):
        writer = writer_for(msgspec.json.encode(settings).decode())
        writer.commit([writer.write(iter([delivered("1")]))], 3)
    if format_ is None:
        assert DeltaTable(str(out)).to_pyarrow_table()["value"].to_pylist() == [1]
    else:
        assert len([file for file in out.iterdir() if not file.name.startswith(".")]) == 1


def delivered(*values: str) -> pa.RecordBatch:
    count = len(values)
    columns = [
        [f"k{n}" for n in range(count)],
        list(values),
        pa.array([int(T)] * count).cast(MICROSECONDS),
        [f"mill/3/{n}" for n in range(count)],
    ]
    return pa.record_batch([pa.array(column) for column in columns], names=["key", "value", "timestamp", "id"])


@pytest.mark.parametrize("bad", ['"three"', "null", str(2**70)])
def test_a_value_that_does_not_fit_a_delivery_is_named(
    tmp_path: Path, folder: Folder, graph: Graph, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setattr(targets, "_part", lambda: 0)
    monkeypatch.setattr(targets, "reported", nullcontext)  # the error itself
    settings = DeliverySettings(str(folder.path), "id", "out", "count.counts", ("mill",), pack(graph), "r", str(tmp_path / "out"))
    writer = writer_for(msgspec.json.encode(settings).decode())
    with pytest.raises(
        ms.RecordError, match=r"record mill/3/1 of stream 'count.counts', key 'k1': its value does not fit .* widen the type"
    ):
        writer.write(iter([delivered("1", bad, "2")]))


def test_a_run_that_was_overtaken_leaves_no_manifest(folder: Folder, graph: Graph) -> None:
    fences = [take_over(folder, graph) for _ in range(2)]
    old, new = (Settings(str(folder.path), fence, [0], 1, 10, 10, pack(graph)) for fence in fences)
    with pytest.raises(Exception, match="millstream:"):  # as Spark is told
        MillWriter(msgspec.json.encode(old).decode()).commit([Staged([7], [], [])], 7)
    assert find_manifest(folder, 7) is None
    MillWriter(msgspec.json.encode(new).decode()).commit([Staged([7], [], [])], 7)
    assert find_manifest(folder, 7) is not None


def test_a_run_that_was_overtaken_spools_nothing(folder: Folder, graph: Graph) -> None:
    fences = [take_over(folder, graph) for _ in range(2)]
    for fence, spooled in zip(fences, (0, 3), strict=True):
        table = Table(folder.table(CLICKS), CLICKS, fence)
        feeder = Feeder("clicks", ms.values([1, 2, 3], int), folder.spool("clicks"), table.owned)
        feeder.run()
        assert isinstance(feeder.error, ms.LogError) == (spooled == 0)
        assert sum(len(file.read_bytes().splitlines()) for file in folder.spool("clicks").glob("*.jsonl")) == spooled


def test_the_records_of_a_bucket_come_in_order_whatever_blobs_they_are_in() -> None:
    header = Header(epoch=5, now=T, low_watermarks={}, before={})
    times, tables, epochs, sequences = (5, 3, 3, 9, 3, 3), (0, 1, 0, 0, 0, 0), (1, 1, 2, 1, 1, 1), (0, 0, 0, 4, 7, 2)
    rows = [(0, "k", f"{n}", *row, "bad" if n == 2 else None) for n, row in enumerate(zip(times, tables, epochs, sequences, strict=True))]

    def blob(some: list[Any]) -> bytes:
        columns: Iterator[Any] = zip(*some, strict=True)
        return to_blob(
            pa.table([pa.array(column, field.type) for column, field in zip(columns, ARRIVALS, strict=True)], schema=ARRIVALS),
            "header",
            header,
        )

    told, arrivals = read_arrivals([blob(rows[:2]), blob(rows[2:])], ["a", "b"])
    assert told.epoch == 5
    assert [bytes(value).decode() for value in arrivals.values] == ["5", "4", "2", "1", "0", "3"]
    assert arrivals.ids[:3] == [("a", 1, 2), ("a", 1, 7), ("a", 2, 0)]
    assert arrivals.errors == {2: "bad"}


def test_records_of_one_time_are_delivered_as_they_were_produced() -> None:
    ids = [f"injector a/b/{epoch}/{sequence}" for epoch in (2, 10) for sequence in (2, 10, 100)]
    times = [1] * len(ids)
    shuffled = pa.table({"timestamp": [*times, 0], "id": [*reversed(ids), "mill/0/0"]})
    assert in_order(shuffled)["id"].to_pylist() == ["mill/0/0", *ids]
