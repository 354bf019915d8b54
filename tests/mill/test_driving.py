"""The planner's thread with real sockets and a real journal, and lanes that a test speaks for."""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Checkpoint, Commit, Identity, Ledger
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import claim
from millstream.mill.actions import Action, Fed, Moment, Settings
from millstream.mill.beginning import first_commit, plant_of
from millstream.mill.channel import Channel, Closed, Listener, connect, connected_to
from millstream.mill.driving import Ended, PlannerThread
from millstream.mill.messages import GoAway, Joining, Report, Welcome, Work, encode_message
from millstream.mill.planner import Planner
from millstream.timestamp import Timestamp
from tests.conformance.scenes import Obedient, at, inject
from tests.mill.desk import graph_of
from tests.mill.spoken import BUCKETS, TIMEOUT, fed_of, hear, join
from tests.waiting import wait_until


class House:
    """A journal on a disk, and one planner after another that owns it."""

    def __init__(self, folder: Path, graph: Graph | None = None) -> None:
        self.graph = graph or graph_of()
        self.commits = Commits(LocalDisk(folder))
        self.secret = secrets.token_bytes(32)
        self.clock: Callable[[], Timestamp] = lambda: at(0)
        self.threads: list[PlannerThread] = []
        self.channels: list[Channel] = []

    def planner(self, *, start: bool = True, before_join: Callable[[int], None] = lambda lane: None, **settings: float) -> PlannerThread:
        plant = plant_of(self.graph.outline, buckets=BUCKETS, lanes=1)

        def make(ledger: Ledger) -> Commit:
            moment = Moment(self.clock(), time.monotonic())
            return first_commit(self.graph.outline, ledger, fence=ledger.fence + 1, plant=plant, id_=uuid.uuid4().hex, at=moment)

        ledger = claim(self.commits, make)
        now = Moment(self.clock(), time.monotonic())
        chosen, folded = Settings(**settings), self.commits.newest_snapshot()
        planner = Planner(self.graph.outline, ledger, settings=chosen, redo={}, folded=folded, new_id=lambda: uuid.uuid4().hex, at=now)
        self.listener = Listener()
        thread = PlannerThread(planner, self.commits, self.listener, self.secret, clock=lambda: self.clock(), before_join=before_join)
        self.threads.append(thread)
        if start:
            thread.start()
        return thread

    def lane(self, attempt: int = 1, state: Checkpoint | None = None) -> Channel:
        channel = join(self.listener.address, self.secret, attempt=attempt, state=state)
        self.channels.append(channel)
        return channel

    def fed(self) -> Fed:
        return fed_of(self.commits.disk, self.graph)

    def close(self) -> None:
        for thread in self.threads:
            end(thread) if thread.ident is not None else thread._listener.close()
        for channel in self.channels:
            channel.close()


def end(thread: PlannerThread) -> None:
    """As it ends when its driver is gone."""

    def leave(planner: Planner, at: Moment) -> list[Action]:
        raise Closed("the driver is gone")

    thread.tell(leave)
    thread.join(TIMEOUT)
    assert not thread.is_alive()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def feed(thread: PlannerThread, fed: Fed) -> None:
    thread.tell(lambda planner, at: planner.on_fed(fed, at))


def ask(thread: PlannerThread) -> None:
    """Until it has heard all that it was told before."""
    heard = threading.Event()

    def event(planner: Planner, at: Moment) -> list[Action]:
        heard.set()
        return []

    thread.tell(event)
    wait_until(lambda: heard.is_set() or thread.ended.is_set(), TIMEOUT)


def test_a_lane_joins_is_given_an_epoch_and_its_report_becomes_a_commit(house: House) -> None:
    thread = house.planner()
    woken: list[int] = []
    thread.watchers.append(lambda commit: woken.append(commit.number))
    lane = house.lane()
    assert isinstance(hear(lane), Welcome)
    feed(thread, house.fed())
    run = hear(lane)
    assert isinstance(run, Work)
    assert house.commits.read(run.header.epoch) is None
    lane.send(encode_message(Report(run.header.epoch, run.try_number, [], [])))
    wait_until(lambda: run.header.epoch in woken, TIMEOUT)
    commit = house.commits.read(run.header.epoch)
    assert commit is not None
    assert (commit.sources["events"].positions[""], len(commit.took)) == (1, 1)


