"""The writer process: a socket to the driver, the machine, and the outputs around it. It ends when its connection does."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.errors import LogError, MillstreamError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.ownership import Ownership
from millstream.journal.segments import SegmentReader
from millstream.log.checks import check_position
from millstream.log.folder import Folder
from millstream.log.history import History
from millstream.log.keeping import Needs
from millstream.log.upkeep import Upkeep
from millstream.mill.channel import Channel, Closed
from millstream.targets.belonging import claim, destination, keep_destination
from millstream.targets.delta import DeltaOutput
from millstream.targets.delta_rows import DeltaRowsOutput
from millstream.targets.files import FilesOutput
from millstream.targets.lacking import Epoch, Tail
from millstream.targets.output import WriterOutput
from millstream.targets.row_values import RowValues
from millstream.targets.steps import Steps, check_reach
from millstream.targets.typed import Values
from millstream.targets.written import values_of
from millstream.timestamp import Duration, Timestamp
from millstream.writer import messages as said
from millstream.writer.log_output import LOG, LogOutput
from millstream.writer.machine import Action, AskTail, Begun, Fail, SayWritten, WriteParts, WriterMachine
from millstream.writer.performing import Done, HasFailed, OutputThreads, WasMissing, WasRefused, WriteOutcome

UPKEEP_EVERY = 1.0  # seconds, while something is written
IDLE_UPKEEP_EVERY = 10.0  # otherwise
SWEEP_EVERY = 3_600.0

WriterEvent = said.ToWriter | WriteOutcome | said.RetentionPutOff | Closed


def now() -> Timestamp:
    return Timestamp(time.time_ns() // 1000)


class WriterProcess:
    """One writer, from `BeginWriting` to its end."""

    def __init__(self, channel: Channel, begin: said.BeginWriting, *, clock: Callable[[], Timestamp] = now) -> None:
        self._channel, self._clock = channel, clock
        folder = Path(begin.folder)
        journal = LocalDisk(folder / "journal")
        self._newest = begin.newest
        owner = Ownership(Commits(journal), begin.fence, lambda: self._newest)
        log = LocalDisk(folder / "log")
        history = History(log, now=clock)
        history.create()
        self._events: queue.SimpleQueue[WriterEvent] = queue.SimpleQueue()
        outputs: dict[str, WriterOutput] = {LOG: LogOutput(history)}
        self._targets: dict[str, DeltaOutput | FilesOutput] = {}
        types: dict[str, Any] = pickle.loads(begin.types) if begin.types else {}  # noqa: S301  (from the driver that started this process)
        begun = {LOG: Begun(None, outputs[LOG].position(), unkept=frozenset(begin.log.unkept), is_log=True)}
        _check(LOG, f"the log {folder / 'log'}", begun[LOG].position, begin.log.logged, begin.newest)
        for settings in begin.outputs:
            output = make_output(settings, folder, types.get(settings.stream), begin, still_owner=owner)
            outputs[settings.name] = self._targets[settings.name] = output
            every = Duration(settings.every)
            begun[settings.name] = Begun(output.streams, output.position(), output.open_until(), every=every)
            _check(settings.name, settings.path, begun[settings.name].position, settings.delivered, begin.newest)
        retention = None if begin.log.retention is None else Duration(begin.log.retention)
        self._upkeep = Upkeep(history, folder / "log", retention=retention, streams=begin.log.streams)
        self._needs = Needs(begin.newest, begin.needed_from)
        self._upkeep_busy = threading.Event()
        self._upkeep_at, self._written = time.monotonic() + UPKEEP_EVERY, False
        self._sweep_at = time.monotonic()
        self._threads = OutputThreads(outputs, SegmentReader(journal, sleep=time.sleep), log, self._events.put)
        self._machine = WriterMachine(begun, newest=begin.newest, now=clock(), every=Duration(begin.every))
        self._send(said.Positions({name: each.position for name, each in begun.items()}))

    def run(self) -> None:
        """Until everything is written that a stop asked for; `Closed` when the driver is gone."""
        threading.Thread(target=self._listen, name="listens to the driver", daemon=True).start()
        try:
            self._perform(self._machine.on_start(self._clock()))
            while not self._machine.finished:
                self._perform(self._handle(self._next()))
                self._maintain()
        finally:
            self._threads.close()

    def _listen(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                assert message is not None
                self._events.put(said.decode_to_writer(message))
        except Closed as error:
            self._events.put(error)

    def _next(self) -> WriterEvent | None:
        """What comes next; None when something is due though nothing came."""
        due = self._machine.next_tick(self._clock())
        upkeep = max(0.0, self._upkeep_at - time.monotonic())
        try:
            return self._events.get(timeout=upkeep if due is None else min(upkeep, int(due) / 1e6))
        except queue.Empty:
            return None

    def _handle(self, event: WriterEvent | None) -> list[Action]:
        machine, at = self._machine, self._clock()
        match event:
            case said.NewCommit(number, places):
                self._newest = number
                return machine.on_commit(number, places, at)
            case said.TailAnswer(output, history, upto, epochs):
                return machine.on_tail(output, Tail(history, upto, [Epoch(each.number, each.places) for each in epochs]), at)
            case said.Needed(needed_from, known):
                self._needs = Needs(known, needed_from)
            case said.Flush(upto):
                return machine.on_flush(upto, at)
            case said.StopWriting(number):
                return machine.on_stop(number, at)
            case Done(output, upto):
                self._written = True
                self._upkeep_at = min(self._upkeep_at, time.monotonic() + UPKEEP_EVERY)
                return machine.on_done(output, upto, at)
            case WasRefused(output, position, why):
                return machine.on_refused(output, position, why, at)
            case WasMissing(output, why):
                return machine.on_missing(output, why, at)
            case HasFailed(output, message):
                return machine.on_failed(output, message)
            case said.RetentionPutOff():
                self._send(event)
            case Closed():
                raise event
            case said.BeginWriting():
                raise LogError("a writer begins once")
        return machine.on_tick(at)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case AskTail(output, after):
                    self._send(said.Asked(output, after))
                case WriteParts():
                    self._threads.write(action)
                case SayWritten(output, upto):
                    self._send(said.Written(output, upto))
                case Fail(output, message):
                    self._send(said.OutputFailed(output, message))

    def _maintain(self) -> None:
        """By the log's own thread, so it stands between two commits; never more than one call at a time waits."""
        if time.monotonic() < self._upkeep_at:
            return
        self._upkeep_at = time.monotonic() + (UPKEEP_EVERY if self._written else IDLE_UPKEEP_EVERY)
        self._sweep()
        if self._upkeep_busy.is_set():
            return
        self._upkeep_busy.set()
        self._written = False

        def run() -> None:
            try:
                before = self._upkeep.kept
                if self._upkeep.run(self._clock(), self._needs):
                    self._written = True  # more is to be done soon
                for stream in self._upkeep.kept - before:
                    self._events.put(said.RetentionPutOff(stream))  # by the thread that speaks with the driver
            finally:
                self._upkeep_busy.clear()

        self._threads.run(LOG, run)

    def _sweep(self) -> None:
        """Now and then, by the thread of each target: what killed writers have left there."""
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_EVERY
            for name, target in self._targets.items():
                self._threads.run(name, lambda target=target: target.sweep(self._clock()))  # type: ignore[misc]

    def _send(self, message: said.FromWriter) -> None:
        self._channel.send(said.encode(message))


