"""The planner's process in a thread of the test: what it hears while it waits for the disk, and in which order."""

from __future__ import annotations

import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.ledger import Commit, Ledger
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import claim
from millstream.mill import driver_messages as said
from millstream.mill.actions import Moment, Settings
from millstream.mill.beginning import first_commit, plant_of
from millstream.mill.channel import Channel
from millstream.mill.messages import Report, Welcome, Work, encode_message
from millstream.mill.process import PlannerProcess
from tests.conformance.scenes import at
from tests.mill.desk import graph_of
from tests.mill.spoken import BUCKETS, TIMEOUT, fed_of, hear, join


class Driver:
    """Speaks to a planner's process as the driver does."""

    def __init__(self, path: Path) -> None:
        self.graph, self.commits, self._secret = graph_of(), Commits(LocalDisk(path)), secrets.token_bytes(32)
        self.commits.make_folders()
        plant = plant_of(self.graph.outline, buckets=BUCKETS, lanes=1)

        def make(ledger: Ledger) -> Commit:
            return first_commit(self.graph.outline, ledger, fence=1, plant=plant, id_=uuid.uuid4().hex, at=Moment(at(0), 0.0))

        claim(self.commits, make)
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        settings = Settings(linger=0.0)
        begin = said.Begin(str(path), str(path), 1, self.graph.outline, settings, self._secret, host=None, port=0, clock=at(0))
        self.process = PlannerProcess(Channel(theirs), begin)
        self._running = threading.Thread(target=self.process.run)
        self._running.start()
        ready = self.hear()
        assert isinstance(ready, said.Ready)
        self.lane = join(ready.address, self._secret)
        assert isinstance(hear(self.lane), Welcome)

    def feed(self, position: int) -> None:
        self.say(said.Feed(fed_of(self.commits.disk, self.graph, position)))

    def say(self, message: said.ToPlanner) -> None:
        self.channel.send(said.encode(message))

    def hear(self) -> said.FromPlanner:
        message = self.channel.receive(TIMEOUT)
        assert message is not None
        return said.decode_from_planner(message)

    def report(self, run: Work) -> None:
        self.lane.send(encode_message(Report(run.header.epoch, run.try_number, [], [])))

    def while_the_disk_is_waited_for(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
        """Once, within the next commit."""
        create = Commits.create

        def slow(commits: Commits, commit: Commit) -> bool:
            monkeypatch.setattr(Commits, "create", create)
            happens()
            return create(commits, commit)

        monkeypatch.setattr(Commits, "create", slow)

    def close(self) -> None:
        self.channel.close()
        self.lane.close()
        self._running.join()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()


def test_what_is_fed_while_the_disk_is_waited_for_is_in_the_very_next_epoch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.feed(1)
    first = hear(driver.lane)
    assert isinstance(first, Work)
    driver.feed(2)
    driver.say(said.Ask(1, said.Question.NOTHING))
    assert isinstance(driver.hear(), said.Answer)  # the second value is heard, and waits for the commit of the first

    def happens() -> None:
        driver.say(said.Delivered("none", 1))
        driver.feed(3)

    driver.while_the_disk_is_waited_for(monkeypatch, happens)
    driver.report(first)
    second = hear(driver.lane)
    assert isinstance(second, Work)
    assert len(second.given) == 2
    driver.report(second)
    committed = [driver.hear(), driver.hear()]
    positions = [each.commit.sources["events"].positions[""] for each in committed if isinstance(each, said.Committed)]
    assert positions == [2, 3]


def test_what_was_read_with_a_commit_is_not_waited_for_again(driver: Driver) -> None:
    """A report and a question come at once: the report's commit reads the question, and then its socket is said to be readable."""
    asked = threading.Thread(target=driver.process._hear, daemon=True)
    asked.start()
    asked.join(TIMEOUT)
    assert not asked.is_alive()


def test_what_asks_for_an_answer_does_not_overtake_the_commit_and_nothing_overtakes_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.feed(1)
    first = hear(driver.lane)
    assert isinstance(first, Work)

    def happens() -> None:
        driver.feed(2)
        driver.say(said.Ask(7, said.Question.IDLE))
        driver.feed(3)

    driver.while_the_disk_is_waited_for(monkeypatch, happens)
    driver.report(first)
    assert isinstance(driver.hear(), said.Committed)
    answer = driver.hear()
    assert answer == said.Answer(7, False)
    second = hear(driver.lane)
    assert isinstance(second, Work)
    assert len(second.given) == 1
    driver.report(second)
    third = driver.hear()
    assert isinstance(third, said.Committed)
    assert third.commit.sources["events"].positions[""] == 3  # fed after the question, and so heard after it
