"""The examples of the documentation on Spark: the same results as the driver without it."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millstream as ms
from millstream.log.reading import newest_records
from millstream.testing import Driver
from millstream.window import Windowed
from tests.spark.clicks import NOON, click, write_lines

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
pytestmark = pytest.mark.spark


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import an example anew, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = ("readme", "by_hand", "sessions", "enrich", "cycle")
    for name in names:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def delivered(path: str, value: Any) -> list[ms.Record[object]]:
    import msgspec
    from deltalake import DeltaTable

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    found = [ms.Record(row["key"], msgspec.convert(_times(row["value"]), value), ms.to_timestamp(row["timestamp"])) for row in rows]
    return sorted(found, key=lambda r: (r.timestamp, r.key, repr(r.value)))


def _times(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: int(ms.to_timestamp(cell)) if hasattr(cell, "tzinfo") else cell for name, cell in value.items()}


def in_order(records: list[ms.Record[object]]) -> list[ms.Record[object]]:
    return sorted(records, key=lambda r: (r.timestamp, r.key, repr(r.value)))


def test_readme_counts_every_second_once(example: Callable[[str], ModuleType], started: Callable[..., ms.Run]) -> None:
    Path("queries").mkdir()
    readme = example("readme")
    chance = random.Random(4)
    queries = [readme.Query(f"q{chance.randrange(30)}", click("", n * 20 / 500).at) for n in range(500)]
    run = started(readme.topology)
    for part in range(0, 500, 250):
        write_lines(Path(f"queries/{part}.jsonl"), queries[part : part + 250])
    run.drain()
    driver = Driver(readme.topology)
    driver.send(readme.queries, *queries)
    driver.advance(low_watermark=ms.to_timestamp(queries[-1].at) - 2 * ms.SECOND)
    assert delivered("counts", Windowed[int]) == in_order(driver.read(readme.per_second.results))
    assert len(driver.read(readme.per_second.results)) > 100
    assert run.status().computations["per-second"].timers == sum(len(driver.timers("per-second", f"q{n}")) for n in range(30)) > 0


def test_sessions_close_when_no_click_can_join_them(example: Callable[[str], ModuleType], started: Callable[..., ms.Run]) -> None:
    Path("clicks").mkdir()
    sessions = example("sessions")
    hours = [
        sessions.Click("anna", "/a", NOON),
        sessions.Click("bert", "/b", click("", 60).at),
        sessions.Click("anna", "/b", click("", 900).at),
    ]
    later = [sessions.Click("carl", "/", click("", 7200).at)]
    run = started(sessions.topology)
    write_lines(Path("clicks/1.jsonl"), hours)
    write_lines(Path("clicks/2.jsonl"), later)
    run.drain()
    driver = Driver(sessions.topology)
    driver.send(sessions.clicks, *hours, *later)
    driver.advance(low_watermark=ms.to_timestamp(later[0].at) - 10 * ms.SECOND)
    assert delivered("sessions", sessions.Session) == in_order(driver.read(sessions.sessions.closed))
    assert [(r.key, r.value.clicks) for r in driver.read(sessions.sessions.closed)] == [("bert", 1), ("anna", 2)]  # type: ignore[attr-defined]


def test_enrich_reads_two_streams_under_their_own_keys(example: Callable[[str], ModuleType], started: Callable[..., ms.Run]) -> None:
    Path("profiles").mkdir()
    Path("clicks").mkdir()
    enrich = example("enrich")
    run = started(enrich.topology)
    write_lines(Path("profiles/1.jsonl"), [enrich.Profile(7, "DE", NOON)])
    write_lines(Path("clicks/1.jsonl"), [enrich.Click("7", "/a", click("", 5).at), enrich.Click("8", "/b", click("", 6).at)])
    run.drain()
    assert delivered("enriched", enrich.Enriched) == [ms.Record("7", enrich.Enriched("/a", "DE"), ms.to_timestamp(click("", 5).at))]
    assert run.status().streams["enrich.unknown"].records == 1


def test_a_cycle_runs_and_its_low_watermark_moves(example: Callable[[str], ModuleType], started: Callable[..., ms.Run]) -> None:
    Path("queries").mkdir()
    cycle, by_hand = example("cycle"), example("by_hand")
    queries = [by_hand.Query("tea", click("", n / 2).at) for n in range(40)]
    run = started(cycle.topology)
    write_lines(Path("queries/1.jsonl"), queries)
    run.drain()
    status = run.status()
    assert status.streams["detector.usual"].records == status.streams["model.expected"].records > 0
    driver = Driver(cycle.topology)
    with driver.together():
        driver.send(by_hand.queries, *queries)
        driver.advance(low_watermark=ms.to_timestamp(queries[-1].at) - 2 * ms.SECOND)
    found = [json.loads(line) for line in newest_records("mill", "model.expected", 100)]
    assert [(row["key"], row["value"]["count"]) for row in found] == [(r.key, r.value.count) for r in driver.read(cycle.model.expected)]
    assert status.computations["model"].low_watermark > ms.to_timestamp(NOON)
    assert status.computations["model"].low_watermark == status.computations["detector"].low_watermark
