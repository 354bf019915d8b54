"""Computations that are added later and begin with the oldest record that the log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream import aggregate
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.opening import open_ledger
from millstream.sources import history
from millstream.window import Tumbling, Window, Windowed
from tests.spark.clicks import Click, Count, click, write_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

USERS, PAGES = 7, 3


def clicks_of(file: int) -> list[Click]:
    """Half a minute each, with a disorder of less than a second."""
    found = [(file * 30 + n * 0.3 + (n % 3) * 0.3, n) for n in range(100)]
    return [click(f"u{n % USERS}", seconds, page=f"/{(file + n) % PAGES}") for seconds, n in found]


class Fragile(Count):
    """Raises at its fiftieth record."""

    def process_record(self, record: ms.Record[Click]) -> None:
        if self.state == 5:
            raise ValueError("no more")
        super().process_record(record)


def topology_of(folder: Path, added: Callable[[ms.Topology, ms.InjectedStream[Click], Count], None] | None = None) -> ms.Topology:
    topology, count = ms.Topology("growing"), Count()
    clicks = topology.inject(
        "clicks",
        ms.files(f"{folder}/*.jsonl", Click),
        key=lambda c: c.user,
        timestamp=lambda c: c.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
    )
    topology.compute("count", count).reads(clicks)
    if added is not None:
        added(topology, clicks, count)
    return topology


def add_all(topology: ms.Topology, clicks: ms.InjectedStream[Click], count: Count) -> None:
    """Under the key of the stream, under another, behind a computation, and one that waits for the low watermark."""
    oldest: dict[str, Any] = {"since": ms.Since.OLDEST}
    topology.compute("again", Count()).reads(clicks, **oldest)
    topology.compute("by-page", Count()).reads(clicks.by(lambda c: c.page), **oldest)
    topology.compute("counted", Numbers()).reads(count.counts, **oldest)
    topology.compute("per-minute", Window(Click, Tumbling(ms.MINUTE), aggregate.count())).reads(clicks, **oldest)


class Numbers(ms.Computation[list[int]]):
    seen: ms.Output[list[int]]

    def process_record(self, record: ms.Record[int]) -> None:
        self.state.append(record.value)
        self.seen.produce(self.state, timestamp=record.timestamp)


def last_of(at: Path, stream: str) -> dict[str, Any]:
    return {record.key: record.value for record in ms.read(at, stream)}


def check_all(at: Path, clicks: list[Click]) -> None:
    users = Counter(c.user for c in clicks)
    assert last_of(at, "again.counts") == last_of(at, "count.counts") == users
    assert last_of(at, "by-page.counts") == Counter(c.page for c in clicks)
    assert last_of(at, "counted.seen") == {user: list(range(1, n + 1)) for user, n in users.items()}, "each once, and in order"
    minutes = Counter((c.user, ms.floor(ms.to_timestamp(c.at), ms.MINUTE)) for c in clicks)
    told = [record.value for record in ms.read(at, "per-minute.results", value=Windowed[int])]
    over = max(window.end for window in told)
    assert Counter({(w.key, w.start): w.value for w in told}) == Counter({m: n for m, n in minutes.items() if m[1] < over})
    assert len(told) == len({(w.key, w.start) for w in told})


def run_to(topology: ms.Topology, at: Path, start: Callable[..., ms.Run], **options: Any) -> ms.Status:
    run = start(topology, folder=at, lanes=2, **options)
    run.drain()
    return run.status()


def test_one_that_is_added_has_all_that_came_before_and_what_comes_now(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    for file in range(4):
        write_lines(folder / f"{file}.jsonl", clicks_of(file))
    run_to(topology_of(folder), at, started)
    for file in range(4, 6):
        write_lines(folder / f"{file}.jsonl", clicks_of(file))
    status = run_to(topology_of(folder, add_all), at, started)
    check_all(at, [c for file in range(6) for c in clicks_of(file)])
    assert {name: c.tally.late for name, c in status.computations.items()} == dict.fromkeys(status.computations, 0)
    assert status.computations["again"].tally.received == 600
    assert list(status.injectors) == ["clicks"], "a history is no injector of the user's"
    write_lines(folder / "6.jsonl", clicks_of(6))
    run_to(topology_of(folder, add_all), at, started)  # a start later: it goes on, and begins nothing anew
    check_all(at, [c for file in range(7) for c in clicks_of(file)])


def test_one_that_is_stopped_in_its_history_goes_on_there(
    tmp_path: Path, at: Path, started: Callable[..., ms.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, and then failed, in the middle: nothing twice, nothing lost, and what is new waits for what is old."""
    folder = tmp_path / "clicks"
    for file in range(6):
        write_lines(folder / f"{file}.jsonl", clicks_of(file))
    run_to(topology_of(folder), at, started, max_records_per_epoch=30, max_bytes_per_epoch=4_000)  # many epochs
    monkeypatch.setattr(history, "RECORDS_PER_FRAME", 1)
    monkeypatch.setattr(history, "PARTS_AHEAD", 0)
    write_lines(folder / "6.jsonl", clicks_of(6))
    run = started(topology_of(folder, add_all), folder=at, lanes=2)
    wait_until(lambda: run.status().computations["again"].tally.received > 0)
    run.stop()
    ledger = open_ledger(Commits(LocalDisk(at / "journal")))
    halfway = [name for name, source in ledger.sources.items() if name.endswith("(history)") and source.positions and not source.finished]
    assert halfway, "it was stopped in the middle"
    run_to(topology_of(folder, add_all), at, started)
    check_all(at, [c for file in range(7) for c in clicks_of(file)])


def test_one_that_fails_in_its_history_is_repaired_and_has_it_all(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    write_lines(folder / "0.jsonl", clicks_of(0))
    run_to(topology_of(folder), at, started)

    def add(computation: Count) -> Callable[..., None]:
        return lambda topology, clicks, count: topology.compute("again", computation).reads(clicks, since=ms.Since.OLDEST)

    run = started(topology_of(folder, add(Fragile())), folder=at, lanes=2)
    with pytest.raises(ms.RunFailed, match="no more"):
        run.wait(120)
    run_to(topology_of(folder, add(Count())), at, started)
    assert last_of(at, "again.counts") == Counter(c.user for c in clicks_of(0))


def test_one_that_has_run_before_is_told_so(tmp_path: Path, at: Path, started: Callable[..., ms.Run]) -> None:
    folder = tmp_path / "clicks"
    write_lines(folder / "0.jsonl", clicks_of(0))
    run_to(topology_of(folder), at, started)

    def change(topology: ms.Topology, clicks: ms.InjectedStream[Click], count: Count) -> None:
        more = topology.inject(
            "more", ms.values([], Click), key=lambda c: c.user, timestamp=lambda c: c.at, low_watermark=ms.BoundedDisorder(ms.SECOND)
        )
        topology.nodes["count"].inputs = ()
        topology.nodes["count"].reads(clicks, more, since=ms.Since.OLDEST)

    with pytest.raises(ms.TopologyError, match=r"'count' has run before, so it cannot begin with the oldest record of 'more'"):
        started(topology_of(folder, change), folder=at, lanes=2)
