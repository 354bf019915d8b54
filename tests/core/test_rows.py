"""An epoch of several buckets at once: order, ids, and the rows that it changes."""

from __future__ import annotations

import random
from typing import Any

import pytest

import millstream as ms
from millstream.core.arrivals import Packet, gather
from millstream.core.codec import encode_value
from millstream.core.epoch import Header
from millstream.core.graph import compile_topology
from millstream.core.lanes import Lanes
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill, Outcome
from millstream.core.parts import Columns
from millstream.mill.held import Held, decode_changes
from tests.core.alone import Event, inject
from tests.core.shelf import Shelf

INJECTORS = {"events", "a", "b"}


def columns(minors: list[int], times: list[int] | None = None, keys: list[str] | None = None, **more: Any) -> Columns:
    keys = keys or [f"k{minor}" for minor in minors]
    return Columns(keys, [b"%d" % minor for minor in minors], times or [5] * len(minors), minors, **more)  # type: ignore[arg-type]


# Packets put together.


def ids(*packets: Packet) -> list[str]:
    arrivals = gather(packets, INJECTORS)
    return [arrivals.id(position) for position in range(len(arrivals.keys))]


def test_one_packet_in_order_is_not_copied() -> None:
    given = columns([1, 2, 3], [4, 5, 5])
    arrivals = gather([Packet((0, 1), "events", "events", 0, given)], INJECTORS)
    assert arrivals.keys is given.keys
    assert arrivals.values is given.values
    assert ids(Packet((0,), "events", "events", 7, given)) == ["events/7/1", "events/7/2", "events/7/3"]


def test_productions_come_first_then_injectors_by_name_then_by_major_and_minor() -> None:
    assert ids(
        Packet((0,), "b", "b", 0, columns([0])),
        Packet((1,), "a", "a", 2, columns([0])),
        Packet((1,), "a", "a", 1, columns([9])),
        Packet((2,), "c.out", "c.out", 8, columns([0])),
    ) == ["c.out/8/0", "a/1/9", "a/2/0", "b/0/0"]


def test_timestamps_come_before_ids() -> None:
    assert ids(Packet((0,), "a", "a", 0, columns([0, 1, 2], [5, 3, 4])), Packet((0,), "b", "b", 0, columns([0, 1], [3, 9]))) == [
        "a/0/1",
        "b/0/0",
        "a/0/2",
        "a/0/0",
        "b/0/1",
    ]


