"""An injector that is given another source than the one it has read so far is refused, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Commit, Ledger, SourceChange
from millstream.log.folder import Folder, Pinned
from millstream.spark.milling import RunJournal
from millstream.timestamp import Timestamp

SOURCES: dict[str, Callable[[Path], ms.Source[int]]] = {
    "files in": lambda base: ms.files(base / "one" / "*.jsonl", int),
    "files in another folder": lambda base: ms.files(base / "two" / "*.jsonl", int),
    "other files in the same": lambda base: ms.files(base / "one" / "*.csv", int),
    "the same folder as a whole": lambda base: ms.files(base / "one", int, format=ms.Format.JSON_LINES),
    "values": lambda base: ms.values([1, 2], int),
    "other values": lambda base: ms.values([3], int),
    "frame": lambda base: ms.dataframe(lambda spark: spark.range(5), int),
}
FED = SourceChange(positions={"file": 0, "byte": 0, "record": 0}, injected=5)
READ = {"values": SourceChange(positions={"": 2}, injected=2), "frame": SourceChange(batch=3, injected=5)}


class Place:
    """A folder in which runs start, one after the other, and end."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("one", "two", "mill"):
            (base / name).mkdir()

    def start(self, **sources: str) -> Ledger:
        """The first commit of a run whose injectors read these; says what its check found."""
        topology = ms.Topology("changed")
        for name, source in sources.items():
            usual: dict[str, Any] = {"key": str, "timestamp": ms.Timestamp, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
            topology.inject(name, SOURCES[source](self.base), **usual)
        pinned = Pinned("changed", "id", str(self.base / "mill"), 4, 1)
        self.journal = RunJournal(Folder(self.base / "mill"), compile_topology(topology), pinned)
        found = self.journal.check()
        self.ledger = self.journal.claim(Timestamp(0))
        return found

    def commit(self, **changes: SourceChange) -> None:
        known = self.ledger
        assert self.journal.commits.create(Commit(known.number + 1, "next", known.id, known.fence, Timestamp(0), sources=changes))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Spark here; what its checkpoints must say is tried elsewhere."""
    monkeypatch.setattr("millstream.spark.milling.check_noted", lambda *arguments: None)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("files in", "files in another folder"),
        ("files in", "values"),
        ("files in", "frame"),
        ("frame", "files in"),
        ("values", "files in"),
    ],
)
def test_another_source_is_refused_and_the_message_names_both(place: Place, before: str, now: str) -> None:
    place.start(clicks=before)
    place.commit(clicks=READ.get(before, FED))
    number = place.ledger.number
    with pytest.raises(
        ms.TopologyError, match=r"^injector 'clicks' has read .* so far, and is now given .*; give it another name"
    ) as refused:
        place.start(clicks=now)
    for source in (before, now):
        named = {"files in": str(place.base / "one"), "files in another folder": str(place.base / "two"), "frame": "a DataFrame"}
        assert named.get(source, "Python values") in str(refused.value)
    assert place.start(clicks=before).number == number + 1


@pytest.mark.parametrize(
    ("before", "now"), [("files in", "other files in the same"), ("files in", "the same folder as a whole"), ("values", "other values")]
)
def test_what_keeps_its_position_goes_on(place: Place, before: str, now: str) -> None:
    place.start(clicks=before)
    place.commit(clicks=READ.get(before, FED))
    place.start(clicks=now)


def test_one_that_has_read_nothing_may_be_given_another(place: Place) -> None:
    place.start(clicks="files in")
    place.start(clicks="files in another folder")
    place.commit(clicks=FED)
    with pytest.raises(ms.TopologyError, match="another name"):
        place.start(clicks="files in")


def test_one_that_has_ended_reads_nothing_more(place: Place) -> None:
    place.start(clicks="files in")
    place.commit(clicks=SourceChange(positions=FED.positions, injected=5, finished=True))
    place.start(clicks="files in another folder")


def test_one_that_comes_back_has_not_been_forgotten(place: Place) -> None:
    place.start(clicks="files in")
    place.commit(clicks=FED)
    place.start(others="values")
    with pytest.raises(ms.TopologyError, match="another name"):
        place.start(clicks="files in another folder")
    place.start(clicks="files in")