def test_what_becomes_due_while_it_looks_is_not_slept_over(house: House) -> None:
    """The clock moves between two of its looks; nothing else comes that would wake it."""
    topology = ms.Topology("desk")
    idle = ms.BoundedDisorder(ms.SECOND, idle_after=ms.MINUTE)
    topology.compute("it", Obedient()).reads(inject(topology, low_watermark=idle))
    house.graph = compile_topology(topology)
    thread = house.planner()
    assert isinstance(hear(house.lane()), Welcome)
    feed(thread, Fed("events", [], {"slow": at(1)}))
    ask(thread)
    house.clock = lambda: at(59)
    feed(thread, Fed("events", [], {"quick": at(9)}))
    ask(thread)
    wait_until(lambda: time.monotonic() > thread.planner.emptied + 2 * thread.planner.settings.empty_every, TIMEOUT)
    looks = iter([at(60) - 100 * ms.MILLISECOND] * 2)  # a question, and a look before the silence counts; then after it
    house.clock = lambda: next(looks, at(61))
    ask(thread)
    wait_until(lambda: thread.planner.ledger.promises["events"] == at(9), TIMEOUT)


def test_an_idle_planner_does_not_turn(house: House) -> None:
    thread = house.planner()
    lane = house.lane()
    assert isinstance(hear(lane), Welcome)
    ask(thread)
    wait_until(lambda: thread.planner.next_tick(Moment(at(0), 1e9)) is None, TIMEOUT)
    ask(thread)
    turns = thread.turns
    assert not thread.ended.wait(0.5)
    assert thread.turns <= turns + 1


def test_a_lane_of_which_the_connection_ends_is_lost_and_its_epoch_waits(house: House) -> None:
    thread = house.planner()
    lane = house.lane()
    assert isinstance(hear(lane), Welcome)
    feed(thread, house.fed())
    first = hear(lane)
    lane.close()
    wait_until(lambda: not thread.planner.seats[0].here, TIMEOUT)
    again = house.lane(2)
    assert isinstance(hear(again), Welcome)
    assert hear(again) == first


def test_a_lane_that_says_what_cannot_be_read_is_closed(house: House, caplog: pytest.LogCaptureFixture) -> None:
    thread = house.planner()
    lane = house.lane()
    assert isinstance(hear(lane), Welcome)
    lane.send(b"nonsense")
    with pytest.raises(Closed):
        lane.receive(TIMEOUT)
    wait_until(lambda: not thread.planner.seats[0].here, TIMEOUT)
    assert "a lane said what cannot be read" in caplog.text


def test_rule_3_the_thread_ends_when_another_run_has_the_number(house: House) -> None:
    old = house.planner()
    listener = house.listener
    house.planner()
    old.tell(lambda planner, at: planner.on_fed(Fed("events", [], {"": ms.Timestamp(5)}), at))
    assert old.ended.wait(TIMEOUT)
    assert isinstance(old.error, Ended)
    assert old.error.kind == "Fenced"
    old.join(TIMEOUT)
    with pytest.raises(Closed):
        connect(listener.address, house.secret)


@pytest.mark.parametrize(("taken_over", "kind"), [(True, "Fenced"), (False, "LogError")])
def test_rule_12_a_state_ahead_is_damage_only_if_nobody_has_taken_over(house: House, taken_over: bool, kind: str) -> None:
    thread = house.planner()
    address = house.listener.address
    if taken_over:
        house.planner()
    channel = connect(address, house.secret)
    house.channels.append(channel)
    channel.send(encode_message(Joining(0, 1, Checkpoint(Identity(50, "of the newer run", "1")), "here")))
    assert thread.ended.wait(TIMEOUT)
    assert isinstance(thread.error, Ended)
    assert thread.error.kind == kind


def test_rule_14_what_spark_wrote_is_synced_before_the_planner_hears_of_a_lane(house: House) -> None:
    order: list[str] = []
    thread = house.planner(before_join=lambda lane: order.append(f"synced {lane}"), start=False)
    joined = thread.planner.on_join
    thread.planner.on_join = lambda *arguments: order.append("joined") or joined(*arguments)  # type: ignore[method-assign, func-returns-value]
    thread.start()
    assert isinstance(hear(house.lane()), Welcome)
    assert order == ["synced 0", "joined"]


