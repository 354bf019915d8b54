"""What can be known of a run from its folder alone: also from another terminal, also when nothing runs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from millstream.core.backlog import Position
from millstream.core.epoch import Tally
from millstream.core.graph import DEAD_LETTERS, MILL
from millstream.core.plan import Ledger, Source, read_ledger, read_source
from millstream.errors import LogError
from millstream.log.folder import Folder, Pinned, read_json
from millstream.log.table import newest_note, tail
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Duration, Timestamp

INJECTOR = "injector "


class ComputationStatus(msgspec.Struct):
    """A computation: its low watermarks, what came and went, what is kept."""

    low_watermark: Timestamp
    output_low_watermark: Timestamp
    lag: Duration | None  # of the low watermark behind the wall clock; None at the ends of time
    tally: Tally
    keys: int
    timers: int
    epoch: int  # the last one in which it had something to do; -1 if there was none


class StreamStatus(msgspec.Struct):
    """A stream: how many records it has had, and up to when it is complete."""

    records: int
    low_watermark: Timestamp
    lag: Duration | None
    epoch: int  # the last one that brought it a record, counted by its producer


class InjectorStatus(msgspec.Struct):
    """An injector: what it brought in, what it set aside, whether its input has ended."""

    injected: int
    dead: int
    low_watermark: Timestamp
    finished: bool
    waiting: int  # records that no epoch has taken yet
    epoch: int  # its own last one


class Status(msgspec.Struct):
    """The central place where everything about a run can be seen."""

    topology: str
    running: bool
    epoch: int  # the newest that is published; -1 before the first
    now: Timestamp  # the wall clock when this was asked
    computations: dict[str, ComputationStatus]
    streams: dict[str, StreamStatus]
    injectors: dict[str, InjectorStatus]
    deliveries: dict[str, int]  # epochs of the log that are still to be looked at

    @property
    def low_watermark(self) -> Timestamp:
        """The least of all computations."""
        return min((c.low_watermark for c in self.computations.values()), default=START_OF_TIME)

    @property
    def injected(self) -> int:
        return sum(injector.injected for injector in self.injectors.values())


def status_of(at: str | Path) -> Status:
    """Read from the log; nothing is started and nothing is changed."""
    folder = Folder(at)
    pinned = read_json(folder.pinned, Pinned)
    if pinned is None:
        raise LogError(f"{folder.path} holds no run of Millstream; name the folder that was given to run as --at")
    found = newest_note(folder.table(MILL), MILL)
    ledger = None if found is None else read_ledger(found[1])
    injectors = _injectors(folder, ledger)
    now = Timestamp(time.time_ns() // 1000)
    return Status(
        topology=pinned.topology,
        running=is_held(folder),
        epoch=-1 if ledger is None else ledger.plan.epoch,
        now=now,
        computations={} if ledger is None else _computations(ledger, now),
        streams=_streams(ledger, injectors, now),
        injectors=injectors,
        deliveries=_deliveries(folder),
    )


def _computations(ledger: Ledger, now: Timestamp) -> dict[str, ComputationStatus]:
    found = {}
    for name in ledger.plan.before:  # those that took part in the last epoch; others were removed
        lw = ledger.plan.low_watermarks[name]
        reports = [of[name] for of in ledger.reports.values() if name in of]
        found[name] = ComputationStatus(
            low_watermark=lw.input,
            output_low_watermark=lw.output,
            lag=lag(lw.input, now),
            tally=ledger.tallies.get(name, Tally()),
            keys=sum(report.rows for report in reports),
            timers=sum(report.timers for report in reports),
            epoch=ledger.latest.get(name, -1),
        )
    return found


def lag(low_watermark: Timestamp, now: Timestamp) -> Duration | None:
    """How far a low watermark is behind the wall clock."""
    return None if low_watermark in (START_OF_TIME, END_OF_TIME) else now - low_watermark


def _injectors(folder: Folder, ledger: Ledger | None) -> dict[str, InjectorStatus]:
    found = {}
    for path in sorted((folder.path / "log").glob(f"{INJECTOR}*")):
        note = newest_note(path, path.name)
        source = Source() if note is None else read_source(note[1])
        name = path.name.removeprefix(INJECTOR)
        promised = START_OF_TIME if ledger is None else ledger.plan.promises.get(name, START_OF_TIME)
        start = Position() if ledger is None else ledger.plan.positions.get(path.name, Position())
        waiting = sum(file.rows for commit in tail(path, path.name, start) for file in commit.files)
        found[name] = InjectorStatus(source.injected, source.dead, promised, source.finished, waiting, source.epoch)
    return found


def _streams(ledger: Ledger | None, injectors: dict[str, InjectorStatus], now: Timestamp) -> dict[str, StreamStatus]:
    def stream(records: int, low_watermark: Timestamp, epoch: int) -> StreamStatus:
        return StreamStatus(records, low_watermark, lag(low_watermark, now), epoch)

    found = {name: stream(injector.injected, injector.low_watermark, injector.epoch) for name, injector in injectors.items()}
    for name, count in ({} if ledger is None else ledger.produced).items():
        assert ledger is not None
        known = ledger.plan.low_watermarks.get(name.rpartition(".")[0])
        found[name] = stream(count, START_OF_TIME if known is None else known.output, ledger.latest.get(name, -1))
    dead = sum(injector.dead for injector in injectors.values())
    if dead or DEAD_LETTERS in found:
        bounds = [other.low_watermark for name, other in found.items() if name != DEAD_LETTERS]
        counted = found[DEAD_LETTERS].records if DEAD_LETTERS in found else 0
        found[DEAD_LETTERS] = stream(
            dead + counted, min(bounds, default=START_OF_TIME), -1 if ledger is None else ledger.latest.get(DEAD_LETTERS, -1)
        )
    return found


def _deliveries(folder: Folder) -> dict[str, int]:
    found = {}
    for path in sorted((folder.path / "consumers").glob("deliver *.json")):
        positions = read_json(path, dict[str, Position]) or {}
        found[path.stem.removeprefix("deliver ")] = sum(1 for table, at in positions.items() for _ in tail(folder.table(table), table, at))
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
