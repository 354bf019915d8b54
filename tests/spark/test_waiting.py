"""Read your own write: a delivery is waited for by what a writer got back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import millstream as ms
from millstream.sources.value_source import ValueSource

TIMEOUT = 60.0  # seconds; a bound, never an expectation


@dataclass(frozen=True)
class Order:
    customer: str
    amount: int


class Total(ms.Computation[int]):
    totals: ms.Output[int]

    def process_record(self, record: ms.Record[Order]) -> None:
        self.state += record.value.amount
        self.totals.produce(self.state, timestamp=record.timestamp)


class Double(ms.Computation[None]):
    doubled: ms.Output[int]

    def process_record(self, record: ms.Record[int]) -> None:
        self.doubled.produce(2 * record.value, timestamp=record.timestamp)


class Counted(ValueSource[Order]):
    """Whoever puts a value knows its number."""

    def position(self, of: object) -> dict[str, ms.Position] | None:
        return {"": of + 1} if isinstance(of, int) else None


def test_a_writer_reads_its_own_write(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    orders: queue.Queue[Order | None] = queue.Queue()

    def coming(taken: int) -> Iterator[Order]:
        while (order := orders.get()) is not None:
            yield order

    topology, total, double, seen = ms.Topology("shop"), Total(), Double(), ms.memory()
    injected = topology.inject(
        "orders",
        Counted(coming, Order),
        key=lambda o: o.customer,
        timestamp=lambda o: ms.Timestamp(1_700_000_000_000_000),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("total", total).reads(injected)
    topology.compute("double", double).reads(total.totals)
    topology.deliver("view", double.doubled, seen)
    topology.deliver("table", double.doubled, ms.delta(tmp_path / "table"))
    run = started(topology)
    with pytest.raises(ms.TopologyError, match=r"wait_for: there is no delivery called 'vew'; there is 'view', 'table'"):
        run.wait_for("vew", 1)
    with pytest.raises(ms.TopologyError, match=r"wait_for\(of='order'\): there is no injector of that name; there is 'orders'"):
        run.wait_for("view", 1, of="order")
    with pytest.raises(ms.TopologyError, match=r"wait_for\('x'\): this is a place in no source of this topology; give an epoch, or what"):
        run.wait_for("view", "x")
    for number in range(20):
        orders.put(Order("anna", 1))
        assert run.wait_for("view", number, of="orders", timeout=TIMEOUT)
        assert seen.records[-1].value == 2 * (number + 1), "it is there when the wait is over"
    assert run.wait_for("table", 19, of="orders", timeout=TIMEOUT)
    assert len(list(ms.read(tmp_path / "mill", "double.doubled"))) == 20
    assert run.wait_for("view", run.status().epoch, timeout=TIMEOUT)
    assert not run.wait_for("view", 20, of="orders", timeout=0.1), "nobody has written it"
    ended = threading.Thread(target=run.stop)
    ended.start()
    assert not run.wait_for("view", 20, of="orders", timeout=TIMEOUT), "the run has ended"
    orders.put(None)
    ended.join(TIMEOUT)
