"""The planner's thread: sockets, the journal and the clock around the machine."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from millstream.core.ledger import Commit
from millstream.errors import MillstreamError
from millstream.journal.commits import Commits, Snapshot
from millstream.journal.leftovers import find_leftovers, journal_folders, sweep_asides
from millstream.journal.notes import Notes
from millstream.journal.ownership import Ownership
from millstream.journal.segments import segment_path
from millstream.mill.actions import Action, Close, End, Fold, Inform, Look, Moment, Remove, Send, Warn, Write
from millstream.mill.channel import Channel, Closed, Listener, admit
from millstream.mill.messages import Busy, Failed, Joining, Noted, Peeked, Report, Returned, decode_from_lane, encode_message
from millstream.mill.planner import Planner
from millstream.mill.spending import Meter
from millstream.timestamp import Timestamp

log = logging.getLogger("millstream")

LOOK_INTERVAL = 600.0  # seconds between two looks for what no commit names

PlannerEvent = Callable[[Planner, Moment], list[Action]]


class Ended(MillstreamError):
    """The planner has ended the run; `kind` is the class of what it met."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Watcher(Protocol):
    """Who is told of every commit once it is durable."""

    def __call__(self, commit: Commit) -> None: ...


def wall_clock() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


class PlannerThread(threading.Thread):
    """Waits for lanes and for events of other threads; never polls. Each loop: hear, decide, act."""

    def __init__(
        self,
        planner: Planner,
        commits: Commits,
        listener: Listener,
        secret: bytes,
        *,
        clock: Callable[[], Timestamp] = wall_clock,
        before_join: Callable[[int], None] = lambda lane: None,
        take_notes: Callable[[str], None] = lambda injector: None,
        hear_feeds: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_join` syncs what Spark has written of a lane's checkpoint (rule 14). `take_notes` has those of an injector fed.

        `hear_feeds` is called when a commit is durable and the next epoch is not planned: what sources have brought while the disk
        was waited for goes into that epoch. Heard after it, it would wait for one more, and under load nearly all came so.
        """
        super().__init__(name="millstream plans", daemon=True)
        self.planner, self._commits, self._listener, self._secret = planner, commits, listener, secret
        self._clock, self._before_join, self._take_notes, self._hear_feeds = clock, before_join, take_notes, hear_feeds
        self._still_owner = Ownership(commits, planner.ledger.fence, lambda: planner.ledger.number)
        self.disk = commits.disk
        self.notes = Notes(commits.disk)
        self.room = threading.Event()  # sources may be read
        self.room.set()
        self.on_room: Callable[[bool], None] = lambda is_there: None  # called when that changes
        self.on_peeked: Callable[[Peeked], None] = lambda peeked: None
        self.watchers: list[Watcher] = []
        self._inbox: deque[PlannerEvent] = deque()
        self._channels: dict[int, Channel] = {}
        self._greeted: set[Channel] = set()  # the planner is to hear of them
        self._numbers = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(4096))
        self._sleeping = False
        self._wait: float | None = 0.0
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._chores: deque[Callable[[], None]] = deque()
        self._chore = threading.Event()
        self.turns = 0  # loops so far: after two more, all that came before was heard
        self.ran = self.wrote = 0.0  # seconds that epochs took in the lanes, and commits on the disk
        self.meter = Meter()

    # For other threads.

    def tell(self, event: PlannerEvent) -> None:
        """Have an event heard by the planner, in its own thread."""
        self._inbox.append(event)
        if self._sleeping:
            self._nudge()

    def attend(self, channel: Channel, hear: Callable[[], None]) -> None:
        """Call this, in the planner's thread, when there is something to read from a channel. Before the start."""
        self._selector.register(channel.socket, selectors.EVENT_READ, hear)

    def perform(self, event: PlannerEvent) -> None:
        """Of the planner's own thread: hear an event now."""
        self._act(event(self.planner, self._moment()))

    def _nudge(self) -> None:
        with suppress(OSError):  # it is awake, or gone
            self._wake.send(b"!")

    # The thread.

    def run(self) -> None:
        """Until something raises: what ends a run, or that the driver is gone."""
        threading.Thread(target=self._listen, name="millstream listens", daemon=True).start()
        chores = threading.Thread(target=self._do_chores, name="millstream tidies", daemon=True)
        chores.start()
        try:
            sweep_asides(self.disk, journal_folders(self.disk), now=self._clock())  # before this run writes any
            self._tick()
            while True:
                self._loop()
        except BaseException as error:  # the run watches for it: a thread has nobody to raise to
            self.error = error
        finally:
            self.ended.set()
            self._listener.close()
            for channel in [*self._channels.values(), *self._greeted]:  # a lane that is not let go would wait for ever
                channel.close()
            self._chore.set()
            chores.join()
            self._selector.close()
            self._wake.close()
            self._woken.close()

    def _moment(self) -> Moment:
        return Moment(self._clock(), time.monotonic())

    def _loop(self) -> None:
        self._sleeping = True
        ready = self._selector.select(0.0 if self._inbox else self._wait)
        self._sleeping = False
        for key, _ in ready:
            key.data()
        while self._inbox:
            self.perform(self._inbox.popleft())
        self._tick()
        self.show_room()
        self.turns += 1

    def show_room(self) -> None:
        """Of the planner's own thread: whether sources may be read now."""
        if self.planner.has_room != self.room.is_set():
            self.room.set() if self.planner.has_room else self.room.clear()
            self.on_room(self.planner.has_room)

    def _tick(self) -> None:
        """What is due is done; then it is known how long to wait, from the same moment on: in between nothing may become due unseen."""
        at = self._moment()
        self._act(self.planner.on_tick(at))
        self._wait = self.planner.next_tick(at)

    def _hear(self, connection: int) -> None:
        channel = self._channels.get(connection)
        if channel is None:
            return
        try:
            messages = channel.take()
        except Closed:
            self._close(connection)
            self._act(self.planner.on_lost(connection, self._moment()))
            return
        for message in messages:
            try:
                said = decode_from_lane(message)
            except msgspec.DecodeError as error:
                log.warning("a lane said what cannot be read: %s", error)
                self._close(connection)
                self._act(self.planner.on_lost(connection, self._moment()))
                return
            at = self._moment()
            match said:
                case Report():
                    self.meter.reported(said.spent)
                    self._act(self.planner.on_report(connection, said, at))
                case Failed():
                    self._act(self.planner.on_failed(connection, said, at))
                case Busy():
                    self._act(self.planner.on_busy(connection, said, at))
                case Returned():
                    self._act(self.planner.on_returned(connection, said, at))
                case Peeked():
                    self.on_peeked(said)
                case Joining():
                    pass  # said once, before it was let in

    def _act(self, actions: list[Action]) -> None:
        todo = deque(actions)
        while todo:
            match todo.popleft():
                case Send(connection, message):
                    self._send(connection, encode_message(message), todo)
                case Close(connection):
                    self._close(connection)
                case Write(commit):
                    todo.extend(self._write(commit))
                case Remove(segments, notes):
                    self._later(lambda segments=segments, notes=notes: self._remove(segments, notes))  # type: ignore[misc]
                case Fold(_, needed_from):
                    snapshot = Snapshot.of(self.planner.ledger)
                    self._later(lambda snapshot=snapshot, needed=needed_from: self._fold(snapshot, needed))  # type: ignore[misc]
                case Look(otherwise):
                    if not self._still_owner():
                        raise Ended("Fenced", "a newer run owns the folder; this one stops")
                    raise Ended("LogError", otherwise)
                case End(kind, message):
                    raise Ended(kind, message)
                case Warn(message):
                    log.warning(message)
                case Inform(message):
                    log.info(message)

    def _send(self, connection: int, message: bytes, todo: deque[Action]) -> None:
        channel = self._channels.get(connection)
        if channel is None:
            return
        try:
            channel.send(message)
        except Closed:
            self._close(connection)
            todo.extend(self.planner.on_lost(connection, self._moment()))

    def _write(self, commit: Commit) -> list[Action]:
        began = time.monotonic()
        if not self._commits.create(commit):
            return self.planner.on_taken()
        ran, wrote = began - self.planner.began, time.monotonic() - began
        lanes = len(self.planner.opened.lanes) if self.planner.opened is not None else 0
        self.meter.committed(commit.number, began=time.time() - ran - wrote, ran=ran, wrote=wrote, lanes=lanes)
        if commit.summaries:  # a lane has run an epoch, since the last was planned
            self.ran += ran
        self.wrote += wrote
        self._hear_feeds()
        actions = self.planner.on_committed(self._moment())
        for watcher in self.watchers:
            watcher(commit)
        return actions

    def _close(self, connection: int) -> None:
        channel = self._channels.pop(connection, None)
        if channel is not None:
            self._selector.unregister(channel.socket)
            channel.close()

    # Beside it.

    def _listen(self) -> None:
        while (channel := self._listener.accept()) is not None:
            threading.Thread(target=self._greet, args=(channel,), name="millstream greets", daemon=True).start()

    def _greet(self, channel: Channel) -> None:
        """A stranger proves that he knows the secret, and says who he is; only then the planner hears of him."""
        try:
            if not admit(channel, self._secret):
                channel.close()
                return
            message = channel.receive(10.0)
            join = None if message is None else decode_from_lane(message)
            if isinstance(join, Noted):
                self._answer(channel, join)
                return
            if not isinstance(join, Joining):
                channel.close()
                return
            self._before_join(join.lane)
            epoch = join.state.at.epoch
            commit = self._commits.id_of(epoch) if epoch else None
        except (Closed, msgspec.DecodeError) as error:
            log.warning("somebody who wanted to be a lane: %s", error)
            channel.close()
            return
        except BaseException as error:
            self.error = self.error or error
            channel.close()
            self.tell(_raiser(error))
            return

        def event(planner: Planner, at: Moment) -> list[Action]:
            self._numbers += 1
            self._channels[self._numbers] = channel
            self._greeted.discard(channel)
            self.meter.spending.restarts += planner.seats[join.lane].lost_at is not None
            self._selector.register(channel.socket, selectors.EVENT_READ, partial(self._hear, self._numbers))
            return planner.on_join(self._numbers, join, commit, at)

        self._greeted.add(channel)
        self.tell(event)
        if self.ended.is_set():
            channel.close()

    def _answer(self, channel: Channel, noted: Noted) -> None:
        """A sink has left a note; it is answered when there is room for more."""
        self._take_notes(noted.injector)
        while not self.room.wait(0.2) and not self.ended.is_set():
            pass
        with suppress(Closed):
            channel.send(b"")
        channel.close()

    def _later(self, chore: Callable[[], None]) -> None:
        self._chores.append(chore)
        self._chore.set()

    def _do_chores(self) -> None:
        """Merging, removing and looking for orphans, beside the path of epochs. What a crash keeps from being removed is one later."""
        look_at = time.monotonic()
        while True:
            self._chore.wait(max(0.0, look_at - time.monotonic()))
            self._chore.clear()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_INTERVAL
                self._chores.append(self._look_for_leftovers)
            while self._chores:
                try:
                    self._chores.popleft()()
                except BaseException as error:
                    self.tell(_raiser(error))
                    return
            if self.ended.is_set():
                return

    def _remove(self, segments: list[str], notes: list[str]) -> None:
        for segment in segments:
            self._commits.disk.forget(segment_path(segment))
            self._commits.disk.remove(segment_path(segment))
        for note in notes:
            self.notes.remove(note)

    def _look_for_leftovers(self) -> None:
        found = find_leftovers(self.disk, self.planner.ledger)
        if found.segments or found.notes:
            self.tell(lambda planner, at: planner.on_leftovers(found, at))

    def _fold(self, snapshot: Snapshot, needed_from: int) -> None:
        self._commits.compact(snapshot)
        self._commits.drop_merged(needed_from)


def _raiser(error: BaseException) -> PlannerEvent:
    def event(planner: Planner, at: Moment) -> list[Action]:
        raise error

    return event
