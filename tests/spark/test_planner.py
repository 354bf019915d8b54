"""The moment between two epochs, without Spark: what is published, what is planned, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import millstream as ms
from millstream.core.backlog import Limits, Position
from millstream.core.epoch import Report, Summary, Tally
from millstream.core.graph import MILL, Graph, compile_topology, table_of
from millstream.core.low_watermark import Mark
from millstream.core.plan import Ledger, Plan, Source, before_all
from millstream.core.row import Minima
from millstream.errors import Fenced, LogError
from millstream.log.folder import Folder, read_json, write_json
from millstream.log.staged import RECORDS, StagedFile, stage
from millstream.log.table import Table, tail
from millstream.spark.owner import take_over
from millstream.spark.planner import Manifest, MillState, Planner, find_manifest, manifest_path
from tests.spark.clicks import Click, Count, T, counted_by_page

CLICKS = table_of("clicks")


@pytest.fixture
def graph() -> Graph:
    topology = ms.Topology("planned")
    told = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.compute("count", Count()).reads(topology.inject("clicks", ms.values([], Click), **told))
    return compile_topology(topology)


class Scene:
    """A folder with a log, and a planner whose clock stands still."""

    def __init__(self, at: Path, graph: Graph) -> None:
        self.folder, self.graph, self.clock = Folder(at), graph, T
        self.folder.open()
        self.begin()

    def begin(self) -> None:
        """A new run takes over."""
        self.fence = take_over(self.folder, self.graph)
        self.planner = self.planner_of(self.fence)

    def planner_of(self, fence: int, **limits: int) -> Planner:
        bounds = Limits(**{"records": 1000, "size": 1 << 30, **limits})
        return Planner(self.folder, self.graph, fence=fence, buckets=2, limits=bounds, clock=lambda: self.clock)

    def inject(self, *seconds: int, epoch: int, upto: int | None = None, finished: bool = False, apart: bool = False) -> None:
        """Records at these seconds, in one file, or each in one of its own."""
        table = Table(self.folder.table(CLICKS), CLICKS, self.fence)
        marks = {} if upto is None else {"": Mark(T + upto * ms.SECOND, T)}
        parts = [(second,) for second in seconds] if apart else [seconds] if seconds else []
        files = [file for part in parts for file in self.files(CLICKS, "clicks", part, epoch)]
        table.commit(files, msgspec.json.encode(Source(marks, finished, len(seconds))), writer="clicks", epoch=epoch)

    def files(self, table: str, stream: str, seconds: tuple[int, ...], epoch: int) -> list[StagedFile]:
        times = pa.array([int(T + second * ms.SECOND) for second in seconds], pa.timestamp("us", "UTC"))
        count = len(seconds)
        columns = [pa.array(["k"] * count), pa.array(["1"] * count), times, pa.array([epoch] * count), pa.array(list(range(count)))]
        return stage(self.folder.table(table), stream, pa.table(columns, schema=RECORDS), epoch=epoch)

    def record(self, epoch: int, *, fence: int | None = None, seconds: tuple[int, ...] = (), wall: ms.Timestamp = ms.END_OF_TIME) -> None:
        """What the sink of an epoch leaves."""
        fence = self.fence if fence is None else fence
        files = self.files(MILL, "count.counts", seconds, epoch) if seconds else []
        summary = Summary(0, {"count": Report(Minima(wall=wall), 1, 1)}, {"count": Tally(received=len(seconds))})
        write_json(manifest_path(self.folder, epoch, fence), Manifest(epoch, fence, files, [summary]))

    def published(self) -> Iterator[Ledger]:
        for commit in tail(self.folder.table(MILL), MILL, Position()):
            if commit.note is not None:
                yield msgspec.json.decode(commit.note, type=Ledger)

    def visible(self) -> list[int]:
        """The rows of the mill's files that readers see."""
        return [file.rows for commit in tail(self.folder.table(MILL), MILL, Position()) for file in commit.files]

    def next(self, start: Plan, wait: float = 0.0) -> Plan | None:
        return self.planner.next_plan(start, wait=wait)


