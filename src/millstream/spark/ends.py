"""Where records leave a run: a thread for each delivery in this process, and the writer beside it for the log and large targets."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from millstream.core.graph import Graph
from millstream.core.ledger import Commit
from millstream.core.parts import Columns, Part
from millstream.errors import Fenced
from millstream.journal.disk import LocalDisk
from millstream.journal.ownership import Ownership
from millstream.journal.segments import SegmentReader
from millstream.log.folder import Folder
from millstream.log.reading_history import history
from millstream.spark.ending import join_all
from millstream.spark.milling import RunJournal
from millstream.spark.planning import Planning
from millstream.targets.delivery import Stretch
from millstream.targets.driver import DeliveryThread
from millstream.targets.lacking import Tail
from millstream.targets.opening import open_delivery
from millstream.targets.records import stretch
from millstream.targets.tail import read_tail

EPOCHS_AT_ONCE = 5_000  # of the journal's tail, when a delivery asks what there is


class Ledge:
    """What one delivery knows of the run around it."""

    def __init__(self, name: str, stream: str, *, journal: RunJournal, planner: Planning, folder: Folder, owner: Ownership) -> None:
        self._name, self._stream, self.still_owner = name, stream, owner
        self._commits, self._planner = journal.commits, planner
        self._reader = SegmentReader(journal.disk, sleep=time.sleep)
        self._log = LocalDisk(folder.log)

    def read_part(self, segment: str, part: Part) -> Columns:
        return self._reader.part(segment, part)

    def read_tail(self, after: int) -> Tail:
        self._planner.catch_up()  # what the log has by now may be gone from the journal
        return read_tail(self._commits, self._planner.ledger, self._name, after=after, at_most=EPOCHS_AT_ONCE)

    def read_history(self, after: int, upto: int, at_most: int | None) -> Stretch:
        return stretch(history(self._log, self._stream, after, upto), upto, at_most)

    def say(self, position: int) -> None:
        self._planner.delivered(self._name, position)


class Deliveries:
    """Those of a run that are called in this process."""

    def __init__(self, graph: Graph, folder: Folder, journal: RunJournal, planner: Planning, fence: int, owner: Ownership) -> None:
        self._streams: dict[str, list[DeliveryThread]] = {}
        self.threads: dict[str, DeliveryThread] = {}
        ledger = planner.ledger
        with ExitStack() as undo:
            undo.callback(self.stop, 0, 0.0)
            for name, delivery in graph.deliveries.items():
                if delivery.written is not None:
                    continue
                stream = graph.stream_of(delivery.stream)
                context, connection, steps = open_delivery(
                    delivery, stream, folder.delivery(name), fence=fence, delivered=ledger.delivered.get(name, 0), newest=ledger.number
                )
                ledge = Ledge(name, stream.name, journal=journal, planner=planner, folder=folder, owner=owner)
                thread = DeliveryThread(context, connection, steps, ledge, newest=ledger.number)
                self.threads[name] = thread
                self._streams.setdefault(stream.name, []).append(thread)
            undo.pop_all()

    def start(self) -> None:
        for thread in self.threads.values():
            thread.start()

    def on_commit(self, commit: Commit) -> None:
        """Called once a commit is durable."""
        for stream, threads in self._streams.items():
            places = commit.plain_parts(stream)
            for thread in threads:
                thread.notify(commit.number, places)

    def look(self, died: Callable[[str, BaseException], Exception]) -> None:
        for name, thread in self.threads.items():
            if thread.error is not None:
                raise died(f"delivery {name!r}", thread.error)
            if thread.overtaken:
                raise died(f"delivery {name!r}", Fenced("a newer run owns the folder; this one stops"))

    @property
    def troubles(self) -> list[str]:
        """Of those that wait for their targets."""
        return [thread.trouble for thread in self.threads.values() if thread.trouble is not None]

    def behind(self, epoch: int) -> list[str]:
        """Those that have not delivered everything up to this epoch."""
        return [name for name, thread in self.threads.items() if not thread.wait_for(epoch, 0.0)]

    def stop(self, at: int, timeout: float) -> list[str]:
        """Deliver up to this commit and end; returns those that took too long."""
        deadline = time.monotonic() + timeout
        return [name for name, thread in self.threads.items() if not thread.stop(at, max(0.0, deadline - time.monotonic()))]

    def join(self, seconds: float) -> list[str]:
        """After `stop`: wait for the call that each is in; returns the threads that still run."""
        return join_all(self.threads.values(), seconds)
