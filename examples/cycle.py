"""Detector and model feed each other: the model learns only from what the detector found usual.

What comes round a cycle comes some epochs later, so what is usual depends on when it is asked, too: here that is wanted.
"""

from dataclasses import dataclass, field
from typing import assert_never

from by_hand import per_second, topology

import millstream as ms


@dataclass(frozen=True)
class Expected:
    count: float


@dataclass(frozen=True)
class Usual:
    count: int


@dataclass
class Learned:
    mean: float = 0.0
    seen: int = 0


@dataclass
class Watch:
    expected: float = 0.0
    odd: list[ms.Timestamp] = field(default_factory=lambda: list[ms.Timestamp]())


class Model(ms.Computation[Learned]):
    expected: ms.Output[Expected]

    def process_record(self, record: ms.Record[Usual]) -> None:
        self.state.seen += 1
        self.state.mean += (record.value.count - self.state.mean) / self.state.seen
        self.expected.produce(Expected(self.state.mean), timestamp=record.timestamp)


class Detector(ms.Computation[Watch]):
    usual: ms.Output[Usual]
    spikes: ms.Output[int]

    def process_record(self, record: ms.Record[int | Expected]) -> None:
        match record.value:
            case Expected(count):
                self.state.expected = count
            case int(count) if count <= 3 * max(self.state.expected, 1.0):
                self.state.odd.clear()
                self.usual.produce(Usual(count), timestamp=record.timestamp)
            case int(count):
                self.state.odd.append(record.timestamp)
                if len(self.state.odd) == 3:
                    self.spikes.produce(count, timestamp=self.state.odd[0])
            case _ as never:
                assert_never(never)


model, detector = Model(), Detector()
topology.compute("model", model).reads(detector.usual)
topology.compute("detector", detector).reads(per_second.counts, model.expected)
topology.deliver("spikes", detector.spikes, ms.delta("spikes"))