@pytest.fixture
def scene(tmp_path: Path, graph: Graph) -> Scene:
    return Scene(tmp_path / "mill", graph)


@pytest.fixture
def first(scene: Scene, graph: Graph) -> Plan:
    plan = scene.next(before_all(graph))
    assert plan is not None
    return plan


def test_the_first_epoch_delivers_nothing_and_wakes_every_bucket(scene: Scene, first: Plan) -> None:
    assert (first.epoch, first.due, first.now) == (0, [0, 1], T)
    assert list(scene.published()) == []


def test_an_epoch_is_published_when_the_next_one_is_asked_for_and_not_before(scene: Scene, first: Plan) -> None:
    scene.record(0, seconds=(1, 2))
    assert scene.visible() == []
    assert scene.next(first) is None
    assert scene.visible() == [2]
    (ledger,) = scene.published()
    assert (ledger.plan.epoch, ledger.produced, ledger.tallies["count"].received) == (0, {"count.counts": 2}, 2)
    assert scene.next(first) is None
    assert scene.visible() == [2]  # once


def test_of_two_manifests_that_of_the_newer_run_counts(scene: Scene, first: Plan) -> None:
    scene.record(0, seconds=(1, 2, 3))
    old = scene.fence
    scene.begin()
    scene.record(0, seconds=(1,))
    assert scene.next(first) is None
    assert scene.visible() == [1]
    assert scene.fence > old
    assert find_manifest(scene.folder, 0).fence == scene.fence  # type: ignore[union-attr]


def test_an_old_run_that_wakes_up_publishes_nothing(scene: Scene, first: Plan) -> None:
    scene.record(0, seconds=(1,))
    zombie = scene.planner
    scene.begin()
    with pytest.raises(Fenced):
        zombie.next_plan(first, wait=0)
    assert scene.visible() == []


def test_a_missing_manifest_is_refused(scene: Scene, first: Plan) -> None:
    with pytest.raises(LogError, match="lacks the manifest of epoch 0"):
        scene.next(first)


def test_a_torn_manifest_is_refused_by_name(scene: Scene, first: Plan) -> None:
    scene.record(0, seconds=(1,))
    path = manifest_path(scene.folder, 0, scene.fence)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LogError, match=rf"{path.name} is damaged"):
        scene.next(first)
    assert scene.visible() == []


def test_a_commit_that_an_epoch_took_half_of_is_gone_on_with_where_it_was_left(scene: Scene, first: Plan) -> None:
    scene.record(0)
    scene.inject(1, 2, 3, epoch=0, apart=True)
    scene.planner = scene.planner_of(scene.fence, records=2)
    second = scene.next(first)
    assert second is not None
    taken = scene.planner.files(first, second)
    assert [file.oldest for file in taken] == [T + 1 * ms.SECOND, T + 2 * ms.SECOND]
    scene.begin()
    assert scene.planner.files(first, second) == taken, "run again, it takes the same"
    scene.record(1)
    third = scene.next(second)
    assert third is not None
    assert [file.oldest for file in scene.planner.files(second, third)] == [T + 3 * ms.SECOND]


def test_an_input_that_had_ended_has_ended_for_the_next_run_too(scene: Scene, first: Plan) -> None:
    """Else a run that is to end when all is done would never know that it is."""
    scene.record(0)
    scene.inject(1, epoch=0, finished=True)
    last, plan = first, scene.next(first)
    while plan is not None:
        scene.record(plan.epoch)
        last, plan = plan, scene.next(plan)
    assert last.promises["clicks"] == ms.END_OF_TIME
    scene.begin()
    assert scene.next(last) is None
    state = read_json(scene.folder.run / "mill.json", MillState)
    assert state is not None
    assert (state.fence, state.drained) == (scene.fence, True)


