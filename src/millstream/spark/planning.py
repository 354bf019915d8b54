"""The planner of a run, from the driver's side: a process beside it, and the ledger as far as its commits have come here."""

from __future__ import annotations

import itertools
import logging
import pickle
import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from millstream.core.graph import Graph
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, Ledger
from millstream.core.pages import bucket_of
from millstream.core.route import Dealer
from millstream.errors import ProcessDied
from millstream.journal.disk import LocalDisk
from millstream.log.folder import Folder
from millstream.mill import driver_messages as said
from millstream.mill.actions import Fed, Settings
from millstream.mill.channel import Channel, Closed
from millstream.mill.driver_messages import Question
from millstream.mill.driving import Ended
from millstream.mill.messages import KeptKey, PeekFor, Range
from millstream.mill.noted import NoteTaker
from millstream.spark.beside import start_process, wait_or_kill
from millstream.spark.ending import join_all
from millstream.timestamp import Timestamp

T = TypeVar("T")

log = logging.getLogger("millstream")

BEGIN_TIMEOUT = 120.0  # seconds until it must have read its journal
END_TIMEOUT = 10.0


class Planning:
    """The planner's process. What it commits is applied to `ledger` here, and then told to `watchers`, in its order."""

    def __init__(self, graph: Graph, folder: Folder, ledger: Ledger) -> None:
        """`ledger` has the first commit of this run."""
        self.ledger, self._folder, self._outline = ledger, folder, graph.outline
        self.disk = LocalDisk(folder.journal)
        self.secret = secrets.token_bytes(32)
        self.address = ""  # where lanes find it
        self.watchers: list[Callable[[Commit], None]] = []
        self.room = threading.Event()  # sources may be read
        self.room.set()
        self.ended = threading.Event()
        self.error: BaseException | None = None
        dealer = Dealer(graph, Lanes(ledger.plant.buckets, ledger.plant.lanes))
        self._taker = NoteTaker(self.disk, ledger, dealer, self.feed)
        self.notes, self.take_notes = self._taker.notes, self._taker.take
        self._speaking, self._applying = threading.Lock(), threading.Lock()
        self._numbers = itertools.count(1)
        self._asked: set[int] = set()  # and not given up
        self._answers: dict[int, object] = {}
        self._answered = threading.Condition()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._threads: list[threading.Thread] = []  # that hear it, or take notes for it
        self.process = start_process("millstream.mill", theirs)
        self._closing = False

    def begin(self, settings: Settings, *, host: str | None, port: int, clock: Timestamp | None = None) -> None:
        """Let it read the journal; returns when lanes can connect. With `clock` it has no clock but this one, set by `set_clock`."""
        begin = said.Begin(
            journal=str(self._folder.journal),
            checkpoints=str(self._folder.checkpoints),
            fence=self.ledger.fence,
            outline=self._outline,
            settings=settings,
            secret=self.secret,
            host=host,
            port=port,
            clock=clock,
        )
        self._send(begin)
        while not self.address:
            try:
                message = self._channel.receive(BEGIN_TIMEOUT)
            except Closed:
                raise self._died() from None
            if message is None:
                raise TimeoutError(f"the planner is not ready after {BEGIN_TIMEOUT:.0f} s")
            self._take(said.decode_from_planner(message))
            if self.error is not None:
                raise self.error

    def start(self) -> None:
        """Hear it, from now on: `watchers` are complete."""
        self._begin(threading.Thread(target=self._hear, name="millstream hears the planner", daemon=True))

    # What is said to it.

    def feed(self, fed: Fed) -> None:
        """A source brings something."""
        self._send(said.Feed(fed))

    def offer(self, ranges: list[Range]) -> None:
        """A source has something for lanes to read."""
        self._send(said.Offer(ranges))

    def unread(self, injector: str, partitions: list[str] | None) -> None:
        self._send(said.Unread(injector, partitions))

    def has_room(self, timeout: float) -> bool:
        """Waits until sources may be read, so many seconds at most."""
        return self.room.wait(timeout)

    def logged(self, upto: int) -> None:
        self._send(said.Logged(upto))

    def delivered(self, delivery: str, upto: int) -> None:
        self._send(said.Delivered(delivery, upto))

    def stop(self) -> None:
        """Commit the open epoch and checkpoint every lane; it is done when `STOPPED` is true."""
        self._send(said.StopRun())

    def close(self) -> None:
        """The last commit; then lanes are sent away. Returns when both are done."""
        self._send(said.CloseRun())
        self.ask(Question.NOTHING)

    def set_clock(self, now: Timestamp) -> None:
        """Move the clock that `begin` was given."""
        self._send(said.SetClock(now))

    def ask(self, question: Question, timeout: float = 60.0) -> object:
        """An answer; what was said before is heard by then, and every commit before it is in `ledger`."""
        number = next(self._numbers)
        return self._wait_for(number, said.Ask(number, question), timeout)

    def peek(self, computation: str, key: str | None, *, bucket: int | None = None, timeout: float = 10.0) -> KeptKey:
        """What a lane keeps for a key as of the newest commit; without a key, for the one that holds a low watermark back. One that
        checkpoints is waited for."""
        number, of_key = next(self._numbers), 0 if key is None else bucket_of(key, self.ledger.plant.buckets)
        question = PeekFor(number, computation, of_key if bucket is None else bucket, key)
        kept = self._wait_for(number, said.AskLane(question), timeout)
        assert isinstance(kept, KeptKey)
        return kept

    def _wait_for(self, number: int, message: said.ToPlanner, timeout: float) -> object:
        with self._answered:
            self._asked.add(number)
        self._send(message)
        with self._answered:
            self._answered.wait_for(lambda: number in self._answers or self.ended.is_set(), timeout)
            self._asked.discard(number)
            if number in self._answers:
                return self._answers.pop(number)
        raise self.error or TimeoutError("the planner does not answer")

    def read(self, look: Callable[[Ledger], T]) -> T:
        """What is found in the ledger while nothing changes in it."""
        with self._applying:
            return look(self.ledger)

    def catch_up(self) -> None:
        """Returns when every commit that there is by now is in `ledger`, or no more come."""
        with suppress(Exception):  # what the planner has met is told by the run
            self.ask(Question.NOTHING)

    def end(self) -> None:
        """No more is heard; returns when the process is gone. It ends when its connection does, whatever it is doing."""
        self._closing = True
        self._over(None)
        self._channel.close()
        wait_or_kill(self.process, END_TIMEOUT)
        if self.address.startswith("unix:"):  # one that was killed leaves its socket
            shutil.rmtree(Path(self.address.removeprefix("unix:")).parent, ignore_errors=True)

    def join(self, seconds: float) -> list[str]:
        """After `end`: wait for the threads that heard it; returns those that still run."""
        return join_all(list(self._threads), seconds)

    def _begin(self, thread: threading.Thread) -> None:
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()

    # What it says.

    def _hear(self) -> None:
        try:
            while not self.ended.is_set():
                message = self._channel.receive()
                assert message is not None
                self._take(said.decode_from_planner(message))
        except Closed:
            self._over(None if self._closing or self.ended.is_set() else self._died())
        except BaseException as error:  # the run watches for it: a thread has nobody to raise to
            self._over(error)
        finally:
            self._channel.close()  # whoever is not heard any more must not go on, nor wait for an answer

    def _take(self, message: said.FromPlanner) -> None:
        match message:
            case said.Ready(address):
                self.address = address
            case said.Committed(commit):
                with self._applying:
                    self.ledger.apply(commit)
                for watcher in self.watchers:
                    watcher(commit)
            case said.Room(is_there):
                self.room.set() if is_there else self.room.clear()
            case said.NotesLeft(number, injector):
                self._begin(
                    threading.Thread(
                        target=self._take_notes, args=(number, injector), name=f"millstream takes notes of {injector}", daemon=True
                    )
                )
            case said.Answer(number, value, kept):
                with self._answered:
                    if number in self._asked:
                        self._answers[number] = value if kept is None else kept
                        self._answered.notify_all()
            case said.Warned(text, level):
                log.log(level, text)
            case said.HasEnded(kind, text, error):
                self._over(pickle.loads(error) if error else Ended(kind, text))  # noqa: S301  (from the process that this one started)

    def _take_notes(self, number: int, injector: str) -> None:
        try:
            self.take_notes(injector)
        except BaseException as error:  # the run watches for it
            self._over(error)
            self._channel.close()  # or whoever waits for these notes would wait for ever
        else:
            self._send(said.NotesTaken(number))

    def _over(self, error: BaseException | None) -> None:
        self.error = self.error or error
        with self._answered:
            self.ended.set()
            self._answered.notify_all()

    def _died(self) -> ProcessDied:
        code = wait_or_kill(self.process, END_TIMEOUT)
        perhaps = ", perhaps killed for lack of memory" if code == -9 else ""
        return ProcessDied(f"the planner's process died (exit code {code}{perhaps}); start the run again, and it goes on where it was")

    def _send(self, message: said.ToPlanner) -> None:
        content = said.encode(message)
        with self._speaking, suppress(Closed):  # whoever hears it finds out
            self._channel.send(content)
