"""Ranges of sources: which lane reads them in which epoch, and what of it is committed."""

from __future__ import annotations

import msgspec

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.parts import NO_LANE, Frame, Part
from millstream.mill.actions import End, Fed
from millstream.mill.messages import Failed, Range, Work
from tests.conformance.scenes import Obedient, at, inject
from tests.mill.desk import Desk

MB = 1 << 20


def ranges(*sizes: int, lane: int | None = None, injector: str = "events") -> list[Range]:
    return [Range(injector, n if lane is None else lane, size, f"{n}".encode()) for n, size in enumerate(sizes)]


def partitioned_desk() -> Desk:
    """Two partitions have spoken, of which one that is silent for a second is left out. No lane is there."""
    topology = ms.Topology("desk")
    policy = ms.BoundedDisorder(ms.SECOND, idle_after=ms.SECOND)
    topology.compute("it", Obedient()).reads(inject(topology, low_watermark=policy))
    desk = Desk(compile_topology(topology))
    desk.act(desk.planner.on_fed(Fed("events", [], {"slow": at(1), "quick": at(9)}), desk.now))
    return desk


def offer(desk: Desk, *sizes: int, lane: int | None = None) -> None:
    desk.act(desk.planner.on_offered(ranges(*sizes, lane=lane), desk.now))


def given(desk: Desk, lane: int) -> list[str]:
    return [each.content.decode() for each in desk.last(lane, Work).ranges]


def read(position: int, *frames: Frame, upto: int | None = None, records: int = 1) -> Fed:
    marks = {} if upto is None else {"": at(upto)}
    return Fed("events", list(frames), marks, records, positions={"at": position})


def frame(lane: int, offset: int = 0, *, of: int = 0) -> Frame:
    return Frame(f"lane{lane}", lane, [Part(offset, 10, 0, of, "events", "", "events", 0, 1, at(1))])


def test_ranges_go_to_their_lanes_and_what_was_read_waits_for_the_next_epoch(desk: Desk) -> None:
    offer(desk, 10, 20)
    assert (given(desk, 0), given(desk, 1)) == (["0"], ["1"])
    desk.report(0, read=[read(1, frame(0))])
    assert not desk.commits
    desk.report(1, read=[read(2, frame(1, of=1), upto=5)])
    commit = desk.commits[0]
    assert (commit.sources["events"].injected, commit.sources["events"].positions) == (2, {"at": 2})
    assert desk.planner.ledger.promises["events"] == ms.START_OF_TIME, "a promise never rests on what is not committed"
    first, second = desk.last(0, Work), desk.last(1, Work)
    assert first.header.epoch == second.header.epoch == commit.number + 1
    assert [part.part.stream for part in (*first.given, *second.given)] == ["events", "events"]
    assert not first.ranges
    desk.report(0)
    desk.report(1)
    assert desk.planner.ledger.promises["events"] == at(5)
    assert desk.planner.idle


def test_positions_go_by_the_order_of_the_ranges_not_of_the_reports(desk: Desk) -> None:
    offer(desk, 1, 1, 1)
    desk.report(1, read=[read(2)])
    desk.report(0, read=[read(1), read(3)])
    assert desk.commits[-1].sources["events"].positions == {"at": 3}


def test_an_epoch_reads_a_bounded_amount_and_at_least_one_range(desk: Desk) -> None:
    offer(desk, 20 * MB, 3 * MB, 3 * MB, 3 * MB, lane=0)
    assert given(desk, 0) == ["0"]
    desk.report(0, read=[read(1)])
    assert given(desk, 0) == ["1", "2"]


def test_a_lane_that_is_away_reads_nothing_and_another_reads_for_it() -> None:
    desk = Desk()
    desk.act(desk.planner.on_offered(ranges(1, 1), desk.now))
    assert not desk.planner.idle
    desk.join(1)
    assert given(desk, 1) == ["0", "1"]


def test_a_lane_that_is_lost_reads_its_ranges_again_and_nobody_else_does(desk: Desk) -> None:
    offer(desk, 1, 1)
    desk.report(1, read=[read(2)])
    desk.lose(0)
    desk.join(0)
    assert given(desk, 0) == ["0"]
    assert len(desk.heard(1, Work)) == 1
    desk.report(0, read=[read(1)])
    assert desk.commits[-1].sources["events"].positions == {"at": 2}


def test_what_an_aborted_epoch_was_to_read_stands_first_again(desk: Desk) -> None:
    offer(desk, 3 * MB, 3 * MB, 3 * MB, lane=0)
    assert given(desk, 0) == ["0", "1"]
    for _ in range(2):
        desk.lose(0)
        desk.join(0)
    assert given(desk, 0) == ["0"], "with half as much"
    desk.report(0, read=[read(1)])
    assert given(desk, 0)[0] == "1"


def test_a_single_range_that_kills_its_lane_ends_the_run(desk: Desk) -> None:
    offer(desk, 1)
    desk.lose(0)
    desk.join(0)
    assert isinstance(desk.lose(0)[-1], End)


def test_a_value_that_is_refused_ends_the_run_and_nothing_is_committed(desk: Desk) -> None:
    offer(desk, 1, 1)
    desk.report(1, read=[read(2)])
    run, connection = desk.last(0, Work), desk.sitting[0]
    failed = Failed(run.header.epoch, run.try_number, "RecordError", "injector 'events', value x: no")
    actions = desk.act(desk.planner.on_failed(connection, failed, desk.now))
    assert End("RecordError", "injector 'events', value x: no") in actions
    assert not desk.commits


