"""Within an epoch, the records of a key come before its timers."""

from __future__ import annotations

import millstream as ms
from millstream.core.codec import encode_value
from millstream.core.epoch import Arrivals, Header
from millstream.core.graph import compile_topology
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill
from millstream.core.shelf import Shelf
from tests.core.alone import Event, inject


class Alarm(ms.Computation[None]):
    rung: ms.Output[str]

    def process_record(self, record: ms.Record[Event]) -> None:
        if record.value.word == "set":
            self.set_timer("alarm", at=ms.Timestamp(3))
        else:
            self.cancel_timer("alarm")

    def process_timer(self, timer: ms.Timer) -> None:
        self.rung.produce(timer.tag, timestamp=timer.at)


def test_a_record_can_still_cancel_a_timer_that_falls_due_in_its_epoch() -> None:
    topology = ms.Topology("test")
    topology.compute("alarm", Alarm()).reads(inject(topology))
    mill, shelf = Mill(compile_topology(topology)), Shelf()

    def epoch(number: int, word: str | None, low_watermark: int) -> int:
        known = {"alarm": LowWatermark(ms.Timestamp(low_watermark), ms.Timestamp(low_watermark))}
        header = Header(number, ms.Timestamp(0), known, {"alarm": ms.START_OF_TIME})
        arrivals = Arrivals()
        if word:
            arrivals = Arrivals([0], ["a"], [encode_value(Event(word=word))], [ms.Timestamp(1)], [("injector events", number, 0)])
        productions, _ = mill.run(0, header, arrivals, shelf)
        return len(productions)

    assert epoch(0, "set", 0) == 0
    assert epoch(1, "cancel", 5) == 0
    assert epoch(2, "set", 5) == 1  # in the past: it fires in its own epoch
    assert epoch(3, "set", 2) == 0
    assert epoch(4, None, 5) == 1
