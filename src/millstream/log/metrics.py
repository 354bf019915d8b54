"""The metrics of a run, as one table: Prometheus, OpenTelemetry and the guide all go by it.

Counts are those since the folder began, over all runs; times and restarts are those of the run that is on.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from millstream.core.epoch import EPOCH_BOUNDS
from millstream.log.folder import Folder
from millstream.log.samples import Sample
from millstream.log.status import Status

MetricValues = Mapping[tuple[str, ...], float]  # by the values of the labels


class MetricKind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


class DiskSizes(msgspec.Struct, frozen=True):
    """What a folder takes on the disk, and how old its checkpoints are."""

    journal_files: int = 0
    journal_bytes: int = 0
    log_files: int = 0
    log_bytes: int = 0
    state_bytes: int = 0  # of the checkpoints of all lanes
    checkpoint_ages: dict[str, float] = {}  # seconds, by lane


class Measured(NamedTuple):
    """A run at a moment."""

    status: Status
    sample: Sample | None  # the newest, while a run is on
    sizes: DiskSizes


class Metric(NamedTuple):
    """`name` as Prometheus has it, but for the `_total` of a counter."""

    name: str
    kind: MetricKind
    unit: str  # as OpenTelemetry spells units
    words: str
    labels: tuple[str, ...]
    values: Callable[[Measured], MetricValues]


def measure(folder: Folder, now: float) -> DiskSizes:
    """Looks at every file of journal, log and checkpoints: for a look a minute, not for each."""
    journal, log = _files(str(folder.journal)), _files(str(folder.log))
    ages = {}
    lanes = folder.checkpoints.glob("lane *")
    for lane in sorted(lanes):
        newest = max((stat.st_mtime for _, stat in _files(str(lane / "commits"))), default=None)
        if newest is not None:
            ages[lane.name.removeprefix("lane ")] = max(0.0, now - newest)
    state = _files(str(folder.checkpoints))
    return DiskSizes(len(journal), _bytes(journal), len(log), _bytes(log), _bytes(state), ages)


def _files(path: str) -> list[tuple[str, os.stat_result]]:
    """What lies below a folder; files come and go meanwhile."""
    found: list[tuple[str, os.stat_result]] = []
    try:
        entries = list(os.scandir(path))
    except OSError:  # it is not there, or cannot be asked now
        return found
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                found += _files(entry.path)
            else:
                found.append((entry.path, entry.stat(follow_symlinks=False)))
        except OSError:
            continue
    return found


def _bytes(files: Iterable[tuple[str, os.stat_result]]) -> int:
    return sum(stat.st_size for _, stat in files)


def took(sample: Sample | None) -> tuple[list[tuple[float, int]], float]:
    """Epochs by how long they took, as a histogram: how many no longer than each bound, and the seconds of all."""
    if sample is None or not sample.took:
        return [], 0.0
    total, counts = 0, []
    for bound, count in zip((*EPOCH_BOUNDS, float("inf")), sample.took, strict=True):
        total += count
        counts.append((bound, total))
    return counts, sample.took_in_all


def _one(value: float) -> MetricValues:
    return {(): value}


def _metrics() -> Iterable[Metric]:
    counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
    by_computation, by_injector = ("computation",), ("injector",)
    outcomes = ("applied", "dropped", "diverted", "dead", "unkeyed")

    def of_run(name: str, kind: MetricKind, unit: str, words: str, value: Callable[[Measured], float]) -> Metric:
        return Metric(name, kind, unit, words, (), lambda m: _one(value(m)))

    def of_tally(name: str, words: str, field: str) -> Metric:
        return Metric(
            name,
            counter,
            "{record}",
            words,
            by_computation,
            lambda m: {(n,): getattr(c.tally, field) for n, c in m.status.computations.items()},
        )

    yield of_run("millstream_running", gauge, "1", "1 while a run is on.", lambda m: int(m.status.running))
    yield of_run("millstream_epochs", counter, "{epoch}", "Epochs that are committed.", lambda m: m.status.epoch)
    yield Metric(
        "millstream_epoch_seconds",
        counter,
        "s",
        "Time that the epochs of this run took, by phase; of lanes, added up over all.",
        ("phase",),
        lambda m: {} if m.sample is None else {(phase,): seconds for phase, seconds in m.sample.phases.items()},
    )
    yield Metric(
        "millstream_restarts",
        counter,
        "{restart}",
        "What died in this run and came again.",
        ("what",),
        lambda m: {} if m.sample is None else {(what,): count for what, count in m.sample.restarts.items()},
    )
    yield of_run("millstream_troubles", gauge, "{trouble}", "What the status lists as troubles, counted.", lambda m: len(m.status.troubles))
    words = "Epochs that the log is behind the newest record of the streams it keeps."
    yield of_run("millstream_log_behind_epochs", gauge, "{epoch}", words, lambda m: m.status.log)
    yield Metric(
        "millstream_stream_records",
        counter,
        "{record}",
        "Records that a stream has had.",
        ("stream",),
        lambda m: {(n,): s.records for n, s in m.status.streams.items()},
    )
    yield of_tally("millstream_computation_received", "Records that came; one under several keys counts under each.", "received")
    yield Metric(
        "millstream_computation_records",
        counter,
        "{record}",
        "Records by what became of them.",
        ("computation", "outcome"),
        lambda m: {(n, what): getattr(c.tally, what) for n, c in m.status.computations.items() for what in outcomes},
    )
    yield of_tally("millstream_computation_late", "Records that came late; each has an outcome beside.", "late")
    yield of_tally("millstream_computation_produced", "Productions.", "produced")
    yield of_tally("millstream_computation_timers_fired", "Timers that fired.", "fired")
    yield Metric(
        "millstream_low_watermark_lag_seconds",
        gauge,
        "s",
        "How far a low watermark is behind the wall clock; absent at the ends of time.",
        by_computation,
        lambda m: {(n,): int(c.lag) / 1e6 for n, c in m.status.computations.items() if c.lag is not None},
    )
    for name, words, field in (
        ("millstream_keys", "Keys that a computation keeps something of.", "keys"),
        ("millstream_timers", "Timers that are set.", "timers"),
        ("millstream_records_waiting", "Records that wait for their time, with the order of event time.", "waiting"),
    ):
        yield Metric(name, gauge, "1", words, by_computation, _of_computations(field))
    for name, words, field, kind in (
        ("millstream_injected", "Records that an injector has brought in.", "injected", counter),
        ("millstream_injector_dead", "Values that an injector has set aside.", "dead", counter),
        ("millstream_injector_waiting", "Records of an injector that no epoch has taken yet.", "waiting", gauge),
        ("millstream_injector_idle", "1 while an injector is silent and nobody waits for it.", "idle", gauge),
    ):
        yield Metric(name, kind, "{record}" if field != "idle" else "1", words, by_injector, _of_injectors(field))
    yield Metric(
        "millstream_source_lag",
        gauge,
        "1",
        "What a source has that was not read, in its own unit. Only while a run is on.",
        ("injector", "partition"),
        lambda m: {(n, partition): left for n, i in m.status.injectors.items() for partition, left in i.lag.items()},
    )
    yield Metric(
        "millstream_delivery_behind_epochs",
        gauge,
        "{epoch}",
        "Epochs that a delivery is behind its stream.",
        ("delivery",),
        lambda m: {(n,): behind for n, behind in m.status.deliveries.items()},
    )
    for name, unit, words, field in (
        ("millstream_journal_files", "{file}", "Files of the journal.", "journal_files"),
        ("millstream_journal_bytes", "By", "What the journal takes on the disk.", "journal_bytes"),
        ("millstream_log_files", "{file}", "Files of the log.", "log_files"),
        ("millstream_log_bytes", "By", "What the log takes on the disk.", "log_bytes"),
        ("millstream_state_bytes", "By", "What the checkpoints of all lanes take on the disk.", "state_bytes"),
    ):
        yield of_run(name, gauge, unit, words, _of_sizes(field))
    yield Metric(
        "millstream_checkpoint_age_seconds",
        gauge,
        "s",
        "How long ago a lane last checkpointed.",
        ("lane",),
        lambda m: {(lane,): age for lane, age in m.sizes.checkpoint_ages.items()},
    )


def _of_computations(field: str) -> Callable[[Measured], MetricValues]:
    return lambda m: {(n,): getattr(c, field) for n, c in m.status.computations.items()}


def _of_injectors(field: str) -> Callable[[Measured], MetricValues]:
    return lambda m: {(n,): int(getattr(i, field)) for n, i in m.status.injectors.items()}


def _of_sizes(field: str) -> Callable[[Measured], float]:
    def value(measured: Measured) -> float:
        found: int = getattr(measured.sizes, field)
        return found

    return value


METRICS: tuple[Metric, ...] = tuple(_metrics())
UP = ("millstream_up", "1 if the folder can be read and holds a run, on or over.")
DURATION = ("millstream_epoch_duration_seconds", "How long the epochs of this run took, from plan to commit.")
