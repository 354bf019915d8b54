"""Scenes of injectors that fall silent, of inputs without event time, and of arrival, played on every stage: all must say the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import millstream as ms
from tests.conformance.conftest import Play
from tests.conformance.scenes import Event, Obedient, Relay, at, inject, said, seconds

IDLE = ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.SECOND)


def two(late: object = ms.Late.PROCESS, **quiet: object) -> tuple[ms.Topology, ms.Stream[Event], ms.Stream[Event], Obedient]:
    """One computation that reads a busy stream and a quiet one."""
    topology = ms.Topology("scene")
    busy, it = inject(topology, "busy"), Obedient()
    other = inject(topology, "quiet", **{"low_watermark": IDLE, **quiet})
    topology.compute("it", it).reads(busy, other, late=late)  # type: ignore[arg-type]
    return topology, busy, other, it


# Idle injectors.


def test_one_silent_input_does_not_freeze_the_timers_of_two(play: Play) -> None:
    topology, busy, quiet, it = two()
    stage = play(topology)
    stage.advance(low_watermark=at(2), of=quiet)
    stage.send(busy, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(9), of=busy)
    stage.advance(now=seconds(10))
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(2), [])
    stage.advance(now=seconds(11))
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(9), [("a", "t@3")])
    assert stage.low_watermark("quiet") == at(2), "it has promised nothing more"


def test_one_that_never_spoke_is_silent_since_somebody_listens(play: Play) -> None:
    topology, busy, _, it = two()
    stage = play(topology)
    stage.send(busy, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(9), of=busy)
    assert stage.low_watermark("it") == ms.START_OF_TIME
    stage.advance(now=seconds(11))
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(9), [("a", "t@3")])


def test_without_a_bound_one_that_is_silent_is_waited_for(play: Play) -> None:
    topology, busy, quiet, _ = two(low_watermark=ms.BoundedDisorder(ms.SECOND))
    stage = play(topology)
    stage.advance(low_watermark=at(2), of=quiet)
    stage.advance(low_watermark=at(9), of=busy)
    stage.advance(now=seconds(10_000))
    assert stage.low_watermark("it") == at(2)


@pytest.mark.parametrize(("late", "want"), [(ms.Late.PROCESS, ["late old 1", "new 2"]), (ms.Late.DROP, ["new 1"])])
def test_what_it_says_when_it_speaks_again_is_judged_as_any_record(play: Play, late: ms.Late, want: list[str]) -> None:
    topology, busy, quiet, it = two(late)
    stage = play(topology)
    stage.advance(low_watermark=at(2), of=quiet)
    stage.advance(low_watermark=at(9), of=busy)
    stage.advance(now=seconds(11))
    stage.send(quiet, Event("a", 5, "old"))
    stage.send(quiet, Event("a", 9, "new"))
    assert said(stage, it.said) == [("a", word) for word in want]
    tally = stage.tally("it")
    assert (tally.received, tally.late, tally.dropped) == (2, 1, late is ms.Late.DROP)


def test_after_it_has_spoken_it_is_waited_for_and_nothing_moves_back(play: Play) -> None:
    topology, busy, quiet, _ = two()
    stage = play(topology)
    stage.advance(low_watermark=at(2), of=quiet)
    stage.advance(low_watermark=at(9), of=busy)
    stage.advance(now=seconds(11))
    stage.advance(low_watermark=at(4), of=quiet)
    stage.advance(low_watermark=at(20), of=busy)
    assert stage.low_watermark("it") == at(9)
    stage.advance(low_watermark=at(15), of=quiet)
    assert stage.low_watermark("it") == at(15)
    stage.advance(now=seconds(22))
    assert stage.low_watermark("it") == at(20)


def test_when_all_inputs_are_idle_the_last_low_watermark_stays(play: Play) -> None:
    topology = ms.Topology("scene")
    left, right, it = inject(topology, "left", low_watermark=IDLE), inject(topology, "right", low_watermark=IDLE), Obedient()
    topology.compute("it", it).reads(left, right)
    stage = play(topology)
    stage.send(left, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(2), of=left)
    stage.advance(low_watermark=at(9), of=right)
    stage.advance(now=seconds(60))
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(2), [])
    stage.advance(low_watermark=at(9), of=right)
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(9), [("a", "t@3")])


def test_an_input_that_has_ended_does_not_close_what_an_idle_one_may_still_bring(play: Play) -> None:
    topology, busy, quiet, it = two()
    stage = play(topology)
    stage.send(busy, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(2), of=quiet)
    stage.finish(of=busy)
    stage.advance(now=seconds(60))
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(2), [])
    stage.send(quiet, Event("a", 2, "x"))
    assert stage.tally("it").late == 0
    stage.finish(of=quiet)
    assert (stage.low_watermark("it"), said(stage, it.said)) == (ms.END_OF_TIME, [("a", "x 1"), ("a", "t@3")])


def test_silence_passes_on_over_computations_and_their_holds_do_not(play: Play) -> None:
    topology = ms.Topology("scene")
    quiet, busy = inject(topology, "quiet", low_watermark=IDLE), inject(topology, "busy")
    near, other, relay = Obedient(), Obedient(), Relay()
    topology.compute("near", near).reads(quiet)
    topology.compute("other", other).reads(busy)
    topology.compute("relay", relay).reads(near.said, other.said)
    stage = play(topology)
    stage.send(quiet, Event("a", 5, "timer:t:7"))
    stage.advance(low_watermark=at(3), of=quiet)
    stage.advance(low_watermark=at(20), of=busy)
    assert stage.low_watermark("relay") == at(3)
    stage.advance(now=seconds(11))
    assert (stage.low_watermark("near"), stage.low_watermark("relay")) == (at(3), at(7)), "what it holds is waited for"
    stage.send(quiet, Event("a", 6, "cancel:t"))
    stage.advance(now=seconds(30))
    assert (stage.low_watermark("near"), stage.low_watermark("relay")) == (at(3), at(20))
    stage.send(quiet, Event("a", 9, "x"))
    assert (stage.tally("near").late, stage.tally("relay").late) == (0, 1), "counted where it is late, and never lost"
    assert said(stage, relay.passed) == [("a", "x 1#1")]


# Inputs without event time.


def test_a_timeless_input_keeps_nobody_back_and_is_never_late(play: Play) -> None:
    topology, busy, rows, it = two(ms.Late.DROP, low_watermark=ms.Timeless())
    stage = play(topology)
    stage.send(busy, Event("a", 1, "timer:t:3"))
    stage.advance(low_watermark=at(9), of=busy)
    assert (stage.low_watermark("it"), said(stage, it.said)) == (at(9), [("a", "t@3")])
    stage.send(rows, Event("a", -1_000, "row"))
    stage.send(busy, Event("a", 5, "gone"))
    assert said(stage, it.said) == [("a", "t@3"), ("a", "row 1")]
    assert (stage.tally("it").late, stage.tally("it").dropped) == (1, 1)
    stage.advance(low_watermark=at(12), of=busy)
    assert stage.low_watermark("it") == at(12)
    stage.finish(of=busy)
    assert stage.low_watermark("it") == ms.END_OF_TIME, "all that has event time has ended"
    stage.send(rows, Event("a", -900, "row"))
    assert said(stage, it.said)[2:] == [("a", "row 2")]


def test_a_timeless_record_does_not_keep_back_those_behind_its_reader(play: Play) -> None:
    topology, busy, rows, it = two(low_watermark=ms.Timeless())
    relay = Relay()
    topology.compute("relay", relay).reads(it.said)
    stage = play(topology)
    stage.advance(low_watermark=at(9), of=busy)
    stage.send(rows, Event("a", -1_000, "row"))
    assert (stage.low_watermark("it.said"), stage.low_watermark("relay")) == (at(9), at(9))
    assert stage.tally("relay").late == 1, "what is dated before the low watermark of its producer is late, and counted"


def test_what_is_made_of_timeless_records_alone_is_timeless(play: Play) -> None:
    topology = ms.Topology("scene")
    rows, busy = inject(topology, "rows", low_watermark=ms.Timeless()), inject(topology, "busy")
    table, other, relay = Obedient(), Obedient(), Relay()
    topology.compute("table", table).reads(rows)
    topology.compute("other", other).reads(busy)
    topology.compute("relay", relay).reads(table.said, other.said, late=ms.Late.DROP)
    stage = play(topology)
    stage.advance(low_watermark=at(9), of=busy)
    stage.send(rows, Event("a", -1_000, "x timer:t:3"))
    assert (stage.low_watermark("table"), stage.low_watermark("relay")) == (ms.START_OF_TIME, at(9)), "its timer holds nobody"
    assert (said(stage, relay.passed), stage.tally("relay").late) == ([("a", "x 1#1")], 0)
    stage.finish(of=rows)
    assert said(stage, relay.passed) == [("a", "x 1#1"), ("a", "t@3#2")], "the input has ended, and with it time"
    stage.finish(of=busy)
    assert (stage.low_watermark("relay"), stage.tally("relay").late) == (ms.END_OF_TIME, 0)


# Arrival, and clocks that are wrong.


@dataclass(frozen=True)
class Reading:
    sensor: str
    measured: int  # seconds, by the sensor's clock
    sent: int
    word: str


class Dates(ms.Computation[None]):
    """Says when a reading was."""

    dated: ms.Output[str]

    def process_record(self, record: ms.Record[Reading]) -> None:
        self.dated.produce(record.value.word, timestamp=record.timestamp)


def readings(timestamp: object) -> tuple[ms.Topology, ms.Stream[Reading], Dates]:
    topology, dates = ms.Topology("scene"), Dates()
    stream = topology.inject(
        "readings",
        ms.values([], Reading),
        key=lambda reading: reading.sensor,
        timestamp=timestamp,  # type: ignore[arg-type]
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("dates", dates).reads(stream)
    return topology, stream, dates


def test_arrival_is_the_clock_of_the_run_and_stays_over_a_crash(play: Play) -> None:
    topology, stream, dates = readings(ms.Arrival())
    stage = play(topology)
    stage.advance(now=seconds(100))
    stage.send(stream, Reading("a", 0, 0, "x"))
    stage.crash(now=seconds(200))
    stage.send(stream, Reading("a", 0, 0, "y"))
    for each in (stream, dates.dated):
        assert [record.timestamp for record in stage.read(each)] == [seconds(100), seconds(200)]


def test_a_clock_that_is_wrong_by_decades_does_not_matter(play: Play) -> None:
    clock = ms.OnOurClock[Reading](occurred=lambda r: seconds(r.measured), sent=lambda r: seconds(r.sent))
    topology, stream, dates = readings(clock)
    stage = play(topology)
    stage.advance(now=seconds(1_000))
    since_1970, ahead = 200, 3_000_000_000  # one begins to count when it is switched on; one is set to the year 2065
    stage.send(stream, Reading("a", since_1970, since_1970 + 60, "x"), Reading("b", ahead, ahead + 90, "y"))
    stage.send(stream, Reading("c", 70, 60, "set back in between"))
    found = {record.value: record.timestamp for record in stage.read(dates.dated)}
    assert found == {"x": seconds(940), "y": seconds(910), "set back in between": seconds(1_000)}
