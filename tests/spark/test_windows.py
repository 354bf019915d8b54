"""Windows on Spark: the same is told as by the driver that gets all at once, however it comes and whatever dies."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream import aggregate, sketch
from millstream.window import Compare, Days, Every, Hopping, Rolling, Session, Tumbling, Window, WindowTable
from tests.operators.arrival import Arriving, arrive, at_once, play, records, rows, second
from tests.operators.shop import Order, Sales, at, coming
from tests.spark.test_model import Hasty

pytestmark = pytest.mark.spark

CUSTOMERS = [f"c{number}" for number in range(40)]  # each a case of its own
CRASHES = 2
PATIENCE = ms.MINUTE


def sales() -> aggregate.Aggregate[Order, Any, Sales]:
    return aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price))


def believed(count: int, revenue: float) -> float:
    if count == 2:
        raise ValueError("nobody buys two")
    return revenue


class Shop:
    """All windows, over orders that come in time, orders that come late, and orders of a source that promises nothing."""

    def __init__(self) -> None:
        self.topology = topology = ms.Topology("shop")
        self.orders, self.unruly, self.silent = (
            topology.inject(
                name,
                ms.values([], Order),
                key=lambda order: order.customer,
                timestamp=lambda order: at(order.at),
                low_watermark=ms.BoundedDisorder(ms.SECOND),
            )
            for name in ("orders", "unruly", "silent")
        )
        self.in_time: dict[str, Any] = {
            "tumbling": Window(Order, Tumbling(ms.MINUTE), sales()),
            "hopping": Window(Order, Hopping(ms.MINUTE, every=20 * ms.SECOND), sales()),
            "session": Window(Order, Session(9 * ms.SECOND), sales()),
            "days": Window(Order, Days(ZoneInfo("Europe/Berlin")), sales()),
            "filled": Window(Order, Tumbling(20 * ms.SECOND), aggregate.count(), fill=50 * ms.SECOND),
            "distinct": Window(Order, Session(20 * ms.SECOND), sketch.distinct(lambda order: f"{order.price}")),
            "rolling": Rolling(Order, 30 * ms.SECOND, sales()),
            "largest": Rolling(Order, 30 * ms.SECOND, aggregate.max(lambda order: order.price)),
        }
        for name, window in self.in_time.items():
            topology.compute(name, window).reads(self.orders)
        of_two = aggregate.combine(believed, aggregate.count(), aggregate.sum(lambda order: order.price))
        self.doubted = Window(Order, Hopping(ms.MINUTE, every=20 * ms.SECOND), of_two)
        topology.compute("doubted", self.doubted, errors=ms.Errors.DEAD_LETTER).reads(self.orders)
        self.compared = Compare(Sales, back=ms.MINUTE)
        topology.compute("compared", self.compared).reads(self.in_time["tumbling"].results)
        self.patient = {
            "patient": Window(Order, Tumbling(ms.MINUTE), sales(), patience=PATIENCE),
            "patient hops": Window(Order, Hopping(ms.MINUTE, every=20 * ms.SECOND), sales(), patience=PATIENCE),
            "patient sessions": Window(Order, Session(9 * ms.SECOND), sales(), patience=PATIENCE),
        }
        for name, patient in self.patient.items():
            topology.compute(name, patient).reads(self.silent)
        self.tables = {
            "table": WindowTable(Order, Tumbling(20 * ms.SECOND), sales(), correct=10 * ms.DAY),
            "table of hops": WindowTable(Order, Hopping(ms.MINUTE, every=20 * ms.SECOND), sales(), correct=10 * ms.DAY),
            "table of sessions": WindowTable(
                Order, Session(9 * ms.SECOND), sales(), correct=10 * ms.DAY, early=Every(5 * ms.SECOND, clock=ms.Clock.LOW_WATERMARK)
            ),
        }
        for name, table in self.tables.items():
            topology.compute(name, table).reads(self.unruly)
        windows: list[Any] = [*self.in_time.values(), self.doubted, *self.patient.values()]
        self.outputs: list[ms.Output[Any]] = [self.compared.compared, *(window.results for window in windows)]
        self.late: list[ms.Output[Any]] = [self.compared.late, *(one.late for one in (*windows, *self.tables.values()))]
        self.names = list(topology.nodes)

    def arrivals(self, chance: random.Random) -> dict[Any, list[Arriving]]:
        return {
            self.orders: list(arrive(coming(self.orders, self.drawn(chance, 240)), chance).epochs),
            self.unruly: list(arrive(coming(self.unruly, self.drawn(chance, 160)), chance, lateness=0.5).epochs),
            self.silent: list(arrive(coming(self.silent, self.drawn(chance, 120)), chance).epochs),
        }

    def drawn(self, chance: random.Random, count: int) -> list[Order]:
        """No two of a customer at one time: a rolling span sees those before. A quarter of the customers is there for days."""
        places = [(customer, moment) for customer in CUSTOMERS[10:] for moment in range(240)]
        far = [(customer, moment) for customer in CUSTOMERS[:10] for moment in range(0, 3 * 86_400, 1800)]
        drawn = chance.sample(places, count * 3 // 4) + chance.sample(far, count // 4)
        return [Order(customer, round(chance.uniform(0, 9), 2), moment) for customer, moment in drawn]


def letters(stage: Any) -> list[tuple[Any, ...]]:
    return sorted((letter.computation, letter.key, letter.id) for letter in stage.dead_letters())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3, 4))])
def test_the_same_is_told_however_it_comes_and_whatever_dies(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    shop, chance = Shop(), random.Random(seed)
    arrivals = shop.arrivals(chance)
    wanted = play(shop.topology, at_once([event for epochs in arrivals.values() for epoch in epochs for event in epoch.events]))
    turns = itertools.zip_longest(*([(stream, epoch) for epoch in epochs] for stream, epochs in arrivals.items()))
    script = [step for turn in turns for step in turn if step is not None]
    crashes = set(chance.sample(range(len(script) // 3, len(script)), CRASHES))
    stage = Hasty(shop.topology, tmp_path / "mill", spark, 2)
    found: Any = stage
    try:
        stage.begin()
        for number, (stream, epoch) in enumerate(script):
            if number in crashes:
                stage.crash()
            stage.send(stream, *(event.value for event in epoch.events))
            if epoch.low_watermark is not None and stream is not shop.silent:
                stage.advance(low_watermark=second(epoch.low_watermark), of=stream)
        assert all(stage.read(patient.results) == [] for patient in shop.patient.values())
        stage.advance(now=stage.now + PATIENCE)
        for patient in shop.patient.values():
            assert records(found, patient.results) == records(wanted, patient.results)  # before any promise
        assert not any(stage.read(output) for output in shop.late)
        stage.send(shop.silent, again := arrivals[shop.silent][0].events[0].value)
        stage.finish()
        assert [[record.value for record in stage.read(patient.late)] for patient in shop.patient.values()] == [[again]] * 3
        for output in shop.outputs:
            assert records(found, output) == records(wanted, output), output
        for table in shop.tables.values():
            assert rows(found, table.changes) == rows(wanted, table.changes)
        assert letters(stage) == letters(wanted)
        assert len(stage.torn) == CRASHES
        assert [name for name in shop.names if stage.keys(name)] == []
    finally:
        stage.stop()
    told = [len(wanted.read(output)) for output in (*shop.outputs, *(table.changes for table in shop.tables.values()))]
    assert min(told) > 40
    assert len(letters(wanted)) > 20
