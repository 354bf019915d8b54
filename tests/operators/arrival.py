"""Ways for the same events to come: in another order, cut into other epochs, some too late, with crashes.

What an operator tells must not depend on any of it, but for what is late; and nothing that it tells is late. Keys know nothing
of each other, so each key of each arrival is a case of its own: some thousand for each operator with every run of the tests,
and as many as wanted in `test_more_seeds.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import millstream as ms
from millstream.testing import Driver
from tests.invariants import changes_join_up, changes_never_go_back

MIDNIGHT = 1_714_521_600_000_000  # 2024-05-01; seconds count from it


class Event(NamedTuple):
    """A value that comes on a stream, at a time in seconds."""

    stream: Any
    value: Any
    at: int


@dataclass(frozen=True)
class Arriving:
    """What comes in one epoch, and how far the low watermark is then."""

    events: Sequence[Event]
    low_watermark: int | None
    crash: bool
    at_once: bool = False  # the low watermark moves in the epoch that brings the events, and not in the next


@dataclass(frozen=True)
class Arrival:
    """One way for events to come. `late` are those that were older than the low watermark by then."""

    epochs: Sequence[Arriving]
    on_time: Sequence[Event]
    late: Sequence[Event]


def arrive(events: Iterable[Event], chance: random.Random, *, lateness: float = 0.0) -> Arrival:
    """Roughly in the order of their times; the low watermark passes by some that have not come, as often as `lateness` says."""
    left = sorted(events, key=lambda event: event.at)
    sizes = (1, 1, 2, 8) if len(left) < 100 else (1, 5, len(left) // 15, len(left) // 5)
    epochs: list[Arriving] = []
    on_time: list[Event] = []
    late: list[Event] = []
    low: int | None = None
    while left:
        taken: list[Event] = []
        for _ in range(min(len(left), chance.choice(sizes))):
            event = left.pop(min(chance.randrange(len(left)), chance.randrange(len(left))))
            taken.append(event)
            (late if low is not None and event.at < low else on_time).append(event)
        if left and chance.random() < lateness:
            low = max(low or 0, chance.choice(left[: 1 + len(left) // 2]).at)
        elif left and chance.random() < 0.5:
            low = max(low or 0, left[0].at)
        epochs.append(Arriving(taken, low, chance.random() < 0.1, chance.random() < 0.5))
    return Arrival(epochs, on_time, late)


def at_once(events: Sequence[Event]) -> Arrival:
    """All in one epoch, and nothing late."""
    return Arrival([Arriving(events, None, False)], events, [])


class Noticed(ms.Computation[int]):
    """Reads what an operator tells, so that it is counted what was late."""

    def process_record(self, record: ms.Record[Any]) -> None:
        self.state += 1


def notice(topology: ms.Topology, *outputs: ms.Output[Any]) -> None:
    """Have somebody read these, for `nothing_is_late` and `play`."""
    for number, output in enumerate(outputs):
        topology.compute(f"noticed {number}", Noticed()).reads(output)


def nothing_is_late(topology: ms.Topology, driver: Driver) -> None:
    """Of what somebody reads."""
    for name in topology.nodes:
        if name.startswith("noticed"):
            assert driver.tally(name).late == 0, driver.describe()


def play(topology: ms.Topology, arrival: Arrival) -> Driver:
    """Have all come, up to the end, an epoch a second. Nothing is late for who reads it."""
    driver = Driver(topology, ship=False)
    for number, epoch in enumerate(arrival.epochs):
        if epoch.crash:
            driver.crash()
        with driver.together():
            driver.advance(now=ms.Timestamp(number * 1_000_000))
            for event in epoch.events:
                driver.send(event.stream, event.value)
            if epoch.low_watermark is not None and epoch.at_once:
                driver.advance(low_watermark=second(epoch.low_watermark))
        if epoch.low_watermark is not None:
            driver.advance(low_watermark=second(epoch.low_watermark))
    driver.finish()
    nothing_is_late(topology, driver)
    return driver


def second(number: int) -> ms.Timestamp:
    return ms.Timestamp(MIDNIGHT + number * 1_000_000)


def records(driver: Driver, output: ms.Output[Any]) -> list[tuple[str, int, Any]]:
    """What was told, in an order that does not depend on how it came about: key, microseconds since midnight, value."""
    return sorted(((record.key, int(record.timestamp) - MIDNIGHT, record.value) for record in driver.read(output)), key=repr)


def rows(driver: Driver, table: ms.Output[ms.Change[Any]]) -> dict[str, Any]:
    """The rows that a table ends with. Both laws of tables hold: in the order of the log, and so in that of their times."""
    changes = driver.read(table)
    changes_join_up(changes)
    changes_never_go_back(changes)
    changes_join_up(sorted(changes, key=lambda record: int(record.timestamp)))
    left = {record.key: record.value.after for record in changes}
    return {key: row for key, row in left.items() if row is not None}
