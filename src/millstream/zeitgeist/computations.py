"""Zeitgeist's computations. All have the query's text as key.

    queries ──> PerSecond ──counts──┬──> Model ──forecasts──┐
                                    └──────────────────────>┴──> Detector ──> comparisons, findings

A count goes to the model and to the detector at once: the model learns from it while the detector waits, by a timer on
the low watermark, for the forecast that the model made without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import msgspec

import millstream as ms
from millstream.zeitgeist.clock import DAY, hour_of_week
from millstream.zeitgeist.events import AnomalyKind, Query

SILENCE = DAY  # a query is counted on, zero by zero, for so long after it was last heard
FADE = 0.8  # what a week weighs against the week after it
LEAST_VARIANCE = 0.25  # of the root of a count, if its events come independently of each other
TRUST = 4.0  # so many weeks must a slot have seen before its own variance counts as much as the least
FAR = 2.75  # deviations from the forecast at which a second differs
ENOUGH, WINDOW = 4, 6 * ms.SECOND  # seconds that must differ, and within how long, for a finding
CALM = 4 * ms.SECOND  # a finding is over when no second has differed for so long


@dataclass
class Seconds:
    """What `PerSecond` keeps: the seconds that are still open, and how long the query has been silent."""

    counts: dict[ms.Timestamp, int] = field(default_factory=dict)
    silent: ms.Duration = 0 * ms.SECOND


class PerSecond(ms.Computation[Seconds]):
    """Counts a query second by second. Silence counts too: it makes no records, so timers say zero.

    The zeros end after `SILENCE`, or with the input: after the last query of all, nobody can tell silence from the end.
    """

    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Query]) -> None:
        second = ms.floor(record.timestamp, ms.SECOND)
        self._open(second)
        self.state.counts[second] = self.state.counts.get(second, 0) + 1

    def process_timer(self, timer: ms.Timer) -> None:
        state = self.state
        count = state.counts.pop(timer.at - ms.SECOND, 0)
        self.counts.produce(count, timestamp=last_instant(timer.at))
        state.silent = 0 * ms.SECOND if count else state.silent + ms.SECOND
        if state.silent < SILENCE and (state.counts or self.low_watermark < ms.END_OF_TIME):
            self._open(timer.at)
        elif not state.counts:
            del self.state

    def _open(self, second: ms.Timestamp) -> None:
        if second not in self.state.counts:
            end = second + ms.SECOND
            self.set_timer(f"{second}", at=end, hold=last_instant(end))


def last_instant(end: ms.Timestamp) -> ms.Timestamp:
    """The timestamp of what is said of a second: within it, and never before a record of it, so never late."""
    return end - ms.MICROSECOND


@dataclass(frozen=True)
class Forecast:
    """The count to expect, as its root (see `root`), and how far the real one usually is from it."""

    root: float
    deviation: float

    def deviations(self, count: int) -> float:
        return (root(count) - self.root) / self.deviation

    def at(self, deviations: float) -> float:
        """The count that lies so many deviations from the expected one."""
        return max(0.0, max(0.0, self.root + deviations * self.deviation) ** 2 - 0.375)


def root(count: int) -> float:
    """Anscombe's root: counts of 5 and of 500 scatter alike on its scale, with a variance of about 1/4."""
    return math.sqrt(count + 0.375)


class Slot(msgspec.Struct, array_like=True):
    """What the model knows of one hour of the week: mean and spread (the sum of squares) of the roots, older weeks fading."""

    weight: float = 0.0
    mean: float = 0.0
    spread: float = 0.0

    def forecast(self) -> Forecast | None:
        """None until two weeks were seen. The deviation is that of a new value from a mean which is itself uncertain."""
        if self.weight <= 1.0:
            return None
        variance = (self.spread + TRUST * LEAST_VARIANCE) / (self.weight - 1.0 + TRUST)
        return Forecast(self.mean, math.sqrt(max(variance, LEAST_VARIANCE) * (1.0 + 1.0 / self.weight)))

    def learn(self, value: float) -> None:
        self.weight = FADE * self.weight + 1.0
        miss = value - self.mean
        self.mean += miss / self.weight
        self.spread = FADE * self.spread + miss * (value - self.mean)


class Model(ms.Computation[dict[int, Slot]]):
    """Learns a query's week, hour by hour, and forecasts every count from the weeks before it."""

    forecasts: ms.Output[Forecast]

    def process_record(self, record: ms.Record[int]) -> None:
        slot = self.state.setdefault(hour_of_week(record.timestamp), Slot())
        forecast, value = slot.forecast(), root(record.value)
        if forecast:
            self.forecasts.produce(forecast, timestamp=record.timestamp)
            reach = FAR * forecast.deviation  # a spike must not become what is expected: it teaches no more than this
            value = min(max(value, forecast.root - reach), forecast.root + reach)
        slot.learn(value)


@dataclass(frozen=True)
class Comparison:
    """A second's count, what was predicted, and between which counts it would not have differed."""

    actual: int
    predicted: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """Told twice: as soon as it is sure, and when it is `over`. `start` is the same both times."""

    kind: AnomalyKind
    start: ms.Timestamp
    end: ms.Timestamp
    over: bool


@dataclass
class Watch:
    """What the detector keeps: what waits for its other half, the seconds that differed lately, the finding that is on."""

    counts: dict[ms.Timestamp, int] = field(default_factory=dict)
    forecasts: dict[ms.Timestamp, Forecast] = field(default_factory=dict)
    differed: list[tuple[ms.Timestamp, AnomalyKind]] = field(default_factory=list)
    finding: Finding | None = None


class Detector(ms.Computation[Watch]):
    """Compares each count with its forecast; one second proves nothing, `ENOUGH` of a `WINDOW` are a finding."""

    comparisons: ms.Output[Comparison]
    findings: ms.Output[Finding]

    def process_record(self, record: ms.Record[int | Forecast]) -> None:
        second = ms.floor(record.timestamp, ms.SECOND)
        match record.value:
            case Forecast() as forecast:
                self.state.forecasts[second] = forecast
            case count:
                self.state.counts[second] = count
        # The low watermark passes the second's end only when both halves are here, or the model had nothing to say.
        self.set_timer(f"{second}", at=second + ms.SECOND, hold=record.timestamp)

    def process_timer(self, timer: ms.Timer) -> None:
        second = timer.at - ms.SECOND
        count, forecast = self.state.counts.pop(second), self.state.forecasts.pop(second, None)
        if forecast is None:
            return
        self.comparisons.produce(Comparison(count, forecast.at(0.0), forecast.at(-FAR), forecast.at(FAR)), timestamp=last_instant(timer.at))
        deviations = forecast.deviations(count)
        self._watch(second, None if abs(deviations) < FAR else AnomalyKind.SPIKE if deviations > 0 else AnomalyKind.DIP)

    def _watch(self, second: ms.Timestamp, kind: AnomalyKind | None) -> None:
        state, end = self.state, second + ms.SECOND
        state.differed = [(at, other) for at, other in state.differed if at + WINDOW > second]
        if kind:
            state.differed.append((second, kind))
        if state.finding is None:
            alike = [at for at, other in state.differed if other is kind]
            if kind and len(alike) >= ENOUGH:
                state.finding = Finding(kind, alike[0], end, over=False)
                self.findings.produce(state.finding, timestamp=last_instant(end))
        elif kind is state.finding.kind:
            state.finding = replace(state.finding, end=end)
        elif end - state.finding.end >= CALM:
            self.findings.produce(replace(state.finding, over=True), timestamp=last_instant(end))
            state.finding = None
