"""The table of metrics, what a folder takes on the disk, and the board that goes by both."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from millstream.log.folder import Folder
from millstream.log.metrics import DURATION, METRICS, UP, MetricKind, measure, took
from millstream.log.samples import Sample

DOCS = Path(__file__).parents[2] / "docs"


def exposed() -> set[str]:
    """The names that Prometheus sees."""
    names = {f"{metric.name}_total" if metric.kind is MetricKind.COUNTER else metric.name for metric in METRICS}
    return {*names, UP[0], *(f"{DURATION[0]}_{part}" for part in ("bucket", "sum", "count"))}


def test_every_metric_is_in_the_guide_and_the_guide_has_no_other() -> None:
    guide = (DOCS / "guide" / "watching.md").read_text()
    told = set(re.findall(r"^\| `(millstream_\w+)`", guide, re.MULTILINE))
    assert told == {name for name in exposed() if not name.startswith(DURATION[0])} | {DURATION[0]}


def test_the_board_asks_for_metrics_that_there_are() -> None:
    board = json.loads((DOCS / "grafana.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r"millstream_\w+", target["expr"])}
    assert asked <= exposed()
    assert len(asked) > 15
    labels = {metric.name: set(metric.labels) for metric in METRICS}
    for panel in board["panels"]:
        for target in panel["targets"]:
            name = re.findall(r"millstream_\w+", target["expr"])[0].removesuffix("_total")
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels.get(name, set()), target


def test_a_folder_is_measured(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert measure(folder, 0.0).journal_files == 0, "of one that is not there yet"
    for path, size in {"journal/segments/a": 10, "journal/commits/1": 5, "log/day/x.parquet": 7, "checkpoints/lane 0/state/z": 3}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * size)
    commit = tmp_path / "checkpoints" / "lane 0" / "commits" / "4"
    commit.parent.mkdir()
    commit.touch()
    os.utime(commit, (100.0, 100.0))
    found = measure(folder, 107.5)
    assert (found.journal_files, found.journal_bytes, found.log_files, found.log_bytes, found.state_bytes) == (2, 15, 1, 7, 3)
    assert found.checkpoint_ages == {"0": 7.5}


def test_epochs_by_how_long_they_took() -> None:
    assert took(None) == took(Sample(0, 1)) == ([], 0.0)
    counts, seconds = took(Sample(0, 9, took=[0, 2, 0, 1, *[0] * 9, 4], took_in_all=81.5))
    assert seconds == 81.5
    assert counts[0] == (0.001, 0)
    assert counts[1] == (0.002, 2)
    assert counts[3] == (0.01, 3)
    assert counts[-1] == (float("inf"), 7)
