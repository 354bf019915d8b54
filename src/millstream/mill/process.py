"""The planner's process: a socket to the driver, and the planner's thread. It ends when its connection does.

A process of its own, for in the driver it would share the interpreter's lock with the user's own functions: each of its steps
would wait for whoever computes (docs/decisions/0016).
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millstream.core.ledger import Commit
from millstream.errors import Fenced
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import open_ledger
from millstream.mill import driver_messages as said
from millstream.mill.actions import Action, Moment
from millstream.mill.beginning import rows_to_redo
from millstream.mill.channel import Channel, Closed, Listener
from millstream.mill.checkpoints import Checkpoints
from millstream.mill.driving import Ended, PlannerThread, wall_clock
from millstream.mill.planner import Planner
from millstream.mill.watching import troubles
from millstream.timestamp import Timestamp


class PlannerProcess:
    """One planner, from `Begin` to its end."""

    def __init__(self, channel: Channel, begin: said.Begin) -> None:
        self._channel, self._clock = channel, begin.clock
        self._speaking = threading.Lock()  # whoever greets a sink speaks too
        self._numbers = itertools.count(1)
        self._taken: dict[int, threading.Event] = {}
        self._heard: deque[said.ToPlanner] = deque()  # in the order in which it was said, and to be taken in that
        logger = logging.getLogger("millstream")
        logger.addHandler(_Telling(self._send))
        logger.setLevel(logging.INFO)  # what of it is shown, the driver's own settings say
        commits = Commits(LocalDisk(Path(begin.journal)))
        ledger = open_ledger(commits)
        if ledger.fence != begin.fence:
            raise Fenced("a newer run owns the folder; this one stops")
        planner = Planner(
            begin.outline,
            ledger,
            settings=begin.settings,
            redo=rows_to_redo(commits, ledger, lanes=ledger.plant.lanes),
            folded=commits.newest_snapshot(),
            new_id=lambda: uuid.uuid4().hex,
            at=Moment(self._now(), time.monotonic()),
        )
        self._listener = Listener(begin.host, begin.port)
        checkpoints = Checkpoints(Path(begin.checkpoints))
        self._thread = PlannerThread(
            planner,
            commits,
            self._listener,
            begin.secret,
            clock=self._now,
            before_join=checkpoints.sync,
            take_notes=self._have_notes_taken,
            hear_feeds=self._hear_feeds,
        )
        self._thread.watchers.append(self._tell_commit)
        self._thread.on_peeked = lambda peeked: self._send(said.Answer(peeked.number, kept=peeked.kept))
        self._thread.on_room = lambda is_there: self._send(said.Room(is_there))
        self._thread.attend(channel, self._hear)

    def run(self) -> None:
        """Until the driver is gone, or it cannot go on; then the driver is told why."""
        self._send(said.Ready(self._listener.address))
        self._thread.start()
        self._thread.join()
        error = self._thread.error
        if error is not None and not isinstance(error, Closed):
            self._send(has_ended(error))

    def _now(self) -> Timestamp:
        return wall_clock() if self._clock is None else self._clock

    def _send(self, message: said.FromPlanner) -> None:
        with self._speaking:
            self._channel.send(said.encode(message))

    def _tell_commit(self, commit: Commit) -> None:
        self._send(said.Committed(commit))

    def _have_notes_taken(self, injector: str) -> None:
        """Only the driver has the code that deals records; returns when what was left is fed."""
        number, taken = next(self._numbers), threading.Event()
        self._taken[number] = taken
        self._send(said.NotesLeft(number, injector))
        while not taken.wait(0.2) and not self._thread.ended.is_set():
            pass

    # In the planner's thread.

    def _hear(self) -> None:
        """There was something to read. It may be read by now: by `_hear_feeds`, with the commit of a lane that was heard first."""
        self._heard.extend(map(said.decode_to_planner, self._channel.take_if_any()))
        self._take_all()

    def _take_all(self) -> None:
        while self._heard:
            self._take(self._heard.popleft())

    def _hear_feeds(self) -> None:
        """What ends bring may be heard while a commit is under way; what asks for an answer, or for the end, must not overtake it."""
        self._heard.extend(map(said.decode_to_planner, self._channel.take_if_any()))
        while self._heard and isinstance(self._heard[0], said.Feed | said.Offer | said.Unread | said.Delivered | said.Logged):
            self._take(self._heard.popleft())
        if self._heard:
            self._thread.tell(self._take_rest)

    def _take_rest(self, planner: Planner, at: Moment) -> list[Action]:
        self._take_all()
        return []

    def _take(self, message: said.ToPlanner) -> None:
        perform = self._thread.perform
        match message:
            case said.Feed(fed):
                perform(lambda planner, at: planner.on_fed(fed, at))
            case said.Offer(ranges):
                perform(lambda planner, at: planner.on_offered(ranges, at))
            case said.Unread(injector, partitions):
                perform(lambda planner, at: planner.on_unread(injector, partitions, at))
            case said.Delivered(delivery, upto):
                perform(lambda planner, at: planner.on_delivered(delivery, upto, at))
            case said.Logged(upto):
                perform(lambda planner, at: planner.on_logged(upto, at))
            case said.NotesTaken(number):
                self._thread.show_room()  # first: whoever waits for this asks for room next
                self._taken.pop(number).set()
            case said.Ask(number, question):
                self._send(said.Answer(number, self._answer(question)))
            case said.AskLane(question):
                perform(lambda planner, at: planner.on_peek(question, at))
            case said.StopRun():
                perform(lambda planner, at: planner.on_stop(at))
            case said.CloseRun():
                perform(lambda planner, at: planner.on_close(at))
            case said.SetClock(now):
                self._clock = now
            case said.Begin():
                raise ValueError("a planner begins once")

    def _answer(self, question: said.Question) -> bool | list[str] | said.Seats | None:
        planner = self._thread.planner
        match question:
            case said.Question.NOTHING:
                return None
            case said.Question.IDLE:
                return planner.rests
            case said.Question.DRAINED:
                return planner.drained
            case said.Question.STOPPED:
                return planner.stopped
            case said.Question.TROUBLES:
                return [trouble.message for trouble in troubles(planner, Moment(self._now(), time.monotonic()))]
            case said.Question.SEATS:
                return self._seats(planner)

    def _seats(self, planner: Planner) -> said.Seats:
        return said.Seats(
            lanes=[said.SeatSeen(seat.process if seat.here else "", seat.state.at.epoch, seat.rows) for seat in planner.seats],
            opened=None if planner.opened is None else planner.opened.epoch,
            rests=planner.ledger.number if planner.rests else None,
            turns=self._thread.turns,
            ran=self._thread.ran,
            wrote=self._thread.wrote,
            spending=self._thread.meter.spending,
            spans=self._thread.meter.take_spans(),
        )


class _Telling(logging.Handler):
    """What is said in this process is said by the driver."""

    def __init__(self, send: Callable[[said.FromPlanner], None]) -> None:
        super().__init__(logging.INFO)
        self._say = send

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Closed):  # there is nobody left to hear it
            self._say(said.Warned(record.getMessage(), record.levelno))


def serve(channel: Channel) -> None:
    """The whole life of a planner's process."""
    try:
        first = channel.receive()
        assert first is not None
        begin = said.decode_to_planner(first)
        assert isinstance(begin, said.Begin), "the first message to a planner is Begin"
        try:
            process = PlannerProcess(channel, begin)
        except Exception as error:  # the driver tells of it: nobody sees what a process raises
            channel.send(said.encode(has_ended(error)))
            return
        process.run()
    except Closed:
        os._exit(0)  # the driver is gone; a commit under way is made or not, and the next run reads which


def has_ended(error: BaseException) -> said.HasEnded:
    if isinstance(error, Ended):
        return said.HasEnded(error.kind, str(error))
    try:
        content = pickle.dumps(error)
        pickle.loads(content)  # noqa: S301  (what was just made)
    except Exception:  # then its class and its message must do
        content = b""
    return said.HasEnded(type(error).__name__, str(error), content)
