"""What keeps the low watermark of a reader back: timers, holds, and records on their way."""

from __future__ import annotations

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Event, inject, tally


class Delayed(ms.Computation[None]):
    """Sends each record on by a timer, at the timestamp that it had."""

    sent: ms.Output[str]

    def __init__(self, by: int, *, hold: bool = True, clock: ms.Clock = ms.Clock.LOW_WATERMARK) -> None:
        self.by, self.hold, self.clock = by, hold, clock

    def process_record(self, record: ms.Record[Event]) -> None:
        at = record.timestamp + self.by * ms.MICROSECOND
        self.set_timer(f"{record.timestamp}", at=at, hold=record.timestamp if self.hold else None, clock=self.clock)

    def process_timer(self, timer: ms.Timer) -> None:
        self.sent.produce(timer.tag, timestamp=ms.Timestamp(int(timer.tag)))


class Reader(ms.Computation[list[str]]):
    def process_record(self, record: ms.Record[str]) -> None:
        self.state.append(record.value + (" late" if record.late else ""))


def chain(delayed: Delayed) -> tuple[Driver, ms.Stream[Event]]:
    topology = ms.Topology("chain")
    events = inject(topology)
    topology.compute("delayed", delayed).reads(events)
    topology.compute("reader", Reader()).reads(delayed.sent)
    return Driver(topology), events


def test_a_hold_keeps_the_reader_back_until_its_timer_has_fired() -> None:
    driver, events = chain(Delayed(10))
    driver.send(events, Event(at=3))
    driver.advance(low_watermark=ms.Timestamp(12))
    assert (driver.low_watermark("delayed"), driver.low_watermark("reader")) == (12, 3)
    driver.advance(low_watermark=ms.Timestamp(13))
    assert driver.state("reader", "k") == ["3"]
    driver.advance(low_watermark=ms.Timestamp(14))
    assert driver.low_watermark("reader") == 14


def test_the_earliest_hold_of_all_keys_counts() -> None:
    driver, events = chain(Delayed(100))
    driver.send(events, *(Event(f"key {number}", number) for number in range(5, 30)))
    driver.advance(low_watermark=ms.Timestamp(50))
    assert driver.low_watermark("reader") == 5


def test_a_timer_holds_its_own_time_unless_told_otherwise() -> None:
    driver, events = chain(Delayed(10, hold=False))
    driver.send(events, Event(at=3))
    driver.advance(low_watermark=ms.Timestamp(12))
    assert driver.low_watermark("reader") == 12


def test_a_wall_clock_timer_holds_nothing_unless_told_so() -> None:
    for hold, expected in ((False, 50), (True, 3)):
        driver, events = chain(Delayed(10, hold=hold, clock=ms.Clock.WALL))
        driver.send(events, Event(at=3))
        driver.advance(low_watermark=ms.Timestamp(50), now=ms.Timestamp(5))
        assert driver.low_watermark("reader") == expected
        driver.advance(now=ms.Timestamp(13))
        assert driver.state("reader", "k") == (["3"] if hold else ["3 late"])


def test_the_reader_moves_on_when_the_last_hold_is_gone_and_the_input_has_ended() -> None:
    driver, events = chain(Delayed(10))
    driver.send(events, Event("a", 3), Event("b", 4))
    driver.finish()
    assert driver.low_watermark("reader") == ms.END_OF_TIME
    assert (driver.state("reader", "a"), driver.state("reader", "b")) == (["3"], ["4"])
    assert tally(driver, "reader").late == 0


class Countdown(ms.Computation[int]):
    """On a cycle: a record goes around until its count is used up."""

    again: ms.Output[int]

    def process_record(self, record: ms.Record[Event | int]) -> None:
        left = int(record.value.word) if isinstance(record.value, Event) else record.value
        self.state += 1
        assert not record.late
        if left:
            self.again.produce(left - 1, timestamp=record.timestamp)


def test_a_cycle_goes_around_and_ends() -> None:
    topology = ms.Topology("cycle")
    events = inject(topology)
    countdown = Countdown()
    topology.compute("countdown", countdown).reads(events, countdown.again)
    driver = Driver(topology)
    driver.send(events, Event("a", 1, "5"), Event("b", 2, "0"))
    driver.advance(low_watermark=ms.Timestamp(3))
    assert (driver.state("countdown", "a"), driver.state("countdown", "b")) == (6, 1)
    assert driver.low_watermark("countdown") == 3
    driver.finish()
    assert driver.low_watermark("countdown") == ms.END_OF_TIME


def test_a_reader_waits_for_the_slowest_of_its_inputs() -> None:
    topology = ms.Topology("two")
    slow, fast = inject(topology, "slow"), inject(topology, "fast")
    topology.compute("reader", Plain()).reads(slow, fast)
    driver = Driver(topology)
    driver.advance(low_watermark=ms.Timestamp(9), of=fast)
    assert driver.low_watermark("reader") == ms.START_OF_TIME
    driver.advance(low_watermark=ms.Timestamp(4), of=slow)
    assert driver.low_watermark("reader") == 4
    driver.finish(of=slow)
    driver.advance()
    assert driver.low_watermark("reader") == 9
    driver.finish(of=fast)
    assert driver.low_watermark("reader") == ms.END_OF_TIME


class Plain(ms.Computation[int]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
