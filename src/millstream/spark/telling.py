"""What a run knows beside its commits, for who asks it, and for who asks its folder."""

from __future__ import annotations

import logging
import threading
import time

from millstream.log.folder import Folder, write_json
from millstream.log.metrics import DiskSizes, Measured, measure
from millstream.log.samples import Sampling, sample_of
from millstream.log.status import Now, status_from
from millstream.mill.asking import Answering, KeyQuestion
from millstream.mill.driver_messages import Question, Seats
from millstream.mill.messages import KeptKey
from millstream.spark.ends import Deliveries
from millstream.spark.feeds import Feeds
from millstream.spark.observing import observer_of
from millstream.spark.planning import Planning
from millstream.spark.writing import Writer
from millstream.timestamp import Timestamp

log = logging.getLogger("millstream")

SIZES_EVERY = 60.0  # seconds between two looks at every file


class Telling:
    """Troubles, and lags of sources; and samples of the whole."""

    def __init__(self, folder: Folder, topology: str, planner: Planning, feeds: Feeds, deliveries: Deliveries, writer: Writer) -> None:
        self._writer = writer
        self._folder, self._planner, self._feeds, self._deliveries = folder, planner, feeds, deliveries
        self._path = Now.path(folder)
        self._topology, self._sampling, self._sampled = topology, Sampling(folder), True
        self._path.unlink(missing_ok=True)  # of the run before
        self._told = Now()
        self._observer = observer_of(topology)
        self._sizes, self._sized = DiskSizes(), -SIZES_EVERY
        self._measuring: threading.Thread | None = None
        self._answering = Answering(self._answer)

    def now(self) -> Now:
        troubles = self._planner.ask(Question.TROUBLES)
        assert isinstance(troubles, list)
        lags = {name: dict(lag) for name, lag in self._feeds.lags().items()}
        return Now([*troubles, *self._feeds.troubles, *self._deliveries.troubles], lags, self._answering.address)

    def end(self) -> None:
        """Nobody can ask any more, and whoever observes has the rest."""
        self._answering.end()
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.end()

    def _answer(self, asked: KeyQuestion) -> KeptKey:
        if asked.key is not None:
            return self._planner.peek(asked.computation, asked.key)
        reports = self._planner.read(lambda ledger: dict(ledger.reports.get(asked.computation, {})))
        if not reports:
            return KeptKey(asked.computation, "", 0, problem="nothing is kept")
        return self._planner.peek(asked.computation, None, bucket=min(reports, key=lambda bucket: reports[bucket].minima.hold))

    def tell(self) -> None:
        """For `millstream status`, written only if it has changed; a sample in any case. A run that ends has nothing more to tell."""
        try:
            now = self.now()
            self._sample(now)
        except Exception:
            if self._planner.ended.is_set():
                return
            raise
        if now != self._told:
            self._told = now
            write_json(self._path, now, durable=False)

    def _measure_now_and_then(self) -> None:
        """Beside whoever watches the run: on a slow disk it takes its time."""
        if time.monotonic() - self._sized < SIZES_EVERY or (self._measuring is not None and self._measuring.is_alive()):
            return

        def work() -> None:
            self._sizes = measure(self._folder, time.time())

        self._sized = time.monotonic()
        self._measuring = threading.Thread(target=work, name="millstream measures its folder", daemon=True)
        self._measuring.start()

    def _sample(self, now: Now) -> None:
        """Nothing of a run depends on it: a disk that refuses a sample is said once, and what else it refuses ends the run."""
        seats = self._planner.ask(Question.SEATS)
        assert isinstance(seats, Seats)
        at = Timestamp(time.time_ns() // 1000)
        status = self._planner.read(lambda ledger: status_from(ledger, self._topology, running=True, now=at)).add(now)
        sample = sample_of(status)
        sample.ran, sample.wrote = round(seats.ran, 6), round(seats.wrote, 6)
        if (spent := seats.spending) is not None:
            phases = {"read": spent.reading, "run": spent.running, "write": spent.writing, "commit": spent.committing}
            sample.phases = {name: round(seconds, 6) for name, seconds in phases.items()}
            sample.took, sample.took_in_all = spent.within, round(spent.seconds, 6)
            sample.restarts = {"lane": spent.restarts, "writer": self._writer.restarts}
        if self._observer is not None:
            self._measure_now_and_then()
            self._observer.observe(Measured(status, sample, self._sizes), seats.spans)
        try:
            self._sampling.add(sample)
        except OSError as error:
            if self._sampled:
                log.warning("the dashboard will lack some of this run: %s", error)
            self._sampled = False