def test_streams_that_count_together_are_merged_by_their_ids() -> None:
    assert ids(Packet((0,), "c.x", "c.x", 3, columns([0, 2, 5])), Packet((1,), "c.y", "c.y", 3, columns([1, 3, 4]))) == [
        "c.x/3/0",
        "c.y/3/1",
        "c.x/3/2",
        "c.y/3/3",
        "c.y/3/4",
        "c.x/3/5",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_packets_the_order_is_that_of_timestamps_and_ids(seed: int) -> None:
    rnd = random.Random(seed)
    packets, expected = [], []
    for number in range(rnd.randrange(6)):
        origin, major = rnd.choice(["a", "b", "c.x", "c.y"]), rnd.randrange(2)
        minors = sorted(rnd.sample(range(number, 600, 6), rnd.randrange(5)))
        times = [rnd.randrange(3) for _ in minors]
        errors = {position: f"{origin} {minor}" for position, minor in enumerate(minors) if rnd.random() < 0.3}
        packets.append(Packet((number,), origin, origin, major, columns(minors, times, errors=errors)))
        for position, (minor, time) in enumerate(zip(minors, times, strict=True)):
            place = (time, origin if origin in INJECTORS else "", major, minor)
            expected.append((place, f"{origin}/{major}/{minor}", f"k{minor}", errors.get(position)))
    arrivals = gather(rnd.sample(packets, len(packets)), INJECTORS)
    found = [(arrivals.id(n), key, arrivals.errors.get(n)) for n, key in enumerate(arrivals.keys)]
    assert found == [tuple(rest) for _, *rest in sorted(expected)]
    assert arrivals.values == [b"%s" % id_.rpartition("/")[2].encode() for id_, _, _ in found]


# An epoch.


class Told(ms.Computation[int]):
    """Says on two streams what it was given, and again a second later."""

    even: ms.Output[str]
    odd: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
        (self.odd if self.state % 2 else self.even).produce(f"{self.key} {record.value.word}", timestamp=record.timestamp)
        if record.value.word == "timer":
            self.set_timer("t", at=ms.Timestamp(50))

    def process_timer(self, timer: ms.Timer) -> None:
        self.even.produce(f"{self.key} fired", timestamp=timer.at)


class Lane:
    """Two computations that read the same stream, over four buckets."""

    def __init__(self, memory: int | None = None) -> None:
        topology = ms.Topology("test")
        events = inject(topology)
        for name in ("first", "second"):
            topology.compute(name, Told()).reads(events)
        self.graph = compile_topology(topology)
        self.lanes = Lanes(4, 1)
        self.mill = Mill(self.graph, self.lanes.bucket)
        self.held = Held(Shelf(), memory=memory)

    def epoch(self, number: int, events: list[Event], low_watermark: int = 0, due: dict[str, list[int]] | None = None) -> Outcome:
        names = list(self.graph.nodes)
        lw = ms.Timestamp(low_watermark)
        header = Header(number, ms.Timestamp(0), dict.fromkeys(names, LowWatermark(lw, lw)), dict.fromkeys(names, ms.START_OF_TIME))
        given = Columns(
            [e.key for e in events], [encode_value(e) for e in events], [ms.Timestamp(e.at) for e in events], list(range(len(events)))
        )
        return self.mill.run(header, gather([Packet((0, 1), "events", "events", number, given)], INJECTORS), due or {}, self.held)


KEYS = [f"key {number}" for number in range(20)]


def test_buckets_come_in_their_order_and_keys_in_that_of_their_arrival() -> None:
    it = Lane()
    outcome = it.epoch(1, [Event(key, 1, "x") for key in KEYS])
    by_bucket = sorted(KEYS, key=it.lanes.bucket)
    assert outcome.productions["first.odd"].keys == outcome.productions["second.odd"].keys == by_bucket
    assert [summary.bucket for summary in outcome.summaries] == sorted({it.lanes.bucket(key) for key in KEYS})
    assert sum(summary.tallies["first"].applied for summary in outcome.summaries) == 20
    assert outcome.changes.rows == 40


def test_ids_count_over_all_streams_of_a_bucket_without_gaps_and_ascend_in_each() -> None:
    it = Lane()
    outcome = it.epoch(1, [Event(key, at, "x") for key in KEYS for at in range(3)])
    found: list[int] = []
    for made in outcome.productions.values():
        assert list(made.minors) == sorted(made.minors)
        assert [minor >> 40 for minor in made.minors] == [it.lanes.bucket(key) for key in made.keys]
        found += made.minors
    for bucket in {minor >> 40 for minor in found}:
        of_bucket = sorted(minor & (1 << 40) - 1 for minor in found if minor >> 40 == bucket)
        assert of_bucket == list(range(len(of_bucket)))


def test_keys_that_are_only_due_come_sorted_and_only_where_they_are_asked_for() -> None:
    it = Lane()
    it.epoch(1, [Event(key, 1, "timer") for key in reversed(KEYS)])
    of_zero = sorted(key for key in KEYS if it.lanes.bucket(key) == 0)
    outcome = it.epoch(2, [], 60, {"second": [0]})
    assert list(outcome.productions) == ["second.even"]
    assert outcome.productions["second.even"].keys == of_zero
    assert [(summary.bucket, set(summary.reports)) for summary in outcome.summaries] == [(0, {"second"})]


def test_a_bucket_that_was_said_to_be_due_and_is_not_has_a_report_and_no_tally() -> None:
    outcome = Lane().epoch(1, [], 60, {"first": [2]})
    assert [(summary.bucket, set(summary.reports), summary.tallies) for summary in outcome.summaries] == [(2, {"first"}, {})]
    assert outcome.productions == {}


def test_what_has_nothing_to_do_is_not_even_looked_up() -> None:
    it = Lane()
    shelf = Shelf()
    it.held = Held(shelf, memory=None)
    it.epoch(1, [], 60)
    assert shelf.trips() == (0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_lane_that_was_redone_goes_on_as_the_one_that_ran(seed: int) -> None:
    """Other pages, other memory: the same productions, under the same ids."""
    rnd = random.Random(seed)
    ran, frames = Lane(), []
    for number in range(30):
        events = [Event(rnd.choice(KEYS), 1, rnd.choice(["x", "timer"])) for _ in range(rnd.choice([0, 1, 30]))]
        low_watermark = rnd.choice([0, 60])
        due = {name: [0, 1, 2, 3] for name in ran.graph.nodes}
        redone = Lane(memory=2_000)
        redone.held.redo(map(decode_changes, frames))
        expected = ran.epoch(number, events, low_watermark, due)
        found = redone.epoch(number, events, low_watermark, due)
        assert (found.productions, found.summaries) == (expected.productions, expected.summaries)
        frames.append(expected.changes.encode())


def test_the_computation_and_key_at_hand_are_known() -> None:
    it = Lane()
    assert it.mill.at_hand == ("", "")
    it.epoch(1, [Event("k", 1, "x")])
    assert it.mill.at_hand == ("second", "k")