def test_a_sync_that_fails_ends_the_run(house: House) -> None:
    def fail(lane: int) -> None:
        raise OSError(5, "Input/output error")

    thread = house.planner(before_join=fail)
    lane = house.lane()
    assert thread.ended.wait(TIMEOUT)
    assert isinstance(thread.error, OSError)
    with pytest.raises(Closed):
        lane.receive(TIMEOUT)


def test_a_lane_that_is_greeted_while_the_planner_ends_is_let_go(house: House) -> None:
    """It would wait for a message for ever: its process lives on with the session."""
    greeting, ending = threading.Event(), threading.Event()

    def wait_for_the_end(lane: int) -> None:
        greeting.set()
        assert ending.wait(TIMEOUT)

    thread = house.planner(before_join=wait_for_the_end)
    lane = house.lane()
    assert greeting.wait(TIMEOUT)
    end(thread)
    ending.set()
    with pytest.raises(Closed):
        lane.receive(TIMEOUT)


def test_a_planner_that_closes_sends_lanes_away_also_those_that_come_late(house: House) -> None:
    thread = house.planner()
    lane = house.lane()
    assert isinstance(hear(lane), Welcome)
    thread.tell(lambda planner, at: planner.on_close(at))
    assert isinstance(hear(lane), GoAway)
    assert isinstance(hear(house.lane(2)), GoAway)


def test_strangers_are_not_heard_and_keep_nobody_out(house: House) -> None:
    house.planner()
    silent = connected_to(house.listener.address)
    liar = Channel(connected_to(house.listener.address))
    liar.send(b"x" * 64)
    assert isinstance(hear(house.lane()), Welcome)
    liar.receive(TIMEOUT)  # what it is to sign
    with pytest.raises(Closed):
        liar.receive(TIMEOUT)
    silent.close()


def test_a_start_merges_the_commits_of_runs_that_died_before_they_did(house: House) -> None:
    for _ in range(4):
        house.planner(start=False)
    assert house.commits.newest_snapshot() == 0
    house.planner(fold_every=5)
    wait_until(lambda: house.commits.newest_snapshot() == 5, TIMEOUT)


def test_a_start_sweeps_what_a_killed_run_was_writing_aside(house: House, tmp_path: Path) -> None:
    house.planner(start=False)
    (tmp_path / "notes" / "clicks").mkdir(parents=True)
    house.clock = lambda: at(0) + ms.HOUR
    left = [tmp_path / "commits" / ".000000000002-4f0c", tmp_path / "notes" / "clicks" / ".000000000000-000001-4f0c"]
    young = tmp_path / "commits" / ".000000000002-9a1b"
    for file in (*left, young):
        file.touch()
        written = int(at(0)) / 1e6 + (file is young)
        os.utime(file, (written, written))
    thread = house.planner()
    ask(thread)
    assert [file.exists() for file in (*left, young)] == [False, False, True]
    assert house.commits.read(2) is not None


def test_a_start_removes_orphans_that_are_an_hour_old(house: House, tmp_path: Path) -> None:
    house.planner(start=False)
    house.clock = lambda: at(0) + ms.HOUR
    names = ("lane0-1", "values-000001-1", "source-events-000000000000-1", "lane0-young", "something else")
    (tmp_path / "segments").mkdir()
    for name in names:
        (tmp_path / "segments" / name).touch()
        written = int(at(0)) / 1e6 + (name == "lane0-young")
        os.utime(tmp_path / "segments" / name, (written, written))
    thread = house.planner(positions_every=0.0)
    assert isinstance(hear(house.lane()), Welcome)
    wait_until(lambda: sorted(house.commits.disk.names("segments")) == sorted(names[2:]), TIMEOUT)
    found = [house.commits.read(number) for number in range(3, thread.planner.ledger.number + 1)]
    assert [sorted(commit.free.segments) for commit in found if commit is not None and commit.free] == [["lane0-1", "values-000001-1"]]
