"""What is fed to a driver comes in as on Spark: by the injector's own promise, partitions and decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver


@dataclass
class Numbered:
    n: int
    at: int
    device: str = ""


class Late(ms.Computation[list[int]]):
    """Which numbers came, and which of them late."""

    late: ms.Output[int]

    def process_record(self, record: ms.Record[Numbered]) -> None:
        self.state.append(record.value.n)
        if record.late:
            self.late.produce(record.value.n, timestamp=max(record.timestamp, self.low_watermark))


def numbered(**changed: Any) -> tuple[ms.Topology, Any, Late]:
    topology, late = ms.Topology("fed"), Late()
    usual: dict[str, Any] = {
        "key": lambda value: "k",
        "timestamp": lambda value: START + value.at * ms.SECOND,
        "low_watermark": ms.BoundedDisorder(2 * ms.SECOND),
    }
    events = topology.inject("events", ms.values([], Numbered), **{**usual, **changed})
    topology.compute("late", late).reads(events)
    return topology, events, late


START = ms.Timestamp(1_700_000_000_000_000)
TIMES = (10, 11, 5, 12, 9, 20, 17, 18)


@pytest.mark.parametrize(
    ("per_epoch", "late"),
    [
        (1, [3, 5, 7]),  # 5 after 11, 9 after 12, 17 after 20: more than two seconds
        (None, []),  # nothing was promised before they came
        (4, [5]),  # the second four come after a promise of 10
    ],
)
def test_what_is_fed_is_late_by_the_injectors_own_promise(per_epoch: int | None, late: list[int]) -> None:
    topology, events, computation = numbered()
    driver = Driver(topology)
    driver.feed(events, [Numbered(n, at) for n, at in enumerate(TIMES, 1)], per_epoch=per_epoch)
    assert sorted(driver.state(computation, "k")) == list(range(1, 9))
    assert sorted(record.value for record in driver.read(computation.late)) == late
    assert driver.low_watermark(events) == START + 18 * ms.SECOND


def test_the_promise_is_the_least_of_its_partitions_and_silent_ones_are_left_out() -> None:
    idle = ms.BoundedDisorder(2 * ms.SECOND, idle_after=ms.MINUTE)
    topology, events, _ = numbered(partition=lambda value: value.device, low_watermark=idle)
    driver = Driver(topology, now=START)
    driver.feed(events, [Numbered(1, 10, "a"), Numbered(2, 30, "b")])
    assert driver.low_watermark(events) == START + 8 * ms.SECOND
    driver.advance(now=START + ms.MINUTE + ms.SECOND)
    driver.feed(events, [Numbered(3, 40, "b")])
    assert driver.low_watermark(events) == START + 38 * ms.SECOND


def test_what_is_fed_is_decoded_as_on_spark() -> None:
    topology, events, computation = numbered(errors=ms.Errors.DEAD_LETTER)
    driver = Driver(topology)
    driver.feed(events, [b'{"n":1,"at":1}', b'{"n":"one","at":1}', b"nonsense", Numbered(2, 2)])
    assert driver.state(computation, "k") == [1, 2]
    assert [letter.reason.partition(":")[0] for letter in driver.dead_letters()] == ["it cannot be decoded"] * 2
    strict, again, _ = numbered()
    with pytest.raises(ms.RecordError, match=r"injector 'events', value \{\"n\":\"one\",\"at\":1\}: it cannot be decoded"):
        Driver(strict).feed(again, [b'{"n":"one","at":1}'])


def test_feeding_in_the_wrong_place_is_refused() -> None:
    topology, events, computation = numbered()
    driver = Driver(topology)
    with pytest.raises(ms.TopologyError, match="feed goes to a stream made by inject"):
        driver.feed(computation.late, [1])  # type: ignore[arg-type]
    with pytest.raises(ms.TopologyError, match=r"feed\(per_epoch=0\): give a whole number, at least 1"):
        driver.feed(events, [], per_epoch=0)
