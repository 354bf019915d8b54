"""Within an epoch, the records of a key come before its timers."""

from __future__ import annotations

import millstream as ms
from millstream.core.arrivals import Packet, gather
from millstream.core.codec import encode_value
from millstream.core.epoch import Header
from millstream.core.graph import compile_topology
from millstream.core.low_watermark import LowWatermark
from millstream.core.mill import Mill
from millstream.core.parts import Columns
from millstream.mill.held import Held
from tests.core.alone import Event, inject
from tests.core.shelf import Shelf


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
    mill, held = Mill(compile_topology(topology), lambda key: 0), Held(Shelf(), memory=None)

    def epoch(number: int, word: str | None, low_watermark: int) -> int:
        known = {"alarm": LowWatermark(ms.Timestamp(low_watermark), ms.Timestamp(low_watermark))}
        header = Header(number, ms.Timestamp(0), known, {"alarm": ms.START_OF_TIME})
        columns = Columns(["a"], [encode_value(Event(word=word))], [ms.Timestamp(1)], [0]) if word else Columns()
        arrivals = gather([Packet((0,), "events", "events", number, columns)], {"events"})
        return sum(map(len, mill.run(header, arrivals, {"alarm": [0]}, held).productions.values()))

    assert epoch(0, "set", 0) == 0
    assert epoch(1, "cancel", 5) == 0
    assert epoch(2, "set", 5) == 1  # in the past: it fires in its own epoch
    assert epoch(3, "set", 2) == 0
    assert epoch(4, None, 5) == 1
