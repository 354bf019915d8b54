"""The source of the guide on Spark: rows that are there are read by lanes, rows that come by the driver, and a restart goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import millstream as ms
from tests.examples import load_example

pytestmark = pytest.mark.spark

TIMEOUT = 120.0  # seconds; a bound, never an expectation


@dataclass(frozen=True)
class Sale:
    id: int
    customer: str
    total: float


class Sales(ms.Computation[float]):
    sums: ms.Output[float]

    def process_record(self, record: ms.Record[Sale]) -> None:
        self.state += record.value.total
        self.sums.produce(self.state, timestamp=record.timestamp)


def insert(path: Path, count: int) -> int:
    """Returns the id of the last one."""
    with closing(sqlite3.connect(path)) as database, database:
        cursor = database.cursor()
        for n in range(count):
            cursor.execute("insert into sales (customer, total) values (?, 1.0)", [f"c{n % 7}"])
        assert cursor.lastrowid is not None
        return cursor.lastrowid


def test_a_table_is_read_once_over_restarts(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    path = tmp_path / "sales.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table sales (id integer primary key autoincrement, customer text not null, total real not null)")

    def run() -> ms.Run:
        topology, sums = ms.Topology("shop"), Sales()
        sales = topology.inject(
            "sales",
            load_example("sqlite_source").Table(str(path), "sales", Sale),
            key=lambda sale: sale.customer,
            timestamp=lambda sale: ms.Timestamp(1_800_000_000_000_000 + sale.id),
            low_watermark=ms.BoundedDisorder(ms.SECOND),
            ahead=10_000 * ms.DAY,
        )
        topology.compute("sums", sums).reads(sales)
        topology.deliver("sums", sums.sums, ms.memory())
        return started(topology, lanes=2)

    def wait(found: ms.Run, last: int) -> None:
        assert found.wait_for("sums", last, of="sales", timeout=TIMEOUT), found.status()

    insert(path, 5_000)  # a backlog, for lanes
    first = run()
    wait(first, 5_000)
    wait(first, insert(path, 3))
    assert first.status().injectors["sales"].lag.get("", 0) == 0
    first.stop()
    insert(path, 4)
    second = run()
    wait(second, insert(path, 2_500))
    wait(second, insert(path, 1))
    second.stop()

    read = ms.read(at, "sales", value=Sale)
    assert sorted(record.value.id for record in read) == list(range(1, 7_509))
    assert len({record.id for record in read}) == len(read)
    assert max(record.value for record in ms.read(at, "sums.sums", value=float)) == max(
        sum(record.key == f"c{n}" for record in read) for n in range(7)
    )
