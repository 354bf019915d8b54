"""The graph that a topology is laid out as."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from tests.core.alone import Event, inject
from tests.core.test_topology import Add, Anything, Count


@pytest.fixture
def topology() -> ms.Topology:
    return ms.Topology("test")


@pytest.fixture
def events(topology: ms.Topology) -> ms.Stream[Event]:
    return inject(topology)


def test_cycles_are_seen_however_long_and_nothing_else_is(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    count, first, second, third, after = Count(), Add(), Add(), Add(), Add()
    topology.compute("count", count).reads(events)
    topology.compute("first", first).reads(count.counts, third.sums)
    topology.compute("second", second).reads(first.sums)
    topology.compute("third", third).reads(second.sums)
    topology.compute("after", after).reads(third.sums)
    graph = compile_topology(topology)
    assert {name for name, node in graph.nodes.items() if node.on_cycle} == {"first", "second", "third"}
    assert graph.nodes["first"].producers == ("count", "third")
    assert graph.nodes["count"].injectors == ("events",)


def test_a_reader_of_the_dead_letters_waits_for_all_who_may_write_them(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    topology.compute("sets-aside", Count(), errors=ms.Errors.DEAD_LETTER).reads(events)
    topology.compute("fails", Count()).reads(events)
    topology.compute("reads", Anything()).reads(topology.dead_letters)
    graph = compile_topology(topology)
    assert graph.nodes["reads"].producers == ("sets-aside",)
    assert graph.nodes["reads"].injectors == ("events",)
    assert graph.streams["dead letters"].kept
