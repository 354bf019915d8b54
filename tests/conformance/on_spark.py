"""The mill on Spark: a real planner and real lanes, with a source and a clock of the scene's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.ledger import Ledger
from millstream.journal.disk import Disk
from millstream.log.folder import Folder
from millstream.mill.actions import Fed
from millstream.mill.driver_messages import Question, Seats
from millstream.mill.driving import Ended
from millstream.spark.launch import Died, Launcher
from millstream.spark.milling import Milling, RunJournal
from millstream.spark.options import Options
from millstream.spark.owner import pin
from millstream.spark.ship import pack
from tests.conformance.journaled import JournaledStage
from tests.waiting import wait_until

BUCKETS = 4


class SparkStage(JournaledStage):
    """A folder, and one run after another on it."""

    def __init__(self, topology: ms.Topology, at: Path, spark: SparkSession, lanes: int = 1) -> None:
        super().__init__(topology, buckets=BUCKETS, lanes=lanes)
        self._folder = Folder(at)
        self._folder.open()
        pinned = pin(self._folder, self.graph.name, buckets=BUCKETS, lanes=lanes)
        self._launcher = Launcher(spark, self._folder, self.graph, pack(self.graph), pinned, Options(buckets=BUCKETS, lanes=lanes))
        self._journal = RunJournal(self._folder, self.graph, pinned)
        self._mill: Milling | None = None

    @property
    def mill(self) -> Milling:
        assert self._mill is not None, "begin comes first"
        return self._mill

    def begin(self) -> SparkStage:
        self._begin()
        self.settle()
        return self

    def stop(self) -> None:
        if self._mill is not None:
            self._mill.close()
            self.close_source()
            self._mill = None

    @property
    def disk(self) -> Disk:
        return self._journal.disk

    def unique(self) -> str:
        return uuid.uuid4().hex[:12]

    def feed(self, fed: Fed) -> None:
        self.mill.planner.set_clock(self.now)
        self.mill.planner.feed(fed)

    def tell_unread(self, injector: str, partitions: list[str]) -> None:
        self.mill.planner.set_clock(self.now)
        self.mill.planner.unread(injector, partitions)

    def ledger(self) -> Ledger:
        """As it is when nothing is due."""
        return self.mill.planner.ledger

    def settle(self) -> None:
        wait_until(self._is_settled)

    def take_over(self, while_away: Callable[[], None]) -> None:
        self.stop()
        while_away()
        self._begin()

    def _begin(self) -> None:
        self._journal.check()
        self._mill = Milling(self._launcher, self._journal, clock=self.now, host=None)
        self.open_source(self._mill.ledger)
        with self._launcher.settings():
            self._mill.start()

    def _is_settled(self) -> bool:
        """It was at rest, then it has looked what is due by the clock as it is now, and is still where it was."""
        try:
            self.mill.look()
            self.mill.planner.set_clock(self.now)
            first, again = self.seats(), self.seats()
        except Ended as ended:
            raise ms.RunFailed(str(ended)) from ended
        except Died as died:
            raise ms.RunFailed(str(died.error)) from died.error
        return first.rests is not None and first.rests == again.rests and first.turns < again.turns

    def seats(self) -> Seats:
        seats = self.mill.planner.ask(Question.SEATS)
        assert isinstance(seats, Seats)
        return seats
