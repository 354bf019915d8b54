"""Stopping, going on, and changing the code in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import millstream as ms
from tests.kills import check_ledgers
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


def topology_of(folder: Path, out: Path, **computations: ms.Computation[object]) -> ms.Topology:
    topology = ms.Topology("changing")
    clicks = topology.inject(
        "clicks",
        ms.files(f"{folder}/*.jsonl", Click),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    for name, computation in computations.items():
        topology.compute(name, computation).reads(clicks)  # type: ignore[arg-type]
        (output,) = type(computation)._outputs
        topology.deliver(name, getattr(computation, output), ms.delta(str(out / name)))
    return topology


def values(out: Path, name: str) -> list[tuple[str, object]]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(out / name)).to_pyarrow_table().to_pylist()
    return sorted((row["key"], row["value"]) for row in rows)


def test_computations_come_go_and_change_and_the_others_go_on(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    folder, out = tmp_path / "clicks", tmp_path / "out"
    folder.mkdir()

    def turn(number: int, **computations: ms.Computation[object]) -> ms.Status:
        write_lines(folder / f"{number}.jsonl", [click("anna", number, f"/{number}")])
        run = started(topology_of(folder, out, **computations), partitions=2)
        run.drain()
        return run.status()

    turn(1, count=Count(), pages=Pages())
    turn(2, count=Count(), pages=Pages(), other=Count())  # one more
    turn(3, count=Tens(), pages=Pages())  # one gone, one changed
    status = turn(4, count=Tens(), other=Count())  # one back, another gone
    assert values(out, "count") == [("anna", 1), ("anna", 2), ("anna", 12), ("anna", 22)]
    assert values(out, "pages") == [("anna", ["/1"]), ("anna", ["/1", "/2"]), ("anna", ["/1", "/2", "/3"])]
    assert values(out, "other") == [("anna", 1), ("anna", 2)]  # it was not there for /3, and kept its state meanwhile
    assert status.epoch + 1 == check_ledgers(at)


def test_overdue_wall_clock_timers_fire_after_a_restart_and_by_themselves(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    class Egg(ms.Computation[None]):
        done: ms.Output[str]

        def process_record(self, record: ms.Record[Click]) -> None:
            self.set_timer(record.value.page, at=self.now + int(record.value.page) * ms.SECOND, clock=ms.Clock.WALL)

        def process_timer(self, timer: ms.Timer) -> None:
            self.done.produce(timer.tag, timestamp=T)

    folder = tmp_path / "clicks"
    folder.mkdir()
    write_lines(folder / "1.jsonl", [click("anna", 0, "0"), click("anna", 0, "4"), click("anna", 0, "3600")])
    first = started(topology_of(folder, tmp_path / "out", egg=Egg()))
    wait_until(lambda: first.status().computations.get("egg") is not None and first.status().computations["egg"].tally.received == 3)
    first.stop()
    second = started(topology_of(folder, tmp_path / "out", egg=Egg()))
    wait_until(lambda: second.status().computations["egg"].tally.fired == 2)
    epochs = second.status().epoch
    assert second.status().computations["egg"].timers == 1
    second.drain()
    assert [value for _, value in values(tmp_path / "out", "egg")] == ["0", "4"]
    assert second.status().epoch == epochs  # nothing was due, so nothing ran


def test_a_second_run_on_the_same_folder_is_refused(tmp_path: Path, started: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    run = started(topology_of(folder, tmp_path / "out", count=Count()))
    with pytest.raises(ms.FolderBusy, match="another run holds"):
        started(topology_of(folder, tmp_path / "out", count=Count()))
    assert run.status().running
    run.stop()
    assert not run.status().running
