"""What a commit adds to the ledger: counts, what waits and for whom, what keeps a segment, what a source has said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.epoch import BucketReport, Summary, Tally
from millstream.core.ledger import (
    Checkpoint,
    Commit,
    Free,
    Identity,
    Ledger,
    LeftOut,
    Minimum,
    Plant,
    Reader,
    Segment,
    SourceChange,
    SourceProgress,
    decode_commit,
    decode_ledger,
    encode_commit,
    encode_ledger,
)
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.parts import NO_LANE, Frame, Part, RowsPart
from millstream.core.row import Minima
from millstream.timestamp import END_OF_TIME

READERS = {"count ← clicks": Reader("clicks", False, 1), "sum ← clicks": Reader("clicks", True, 1)}


def commit(number: int, **fields: Any) -> Commit:
    return Commit(**{"number": number, "id": f"{number}", "before": f"{number - 1}", "fence": 1, "now": ms.Timestamp(number), **fields})


def part(offset: int, stream: str = "clicks", *, reader: str = "", records: int = 1) -> Part:
    return Part(offset, 1, 0, 0, stream, reader, stream, 0, records, ms.Timestamp(offset))


def frame(*parts: Part, segment: str = "s", lane: int = 0, rows: bool = False) -> Frame:
    return Frame(segment, lane, list(parts), RowsPart(99, 1, 0, 1) if rows else None)


def report(hold: int = END_OF_TIME) -> BucketReport:
    return BucketReport(Minima(hold=ms.Timestamp(hold)), 1, 1)


def after(*commits: Commit) -> Ledger:
    ledger = Ledger()
    for each in commits:
        ledger.apply(each)
    return ledger


WHOLE = commit(
    1,
    low_watermarks={"count": LowWatermark(ms.Timestamp(5), ms.Timestamp(4))},
    promises={"clicks": ms.Timestamp(5)},
    frames=[frame(part(0), part(1, reader="sum ← clicks"), rows=True)],
    summaries=[Summary(3, {"count": report(7)}, {"count": Tally(*range(1, 9))})],
    sources={"clicks": SourceChange({"": Mark(ms.Timestamp(5), ms.Timestamp(1))}, injected=1, positions={"": 1})},
    readers=dict(READERS),
    checkpoints={0: Checkpoint(Identity(1, "1", "a"))},
    logged=1,
    delivered={"out": 1},
    free=Free(["old"], ["note"]),
    plant=Plant(["count", "sum"], ["clicks"], {"out": "clicks"}),
)


def test_commit_and_ledger_come_back_as_they_were() -> None:
    assert decode_commit(encode_commit(WHOLE)) == WHOLE
    ledger = after(WHOLE)
    assert decode_ledger(encode_ledger(ledger)) == ledger
    assert (ledger.number, ledger.id, ledger.now, ledger.logged, ledger.delivered) == (1, "1", 1, 1, {"out": 1})


def test_a_ledger_that_was_written_goes_on_as_the_one_that_was_not() -> None:
    second = commit(2, took={"s": [1]}, frames=[frame(part(2), segment="t")], sources={"clicks": SourceChange(injected=4)})
    whole, resumed = after(WHOLE, second), decode_ledger(encode_ledger(after(WHOLE)))
    resumed.apply(decode_commit(encode_commit(second)))
    assert resumed == whole


def test_a_commit_names_only_what_changed() -> None:
    ledger = after(WHOLE, commit(2, low_watermarks={"sum": LowWatermark(ms.Timestamp(3), ms.Timestamp(3))}))
    assert set(ledger.low_watermarks) == {"count", "sum"}
    assert ledger.promises == {"clicks": 5}
    assert ledger.sources["clicks"].injected == 1


# Counts.


def test_counts_add_up() -> None:
    tallies = {"count": Tally(*range(1, 9))}
    summaries = [Summary(0, {}, tallies), Summary(1, {}, tallies)]
    made = frame(part(0, "count.counts", records=3), part(1, "count.counts", reader="sum ← count.counts", records=3))
    ledger = after(*(commit(number, summaries=summaries, frames=[made]) for number in (1, 2)))
    assert ledger.tallies == {"count": Tally(*(4 * number for number in range(1, 9)))}
    assert ledger.produced == {"count.counts": 6}  # once a record, however many read it


def test_what_a_source_brings_is_injected_and_not_produced() -> None:
    brought = commit(1, frames=[frame(part(0, records=3), lane=NO_LANE)], sources={"clicks": SourceChange(injected=3, positions={"": 4})})
    ledger = after(brought, commit(2, sources={"clicks": SourceChange(dead=1, batch=0)}))
    assert ledger.produced == {}
    assert ledger.sources["clicks"] == SourceProgress({}, False, 3, 1, 0, 1, {"": 4})


def test_the_last_epoch_with_something_to_do_is_remembered_for_each() -> None:
    both = [Summary(0, {}, {"first": Tally(received=1)}), Summary(1, {}, {"second": Tally(received=1)})]
    one = [Summary(0, {}, {"first": Tally(received=1)})]
    ledger = after(commit(1, summaries=both), commit(2, summaries=one, frames=[frame(part(0, "first.counts"))]))
    assert ledger.worked == {"first": 2, "second": 1}
    assert ledger.latest == {"first.counts": 2}


def test_what_untouched_buckets_said_stays_valid() -> None:
    first = [Summary(0, {"count": report(9), "sum": report(5)}, {}), Summary(1, {"count": report(7)}, {})]
    ledger = after(commit(1, summaries=first), commit(2, summaries=[Summary(1, {"count": report()}, {})]))
    assert ledger.reports == {"count": {0: report(9), 1: report()}, "sum": {0: report(5)}}
    minimum = Minimum(ledger.reports["count"])
    assert minimum.all.hold == 9
    minimum.put(0, Minima())
    assert minimum.all.hold == END_OF_TIME


# What waits.


def offsets(ledger: Ledger) -> dict[str, list[int]]:
    return {segment: list(waiting) for segment, waiting in ledger.waiting.items()}


def test_a_part_waits_if_a_reader_reads_it_until_an_epoch_takes_it() -> None:
    parts = frame(part(0), part(1, reader="sum ← clicks"), part(2, "count.counts"), part(3, reader="gone ← clicks"))
    ledger = after(commit(1, readers=dict(READERS)), commit(2, frames=[parts]))
    assert offsets(ledger) == {"s": [0, 1]}
    assert ledger.segments["s"].waiting == 2
    ledger.apply(commit(3, took={"s": [1]}))
    assert offsets(ledger) == {"s": [0]}
    ledger.apply(commit(4, took={"s": [0]}))
    assert (offsets(ledger), ledger.segments["s"].waiting) == ({}, 0)


def test_a_part_may_be_named_and_taken_by_one_commit() -> None:
    ledger = after(commit(1, readers=dict(READERS)), commit(2, frames=[frame(part(0), part(1, reader="sum ← clicks"))], took={"s": [0]}))
    assert offsets(ledger) == {"s": [1]}


def test_no_part_is_taken_twice() -> None:
    ledger = after(commit(1, readers=dict(READERS)), commit(2, frames=[frame(part(0), part(5))], took={"s": [0]}))
    with pytest.raises(KeyError):
        ledger.apply(commit(3, took={"s": [0]}))


def test_a_reader_gets_what_is_named_from_its_first_epoch_on() -> None:
    late = {"count ← clicks": Reader("clicks", False, 3)}
    ledger = after(commit(1, readers=dict(late)), commit(2, frames=[frame(part(0))]), commit(3, frames=[frame(part(1))]))
    assert offsets(ledger) == {"s": [1]}


def test_what_waited_for_a_reader_that_is_removed_waits_no_longer() -> None:
    both = frame(part(0), part(1, reader="sum ← clicks"))
    ledger = after(commit(1, readers=dict(READERS)), commit(2, frames=[both]), commit(3, readers={"sum ← clicks": None}))
    assert offsets(ledger) == {"s": [0]}
    assert ledger.segments["s"].waiting == 1
    ledger.apply(commit(4, readers={"count ← clicks": None}))
    assert offsets(ledger) == {}


# What keeps a segment.


def test_a_segment_knows_its_newest_records_and_rows() -> None:
    ledger = after(
        commit(1, plant=Plant(unkept=["scratch"])),
        commit(2, frames=[frame(part(0)), frame(part(0, "scratch"), segment="t")]),
        commit(3, frames=[frame(part(1, reader="nobody"), rows=True)]),
    )
    assert ledger.segments == {"s": Segment(0, records=2, rows=3), "t": Segment(0, unkept={"scratch": 2})}
    assert ledger.touched == {0: 3}
    ledger.apply(commit(4, free=Free(["t"])))
    assert set(ledger.segments) == {"s"}


def test_whether_a_stream_is_kept_is_said_by_the_code_that_ran_the_epoch() -> None:
    """It changes with a start, for what comes; what came before stays as it was."""
    ledger = after(commit(1, plant=Plant()), commit(2, frames=[frame(part(0))]))
    ledger.apply(commit(3, fence=2, plant=Plant(unkept=["clicks"])))
    ledger.apply(commit(4, frames=[frame(part(1), segment="t")]))
    ledger.apply(commit(5, fence=3, plant=Plant(unkept=["clicks"])))
    ledger.apply(commit(6, fence=4, plant=Plant()))
    ledger.apply(commit(7, frames=[frame(part(2), segment="u")]))
    assert [number for number in range(1, 9) if ledger.leaves_out("clicks", number)] == [4, 5, 6]
    assert ledger.segments == {"s": Segment(0, records=2), "t": Segment(0, unkept={"clicks": 4}), "u": Segment(0, records=7)}
    assert ledger.left_out == {"clicks": [LeftOut(3, 6)]}
    assert ledger.next_left_out("clicks", 5) == LeftOut(3, 6)
    assert ledger.next_left_out("clicks", 6) is None
    ledger.apply(commit(8, fence=5, plant=Plant(unkept=["clicks"])))
    assert ledger.next_left_out("clicks", 6) == LeftOut(8)
    assert decode_ledger(encode_ledger(ledger)) == ledger


def test_rows_are_free_up_to_the_checkpoint_before_the_one_that_was_proved_and_never_fewer() -> None:
    ledger = Ledger()
    for number, (at, before) in enumerate([(5, 0), (9, 5), (7, 3)], 10):
        ledger.apply(commit(number, checkpoints={0: Checkpoint(Identity(at), Identity(before))}))
    assert (ledger.free_rows(0), ledger.free_rows(1)) == (5, 0)
    assert ledger.checkpoints[0].at.epoch == 7


def test_the_first_commit_of_every_fence_is_known() -> None:
    ledger = after(commit(1), commit(2), commit(3, fence=2), commit(4, fence=2), commit(5, fence=7))
    assert (ledger.first, ledger.fence) == ([1, 3, 5], 7)


def test_a_delivery_that_is_removed_is_forgotten() -> None:
    assert after(commit(1, delivered={"a": 1, "b": 1}), commit(2, delivered={"a": None, "b": 2})).delivered == {"b": 2}


# Sources.

MARKS = st.dictionaries(st.sampled_from("ab"), st.builds(Mark, st.integers(0, 9).map(ms.Timestamp), st.integers(0, 9).map(ms.Timestamp)))


@st.composite
def changes(draw: st.DrawFn) -> SourceChange:
    marks = draw(MARKS)
    return SourceChange(
        marks=marks,
        forgotten=draw(st.lists(st.sampled_from([p for p in "abc" if p not in marks]), unique=True)),
        injected=draw(st.integers(0, 3)),
        dead=draw(st.integers(0, 3)),
        finished=draw(st.none() | st.just(True)),
        batch=draw(st.none() | st.integers(0, 9)),
        positions=draw(st.dictionaries(st.sampled_from("pq"), st.integers(0, 9))),
        pieces=draw(st.integers(0, 3)),
    )


@settings(max_examples=150, deadline=None)
@given(MARKS, st.lists(changes(), min_size=1, max_size=4))
def test_changes_of_a_source_are_the_same_as_one_or_one_by_one(marks: dict[str, Mark], some: list[SourceChange]) -> None:
    one_by_one, at_once = SourceProgress(dict(marks)), SourceProgress(dict(marks))
    together: SourceChange | None = None
    for change in some:
        one_by_one.change(change, number=4)
        together = change.after(together)
    assert together is not None
    at_once.change(together, number=4)
    assert at_once == one_by_one
