"""Records of one time come in the order of their streams in `reads`; what they are called decides nothing."""

from __future__ import annotations

import itertools

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.core.alone import Event, inject


class Saw(ms.Computation[list[str]]):
    def process_record(self, record: ms.Record[Event]) -> None:
        self.state.append(record.value.word)


class SawInOrder(Saw):
    order = ms.Order.EVENT_TIME


def play(names: tuple[str, ...], sent: list[tuple[int, Event]], made: type[Saw] = Saw, *, errors: ms.Errors = ms.Errors.FAIL) -> list[str]:
    """What a reader of these injectors, in this order, saw of what each gave."""
    topology = ms.Topology("test")
    streams = [inject(topology, name) for name in sorted(names)]
    by_name = dict(zip(sorted(names), streams, strict=True))
    topology.compute("saw", made(), errors=errors).reads(*(by_name[name] for name in names))
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    with driver.together():
        for place, event in sent:
            driver.put(by_name[names[place]], event, key="k", timestamp=ms.Timestamp(event.at))  # type: ignore[arg-type]
    driver.finish()
    return driver.state("saw", "k")  # type: ignore[no-any-return]


SENT = [
    (2, Event(at=5, word="c1")),
    (1, Event(at=5, word="b1")),
    (0, Event(at=5, word="a1")),
    (1, Event(at=4, word="b0")),
    (0, Event(at=5, word="a2")),
    (2, Event(at=5, word="c2")),
    (0, Event(at=6, word="a3")),
]


@pytest.mark.parametrize("made", [Saw, SawInOrder])
@pytest.mark.parametrize("errors", [ms.Errors.FAIL, ms.Errors.DEAD_LETTER])
@pytest.mark.parametrize("names", list(itertools.permutations(["clicks", "profiles", "zones"])))
def test_renaming_an_injector_changes_nothing(names: tuple[str, ...], errors: ms.Errors, made: type[Saw]) -> None:
    assert play(names, SENT, made, errors=errors) == ["b0", "a1", "a2", "b1", "c1", "c2", "a3"]


@pytest.mark.parametrize("made", [Saw, SawInOrder])
def test_two_readers_have_each_their_own_order(made: type[Saw]) -> None:
    topology = ms.Topology("test")
    left, right = inject(topology, "left"), inject(topology, "right")
    topology.compute("one", made()).reads(left, right)
    topology.compute("other", made()).reads(right, left)
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    with driver.together():
        driver.send(right, Event(at=1, word="r"))  # type: ignore[arg-type]
        driver.send(left, Event(at=1, word="l"))  # type: ignore[arg-type]
    driver.finish()
    assert (driver.state("one", "k"), driver.state("other", "k")) == (["l", "r"], ["r", "l"])


@pytest.mark.parametrize("made", [Saw, SawInOrder])
def test_a_stream_that_is_read_twice_has_one_place(made: type[Saw]) -> None:
    topology = ms.Topology("test")
    events = inject(topology)
    topology.compute("saw", made()).reads(events, events.map(lambda event: Event(word=event.word.upper())))
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    driver.send(events, Event(at=1, word="x"), Event(at=1, word="y"), Event(at=2, word="z"))  # type: ignore[arg-type]
    driver.finish()
    assert driver.state("saw", "k") == ["x", "X", "y", "Y", "z", "Z"]


def test_an_injector_with_a_dot_in_its_name_is_no_output() -> None:
    class Says(Saw):
        said: ms.Output[Event]
        more: ms.Output[Event]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.more.produce(Event(word="more"), timestamp=record.timestamp)
            self.said.produce(Event(word="said"), timestamp=record.timestamp)

    topology = ms.Topology("test")
    dotted, says, events = inject(topology, "says.x"), Says(), inject(topology, "events")
    topology.compute("says", says).reads(events)
    topology.compute("saw", Saw()).reads(says.said, dotted, says.more)
    driver = Driver(topology, now=ms.Timestamp(0), ship=False)
    assert driver._graph.nodes["saw"].ranks == (0, 1, 0)
    with driver.together():
        driver.put(dotted, Event(word="dotted"), key="k", timestamp=ms.Timestamp(1))  # type: ignore[arg-type]
        driver.put(says.more, Event(word="more"), key="k", timestamp=ms.Timestamp(1))
        driver.put(says.said, Event(word="said"), key="k", timestamp=ms.Timestamp(1))
    assert driver.state("saw", "k") == ["more", "said", "dotted"]
