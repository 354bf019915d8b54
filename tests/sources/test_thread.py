"""The thread of a source: batches and pieces in one order, what is told before anything is fed, and a source that is out of reach."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping

import pytest

import millstream as ms
from millstream.core.ledger import Commit, SourceChange
from millstream.source import Batch, SourceContext, SourceReader
from millstream.sources import thread as thread_module
from tests.sources.scripted import Door, Scripted, ScriptedReader, Step, batch, gone, piece, waits_for_lanes
from tests.sources.test_values import TIMEOUT, T
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "POLL_TIMEOUT", 0.01)
    monkeypatch.setattr(thread_module, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(thread_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(thread_module, "LONGEST_PAUSE", 0.004)


# One order.


def test_batches_of_one_look_go_together_and_pieces_in_between_keep_their_place() -> None:
    source = Scripted([batch(0, 2), batch(0, 3, "b"), piece("one"), piece("two", "b"), batch(7)])
    door = Door(source).start()
    door.wait_for("offered", "two")
    assert door.passed_on == [("fed", {"a": 2, "b": 3}), ("offered", "one"), ("offered", "two")]
    door.commit(1, a=7)
    assert door.thread._pieces == 1
    assert len(door.passed_on) == 3, "one of two is read"
    door.commit(0, c=1)
    assert len(door.passed_on) == 3
    door.commit(1, b=9)
    door.ended()
    assert door.passed_on[3:] == [("fed", {"a": 8}), ("end", {"a": 8, "b": 9})]
    assert door.thread.error is None


def test_a_batch_of_a_later_look_waits_for_the_pieces_before_it_too() -> None:
    door = Door(Scripted([piece("one")], [piece("two")], [batch(9)])).start()
    wait_until(lambda: waits_for_lanes(door))
    assert door.passed_on == [("offered", "one"), ("offered", "two")]
    door.commit(2, a=9)
    assert door.ended().passed_on[2:] == [("fed", {"a": 10}), ("end", {"a": 10})]


def test_more_pieces_are_offered_while_others_are_not_read() -> None:
    door = Door(Scripted([piece("one")], [], [], [piece("two")])).start()
    door.wait_for("offered", "two")
    assert door.thread.is_alive(), "it ends when they are read"
    door.commit(2, a=9)
    assert door.ended().passed_on[-1] == ("end", {"a": 9})


# What is unread.


def test_what_is_unread_is_told_before_anything_is_fed_and_kept_until_it_is_passed_on() -> None:
    source = Scripted()

    def first() -> Step:
        source.lags = {"b": 3}
        return [batch(0)]

    def second() -> Step:
        source.lags = {"b": 0}
        return [batch(0, 3, "b")]

    source.steps, source.lags = [first, second], {"a": 1, "b": 3}
    door = Door(source).start().ended()
    assert door.said == [
        ("unread", None),  # before it is open
        ("unread", ["a", "b"]),
        ("fed", {"a": 1}),
        ("unread", ["b"]),
        ("fed", {"b": 3}),
        ("unread", []),
        ("end", {"a": 1, "b": 3}),
    ]


def test_what_was_given_in_steps_is_unread_until_the_last() -> None:
    door = Door(Scripted([piece("one"), batch(0, 1, "b")])).start()
    door.wait_for("offered", "one")
    assert door.said == [("unread", None), ("unread", []), ("unread", ["a", "b"]), ("offered", "one")]
    door.commit(1, a=5)
    assert door.ended().said[4:] == [("fed", {"b": 1}), ("unread", []), ("end", {"a": 5, "b": 1})]


def test_a_batch_that_waits_for_pieces_or_for_room_is_unread() -> None:
    door = Door(Scripted([piece("one")], [batch(0, 1, "b")])).start()
    door.wait_for("unread", ["b"])
    door.room.clear()
    door.commit(1, a=5)
    door.room.set()
    assert door.ended().passed_on[-1] == ("end", {"a": 5, "b": 1})
    crowded = Door(Scripted([batch(0, 1, "b")]))
    crowded.room.clear()
    crowded.start().wait_for("unread", ["b"])
    assert crowded.passed_on == []
    crowded.room.set()
    assert crowded.ended().said[-3:] == [("fed", {"b": 1}), ("unread", []), ("end", {"b": 1})]


def test_what_goes_at_once_is_not_told_first() -> None:
    """Two messages a slice would be half of all that the planner hears."""
    door = Door(Scripted([batch(0)], [batch(1)], [batch(2), batch(0, 1, "b")])).start().ended()
    assert [about for what, about in door.said if what == "unread"] == [None, []]


# Out of reach.


def test_a_source_that_cannot_be_reached_is_opened_later_warned_of_once_and_told_in_the_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream")
    there = threading.Event()

    class Away(Scripted):
        def open(self, context: SourceContext) -> SourceReader:
            self.tries = getattr(self, "tries", 0) + 1
            if not there.is_set():
                raise gone()
            return super().open(context)

    source = Away([batch(0)])
    door = Door(source).start()
    wait_until(lambda: getattr(source, "tries", 0) > 3)
    place = "injector 'clicks' waits: a script cannot be reached: no route"
    assert door.thread.trouble == place
    assert door.said == [("unread", None)]
    there.set()
    door.ended()
    assert door.thread.trouble is None
    assert [record.getMessage() for record in caplog.records] == [place, "injector 'clicks': a script is reached again"]
    assert door.passed_on == [("fed", {"a": 1}), ("end", {"a": 1})]


def test_one_that_opens_and_then_does_not_answer_is_one_trouble_and_waited_for_longer_and_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many a client opens without a word to the other side."""
    monkeypatch.setattr(thread_module, "LONGEST_PAUSE", 0.02)
    caplog.set_level(logging.INFO, "millstream")
    pauses: list[float] = []

    def away() -> Step:
        pauses.append(door.thread._pause)
        return gone()

    source = Scripted(away, away, away, [batch(0)], away)
    door = Door(source)
    door.start().ended()
    assert pauses[:3] == [0.001, 0.002, 0.004]
    assert pauses[3] == 0.001, "it had answered"
    assert source.closed == len(source.opened) == 5
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2


