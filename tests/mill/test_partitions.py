"""Partitions of a source: which of them hold the promise, which are silent, and which are read first."""

from __future__ import annotations

from millstream.core.ledger import SourceProgress
from millstream.core.low_watermark import Mark
from millstream.mill.actions import Fed
from millstream.mill.offered import Offered
from millstream.timestamp import END_OF_TIME, START_OF_TIME
from tests.conformance.scenes import at
from tests.mill.desk import Desk, graph_of
from tests.mill.parted import IDLE, deafen, given, house, offer, piece, promise, read, speak, unread

MB = 1 << 20


# What holds the promise.


def test_a_partition_that_is_unread_and_has_no_mark_holds_the_promise_until_it_has_one() -> None:
    desk = house()
    unread(desk, "b")
    speak(desk, a=50)
    assert promise(desk) == START_OF_TIME
    speak(desk, b=5)
    assert promise(desk) == at(5), "from now on it counts as any other, unread or not"
    speak(desk, b=60)
    assert promise(desk) == at(50)


def test_one_that_turns_out_to_have_nothing_holds_no_longer() -> None:
    desk = house()
    unread(desk, "b")
    speak(desk, a=50)
    unread(desk)
    assert promise(desk) == at(50)


def test_a_promise_that_was_made_stays_where_it_is() -> None:
    desk = house()
    speak(desk, a=50)
    assert promise(desk) == at(50)
    unread(desk, "b")
    speak(desk, a=90)
    assert promise(desk) == at(50)


def test_what_tells_apart_more_within_a_partition_is_its_mark_too() -> None:
    desk = house()
    unread(desk, "topic/0", "topic/1")
    desk.act(desk.planner.on_fed(Fed("events", [], {"topic/0/anna": at(5)}), desk.now))
    assert promise(desk) == START_OF_TIME
    desk.act(desk.planner.on_fed(Fed("events", [], {"topic/1/bert": at(9)}), desk.now))
    assert promise(desk) == at(5)


def test_a_piece_that_waits_holds_as_what_was_not_given_does() -> None:
    desk = Desk(graph_of(low_watermark=IDLE))  # and no lane is there to read it
    offer(desk, piece("b", "b0"))
    speak(desk, a=50)
    assert promise(desk) == START_OF_TIME


def test_nor_is_anything_promised_by_the_epoch_that_reads_it() -> None:
    desk = Desk(graph_of(low_watermark=IDLE))
    offer(desk, piece("b", "b0"))
    speak(desk, a=50)
    desk.join(0)
    assert given(desk) == ["b0"]
    desk.report(0, read=[read("b", 1, upto=5)])
    assert desk.commits[-1].promises == {}
    assert promise(desk) == at(5)


def test_what_is_aborted_holds_again() -> None:
    desk = house()
    offer(desk, piece("b", "b0"), piece("b", "b1"))
    speak(desk, a=50)
    for _ in range(2):
        desk.lose(0)
        desk.join(0)
    assert promise(desk) == START_OF_TIME
    assert given(desk) == ["b0", "b1"]


def test_one_that_ended_holds_nothing() -> None:
    desk = house()
    unread(desk, "b")
    desk.act(desk.planner.on_fed(Fed("events", [], {"a": at(50)}, finished=True), desk.now))
    assert promise(desk) == END_OF_TIME


def test_whoever_is_deaf_has_what_it_had() -> None:
    desk = house()
    unread(desk, "b")
    deafen(desk)
    speak(desk, a=50)
    assert promise(desk) == START_OF_TIME
    unread(desk, "b")
    assert promise(desk) == START_OF_TIME
    unread(desk)
    assert promise(desk) == at(50)


def test_a_start_promises_nothing_more_before_it_has_heard_what_is_unread() -> None:
    desk = house()
    unread(desk, "b")
    speak(desk, a=50)
    again = house(desk)
    again.tick(1.0)
    assert promise(again) == START_OF_TIME
    deafen(again)
    assert promise(again) == START_OF_TIME
    unread(again, "b")
    assert promise(again) == START_OF_TIME
    speak(again, b=5)
    assert promise(again) == at(5)


def test_a_start_waits_for_nobody_who_will_say_nothing() -> None:
    """Spark's queries have no positions; and what has ended is not opened."""
    desk = house()
    desk.disk_waits = True
    desk.act(desk.planner.on_fed(Fed("events", [], {"": at(50)}, batch=0), desk.now))
    desk.ledger.apply(desk.commits[-1])
    again = house(desk)
    assert promise(again) == at(50)
    again.act(again.planner.on_fed(Fed("events", [], {}, positions={"": 7}), again.now))
    again.disk_waits = True
    again.act(again.planner.on_fed(Fed("events", [], {}, finished=True), again.now))
    again.ledger.apply(again.commits[-1])
    assert promise(house(again)) == END_OF_TIME


# Who is silent.


def test_one_partition_falls_silent_while_another_has_a_backlog() -> None:
    desk = house()
    speak(desk, a=5, b=7, c=90)
    unread(desk, "b")
    for _ in range(12):
        desk.tick(1.0)
    speak(desk, c=95)
    assert promise(desk) == at(7), "a is left out, and b is not"
    unread(desk)
    desk.tick(9.9)
    assert promise(desk) == at(7)
    desk.tick(0.2)
    speak(desk, c=96)
    assert promise(desk) == at(96)


