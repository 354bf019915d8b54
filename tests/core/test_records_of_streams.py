"""`Stream.records`: a reader, and its `by` and `map`, see each record whole, under the key that it was produced under."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core import route
from millstream.core.arrivals import Packet, gather
from millstream.core.codec import encode_value
from millstream.core.epoch import Header
from millstream.core.graph import Graph, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill
from millstream.core.parts import Columns, decode_columns
from millstream.core.route import Dealer
from millstream.core.row import END, Row
from millstream.core.waiting import Waited, WaitingRecords
from millstream.mill.held import Held
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject
from tests.core.shelf import Shelf
from tests.splits import Sent, at_once, bit_by_bit, told


class Seen(ms.Computation[list[str]]):
    """Keeps what it sees of each record; the word `fail` fails."""

    seen: ms.Output[str]
    late: ms.Output[ms.Record[Event]]

    def process_record(self, record: ms.Record[ms.Record[Event]]) -> None:
        whole = record.value
        assert (whole.timestamp, whole.id, whole.late) == (record.timestamp, record.id, False)
        if whole.value.word == "fail":
            raise RuntimeError("told to fail")
        self.state.append(f"{whole.key} {whole.value.word}{' late' if record.late else ''}")
        self.seen.produce(f"{whole.key} {whole.value.word}", timestamp=whole.timestamp)


class SeenInOrder(Seen):
    order = ms.Order.EVENT_TIME


BOTH = pytest.mark.parametrize("made", [Seen, SeenInOrder])


def first_letters(record: ms.Record[Event]) -> str:
    return record.key[:1] + record.value.word[:1]


def letters(record: ms.Record[Event]) -> list[str]:
    return [*record.value.word, record.key]


# What is seen.


@BOTH
def test_without_other_keys_a_record_is_as_it_came(made: type[Seen]) -> None:
    it = Alone(made(), read=lambda stream: stream.records)
    it.send(Event("a", 2, "x"), Event("b", 1, "y"), Event("a", 1, "z"))
    it.driver.finish()
    assert (it.state("a"), it.state("b")) == (["a z", "a x"], ["b y"])


@BOTH
def test_by_sees_the_key_of_a_record_and_so_does_the_reader_under_another(made: type[Seen]) -> None:
    it = Alone(computation := made(), read=lambda stream: stream.records.by(first_letters))
    it.send(Event("anna", 3, "x"), Event("ali", 1, "xx"))
    it.driver.crash()
    it.send(Event("bob", 2, "x"))
    it.driver.finish()
    assert (it.state("ax"), it.state("bx"), it.state("anna")) == (["ali xx", "anna x"], ["bob x"], [])
    assert [record.key for record in it.driver.read(it.events)] == ["anna", "ali", "bob"]
    assert sorted((record.key, record.value) for record in it.driver.read(computation.seen))[0] == ("ax", "ali xx")


@BOTH
def test_under_several_keys_each_has_the_record_whole(made: type[Seen]) -> None:
    it = Alone(made(), read=lambda stream: stream.records.by_each(letters))
    it.send(Event("k", 1, "ab"), Event("l", 2, "b"))
    it.driver.finish()
    assert {key: it.state(key) for key in "abkl"} == {"a": ["k ab"], "b": ["k ab", "l b"], "k": ["k ab"], "l": ["l b"]}
    assert len(it.driver.read(it.events)) == 2
    it = Alone(made(), read=lambda stream: stream.records.by_each(lambda record: record.value.word))
    with pytest.raises(ms.RecordError, match=r"by_each\(...\) returned 'ab'"):
        it.send(Event("k", 1, "ab"))


@dataclass(frozen=True)
class Short:
    key: str
    at: int
    of: str


class Keeps(ms.Computation[list[Any]]):
    def process_record(self, record: ms.Record[Any]) -> None:
        self.state.append(record.value)


class KeepsInOrder(Keeps):
    order = ms.Order.EVENT_TIME


@pytest.mark.parametrize("made", [Keeps, KeepsInOrder])
def test_map_sees_the_record_and_records_what_map_made_of_the_value(made: type[Keeps]) -> None:
    def shortened(record: ms.Record[Event]) -> Short:
        return Short(record.key, int(record.timestamp), record.value.word)

    def kept(read: Any, key: str) -> list[Any]:
        it = Alone(made(), read=read)
        it.send(Event("k", 1, "ab"))
        it.driver.finish()
        return list(it.state(key))

    short = [{"key": "k", "at": 1, "of": "ab"}]  # a state of Any
    assert kept(lambda stream: stream.records.map(shortened), "k") == short
    assert kept(lambda stream: stream.records.map(shortened).by(lambda each: each.of), "ab") == short
    assert kept(lambda stream: stream.by(lambda event: event.word).records.map(shortened), "ab") == short
    assert kept(lambda stream: stream.records.by(first_letters).map(shortened).by_each(lambda each: list(each.of)), "b") == short
    (whole,) = kept(lambda stream: stream.map(lambda event: event.word).records.by(lambda record: record.value + record.key), "abk")
    assert (whole["key"], whole["value"], whole["timestamp"]) == ("k", "ab", 1)
    (again,) = kept(lambda stream: stream.records.map(shortened).records.by(lambda record: record.value.of), "ab")
    assert (again["key"], again["value"]) == ("k", short[0])


def test_dead_letters_and_values_of_several_classes_have_records_too() -> None:
    class Either(ms.Computation[int]):
        either: ms.Output[Event | Short]

        def process_record(self, record: ms.Record[Event]) -> None:
            if record.value.word == "fail":
                raise RuntimeError("told to fail")
            self.either.produce(record.value, timestamp=record.timestamp)
            self.either.produce(Short(record.key, 0, "short"), timestamp=record.timestamp, key="other")

    class Reads(ms.Computation[list[str]]):
        def process_record(self, record: ms.Record[ms.Record[Event | Short] | ms.Record[ms.DeadLetter]]) -> None:
            self.state.append(f"{record.value.key} {type(record.value.value).__name__}")

    topology, either, reads = ms.Topology("test"), Either(), Reads()
    events = inject(topology)
    topology.compute("either", either, errors=ms.Errors.DEAD_LETTER).reads(events)
    topology.compute("it", reads).reads(either.either.records.by(lambda record: "all"), topology.dead_letters.records.by(lambda _: "all"))
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    driver.send(events, Event("k", 1, "x"), Event("l", 2, "fail"))  # type: ignore[arg-type]
    assert Counter(driver.state("it", "all")) == Counter(["k Event", "other Short", "l DeadLetter"])


# What becomes of some.


@BOTH
def test_late_ones_come_are_dropped_or_diverted_as_they_are_seen(made: type[Seen]) -> None:
    def late(policy: Any, computation: Seen) -> Alone:
        it = Alone(computation, read=lambda stream: stream.records.by(first_letters), late=policy)
        it.advance(5)
        it.send(Event("anna", 1, "x"), Event("anna", 7, "x"))
        it.driver.finish()
        return it

    assert late(ms.Late.PROCESS, made()).state("ax") == ["anna x late", "anna x"]
    assert late(ms.Late.DROP, made()).state("ax") == ["anna x"]
    it = late(ms.Divert((diverts := made()).late), diverts)
    (found,) = it.driver.read(diverts.late)
    assert (found.key, found.value, found.value.id) == ("ax", ms.Record("anna", Event("anna", 1, "x"), ms.Timestamp(1)), "events/0/0")


@BOTH
def test_what_fails_is_a_dead_letter_as_it_came(made: type[Seen]) -> None:
    def wrong(record: ms.Record[Event]) -> str:
        return record.key[:1] if record.value.word != "none" else record.key[9]

    it = Alone(made(), read=lambda stream: stream.records.by(wrong), errors=ms.Errors.DEAD_LETTER)
    it.send(Event("anna", 1, "fail"), Event("anna", 2, "x"), Event("bob", 3, "none"))
    it.driver.finish()
    assert it.state("a") == ["anna x"]
    found = sorted((letter.key, letter.id, letter.value, letter.reason.splitlines()[0]) for letter in it.driver.dead_letters())
    assert found == [
        ("a", "events/0/0", '{"key":"anna","at":1,"word":"fail"}', "RuntimeError: told to fail"),
        (
            "bob",
            "events/0/2",
            '{"key":"bob","at":3,"word":"none"}',
            "ValueError: its key cannot be extracted: IndexError: string index out of range",
        ),
    ]


# Whatever the epochs, the lanes and the parts.

KEYS = st.text("ab/+5", max_size=3)
EVENTS = st.lists(st.builds(Event, KEYS, st.integers(0, 9), st.text("xy", max_size=3)), max_size=10)


@BOTH
@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(1, 4), st.booleans())
def test_whatever_the_epochs_own_keys_stay_with_their_records(made: type[Seen], some: list[Event], size: int, crash: bool) -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", made()).reads(events.records.by_each(lambda record: [*record.value.word, "all"]), events.records)
    topology.compute("by", Keeps()).reads(events.by(lambda event: event.word))
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    for begin in range(0, len(some), size):
        driver.send(events, *some[begin : begin + size])  # type: ignore[arg-type]
        if crash:
            driver.crash()
    driver.finish()
    assert Counter(driver.state("it", "all")) == Counter(f"{event.key} {event.word}" for event in some)
    for letter in "xy":
        assert Counter(driver.state("it", letter)) == Counter(f"{event.key} {event.word}" for event in some if letter in event.word)
    assert Counter(driver.state("it", "b")) == Counter(f"b {event.word}" for event in some if event.key == "b")


@pytest.mark.parametrize("seed", range(20))
def test_in_order_of_event_time_all_cuts_and_arrivals_say_the_same(seed: int) -> None:
    chance = random.Random(seed)
    events = [Event(chance.choice(["ab", "a", "", "b/c"]), chance.randrange(20), chance.choice("xyz")) for _ in range(30)]

    def made() -> tuple[ms.Topology, SeenInOrder, list[Sent]]:
        topology, it = ms.Topology("test"), SeenInOrder()
        stream = inject(topology)
        topology.compute("it", it).reads(stream.records.by_each(lambda record: {record.key[:1], record.value.word}))
        return topology, it, [Sent(stream, event, ms.Timestamp(event.at)) for event in events]

    topology, it, sent = made()
    whole = told(at_once(topology, sent), it.seen)
    assert whole
    for in_order in (True, False):
        topology, it, sent = made()
        assert told(bit_by_bit(topology, sent, chance, in_order=in_order), it.seen) == whole


def graph_of(computation: ms.Computation[Any], read: Any) -> Graph:
    topology = ms.Topology("test")
    topology.compute("it", computation).reads(read(inject(topology)))
    return compile_topology(topology)


def columns(some: list[Event]) -> Columns:
    return Columns([e.key for e in some], [encode_value(e) for e in some], [ms.Timestamp(e.at) for e in some], list(range(len(some))))


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(1, 3), st.integers(1, 4), st.randoms())
def test_own_keys_go_where_their_records_go(some: list[Event], count: int, most: int, chance: random.Random) -> None:
    graph = graph_of(Seen(), lambda stream: stream.records.by_each(letters))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "RECORDS_PER_PART", most)
        dealt = Dealer(graph, Lanes(8, count)).deal("events", "events", 0, columns(some), lane=0)
    packets = [Packet((0,), "events", "events", 0, decode_columns(each.encoded())) for each in dealt if each.reader]
    chance.shuffle(packets)
    found = gather(packets, {"events"})
    assert [some[minor].key for minor in found.minors] == found.own
    assert all(one <= other for one, other in pairwise(found.timestamps))
    assert not any(each.columns.own for each in dealt if not each.reader)
    plain = Dealer(graph_of(Keeps(), lambda stream: stream.by(lambda event: "all")), Lanes(8, 1))
    assert not any(each.columns.own for each in plain.deal("events", "events", 0, columns(some), lane=0))


# What waits, and what older code left.


@given(KEYS, st.none() | KEYS, st.sampled_from(["events", "it.seen", "events/2024/a+5"]))
def test_what_waits_comes_back_with_its_own_key(key: str, own: str | None, origin: str) -> None:
    waits = WaitingRecords(Held(Shelf(), memory=None).waiting(0, "it"))
    record = Waited(ms.Timestamp(5), origin, 3, 7, "events #2", b"value", own)
    waits.add(key, [record])
    assert waits.take(ms.Timestamp(6))[0] == {key: [record]}


def test_what_waits_by_the_address_that_it_had_before_there_were_records_is_read() -> None:
    timeline = Held(Shelf(), memory=None).waiting(0, "it")
    address = "5/events/3/7/8/events/1k+e/y"
    timeline.put(address, timeline.get(address), Row(b"value", None, 0, 6, END, 5))
    waited = Waited(ms.Timestamp(5), "events/1", 3, 7, "events", b"value")
    assert WaitingRecords(timeline).take(ms.Timestamp(6))[0] == {"k+e/y": [waited]}
    WaitingRecords(timeline).add("k+e/y", [waited])
    assert list(timeline.settle()) == [address]


def test_what_came_to_code_that_did_not_ask_for_records_shows_the_key_it_is_under() -> None:
    held, told_ = Held(Shelf(), memory=None), SeenInOrder()
    older = Mill(graph_of(KeepsInOrder(), lambda stream: stream.by(lambda event: event.word)), lambda key: 0)
    newer = Mill(graph_of(told_, lambda stream: stream.records.by(lambda record: record.key)), lambda key: 0)

    def run(mill: Mill, major: int, keys: list[str], low_watermark: int, given_: list[Any]) -> None:
        columns_ = decode_columns(msgspec.msgpack.encode([keys, *given_]))
        now = ms.Timestamp(low_watermark)
        header = Header(major, now, {"it": LowWatermark(now, now)}, {"it": ms.Timestamp(0)})
        mill.run(header, gather([Packet((0,), "events", "events", major, columns_)], {"events"}), {"it": [0]}, held)

    value = encode_value(Event("anna", 5, "x"))
    run(older, 1, ["x"], 0, [[value], [5], [0], {}])  # waits
    run(newer, 2, ["y"], 9, [[value], [6], [0], {}])  # a part without own keys
    assert msgspec.msgpack.decode(held.rows(0, "it").get("x")) == ["x x"]  # type: ignore[arg-type]
    assert msgspec.msgpack.decode(held.rows(0, "it").get("y")) == ["y x"]  # type: ignore[arg-type]


# While it is built.


def test_types_are_checked_and_deliveries_take_the_stream_itself() -> None:
    class Wrong(ms.Computation[int]):
        late: ms.Output[Event]

        def process_record(self, record: ms.Record[ms.Record[int]]) -> None: ...

    class Unaware(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None: ...

    topology, seen, unaware = ms.Topology("test"), Seen(), Unaware()
    events = inject(topology)
    topology.compute("seen", seen).reads(events.records, events.map(Event).records.by(first_letters))
    topology.compute("unknown", Seen()).reads(events.map(lambda event: event).records)
    with pytest.raises(ms.TopologyError, match=r"reads a stream of .*Record\[.*Event\], but Wrong.process_record takes .*Record\[int\]"):
        topology.compute("wrong", Wrong()).reads(events.records)
    with pytest.raises(ms.TopologyError, match=r"reads a stream of .*Record\[.*Event\], but Unaware.process_record takes Event"):
        topology.compute("unaware", unaware).reads(events.records.by(first_letters))
    with pytest.raises(ms.TopologyError, match="deliver the stream itself"):
        topology.deliver("out", events.records, ms.console())
    another = Seen()
    with pytest.raises(ms.TopologyError, match=r"diverts late .* to an output of str"):
        topology.compute("diverts", another).reads(events.records, late=ms.Divert(another.seen))  # type: ignore[arg-type]


def test_records_of_records_are_refused() -> None:
    events = inject(ms.Topology("test"))
    for stream in (events.records, events.records.by(first_letters), events.by(lambda event: "k").records.by_each(letters)):
        with pytest.raises(ms.TopologyError, match="shows records already; leave out one"):
            _ = stream.records


def test_it_travels() -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", Seen()).reads(events.records.by(lambda record: record.key[:2]))
    driver = Driver(topology, now=ms.Timestamp(0))
    driver.send(events, Event("anna", 1, "x"), Event("andy", 2, "y"))  # type: ignore[arg-type]
    assert driver.state("it", "an") == ["anna x", "andy y"]
