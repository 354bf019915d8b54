"""What records cause: followed through the computations before a stream, commit by commit."""

from __future__ import annotations

from itertools import count

import pytest

import millstream as ms
from millstream.core.caused import Caused, computations_before, longest_way
from millstream.core.ledger import Ledger
from millstream.core.outline import Outline, OutlinedInput, OutlinedNode
from millstream.core.parts import Part


def outline(**producers: str) -> Outline:
    """Computations, with those that they read; `in` is the injector."""
    nodes, inputs = {}, list[OutlinedInput]()
    for name, read in producers.items():
        nodes[name] = OutlinedNode(tuple(p for p in read.split() if p != "in"), ("in",) if "in" in read.split() else ())
        for producer in read.split():
            stream = "in" if producer == "in" else f"{producer}.out"
            inputs.append(OutlinedInput(len(inputs), name, stream, f"{name}/{stream}", rekeyed=False))
    return Outline({"in": None}, nodes, inputs, {}, [])


class Journal:
    """A ledger whose parts wait and are taken by hand."""

    def __init__(self) -> None:
        self.ledger, self._offsets = Ledger(number=1), count()

    def commit(self, takes: str = "", names: str = "") -> Ledger:
        self.ledger.number += 1
        waiting = self.ledger.waiting.setdefault("s", {})
        for offset in [offset for offset, (_, part) in waiting.items() if part.stream in takes.split()]:
            del waiting[offset]
        for stream in names.split():
            offset = next(self._offsets)
            waiting[offset] = (self.ledger.number, Part(offset, 1, 0, 0, stream, "", stream, 0, 1, ms.Timestamp(0)))
        return self.ledger


CHAIN = outline(a="in", b="a", c="b", other="in")


def test_the_way_to_a_stream() -> None:
    assert computations_before(CHAIN, "c.out") == {"a", "b", "c"}
    assert computations_before(CHAIN, "other.out") == {"other"}
    assert computations_before(CHAIN, "in") == set()
    assert computations_before(CHAIN, "dead letters") == {"a", "b", "c", "other"}


@pytest.mark.parametrize(
    ("of", "stream", "hops"),
    [
        (CHAIN, "c.out", 3),
        (CHAIN, "other.out", 1),
        (outline(a="in", b="in a", c="in a b"), "c.out", 3),
        (outline(a="in b", b="a"), "b.out", 2),
    ],
)
def test_the_longest_way_counts(of: Outline, stream: str, hops: int) -> None:
    assert longest_way(of, computations_before(of, stream)) == hops


def test_each_hop_is_waited_for() -> None:
    journal = Journal()
    following = Caused(CHAIN, "c.out", journal.commit(names="in").number)
    assert following.look(journal.ledger) is None
    assert following.look(journal.commit(takes="in", names="a.out")) is None
    assert following.look(journal.commit(names="in")) is None, "what comes later is not waited for, nor taken for it"
    assert following.look(journal.commit(takes="a.out", names="b.out")) is None
    assert following.look(journal.commit(takes="b.out", names="c.out")) == 6


def test_what_is_on_other_ways_is_not_waited_for() -> None:
    journal = Journal()
    following = Caused(outline(a="in", b="a", other="x"), "a.out", journal.commit(names="in x").number)
    assert following.look(journal.commit(takes="in", names="a.out")) == 3


def test_where_nothing_waits_all_is_there() -> None:
    journal = Journal()
    assert Caused(CHAIN, "c.out", journal.commit().number).look(journal.ledger) == 2


def test_an_injected_stream_is_there_with_its_commit() -> None:
    journal = Journal()
    assert Caused(CHAIN, "in", journal.commit(names="in").number).look(journal.ledger) == 2
