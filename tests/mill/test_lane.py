"""A lane on a disk in memory: what it answers, what it holds, what it leaves when an epoch fails; and its loop on a socket."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator

import pytest

import millstream as ms
from millstream.core.codec import encode_value
from millstream.core.epoch import Header
from millstream.core.graph import Graph, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Checkpoint, Identity
from millstream.core.low_watermark import LowWatermark
from millstream.core.parts import NO_LANE, Columns
from millstream.core.route import Dealer
from millstream.journal.segments import SegmentReader, SegmentWriter, segment_path
from millstream.mill import serving
from millstream.mill.channel import Channel, Closed
from millstream.mill.held import Held
from millstream.mill.lane import Lane
from millstream.mill.messages import (
    Busy,
    Failed,
    FromLane,
    Given,
    GoAway,
    Joining,
    Redo,
    Report,
    Returned,
    TakeCheckpoint,
    Welcome,
    Work,
    WriteBack,
    decode_from_lane,
    encode_message,
)
from millstream.mill.serving import LaneFailed, serve
from millstream.timestamp import START_OF_TIME
from tests.conformance.in_process import Store
from tests.conformance.scenes import Event, Obedient, at, inject
from tests.journal.simdisk import SimDisk
from tests.waiting import wait_until

LANES = Lanes(2, 1)
TIMEOUT = 30.0


@pytest.fixture
def graph() -> Graph:
    topology = ms.Topology("lane")
    topology.compute("it", Obedient()).reads(inject(topology))
    return compile_topology(topology)


class Place:
    """One disk and one store, and lanes on them one after the other."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.disk, self.store = graph, SimDisk(), Store()
        self.names = itertools.count(1)
        self.source = SegmentWriter(self.disk, "values", self.unique)
        self.reader = SegmentReader(self.disk, sleep=lambda seconds: None)
        self.tries = itertools.count(1)
        self.lane = self.new_lane()

    def unique(self) -> str:
        return f"{next(self.names)}"

    def new_lane(self) -> Lane:
        """In a new process: what was not committed to the store is gone."""
        self.store.abort()
        writer = SegmentWriter(self.disk, "lane0", self.unique)
        return Lane(self.graph, 0, LANES, Held(self.store, memory=None), writer, self.reader)

    def run(self, epoch: int, *does: str, committed: int | None = None, redo: list[Redo] | None = None) -> Work:
        """An epoch with one event for key a each."""
        given: list[Given] = []
        if does:
            events = [encode_value(Event("a", 1, each)) for each in does]
            columns = Columns(["a"] * len(does), events, [at(1)] * len(does), list(range(len(does))))
            frame = self.source.append(Dealer(self.graph, LANES).deal("events", "events", 0, columns, lane=NO_LANE), lane=NO_LANE)
            given = [Given((0,), frame.segment, part) for part in frame.parts]
        header = Header(epoch, at(0), {"it": LowWatermark(START_OF_TIME, START_OF_TIME)}, {"it": START_OF_TIME})
        return Work(next(self.tries), header, given, {}, epoch - 1 if committed is None else committed, redo or [])

    def said(self, report: object) -> list[str]:
        assert isinstance(report, Report)
        (frame,) = report.frames
        found = []
        for part in frame.parts:
            found += [value.decode().strip('"') for value in self.reader.part(frame.segment, part).values]
        return found


@pytest.fixture
def place(graph: Graph) -> Place:
    return Place(graph)


def redo_of(report: object) -> Redo:
    assert isinstance(report, Report)
    (frame,) = report.frames
    assert frame.rows is not None
    return Redo(report.epoch, frame.segment, frame.rows)


def test_an_epoch_becomes_one_synced_frame_of_productions_and_changed_rows(place: Place) -> None:
    lane = place.lane
    assert lane.join(7, "here") == Joining(0, 7, Checkpoint(), "here")
    run = place.run(2, "x", "y")
    report = lane.hear(run)
    assert isinstance(report, Report)
    assert (report.epoch, report.try_number) == (2, run.try_number)
    assert place.said(report) == ["x 1", "y 2"]
    (frame,) = report.frames
    assert frame.rows is not None
    assert frame.rows.rows == 1
    inode = place.disk.entries[segment_path(frame.segment)]
    assert inode.durable == len(inode.content), "nobody is told of what is not synced"
    assert segment_path(frame.segment) in place.disk.durable


