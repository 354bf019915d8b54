"""The writer of a run, from the driver's side: a process beside it that hears of every commit, and started again if it dies."""

from __future__ import annotations

import logging
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from millstream.core.graph import Graph, StreamPlan
from millstream.core.ledger import Commit, Ledger, SourceProgress
from millstream.delivery import Delivery, row_type
from millstream.errors import LogError
from millstream.journal.errors import Missing
from millstream.log.folder import Folder
from millstream.log.keeping import Keeping
from millstream.mill.channel import Channel, Closed
from millstream.shipping.pickler import pickled
from millstream.spark.beside import start_process, wait_or_kill
from millstream.spark.ending import join_all
from millstream.spark.milling import RunJournal
from millstream.spark.options import Options
from millstream.spark.planning import Planning
from millstream.targets.tail import read_tail
from millstream.writer import messages as said
from millstream.writer.log_output import LOG

log = logging.getLogger("millstream")

EPOCHS_PER_ANSWER = 500
GATHER_INTERVAL = 0.02  # seconds; commits are sent several at a time, for nobody waits for them
MAX_RESTARTS = 5
RESTARTS_WITHIN = 60.0  # seconds


class Writer:
    """Writes the log, Delta tables and files. What it has written is said to the planner, whose commits let the journal go."""

    def __init__(self, graph: Graph, folder: Folder, journal: RunJournal, planner: Planning, options: Options, fence: int) -> None:
        self._graph, self._folder, self._journal, self._planner, self._options, self._fence = (
            graph,
            folder,
            journal,
            planner,
            options,
            fence,
        )
        self._deliveries = {name: d for name, d in graph.deliveries.items() if d.written is not None}
        self._unkept = frozenset(name for name, stream in graph.streams.items() if not stream.kept)
        self._types = pickled({graph.stream_of(d.stream).name: graph.stream_of(d.stream).value_type for d in self._deliveries.values()})
        self._keeping = {name: _keeping(stream, options) for name, stream in graph.streams.items() if stream.is_kept_otherwise}
        self._positions: dict[str, int] = {}
        self._restarts: deque[float] = deque()  # of late
        self.restarts = 0  # in all
        self._untold: deque[Commit] = deque()
        self._flushed = 0
        self._begun = 0  # the newest commit that the process knew when it began
        self._needed = said.Needed({}, 0)
        self._speaking = threading.RLock()
        self._news = threading.Event()
        self._over = threading.Event()
        self._stopping: int | None = None
        self._teller = threading.Thread(target=self._tell, name="millstream tells the writer", daemon=True)
        self._hearers: list[threading.Thread] = []  # one for each process that was started
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._changed = threading.Condition()
        self.error: tuple[str, LogError] | None = None

    # For the run.

    def start(self) -> None:
        self._begin()
        self._teller.start()

    def on_commit(self, commit: Commit) -> None:
        """Called once a commit is durable; must not wait."""
        self._untold.append(commit)
        if not self._news.is_set():
            self._news.set()

    def look(self, died: Callable[[str, BaseException], Exception]) -> None:
        if self.error is not None:
            raise died(*self.error)

    def behind(self, newest: int) -> list[str]:
        """What does not have all records up to this commit."""
        return self._planner.read(self._behind)

    def has(self, delivery: str, epoch: int) -> bool:
        """Whether a delivery that it writes has all records up to this epoch."""
        stream = self._graph.stream_of(self._deliveries[delivery].stream).name
        wanted = self._planner.read(lambda ledger: min(epoch, ledger.latest.get(stream, 0)))
        return self._positions.get(delivery, -1) >= wanted

    def _behind(self, ledger: Ledger) -> list[str]:
        latest = ledger.latest
        kept = max((e for stream, e in latest.items() if stream in self._graph.streams and not ledger.leaves_out(stream, e)), default=0)
        late = ["the log"] if self._positions.get(LOG, -1) < kept else []
        for name, delivery in self._deliveries.items():
            if self._positions.get(name, -1) < latest.get(self._graph.stream_of(delivery.stream).name, 0):
                late.append(name)
        return late

    def flush(self, upto: int) -> None:
        """Have it write what waits up to this commit, without waiting for more."""
        if upto > self._flushed:
            self._flushed = upto
            self._flush()
            self._send(said.Flush(upto))

    def stop(self, at: int, timeout: float) -> list[str]:
        """Write everything up to this commit and end; returns what took too long."""
        self._flush()
        self._stopping = at
        self._send(said.StopWriting(at))
        process = self._process
        if process is not None and self.error is None:
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                log.warning("the writer did not finish within %.0f s; the next run goes on where it was", timeout)
        with self._changed:
            self._changed.wait_for(lambda: not self.behind(at) or self.error is not None, 1.0)
        return self.behind(at)

    def end(self) -> None:
        """Whatever it is doing: a commit under way goes in or not, and the next run reads which."""
        self._over.set()
        self._news.set()
        self._end_process()

    def join(self, seconds: float) -> list[str]:
        """After `end`: wait for the threads that spoke with it; returns those that still run."""
        join_all([self._teller, *self._hearers], seconds)
        self._end_process()  # one that was being started again just then
        return join_all([self._teller, *self._hearers], seconds)

    def _end_process(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            wait_or_kill(self._process, 5.0)

    # The process.

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = start_process("millstream.writer", theirs)
        channel = Channel(ours)
        ledger = self._planner.ledger
        retention = None if self._options.retention is None else int(self._options.retention)
        outputs = [self._settings(name, delivery) for name, delivery in self._deliveries.items()]
        with self._speaking:
            self._channel, self._begun = channel, ledger.number
            self._needed = said.Needed(self._find_needed(ledger), self._begun)
            begin = said.BeginWriting(
                folder=str(self._folder.path),
                folder_id=self._journal.pinned.id,
                fence=self._fence,
                newest=self._begun,
                log=said.LogSettings(ledger.logged, sorted(self._unkept), retention, self._keeping),
                outputs=outputs,
                types=self._types,
                needed_from=self._needed.needed_from,
            )
            self._send(begin)
        hearer = threading.Thread(target=self._hear, args=(channel,), name="millstream hears the writer", daemon=True)
        self._hearers.append(hearer)
        hearer.start()

    def _settings(self, name: str, delivery: Delivery) -> said.OutputSettings:
        target = delivery.written
        assert target is not None
        return said.OutputSettings(
            name=name,
            stream=self._graph.stream_of(delivery.stream).name,
            path=target.path,
            delivered=self._planner.ledger.delivered.get(name, 0),
            format=target.format,
            key=target.key,
            every=int(target.every),
        )

    def _tell(self) -> None:
        while not self._over.is_set():
            self._news.wait()
            self._over.wait(GATHER_INTERVAL)
            self._news.clear()
            self._flush()
            self._tell_needed()

    def _flush(self) -> None:
        with self._speaking:
            while self._untold:
                commit = self._untold.popleft()
                if commit.number > self._begun:  # what was before, it asks for by itself
                    self._send(said.NewCommit(commit.number, commit.plain_parts()))

    def _tell_needed(self) -> None:
        """Retention leaves what a delivery is behind with, and the history that a new reader is to have."""
        needed = self._planner.read(lambda ledger: said.Needed(self._find_needed(ledger), ledger.number))
        if needed != self._needed:
            self._needed = needed
            self._send(needed)

    def _find_needed(self, ledger: Ledger) -> dict[str, int]:
        needed: dict[str, int] = {}
        for name, stream in ledger.plant.deliveries.items():
            if (position := ledger.delivered.get(name, 0)) < ledger.latest.get(stream, 0):
                needed[stream] = min(position + 1, needed.get(stream, position + 1))
        for name, history in self._graph.outline.histories.items():
            known = ledger.sources.get(name, SourceProgress())
            if not known.finished:
                position = int(known.positions.get("", 0))
                needed[history.stream] = min(position + 1, needed.get(history.stream, position + 1))
        return needed

    def _send(self, message: said.ToWriter) -> None:
        with self._speaking, suppress(Closed):  # whoever hears it finds out
            if self._channel is not None:
                self._channel.send(said.encode(message))

    def _hear(self, channel: Channel) -> None:
        try:
            while True:
                message = channel.receive()
                assert message is not None
                self._take(said.decode_from_writer(message))
        except Closed:
            self._lost()
        except Exception as error:  # the run watches for it: a thread has nobody to raise to
            self.error = ("the writer", LogError(f"{type(error).__name__}: {error}"))

    def _take(self, message: said.FromWriter) -> None:
        match message:
            case said.Positions(of):
                for output, upto in of.items():
                    self._written(output, upto)
            case said.Written(output, upto):
                self._written(output, upto)
            case said.Asked(output, after):
                try:
                    answer = self._answer(output, after)
                except Missing:  # commits that the log has by now went while they were read
                    self._planner.catch_up()
                    answer = self._answer(output, after)
                self._send(answer)
            case said.RetentionPutOff(stream):
                needs = ", ".join(map(repr, self._planner.read(lambda ledger: _behind_with(ledger, stream)))) or "a new computation"
                log.warning("retention leaves old files of stream %r in the log: %s has not got all of them yet", stream, needs)
            case said.OutputFailed(output, why):
                self.error = ("the log" if output == LOG else f"delivery {output!r}", LogError(why))
                with self._changed:
                    self._changed.notify_all()

    def _written(self, output: str, upto: int) -> None:
        with self._changed:
            self._positions[output] = upto
            self._changed.notify_all()
        if output == LOG:
            self._planner.logged(upto)
        else:
            self._planner.delivered(output, upto)

    def _answer(self, output: str, after: int) -> said.TailAnswer:
        """What an output lacks."""
        delivery = None if output == LOG else output
        tail = read_tail(self._journal.commits, self._planner.ledger, delivery, after=after, at_most=EPOCHS_PER_ANSWER)
        return said.TailAnswer(output, tail.history, tail.upto, [said.NamedParts(each.number, list(each.places)) for each in tail.epochs])

    def _lost(self) -> None:
        """The process is gone. Unless it was to go, another one begins where the tables say that it was."""
        if self._over.is_set() or self._stopping is not None or self.error is not None:
            return
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTARTS_WITHIN:
            self._restarts.popleft()
        self._restarts.append(now)
        self.restarts += 1
        assert self._process is not None
        code = self._process.wait()
        if len(self._restarts) > MAX_RESTARTS:
            self.error = ("the writer", LogError(f"it died {len(self._restarts)} times within a minute (exit code {code})"))
            return
        if not self._over.is_set():
            log.warning("the writer died (exit code %s); another one begins where it was", code)
            self._begin()


def _keeping(stream: StreamPlan, options: Options) -> Keeping:
    """How the log keeps a stream for which the topology says something."""
    retention = options.retention if stream.retention is None else stream.retention.for_
    return Keeping(retention, stream.compact_after, row_type(stream.value_type) is not None)


def _behind_with(ledger: Ledger, stream: str) -> list[str]:
    """The deliveries that lack something of a stream."""
    latest = ledger.latest.get(stream, 0)
    return [name for name, of in ledger.plant.deliveries.items() if of == stream and ledger.delivered.get(name, 0) < latest]
