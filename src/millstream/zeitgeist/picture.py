"""Actual against predicted traffic, with what was found: a picture that needs no explanation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, DayLocator
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import millstream as ms
from millstream.zeitgeist.clock import HOUR, simulated
from millstream.zeitgeist.computations import Comparison
from millstream.zeitgeist.events import Anomaly, Kind
from millstream.zeitgeist.score import Score

COLOURS = {Kind.SPIKE: "#e8590c", Kind.DIP: "#1971c2"}
ACTUAL, EXPECTED, USUAL, TRUE = "#212529", "#2f9e44", "#b2f2bb", "#868e96"
PANELS = 5


def draw(path: Path, comparisons: Iterable[ms.Record[Comparison]], result: Score) -> None:
    """Write a PNG of the queries in which most happened, and of one in which nothing did."""
    of_query: dict[str, list[ms.Record[Comparison]]] = {}
    for record in sorted(comparisons, key=lambda record: record.timestamp):
        of_query.setdefault(record.key, []).append(record)
    shown = choose(result, list(of_query))
    figure = Figure(figsize=(15, 2.6 * len(shown) + 1.6), dpi=110, layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for panel, query in zip(panels, shown, strict=True):
        _draw_query(panel, query, of_query[query], result)
    panels[-1].xaxis.set_major_locator(DayLocator())
    panels[-1].xaxis.set_major_formatter(DateFormatter("%a\n%d %b"))
    figure.suptitle("Search queries per hour: actual traffic, what the model predicted, and what the detector found", fontsize=15)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6, frameon=False, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def choose(result: Score, queries: list[str]) -> list[str]:
    """The queries with the most kinds of anomalies, then with the most of them; last one without any."""
    all_ = [true for true, _ in result.hits] + [found.anomaly for found in result.false]
    of_query = {query: [anomaly.kind for anomaly in all_ if anomaly.query == query] for query in sorted(queries)}
    ranked = sorted(of_query, key=lambda query: (len(set(of_query[query])), len(of_query[query])), reverse=True)
    quiet = [query for query in queries if not of_query[query]][:1]
    return [query for query in ranked if of_query[query]][: PANELS - len(quiet)] + quiet


def _draw_query(panel: Axes, query: str, records: list[ms.Record[Comparison]], result: Score) -> None:
    hours = [_x(record.timestamp) for record in records]
    panel.fill_between(
        hours, [r.value.low for r in records], [r.value.high for r in records], step="post", color=USUAL, linewidth=0
    )
    panel.plot(hours, [r.value.expected for r in records], color=EXPECTED, linewidth=1.4, drawstyle="steps-post")
    panel.plot(hours, [r.value.actual for r in records], color=ACTUAL, linewidth=1.1, drawstyle="steps-post")
    top = 1.3 * max(max(r.value.actual for r in records), max(r.value.high for r in records))
    panel.set(ylim=(0, top), xlim=(hours[0], _x(records[-1].timestamp + HOUR)), ylabel="per hour")
    panel.set_title(query, loc="left", fontsize=12, fontweight="bold")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="#dee2e6", linewidth=0.8)
    found = [found.anomaly for _, found in result.hits if found] + [found.anomaly for found in result.false]
    for anomaly in (anomaly for anomaly in found if anomaly.query == query):
        _mark(panel, anomaly, top)
    for true, _ in result.hits:
        if true.query == query:
            panel.plot([_x(true.start), _x(true.end)], [0.98 * top] * 2, color=TRUE, linewidth=5, solid_capstyle="butt")


def _mark(panel: Axes, anomaly: Anomaly, top: float) -> None:
    colour = COLOURS[anomaly.kind]
    start, end = _x(anomaly.start), _x(anomaly.end)
    panel.axvspan(start, end, color=colour, alpha=0.25, linewidth=0)
    panel.text((start + end) / 2, 0.92 * top, anomaly.kind.value, color=colour, ha="center", va="top", fontweight="bold")


def _legend() -> list[Any]:
    return [
        Line2D([], [], color=ACTUAL, label="actual"),
        Line2D([], [], color=EXPECTED, label="predicted"),
        Patch(color=USUAL, label="usual range"),
        *(Patch(color=colour, alpha=0.25, label=f"{kind.value} found") for kind, colour in COLOURS.items()),
        Line2D([], [], color=TRUE, linewidth=5, label="truly put in"),
    ]


def _x(timestamp: ms.Timestamp) -> float:
    """Days of the simulated calendar, as matplotlib counts them: since 1970."""
    return simulated(timestamp).timestamp() / 86_400
