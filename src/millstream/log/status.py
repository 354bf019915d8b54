"""What can be known of a run from its folder alone: also from another terminal, also when nothing runs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from millstream.core.backlog import Position
from millstream.core.epoch import Tally
from millstream.core.graph import DEAD_LETTERS, MILL
from millstream.core.plan import Ledger, Source
from millstream.errors import LogError
from millstream.log.folder import Folder, Pinned, read_json
from millstream.log.table import newest_note, tail
from millstream.timestamp import START_OF_TIME, Timestamp

INJECTOR = "injector "


class ComputationStatus(msgspec.Struct):
    """A computation: its low watermarks, what came and went, what is kept."""

    low_watermark: Timestamp
    output_low_watermark: Timestamp
    tally: Tally
    keys: int
    timers: int


class StreamStatus(msgspec.Struct):
    """A stream: how many records it has had, and up to when it is complete."""

    records: int
    low_watermark: Timestamp


class InjectorStatus(msgspec.Struct):
    """An injector: what it brought in, what it set aside, whether its input has ended."""

    injected: int
    dead: int
    low_watermark: Timestamp
    finished: bool
    waiting: int  # records that no epoch has taken yet


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
    ledger = None if found is None else msgspec.json.decode(found[1], type=Ledger)
    injectors = _injectors(folder, ledger)
    return Status(
        topology=pinned.topology,
        running=_running(folder),
        epoch=-1 if ledger is None else ledger.plan.epoch,
        now=Timestamp(time.time_ns() // 1000),
        computations={} if ledger is None else _computations(ledger),
        streams=_streams(ledger, injectors),
        injectors=injectors,
        deliveries=_deliveries(folder),
    )


def _computations(ledger: Ledger) -> dict[str, ComputationStatus]:
    found = {}
    for name, lw in ledger.plan.low_watermarks.items():
        reports = [of[name] for of in ledger.reports.values() if name in of]
        found[name] = ComputationStatus(
            lw.input, lw.output, ledger.tallies.get(name, Tally()), sum(r.rows for r in reports), sum(r.timers for r in reports)
        )
    return found


def _injectors(folder: Folder, ledger: Ledger | None) -> dict[str, InjectorStatus]:
    found = {}
    for path in sorted((folder.path / "log").glob(f"{INJECTOR}*")):
        note = newest_note(path, path.name)
        source = Source() if note is None else msgspec.json.decode(note[1], type=Source)
        name = path.name.removeprefix(INJECTOR)
        promised = START_OF_TIME if ledger is None else ledger.plan.promises.get(name, START_OF_TIME)
        start = Position() if ledger is None else ledger.plan.positions.get(path.name, Position())
        waiting = sum(file.rows for commit in tail(path, path.name, start) for file in commit.files)
        found[name] = InjectorStatus(source.injected, source.dead, promised, source.finished, waiting)
    return found


def _streams(ledger: Ledger | None, injectors: dict[str, InjectorStatus]) -> dict[str, StreamStatus]:
    found = {name: StreamStatus(injector.injected, injector.low_watermark) for name, injector in injectors.items()}
    for name, count in ({} if ledger is None else ledger.produced).items():
        assert ledger is not None
        known = ledger.plan.low_watermarks.get(name.rpartition(".")[0])
        found[name] = StreamStatus(count, START_OF_TIME if known is None else known.output)
    dead = sum(injector.dead for injector in injectors.values())
    if dead or DEAD_LETTERS in found:
        bounds = [stream.low_watermark for name, stream in found.items() if name != DEAD_LETTERS]
        counted = found[DEAD_LETTERS].records if DEAD_LETTERS in found else 0
        found[DEAD_LETTERS] = StreamStatus(dead + counted, min(bounds, default=START_OF_TIME))
    return found


def _deliveries(folder: Folder) -> dict[str, int]:
    found = {}
    for path in sorted((folder.path / "consumers").glob("deliver *.json")):
        positions = read_json(path, dict[str, Position]) or {}
        found[path.stem.removeprefix("deliver ")] = sum(1 for table, at in positions.items() for _ in tail(folder.table(table), table, at))
    return found


class Owner(msgspec.Struct):
    """Who runs on a folder."""

    process: int
    fence: int


def _running(folder: Folder) -> bool:
    """Whether the lock of the folder is held."""
    import fcntl

    try:
        with folder.lock.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_UN)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
