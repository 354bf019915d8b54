"""Actual against predicted traffic, with what was found: a picture that needs no explanation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import millstream as ms
from millstream.zeitgeist.clock import HOUR, START, hour_of_week, simulated
from millstream.zeitgeist.computations import Comparison
from millstream.zeitgeist.events import Anomaly, AnomalyKind
from millstream.zeitgeist.score import Score

EVENTFUL = 4  # panels of queries in which most happened; one more shows a query in which nothing did
FOUND = {AnomalyKind.SPIKE: "#e8590c", AnomalyKind.DIP: "#1971c2"}
ACTUAL, PREDICTED, USUAL, TRUE = "#212529", "#2b8a3e", "#d3f9d8", "#868e96"

Comparisons = list[ms.Record[Comparison]]


def draw(path: Path, comparisons: Iterable[ms.Record[Comparison]], result: Score) -> None:
    """Write the picture as a PNG. `comparisons` is all that the detector compared, in any order."""
    histories: dict[str, Comparisons] = {}
    for record in sorted(comparisons, key=lambda record: int(record.timestamp)):
        histories.setdefault(record.key, []).append(ms.Record(record.key, record.value, ms.floor(record.timestamp, HOUR)))
    shown = choose(histories, result)
    figure = Figure(figsize=(15, 2.6 * len(shown) + 1.8), dpi=110, layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for panel, query in zip(panels, shown, strict=True):
        _draw_query(panel, query, histories[query], result)
    midnights = [r.timestamp for r in histories[shown[0]] if hour_of_week(r.timestamp) % 24 == 0]
    panels[-1].set_xticks([_x(midnight) for midnight in midnights], [simulated(midnight).strftime("%a\n%d %b") for midnight in midnights])
    panels[-1].set_xlabel("simulated calendar (an hour of it is a second of event time)")
    figure.suptitle("Searches an hour: actual, predicted by the model, and what the detector found", fontsize=15)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6, frameon=False, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def choose(histories: dict[str, Comparisons], result: Score) -> list[str]:
    """The queries with most kinds of anomalies, then with most of them; last the busiest without any."""
    anomalies = [*result.truth, *(found.anomaly for found in result.false)]
    kinds = {query: [anomaly.kind for anomaly in anomalies if anomaly.query == query] for query in sorted(histories)}
    eventful = sorted((query for query in kinds if kinds[query]), key=lambda query: (-len(set(kinds[query])), -len(kinds[query])))
    quiet = sorted((query for query in kinds if not kinds[query]), key=lambda query: -sum(r.value.actual for r in histories[query]))
    return eventful[:EVENTFUL] + quiet[:1]


def _draw_query(panel: Axes, query: str, history: Comparisons, result: Score) -> None:
    hours = [_x(r.timestamp) for r in history]
    top = 1.3 * max(max(r.value.actual, r.value.high) for r in history)
    panel.fill_between(hours, [r.value.low for r in history], [r.value.high for r in history], step="post", color=USUAL, linewidth=0)
    panel.plot(hours, [r.value.predicted for r in history], color=PREDICTED, linewidth=1.6, drawstyle="steps-post")
    panel.plot(hours, [r.value.actual for r in history], color=ACTUAL, linewidth=1.1, drawstyle="steps-post")
    true = [anomaly for anomaly in result.truth if anomaly.query == query]
    found = [f.anomaly for f in result.found if f.anomaly.query == query]
    for anomaly in found:
        _mark(panel, anomaly, top)
    for anomaly in true:
        panel.plot([_x(anomaly.start), _x(anomaly.end)], [0.98 * top] * 2, color=TRUE, linewidth=5, solid_capstyle="butt")
    panel.set(xlim=(hours[0], _x(history[-1].timestamp + HOUR)), ylim=(0, top), ylabel="searches an hour")
    panel.set_title(f"“{query}”", loc="left", fontsize=12, fontweight="bold")
    panel.set_title(f"{_number(len(true))} put in, {_number(len(found))} found", loc="right", fontsize=11, color=TRUE)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="#dee2e6", linewidth=0.8)


def _mark(panel: Axes, anomaly: Anomaly, top: float) -> None:
    start, end, colour = _x(anomaly.start), _x(anomaly.end), FOUND[anomaly.kind]
    panel.axvspan(start, end, color=colour, alpha=0.25, linewidth=0)
    panel.text((start + end) / 2, 0.93 * top, anomaly.kind.value, color=colour, ha="center", va="top", fontweight="bold")


def _legend() -> list[Any]:
    return [
        Line2D([], [], color=ACTUAL, label="actual"),
        Line2D([], [], color=PREDICTED, linewidth=1.6, label="predicted"),
        Patch(color=USUAL, label="usual range"),
        *(Patch(color=colour, alpha=0.25, label=f"{kind.value} found") for kind, colour in FOUND.items()),
        Line2D([], [], color=TRUE, linewidth=5, label="put in by the generator"),
    ]


def _number(count: int) -> str:
    return str(count) if count else "nothing"


def _x(timestamp: ms.Timestamp) -> float:
    return (timestamp - START) / HOUR
