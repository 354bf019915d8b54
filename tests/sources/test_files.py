"""Files of a folder: found in their order, offered in ranges, and read by whoever gets these."""

from __future__ import annotations

import os
import random
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.core.lanes import Lanes
from millstream.core.ledger import Commit, SourceChange, SourceProgress
from millstream.core.route import Dealer
from millstream.errors import LogError, TopologyError
from millstream.injector import Injection
from millstream.journal.segments import SegmentWriter
from millstream.mill.actions import Fed
from millstream.mill.messages import Range
from millstream.source import SourceContext
from millstream.sources import files
from millstream.sources.checking import check_source
from millstream.sources.dealing import Intake
from millstream.sources.file_source import FileSource
from millstream.sources.files import Looker
from millstream.sources.pieces import PiecesReader, context_of
from millstream.sources.thread import SourceThread
from millstream.timestamp import Timestamp
from tests.journal.simdisk import SimDisk
from tests.waiting import wait_until

NOW = Timestamp(1_767_312_000_000_000)


@dataclass(frozen=True)
class Word:
    text: str
    at: int = 1_767_268_800_000_000


class Say(ms.Computation[None]):
    said: ms.Output[str]

    def process_record(self, record: ms.Record[Word]) -> None:
        self.said.produce(record.value.text, timestamp=record.timestamp)


def graph_of(path: str, **told: object) -> Graph:
    topology = ms.Topology("files")
    source = ms.files(path, Word, **told)  # type: ignore[arg-type]
    policy = ms.BoundedDisorder(ms.SECOND)
    words = topology.inject("words", source, key=lambda w: w.text, timestamp=lambda w: Timestamp(w.at), low_watermark=policy)
    topology.compute("say", Say()).reads(words)
    return compile_topology(topology)


def injection_of(path: str, **told: object) -> Injection:
    return graph_of(path, **told).injections["words"]


class Planner:
    """What a thread that lists files talks to; it reads by hand, as lanes would."""

    def __init__(self, graph: Graph, inputs: Path) -> None:
        (self.injection,) = graph.injections.values()
        self.graph, self.inputs = graph, inputs
        self.offered: deque[Range] = deque()
        self.fed: list[Fed] = []
        self.positions: dict[str, int | str] = {}
        self.texts: list[str] = []
        self._reader = PiecesReader(graph, Lanes(4, 1), at_once=3)

    def context(self, most: int = 1 << 20) -> SourceContext:
        progress = SourceProgress(positions=dict(self.positions))
        return context_of(self.injection, progress, folder=self.inputs / self.injection.name, max_bytes=most)

    def check(self) -> None:
        check_source(self.injection, SourceProgress(positions=self.positions), self.inputs / self.injection.name)

    def thread(self, **told: int) -> SourceThread:
        intake = Intake(self.injection, Dealer(self.graph, Lanes(4, 1)))
        writer = SegmentWriter(SimDisk(), "values-000001", lambda: "x")
        return SourceThread(self.injection, self.context(**told), intake, writer, self, clock=lambda: NOW)

    # The door, for the thread.

    def feed(self, fed: Fed) -> None:
        self.fed.append(fed)

    def offer(self, ranges: list[Range]) -> None:
        self.offered.extend(ranges)

    def unread(self, injector: str, partitions: list[str] | None) -> None: ...

    def has_room(self, timeout: float) -> bool:
        return True

    def read(self, thread: SourceThread) -> None:
        """One range, and its commit."""
        positions: dict[str, int | str] = {}
        for some in self._reader.read(self.offered[0], NOW):
            self.texts += [value.decode() for dealt in some.dealt for value in dealt.columns.values]
            positions = some.positions or positions
        self.offered.popleft()
        self.positions |= positions
        change = SourceChange(positions=positions, pieces=1)
        thread.on_commit(Commit(1, "c", "", 1, NOW, sources={self.injection.name: change}))

    def read_all(self, **told: int) -> None:
        """Until the source has ended."""
        thread = self.thread(**told)
        thread.start()
        while thread.is_alive():
            if self.offered:
                self.read(thread)
            else:
                thread.join(0.001)
        if thread.error is not None:
            raise thread.error


def write(path: Path, *words: str, at: int | None = None, ends: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"text":"{word}"}}{ends}' for word in words))
    if at is not None:
        os.utime(path, ns=(at, at))
    return path