def test_what_waits_for_lanes_is_not_silent_however_long_the_epoch_before_it_takes() -> None:
    desk = house()
    speak(desk, a=5, c=90)
    desk.feed()
    offer(desk, piece("a", "a0"))
    desk.tick(30.0)  # so long
    assert given(desk) == []
    desk.report(0)
    assert given(desk) == ["a0"]
    desk.report(0, read=[read("a", 1, upto=6)])
    assert promise(desk) == at(6)


def test_nor_is_any_partition_of_an_injector_whose_source_has_none() -> None:
    """What waits may hold something of each."""
    desk = house()
    speak(desk, a=5, c=90)
    desk.feed()
    offer(desk, piece("", "0"))
    desk.tick(30.0)
    desk.report(0)
    desk.report(0, read=[Fed("events", [], {"c": at(95)}, 1, pieces=1)])
    assert promise(desk) == at(5)


def test_whoever_is_deaf_is_never_silent() -> None:
    desk = house()
    speak(desk, a=5, c=90)
    deafen(desk)
    for _ in range(10):
        desk.tick(9.0)
    unread(desk)
    speak(desk, c=95)
    desk.tick(9.0)
    assert promise(desk) == at(5), "it may speak again now that it is heard"
    speak(desk, c=96)
    desk.tick(1.1)
    assert promise(desk) == at(96)


def test_nor_in_an_epoch_that_takes_longer_than_it_was_deaf() -> None:
    """Nobody looks at the clock in between."""
    desk = house()
    speak(desk, a=5, c=90)
    desk.feed()
    deafen(desk)
    desk.tick(30.0)
    unread(desk)
    speak(desk, c=95)
    desk.report(0)
    assert promise(desk) == at(5)


def test_what_was_unread_until_now_is_silent_from_now_on_and_not_forgotten() -> None:
    desk = house()
    speak(desk, a=5, c=90)
    unread(desk, "a")
    desk.feed()
    desk.tick(30.0)
    speak(desk, c=95)
    unread(desk)  # there was nothing for anybody in it
    desk.report(0)
    assert promise(desk) == at(5)
    desk.tick(9.0)
    speak(desk, c=96)
    desk.tick(1.1)
    assert promise(desk) == at(96)


# Who is read first.


def taken(offered: Offered, sources: dict[str, SourceProgress], *, limit: int = 4 * MB) -> list[str]:
    return [each.range.content.decode() for each in offered.take(limit, {0}, sources, seconds=0.0)]


def progress(**marks: int) -> SourceProgress:
    return SourceProgress({name: Mark(at(second), at(0)) for name, second in marks.items()})


def test_the_partition_that_is_furthest_behind_is_read_first() -> None:
    offered = Offered(1, {}, at(0))
    offered.add(piece(name, f"{name}{n}", size=3 * MB) for n in range(2) for name in "abc")
    known = progress(a=9, b=5)
    assert taken(offered, {"events": known}) == ["c0"], "of which nothing is known"
    known.marks["c"] = Mark(at(7), at(0))
    assert taken(offered, {"events": known}) == ["b0"]
    known.marks["b"] = Mark(at(8), at(0))
    assert taken(offered, {"events": known}) == ["c1"]


def test_in_one_epoch_each_has_its_turn() -> None:
    offered = Offered(1, {}, at(0))
    offered.add(piece(name, f"{name}{n}") for n in range(2) for name in "ab")
    assert taken(offered, {"events": progress(a=9, b=5)}) == ["b0", "a0", "b1", "a1"]


def test_what_another_injector_reads_is_no_turn_of_a_partition_with_the_same_name() -> None:
    offered = Offered(1, {}, at(0))
    offered.add([piece("0", "x0", injector="x"), piece("0", "y0", injector="y"), piece("1", "y1", injector="y")])
    found = taken(offered, {"y": SourceProgress({"0": Mark(at(1), at(0)), "1": Mark(at(9), at(0))})})
    assert found == ["x0", "y0", "y1"]


def test_a_partition_has_come_as_far_as_the_least_that_its_injector_tells_apart_in_it() -> None:
    offered = Offered(1, {}, at(0))
    offered.add([piece("a", "a0"), piece("b", "b0")])
    marks = {"a/x": Mark(at(7), at(0)), "a/y": Mark(at(8), at(0)), "b/x": Mark(at(6), at(0)), "b/y": Mark(at(99), at(0))}
    assert taken(offered, {"events": SourceProgress(marks)}) == ["b0", "a0"]


def test_an_abort_gives_back_in_order() -> None:
    offered = Offered(1, {}, at(0))
    offered.add(piece(name, f"{name}{n}") for n in range(3) for name in "ab")
    first = offered.take(4, {0}, {}, seconds=0.0)
    assert [each.range.content for each in first] == [b"a0", b"b0", b"a1", b"b1"]
    offered.give_back(first)
    assert taken(offered, {}) == ["a0", "b0", "a1", "b1", "a2", "b2"]