def test_an_epoch_that_changes_nothing_has_no_frame(place: Place) -> None:
    place.lane.join(1, "here")
    report = place.lane.hear(place.run(2))
    assert isinstance(report, Report)
    assert report.frames == []


def test_rows_are_held_from_epoch_to_epoch_and_come_back_by_redo_without_user_code(place: Place) -> None:
    place.lane.join(1, "here")
    first = place.lane.hear(place.run(2, "x"))
    second = place.lane.hear(place.run(3, "y"))
    assert place.said(second) == ["y 2"]
    again = place.new_lane()
    again.join(2, "here")
    again.hear(Welcome(3, [redo_of(first), redo_of(second)]))
    assert place.said(again.hear(place.run(4, "z"))) == ["z 3"]


def test_rule_7_what_a_plan_names_is_redone_before_it_runs(place: Place) -> None:
    place.lane.join(1, "here")
    first = place.lane.hear(place.run(2, "x"))
    again = place.new_lane()
    again.join(2, "here")
    again.hear(Welcome(1, []))  # 2 was still open
    assert place.said(again.hear(place.run(3, "y", redo=[redo_of(first)]))) == ["y 2"]


def test_code_that_raises_fails_the_epoch_and_names_the_place(place: Place) -> None:
    place.lane.join(1, "here")
    run = place.run(2, "x", "fail")
    failed = place.lane.hear(run)
    assert isinstance(failed, Failed)
    assert (failed.epoch, failed.try_number, failed.kind) == (2, run.try_number, "RecordError")
    assert "computation 'it', key 'a'" in failed.message
    assert "told to fail" in failed.message
    assert not [name for name in place.disk.entries if "lane0" in name], "no frame of it"


def test_a_part_that_is_gone_fails_the_epoch_by_its_name(place: Place) -> None:
    place.lane.join(1, "here")
    run = place.run(2, "x")
    place.disk.remove(segment_path(run.given[0].segment))
    failed = place.lane.hear(run)
    assert isinstance(failed, Failed)
    assert failed.kind == "Missing"
    assert run.given[0].segment in failed.message


def test_an_epoch_that_does_not_fit_into_memory_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*arguments: object) -> None:
        raise MemoryError

    place.lane.join(1, "here")
    monkeypatch.setattr(place.lane.mill, "run", too_much)
    failed = place.lane.hear(place.run(2, "x"))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.message) == ("MemoryError", "epoch 2 does not fit into the memory of lane 0")


def checkpoint(place: Place, lane: Lane, epoch: int, attempt: str) -> Identity:
    identity = Identity(epoch, f"c{epoch}", attempt)
    assert isinstance(lane.hear(TakeCheckpoint(identity, epoch, [])), Returned)
    assert lane.finished
    return identity


def test_a_checkpoint_has_its_identity_and_that_of_the_one_before(place: Place) -> None:
    """Rule 11."""
    lane = place.lane
    lane.join(1, "here")
    lane.hear(place.run(2, "x"))
    first = checkpoint(place, lane, 2, "1")
    place.store.commit()
    assert lane.join(2, "here").state == Checkpoint(first)
    lane.hear(place.run(3, "y"))
    second = checkpoint(place, lane, 3, "2")
    place.store.commit()
    assert place.new_lane().join(3, "here").state == Checkpoint(second, first)


def test_rule_11_what_is_held_is_kept_over_a_checkpoint_of_its_own(place: Place) -> None:
    lane = place.lane
    lane.join(1, "here")
    lane.hear(place.run(2, "x"))
    checkpoint(place, lane, 2, "1")
    place.store.commit()
    lane.join(2, "here")
    held = lane.held
    reads: list[str] = []
    get = place.store.get
    place.store.get = lambda key: reads.append(key) or get(key)  # type: ignore[method-assign, func-returns-value]
    lane.hear(Welcome(2, []))
    assert place.said(lane.hear(place.run(3, "y"))) == ["y 2"]
    assert reads == []
    assert lane.held is held


def test_rule_11_what_is_held_goes_if_spark_gives_back_another_checkpoint(place: Place) -> None:
    lane = place.lane
    lane.join(1, "here")
    lane.hear(place.run(2, "x"))
    checkpoint(place, lane, 2, "1")
    place.store.abort()  # Spark took nothing of it
    assert lane.join(2, "here").state == Checkpoint()
    lane.hear(Welcome(1, []))
    assert place.said(lane.hear(place.run(2, "y"))) == ["y 1"]


