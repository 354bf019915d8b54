"""A stream has one name, and belongs to one topology; what does not is refused where it is given, if that can be known."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from tests.core.alone import Event, inject
from tests.core.placed import Add, Anything, Count


@pytest.fixture
def topology() -> ms.Topology:
    return ms.Topology("test")


@pytest.fixture
def events(topology: ms.Topology) -> ms.Stream[Event]:
    return inject(topology)


def refused(message: str) -> Any:
    return pytest.raises(ms.TopologyError, match=f"^{message}$")


class Twins(ms.Computation[None]):
    first: ms.Output[int] = ms.output(name="same")
    second: ms.Output[int] = ms.output(name="same")

    def process_record(self, record: ms.Record[Event]) -> None: ...


def test_two_streams_cannot_have_one_name(topology: ms.Topology) -> None:
    message = "two streams are called 'it.counts'; rename the injector, the computation or the output of one"
    inject(topology, "it.counts")
    with refused(message):
        topology.compute("it", Count())
    assert not topology.nodes
    other = ms.Topology("other")
    other.compute("it", Count())
    with refused(message):
        inject(other, "it.counts")
    assert not other.injected


def test_two_outputs_of_a_computation_cannot_have_one_name(topology: ms.Topology) -> None:
    with refused("two streams are called 'it.same'; rename the injector, the computation or the output of one"):
        topology.compute("it", Twins())


def test_no_stream_can_take_the_name_of_the_dead_letters(topology: ms.Topology) -> None:
    with refused("two streams are called 'dead letters'; rename the injector, the computation or the output of one"):
        inject(topology, "dead letters")


def test_streams_of_another_topology_are_refused(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    other = ms.Topology("other")
    elsewhere = inject(other, "elsewhere")
    count = Count()
    other.compute("count", count).reads(elsewhere)
    for stream in (elsewhere, elsewhere.by(lambda event: event.key)):
        with refused("computation 'it' reads the stream 'elsewhere' of another topology; inject it into 'test'"):
            topology.compute("it", Count()).reads(stream)
        del topology.nodes["it"]
    topology = ms.Topology("test")
    topology.compute("add", Add()).reads(count.counts)
    inject(topology)
    with pytest.raises(ms.TopologyError, match=r"computation 'add' reads Count.counts, which has no producer"):
        compile_topology(topology)
    topology = ms.Topology("test")
    inject(topology)
    with refused("delivery 'it' takes the stream 'events' of another topology; inject it into 'test'"):
        topology.deliver("it", inject(other), ms.memory())  # of the same name, and still not the same


def test_dead_letters_of_another_topology_are_refused(topology: ms.Topology) -> None:
    others = ms.Topology("other").dead_letters
    with refused("computation 'it' reads the dead letters of another topology; give it those of 'test'"):
        topology.compute("it", Anything()).reads(others)
    with refused("delivery 'it' takes the dead letters of another topology; give it those of 'test'"):
        topology.deliver("it", others, ms.memory())
    assert repr(others) == "<dead letters of topology 'other'>"


def test_what_is_no_stream_of_a_topology_is_refused(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    topology.compute("it", Anything()).reads(ms.Stream())
    with pytest.raises(
        ms.TopologyError,
        match=r"^computation 'it' reads <.*>, which is not a stream of this topology; give it an injected stream or an output$",
    ):
        compile_topology(topology)