def test_a_partition_that_falls_silent_makes_an_epoch_due_when_its_time_is_over(tmp_path: Path) -> None:
    """Nothing comes, and the planner does not plan until then."""
    scene = Scene(tmp_path / "mill", compile_topology(counted_by_page(idle_after=10 * ms.SECOND)))
    plan = scene.next(before_all(scene.graph))
    scene.record(0)
    table = Table(scene.folder.table(CLICKS), CLICKS, scene.fence)
    marks = {"slow": Mark(T + 1 * ms.SECOND, T), "fast": Mark(T + 9 * ms.SECOND, T + 5 * ms.SECOND)}
    table.commit([], msgspec.json.encode(Source(marks, False, 0)), writer="clicks", epoch=0)
    scene.clock = T + 5 * ms.SECOND
    assert plan is not None
    plan = scene.next(plan)
    assert plan is not None
    assert plan.promises["clicks"] == T + 1 * ms.SECOND
    scene.record(1)
    clocks = iter([T + seconds * ms.SECOND for seconds in (6, 8, 10, 11, 12, 13, 14)])
    told_times = list[ms.Timestamp]()

    def clock() -> ms.Timestamp:
        told_times.append(next(clocks))
        return told_times[-1]

    scene.planner._clock = clock
    plan = scene.next(plan, wait=60)
    assert plan is not None
    assert (plan.promises["clicks"], told_times[-1]) == (T + 9 * ms.SECOND, T + 11 * ms.SECOND)


def test_a_log_ahead_of_its_checkpoint_is_refused(scene: Scene, first: Plan, graph: Graph) -> None:
    scene.record(0)
    scene.inject(1, epoch=0)
    second = scene.next(first)
    assert second is not None
    scene.record(1)
    assert scene.next(second) is None
    scene.begin()
    with pytest.raises(LogError, match="ends with epoch 1, its checkpoint with 0: they do not belong together"):
        scene.next(first)


def test_a_replay_delivers_the_same_files(scene: Scene, first: Plan) -> None:
    scene.record(0)
    for epoch in range(4):
        scene.inject(epoch, epoch=epoch)
    scene.planner = scene.planner_of(scene.fence, records=2)
    second = scene.next(first)
    assert second is not None
    taken = scene.planner.files(first, second)
    assert [file.rows for file in taken] == [1, 1]
    scene.begin()
    assert scene.planner.files(first, second) == taken


def test_a_new_planner_goes_on_where_the_last_epoch_left_off(scene: Scene, first: Plan) -> None:
    scene.record(0)
    for epoch in range(3):
        scene.inject(epoch, epoch=epoch, upto=epoch + 100)
    scene.planner = scene.planner_of(scene.fence, records=2)
    second = scene.next(first)
    assert second is not None
    assert second.low_watermarks["count"].input == T + 2 * ms.SECOND  # the record that stays in the log holds it back
    scene.record(1)
    scene.begin()
    third = scene.next(second)
    assert third is not None
    assert [file.oldest for file in scene.planner.files(second, third)] == [T + 2 * ms.SECOND]
    assert third.promises == {"clicks": T + 102 * ms.SECOND}
    assert third.low_watermarks["count"].input == T + 102 * ms.SECOND


def test_a_wall_clock_timer_makes_an_epoch_due_by_itself(scene: Scene, first: Plan) -> None:
    scene.record(0, wall=T + ms.SECOND)
    assert scene.next(first) is None
    scene.clock = T + ms.SECOND
    second = scene.next(first)
    assert second is not None
    assert (second.due, second.now) == ([0], T + ms.SECOND)


def test_the_clock_of_epochs_never_goes_back(scene: Scene, first: Plan) -> None:
    scene.record(0)
    scene.inject(1, epoch=0)
    scene.clock = T - ms.HOUR
    second = scene.next(first)
    assert second is not None
    assert second.now == T


def test_when_asked_to_stop_it_publishes_and_plans_nothing_more(scene: Scene, first: Plan) -> None:
    scene.record(0, seconds=(1,))
    scene.inject(1, epoch=0)
    (scene.folder.run / "stop").touch()
    assert scene.next(first) is None
    assert scene.visible() == [1]


def test_old_manifests_are_swept(scene: Scene, first: Plan) -> None:
    plan = first
    for epoch in range(8):
        scene.record(epoch)
        scene.inject(epoch, epoch=epoch)
        found = scene.next(plan)
        assert found is not None
        plan = found
    assert len(list(scene.folder.manifests.iterdir())) <= 3