def make_output(
    settings: said.OutputSettings, folder: Path, kind: Any, begin: said.BeginWriting, *, still_owner: Callable[[], bool]
) -> DeltaOutput | FilesOutput:
    values, path, run = values_of(settings.stream, kind, settings.key), Path(settings.path).absolute(), Folder(folder)
    try:
        steps = Steps(run.delivery(settings.name), fence=begin.fence)
        if settings.format is None:
            steps.check_there(settings.name, delivered=settings.delivered)  # how far it is, the table says
        else:
            steps.check(settings.name, delivered=settings.delivered, newest=begin.newest)
        to = destination(steps.folder, path, delivered=settings.delivered if settings.format is None else steps.position)
        keep_destination(steps.folder, to)
        claim(settings.name, path, run, begin.folder_id)
    except LogError as error:
        raise OutputError(settings.name, str(error)) from error
    except OSError as error:
        raise OutputError(settings.name, f"{path} cannot be used: {error}; make it writable, or deliver to another path") from error
    if settings.format is None:
        identity = steps.identity
        steps.close()
        if isinstance(values, RowValues):
            return DeltaRowsOutput(settings.name, settings.path, values, identity=identity, begins=to.begins)
        return DeltaOutput(settings.name, settings.path, values, identity=identity, begins=to.begins)
    assert isinstance(values, Values), "rows are kept in a Delta table"
    return FilesOutput(settings.name, settings.path, settings.format, values, steps=steps, still_owner=still_owner)


def _check(output: str, path: str, position: int, recorded: int, newest: int) -> None:
    try:
        if output == LOG:
            check_position(path, before=position, after=position, recorded=recorded, newest=newest)
        else:
            check_reach(output, path, before=position, after=position, recorded=recorded, newest=newest)
    except LogError as error:
        raise OutputError(output, str(error)) from error


class OutputError(LogError):
    """An output cannot be begun with."""

    def __init__(self, output: str, message: str) -> None:
        super().__init__(message)
        self.output = output


def serve(channel: Channel) -> None:
    """The whole life of a writer process."""
    try:
        first = channel.receive()
        assert first is not None
        begin = said.decode_to_writer(first)
        if not isinstance(begin, said.BeginWriting):
            raise LogError("the first message to a writer is BeginWriting")
        try:
            writer = WriterProcess(channel, begin)
        except (MillstreamError, OSError) as error:
            channel.send(said.encode(said.OutputFailed(getattr(error, "output", LOG), str(error))))
            return
        writer.run()
    except Closed:
        # The driver is gone. A commit under way may go in or not: the next run reads which.
        os._exit(0)
