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
    """A finding, with all that was produced of it put together."""

    anomaly: Anomaly
    sure: ms.Timestamp  # when it was first produced

    def is_of(self, true: Anomaly) -> bool:
        return self.anomaly.meets(true, within=NEAR)


@dataclass(frozen=True)
class Score:
    """The truth and what was found of it, both in the order of time."""

    truth: tuple[Anomaly, ...]
    found: tuple[Found, ...]

    def first(self, true: Anomaly) -> Found | None:
        """What was found of a true anomaly first; None if it was missed."""
        return next((found for found in self.found if found.is_of(true)), None)

    @property
    def hits(self) -> int:
        """True anomalies that were found; several findings of one count once."""
        return sum(self.first(true) is not None for true in self.truth)

    @property
    def false(self) -> list[Found]:
        """Findings of nothing."""
        return [found for found in self.found if not any(found.is_of(true) for true in self.truth)]

    @property
    def precision(self) -> float:
        """How much of what was found is true."""
        return self.hits / max(self.hits + len(self.false), 1)

    @property
    def recall(self) -> float:
        """How much of what is true was found."""
        return self.hits / max(len(self.truth), 1)


def score(truth: Iterable[Anomaly], findings: Iterable[ms.Record[Finding]]) -> Score:
    """`findings` is all that the detector produced, in any order."""
    found_by_name: dict[tuple[str, ms.Timestamp], Found] = {}
    for record in sorted(findings, key=lambda record: int(record.timestamp)):
        name, finding = (record.key, record.value.start), record.value
        sure = found_by_name[name].sure if name in found_by_name else ms.floor(record.timestamp, HOUR) + HOUR
        found_by_name[name] = Found(Anomaly(record.key, finding.kind, finding.start, finding.end), sure)
    return Score(tuple(sorted(truth, key=_start)), tuple(sorted(found_by_name.values(), key=lambda found: _start(found.anomaly))))


def table(result: Score) -> Table:
    """For the terminal."""
    shown = Table(
        title="Zeitgeist: what was put in, and what was found",
        caption=f"{len(result.truth)} put in, {result.hits} found, {len(result.false)} false: "
        f"precision {result.precision:.2f}, recall {result.recall:.2f}",
    )
    for heading in ("query", "kind", "put in", "found"):
        shown.add_column(heading, no_wrap=True, min_width=5)
    shown.add_column("sure after", justify="right", no_wrap=True)
    for true in result.truth:
        found = result.first(true)
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


def _start(anomaly: Anomaly) -> tuple[int, str]:
    return int(anomaly.start), anomaly.query
