"""The planner's process and the driver's side of it, with a real journal and a lane that a test speaks for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millstream.core.ledger import Checkpoint, Commit, Identity
from millstream.errors import LogError, MillstreamError
from millstream.journal.errors import Missing
from millstream.journal.notes import Note, Notes
from millstream.journal.segments import segment_path
from millstream.log.folder import Folder, Pinned
from millstream.mill.actions import Fed, Settings
from millstream.mill.channel import Channel, Closed, connect
from millstream.mill.driver_messages import Question, Seats, SeatSeen
from millstream.mill.driving import Ended, wall_clock
from millstream.mill.messages import GoAway, Noted, Report, Welcome, Work, encode_message
from millstream.spark.milling import RunJournal
from millstream.spark.planning import Planning
from tests.conformance.scenes import at
from tests.mill.desk import graph_of
from tests.mill.spoken import BUCKETS, TIMEOUT, fed_of, hear, join
from tests.waiting import wait_until


class Site:
    """A folder, and one planner after another that owns it."""

    def __init__(self, path: Path) -> None:
        self.graph, self.folder = graph_of(), Folder(path)
        self.folder.open()
        self.journal = RunJournal(self.folder, self.graph, Pinned("desk", "id", str(path), BUCKETS, 1))
        self.made: list[Planning] = []
        self.channels: list[Channel] = []
        self.commits: list[int] = []

    def planner(self, *, settings: Settings | None = None, **named: object) -> Planning:
        planner = self.unready()
        planner.watchers.append(lambda commit: self.commits.append(commit.number))
        planner.begin(settings or Settings(), host=None, port=0, **named)  # type: ignore[arg-type]
        planner.start()
        return planner

    def unready(self) -> Planning:
        planner = Planning(self.graph, self.folder, self.journal.claim(wall_clock()))
        self.made.append(planner)
        return planner

    def lane(self, planner: Planning, state: Checkpoint | None = None, **named: int) -> Channel:
        channel = join(planner.address, planner.secret, state=state, **named)
        self.channels.append(channel)
        return channel

    def fed(self) -> Fed:
        return fed_of(self.journal.disk, self.graph)

    def close(self) -> None:
        for planner in self.made:
            planner.end()
        for channel in self.channels:
            channel.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "mill")
    yield made
    made.close()


def seats(planner: Planning) -> Seats:
    found = planner.ask(Question.SEATS)
    assert isinstance(found, Seats)
    return found


def run_one(lane: Channel) -> int:
    """Report the epoch that a lane is given, with nothing in it."""
    run = hear(lane)
    assert isinstance(run, Work)
    lane.send(encode_message(Report(run.header.epoch, run.try_number, [], [])))
    return run.header.epoch


def test_what_is_fed_becomes_an_epoch_and_its_commit_comes_here(site: Site) -> None:
    planner = site.planner()
    lane = site.lane(planner)
    assert isinstance(hear(lane), Welcome)
    planner.feed(site.fed())
    epoch = run_one(lane)
    wait_until(lambda: planner.ledger.number == epoch, TIMEOUT)
    assert site.commits == [epoch]
    assert planner.ledger.sources["events"].positions[""] == 1
    assert planner.read(lambda ledger: ledger.number) == epoch
    wait_until(lambda: planner.ask(Question.IDLE) is True, TIMEOUT)
    assert planner.ask(Question.DRAINED) is False
    assert planner.ask(Question.TROUBLES) == []
    wait_until(lambda: seats(planner).rests == epoch, TIMEOUT)
    assert seats(planner).lanes == [SeatSeen("here", 0, 0)]


def test_an_answer_comes_after_every_commit_before_it(site: Site) -> None:
    planner = site.planner()
    for position in range(1, 51):
        planner.feed(Fed("events", [], {}, positions={"": position}))
        planner.ask(Question.NOTHING)
        assert planner.ledger.sources["events"].positions[""] == position


def test_a_stop_and_a_close_end_in_a_last_commit_and_lanes_are_sent_away(site: Site) -> None:
    planner = site.planner()
    lane = site.lane(planner)
    assert isinstance(hear(lane), Welcome)
    planner.delivered("nowhere", 1)
    planner.logged(planner.ledger.number)
    planner.stop()
    wait_until(lambda: planner.ask(Question.STOPPED) is True, TIMEOUT)
    planner.close()
    assert isinstance(hear(lane), GoAway)
    planner.end()
    assert (planner.ended.is_set(), planner.error) == (True, None)


def test_a_sink_is_answered_when_its_note_is_fed_and_there_is_room(site: Site) -> None:
    planner = site.planner(settings=Settings(backlog_records=1))
    fed = site.fed()
    Notes(site.journal.disk).leave(Note("events", 0, planner.ledger.fence, fed.frames, {}, 1, 0))
    sink = connect(planner.address, planner.secret)
    site.channels.append(sink)
    sink.send(encode_message(Noted("events")))
    wait_until(lambda: planner.ledger.sources.get("events") is not None, TIMEOUT)
    assert planner.ledger.sources["events"].batch == 0
    wait_until(lambda: not planner.room.is_set(), TIMEOUT)
    assert sink.receive(0.5) is None, "the backlog is full"
    lane = site.lane(planner)
    assert isinstance(hear(lane), Welcome)
    run_one(lane)
    assert sink.receive(TIMEOUT) == b""
    wait_until(planner.room.is_set, TIMEOUT)


def test_a_planner_that_is_killed_is_told_and_the_folder_goes_on(site: Site) -> None:
    planner = site.planner()
    os.kill(planner.process.pid, signal.SIGKILL)
    assert planner.ended.wait(TIMEOUT)
    assert isinstance(planner.error, MillstreamError)
    assert str(planner.error) == (
        "the planner's process died (exit code -9, perhaps killed for lack of memory); start the run again, and it goes on where it was"
    )
    with pytest.raises(MillstreamError, match="the planner's process died"):
        planner.ask(Question.IDLE)
    assert site.planner().ask(Question.IDLE) is False, "its lane has not come"


def test_rule_3_an_overtaken_planner_ends(site: Site) -> None:
    old = site.planner()
    site.planner()
    old.feed(Fed("events", [], {"": at(5)}))
    assert old.ended.wait(TIMEOUT)
    assert isinstance(old.error, Ended)
    assert old.error.kind == "Fenced"


def test_one_that_was_overtaken_before_it_began_does_not_begin(site: Site) -> None:
    old = site.unready()
    site.unready()
    with pytest.raises(MillstreamError, match="a newer run owns the folder; this one stops"):
        old.begin(Settings(), host=None, port=0)


def test_what_it_meets_at_its_beginning_is_raised_here(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        planner = site.unready()
        with pytest.raises(OSError, match="Address already in use"):
            planner.begin(Settings(), host="127.0.0.1", port=taken.getsockname()[1])


def test_what_it_meets_later_is_told_with_its_class(site: Site) -> None:
    planner = site.planner()
    commits = site.folder.journal / "commits"
    commits.rename(commits.with_name("gone"))
    planner.feed(Fed("events", [], {"": at(5)}))
    assert planner.ended.wait(TIMEOUT)
    assert isinstance(planner.error, LogError)
    assert "cannot be used: No such file or directory" in str(planner.error)


def test_what_it_warns_of_is_said_here(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    planner = site.planner()
    lane = site.lane(planner)
    assert isinstance(hear(lane), Welcome)
    with caplog.at_level(logging.WARNING, "millstream"):
        lane.send(b"nonsense")
        with pytest.raises(Closed):
            lane.receive(TIMEOUT)
        wait_until(lambda: "a lane said what cannot be read" in caplog.text, TIMEOUT)


def test_a_lane_that_comes_back_is_logged_here(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    planner = site.planner()
    with caplog.at_level(logging.INFO, "millstream"):
        lost = site.lane(planner)
        assert isinstance(hear(lost), Welcome)
        lost.close()
        wait_until(lambda: not seats(planner).lanes[0].process, TIMEOUT)
        assert isinstance(hear(site.lane(planner, attempt=2)), Welcome)
        wait_until(lambda: "lane 0 was lost, and is back after" in caplog.text, TIMEOUT)
    (record,) = [record for record in caplog.records if "is back" in record.getMessage()]
    assert record.levelno == logging.INFO


def test_when_it_has_ended_no_thread_of_it_is_left(site: Site) -> None:
    planner = site.planner()
    planner.end()
    assert planner.join(TIMEOUT) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("millstream hears the planner")]


def test_rule_12_damage_is_told_with_its_kind(site: Site) -> None:
    planner = site.planner()
    site.lane(planner, Checkpoint(Identity(50, "of another copy", "1")))
    assert planner.ended.wait(TIMEOUT)
    assert isinstance(planner.error, Ended)
    assert planner.error.kind == "LogError"
    assert "restore both from one copy" in str(planner.error)


def test_it_has_the_clock_that_it_is_given(site: Site) -> None:
    planner = site.planner(clock=at(7))
    planner.feed(Fed("events", [], {"": at(5)}))
    planner.ask(Question.NOTHING)
    wait_until(lambda: planner.ledger.now >= at(7), TIMEOUT)
    planner.set_clock(at(9))
    planner.feed(Fed("events", [], {"": at(6)}))
    planner.ask(Question.NOTHING)
    assert planner.ledger.sources["events"].marks[""].heard == at(9)


def test_notes_that_cannot_be_fed_end_the_run_and_nobody_waits_for_them(site: Site) -> None:
    planner = site.planner()
    fed = site.fed()
    Notes(site.journal.disk).leave(Note("events", 0, planner.ledger.fence - 1, fed.frames, {}, 1, 0))
    site.journal.disk.remove(segment_path(fed.frames[0].segment))
    sink = connect(planner.address, planner.secret)
    site.channels.append(sink)
    sink.send(encode_message(Noted("events")))
    assert planner.ended.wait(TIMEOUT)
    assert isinstance(planner.error, Missing)
    with pytest.raises(Closed):
        sink.receive(TIMEOUT)
    assert planner.process.wait(TIMEOUT) == 0


def test_one_that_does_not_listen_any_more_can_be_ended(site: Site) -> None:
    """Whoever feeds it waits for it, and lets go when it is ended."""
    planner = site.planner()
    os.kill(planner.process.pid, signal.SIGSTOP)
    many = Fed("events", [], {f"{n}": at(n) for n in range(1000)})
    feeder = threading.Thread(target=lambda: [planner.feed(many) for _ in range(1000)])
    feeder.start()
    feeder.join(0.5)
    assert feeder.is_alive(), "the socket is full"
    ending = threading.Thread(target=planner.end)
    ending.start()
    feeder.join(TIMEOUT)
    assert not feeder.is_alive()
    ending.join(TIMEOUT)
    assert not ending.is_alive()


ORPHAN = """
import sys
from pathlib import Path
from tests.spark.test_planning import Site
site = Site(Path(sys.argv[1]))
planner = site.planner()
print(planner.process.pid, planner.address, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_driver_and_leaves_no_socket(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path / "mill")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    pid, address = driver.stdout.readline().split()
    process = psutil.Process(int(pid))
    assert process.is_running()
    assert Path(address.removeprefix("unix:")).exists()
    driver.kill()
    driver.communicate()
    process.wait(TIMEOUT)
    assert not Path(address.removeprefix("unix:")).exists()


def test_commits_are_applied_before_anybody_is_told(site: Site) -> None:
    planner = site.unready()
    seen: list[tuple[int, int]] = []
    heard = threading.Event()

    def watch(commit: Commit) -> None:
        seen.append((commit.number, planner.ledger.number))
        heard.set()

    planner.watchers.append(watch)
    planner.begin(Settings(), host=None, port=0)
    planner.start()
    planner.feed(Fed("events", [], {"": at(5)}))
    assert heard.wait(TIMEOUT)
    assert all(number == applied for number, applied in seen)
