"""Entries of a state that carry a timestamp: rolled up, and gone in the end, without a word of the user's code."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Alone, Event, inject

S, M = ms.SECOND, ms.MINUTE
WHOLE = ms.Expiry(after=ms.HOUR, roll_up={10 * S: S, M: 10 * S}, merge=operator.add)


class Counts(ms.Computation[dict[ms.Timestamp, int]]):
    """Records by their time."""

    said: ms.Output[int]

    def __init__(self, expiry: ms.Expiry[int] | None = None) -> None:
        self.expiry = expiry

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state[record.timestamp] = self.state.get(record.timestamp, 0) + 1

    def process_timer(self, timer: ms.Timer) -> None:
        self.said.produce(sum(self.state.values()), timestamp=timer.at)


def seconds(*numbers: float) -> list[ms.Timestamp]:
    return [ms.Timestamp(round(number * 1_000_000)) for number in numbers]


def counts(it: Alone, key: str = "k") -> dict[float, int]:
    return {int(at) / 1_000_000: count for at, count in it.driver.state("it", key).items()}


def sent(expiry: ms.Expiry[int], *times: float) -> Alone:
    it = Alone(Counts(expiry))
    it.send(*(Event(at=int(at)) for at in seconds(*times)))
    return it


def test_an_entry_goes_when_the_low_watermark_is_past_it_by_that_much() -> None:
    it = sent(ms.Expiry(after=5 * S), 1, 2, 3)
    it.advance(int(*seconds(6.5)))
    assert counts(it) == {2: 1, 3: 1}
    it.advance(int(*seconds(7)))  # no record and no timer: the key has its turn all the same
    assert counts(it) == {3: 1}
    assert it.driver.tally("it").fired == 0


def test_a_key_whose_last_entry_is_gone_takes_no_room() -> None:
    it = sent(ms.Expiry(after=5 * S), 1)
    assert it.driver.keys("it") == 1
    it.advance(int(*seconds(6)))
    assert (it.driver.keys("it"), counts(it)) == (0, {})


def test_entries_are_merged_into_spans_that_grow_with_their_age() -> None:
    it = sent(WHOLE, 0.1, 0.5, 1.2, 9.9, 12)
    it.advance(int(*seconds(11)))  # the first second is over by ten
    assert counts(it) == {0: 2, 1.2: 1, 9.9: 1, 12: 1}
    it.advance(int(*seconds(69)))
    assert counts(it) == {0: 2, 1: 1, 9: 1, 12: 1}
    it.advance(int(*seconds(70)))  # the first ten seconds are over by a minute
    assert counts(it) == {0: 4, 12: 1}
    it.advance(int(*seconds(3_609)))
    assert counts(it) == {0: 4, 10: 1}
    it.advance(int(*seconds(3_610)))
    assert counts(it) == {10: 1}


def test_a_late_entry_joins_the_span_that_is_there() -> None:
    it = sent(WHOLE, 0.1, 0.5)
    it.advance(int(*seconds(30)))
    it.send(Event(at=700_000), Event(at=29_500_000))
    assert counts(it) == {0: 3, 29.5: 1}


def test_at_the_end_of_all_input_everything_is_gone() -> None:
    it = sent(WHOLE, 1, 2, 3)
    it.driver.finish()
    assert it.driver.keys("it") == 0


def test_without_after_the_widest_span_stays() -> None:
    it = sent(ms.Expiry(roll_up={S: M}, merge=max), 1, 2, 61)
    it.driver.finish()
    assert counts(it) == {0: 1, 60: 1}


def test_timers_see_the_entries_before_they_go() -> None:
    class Last(Counts):
        def process_record(self, record: ms.Record[Event]) -> None:
            super().process_record(record)
            self.set_timer("last", at=record.timestamp + 5 * S)

    last = Last(ms.Expiry(after=5 * S))
    it = Alone(last)
    it.send(Event(at=1_000_000))
    it.advance(6_000_000)
    assert [record.value for record in it.driver.read(last.said)] == [1]
    assert it.driver.keys("it") == 0


def test_an_expiry_that_is_taken_away_or_brought_in_later_does_as_the_code_says() -> None:
    """State stays when the code changes; only a key that has its turn learns of the change."""
    computation = Counts(ms.Expiry(after=5 * S))
    it = Alone(computation)

    def change(expiry: ms.Expiry[int] | None) -> None:
        computation.expiry = expiry
        it.driver._run._recover()  # as a restart does

    it.send(Event(at=1_000_000))
    change(None)
    it.advance(80_000_000)  # it comes to rest, and nothing is due any more
    assert counts(it) == {1: 1}
    change(ms.Expiry(after=5 * S))
    it.send(Event(at=80_500_000))
    assert counts(it) == {80.5: 1}


def test_what_merge_raises_stops_the_run_and_names_the_key() -> None:
    def refuse(one: int, other: int) -> int:
        raise RuntimeError("not these two")

    it = sent(ms.Expiry(roll_up={S: M}, merge=refuse), 1, 2)
    with pytest.raises(ms.RecordError, match=r"^computation 'it', key 'k', its entries cannot be rolled up: RuntimeError: not these two"):
        it.driver.finish()
    lenient = Alone(Counts(ms.Expiry(roll_up={S: M}, merge=refuse)), errors=ms.Errors.DEAD_LETTER)
    lenient.send(Event(at=1), Event(at=2))
    with pytest.raises(ms.RecordError, match="not these two") as raised:
        lenient.driver.finish()
    assert "expire" not in str(raised.value)  # only the user's own lines


def test_an_entry_under_what_is_no_time_is_refused_before_it_is_kept() -> None:
    class Halves(Counts):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.state[int(record.timestamp) / 2] = 1  # type: ignore[index]

    it = Alone(Halves(ms.Expiry(after=S)))
    with pytest.raises(ms.RecordError, match=r"TypeError: 0\.5 is not a ms\.Timestamp"):
        it.send(Event(at=1))
    assert it.driver.keys("it") == 0


def test_an_entry_at_the_start_of_time_can_be_rolled_up() -> None:
    entries = {ms.START_OF_TIME: 1, ms.Timestamp(5): 1}
    assert ms.Expiry(roll_up={S: M}, merge=operator.add).expire(entries, ms.END_OF_TIME) == ms.END_OF_TIME
    assert entries == {ms.START_OF_TIME: 1, 0: 1}


@given(
    times=st.lists(st.integers(0, 99_000_000), max_size=30),
    low_watermarks=st.lists(st.integers(0, 5_000_000_000), max_size=8).map(sorted),
)
def test_whatever_way_the_low_watermark_comes_the_result_is_the_same_and_nothing_is_lost_before_its_time(
    times: list[int], low_watermarks: list[int]
) -> None:
    step_by_step, at_once = (Alone(Counts(WHOLE)) for _ in range(2))
    for it in (step_by_step, at_once):
        it.send(*(Event(at=at) for at in times))
    for low_watermark in low_watermarks:
        step_by_step.advance(low_watermark)
    last = low_watermarks[-1] if low_watermarks else 0
    at_once.advance(last)
    assert counts(step_by_step) == counts(at_once)
    young = [at for at in times if at - at % 10_000_000 + 10_000_000 + int(ms.HOUR) > last]
    assert sum(counts(at_once).values()) == len(young)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "nothing would expire; say after=, roll_up= or both"),
        ({"after": 1.5 * int(S)}, "1500000.0 is not a ms.Duration"),
        ({"roll_up": {timedelta(hours=1): M}, "merge": max}, r"datetime.timedelta\(seconds=3600\) is not a ms.Duration"),
        ({"after": 0 * S}, "after and the spans of roll_up must be positive"),
        ({"roll_up": {S: 0 * S}, "merge": max}, "after and the spans of roll_up must be positive"),
        ({"roll_up": {M: S, S: M}, "merge": max}, "the ages of roll_up grow; write the youngest first"),
        ({"roll_up": {S: 2 * S, M: 3 * S}, "merge": max}, "each span of roll_up is made of whole ones of the span before it"),
        ({"roll_up": {S: M}}, "roll_up needs merge=, a function that makes one value of two"),
        ({"after": S, "roll_up": {M: S}, "merge": max}, "what is gone cannot be rolled up"),
    ],
)
def test_an_expiry_that_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=f"^Expiry: {why}"):
        ms.Expiry(**options)


def test_only_a_dictionary_by_time_has_entries_that_expire() -> None:
    class Total(ms.Computation[int]):
        expiry = ms.Expiry[int](after=S)

        def process_record(self, record: ms.Record[Event]) -> None: ...

    topology = ms.Topology("test")
    with pytest.raises(ms.TopologyError, match=r"^computation 'it': it has an expiry, but keeps <class 'int'>; entries"):
        topology.compute("it", Total()).reads(inject(topology))


def test_an_expiry_is_one() -> None:
    topology = ms.Topology("test")
    with pytest.raises(ms.TopologyError, match=r"^computation 'it': expiry is 5; give a ms.Expiry\(...\)$"):
        topology.compute("it", Counts(5)).reads(inject(topology))  # type: ignore[arg-type]


def test_a_computation_without_one_keeps_its_entries() -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", Counts()).reads(events)
    driver = Driver(topology)
    driver.send(events, Event(at=1))
    driver.finish()
    assert driver.state("it", "k") == {1: 1}
