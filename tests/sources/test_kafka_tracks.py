"""Which partitions give pieces, how large, and when the driver reads by itself: by offsets alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.sources.kafka_survey import KafkaPartition
from millstream.sources.kafka_tracks import MAX_GIVEN, PIECES_ABOVE, SAMPLE_EVERY, TAIL_UPTO, KafkaPiece, Sizes, Track, Tracks, decode_piece


def tracks(*lags: int, size: int = 100, max_bytes: int = 10_000) -> Tracks:
    """Of one topic, whose records have so many bytes."""
    made = Tracks(max_bytes)
    for number, lag in enumerate(lags):
        made.add(Track(KafkaPartition("t", number), 0, lag, to_pin=False))
    made.sizes.learn("t", 1000, 1000 * size)
    return made


def pieces(of: Tracks) -> list[KafkaPiece]:
    return [decode_piece(piece.content) for piece in of.pieces()]


def test_pieces_are_as_large_as_they_should_be_and_of_all_partitions_in_turn() -> None:
    found = pieces(tracks(250, 1000, 50))
    assert found[:4] == [
        KafkaPiece("t", 0, 0, 100, 250),
        KafkaPiece("t", 1, 0, 100, 1000),
        KafkaPiece("t", 2, 0, 50, 50),
        KafkaPiece("t", 0, 100, 200, 250),
    ]
    assert [piece.more for piece in found[:4]] == [True, True, False, True]


def test_a_small_one_is_given_when_nothing_else_of_its_partition_is_under_way() -> None:
    made = tracks(130)
    assert pieces(made) == [KafkaPiece("t", 0, 0, 100, 130)]
    assert pieces(made) == []
    assert made.confirm({"t/0": 99}) == {KafkaPartition("t", 0): 99}
    assert pieces(made) == []
    made.confirm({"t/0": 100, "other/0": 5})
    assert pieces(made) == [KafkaPiece("t", 0, 100, 130, 130)]


def test_a_partition_that_comes_late_is_not_forgotten() -> None:
    """Of many partitions only some have a piece under way at a time; their turn goes round."""
    made = tracks(*[10_000] * 100)
    seen: set[int] = set()
    for _ in range(3):
        given = pieces(made)
        assert len(given) == MAX_GIVEN
        seen |= {piece.partition for piece in given}
        made.confirm({f"t/{piece.partition}": piece.end for piece in given})
    assert seen == set(range(100))


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=5), st.integers(1, 300), st.data())
def test_pieces_follow_each_other_and_leave_nothing_out(lags: list[int], size: int, data: st.DataObject) -> None:
    made = tracks(*lags, size=size, max_bytes=3000)
    found: dict[int, list[KafkaPiece]] = {number: [] for number in range(len(lags))}
    for _ in range(5000):
        given = pieces(made)
        for piece in given:
            found[piece.partition].append(piece)
        if not given and not made.lags({}):
            break
        made.confirm({f"t/{number}": those[-1].end for number, those in found.items() if those and data.draw(st.booleans())})
        if not given:
            made.confirm({f"t/{number}": those[-1].end for number, those in found.items() if those})
    for number, lag in enumerate(lags):
        assert [piece.start for piece in found[number][:1]] == [0] * bool(lag)
        assert all(one.end == next_one.start for one, next_one in pairwise(found[number]))
        assert [piece.end for piece in found[number][-1:]] == [lag] * bool(lag)


def test_it_changes_its_way_only_when_much_or_little_is_left() -> None:
    made = tracks(PIECES_ABOVE, max_bytes=1 << 30)
    assert not made.choose()
    made.note({KafkaPartition("t", 0): PIECES_ABOVE + 1})
    assert made.choose()
    (track,) = made
    track.given = PIECES_ABOVE - TAIL_UPTO
    assert made.choose()
    track.given += 1
    assert not made.choose()


def test_much_is_told_by_bytes_too() -> None:
    assert not tracks(100, size=100).choose()
    assert tracks(100, size=10_000).choose()


def test_what_no_commit_has_is_unread() -> None:
    made = tracks(130)
    assert made.unread("t") == 130
    pieces(made)
    assert (made.lags({}), made.unread("t"), made.unread("other")) == ({"t/0": 30}, 130, 0)
    made.confirm({"t/0": 100})
    pieces(made)
    assert (made.lags({}), made.unread("t")) == ({}, 30)
    made.confirm({"t/0": 130})
    assert made.unread("t") == 0


def test_nothing_is_given_beyond_the_stop() -> None:
    made = tracks(500, 10)
    made.stop({KafkaPartition("t", 0): 150})
    made.note({KafkaPartition("t", 0): 900, KafkaPartition("t", 1): 900})
    assert made.lags({KafkaPartition("t", 1): 1000}) == {"t/0": 150, "t/1": 10}
    assert [(piece.partition, piece.end) for piece in pieces(made)] == [(0, 100), (1, 10)]
    made.confirm({"t/0": 100})
    assert pieces(made) == [KafkaPiece("t", 0, 100, 150, 150)]
    assert all(track.done for track in made)


def test_sizes_are_looked_at_again_now_and_then() -> None:
    sizes = Sizes()
    assert sizes.is_stale("t")
    sizes.learn("t", 0, 0)
    assert sizes.is_stale("t")
    sizes.learn("t", 10, 1000)
    assert (sizes.of("t"), sizes.is_stale("t")) == (100.0, False)
    for _ in range(SAMPLE_EVERY):
        sizes.count("t")
    assert sizes.is_stale("t")
    sizes.learn("t", 10, 2000)
    assert sizes.of("t") == pytest.approx(120.0)
    sizes.learn("t", 1000, 300_000)
    assert sizes.of("t") == pytest.approx(300.0)
