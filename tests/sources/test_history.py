"""The history of a stream for a computation that is new to it: what is read of the log, and what waits meanwhile."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.graph import Graph, InputPlan, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, Ledger, Reader, SourceChange, SourceProgress
from millstream.core.parts import Dealt, Frame, Part
from millstream.core.planning import Backlog, Limits, Plan, Waiting, plan_epoch
from millstream.core.route import Dealer
from millstream.core.standing import Standing
from millstream.journal.disk import LocalDisk
from millstream.log.history import History
from millstream.log.rows import Rows
from millstream.mill.beginning import check_since, plant_of, without_history
from millstream.mill.messages import Fed, Range
from millstream.sources import history
from millstream.sources.history import ALL, HistoryReader, HistoryThread
from millstream.testing import Driver
from millstream.timestamp import START_OF_TIME
from tests.core.alone import Event, inject
from tests.log.made import NOW, columns
from tests.waiting import wait_until

HISTORY = "late ← events (history)"
EVERYTHING = Limits(1_000_000, 1 << 40)


class Words(ms.Computation[int]):
    def process_record(self, record: ms.Record[Event]) -> None: ...


def graph_of(since: ms.Since = ms.Since.OLDEST, *, rekeyed: bool = False) -> Graph:
    topology = ms.Topology("t")
    events = inject(topology)
    topology.compute("early", Words()).reads(events)
    topology.compute("late", Words()).reads(events.by(lambda event: event.word) if rekeyed else events, since=since)
    return compile_topology(topology)


def read_of(graph: Graph) -> InputPlan:
    return next(read for read in graph.inputs if read.computation == "late")


def log_of(path: Path, *files: dict[int, list[int]]) -> LocalDisk:
    """A log with a file for each: epochs, and the times of their records."""
    disk, numbers = LocalDisk(path), itertools.count()
    table = History(disk, now=lambda: NOW, unique=lambda: f"{next(numbers)}")
    table.create()
    for epochs in files:
        rows = Rows()
        for epoch, times in epochs.items():
            made = columns(times)
            made.values = [b'{"key":"k","at":%d,"word":"w%d"}' % (at, at % 3) for at in times]
            rows.add(epoch, "events", epoch, made)
        assert table.commit([table.stage("events", rows)], after=table.position(), to=max(epochs)) is not None
    return disk


FILES: tuple[dict[int, list[int]], ...] = ({1: [10, 11], 2: [12]}, {3: [9, 30], 4: [40]}, {5: [50], 7: [70]})


class TestReading:
    def read(self, path: Path, graph: Graph, *, after: int = 0, upto: int = 7) -> list[history.Slice]:
        disk = log_of(path, *FILES)
        return list(HistoryReader(read_of(graph), Dealer(graph, Lanes(4, 2)), disk, after=after, upto=upto).slices())

    def test_every_epoch_comes_once_whole_and_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "RECORDS_PER_FRAME", 1)
        slices = self.read(tmp_path, graph_of())
        assert [each.positions[ALL] for each in slices] == [1, 2, 3, 4, 5, 7]
        times = [sorted(at for dealt in each.dealt for at in dealt.columns.timestamps) for each in slices]
        assert times == [[10, 11], [12], [9, 30], [40], [50], [70]]
        assert {dealt.reader for each in slices for dealt in each.dealt} == {HISTORY}
        assert [each.injected for each in slices] == [2, 1, 2, 1, 1, 1]

    def test_it_goes_on_where_it_was_and_ends_where_the_present_begins(self, tmp_path: Path) -> None:
        [only] = self.read(tmp_path, graph_of(), after=2, upto=5)
        assert (only.injected, only.positions) == (4, {ALL: 5})
        assert sorted((dealt.major, at) for dealt in only.dealt for at in dealt.columns.timestamps) == [(3, 9), (3, 30), (4, 40), (5, 50)]

    def test_it_promises_what_no_file_that_is_left_can_break(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "RECORDS_PER_FRAME", 1)
        slices = self.read(tmp_path, graph_of())
        promised = [each.marks[ALL] for each in slices]
        for n, promise in enumerate(promised):
            comes = [at for later in slices[n + 1 :] for dealt in later.dealt for at in dealt.columns.timestamps]
            assert all(promise <= at for at in comes)
        assert promised == [9, 9, 9, 50, 50, START_OF_TIME], "as far as files tell; the end is said by itself"

    def test_it_is_dealt_under_the_keys_of_its_reader(self, tmp_path: Path) -> None:
        [only] = self.read(tmp_path, graph_of(rekeyed=True))
        found = {(key, at) for dealt in only.dealt for key, at in zip(dealt.columns.keys, dealt.columns.timestamps, strict=True)}
        assert found == {(f"w{at % 3}", at) for at in (10, 11, 12, 9, 30, 40, 50, 70)}
        lanes = Lanes(4, 2)
        assert all(lanes.of_all([key]) == [dealt.lane] for dealt in only.dealt for key in dealt.columns.keys)


class Desk:
    """Writer and planner of a thread, written down."""

    def __init__(self) -> None:
        self.fed: list[Fed] = []
        self._offset = 0

    def append(self, dealt: list[Dealt], *, lane: int) -> Frame:
        parts = []
        for each in dealt:
            self._offset += 1
            parts.append(each.placed(self._offset, 1, 0))
        return Frame("mine", lane, parts)

    def close(self) -> None: ...

    def feed(self, fed: Fed) -> None:
        self.fed.append(fed)

    def offer(self, ranges: list[Range]) -> None:
        raise AssertionError("a history has nothing for lanes to read")

    def unread(self, injector: str, partitions: list[str] | None) -> None:
        assert (injector, partitions) == (HISTORY, [])

    def has_room(self, timeout: float) -> bool:
        raise AssertionError("what waits for the history may fill the backlog")


class TestThread:
    def start(self, path: Path, desk: Desk, *, logged: bool = True) -> HistoryThread:
        graph = graph_of()
        reader = HistoryReader(read_of(graph), Dealer(graph, Lanes(4, 1)), log_of(path, *FILES), after=0, upto=7)
        thread = HistoryThread(read_of(graph), reader, desk, desk, is_logged=lambda: logged)
        thread.start()
        return thread

    def test_it_feeds_all_and_says_that_it_has_ended(self, tmp_path: Path) -> None:
        desk = Desk()
        thread = self.start(tmp_path, desk)
        thread.join(30)
        assert thread.error is None
        assert [(fed.injector, fed.injected, fed.finished) for fed in desk.fed] == [(HISTORY, 8, None), (HISTORY, 0, True)]
        assert thread.trouble is None

    def test_it_is_no_further_ahead_than_a_few_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "RECORDS_PER_FRAME", 1)
        monkeypatch.setattr(history, "PARTS_AHEAD", 1)
        desk = Desk()
        thread = self.start(tmp_path, desk)
        wait_until(lambda: len(desk.fed) == 2)
        assert "'late' reads the history of 'events'" in (thread.trouble or "")
        taken = 0
        while thread.is_alive():
            assert len(desk.fed) <= taken + 3, "two that wait, and the end"
            thread.on_commit(Commit(1, "", "", 1, ms.Timestamp(0), took={"mine": [taken], "another": [1, 2, 3]}))
            taken += 1
            thread.join(0.01)
        assert desk.fed[-1].finished

    def test_it_waits_for_the_log(self, tmp_path: Path) -> None:
        desk = Desk()
        thread = self.start(tmp_path, desk, logged=False)
        thread.join(0.5)
        assert thread.is_alive()
        assert desk.fed == []
        thread.stop()
        thread.join(30)
        assert (thread.is_alive(), desk.fed) == (False, [])

    def test_what_it_meets_is_kept_for_the_run(self, tmp_path: Path) -> None:
        desk = Desk()
        graph = graph_of()
        disk = log_of(tmp_path, *FILES)
        for file in tmp_path.glob("*/*.parquet"):
            file.unlink()
        reader = HistoryReader(read_of(graph), Dealer(graph, Lanes(4, 1)), disk, after=0, upto=7)
        thread = HistoryThread(read_of(graph), reader, desk, desk, is_logged=lambda: True)
        thread.run()
        assert isinstance(thread.error, ms.LogError)
        assert not any(fed.finished for fed in desk.fed)


class TestWaiting:
    """What is new of the stream waits until all that is old is taken."""

    def part(self, oldest: int, reader: str = "") -> Waiting:
        return Waiting(5, "segment", Part(oldest, 1, 0, 0, "events", reader, "events", 0, 1, ms.Timestamp(oldest)))

    @pytest.mark.parametrize("rekeyed", [False, True])
    def test_the_present_comes_after_the_past(self, rekeyed: bool) -> None:
        backlog = Backlog(graph_of(rekeyed=rekeyed).outline)
        place = "late ← events" if rekeyed else ""
        backlog.add(self.part(100, place))
        backlog.add(self.part(7, HISTORY))
        unfinished: dict[str, SourceProgress] = {}
        assert backlog.held(unfinished) == {("events", place)}
        assert [w.part.oldest for w in backlog.take(EVERYTHING, {0}, backlog.held(unfinished))] == [7]
        assert backlog.take(EVERYTHING, {0}, backlog.held(unfinished)) == []
        backlog.add(self.part(8, HISTORY))
        ended = {HISTORY: SourceProgress(finished=True)}
        assert [w.part.oldest for w in backlog.take(EVERYTHING, {0}, backlog.held(ended))] == [8], "one of it is still there"
        assert [w.part.oldest for w in backlog.take(EVERYTHING, {0}, backlog.held(ended))] == [100]

    def test_an_epoch_is_planned_so(self) -> None:
        outline, ledger = graph_of().outline, Ledger()
        standing, backlog, sources = Standing(outline, ledger), Backlog(outline), {"events": SourceProgress(finished=True)}
        backlog.add(self.part(100))

        def plan() -> Plan:
            found = plan_epoch(
                outline, ledger, standing, backlog, sources, clock=ms.Timestamp(0), limits=EVERYTHING, lanes=Lanes(4, 1), here={0}
            )
            assert found is not None
            return found

        first = plan()
        assert first.taken == []
        assert first.low_watermarks["early"].input == 100, "it waits for what all wait for"
        assert first.low_watermarks["late"].input == START_OF_TIME
        sources[HISTORY] = SourceProgress(finished=True)
        assert [waiting.part.oldest for waiting in plan().taken] == [100]

    def test_nothing_waits_where_nobody_is_new(self) -> None:
        assert Backlog(graph_of(ms.Since.PRESENT).outline).held({}) == set()


class TestBeginning:
    """Whose history there is."""

    def known(self, *readers: str, **more: object) -> Ledger:
        return Ledger(readers={name: Reader("events", False, 2) for name in readers}, latest={"events": 4}, **more)  # type: ignore[arg-type]

    def test_one_that_is_new_has_one(self) -> None:
        assert without_history(graph_of().outline, self.known("early ← events")) == {}

    def test_one_that_is_known_or_whose_stream_is_new_has_none(self) -> None:
        none = {HISTORY: SourceChange(finished=True)}
        assert without_history(graph_of().outline, self.known("late ← events")) == none, "since= was added to its code"
        assert without_history(graph_of().outline, Ledger()) == none

    def test_one_that_was_begun_goes_on_and_one_that_has_ended_stays_so(self) -> None:
        assert without_history(graph_of().outline, self.known("late ← events", HISTORY)) == {}
        ended = self.known("late ← events", sources={HISTORY: SourceProgress(finished=True)})
        assert without_history(graph_of().outline, ended) == {}

    def test_one_that_has_run_before_is_told_so(self) -> None:
        with pytest.raises(ms.TopologyError, match=r"'late' has run before, so it cannot begin with the oldest record of 'events'"):
            check_since(graph_of(), self.known("early ← events", worked={"late": 3}))
        check_since(graph_of(), self.known("early ← events", "late ← events", worked={"late": 3}))
        ended = {HISTORY: SourceProgress(finished=True)}
        check_since(graph_of(), self.known("early ← events", worked={"late": 3}, sources=ended))  # it was away, and comes back
        lost = {HISTORY: SourceProgress(finished=True, positions={ALL: 3})}
        with pytest.raises(ms.TopologyError, match=r"'late' was taken out of the code before it had the history of 'events'"):
            check_since(graph_of(), self.known("early ← events", sources=lost))
        with pytest.raises(ms.TopologyError, match=r"'late' has not got all of the history of 'events' yet, and by"):
            check_since(graph_of(rekeyed=True), self.known("late ← events", HISTORY, sources={HISTORY: SourceProgress(positions={ALL: 3})}))
        check_since(graph_of(ms.Since.PRESENT), self.known("early ← events", worked={"late": 3}))

    def test_it_is_no_injector_of_the_users(self) -> None:
        outline = graph_of().outline
        assert plant_of(outline, buckets=4, lanes=1).injectors == ["events"]
        assert outline.nodes["late"].injectors == ("events", HISTORY), "its low watermark waits for it"
        assert outline.nodes["early"].injectors == ("events",)


class TestBuilding:
    def test_a_stream_that_is_not_kept_has_no_history(self) -> None:
        topology = ms.Topology("t")
        events = topology.inject(
            "events",
            ms.values([], Event),
            key=lambda event: event.key,
            timestamp=lambda event: ms.Timestamp(event.at),
            low_watermark=ms.Timeless(),
            keep=False,
        )
        topology.compute("late", Words()).reads(events, since=ms.Since.OLDEST)
        with pytest.raises(ms.TopologyError, match="the log does not keep that stream"):
            compile_topology(topology)

    def test_in_the_driver_of_tests_all_is_new(self) -> None:
        topology = ms.Topology("t")
        events = inject(topology)
        topology.compute("late", Words()).reads(events, since=ms.Since.OLDEST)
        driver = Driver(topology, ship=False)
        driver.send(events, Event("a", 5))
        driver.advance(low_watermark=ms.Timestamp(7))
        assert (driver.tally("late").received, driver.low_watermark("late")) == (1, 7)
        driver.finish()
        assert driver.low_watermark("late") == ms.END_OF_TIME

    def test_since_is_one_of_two(self) -> None:
        topology = ms.Topology("t")
        with pytest.raises(ms.TopologyError, match=r"since"):
            topology.compute("late", Words()).reads(inject(topology), since="oldest")  # type: ignore[arg-type]
