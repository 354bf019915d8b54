"""`order = ms.Order.EVENT_TIME`: records and timers of a key in one sequence, whatever came when."""

from __future__ import annotations

import operator
from typing import Any

import pytest

import millstream as ms
from millstream.core import waiting
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject

LOW, WALL = ms.Clock.LOW_WATERMARK, ms.Clock.WALL


class Told(ms.Computation[list[str]]):
    """Keeps in its state all that it is called for, and the low watermark that it sees. Words: `at 5`, `wall 5`, `fail`."""

    order = ms.Order.EVENT_TIME
    told: ms.Output[str]
    late: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.tell(f"{record.value.word or 'record'}{' late' if record.late else ''}", record.timestamp)
        match record.value.word.split():
            case ["at", at]:
                self.set_timer("timer", at=ms.Timestamp(int(at)))
            case ["wall", at]:
                self.set_timer("wall", at=ms.Timestamp(int(at)), clock=WALL)
            case ["fail"]:
                raise RuntimeError("told to fail")

    def process_timer(self, timer: ms.Timer) -> None:
        self.tell(timer.tag, timer.at)

    def tell(self, what: str, at: ms.Timestamp) -> None:
        low_watermark = "end" if self.low_watermark == ms.END_OF_TIME else int(self.low_watermark)
        self.state.append(f"{what}@{int(at)} of {low_watermark}")
        self.told.produce(what, timestamp=at)


def test_a_record_waits_until_the_low_watermark_is_above_it() -> None:
    it = Alone(Told())
    it.send(Event(at=5, word="b"), Event(at=3, word="a"))
    assert (it.state(), it.driver.waiting("it")) == ([], 2)
    it.advance(3)
    assert it.state() == []
    it.advance(4)
    assert (it.state(), it.driver.waiting("it")) == (["a@3 of 4"], 1)
    it.send(Event(at=4, word="between"))  # not late: the low watermark stands at 4
    it.advance(6)
    assert it.state() == ["a@3 of 4", "between@4 of 5", "b@5 of 6"]
    assert (it.tally.received, it.tally.applied, it.tally.late, it.driver.waiting("it")) == (3, 3, 0, 0)


def test_what_the_low_watermark_has_passed_in_its_own_epoch_does_not_wait() -> None:
    it = Alone(Told())
    with it.driver.together():
        it.send(Event(at=5, word="b"), Event(at=3, word="a"), Event(at=9, word="c"))
        it.advance(6)
    assert (it.state(), it.driver.waiting("it"), it.epoch) == (["a@3 of 5", "b@5 of 6"], 1, 2)


def test_timers_come_between_records_and_before_one_of_the_same_time() -> None:
    it = Alone(Told())
    it.send(Event(at=1, word="at 5"), Event(at=9, word="d"), Event(at=5, word="b"), Event(at=4, word="a"))
    it.driver.finish()
    assert it.state() == ["at 5@1 of 4", "a@4 of 5", "timer@5 of 5", "b@5 of 9", "d@9 of end"]


def test_a_timer_in_the_past_comes_before_the_next_record_be_it_of_the_same_time() -> None:
    it = Alone(Told())
    it.send(Event(at=5, word="at 5"), Event(at=5, word="same"), Event(at=6, word="at 2"), Event(at=7, word="last"))
    it.driver.finish()
    assert it.state() == ["at 5@5 of 5", "timer@5 of 5", "same@5 of 6", "at 2@6 of 7", "timer@2 of 7", "last@7 of end"]


def test_the_low_watermark_that_the_code_sees_is_never_above_a_record_that_still_comes() -> None:
    it = Alone(Told())
    it.send(Event(at=2, word="at 3"), Event(at=40, word="a"))
    it.driver.finish()
    assert it.state() == ["at 3@2 of 40", "timer@3 of 40", "a@40 of end"]


def test_records_of_the_same_time_come_in_the_order_of_their_ids_whenever_they_arrived() -> None:
    def topology() -> tuple[ms.Topology, list[Any]]:
        made = ms.Topology("test")
        streams = [inject(made, name) for name in ("a", "b")]
        made.compute("it", Told()).reads(*streams)
        return made, streams

    found = set[str]()
    for apart in (False, True):
        made, (first, second) = topology()
        driver = Driver(made, ship=False)
        sends = [lambda d=driver, s=second: d.send(s, Event(at=5, word="b")), lambda d=driver, s=first: d.send(s, Event(at=5, word="a"))]
        if apart:
            for send in sends:
                send()
        else:
            with driver.together():
                for send in sends:
                    send()
        driver.finish()
        found.add(f"{driver.state('it', 'k')}")
    assert found == {"['a@5 of 5', 'b@5 of end']"}


