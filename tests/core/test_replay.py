"""An interrupted epoch that is run again by changed code."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.codec import encode_value
from millstream.core.epoch import Arrivals, Header
from millstream.core.graph import compile_topology
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill
from millstream.core.shelf import Shelf
from tests.core.alone import Event, inject


class Echo(ms.Computation[int]):
    words: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        self.state += 1
        self.words.produce(record.value.word, timestamp=record.timestamp)


@pytest.mark.parametrize("carried", [True, False])
def test_a_computation_that_is_new_or_back_begins_with_the_next_epoch(carried: bool) -> None:
    """The plan of the epoch does not know it, or carries only what it had reached when it was removed."""
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("old", Echo()).reads(events)
    topology.compute("new", Echo()).reads(events)
    start = LowWatermark(ms.START_OF_TIME, ms.START_OF_TIME)
    known = {"old": start, "new": start} if carried else {"old": start}
    arrivals = Arrivals([0, 1], ["a", "a"], [encode_value(Event(word="x"))] * 2, [ms.Timestamp(1)] * 2, [("injector events", 0, 0)] * 2)
    header = Header(3, ms.Timestamp(0), known, {"old": ms.START_OF_TIME})
    productions, summary = Mill(compile_topology(topology)).run(0, header, arrivals, Shelf())
    assert productions.streams == ["old.words"]
    assert set(summary.tallies) == {"old"}


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


@pytest.mark.parametrize(("word", "message"), [("tag", "a tag is text"), ("hold", "hold is 1.5"), ("end", "no time for a record")])
def test_what_could_not_be_read_back_is_refused_at_once(word: str, message: str) -> None:
    from millstream.testing import Driver

    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("it", Careless()).reads(events)
    driver = Driver(topology)
    with pytest.raises(ms.RecordError, match=message):
        driver.send(events, Event(word=word))