def test_nothing_is_read_while_too_much_waits() -> None:
    desk = Desk(backlog_records=2, max_records=1)
    desk.join(0)
    desk.feed(1, parts=3)
    offer(desk, 1)
    assert given(desk, 0) == [], "two of three wait still"
    desk.report(0)
    desk.report(0)
    assert given(desk, 0) == ["0"]


def test_a_source_is_read_though_others_fill_the_backlog_all_the_time() -> None:
    topology = ms.Topology("desk")
    quick, slow = inject(topology, name="quick"), inject(topology, name="events")
    topology.compute("it", Obedient()).reads(quick, slow)
    desk = Desk(compile_topology(topology), lanes=1, backlog_records=2, max_records=1)
    desk.join(0)

    def fill() -> None:
        parts = [Part(next(desk.offsets), 10, 0, 0, "quick", "", "quick", 0, 1, at(1)) for _ in range(3)]
        desk.act(desk.planner.on_fed(Fed("quick", [Frame("values", NO_LANE, parts)], {}, 3), desk.now))

    fill()
    offer(desk, 1, 1)
    desk.report(0)
    assert given(desk, 0) == ["0", "1"]
    desk.report(0, read=[read(n, frame(0, 10_000 + n)) for n, _ in enumerate(given(desk, 0))])
    fill()
    offer(desk, 1)
    desk.report(0)
    assert given(desk, 0) == [], "what it has read waits still: it is not read further"


def test_a_partition_is_not_silent_while_something_of_its_source_is_unread() -> None:
    desk = partitioned_desk()
    offer(desk, 1)  # and no lane is there to read it
    desk.tick(5.0)
    assert desk.planner.ledger.low_watermarks["it"].input == at(1)
    desk.join(0)
    desk.report(0, read=[read(1)])
    desk.tick(5.0)
    assert desk.planner.ledger.low_watermarks["it"].input == at(1), "if all are silent, the last promise stays"
    desk.act(desk.planner.on_fed(Fed("events", [], {"quick": at(10)}), desk.now))
    assert desk.planner.ledger.low_watermarks["it"].input == at(10)


def test_what_was_read_is_taken_in_the_order_of_the_ranges_whichever_lane_read_it(desk: Desk) -> None:
    """Also by a planner that starts with what waits, and after an abort."""
    desk.planner.settings = msgspec.structs.replace(desk.planner.settings, max_records=1)
    offer(desk, 1, 1, 1, 1)
    frames = [Frame(f"lane{n % 2}", n % 2, [Part(100 * n, 10, 0, 0, "events", "", "events", 0, 1, at(n))]) for n in range(4)]
    desk.report(1, read=[read(2, frames[1]), read(4, frames[3])])
    desk.report(0, read=[read(1, frames[0]), read(3, frames[2])])

    def next_second(desk: Desk) -> int:
        (given,) = desk.last(0, Work).given
        return given.part.offset // 100

    assert next_second(desk) == 0
    for _ in range(2):
        desk.lose(0)
        desk.join(0)
    assert next_second(desk) == 0
    again = Desk(ledger=desk.planner.ledger, max_records=1)
    again.join(0)
    seconds = []
    for _ in range(4):
        seconds.append(next_second(again))
        again.report(0)
    assert seconds == [0, 1, 2, 3]


def test_no_source_waits_for_ever_behind_others(desk: Desk) -> None:
    for name in "abc":
        desk.planner.offered.add(ranges(*[3 * MB] * 5, injector=name))
    seen = [{assigned.range.injector for assigned in desk.planner.offered.take(4 * MB, {0}, {}, seconds=0.0)} for _ in range(3)]
    assert set().union(*seen) == {"a", "b", "c"}


def test_an_epoch_of_a_part_and_a_range_that_is_too_large_becomes_smaller_and_then_ends_the_run() -> None:
    desk = Desk(max_records=1)
    desk.join(0)
    offer(desk, 1, 1)
    desk.feed(1, parts=3)
    desk.report(0, read=[read(1), read(2)])
    offer(desk, 1)
    for _ in range(10):
        run = desk.last(0, Work)
        failed = Failed(run.header.epoch, run.try_number, "MemoryError", "too large")
        actions = desk.act(desk.planner.on_failed(desk.sitting[0], failed, desk.now))
        if isinstance(actions[-1], End):
            return
        desk.join(0)
    raise AssertionError("it is tried for ever")


def test_silence_is_not_counted_while_an_epoch_reads() -> None:
    desk = partitioned_desk()
    desk.join(0)
    offer(desk, 1)
    desk.tick(5.0)  # the lane reads for so long
    desk.report(0, read=[Fed("events", [], {"quick": at(50)}, 1, positions={"at": 1})])
    desk.tick(0.1)
    assert desk.planner.ledger.low_watermarks["it"].input == at(1)


def test_a_partition_falls_silent_though_others_of_its_source_are_read_all_the_time() -> None:
    desk = partitioned_desk()
    desk.join(0)
    for second in range(10, 14):
        desk.tick(0.4)
        offer(desk, 1)
        desk.report(0, read=[Fed("events", [], {"quick": at(second)}, 1, positions={"at": second})])
    desk.tick(0.1)
    assert desk.planner.ledger.low_watermarks["it"].input >= at(11)


def test_a_stop_reads_no_more(desk: Desk) -> None:
    offer(desk, 3 * MB, 3 * MB, 3 * MB, lane=0)
    desk.act(desk.planner.on_stop(desk.now))
    desk.report(0, read=[read(2), read(2)])
    assert len(desk.heard(0, Work)) == 1
