"""The writer as a process of its own, on a real journal: killed, overtaken, stopped."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millstream.core.ledger import Commit
from millstream.core.parts import Columns, Dealt, Frame, Part
from millstream.format import Format
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.segments import SegmentWriter
from millstream.log.entries import entry_path
from millstream.log.keeping import Keeping
from millstream.log.reading_history import records
from millstream.log.rows import Rows
from millstream.log.snapshot import LogSnapshot, newest_version
from millstream.timestamp import Duration, Timestamp
from millstream.writer.log_output import LOG
from millstream.writer.messages import BeginWriting, LogSettings, NamedParts, OutputSettings, TailAnswer
from tests.writer.child import WriterChild

TIMEOUT = 60.0  # seconds; a bound, never an expectation
T = Timestamp(1_700_000_000_000_000)


class Run:
    """A planner's part: commits on a disk, and a writer that is told of them."""

    def __init__(self, folder: Path, outputs: tuple[OutputSettings, ...] = (), *, every: int = 50_000) -> None:
        self.folder, self.outputs, self.every = folder, outputs, every
        self.disk = LocalDisk(folder / "journal")
        self.commits = Commits(self.disk)
        self.commits.make_folders()
        self.segments = SegmentWriter(self.disk, "lane0", lambda: os.urandom(6).hex())
        self.places: list[list[tuple[str, Part]]] = []
        self.values: list[int] = []
        self.said: dict[str, int] = {}
        self.journal_from = 0  # what came up to here is only in the log
        self.child: WriterChild | None = None

    @property
    def newest(self) -> int:
        return len(self.places)

    def start(
        self, *, logged: int = 0, delivered: int = 0, log: LogSettings | None = None, needed_from: dict[str, int] | None = None
    ) -> WriterChild:
        outputs = [OutputSettings(o.name, o.stream, o.path, delivered, o.format, self.every) for o in self.outputs]
        log, types = log or LogSettings(logged), pickle.dumps({"s": int})
        begin = BeginWriting(str(self.folder), "id", 1, self.newest, log, outputs, types, self.every, needed_from or {})
        self.child = WriterChild(begin, answer=self.answer, written=self.written)
        self.child.start()
        return self.child

    def commit(self, *values: int, fence: int = 1) -> None:
        number = self.newest + 1
        columns = Columns(
            [f"k{v % 5}" for v in values], [b"%d" % v for v in values], [Timestamp(T + v) for v in values], range(len(values))
        )
        frames: list[Frame] = []
        if values:
            frames = [self.segments.append([Dealt(0, "s", "", "s", number, columns)], lane=0)]
        assert self.commits.create(Commit(number, f"{number}", f"{number - 1}", fence, T, frames=frames))
        self.places.append([(frame.segment, part) for frame in frames for part in frame.parts])
        self.values += values
        if self.child is not None:
            self.child.on_commit(number, self.places[-1])

    def answer(self, output: str, after: int) -> TailAnswer:
        begin = max(after, self.journal_from)
        upto = min(self.newest, begin + 7)
        return TailAnswer(output, begin, upto, [NamedParts(n, self.places[n - 1]) for n in range(begin + 1, upto + 1)])

    def written(self, output: str, upto: int) -> None:
        assert upto >= self.said.get(output, 0)
        self.said[output] = upto

    def wait(self, upto: int) -> None:
        assert self.child is not None
        wait_for(lambda: not self.child.behind(upto) or self.child.error is not None)  # type: ignore[union-attr]
        assert self.child.error is None, self.child.error

    def in_log(self) -> list[int]:
        return sorted(int(value) for value in records(LocalDisk(self.folder / "log"), "s")["value"].to_pylist())

    def left(self) -> list[int]:
        """The same, where nothing may be left."""
        return self.in_log() if LogSnapshot(LocalDisk(self.folder / "log")).files else []


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    outputs = (
        OutputSettings("table", "s", str(tmp_path / "out" / "table"), 0),
        OutputSettings("lines", "s", str(tmp_path / "out" / "lines"), 0, Format.JSON_LINES),
    )
    made = Run(tmp_path / "run", outputs)
    yield made
    if made.child is not None:
        made.child.end()


def in_table(run: Run) -> list[int]:
    return sorted(DeltaTable(run.outputs[0].path).to_pyarrow_table()["value"].to_pylist())