def test_it_goes_on_from_what_was_fed_and_from_what_lanes_have_read() -> None:
    source = Scripted([batch(0, 4), batch(2, 1, "b")], [piece("one", "b"), piece("two", "c")], gone(), [batch(4)])
    door = Door(source, positions={"b": 2, "d": 7}).start()
    wait_until(lambda: source.closed == 1)
    door.wait_for("unread", None)
    door.commit(0, a=4, b=3)
    door.commit(1, b=9)
    assert len(source.opened) == 1, "lanes are reading still"
    door.commit(1, c=5)
    door.ended()
    assert source.opened == [{"b": 2, "d": 7}, {"a": 4, "b": 9, "c": 5, "d": 7}]
    assert door.passed_on[-2:] == [("fed", {"a": 5}), ("end", {"a": 5, "b": 9, "c": 5, "d": 7})]


@pytest.mark.parametrize("method", ["ended", "confirm", "close"])
def test_whatever_says_that_it_is_out_of_reach_it_is_opened_anew(method: str) -> None:
    source = Scripted([batch(0)], [], [batch(1)] if method != "ended" else [])
    source.raises[method] = gone()
    door = Door(source)
    if method == "confirm":
        door.commit(0, a=1)
    door.start().ended()
    assert door.thread.error is None
    assert len(source.opened) == (1 if method == "close" else 2)
    if method == "confirm":
        assert source.confirmed == [{"a": 1}], "what could not be confirmed is confirmed by the next"
    assert door.passed_on[-1][0] == "end"


def test_what_was_given_as_it_went_out_of_reach_is_given_again() -> None:
    """Nothing of it was passed on, and so no position knows of it."""
    source = Scripted([batch(0)])
    lag, asked = ScriptedReader.lag, []

    def failing(reader: ScriptedReader) -> Mapping[str, int]:
        asked.append(1)
        if len(asked) == 2:  # after the first look
            source.steps = [[batch(0)]]
            raise gone()
        return lag(reader)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedReader, "lag", failing)
        door = Door(source).start().ended()
    assert door.passed_on == [("fed", {"a": 1}), ("end", {"a": 1})]


# The end.


def test_what_has_an_end_says_so_only_if_it_is_its_own() -> None:
    assert Door(Scripted([batch(0)])).start().ended().passed_on[-1] == ("end", {"a": 1})
    cut = Scripted([batch(0)])
    cut.complete = False
    assert Door(cut).start().ended().passed_on == [("fed", {"a": 1})]
    assert Door(Scripted([batch(0)], bounded=False)).start().ended().passed_on == [("fed", {"a": 1})]


def test_a_finish_takes_in_what_there_is_also_of_one_that_is_opened_anew() -> None:
    source = Scripted(ends=False)
    door = Door(source).start()
    wait_until(lambda: bool(source.opened))
    source.steps += [[batch(0)], gone(), [piece("one")]]
    door.thread.finish()
    door.wait_for("offered", "one")
    door.commit(1, a=5)
    door.ended()
    assert source.finished == 2, "each reader that was opened is told"
    assert door.passed_on[-1] == ("end", {"a": 5})


def test_commits_are_confirmed_with_all_that_they_have() -> None:
    source = Scripted(ends=False)
    door = Door(source).start()
    door.commit(0, a=1)
    wait_until(lambda: source.confirmed == [{"a": 1}])
    door.thread.on_commit(Commit(2, "d", "c", 1, ms.Timestamp(T), sources={"others": SourceChange(positions={"a": 9})}))
    door.thread.on_commit(Commit(3, "e", "d", 1, ms.Timestamp(T), sources={"clicks": SourceChange(injected=3)}))
    door.commit(0, a=2, b=1)
    wait_until(lambda: len(source.confirmed) == 2)
    assert source.confirmed[1] == {"a": 2, "b": 1}
    door.stopped()


