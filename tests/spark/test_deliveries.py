"""Every target, on Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

import millstream as ms
from tests.spark.clicks import Click, T, click, inject, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Seen:
    page: str
    at: ms.Timestamp
    note: str | None = None


class Look(ms.Computation):
    seen: ms.Output[Seen]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.seen.produce(Seen(record.value.page, record.timestamp), timestamp=record.timestamp)


def test_one_stream_to_every_target(tmp_path: Path, at: Path, drained: Callable[..., ms.Run], capfd: pytest.CaptureFixture[str]) -> None:
    topology = ms.Topology("targets")
    look, kept = Look(), ms.memory()
    topology.compute("look", look).reads(inject(topology, [click("anna", n // 20, f"/{n}") for n in range(40)]))
    called: list[tuple[int, list[ms.Record[Seen]]]] = []
    topology.deliver("delta", look.seen, ms.delta(str(tmp_path / "delta")))
    topology.deliver("lines", look.seen, ms.to_files(str(tmp_path / "lines")))
    topology.deliver("parquet", look.seen, ms.to_files(str(tmp_path / "parquet"), format=ms.Format.PARQUET))
    topology.deliver("memory", look.seen, kept)
    topology.deliver("function", look.seen, ms.function(lambda epoch, records: called.append((epoch, records))))
    topology.deliver("console", look.seen, ms.console(at_most=2))
    drained(topology, lanes=2)

    times = [T + n // 20 * ms.SECOND for n in range(40)]  # twenty each: those come as they were produced
    want = [ms.Record("anna", Seen(f"/{n}", at), at) for n, at in enumerate(times)]
    assert kept.records == want
    assert [record for _, records in called for record in records] == want
    delivered = DeltaTable(str(tmp_path / "delta")).to_pyarrow_dataset()
    rows = duckdb.sql("select key, value.page, epoch_us(value.at), epoch_us(timestamp), id from delivered").fetchall()
    rows.sort(key=lambda row: int(row[1][1:]))
    assert [row[:4] for row in rows] == [("anna", f"/{n}", at, at) for n, at in enumerate(times)]
    assert len({row[4] for row in rows}) == 40
    lines = [json.loads(line) for file in sorted((tmp_path / "lines").glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert sorted(line["value"]["page"] for line in lines) == sorted(f"/{n}" for n in range(40))
    assert duckdb.sql(f"select count(*), count(distinct value.page) from '{tmp_path}/parquet/*.parquet'").fetchall() == [(40, 40)]
    printed = capfd.readouterr().out
    assert "console: … 38 more" in printed
    assert "anna  Seen(page='/39'" in printed

    log = DeltaTable(str(at / "log")).to_pyarrow_dataset()
    assert duckdb.sql("select stream, count(*) from log group by stream order by 1").fetchall() == [("clicks", 40), ("look.seen", 40)]
    assert ms.read(at, "look.seen", value=Seen) == want
    assert [step for step, _ in called] == list(range(len(called)))


def looked(folder: Path, *deliveries: tuple[str, ms.Target], keep: bool = True) -> ms.Topology:
    """The clicks of a folder, and where they go."""

    class Some(Look):
        seen: ms.Output[Seen] = ms.output(keep=keep)

    made, look = ms.Topology("looked"), Some()
    usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    made.compute("look", look).reads(made.inject("clicks", ms.files(f"{folder}/*.jsonl", Click), keep=keep, **usual))
    for name, target in deliveries:
        made.deliver(name, look.seen, target)
    return made


def give(folder: Path, *clicks: int) -> None:
    write_lines(folder / f"{clicks[0]}.jsonl", [click("anna", n, f"/{n}") for n in clicks])


def pages(target: ms.MemoryTarget | list[ms.Record[Seen]] | Path) -> list[int]:
    """The numbers of the clicks that a target has, in its order; of a table, in theirs."""
    if isinstance(target, Path):
        return sorted(int(row["value"]["page"][1:]) for row in DeltaTable(str(target)).to_pyarrow_table().to_pylist())
    return [int(record.value.page[1:]) for record in (target.records if isinstance(target, ms.MemoryTarget) else target)]


def test_a_delivery_added_later_begins_with_what_the_log_holds_and_one_that_comes_back_goes_on(
    tmp_path: Path, started: Callable[..., ms.Run]
) -> None:
    folder, called = tmp_path / "clicks", list[ms.Record[Seen]]()
    table, function = ms.delta(str(tmp_path / "table")), ms.function(lambda step, records: called.extend(records))
    renamed, later = ms.delta(str(tmp_path / "renamed")), ms.memory()
    give(folder, 0, 1, 2)
    started(looked(folder, ("table", table), ("function", function))).drain()
    give(folder, 3, 4)
    started(looked(folder, ("later", later), ("new name", renamed))).drain()  # the first two are removed, or have another name
    assert pages(later) == pages(tmp_path / "renamed") == [0, 1, 2, 3, 4]
    assert pages(tmp_path / "table") == pages(called) == [0, 1, 2]
    give(folder, 5)
    started(looked(folder, ("table", table), ("function", function), ("later", later))).drain()
    assert pages(tmp_path / "table") == pages(called) == pages(later) == [0, 1, 2, 3, 4, 5]
    assert pages(tmp_path / "renamed") == [0, 1, 2, 3, 4]


def test_a_stream_that_is_not_kept_is_delivered_and_not_in_the_log(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    folder, table, kept, later = tmp_path / "clicks", ms.delta(str(tmp_path / "table")), ms.memory(), ms.memory()
    give(folder, 0, 1, 2, 3)
    started(looked(folder, ("table", table), ("memory", kept), keep=False)).drain()
    assert pages(tmp_path / "table") == pages(kept) == [0, 1, 2, 3]
    assert DeltaTable(str(at / "log")).to_pyarrow_table().num_rows == 0
    first = set((at / "journal" / "segments").iterdir())
    give(folder, 4)
    started(looked(folder, ("table", table), ("later", later), keep=False)).drain()
    assert pages(tmp_path / "table") == [0, 1, 2, 3, 4]
    assert pages(later) == [4], "it begins with the present: there is no history"
    assert not first & set((at / "journal" / "segments").iterdir()), "nobody needs what all have had"


def test_large_targets_are_written_as_often_as_asked_and_at_the_end(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder, often, seldom = tmp_path / "clicks", tmp_path / "often", tmp_path / "seldom"
    give(folder, 0, 1, 2)
    targets = [("often", ms.delta(str(often), every=50 * ms.MILLISECOND)), ("seldom", ms.to_files(str(seldom), every=ms.HOUR))]
    run = started(looked(folder, *targets))
    wait_until(lambda: (often / "_delta_log").exists() and pages(often) == [0, 1, 2])
    assert not list(seldom.glob("*.jsonl"))
    run.stop()
    assert sum(len(file.read_text().splitlines()) for file in seldom.glob("*.jsonl")) == 3


def test_a_target_of_another_type_is_refused(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    class Pages(ms.Computation):
        seen: ms.Output[str]

        def process_record(self, record: ms.Record[Click]) -> None:
            self.seen.produce(record.value.page, timestamp=record.timestamp)

    def topology(name: str, computation: ms.Computation) -> ms.Topology:
        made = ms.Topology(name)
        made.compute("look", computation).reads(inject(made, [click("anna", 1)]))
        made.deliver("out", computation.seen, ms.delta(str(tmp_path / "out")))  # type: ignore[attr-defined]
        return made

    drained(topology("one", Look()), folder=tmp_path / "one")
    with pytest.raises(ms.LogError, match="deliver it to another path, or keep the old type"):
        drained(topology("two", Pages()), folder=tmp_path / "two")


def test_two_runs_in_one_session_go_on_beside_each_other(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    """Each gives the other its turn: a click of one is given when one of the other has come out."""
    turns = {"left": threading.Semaphore(1), "right": threading.Semaphore(0)}
    seen: list[str] = []

    def topology(mine: str, other: str) -> ms.Topology:
        def values(taken: int) -> Iterator[Click]:
            for n in range(3):
                assert turns[mine].acquire(timeout=100)
                yield click(mine, n)

        def out(step: int, records: list[ms.Record[Seen]]) -> None:
            seen.extend(record.key for record in records)
            turns[other].release()

        made, look = ms.Topology("one of two"), Look()
        usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        made.compute("look", look).reads(made.inject("clicks", ms.values(values, Click), **usual))
        made.deliver("out", look.seen, ms.function(out))
        return made

    runs = [started(topology(mine, other), folder=tmp_path / mine) for mine, other in (("left", "right"), ("right", "left"))]
    wait_until(lambda: len(seen) == 6)
    for run in runs:
        run.stop()
    assert seen == ["left", "right"] * 3
