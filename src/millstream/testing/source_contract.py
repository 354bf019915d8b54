"""What a source must keep to, as tests: derive a class from the contract, say how a source is made and how values come into the
system that it reads, and run pytest."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, TypeVar

from millstream.errors import Unreachable
from millstream.source import Piece, PieceReader, Position
from millstream.testing.source_reading import ReadValue, SourceReading, by_partition, checked, eventually, travelled, values_of
from millstream.testing.source_under_test import FEW, SourceUnderTest

SOON = 10.0  # seconds for what must not wait: a bound for slow machines, not an expectation
PLACES = 4  # from which reading goes on in a test

Checked = TypeVar("Checked", bound=Callable[..., None])
_conditions: dict[str, Callable[[type[SourceUnderTest]], bool]] = {}


def _only(condition: Callable[[type[SourceUnderTest]], bool]) -> Callable[[Checked], Checked]:
    """A test that a class has only if this holds of it."""

    def mark(test: Checked) -> Checked:
        _conditions[test.__name__] = condition
        return test

    return mark


def _says(hook: str) -> Callable[[type[SourceUnderTest]], bool]:
    """Whether a class says how to do this."""
    return lambda cls: getattr(cls, hook) is not getattr(SourceUnderTest, hook)


class SourceContract(SourceUnderTest):
    """Made anew for each test, as pytest does with classes.

    class TestMySource(SourceContract):
        def make(self) -> ms.Source[int]:
            return MySource(...)  # of a place of its own, the same for all calls in one test

        def add(self, values: Sequence[int], partition: int) -> None:
            ...  # the system has these values now, after those that it had

    The rest is optional, and brings more tests: what is so of your source, what a bad value is, how its system is cut off.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, holds in _conditions.items():
            if not holds(cls):
                setattr(cls, name, None)  # pytest passes over it
            elif getattr(cls, name) is None:  # a class above had no use for it
                setattr(cls, name, vars(SourceContract)[name])

    # What it is.

    def test_it_is_what_it_says(self) -> None:
        source = self.make()
        assert source.describe() == self.make().describe() != "", "describe() tells one source from another: the same text each time"
        assert source.bounded == self.bounded, f"the source has bounded = {source.bounded}; say the same in the test"
        assert source.gives_pieces == (self.backlog is not None), (
            "say gives_pieces = True, and in the test the `backlog` that makes it do so"
        )
        assert self.tells_lag or self.partitions == 1, "a source with partitions must tell of those that are unread, in lag()"

    def test_a_check_changes_nothing(self) -> None:
        self._fill()
        self.make().check(self._context())
        with self._reading(at_most=1) as first:
            first.until_given(1)
            self.make().check(self._context(first.positions))
        self.make().check(self._context())
        self._check_values(self._read_all().values)

    # What is given.

    def test_all_is_given_once_and_in_order(self) -> None:
        self._fill()
        self._check_values(self._read_all().values)

    def test_one_that_is_empty_gives_nothing(self) -> None:
        assert self._read_all().values == []

    def test_it_gives_about_as_many_as_it_is_asked_for(self) -> None:
        self._fill(10 * FEW)
        self._check_values(self._read_all(at_most=5).values)

    def test_confirming_changes_nothing(self) -> None:
        self._fill()
        with self._reading(at_most=2) as first:
            first.until_given(self._count)
        place = next((place for place in first.places if place.positions), first.places[0])
        confirmed = self._read_all(place.positions, at_most=2)
        self._check_rest(first, place, confirmed)

    @_only(_says("add_bad"))
    def test_a_bad_value_is_given_with_its_reason_and_raises_nothing(self) -> None:
        self._add([self.value(0)], 0)
        self.add_bad(0)
        self._add([self.value(1)], 0)
        values = self._read_all().values
        assert len(values) == 3, f"give a bad value too, with its text and why it is refused in Batch.reasons; given were {values}"
        bad = values.pop(1)
        assert bad.reason is not None or not self._can_be_decoded(bad), f"say in Batch.reasons why it is refused; it was given as {bad}"
        self._check_values(values)

    # Where it goes on.

    def test_it_goes_on_from_every_position(self) -> None:
        """Also from one that was never confirmed."""
        self._fill()
        self._goes_on(at_most=2)

    @_only(lambda cls: cls.backlog is not None)
    def test_it_goes_on_from_every_position_in_a_backlog(self) -> None:
        self._fill_backlog()
        self._goes_on(at_most=1_000)

    def _goes_on(self, *, at_most: int) -> None:
        with self._reading(at_most=at_most) as first:
            first.until_given(self._count)
        self._check_values(first.values)
        places = list({place.values: place for place in first.places}.values())
        for place in places[:: max(1, len(places) // PLACES)]:
            with self._reading(place.positions, at_most=at_most) as again:
                again.until_given(self._count - place.values)
                again.poll()
            self._check_rest(first, place, again)

    def test_a_second_run_goes_on_after_the_first(self) -> None:
        self._fill()
        with self._reading(at_most=2, confirms=True) as first:
            first.until_given(self._count // 2)
            first.confirm()
        second = self._read_all(first.positions)
        self._check_values(first.values + second.values)
        third = self._read_all(second.positions)
        assert third.values == [], f"nothing is left after {second.positions}; values up to a position must not be given again"

    @_only(lambda cls: not cls.bounded)
    def test_what_comes_while_it_is_stopped_is_given_by_the_next_run(self) -> None:
        self._fill()
        first = self._read_all()
        self._fill()
        self._check_values(first.values + self._read_all(first.positions).values)

    # What comes later, and what does not.

    @_only(lambda cls: not cls.bounded)
    def test_what_comes_while_it_is_open_is_given(self) -> None:
        with self._reading(confirms=True) as reading:
            reading.reach()
            for _ in range(3):
                self._fill(2)
                reading.until_given(self._count)
        self._check_values(reading.values)

    @_only(lambda cls: not cls.bounded)
    def test_a_poll_without_news_returns_in_time(self) -> None:
        self._fill(1)
        with self._reading(confirms=True) as reading:
            reading.until_given(self._count)
            for timeout in (0.0, 0.1):
                begun = time.monotonic()
                reading.poll(timeout)
                assert time.monotonic() - begun < SOON, "poll must return when its timeout is over: a stop of the run waits for it"
            assert len(reading.values) == self._count, "poll gave values that are not there"
            assert not reading.ended, "ended() must be False until finish() is called: more may come"

    @_only(lambda cls: not cls.bounded)
    def test_finish_takes_what_there_is_and_ends(self) -> None:
        self._fill()
        with self._reading(confirms=True) as reading:
            reading.finish()
            reading.until_ended()
        self._check_values(reading.values)

    @_only(lambda cls: cls.bounded)
    def test_it_ends_by_itself(self) -> None:
        self._fill()
        with self._reading(confirms=True) as reading:
            reading.until_ended()
            assert reading.open().is_complete(), "is_complete() must be True of a bounded source that was read to its own end"
        self._check_values(reading.values)
        left = self.make().left_over(self._context(reading.positions, finished=True))
        assert left is None, f"left_over() must be None where nothing came since; it is {left!r}"

    def test_closing_does_not_wait_for_what_is_unread(self) -> None:
        self._fill(10 * FEW)
        for polls in (0, 1):
            with self._reading(at_most=1) as reading:
                reading.reach()
                for _ in range(polls):
                    reading.poll()
                begun = time.monotonic()
                reading.close()
                assert time.monotonic() - begun < SOON, "close must not wait for what is unread, nor for its system"

    def test_one_thread_reads_while_others_ask(self) -> None:
        self._fill()
        with ThreadPoolExecutor(1) as thread:
            reading = SourceReading(self.make(), self._context(), confirms=True)

            def read() -> None:
                with closing(reading):
                    reading.until_given(self._count)

            done = thread.submit(read)
            while not done.done():
                if (reader := reading.reader) is not None:
                    assert all(isinstance(count, int) for count in reader.lag().values()), "lag() gives a number by partition"
                    assert reader.trouble is None or isinstance(reader.trouble, str), "trouble is text, or None"
                time.sleep(0.001)
            done.result()

    @_only(lambda cls: cls.tells_lag)
    def test_lag_tells_of_partitions_with_unread_values(self) -> None:
        self._fill()
        with self._reading(at_most=2) as reading:
            names = {name for name, count in reading.reach().lag().items() if count > 0}
            assert len(names) == self.partitions, f"after open, lag() must tell of each partition with unread values; it tells of {names}"
            while len(reading.values) < self._count:
                given = {name: len(values) for name, values in by_partition(reading.values).items()}
                unread = {name for name in names if given.get(name, 0) < FEW}
                lag = reading.reach().lag()
                silent = {name for name in unread if lag.get(name, 0) <= 0}
                assert not silent, (
                    f"partitions {silent} have values that were not given; lag() must say so, or the low watermark passes them"
                )
                reading.until_given(len(reading.values) + 1)
            assert set(by_partition(reading.values)) == names, "lag() and batches must call partitions by the same names"
            reading.until(lambda: not any(reading.reach().lag().values()), "lag() must go to nothing when all is given")

    # What lanes read.

    @_only(lambda cls: cls.backlog is not None)
    def test_lanes_read_a_backlog(self) -> None:
        self._fill_backlog()
        reading = self._read_all(at_most=1_000)
        assert reading.pieces, f"{self._count} values made no piece; set `backlog` in the test to as many as are read by lanes"
        self._check_values(reading.values)

    @_only(lambda cls: cls.backlog is not None)
    def test_a_piece_read_again_gives_the_same(self) -> None:
        """By the same lane and by another one, in larger batches and in smaller ones."""
        self._fill_backlog()
        pieces, context = self._read_all(at_most=1_000).pieces[-3:], self._context()
        with closing(travelled(self.make()).piece_reader(context)) as lane:
            first, small, again = ([_content(lane, piece, at_most) for piece in pieces] for at_most in (1_000, 7, 1_000))
        others = list[Any]()
        for piece in reversed(pieces):
            with closing(travelled(self.make()).piece_reader(context)) as other:
                others.insert(0, _content(other, piece, 1_000))
        assert first == small == again == others, "a piece must give the same values, ids and positions each time, whoever reads it"

    # What breaks.

    @_only(_says("cut_off"))
    def test_one_that_cannot_be_reached_is_waited_for(self) -> None:
        self._fill()
        self.cut_off()
        with suppress(Unreachable):  # as it may say
            self.make().check(self._context())
        with self._reading(confirms=True) as reading:
            self._is_said(reading)
            self.reconnect()
            reading.until_given(self._count)
            self._check_values(reading.values)

    @_only(lambda cls: _says("cut_off")(cls) and cls.backlog is not None)
    def test_a_lane_reads_a_piece_again_after_a_break(self) -> None:
        self._fill_backlog()
        piece = self._read_all(at_most=1_000).pieces[-1]
        with closing(travelled(self.make()).piece_reader(self._context())) as lane:
            before = _content(lane, piece, 1_000)
            self.cut_off()
            with suppress(Unreachable):  # if it does not have it at hand
                assert _content(lane, piece, 1_000) == before, "raise ms.Unreachable where a piece cannot be read, and give nothing less"
            self.reconnect()
            after = eventually(lambda: _content(lane, piece, 1_000))
            assert after == before, (
                "a piece reader is made once: after a break it must connect anew by itself, and read the piece as before"
            )

    @_only(lambda cls: _says("cut_off")(cls) and not cls.bounded)
    def test_a_break_loses_nothing_and_repeats_nothing(self) -> None:
        self._fill()
        with self._reading(confirms=True) as reading:
            reading.until_given(self._count)
            self.cut_off()
            self._is_said(reading)
            self.reconnect()
            self._fill()
            reading.until_given(self._count)
            reading.finish()
            reading.until_ended()
        self._check_values(reading.values)


def _content(reader: PieceReader, piece: Piece, at_most: int) -> tuple[list[ReadValue], dict[str, Position]]:
    values: list[ReadValue] = []
    positions: dict[str, Position] = {}
    for batch in checked(reader.read(piece, at_most), at_most):
        values += values_of(batch)
        positions.update(batch.positions)
    return values, positions
