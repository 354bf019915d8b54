"""What can be known of a run from its folder alone: also from another terminal, also when nothing runs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from millstream import arguments
from millstream.core.epoch import Tally
from millstream.core.graph import DEAD_LETTERS
from millstream.core.ledger import Ledger, SourceProgress
from millstream.core.low_watermark import LowWatermark
from millstream.errors import LogError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import open_ledger
from millstream.log.folder import Folder, read_json
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Duration, Timestamp


class ComputationStatus(msgspec.Struct):
    """A computation: its low watermarks, what came and went, what is kept."""

    low_watermark: Timestamp
    output_low_watermark: Timestamp  # may move back, for a late record or a hold; `low_watermark` never does
    lag: Duration | None  # of the low watermark behind the wall clock; None at the ends of time
    tally: Tally
    keys: int
    timers: int
    epoch: int  # the last one in which it had something to do; -1 if there was none
    waiting: int = 0  # records that wait for their time
    timeless: bool = False  # nothing that it reads has event time


class StreamStatus(msgspec.Struct):
    """A stream: how many records it has had, and up to when it is complete."""

    records: int
    low_watermark: Timestamp  # of its injector, or the output low watermark of its producer
    lag: Duration | None
    epoch: int  # the last one that brought it a record, counted by its producer
    timeless: bool = False  # it has no event time, so no low watermark


class InjectorStatus(msgspec.Struct):
    """An injector: what it brought in, what it set aside, whether its input has ended."""

    injected: int
    dead: int
    low_watermark: Timestamp
    finished: bool
    waiting: int  # records that no epoch has taken yet
    epoch: int  # its own last one
    lag: dict[str, int] = {}  # while a run is on: by partition of the source, what is known to be there and not read
    idle: bool = False  # silent for longer than `idle_after`: its readers' low watermarks do not wait for it
    timeless: bool = False  # without event time: nobody's low watermark ever does


class Now(msgspec.Struct):
    """What a run knows beside its commits, as it says about once a second."""

    troubles: list[str] = []
    lags: dict[str, dict[str, int]] = {}  # by injector and partition
    asked_at: str = ""  # where it can be asked what it keeps

    @classmethod
    def path(cls, folder: Folder) -> Path:
        return folder.run / "now.json"


class Status(msgspec.Struct):
    """The central place where everything about a run can be seen."""

    topology: str
    running: bool
    epoch: int  # the newest that is committed; 0 before the first
    now: Timestamp  # the wall clock when this was asked
    computations: dict[str, ComputationStatus]
    streams: dict[str, StreamStatus]
    injectors: dict[str, InjectorStatus]
    deliveries: dict[str, int]  # epochs that each is behind the newest record of its stream
    log: int  # likewise, of all streams that are kept
    troubles: list[str] = []  # lanes that do not come, or do not answer; sources and targets that cannot be reached

    def add(self, now: Now) -> Status:
        """With what the run says of itself."""
        self.troubles = now.troubles
        for name, lag in now.lags.items():
            if name in self.injectors:
                self.injectors[name].lag = lag
        return self

    @property
    def low_watermark(self) -> Timestamp:
        """The least of all computations that have event time."""
        return min((c.low_watermark for c in self.computations.values() if not c.timeless), default=START_OF_TIME)

    @property
    def injected(self) -> int:
        return sum(injector.injected for injector in self.injectors.values())


def status_of(at: str | Path) -> Status:
    """Read from the journal; nothing is started and nothing is changed."""
    folder = Folder(arguments.path("status_of", at))
    pinned = folder.read_pinned()
    if pinned is None:
        raise LogError(f"{folder.path} holds no run of Millstream; name the folder that was given to run as --at")
    with folder.naming():
        ledger = open_ledger(Commits(LocalDisk(folder.journal))) if folder.journal.exists() else Ledger()
    found = status_from(ledger, pinned.topology, running=is_held(folder), now=Timestamp(time.time_ns() // 1000))
    return found.add(read_json(Now.path(folder), Now) or Now()) if found.running else found


def status_from(ledger: Ledger, topology: str, *, running: bool, now: Timestamp) -> Status:
    """What a ledger says of a run."""
    injectors = {name: _injector(ledger, name) for name in ledger.plant.injectors}
    return Status(
        topology=topology,
        running=running,
        epoch=ledger.number,
        now=now,
        computations={name: _computation(ledger, name, now) for name in ledger.plant.computations},
        streams=_streams(ledger, injectors, now),
        injectors=injectors,
        deliveries={name: _behind(ledger, stream, _delivered(ledger, name, stream)) for name, stream in ledger.plant.deliveries.items()},
        log=max((_behind(ledger, s, ledger.logged) for s, epoch in ledger.latest.items() if not ledger.leaves_out(s, epoch)), default=0),
    )


def _computation(ledger: Ledger, name: str, now: Timestamp) -> ComputationStatus:
    lw = ledger.low_watermarks.get(name, LowWatermark(START_OF_TIME, START_OF_TIME))
    reports = ledger.reports.get(name, {}).values()
    return ComputationStatus(
        low_watermark=lw.input,
        output_low_watermark=lw.output,
        lag=lag(lw.input, now),
        tally=ledger.tallies.get(name, Tally()),
        keys=sum(report.rows for report in reports),
        timers=sum(report.timers for report in reports),
        epoch=ledger.worked.get(name, -1),
        waiting=sum(report.waiting for report in reports),
        timeless=name in ledger.plant.untimed,
    )


def _delivered(ledger: Ledger, delivery: str, stream: str) -> int:
    """What a delivery has, or will never get: of what the log leaves out nothing from before it came."""
    gone = ledger.leaves_out(stream, ledger.latest.get(stream, 0))
    return ledger.has_upto(delivery) if gone else ledger.delivered.get(delivery, 0)


def _behind(ledger: Ledger, stream: str, position: int) -> int:
    """Epochs that lie between what a delivery, or the log, has and the last that brought a record of its stream."""
    return max(0, ledger.latest.get(stream, 0) - position)


def lag(low_watermark: Timestamp, now: Timestamp) -> Duration | None:
    """How far a low watermark is behind the wall clock."""
    return None if low_watermark in (START_OF_TIME, END_OF_TIME) else now - low_watermark


def _injector(ledger: Ledger, name: str) -> InjectorStatus:
    source = ledger.sources.get(name, SourceProgress())
    waiting = sum(
        part.records for parts in ledger.waiting.values() for _, part in parts.values() if part.stream == name and not part.reader
    )
    return InjectorStatus(
        injected=source.injected,
        dead=source.dead,
        low_watermark=ledger.promises.get(name, START_OF_TIME),
        finished=source.finished,
        waiting=waiting,
        epoch=source.epoch,
        idle=name in ledger.idle,
        timeless=name in ledger.plant.timeless,
    )


def _streams(ledger: Ledger, injectors: dict[str, InjectorStatus], now: Timestamp) -> dict[str, StreamStatus]:
    def stream(records: int, low_watermark: Timestamp, epoch: int, *, timeless: bool = False) -> StreamStatus:
        return StreamStatus(records, low_watermark, lag(low_watermark, now), epoch, timeless)

    found = {name: stream(of.injected, of.low_watermark, of.epoch, timeless=of.timeless) for name, of in injectors.items()}
    for name, count in ledger.produced.items():
        if name != DEAD_LETTERS:
            producer = name.rpartition(".")[0]
            known, timeless = ledger.low_watermarks.get(producer), producer in ledger.plant.untimed
            found[name] = stream(count, START_OF_TIME if known is None else known.output, ledger.latest.get(name, -1), timeless=timeless)
    if DEAD_LETTERS in ledger.produced:  # any computation and any injector may bring one
        bound = min((other.low_watermark for other in found.values() if not other.timeless), default=START_OF_TIME)
        found[DEAD_LETTERS] = stream(ledger.produced[DEAD_LETTERS], bound, ledger.latest.get(DEAD_LETTERS, -1))
    return found


def is_held(folder: Folder) -> bool:
    """Whether the lock of the folder is held."""
    import fcntl

    try:
        with folder.lock.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is none, or nobody can have one here
    return False
