"""What was found against the truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

import millstream as ms
from millstream.zeitgeist.clock import HOUR, simulated
from millstream.zeitgeist.computations import Finding
from millstream.zeitgeist.events import Anomaly

NEAR = 3 * HOUR  # a finding may miss the anomaly's own time by so much


@dataclass(frozen=True)
class Found:
    """A finding with all that was told of it."""

    anomaly: Anomaly
    sure: ms.Timestamp  # when it was told first


@dataclass(frozen=True)
class Score:
    """Each true anomaly with what was found of it, and what was found of nothing."""

    hits: tuple[tuple[Anomaly, Found | None], ...]
    false: tuple[Found, ...]

    @property
    def found(self) -> int:
        return sum(found is not None for _, found in self.hits)

    @property
    def precision(self) -> float:
        """The part of the findings that is true; several findings of one anomaly count once."""
        return self.found / max(self.found + len(self.false), 1)

    @property
    def recall(self) -> float:
        """The part of the truth that was found."""
        return self.found / max(len(self.hits), 1)


def together(findings: Iterable[ms.Record[Finding]]) -> list[Found]:
    """A finding is told when it is sure and when it is over: what was told of the same one, put together."""
    told: dict[tuple[str, ms.Timestamp], Found] = {}
    for record in sorted(findings, key=lambda record: record.timestamp):
        finding = record.value
        first = told.get((record.key, finding.start))
        sure = record.timestamp + HOUR if first is None else first.sure
        told[record.key, finding.start] = Found(Anomaly(record.key, finding.kind, finding.start, finding.end), sure)
    return sorted(told.values(), key=lambda found: found.anomaly.start)


def score(truth: Iterable[Anomaly], findings: Iterable[ms.Record[Finding]]) -> Score:
    found = together(findings)
    hits = [(true, next((f for f in found if f.anomaly.meets(true, within=NEAR)), None)) for true in truth]
    false = [f for f in found if not any(f.anomaly.meets(true, within=NEAR) for true, _ in hits)]
    return Score(tuple(hits), tuple(false))


def table(result: Score) -> Table:
    """For the terminal."""
    shown = Table(
        title="Zeitgeist: what was put in, and what was found",
        caption=f"precision {result.precision:.2f}   recall {result.recall:.2f}   ({len(result.hits)} put in, {result.found} found, {len(result.false)} false)",
    )
    for heading in ("query", "kind", "put in", "found", "sure after"):
        shown.add_column(heading, justify="right" if heading == "sure after" else "left", no_wrap=True)
    for true, found in result.hits:
        if found is None:
            shown.add_row(true.query, true.kind.value, when(true), "missed", "", style="red")
        else:
            shown.add_row(true.query, true.kind.value, when(true), when(found.anomaly), f"{(found.sure - true.start) // HOUR} h")
    for found in result.false:
        shown.add_row(found.anomaly.query, found.anomaly.kind.value, "nothing", when(found.anomaly), "", style="yellow")
    return shown


def when(anomaly: Anomaly) -> str:
    """In simulated time: `Tue 23 Jan 09:00 to 15:00`."""
    return f"{simulated(anomaly.start):%a %d %b %H:%M} to {simulated(anomaly.end):%H:%M}"
