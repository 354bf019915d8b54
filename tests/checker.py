"""Reads the log of a run while it is written, as any reader may, and checks every epoch as it appears."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from millstream.core.backlog import LogFile, Position
from millstream.core.graph import MILL, Graph
from millstream.core.plan import Ledger
from millstream.log.staged import read_records
from millstream.log.table import newest_version, read_commit
from tests.invariants import Entry, Epoch, Logged, Watch

AHEAD = 2  # commits of an injector that are read beyond what the mill has taken
EVERY = 1.0  # seconds between two looks
READ_EVERY = 15  # looks between two readings of everything


class Checker:
    """Goes through a log from its first commit on; every look takes in what is new.

    `diary` finds, among the records of an epoch, what its computations tell of their timers.
    """

    def __init__(self, run: Path, graph: Graph, *, diary: Callable[[Iterable[Logged]], Sequence[Entry]] = lambda made: ()) -> None:
        self._log, self._graph, self._diary = run / "log", graph, diary
        self._watch = Watch(graph)
        self._next = dict.fromkeys(graph.tables, 0)
        self._files: dict[str, list[tuple[Position, list[Logged]]]] = {table: [] for table in graph.tables}
        self._arrived: Counter[str] = Counter()
        self._made: dict[str, list[Logged]] = {}
        self.epochs = 0

    def look(self) -> None:
        while (note := self._take(MILL)) is not False:
            if note is not None:
                self._see(msgspec.json.decode(note, type=Ledger))

    def read_again(self) -> None:
        """All streams of the mill from their beginning: what the epochs brought one by one is there, whatever was merged since."""
        if self.epochs:
            table = DeltaTable(str(self._log / MILL)).to_pyarrow_table()  # as any reader sees it, however its files were merged
            table = table.sort_by([("epoch", "ascending"), ("sequence", "ascending")])
            for stream, plan in self._graph.streams.items():
                if plan.tables == (MILL,):
                    self._watch.read(stream, self._made.get(stream, []))
                    self._watch.read(stream, _logged(MILL, stream, table.filter(pc.field("stream") == stream)))

    def end(self) -> None:
        """The run has drained."""
        self.look()
        self.read_again()
        self._watch.end()

    def _see(self, ledger: Ledger) -> None:
        for table, position in ledger.plan.positions.items():
            while table != MILL and self._next[table] < position.version + AHEAD and self._take(table) is not False:
                pass
        before = self._watch.last.ledger.plan.positions
        taken: list[Logged] = []
        waiting: list[Logged] = []
        for table, files in self._files.items():
            first, end = before.get(table, Position()), ledger.plan.positions.get(table, Position())
            assert all(position >= first for position, _ in files), f"{table}: a commit appeared behind what was read"
            taken += [record for position, records in files if position < end for record in records]
            waiting += [record for position, records in files if position >= end for record in records]
            self._files[table] = [(position, records) for position, records in files if position >= end]
        made = [record for record in waiting if record.id[0] == MILL and record.id[1] == ledger.plan.epoch]
        self._watch.see(Epoch(ledger, made, taken, waiting, dict(self._arrived)), self._diary(made))
        for record in sorted(made, key=lambda record: record.id):
            self._made.setdefault(record.stream, []).append(record)
        self.epochs += 1

    def _take(self, table: str) -> bytes | Literal[False] | None:
        """Read the next commit of a table; its note, False if there is none yet."""
        version, path = self._next[table], self._log / table
        newest = newest_version(path)  # first: others may appear meanwhile
        commit = read_commit(path, table, version)
        if commit is None:
            assert newest < version, f"{path} was cleaned before it was checked"
            return False
        self._next[table] += 1
        for file in commit.files:
            records = self._records(table, file)
            self._files[table].append((file.position, records))
            self._arrived[file.stream] += len(records)
        return commit.note

    def _records(self, table: str, file: LogFile) -> list[Logged]:
        return _logged(table, file.stream, read_records(self._log / table / file.path))


def _logged(table: str, stream: str, rows: pa.Table) -> list[Logged]:
    ids = zip(rows["epoch"].to_pylist(), rows["sequence"].to_pylist(), strict=True)
    values = (value.encode() for value in rows["value"].to_pylist())
    times = rows["timestamp"].cast(pa.int64()).to_pylist()
    return [
        Logged((table, epoch, sequence), stream, key, value, timestamp)
        for (epoch, sequence), key, value, timestamp in zip(ids, rows["key"].to_pylist(), values, times, strict=True)
    ]


class Watching:
    """A checker in a thread of its own."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checker")
        self.error: BaseException | None = None
        self.looks = 0

    def _work(self) -> None:
        try:
            while not self._over.wait(EVERY):
                self._checker.look()
                self.looks += 1
                if self.looks % READ_EVERY == 0:
                    self._checker.read_again()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def watching(checker: Checker) -> Iterator[Watching]:
    """Looks beside whatever is done inside. What it found wrong is raised at the end, or by who asks for `error`."""
    beside = Watching(checker)
    beside.start()
    try:
        yield beside
    finally:
        beside.stop()
    if beside.error is not None:
        raise beside.error
