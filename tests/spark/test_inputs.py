"""When an input has ended: Spark's words for a query that was stopped and for one that has read all are the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import millstream as ms
from millstream.core.graph import compile_topology, table_of
from millstream.log.folder import Folder
from millstream.log.table import Table
from millstream.spark.inject import is_finished
from millstream.spark.inputs import Inputs
from millstream.spark.launch import Died, Launcher
from millstream.spark.owner import pin, take_over
from millstream.spark.sources import files_there
from tests.spark.clicks import Click, Count, click, write_lines


class Place:
    """A bounded input from the files of a folder, without Spark."""

    def __init__(self, base: Path) -> None:
        self.folder = Folder(base / "mill")
        self.folder.open()
        self.source = ms.files(f"{base}/clicks/*.jsonl", Click, bounded=True)
        topology = ms.Topology("stopped")
        told = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
        topology.compute("count", Count()).reads(topology.inject("clicks", self.source, **told))
        graph = compile_topology(topology)
        pinned = pin(self.folder, graph, buckets=1, partitions=1)
        self._launcher = Launcher(None, self.folder, graph, "", pinned, take_over(self.folder, graph), ms.Options())

    def inputs(self) -> Inputs:
        return Inputs(self._launcher, run="r", must_end=False)

    @property
    def ended(self) -> bool:
        return is_finished(Table(self.folder.table(table_of("clicks")), table_of("clicks"), self._launcher.fence))


def test_an_input_that_is_stopped_while_it_is_drained_has_not_ended(tmp_path: Path) -> None:
    class Whole:
        def awaitTermination(self) -> None: ...

        def stop(self) -> None: ...

    class Cut(Whole):
        def awaitTermination(self) -> None:
            inputs.stop()

    place = Place(tmp_path)
    for cut, finished in ((Cut(), False), (Whole(), True)):
        inputs = place.inputs()
        inputs.queries["clicks"] = cut
        inputs.drain()
        assert place.ended == finished


def test_a_bounded_input_whose_query_is_stopped_from_outside_has_not_ended(tmp_path: Path) -> None:
    """It has read one of two files; the other would never be read."""
    for name in ("1", "a 2"):
        write_lines(tmp_path / "clicks" / f"{name}.jsonl", [click("anna", 1)])
    place = Place(tmp_path)
    inputs, checkpoint = place.inputs(), place.folder.checkpoint("inject clicks")
    inputs._there["clicks"] = files_there(place.source)
    inputs.queries["clicks"] = SimpleNamespace(isActive=False, exception=lambda: None)
    read = checkpoint / "sources" / "0"
    read.mkdir(parents=True)
    (read / "0").write_text(f'v1\n{{"path":"file://{tmp_path}/clicks/1.jsonl","timestamp":1,"batchId":0}}')
    with pytest.raises(Died, match="stopped from outside"):
        inputs.look()
    assert not place.ended
    (read / "1").write_text(f'v1\n{{"path":"file://{tmp_path}/clicks/a%202.jsonl","timestamp":1,"batchId":1}}')
    for part in ("offsets", "commits"):
        (checkpoint / part).mkdir()
        (checkpoint / part / "0").touch()
    (checkpoint / "metadata").touch()
    (checkpoint / "offsets" / "1").touch()
    with pytest.raises(Died, match="stopped from outside"):  # both are planned, and the last batch is not done
        inputs.look()
    (checkpoint / "commits" / "1").touch()
    inputs.look()
    assert place.ended
