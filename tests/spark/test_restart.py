"""Stopping, going on, and changing the code in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

import millstream as ms
from millstream.mill.driver_messages import Question, Seats, SeatSeen
from tests.spark.clicks import Click, Count, T, click, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


class Tens(ms.Computation[int]):
    """Counts tens instead of ones: changed code on the same state."""

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 10
        self.counts.produce(self.state, timestamp=record.timestamp)


class Pages(ms.Computation[list[str]]):
    seen: ms.Output[list[str]]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state.append(record.value.page)
        self.seen.produce(self.state, timestamp=record.timestamp)


def inject(topology: ms.Topology, folder: Path, name: str = "clicks", *, bounded: bool = False) -> ms.Stream[Click]:
    folder.mkdir(exist_ok=True)
    return topology.inject(
        name,
        ms.files(f"{folder}/*.jsonl", Click, bounded=bounded),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )


def topology_of(folder: Path, out: Path, **computations: ms.Computation[object]) -> ms.Topology:
    topology = ms.Topology("changing")
    clicks = inject(topology, folder)
    for name, computation in computations.items():
        topology.compute(name, computation).reads(clicks)  # type: ignore[arg-type]
        (output,) = type(computation)._outputs
        topology.deliver(name, getattr(computation, output), ms.delta(str(out / name)))
    return topology


def values(out: Path, name: str) -> list[tuple[str, object]]:
    rows = DeltaTable(str(out / name)).to_pyarrow_table().to_pylist()
    return sorted((row["key"], row["value"]) for row in rows)


def received(run: ms.Run, computation: str) -> int:
    return run.status().computations[computation].tally.received


def joined(run: ms.Run) -> list[tuple[int, int]]:
    """Of every lane, once all are there: the epoch of the state that it came with, and the rows that it had to redo."""

    def lanes() -> list[SeatSeen]:
        seats = run._mill.planner.ask(Question.SEATS)
        assert isinstance(seats, Seats)
        return seats.lanes

    wait_until(lambda: all(lane.process for lane in lanes()))
    return [(lane.epoch, lane.changed) for lane in lanes()]


def test_after_a_clean_stop_nothing_is_redone_and_after_any_other_what_is_missing(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder, out = tmp_path / "clicks", tmp_path / "out"
    first = started(topology_of(folder, out, count=Count()))
    assert joined(first) == [(0, 0)]
    write_lines(folder / "1.jsonl", [click("anna", 1), click("bert", 2), click("carl", 3)])
    wait_until(lambda: received(first, "count") == 3)
    first.stop()

    second = started(topology_of(folder, out, count=Count()))
    ((epoch, redone),) = joined(second)
    assert (epoch > 0, redone) == (True, 0)
    write_lines(folder / "2.jsonl", [click("anna", 4), click("bert", 5)])
    wait_until(lambda: received(second, "count") == 5)
    second._end()  # as after a crash: no lane was told to checkpoint

    third = started(topology_of(folder, out, count=Count()))
    assert joined(third) == [(epoch, 2)]  # the rows of anna and bert
    write_lines(folder / "3.jsonl", [click("anna", 6), click("carl", 7)])
    third.drain()
    assert values(out, "count") == [("anna", 1), ("anna", 2), ("anna", 3), ("bert", 1), ("bert", 2), ("carl", 1), ("carl", 2)]


def test_computations_come_go_and_change_and_the_others_go_on(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder, out = tmp_path / "clicks", tmp_path / "out"

    def turn(number: int, **computations: ms.Computation[object]) -> None:
        write_lines(folder / f"{number}.jsonl", [click("anna", number, f"/{number}")])
        started(topology_of(folder, out, **computations)).drain()

    turn(1, count=Count(), pages=Pages())
    turn(2, count=Count(), pages=Pages(), other=Count())  # one more
    turn(3, count=Tens(), pages=Pages())  # one gone, one changed
    turn(4, count=Tens(), other=Count())  # one back, another gone
    assert values(out, "count") == [("anna", 1), ("anna", 2), ("anna", 12), ("anna", 22)]
    assert values(out, "pages") == [("anna", ["/1"]), ("anna", ["/1", "/2"]), ("anna", ["/1", "/2", "/3"])]
    assert values(out, "other") == [("anna", 1), ("anna", 2)]  # it was not there for /3, and kept its state meanwhile


def test_injectors_come_and_go_and_what_has_ended_stays_ended(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    def turn(*names: str, bounded: bool = False) -> ms.Status:
        topology, count = ms.Topology("inputs"), Count()
        streams = [inject(topology, tmp_path / name, name, bounded=bounded and name == "more") for name in names]
        topology.compute("count", count).reads(*streams)
        topology.deliver("counts", count.counts, ms.delta(str(tmp_path / "out")))
        run = started(topology)
        run.drain()
        return run.status()

    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1)])
    write_lines(tmp_path / "more" / "1.jsonl", [click("bert", 1)])
    turn("clicks", "more")
    write_lines(tmp_path / "clicks" / "2.jsonl", [click("anna", 2)])
    write_lines(tmp_path / "more" / "2.jsonl", [click("bert", 2)])
    gone = turn("clicks")  # one gone
    assert set(gone.injectors) == {"clicks"}
    back = turn("clicks", "more", bounded=True)  # and back, to its end
    assert back.injectors["more"].injected == 2
    assert back.injectors["more"].finished
    write_lines(tmp_path / "more" / "3.jsonl", [click("bert", 3)])
    after = turn("clicks", "more")
    assert after.injectors["more"].injected == 2
    assert after.injectors["more"].finished
    assert not after.injectors["clicks"].finished
    assert values(tmp_path, "out") == [("anna", 1), ("anna", 2), ("bert", 1), ("bert", 2)]


def test_overdue_wall_clock_timers_fire_after_a_restart_and_by_themselves(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    class Egg(ms.Computation[None]):
        done: ms.Output[str]

        def process_record(self, record: ms.Record[Click]) -> None:
            self.set_timer(record.value.page, at=self.now + int(record.value.page) * ms.SECOND, clock=ms.Clock.WALL)

        def process_timer(self, timer: ms.Timer) -> None:
            self.done.produce(timer.tag, timestamp=T)

    folder = tmp_path / "clicks"
    write_lines(folder / "1.jsonl", [click("anna", 0, "0"), click("anna", 0, "4"), click("anna", 0, "3600")])
    first = started(topology_of(folder, tmp_path / "out", egg=Egg()))
    wait_until(lambda: received(first, "egg") == 3)
    first.stop()
    second = started(topology_of(folder, tmp_path / "out", egg=Egg()))
    wait_until(lambda: second.status().computations["egg"].tally.fired == 2)
    assert second.status().computations["egg"].timers == 1
    second.drain()
    assert [value for _, value in values(tmp_path / "out", "egg")] == ["0", "4"]


def test_a_second_run_on_the_same_folder_is_refused(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    run = started(topology_of(tmp_path / "clicks", tmp_path / "out", count=Count()))
    with pytest.raises(ms.FolderBusy, match="another run holds"):
        started(topology_of(tmp_path / "clicks", tmp_path / "out", count=Count()))
    assert run.status().running
    run.stop()
    assert not run.status().running