def words_in(texts: list[str]) -> list[str]:
    return [text.split('"')[3] for text in texts]


# Finding them.


def looker_of(path: str, **told: object) -> Looker:
    source = injection_of(path, **told).source
    assert isinstance(source, FileSource)
    return Looker(source, "words")


def found(looker: Looker) -> list[str]:
    return [Path(file.path).name for file in looker.look(lambda path: False, anyway=True)]


def test_files_come_by_their_times_and_those_of_one_time_by_their_names(tmp_path: Path) -> None:
    """As an unpacked archive leaves them, in whichever order the folder lists them."""
    names = [f"{n:03d}.jsonl" for n in range(200)]
    random.Random(1).shuffle(names)
    for name in names:
        write(tmp_path / "in" / name, "x", at=1_000_000_000)
    write(tmp_path / "in" / "zzz.jsonl", "first", at=999_999_999)
    write(tmp_path / "in" / "000 last.jsonl", "last", at=1_000_000_001)
    assert found(looker_of(f"{tmp_path}/in/*.jsonl")) == ["zzz.jsonl", *sorted(names), "000 last.jsonl"]


def test_what_is_no_file_of_the_source_is_passed_over(tmp_path: Path) -> None:
    for name in ("a.jsonl", "_b.jsonl", ".c.jsonl", "d.json", "e.jsonl._COPYING_", "ä %41+[x].jsonl"):
        write(tmp_path / name, "x", at=1)
    (tmp_path / "folder.jsonl").mkdir()
    assert found(looker_of(f"{tmp_path}/*.jsonl")) == ["a.jsonl", "ä %41+[x].jsonl"]
    assert found(looker_of(f"{tmp_path}/{{a,d}}.json*", format=ms.Format.JSON_LINES)) == ["a.jsonl", "d.json"]


def test_a_folder_that_stays_as_it_is_costs_no_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "a.jsonl", "x")
    long_ago = 1_000_000_000
    os.utime(tmp_path / "in", ns=(long_ago, long_ago))
    looker = looker_of(f"{tmp_path}/in/*.jsonl")
    assert len(looker.look(lambda path: False)) == 1
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("nothing has changed"))
    assert looker.look(lambda path: False) == []
    monkeypatch.undo()
    write(tmp_path / "in" / "b.jsonl", "x")
    assert len(looker.look(lambda path: path.endswith("a.jsonl"))) == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/*.jsonl", r"there is no folder .*nowhere; make it, or fix the path"),
        ("*/x.jsonl", r"only the last part of a path may be a pattern"),
        ("spark/*.jsonl", r"was written by a streaming query of Spark's.*ms.dataframe"),
    ],
)
def test_a_source_that_cannot_be_right_is_refused(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "spark" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(TopologyError, match=message):
        looker_of(f"{tmp_path}/{path}")


# Offering and reading them.


@pytest.mark.parametrize("most", [1, 7, 40, 1 << 20])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n", "\n  \n"])
def test_all_is_read_once_and_in_order_however_it_is_cut(tmp_path: Path, most: int, ends: str) -> None:
    words = [f"{n}" * (1 + n % 5) for n in range(40)]
    for number in range(0, 40, 8):
        write(tmp_path / "in" / f"{number:02d}.jsonl", *words[number : number + 8], at=number, ends=ends)
    write(tmp_path / "in" / "no end.jsonl", "last", at=99, ends="")
    write(tmp_path / "in" / "empty.jsonl", at=98)
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl", bounded=True), tmp_path / "inputs")
    planner.read_all(most=most)
    assert words_in(planner.texts) == [*words, "last"]
    assert [fed.finished for fed in planner.fed] == [True]
    assert planner.positions == {"file": 7, "byte": 0, "record": 0}


def test_the_next_run_goes_on_where_commits_are(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(30)]
    write(tmp_path / "in" / "1.jsonl", *words)
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl"), tmp_path / "inputs")
    for _ in range(4):
        thread = planner.thread(most=50)
        thread.start()
        wait_until(lambda: bool(planner.offered))
        planner.read(thread)
        thread.stop()
        thread.join(10)
        planner.offered.clear()  # what was offered and not read goes with the run
    thread = planner.thread(most=50)
    thread.start()
    thread.finish()
    while thread.is_alive():
        if planner.offered:
            planner.read(thread)
        thread.join(0.001)
    assert words_in(planner.texts) == words
    assert planner.fed == [], "it was drained, and has not ended"


def test_files_that_come_later_are_read_and_those_that_come_while_it_is_drained_are_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.jsonl", "one")
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl"), tmp_path / "inputs")
    thread = planner.thread()
    thread.start()
    for name in ("two", "three"):
        wait_until(lambda: bool(planner.offered))
        planner.read(thread)
        aside = write(tmp_path / name, name)
        aside.rename(tmp_path / "in" / f"{name}.jsonl")
    wait_until(lambda: bool(planner.offered))
    thread.finish()
    planner.read(thread)
    wait_until(lambda: not thread.is_alive())
    assert words_in(planner.texts) == ["one", "two", "three"]


def test_one_that_is_stopped_while_it_reads_a_bounded_input_has_not_ended(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.jsonl", "one", "two")
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl", bounded=True), tmp_path / "inputs")
    thread = planner.thread(most=1)
    thread.start()
    wait_until(lambda: bool(planner.offered))
    thread.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert planner.fed == []


def test_no_more_is_offered_than_is_soon_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_GIVEN", 3)
    write(tmp_path / "in" / "1.jsonl", *(f"{n}" for n in range(100)))
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl", bounded=True), tmp_path / "inputs")
    most, thread = 0, planner.thread(most=20)
    thread.start()
    while thread.is_alive():
        most = max(most, len(planner.offered))
        if planner.offered:
            planner.read(thread)
        thread.join(0.001)
    assert most <= 3
    assert words_in(planner.texts) == [f"{n}" for n in range(100)]


def test_a_file_that_is_gone_or_was_cut_is_refused_and_nothing_is_passed_over(tmp_path: Path) -> None:
    file = write(tmp_path / "in" / "1.jsonl", *(f"{n}" for n in range(20)))
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl"), tmp_path / "inputs")
    thread = planner.thread(most=50)
    thread.start()
    wait_until(lambda: len(planner.offered) > 3)
    thread.stop()
    planner.read(thread)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])  # longer than the next range
    with pytest.raises(ms.RecordError, match=r"injector 'words', .*1.jsonl: it was cut: it has 180 bytes, and had 270 when it was"):
        planner.read(thread)
    file.unlink()
    with pytest.raises(ms.RecordError, match=r"1.jsonl: it is gone; put it back, or an empty file in its place to go on without it"):
        planner.read(thread)
    file.touch()
    planner.read(thread)
    assert planner.positions == {"file": 1, "byte": 0, "record": 0}, "without it"


