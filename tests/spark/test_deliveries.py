"""Every target, on Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

import millstream as ms
from tests.spark.clicks import Click, T, click, inject

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
    drained(topology, partitions=2)

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

    log = DeltaTable(str(at / "log" / "mill")).to_pyarrow_dataset()
    assert duckdb.sql("select stream, count(*) from log group by stream").fetchall() == [("look.seen", 40)]


def test_a_delivery_added_later_begins_with_what_the_log_holds(tmp_path: Path, drained: Callable[..., ms.Run]) -> None:
    def topology(*deliveries: str) -> ms.Topology:
        made = ms.Topology("later")
        look = Look()
        made.compute("look", look).reads(inject(made, [click("anna", n) for n in range(5)]))
        for name in deliveries:
            made.deliver(name, look.seen, ms.delta(str(tmp_path / name)))
        return made

    drained(topology("first"))
    drained(topology("first", "second"))
    for name in ("first", "second"):
        assert DeltaTable(str(tmp_path / name)).to_pyarrow_table().num_rows == 5


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
    with pytest.raises(ms.RunFailed, match="deliver it to another path, or keep the old type"):
        drained(topology("two", Pages()), folder=tmp_path / "two")
