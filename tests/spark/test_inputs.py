"""When an input has ended: Spark's words for a query that was stopped and for one that has read all are the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger, Source
from millstream.log.folder import Folder, Pinned
from millstream.mill.actions import Fed
from millstream.spark.feeds import Feeds
from millstream.spark.launch import Died, Launcher
from millstream.spark.sources import files_there
from tests.spark.clicks import Click, Count, click, write_lines


class Planner:
    """What the planner is fed."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.fed: list[Fed] = []

    def feed(self, fed: Fed) -> None:
        self.fed.append(fed)

    def take_notes(self, injector: str) -> None: ...

    @property
    def ended(self) -> bool:
        return any(fed.finished for fed in self.fed)


class Place:
    """A bounded input from the files of a folder, without Spark."""

    def __init__(self, base: Path) -> None:
        self.folder = Folder(base / "mill")
        self.folder.open()
        self.source = ms.files(f"{base}/clicks/*.jsonl", Click, bounded=True)
        topology = ms.Topology("stopped")
        usual = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        topology.compute("count", Count()).reads(topology.inject("clicks", self.source, **usual))
        pinned = Pinned("stopped", "id", str(self.folder.path), 1, 1)
        nobody: Any = None
        self._launcher = Launcher(nobody, self.folder, compile_topology(topology), "", pinned, ms.Options())
        self.planner = Planner()

    def feeds(self, query: object) -> Feeds:
        planner: Any = self.planner
        feeds = Feeds(self._launcher, planner, lambda name: pytest.fail("nothing is started"), must_end=False)
        feeds.queries["clicks"] = query  # type: ignore[assignment]
        return feeds


@pytest.mark.parametrize("cut", [False, True])
def test_an_input_that_is_stopped_while_it_is_drained_has_not_ended(tmp_path: Path, cut: bool) -> None:
    place = Place(tmp_path)
    feeds = place.feeds(SimpleNamespace(awaitTermination=lambda: feeds.stop() if cut else None, stop=lambda: None))
    feeds.drain()
    assert place.planner.ended is not cut


def test_a_bounded_input_whose_query_is_stopped_from_outside_has_not_ended(tmp_path: Path) -> None:
    """It has read one of two files; the other would never be read."""
    for name in ("1", "a 2"):
        write_lines(tmp_path / "clicks" / f"{name}.jsonl", [click("anna", 1)])
    place = Place(tmp_path)
    feeds = place.feeds(SimpleNamespace(isActive=False, exception=lambda: None))
    checkpoint = place.folder.checkpoint("inject clicks")
    feeds._there["clicks"] = files_there(place.source)
    read = checkpoint / "sources" / "0"
    read.mkdir(parents=True)
    (read / "0").write_text(f'v1\n{{"path":"file://{tmp_path}/clicks/1.jsonl","timestamp":1,"batchId":0}}')
    with pytest.raises(Died, match="stopped from outside"):
        feeds.look()
    assert not place.planner.ended
    (read / "1").write_text(f'v1\n{{"path":"file://{tmp_path}/clicks/a%202.jsonl","timestamp":1,"batchId":1}}')
    for part in ("offsets", "commits"):
        (checkpoint / part).mkdir()
        (checkpoint / part / "0").touch()
    (checkpoint / "metadata").touch()
    (checkpoint / "offsets" / "1").touch()
    with pytest.raises(Died, match="stopped from outside"):  # both are planned, and the last batch is not done
        feeds.look()
    assert not place.planner.ended
    (checkpoint / "commits" / "1").touch()
    feeds.look()
    assert place.planner.ended
    assert feeds.ended


def test_an_input_that_has_ended_says_so_of_files_that_came_since(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(tmp_path)
    write_lines(tmp_path / "clicks" / "1.jsonl", [click("anna", 1)])
    read = place.folder.checkpoint("inject clicks") / "sources" / "0"
    read.mkdir(parents=True)
    (read / "0").write_text(f'v1\n{{"path":"file://{tmp_path}/clicks/1.jsonl","timestamp":1,"batchId":0}}')
    place.planner.ledger.sources["clicks"] = Source(finished=True)
    feeds = place.feeds(SimpleNamespace())
    feeds.start()
    assert not caplog.records
    write_lines(tmp_path / "clicks" / "2.jsonl", [click("anna", 2)])
    feeds.start()
    assert f"injector 'clicks' has ended, and 1 files that came since are not read, such as {tmp_path}/clicks/2.jsonl" in caplog.text