def test_ids_are_numbers_and_those_that_have_waited_have_no_precedence() -> None:
    topology = ms.Topology("test")
    first, second = inject(topology, "first"), inject(topology, "second")
    topology.compute("it", Told()).reads(first, second)
    driver = Driver(topology, ship=False)
    for number in range(12):
        driver.send(second, Event(at=5, word=f"second {number}"))
    with driver.together():
        driver.send(first, Event(at=5, word="first"))
        driver.finish()
    assert [line.partition("@")[0] for line in driver.state("it", "k")] == ["first", *(f"second {number}" for number in range(12))]


def test_a_record_that_waits_holds_its_time_and_what_it_causes_is_not_late() -> None:
    topology = ms.Topology("test")
    events, told = inject(topology), Told()
    topology.compute("it", told).reads(events)

    class Reader(ms.Computation[list[bool]]):
        def process_record(self, record: ms.Record[str]) -> None:
            self.state.append(record.late)

    topology.compute("reader", Reader()).reads(told.told)
    driver = Driver(topology, ship=False)
    driver.send(events, Event(at=7), Event("other", at=20))
    driver.advance(low_watermark=ms.Timestamp(7))
    assert (driver.low_watermark("it"), driver.low_watermark(told.told), driver.low_watermark("reader")) == (7, 7, 7)
    driver.advance(low_watermark=ms.Timestamp(15))
    assert driver.state("reader", "k") == [False]
    driver.advance(low_watermark=ms.Timestamp(16))
    assert (driver.low_watermark("it"), driver.low_watermark("reader")) == (16, 16)
    driver.advance(low_watermark=ms.Timestamp(40))
    assert driver.state("reader", "other") == [False]
    driver.finish()
    assert (driver.keys("it"), driver.low_watermark("reader")) == (2, ms.END_OF_TIME)


def test_late_records_come_at_once_before_all_that_is_due() -> None:
    it = Alone(Told())
    it.send(Event(at=12, word="waits"))
    it.advance(10)
    it.send(Event(at=5, word="x"), Event(at=4, word="y"))
    assert it.state() == ["y late@4 of 10", "x late@5 of 10"]
    with it.driver.together():
        it.send(Event(at=3, word="z"))
        it.advance(20)
    assert it.state()[2:] == ["z late@3 of 12", "waits@12 of 20"]
    assert (it.tally.late, it.tally.applied) == (3, 4)


def test_late_records_are_dropped_or_diverted_as_anywhere() -> None:
    it = Alone(Told(), late=ms.Late.DROP)
    it.advance(10)
    it.send(Event(at=5), Event(at=10))
    it.driver.finish()
    assert (it.state(), it.tally.dropped, it.tally.late, it.tally.applied) == (["record@10 of end"], 1, 1, 1)
    told = Told()
    it = Alone(told, late=ms.Divert(told.late))
    it.advance(10)
    it.send(Event(at=5, word="x"))
    assert ([record.value for record in it.driver.read(told.late)], it.tally.diverted) == ([Event(at=5, word="x")], 1)


def test_wall_clock_timers_fire_by_their_own_clock() -> None:
    it = Alone(Told())
    it.send(Event(at=1, word="wall 50"), Event(at=100, word="waits"))
    it.advance(2)
    it.advance(now=49)
    assert it.state() == ["wall 50@1 of 2"]
    it.advance(now=50)
    assert it.state()[1:] == ["wall@50 of 2"]
    assert it.driver.waiting("it") == 1


def test_an_error_in_order_undoes_its_record_alone() -> None:
    it = Alone(Told(), errors=ms.Errors.DEAD_LETTER)
    it.send(Event(at=3, word="b"), Event(at=2, word="fail"), Event(at=1, word="a"))
    it.driver.finish()
    assert it.state() == ["a@1 of 2", "b@3 of end"]
    (letter,) = it.driver.dead_letters()
    assert (letter.stream, letter.key, letter.id) == ("events", "k", "events/0/1")
    assert (it.tally.received, it.tally.applied, it.tally.dead) == (3, 2, 1)


def test_a_failure_names_the_record_that_had_waited() -> None:
    it = Alone(Told())
    it.send(Event(at=2, word="fail"))
    with pytest.raises(ms.RecordError, match="record events/0/0 of stream 'events'"):
        it.driver.finish()
    assert it.driver.waiting("it") == 1


class Expiring(ms.Computation[dict[ms.Timestamp, int]]):
    """Counts by the time of the record; forgets what is ten microseconds old."""

    order = ms.Order.EVENT_TIME
    expiry = ms.Expiry(after=10 * ms.MICROSECOND, roll_up={0 * ms.MICROSECOND: 2 * ms.MICROSECOND}, merge=operator.add)
    seen: ms.Output[list[int]]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.seen.produce(sorted(map(int, self.state)), timestamp=record.timestamp)
        self.state[record.timestamp] = self.state.get(record.timestamp, 0) + 1
        self.set_timer("look", at=record.timestamp + 12 * ms.MICROSECOND)

    def process_timer(self, timer: ms.Timer) -> None:
        self.seen.produce([-int(at) for at in sorted(self.state, key=int)], timestamp=timer.at)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_entries_expire_by_the_time_of_the_key_not_by_where_epochs_are_cut(step: int) -> None:
    expiring = Expiring()
    it = Alone(expiring)
    it.send(*(Event(at=at) for at in (1, 2, 3, 11, 12, 13, 30, 60)))
    for low_watermark in range(1, 80, step):
        it.advance(low_watermark)
    it.driver.finish()
    assert [record.value for record in it.driver.read(expiring.seen)] == [
        *([], [0], [0, 2], [0, 2], [2, 10], [2, 10, 12]),  # what the records of 1, 2, 3, 11, 12, 13 find
        *([], [], [-30], [], [-60]),  # the timer of 25, the record of 30, the timer of 42 …
    ]