def test_a_checkpoint_redoes_first_and_begins_a_new_segment(place: Place) -> None:
    lane = place.lane
    lane.join(1, "here")
    first = lane.hear(place.run(2, "x"))
    again = place.new_lane()
    again.join(2, "here")
    identity = Identity(2, "c2", "2")
    again.hear(TakeCheckpoint(identity, 2, [redo_of(first)]))
    place.store.commit()
    again.join(3, "here")
    third = again.hear(place.run(3, "y"))
    assert place.said(third) == ["y 2"]
    before = third
    checkpoint(place, again, 3, "3")
    place.store.commit()
    again.join(4, "here")
    assert redo_of(again.hear(place.run(4, "z"))).segment != redo_of(before).segment


def test_dirty_pages_are_written_back_in_idle_moments_once_a_checkpoint_is_announced(place: Place) -> None:
    lane = place.lane
    lane.join(1, "here")
    lane.hear(place.run(2, "x"))
    assert not lane.rest()
    assert not place.store._written
    lane.hear(WriteBack())
    lane.rest()
    assert place.store._written
    place.store.abort()  # not committed by anybody


# The loop.


class Talk:
    """A lane that serves on one end of a socket; the test is the planner on the other."""

    def __init__(self, place: Place) -> None:
        self.place = place
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, args=(Channel(theirs),))
        self.thread.start()

    def _serve(self, channel: Channel) -> None:
        try:
            serve(self.place.lane, channel, attempt=5, process="here")
        except BaseException as error:
            self.error = error

    def hear(self) -> FromLane:
        message = self.channel.receive(TIMEOUT)
        assert message is not None
        return decode_from_lane(message)


@pytest.fixture
def talk(place: Place) -> Iterator[Talk]:
    made = Talk(place)
    yield made
    made.channel.close()
    made.thread.join(TIMEOUT)
    assert not made.thread.is_alive()


def test_it_joins_answers_and_returns_when_it_is_sent_away(talk: Talk) -> None:
    assert talk.hear() == Joining(0, 5, Checkpoint(), "here")
    talk.channel.send(encode_message(Welcome(1, [])))
    talk.channel.send(encode_message(talk.place.run(2, "x")))
    assert isinstance(talk.hear(), Report)
    talk.channel.send(encode_message(GoAway()))
    talk.thread.join(TIMEOUT)
    assert talk.error is None
    assert not talk.place.store._written
    with pytest.raises(Closed):
        talk.channel.receive(TIMEOUT)


def test_it_returns_after_a_checkpoint(talk: Talk) -> None:
    talk.hear()
    identity = Identity(1, "c1", "5")
    talk.channel.send(encode_message(TakeCheckpoint(identity, 1, [])))
    assert talk.hear() == Returned(identity, 0)
    talk.thread.join(TIMEOUT)
    assert talk.error is None


def test_rule_6_it_raises_when_the_planner_is_lost(talk: Talk) -> None:
    talk.hear()
    talk.channel.close()
    talk.thread.join(TIMEOUT)
    assert isinstance(talk.error, Closed)


def test_rule_6_it_raises_after_an_epoch_that_failed_when_the_planner_was_told(talk: Talk) -> None:
    talk.hear()
    talk.channel.send(encode_message(talk.place.run(2, "fail")))
    assert isinstance(talk.hear(), Failed)
    talk.thread.join(TIMEOUT)
    assert isinstance(talk.error, LaneFailed)


def test_rule_9_it_says_what_is_at_hand_while_an_epoch_runs(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SAY_EVERY", 0.01)
    go_on = threading.Event()
    process = Obedient.process_record

    def slow(self: Obedient, record: ms.Record[Event]) -> None:
        assert go_on.wait(TIMEOUT)
        process(self, record)

    monkeypatch.setattr(Obedient, "process_record", slow)
    talk = Talk(Place(graph))
    talk.hear()
    talk.channel.send(encode_message(talk.place.run(2, "x")))
    assert talk.hear() == Busy("it", "a")
    go_on.set()
    found: list[FromLane] = []

    def reported() -> bool:
        found.append(talk.hear())
        return isinstance(found[-1], Report)

    wait_until(reported, TIMEOUT)
    talk.channel.send(encode_message(GoAway()))
    talk.thread.join(TIMEOUT)
    assert talk.error is None
    talk.channel.close()
