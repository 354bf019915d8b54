"""The contract for sources: a source that keeps to it passes, and one that breaks it in any way is noticed, by the test that says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

import millstream as ms
from millstream.testing import SourceContract, source_contract, source_reading

MANY, PER_PIECE = 100, 20  # values of a partition that are given in pieces, and in each of them


class Shelf:
    """A system in memory, with two partitions."""

    def __init__(self) -> None:
        self.rows: list[list[bytes]] = [[], []]
        self.reachable = True

    def count(self, partition: int) -> int:
        if not self.reachable:
            raise ms.Unreachable("the shelf is out of reach")
        return len(self.rows[partition])


class ShelfReader(ms.SourceReader):
    def __init__(self, shelf: Shelf, positions: Mapping[str, ms.Position]) -> None:
        self.shelf, self.given = shelf, [int(positions.get(f"p{n}", 0)) for n in (0, 1)]
        self.ends = [shelf.count(n) for n in (0, 1)]

    def look(self) -> None:
        if not self.finishing:
            self.ends = [self.shelf.count(n) for n in (0, 1)]

    def poll(self, at_most: int, timeout: float) -> Sequence[ms.Batch | ms.Piece]:
        self.look()
        for n in sorted((0, 1), key=self.given.__getitem__):
            if self.ends[n] - self.given[n] > MANY:
                return list(self.pieces(n))
            if self.ends[n] > self.given[n]:
                return [self.batch(n, at_most)]
        return []

    def batch(self, n: int, at_most: int) -> ms.Batch:
        first, self.given[n] = self.given[n], min(self.ends[n], self.given[n] + at_most)
        return batch_of(self.shelf.rows[n][first : self.given[n]], n, first)

    def pieces(self, n: int) -> Iterator[ms.Piece]:
        while self.given[n] < self.ends[n]:
            first, self.given[n] = self.given[n], min(self.ends[n], self.given[n] + PER_PIECE)
            yield ms.Piece(msgspec.msgpack.encode((n, first, self.shelf.rows[n][first : self.given[n]])), 100, f"p{n}", n)

    def lag(self) -> Mapping[str, int]:
        return {f"p{n}": self.ends[n] - self.given[n] for n in (0, 1)}

    def finish(self) -> None:
        self.look()
        super().finish()


class ShelfPieceReader(ms.PieceReader):
    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        n, first, rows = msgspec.msgpack.decode(piece.content, type=tuple[int, int, list[bytes]])
        for place in range(0, len(rows), at_most):
            yield batch_of(rows[place : place + at_most], n, first + place)


def batch_of(rows: list[bytes], n: int, first: int) -> ms.Batch:
    reasons = {place: "it is bad" for place, text in enumerate(rows) if text == b"bad"}
    numbers = range(first, first + len(rows))
    return ms.Batch(rows, numbers, {f"p{n}": numbers.stop}, f"p{n}", f"p{n}", reasons=reasons)


class ShelfSource(ms.Source[int]):
    gives_pieces = True
    value_type = int
    reader: type[ShelfReader] = ShelfReader
    piece_reader_type: type[ms.PieceReader] = ShelfPieceReader

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def open(self, context: ms.SourceContext) -> ms.SourceReader:
        return self.reader(self.shelf, context.positions)

    def piece_reader(self, context: ms.SourceContext) -> ms.PieceReader:
        return self.piece_reader_type()


class ShelfContract(SourceContract):
    partitions = 2
    backlog = 3 * MANY
    tells_lag = True
    kind: type[ShelfSource] = ShelfSource

    def make(self) -> ms.Source[int]:
        return self.kind(self.shelf)

    @property
    def shelf(self) -> Shelf:
        return vars(self).setdefault("_shelf", Shelf())  # type: ignore[no-any-return]

    def add(self, values: Sequence[int], partition: int) -> None:
        self.shelf.rows[partition] += map(msgspec.json.encode, values)

    def add_bad(self, partition: int) -> None:
        self.shelf.rows[partition].append(b"bad")

    def cut_off(self) -> None:
        self.shelf.reachable = False

    def reconnect(self) -> None:
        self.shelf.reachable = True


class TestShelf(ShelfContract):
    pass


# What is broken, by what it does.


class BeginsAnew(ShelfReader):
    def __init__(self, shelf: Shelf, positions: Mapping[str, ms.Position]) -> None:
        super().__init__(shelf, {})


class HasOnePositionForTwo(ShelfReader):
    def __init__(self, shelf: Shelf, positions: Mapping[str, ms.Position]) -> None:
        furthest = max((int(place) for place in positions.values()), default=0)
        super().__init__(shelf, {"p0": furthest, "p1": furthest})


class SaysTooLittle(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        found = super().batch(n, at_most)
        return msgspec.structs.replace(found, positions={f"p{n}": max(0, self.given[n] - 1)})


class SaysTooMuch(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        return msgspec.structs.replace(super().batch(n, at_most), positions={f"p{n}": self.given[n] + 1})


class CountsFromItsOpening(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        found = super().batch(n, at_most)
        first = vars(self).setdefault(f"first{n}", found.numbers[0])
        return msgspec.structs.replace(found, numbers=[number - first for number in found.numbers])


class HasOneIdForTwo(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        return msgspec.structs.replace(super().batch(n, at_most), origin="")


class TurnsRound(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        found = super().batch(n, at_most)
        return msgspec.structs.replace(found, values=found.values[::-1])


class HasNoPartitions(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        return msgspec.structs.replace(super().batch(n, at_most), partition="")


class GivesAll(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        return super().batch(n, 1_000_000)


class SkipsWhatIsConfirmed(ShelfReader):
    def confirm(self, positions: Mapping[str, ms.Position]) -> None:
        self.given[0] = min(self.ends[0], self.given[0] + 1)


class PassesOverBadValues(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        found = super().batch(n, at_most)
        good = [place for place in range(len(found.values)) if place not in found.reasons]
        values, numbers = [found.values[place] for place in good], [found.numbers[place] for place in good]
        return msgspec.structs.replace(found, values=values, numbers=numbers, reasons={})


class RaisesAtBadValues(ShelfReader):
    def batch(self, n: int, at_most: int) -> ms.Batch:
        found = super().batch(n, at_most)
        assert not found.reasons
        return found


class LooksOnce(ShelfReader):
    def look(self) -> None:
        pass


class EndsTooSoon(ShelfReader):
    def ended(self) -> bool:
        return True


class NeverEnds(ShelfReader):
    def ended(self) -> bool:
        return False


class WaitsTooLong(ShelfReader):
    def poll(self, at_most: int, timeout: float) -> Sequence[ms.Batch | ms.Piece]:
        found = super().poll(at_most, timeout)
        if not found:
            time.sleep(1.0)
        return found


class ClosesSlowly(ShelfReader):
    def close(self) -> None:
        time.sleep(1.0)


class FinishesAtOnce(ShelfReader):
    def finish(self) -> None:
        self.ends = list(self.given)
        self.finishing = True


class TellsNoLag(ShelfReader):
    def lag(self) -> Mapping[str, int]:
        return {}


class TellsLagOnce(ShelfReader):
    def lag(self) -> Mapping[str, int]:
        return super().lag() if self.given == [0, 0] else {}


class AlwaysLags(ShelfReader):
    def lag(self) -> Mapping[str, int]:
        return {"p0": 1, "p1": 1}


class LagsForItsThreadOnly(ShelfReader):
    def __init__(self, shelf: Shelf, positions: Mapping[str, ms.Position]) -> None:
        super().__init__(shelf, positions)
        self.thread = threading.get_ident()

    def poll(self, at_most: int, timeout: float) -> Sequence[ms.Batch | ms.Piece]:
        time.sleep(0.05)
        return super().poll(at_most, timeout)

    def lag(self) -> Mapping[str, int]:
        assert self.thread == threading.get_ident(), "lag is asked by other threads"
        return super().lag()


class RaisesWhatItGets(ShelfReader):
    def look(self) -> None:
        if not self.shelf.reachable:
            raise AssertionError("connection reset")
        super().look()


class IsSilentWhenCutOff(ShelfReader):
    def look(self) -> None:
        if self.shelf.reachable:
            super().look()


class LosesWhatComesAfterABreak(ShelfReader):
    def __init__(self, shelf: Shelf, positions: Mapping[str, ms.Position]) -> None:
        super().__init__(shelf, positions)
        self.given = list(self.ends) if positions else self.given


class ReadsAPieceOnce(ShelfPieceReader):
    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        if piece.content not in self.seen:
            yield from super().read(piece, at_most)
        self.seen.add(piece.content)


class NumbersByPlaceInBatch(ShelfPieceReader):
    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        for major, batch in enumerate(super().read(piece, at_most)):
            yield msgspec.structs.replace(batch, major=major)


class StaysBroken(ShelfPieceReader):
    """Once it has read something."""

    broken = False

    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        if self.broken:
            raise ms.Unreachable("its connection is closed")
        yield from super().read(piece, at_most)
        self.broken = True


class LeavesTheLastOut(ShelfPieceReader):
    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        for batch in super().read(piece, at_most):
            yield msgspec.structs.replace(batch, values=batch.values[:-1], numbers=batch.numbers[:-1])


class ReadsAllAtOnce(ShelfPieceReader):
    def read(self, piece: ms.Piece, at_most: int) -> Iterator[ms.Batch]:
        return super().read(piece, 1_000_000)


class ChecksByTaking(ShelfSource):
    def check(self, context: ms.SourceContext) -> None:
        self.shelf.rows[0].pop()


class IsCalledOtherwiseEachTime(ShelfSource):
    def describe(self) -> str:
        return f"a shelf at {id(self)}"


class GoesBack(ShelfSource):
    def is_past(self, now: ms.Position, wanted: ms.Position) -> bool:
        return now < wanted  # type: ignore[operator]


BROKEN: list[tuple[type[Any], str]] = [
    (BeginsAnew, "a_second_run_goes_on_after_the_first"),
    (HasOnePositionForTwo, "it_goes_on_from_every_position"),
    (SaysTooLittle, "it_goes_on_from_every_position"),
    (SaysTooMuch, "it_goes_on_from_every_position"),
    (CountsFromItsOpening, "it_goes_on_from_every_position"),
    (HasOneIdForTwo, "all_is_given_once_and_in_order"),
    (TurnsRound, "all_is_given_once_and_in_order"),
    (HasNoPartitions, "all_is_given_once_and_in_order"),
    (GivesAll, "it_gives_about_as_many_as_it_is_asked_for"),
    (SkipsWhatIsConfirmed, "confirming_changes_nothing"),
    (PassesOverBadValues, "a_bad_value_is_given_with_its_reason_and_raises_nothing"),
    (RaisesAtBadValues, "a_bad_value_is_given_with_its_reason_and_raises_nothing"),
    (LooksOnce, "what_comes_while_it_is_open_is_given"),
    (EndsTooSoon, "a_poll_without_news_returns_in_time"),
    (NeverEnds, "finish_takes_what_there_is_and_ends"),
    (NeverEnds, "one_that_is_empty_gives_nothing"),
    (WaitsTooLong, "a_poll_without_news_returns_in_time"),
    (ClosesSlowly, "closing_does_not_wait_for_what_is_unread"),
    (FinishesAtOnce, "finish_takes_what_there_is_and_ends"),
    (TellsNoLag, "lag_tells_of_partitions_with_unread_values"),
    (TellsLagOnce, "lag_tells_of_partitions_with_unread_values"),
    (AlwaysLags, "lag_tells_of_partitions_with_unread_values"),
    (LagsForItsThreadOnly, "one_thread_reads_while_others_ask"),
    (RaisesWhatItGets, "a_break_loses_nothing_and_repeats_nothing"),
    (IsSilentWhenCutOff, "a_break_loses_nothing_and_repeats_nothing"),
    (LosesWhatComesAfterABreak, "what_comes_while_it_is_stopped_is_given_by_the_next_run"),
    (ReadsAPieceOnce, "a_piece_read_again_gives_the_same"),
    (NumbersByPlaceInBatch, "a_piece_read_again_gives_the_same"),
    (StaysBroken, "a_lane_reads_a_piece_again_after_a_break"),
    (LeavesTheLastOut, "lanes_read_a_backlog"),
    (LeavesTheLastOut, "it_goes_on_from_every_position_in_a_backlog"),
    (ReadsAllAtOnce, "a_piece_read_again_gives_the_same"),
    (ChecksByTaking, "a_check_changes_nothing"),
    (IsCalledOtherwiseEachTime, "it_is_what_it_says"),
    (GoesBack, "it_gives_about_as_many_as_it_is_asked_for"),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=[f"{broken.__name__}-{test}" for broken, test in BROKEN])
def test_what_is_broken_is_noticed(broken: type[Any], test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_reading, "TIMEOUT", 0.5)
    monkeypatch.setattr(source_contract, "SOON", 0.5)
    role = "kind" if issubclass(broken, ShelfSource) else "reader" if issubclass(broken, ShelfReader) else "piece_reader_type"
    contract = ShelfContract()
    contract.kind = broken if role == "kind" else type("BrokenSource", (ShelfSource,), {role: broken})
    try:
        with pytest.raises(AssertionError) as found:
            getattr(contract, f"test_{test}")()
        assert str(found.value), "a failure says what to do"
    finally:
        contract.teardown_method()


def test_only_tests_that_apply_are_there() -> None:
    class Bounded(ShelfContract):
        bounded = True

    class Again(Bounded):
        bounded = False

    assert Bounded.test_finish_takes_what_there_is_and_ends is None
    assert Bounded.test_it_ends_by_itself is not None
    assert Again.test_finish_takes_what_there_is_and_ends is not None
    assert Again.test_it_ends_by_itself is None
    assert callable(TestShelf.test_lanes_read_a_backlog)