def test_a_key_of_which_nothing_waits_takes_no_room() -> None:
    class Passing(ms.Computation[None]):
        order = ms.Order.EVENT_TIME

        def process_record(self, record: ms.Record[Event]) -> None:
            pass

    it = Alone(Passing())
    it.send(*(Event(f"k{n}", at=n) for n in range(200)))
    assert it.driver.waiting("it") == 200
    it.driver._run._checkpoint()
    assert len(it.driver._run._store.kept) > 4
    it.driver.finish()
    it.driver._run._checkpoint()
    assert list(it.driver._run._store.kept) == ["identity"]
    assert it.driver.keys("it") == it.driver.waiting("it") == 0


def test_what_waits_survives_crashes_and_checkpoints() -> None:
    for checkpoint in (False, True):
        it = Alone(Told())
        it.send(*(Event(f"{n % 7}", at=10 + n, word="x" * (20_000 if n % 10 == 0 else 5)) for n in range(80)))
        if checkpoint:
            it.driver._run._checkpoint()
        it.driver.crash()
        it.advance(50)
        it.driver._run._recover()
        assert it.driver.waiting("it") == 40
        it.driver.crash()
        it.driver.finish()
        assert sum(len(it.state(f"{n}")) for n in range(7)) == 80
        assert [line.partition("@")[2].split()[0] for line in it.state("3")] == [f"{at}" for at in range(13, 90, 7)]


def test_of_very_many_some_are_left_to_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_AT_ONCE", 7)
    same = [Event("b", at=9, word=f"same {number}") for number in range(20)]
    whole: list[list[str]] = []
    for cut in (1, 100):
        it = Alone(Told())
        it.send(*same, *(Event("ab"[n % 2], at=n // 3, word=f"at {n // 3 + 2}") for n in range(60)))
        epochs = it.epoch
        for low_watermark in range(0, 100, cut):
            it.advance(low_watermark)
        it.driver.finish()
        assert it.epoch > epochs + 5
        whole.append([line.partition(" of ")[0] for key in "ab" for line in it.state(key)])
        assert it.tally.applied == 80
    assert whole[0] == whole[1]
    assert [line for line in whole[0] if line.startswith("same")] == [f"{event.word}@9" for event in same]


def test_records_of_a_stream_that_is_read_no_more_are_dropped_and_counted() -> None:
    def alone(*names: str) -> tuple[Driver, list[Any]]:
        topology = ms.Topology("test")
        streams = [inject(topology, name) for name in ("a", "b")]
        topology.compute("it", Told()).reads(*(stream for stream, name in zip(streams, ("a", "b"), strict=True) if name in names))
        return Driver(topology, ship=False), streams

    old, (a, b) = alone("a", "b")
    old.send(a, Event(at=5, word="a"))
    old.send(b, Event(at=6, word="b"))
    new, _ = alone("a")
    old._run._checkpoint()
    new._run._store.kept = dict(old._run._store.kept)
    new._run.held.forget()
    new._ledger.reports = old._ledger.reports
    new._run._begin()
    new.finish()
    assert (new.state("it", "k"), new.tally("it").dropped, new.waiting("it")) == (["a@5 of end"], 1, 0)


# What is refused.


def test_a_cycle_is_refused_while_building() -> None:
    class Around(ms.Computation[None]):
        order = ms.Order.EVENT_TIME
        again: ms.Output[Event]

        def process_record(self, record: ms.Record[Event]) -> None:
            pass

    topology = ms.Topology("test")
    around = Around()
    topology.compute("around", around).reads(inject(topology), around.again)
    with pytest.raises(ms.TopologyError, match=r"'around' is on a cycle and has order = ms.Order.EVENT_TIME.*leave out the order"):
        Driver(topology)


def test_an_order_of_one_s_own_is_refused_while_building() -> None:
    class Wrong(ms.Computation[None]):
        order = 5  # type: ignore[assignment]

        def process_record(self, record: ms.Record[Event]) -> None:
            pass

    with pytest.raises(ms.TopologyError, match=r"computation 'it': its order is 5; give ms.Order.ARRIVAL or ms.Order.EVENT_TIME"):
        Alone(Wrong())
