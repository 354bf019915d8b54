"""Records on their way to the lanes of their readers: each once under its own key, and once for every reader with `by`."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core import route
from millstream.core.codec import encode_value
from millstream.core.graph import compile_topology
from millstream.core.lanes import Lanes
from millstream.core.parts import Columns, Dealt, decode_columns
from millstream.core.route import Dealer
from millstream.timestamp import END_OF_TIME
from tests.core.alone import Event, inject


class Count(ms.Computation[int]):
    counts: ms.Output[Event]

    def process_record(self, record: ms.Record[Event]) -> None: ...


def word_of(event: Event) -> str:
    if event.word == "bad":
        raise ValueError("no word")
    return event.word


topology, counted = ms.Topology("test"), Count()
events = inject(topology)
topology.compute("count", counted).reads(events, events.by(word_of))
topology.compute("by word", Count()).reads(counted.counts.by(word_of))
GRAPH = compile_topology(topology)
BY_WORD = "count ← events #2"


def columns(*events: Event) -> Columns:
    return Columns(
        [event.key for event in events],
        [encode_value(event) for event in events],
        [ms.Timestamp(event.at) for event in events],
        list(range(len(events))),
    )


def read(dealt: list[Dealt], reader: str) -> dict[int, list[tuple[str, int]]]:
    """By lane, the keys and minors that a reader gets."""
    found: dict[int, list[tuple[str, int]]] = {}
    for each in dealt:
        if each.reader == reader:
            found.setdefault(each.lane, []).extend(zip(each.columns.keys, each.columns.minors, strict=True))
    return found


WORDS = st.lists(
    st.builds(Event, st.sampled_from("abcdef"), st.integers(0, 9), st.sampled_from(["x", "y", "zz", "bad", "ключ"])), max_size=12
)


@settings(max_examples=100, deadline=None)
@given(WORDS, st.integers(1, 4))
def test_every_reader_gets_every_record_once_in_the_lane_of_its_key_and_in_order(some: list[Event], count: int) -> None:
    lanes = Lanes(8, count)
    dealt = Dealer(GRAPH, lanes).deal("events", "events", 7, columns(*some), lane=0)
    for reader, key in (("", lambda event: event.key), (BY_WORD, lambda event: event.word if event.word != "bad" else event.key)):
        wanted: dict[int, list[tuple[str, int]]] = {}
        for minor, event in enumerate(some):
            wanted.setdefault(lanes.of_all([key(event)])[0], []).append((key(event), minor))
        assert read(dealt, reader) == wanted
    for each in dealt:
        bad = [place for place, minor in enumerate(each.columns.minors) if some[minor].word == "bad"] if each.reader else []
        assert sorted(each.columns.errors) == bad
        assert (each.stream, each.origin, each.major) == ("events", "events", 7)


def test_what_nobody_reads_under_its_own_key_stays_where_it_was_made() -> None:
    dealt = Dealer(GRAPH, Lanes(8, 4)).deal("count.counts", "count.counts", 3, columns(*map(Event, "abcdef")), lane=2)
    assert set(read(dealt, "")) == {2}


def test_why_a_key_cannot_be_extracted_goes_with_the_record() -> None:
    (plain, rekeyed) = Dealer(GRAPH, Lanes(8, 1)).deal("events", "events", 0, columns(Event(word="x"), Event(word="bad")), lane=0)
    assert plain.columns.errors == {}
    assert rekeyed.columns.errors == {1: "its key cannot be extracted: ValueError: no word"}


@pytest.mark.parametrize(("limit", "most"), [("RECORDS_PER_PART", 3), ("BYTES_PER_PART", 100)])
def test_parts_are_cut_so_that_an_epoch_can_be_bounded(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, limit, most)
    some = [Event(f"k{number}", number, "bad" if number == 5 else "x") for number in range(8)]
    dealt = Dealer(GRAPH, Lanes(8, 1)).deal("events", "events", 0, columns(*some), lane=0)
    for reader in ("", BY_WORD):
        pieces = [each.columns for each in dealt if each.reader == reader]
        assert len(pieces) > 2
        assert all(len(piece) <= 3 for piece in pieces)
        assert [minor for piece in pieces for minor in piece.minors] == list(range(8))
        errors = [piece.minors[place] for piece in pieces for place in piece.errors]
        assert errors == ([5] if reader else [])


def test_nothing_is_dealt_of_nothing() -> None:
    assert Dealer(GRAPH, Lanes(8, 2)).deal("events", "events", 0, Columns(), lane=0) == []


def test_a_part_says_what_planning_needs_to_know() -> None:
    dealt, _ = Dealer(GRAPH, Lanes(8, 1)).deal("events", "events", 0, columns(Event(at=5), Event(at=3)), lane=0)
    part = dealt.placed(10, 20, 30)
    assert (part.offset, part.length, part.checksum, part.records, part.oldest) == (10, 20, 30, 2, 3)
    assert decode_columns(dealt.encoded()) == dealt.columns
    assert Dealt(0, "s", "", "s", 0, Columns()).placed(0, 0, 0).oldest == END_OF_TIME


# Lanes.


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_every_bucket_has_one_lane_and_neighbours_share_it(buckets: int, data: st.DataObject) -> None:
    lanes = Lanes(buckets, data.draw(st.integers(1, buckets)))
    assert lanes.of_bucket == sorted(lanes.of_bucket)
    sizes = Counter(lanes.of_bucket)
    assert set(sizes) == set(range(lanes.count))
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_a_key_is_carried_by_the_lane_of_its_bucket_remembered_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.core.lanes.CACHED_KEYS", 2)
    lanes = Lanes(16, 4)
    keys = [f"k{number}" for number in range(9)]
    first = lanes.of_all(keys)
    assert lanes.of_all(reversed(keys)) == first[::-1]
    assert first == [lanes.of_bucket[lanes.bucket(key)] for key in keys]
    assert len(set(first)) > 1
