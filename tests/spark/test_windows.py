"""Windows on Spark tell what they tell in the driver of tests, with other epochs, in two lanes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream as ms
from millstream import aggregate, sketch
from millstream.testing import Driver
from millstream.window import Compare, Every, Hopping, Rolling, Session, Tumbling, Window, WindowTable
from tests.invariants import changes_join_up, changes_never_go_back
from tests.operators.shop import Order, Sales, at, some_orders

pytestmark = pytest.mark.spark


def site(events: list[Order]) -> tuple[ms.Topology, Any, dict[str, ms.MemoryTarget], dict[str, ms.Output[Any]], WindowTable[Any, Any]]:
    topology = ms.Topology("windows")
    orders = topology.inject(
        "orders",
        ms.values(events, Order),
        key=lambda order: order.customer,
        timestamp=lambda order: at(order.at),
        low_watermark=ms.BoundedDisorder(60 * ms.SECOND),
    )
    sales = aggregate.combine(Sales, aggregate.count(), aggregate.sum(lambda order: order.price))
    tumbling, hopping = Window(Order, Tumbling(ms.MINUTE), sales), Window(Order, Hopping(ms.MINUTE, every=20 * ms.SECOND), sales)
    session = Window(Order, Session(9 * ms.SECOND), sketch.distinct(lambda order: f"{order.price}"))
    rolling = Rolling(Order, 30 * ms.SECOND, aggregate.count())
    table = WindowTable(Order, Session(9 * ms.SECOND), sales, correct=ms.HOUR, early=Every(ms.SECOND))
    compared = Compare(Sales, back=ms.MINUTE)
    for name, window in {"tumbling": tumbling, "hopping": hopping, "session": session, "rolling": rolling, "table": table}.items():
        topology.compute(name, window).reads(orders)
    topology.compute("compared", compared).reads(tumbling.results)
    outputs: dict[str, ms.Output[Any]] = {
        "tumbling": tumbling.results,
        "hopping": hopping.results,
        "session": session.results,
        "rolling": rolling.results,
        "compared": compared.compared,
        "late": tumbling.late,
    }
    kept = {name: ms.memory() for name in (*outputs, "table")}
    for name, output in {**outputs, "table": table.changes}.items():
        topology.deliver(name, output, kept[name])
    return topology, orders, kept, outputs, table


def told(records: list[ms.Record[Any]]) -> list[tuple[Any, ...]]:
    return sorted((record.key, int(record.timestamp), repr(msgspec.to_builtins(record.value))) for record in records)


def rows(records: list[ms.Record[Any]]) -> dict[str, Any]:
    changes_join_up(records)
    changes_never_go_back(records)
    return {record.key: record.value.after for record in records if record.value.after is not None}


def test_windows_tell_the_same_in_lanes(drained: Callable[..., ms.Run], tmp_path: Path) -> None:
    chance = random.Random(5)
    drawn = sorted(some_orders(chance, 600, 10**9), key=lambda order: order.at)
    seconds = sorted(chance.sample(range(3000), 600))
    events = [Order(order.customer, order.price, second) for order, second in zip(drawn, seconds, strict=True)]
    shuffled = sorted(events, key=lambda order: order.at + chance.uniform(0, 50))  # within what the injector promises
    topology, _, kept, outputs, _ = site(shuffled)
    drained(topology, lanes=2, buckets=8)
    other, orders, _, expected, table = site([])
    driver = Driver(other)
    with driver.together():
        driver.send(orders, *events)
    driver.finish()
    for name, output in outputs.items():
        assert output.name == expected[name].name
        assert told(kept[name].records) == told(driver.read(expected[name])), name
    assert len(kept["tumbling"].records) > 400
    assert kept["late"].records == []
    assert set(map(repr, rows(kept["table"].records).values())) == set(map(repr, rows(driver.read(table.changes)).values()))