def test_a_list_that_is_older_than_the_commits_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.jsonl", "one")
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl", bounded=True), tmp_path / "inputs")
    planner.read_all()
    planner.check()
    for entry in (tmp_path / "inputs" / "words").iterdir():
        entry.unlink()
    with pytest.raises(LogError, match=r"inputs/words lists 0 files of injector 'words', and commits have read up to file 1: .*restore it"):
        planner.check()


def test_another_format_in_the_middle_of_a_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.jsonl", *(f"{n}" for n in range(20)))
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl"), tmp_path / "inputs")
    thread = planner.thread(most=50)
    thread.start()
    wait_until(lambda: bool(planner.offered))
    planner.read(thread)
    thread.stop()
    planner.injection = injection_of(f"{tmp_path}/in/*.jsonl", format=ms.Format.CSV)
    with pytest.raises(LogError, match=r"in the middle of .*1.jsonl with another format, where its position means nothing"):
        planner.check()
    with pytest.raises(LogError, match=r"was read by a query of Spark's in this folder"):
        check_source(planner.injection, SourceProgress(batch=3), tmp_path / "inputs" / "words")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with open(os.fsencode(tmp_path / "in") + b"/\xff.jsonl", "wb"):
        pass
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl", bounded=True), tmp_path / "inputs")
    with pytest.raises(LogError, match="has a name that is not UTF-8, and could not be remembered; rename it"):
        planner.read_all()


def test_a_folder_that_goes_away_is_told(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.jsonl", "one")
    planner = Planner(graph_of(f"{tmp_path}/in/*.jsonl"), tmp_path / "inputs")
    thread = planner.thread()
    thread.start()
    wait_until(lambda: bool(planner.offered))
    (tmp_path / "in" / "1.jsonl").unlink()
    (tmp_path / "in").rmdir()
    thread.join(10)
    assert re.fullmatch(r"injector 'words': .*/in/\*.jsonl cannot be listed: No such file or directory", str(thread.error))