def in_lines(run: Run) -> list[int]:
    lines = [line for file in Path(run.outputs[-1].path).glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(int(line.partition('"value":')[2].partition(",")[0]) for line in lines)


def test_what_is_committed_is_in_log_table_and_files(run: Run) -> None:
    run.start()
    for n in range(40):
        run.commit(*range(3 * n, 3 * n + 3))
    run.commit()
    child = run.child
    assert child is not None
    assert child.stop(run.newest, TIMEOUT) == []
    assert run.in_log() == in_table(run) == in_lines(run) == run.values
    assert run.said == {LOG: 41, "table": 41, "lines": 41}
    assert child.error is None


def test_it_is_said_once_that_retention_leaves_what_somebody_needs(run: Run) -> None:
    run.outputs = ()
    run.commit(1, 2)
    child = run.start(log=LogSettings(0, retention=0), needed_from={"s": 1})  # known from the beginning
    run.wait(1)
    wait_for(lambda: child.kept != [])
    run.commit(3)
    assert child.stop(run.newest, TIMEOUT) == []
    assert child.kept == ["s"]
    assert run.in_log() == [1, 2, 3]


def test_each_stream_is_kept_as_it_was_asked(run: Run) -> None:
    run.outputs = ()
    child = run.start(log=LogSettings(0, retention=0, streams={"s": Keeping(None, Duration(1))}))
    for n in range(3):
        run.commit(n, n + 5, n + 10)  # all of one key each time
        run.wait(run.newest)
    wait_for(lambda: run.left() == [10, 11, 12])
    assert child.stop(run.newest, TIMEOUT) == []


def test_a_target_that_cannot_be_written_to_is_named(run: Run) -> None:
    Path(run.outputs[0].path).parent.mkdir()
    Path(run.outputs[0].path).write_text("a file")
    child = run.start()
    wait_for(lambda: child.error is not None)
    assert "table cannot be used: " in str(child.error)
    assert "deliver to another path" in str(child.error)


def test_what_killed_writers_have_left_in_targets_is_swept(run: Run) -> None:
    staging = Path(run.outputs[1].path) / ".staging"
    staging.mkdir(parents=True)
    old, young = (staging / f"lines-12345678-{digit * 32}" for digit in "01")
    for file in (old, young):
        file.touch()
    os.utime(old, (0, 0))
    run.start()
    wait_for(lambda: not old.exists())
    assert young.exists()


def test_a_start_catches_up_also_from_the_log(run: Run) -> None:
    deliveries, run.outputs = run.outputs, ()
    for n in range(30):
        run.commit(n)
    child = run.start()
    run.wait(0)
    assert child.stop(30, TIMEOUT) == []
    run.journal_from, run.outputs = 25, deliveries
    child = run.start(logged=30)
    run.commit(30)
    assert child.stop(31, TIMEOUT) == []
    assert run.in_log() == in_table(run) == in_lines(run) == list(range(31))


@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again_everything_is_there_once(run: Run, seed: int) -> None:
    rng = random.Random(seed)
    run.every = 5_000
    for _ in range(6):
        child = run.start(logged=run.said.get(LOG, 0))
        wait_for(lambda child=child: bool(child.positions))  # type: ignore[misc]
        for _ in range(rng.randint(5, 60)):
            run.commit(*(len(run.values) + n for n in range(rng.randint(0, 3))))
            if rng.random() < 0.3:
                time.sleep(rng.random() / 50)
        time.sleep(rng.random() * 0.3)
        os.kill(child.pid, signal.SIGKILL)
        wait_for(lambda child=child: child.error is not None)  # type: ignore[misc]
        assert "the writer process ended" in str(child.error)
        child.end()
    child = run.start(logged=run.said.get(LOG, 0))
    assert child.stop(run.newest, TIMEOUT) == []
    assert run.in_log() == in_table(run) == in_lines(run) == run.values


def test_a_log_from_another_copy_is_refused(run: Run) -> None:
    run.outputs = ()
    run.commit(1)
    child = run.start(logged=1)
    wait_for(lambda: child.error is not None)
    assert "ends with epoch 0, but the commits say that it had 1" in str(child.error)


def test_a_failing_delivery_is_named_and_the_log_goes_on(run: Run, tmp_path: Path) -> None:
    DeltaTable.create(run.outputs[0].path, pa.schema([("value", pa.string())]))
    child = run.start()
    wait_for(lambda: child.error is not None)
    assert "holds values of string" in str(child.error)
    child.end()
    run.outputs = (OutputSettings("bad", "s", str(tmp_path / "bad"), 0),)
    child = run.start()
    run.commit(1)
    segment, part = run.places[0][0]
    run.places.append([(segment, Part(part.offset, part.length, part.checksum, 0, "s", "", "s", 2, 1, T))])
    columns = Columns(["k"], [b'"text"'], [T], [0])
    frame = run.segments.append([Dealt(0, "s", "", "s", 2, columns)], lane=0)
    run.places[-1] = [(frame.segment, frame.parts[0])]
    child.on_commit(2, run.places[-1])
    wait_for(lambda: child.error is not None)
    assert "delivery 'bad': record s/2/0 of stream 's', key 'k': its value does not fit the type" in str(child.error)
    wait_for(lambda: child.positions[LOG] == 2)


def test_a_newer_run_is_noticed_before_a_file_is_renamed(run: Run) -> None:
    run.outputs = run.outputs[1:]
    child = run.start()
    run.commit(1)
    run.wait(1)
    assert run.commits.create(Commit(2, "other", "1", 2, T))
    run.places.append([])  # the old run does not know
    frame = run.segments.append([Dealt(0, "s", "", "s", 2, Columns(["k"], [b"7"], [T], [0]))], lane=0)
    child.on_commit(2, [(frame.segment, frame.parts[0])])
    run.commits.create(Commit(3, "next", "other", 2, T))
    wait_for(lambda: child.error is not None)
    assert "a newer run delivers to" in str(child.error)
    assert in_lines(run) == [1]


def test_upkeep_runs_beside(run: Run) -> None:
    run.outputs, run.every = (), 1_000
    run.start()
    for n in range(40):
        run.commit(n)
        run.wait(run.newest)
    wait_for(lambda: bool(list((run.folder / "log" / "_delta_log").glob("*.checkpoint.parquet"))))
    assert run.child is not None
    assert run.child.stop(run.newest, TIMEOUT) == []
    assert run.in_log() == run.values
    disk = LocalDisk(run.folder / "log")
    assert disk.exists(entry_path(newest_version(disk)))


def test_rows_are_cut_where_a_file_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.log.rows.ROWS_PER_FILE", 4)
    rows = Rows()
    for epoch in (1, 2, 3):
        rows.add(epoch, "s", epoch, Columns(["k"] * 3, [b"1"] * 3, [T] * 3, [0, 1, 2]))
    pieces = rows.pieces()
    assert [len(piece) for piece in pieces] == [4, 4, 1]
    assert [row for piece in pieces for row in piece.table().to_pylist()] == rows.table().to_pylist()
