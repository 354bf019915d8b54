"""Parts that no commit has taken, against a list that is searched whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.parts import Part
from millstream.core.planning import Backlog, Limits, Waiting
from tests.core.alone import Event, inject

NO_LIMITS = Limits(1_000_000, 1_000_000)
BOTH = frozenset({0, 1})


class Pass(ms.Computation[None]):
    on: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None: ...


topology, first, again = ms.Topology("test"), Pass(), Pass()
a, b = inject(topology, "a"), inject(topology, "b")
topology.compute("first", first).reads(a, b.by(lambda event: event.word))
topology.compute("again", again).reads(a, first.on)
GRAPH = compile_topology(topology)
BY_WORD = "first ← b"
PLACES = (("a", ""), ("b", BY_WORD), ("b", ""), ("first.on", ""), ("again.on", ""))  # the plain part of b, and again.on, nobody reads
READERS = {("a", ""): {"first", "again"}, ("b", BY_WORD): {"first"}, ("first.on", ""): {"again"}}


def part(stream: str, oldest: int = 0, *, reader: str = "", lane: int = 0, records: int = 1, size: int = 1, offset: int = 0) -> Part:
    return Part(offset, size, 0, lane, stream, reader, stream, 0, records, ms.Timestamp(oldest))


def backlog(*parts: Part, epochs: tuple[int, ...] = ()) -> Backlog:
    made = Backlog(GRAPH.outline)
    for number, each in enumerate(parts):
        made.add(Waiting(epochs[number] if epochs else 1, f"{number}", each))
    return made


def taken(waiting: list[Waiting]) -> list[str]:
    return [each.segment for each in waiting]


def test_what_is_under_way_comes_before_new_input_and_the_older_epoch_first() -> None:
    waiting = backlog(part("a", 1), part("first.on", 9, lane=1), part("first.on", 8), epochs=(1, 3, 2))
    assert taken(waiting.take(NO_LIMITS, BOTH)) == ["2", "1", "0"]


def test_among_the_injectors_the_oldest_goes_first() -> None:
    waiting = backlog(part("a", 5), part("a", 1), part("b", 3, reader=BY_WORD), part("b", 7, reader=BY_WORD))
    assert taken(waiting.take(NO_LIMITS, BOTH)) == ["2", "0", "1", "3"]


def test_limits_are_kept() -> None:
    parts = [part("a", records=4, size=10) for _ in range(5)]
    assert len(backlog(*parts).take(Limits(11, 1_000), BOTH)) == 2
    assert len(backlog(*parts).take(Limits(12, 1_000), BOTH)) == 3
    assert len(backlog(*parts).take(Limits(1_000, 29), BOTH)) == 2
    assert len(backlog(*parts).take(Limits(1_000, 30), BOTH)) == 3


def test_one_part_is_taken_however_large_it_is() -> None:
    waiting = backlog(part("a", records=100, size=100), part("a"))
    assert taken(waiting.take(Limits(1, 1), BOTH)) == ["0"]
    assert taken(waiting.take(Limits(1, 1), BOTH)) == ["1"]
    assert waiting.take(Limits(1, 1), BOTH) == []


def test_parts_that_nobody_reads_are_passed_over() -> None:
    waiting = backlog(part("again.on", 1), part("b", 1), part("b", 5, reader=BY_WORD), part("b", 1, reader="gone ← b"))
    assert waiting.oldest() == {"first": 5}
    assert (waiting.records, waiting.parts) == (1, 1)
    assert taken(waiting.take(NO_LIMITS, BOTH)) == ["2"]


def test_parts_of_a_lane_that_is_away_wait() -> None:
    waiting = backlog(part("a", 1, lane=1), part("a", 2, lane=0))
    assert waiting.lanes() == {0, 1}
    assert taken(waiting.take(NO_LIMITS, {0})) == ["1"]
    assert waiting.lanes() == {1}
    assert waiting.oldest() == {"first": 1, "again": 1}
    assert taken(waiting.take(NO_LIMITS, BOTH)) == ["0"]


def test_what_an_aborted_epoch_took_stands_first_again() -> None:
    parts = [part("a", n, offset=n) for n in range(4)]
    waiting = backlog(*parts, epochs=(1, 1, 2, 3))
    took = waiting.take(Limits(2, 100), BOTH)
    waiting.give_back(took)
    assert (waiting.records, waiting.size, waiting.parts) == (4, 4, 4)
    assert taken(waiting.take(NO_LIMITS, BOTH)) == ["0", "1", "2", "3"]


# Any history.


@dataclass(frozen=True)
class Take:
    limits: Limits
    here: frozenset[int]
    aborted: bool


@dataclass
class Naive:
    """All parts in the order in which they came; every question is answered by looking at all of it."""

    came: list[Waiting] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def left(self, here: frozenset[int] = BOTH) -> list[Waiting]:
        return [w for w in self.came if place(w.part) in READERS and w.segment not in self.taken and w.part.lane in here]

    def next(self, here: frozenset[int]) -> Waiting | None:
        """The part that is taken next: of the first ones of each queue, the best."""
        heads: dict[tuple[str, str, int], Waiting] = {}
        for w in self.left(here):
            heads.setdefault((*place(w.part), w.part.lane), w)

        def order(w: Waiting) -> tuple[bool, int, int, str, int]:
            injected = w.part.stream in GRAPH.injections
            return injected, 0 if injected else w.epoch, w.part.oldest, w.part.stream, w.part.lane

        return min(heads.values(), key=order, default=None)


def place(of: Part) -> tuple[str, str]:
    return of.stream, of.reader


def check(waiting: Backlog, naive: Naive) -> None:
    expected: dict[str, int] = {}
    for w in naive.left():
        for name in READERS[place(w.part)]:
            expected[name] = min(w.part.oldest, expected.get(name, w.part.oldest))
    assert waiting.oldest() == expected
    assert waiting.records == sum(w.part.records for w in naive.left())
    assert waiting.size == sum(w.part.length for w in naive.left())
    assert waiting.lanes() == {w.part.lane for w in naive.left()}


PARTS = st.builds(
    lambda place, oldest, lane, records, size: part(place[0], oldest, reader=place[1], lane=lane, records=records, size=size),
    st.sampled_from(PLACES),
    st.integers(0, 6),
    st.integers(0, 1),
    st.integers(1, 5),
    st.integers(1, 5),
)
TAKES = st.builds(Take, st.builds(Limits, st.integers(1, 15), st.integers(1, 15)), st.sampled_from([BOTH, frozenset({1})]), st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(PARTS | TAKES, max_size=20))
def test_it_is_as_if_all_were_searched_whatever_happens(happens: list[Part | Take]) -> None:
    waiting, naive = Backlog(GRAPH.outline), Naive()
    for number, each in enumerate(happens):
        if isinstance(each, Part):
            came = Waiting(number // 3, f"{number:02}", each)
            waiting.add(came)
            naive.came.append(came)
        else:
            took, before = waiting.take(each.limits, each.here), set(naive.taken)
            for got in took:
                assert got is naive.next(each.here)
                naive.taken.add(got.segment)
            records, size, left = sum(w.part.records for w in took), sum(w.part.length for w in took), naive.next(each.here)
            assert len(took) <= 1 or (records <= each.limits.records and size <= each.limits.size)
            if left is not None:
                assert took
                assert records + left.part.records > each.limits.records or size + left.part.length > each.limits.size
            if each.aborted:
                waiting.give_back(took)
                naive.taken = before
        check(waiting, naive)