# A stop waits for nothing.


def test_a_stop_while_there_is_no_room() -> None:
    door = Door(Scripted([batch(0)]))
    door.room.clear()
    door.start().wait_for("unread", ["a"])
    assert door.stopped().passed_on == []


def test_a_stop_while_lanes_read() -> None:
    door = Door(Scripted([piece("one"), batch(0)])).start()
    door.wait_for("offered", "one")
    assert door.stopped().passed_on == [("offered", "one")]


def test_a_stop_while_it_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "LONGEST_PAUSE", TIMEOUT)
    door = Door(Scripted(opens=[gone()] * 99))
    door.thread._pause = TIMEOUT
    door.start()
    wait_until(lambda: door.thread.trouble is not None)
    assert door.stopped().thread.error is None


def test_a_stop_while_it_waits_to_be_opened_anew() -> None:
    source = Scripted([piece("one")], gone())
    door = Door(source).start()
    wait_until(lambda: source.closed == 1)
    assert door.stopped().passed_on == [("offered", "one")]
    assert len(source.opened) == 1


# What it raises, and what it says.


def test_an_error_names_the_injector_and_shows_where_it_comes_from() -> None:
    def breaking() -> Step:
        raise KeyError("nothing here")

    source = Scripted([batch(0)], breaking)
    door = Door(source).start().ended()
    text = str(door.thread.error)
    assert isinstance(door.thread.error, ms.RecordError)
    assert text.startswith("injector 'clicks': KeyError: 'nothing here'\n\nTraceback")
    assert "in breaking" in text
    assert "millstream/sources/thread.py" not in text
    assert (source.closed, door.passed_on) == (1, [("fed", {"a": 1})])


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("moment", ["poll", "close"])
def test_a_source_that_exits_is_an_error_too(error: BaseException, moment: str) -> None:
    """What is no Exception would end the thread without a word, and the run would go on without this input."""

    def exiting(*_: object) -> Step:
        raise error

    source = Scripted([batch(0)], exiting) if moment == "poll" else Scripted([batch(0)])
    with pytest.MonkeyPatch.context() as patch:
        if moment == "close":
            patch.setattr(ScriptedReader, "close", exiting)
        door = Door(source).start().ended()
    assert str(door.thread.error).startswith(f"injector 'clicks': {type(error).__name__}: ")
    assert door.thread.error is not None
    assert door.thread.error.__cause__ is error


def test_an_error_of_ours_is_raised_as_it_is() -> None:
    error = ms.LogError("the records from 7 to 12 are gone")
    assert Door(Scripted(error)).start().ended().thread.error is error


def test_an_error_while_it_closes_is_told_unless_another_came_first() -> None:
    source = Scripted([batch(0)])
    source.raises["close"] = ValueError("twice")
    assert "ValueError: twice" in str(Door(source).start().ended().thread.error)
    both = Scripted(KeyError("first"))
    both.raises["close"] = ValueError("twice")
    assert "KeyError: 'first'" in str(Door(both).start().ended().thread.error)


def test_a_trouble_that_is_over_by_the_next_look_is_not_told_as_none() -> None:
    class Once(ScriptedReader):
        asked = 0

        @property
        def trouble(self) -> str | None:
            self.asked += 1
            return "it is slow" if self.asked == 1 else None

    door = Door(Scripted())
    door.thread._reader = Once(door.source)
    assert door.thread.trouble == "injector 'clicks': it is slow"
    assert door.thread.trouble is None


@pytest.mark.parametrize(
    ("values", "numbers", "columns", "why"),
    [
        (3, range(2), None, "3 values with 2 numbers"),
        (2, range(3), None, "2 values with 3 numbers"),
        (2, range(2), [{}], "2 values with 1 columns"),
    ],
)
def test_a_batch_of_unequal_lengths_is_refused_and_nothing_of_it_is_written(
    values: int, numbers: range, columns: list[dict[str, object]] | None, why: str
) -> None:
    whole = batch(1, values)
    door = Door(Scripted([batch(0)], [Batch(whole.values, numbers, {"a": 9}, "a", columns=columns)])).start().ended()
    assert str(door.thread.error) == f"injector 'clicks': a script gave a batch of {why}; there must be one for each value"
    assert door.passed_on == [("fed", {"a": 1})]
    assert len(door.writer.frames) == 1


def test_status_and_warnings_ask_the_reader() -> None:
    source = Scripted(ends=False)
    door = Door(source)
    assert (door.thread.trouble, door.thread.lag()) == (None, {})
    source.lags, source.says, source.left = {"a": 3}, "it is slow", "a thread of its own"
    door.start()
    wait_until(lambda: bool(door.thread.lag()))
    assert door.thread.trouble == "injector 'clicks': it is slow"
    assert door.stopped().thread.left_running == "a thread of its own"
