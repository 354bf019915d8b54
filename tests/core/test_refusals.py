"""What could not work is refused at once, with words that say how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject


class Does(ms.Computation[int]):
    out: ms.Output[int]

    def __init__(self, call):
        self.call = call

    def process_record(self, record: ms.Record[Event]) -> None:
        self.call(self, record)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state += 1


@pytest.mark.timeout(5)
def test_now_may_be_the_end_of_time() -> None:
    it = Alone(Does(lambda it, record: None))
    it.send(Event())
    it.advance(now=ms.END_OF_TIME)
    assert it.driver.epoch() is False


@pytest.mark.parametrize("hold", [1.0, "1", True])
def test_a_hold_that_is_no_timestamp_is_refused(hold: Any) -> None:
    it = Alone(Does(lambda it, record: it.set_timer("a", at=5, hold=hold)))
    with pytest.raises(ms.RecordError, match=r"set_timer\('a'\): hold is .*; give a ms.Timestamp"):
        it.send(Event())


@pytest.mark.parametrize("tag", [5, None])
def test_a_tag_that_is_no_text_is_refused(tag: Any) -> None:
    it = Alone(Does(lambda it, record: it.set_timer(tag, at=5)))
    with pytest.raises(ms.RecordError, match=r"a tag is text"):
        it.send(Event())


@pytest.mark.parametrize("at", [2**63, 2**70, -(2**63) - 1])
def test_a_timestamp_beyond_64_bits_is_refused(at: int) -> None:
    with pytest.raises(ms.RecordError, match=r"set_timer\('a'\): at is"):
        Alone(Does(lambda it, record: it.set_timer("a", at=at))).send(Event())


def test_a_clock_that_is_none_is_refused() -> None:
    with pytest.raises(ms.RecordError, match=r"clock is 'wall'; give"):
        Alone(Does(lambda it, record: it.set_timer("a", at=5, clock="wall"))).send(Event())


class Old(ms.Computation[int]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1


class New(ms.Computation[list[int]]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.append(1)

    def decode_state(self, stored: bytes) -> list[int]:
        import msgspec

        found = msgspec.msgpack.decode(stored)
        return found if isinstance(found, list) else [found]


def test_decode_state_alone_reads_what_was_kept_before() -> None:
    it = Alone(Old())
    it.send(Event())
    newer = Alone(New())
    newer.take_over(it)
    newer.send(Event(at=1))
    assert newer.state() == [1, 1]


def test_a_codec_of_one_half_is_refused_at_the_start() -> None:
    class Half(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None: ...
        def encode_state(self, state: int) -> bytes:
            return b"x"

    with pytest.raises(ms.TopologyError, match="Half has encode_state but no decode_state"):
        Alone(Half())


def test_encode_state_returns_bytes() -> None:
    class Half(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None: ...
        def encode_state(self, state: int) -> bytes:
            return None

        def decode_state(self, stored):
            return 1

    with pytest.raises(ms.TopologyError, match=r"Half.encode_state returned None; return bytes"):
        Alone(Half())


class Odd: ...


class KeepsOdd(ms.Computation[Odd]):
    def process_record(self, record: ms.Record[Event]) -> None: ...


def test_a_state_of_an_unknown_class_is_refused_at_the_start() -> None:
    with pytest.raises(ms.TopologyError, match=r"the state of KeepsOdd cannot be kept: .*; define encode_state and decode_state"):
        Alone(KeepsOdd())


class Base(ms.Computation[int]):
    out: ms.Output[int]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.out.produce(1, timestamp=record.timestamp)


def test_a_subclass_may_rename_an_output() -> None:
    class Sub(Base):
        out: ms.Output[int] = ms.output(name="old")

    sub = Sub()
    it = Alone(sub)
    it.send(Event())
    assert [r.value for r in it.driver.read(sub.out)] == [1]
    assert "it.old" in it.driver._graph.streams

    class Plain(Base): ...

    plain = Plain()
    it = Alone(plain)
    it.send(Event())
    assert [r.value for r in it.driver.read(plain.out)] == [1]


def test_the_type_of_a_record_must_be_known() -> None:
    with pytest.raises(ms.TopologyError, match="C: Nowhere is not known yet; define it above the class"):

        class C(ms.Computation[int]):
            def process_record(self, record: ms.Record[Nowhere]) -> None: ...  # noqa: F821


def test_a_late_record_whose_map_raises_goes_by_the_policy() -> None:
    class M(ms.Computation[int]):
        late: ms.Output[int]

        def process_record(self, record: ms.Record[int]) -> None:
            self.state += 1

    for errors in ms.Errors:
        c = M()
        it = Alone(c, errors=errors, late=ms.Divert(c.late), read=lambda s: s.map(lambda e: 1 // len(e.word)))
        it.advance(10)
        if errors is ms.Errors.FAIL:
            with pytest.raises(ms.RecordError, match="ZeroDivisionError"):
                it.send(Event(at=1))
        else:
            it.send(Event(at=1), Event(at=2, word="x"))
            assert len(it.driver.dead_letters()) == 1
            t = it.tally
            assert (t.received, t.applied, t.dropped, t.diverted, t.dead) == (2, 0, 0, 1, 1)


def test_a_dead_letter_of_a_timer_is_not_late() -> None:
    class Fails(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.set_timer("x", at=record.timestamp)

        def process_timer(self, timer: ms.Timer) -> None:
            raise ValueError

    class Reads(ms.Computation[int]):
        def process_record(self, record: ms.Record[ms.DeadLetter]) -> None:
            self.state += 1

    topology = ms.Topology("t")
    events = inject(topology)
    topology.compute("fails", Fails(), errors=ms.Errors.DEAD_LETTER).reads(events)
    topology.compute("reads", Reads()).reads(topology.dead_letters, late=ms.Late.DROP)
    driver = Driver(topology)
    driver.send(events, Event(at=100))
    driver.advance(low_watermark=ms.Timestamp(100))
    assert driver.state("reads", "k") == 1


def test_both_clocks_move_at_once_though_partitions_may_be_idle() -> None:
    topology = ms.Topology("t")
    events = inject(topology, low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=ms.MINUTE))
    topology.compute("it", Old()).reads(events)
    driver = Driver(topology)
    driver.advance(low_watermark=ms.Timestamp(100), now=ms.Timestamp(ms.HOUR))
    assert driver.low_watermark("it") == 100


@pytest.mark.parametrize("late", ["drop", None])
def test_late_is_a_choice(late: Any) -> None:
    with pytest.raises(ms.TopologyError, match=r"late is .*; give ms.Late.PROCESS"):
        Alone(Old(), late=late)


def test_errors_is_a_choice() -> None:
    with pytest.raises(ms.TopologyError, match=r"errors is 'dead letter'; give ms.Errors.FAIL"):
        Alone(Old(), errors="dead letter")


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(ms.TopologyError, match="'it' reads 'events', which is not a stream"):
        Alone(Old(), read=lambda s: "events")
    with pytest.raises(ms.TopologyError, match="delivery 'it': 'events' is not a stream"):
        ms.Topology("t").deliver("it", "events", ms.memory())


class Wrong(ms.Computation[int]):
    late: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None: ...


def test_late_records_go_to_an_output_of_their_type() -> None:
    c = Wrong()
    with pytest.raises(ms.TopologyError, match=r"'it' diverts late Event to an output of str; annotate it Output\[Event\]"):
        Alone(c, late=ms.Divert(c.late))
    with pytest.raises(ms.TopologyError, match=r"^Divert\('late'\): give an output of the computation"):
        ms.Divert("late")  # type: ignore[arg-type]
    with pytest.raises(ms.TopologyError, match="diverts late records to an output of another"):
        Alone(Wrong(), late=ms.Divert(c.late))


@dataclass(frozen=True)
class Better(Event):
    more: int = 0


def test_a_reader_takes_what_is_derived_from_what_it_takes() -> None:
    topology = ms.Topology("t")
    s = topology.inject(
        "b", ms.values([], Better), key=lambda e: e.key, timestamp=lambda e: e.at, low_watermark=ms.BoundedDisorder(ms.SECOND)
    )
    topology.compute("it", Old()).reads(s)
    driver = Driver(topology)
    driver.send(s, Better())
    assert driver.state("it", "k") == 1


def test_a_reader_of_dead_letters_cannot_send_its_own_there() -> None:
    class Reads(ms.Computation[int]):
        def process_record(self, record: ms.Record[ms.DeadLetter]) -> None: ...

    topology = ms.Topology("t")
    inject(topology)
    topology.compute("reads", Reads(), errors=ms.Errors.DEAD_LETTER).reads(topology.dead_letters)
    with pytest.raises(ms.TopologyError, match="'reads' reads the dead letters and would send its own there"):
        Driver(topology)


class Careless(ms.Computation[None]):
    out: ms.Output[int]

    def process_record(self, record: ms.Record[Event]) -> None:
        match record.value.word:
            case "tag":
                self.set_timer(5, at=record.timestamp)  # type: ignore[arg-type]
            case "hold":
                self.set_timer("t", at=record.timestamp, hold=1.5)  # type: ignore[arg-type]
            case _:
                self.out.produce(1, timestamp=ms.END_OF_TIME)


@pytest.mark.parametrize(("word", "message"), [("tag", "a tag is text"), ("hold", "hold is 1.5"), ("end", "out of range for a record")])
def test_what_could_not_be_read_back_is_refused_at_once(word: str, message: str) -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", Careless()).reads(events)
    driver = Driver(topology)
    with pytest.raises(ms.RecordError, match=message):
        driver.send(events, Event(word=word))
