"""Log compaction: of what was written long ago, the newest record of each key stays.

The table says up to which epoch a stream is *compacted*: no two records up to there have one key. A pass takes a portion of the
epochs after that and moves the bound. First, file by file, what the portion supersedes leaves the compacted epochs. Then, in one
entry with the new bound, what it supersedes in itself, and deletions. So every version of the table has the newest record of each
key, and no older one comes back. In memory are the keys of the portion, and one file.

Nothing of a pass outlives the process. One that is killed leaves a table that is whole, and the next begins the portion again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.log.history import History, StagedFile, read_file
from millstream.log.keeping import PARTS, Keeping, Needs
from millstream.log.rows import ORDER, ROWS_PER_FILE
from millstream.log.snapshot import LiveFile, LogSnapshot
from millstream.timestamp import SECOND, Timestamp

ROWS_PER_STEP = 500_000  # that are looked at, and at worst written anew
BYTES_PER_STEP = 16 << 20  # of files, as they lie on the disk
LOOK_EVERY = 10 * SECOND  # whether there is something to compact

Mask = npt.NDArray[np.bool_]


@dataclass
class _Pass:
    """Compacts the epochs (compacted, upto] of a stream."""

    stream: str
    compacted: int
    upto: int
    is_last: bool  # of what is old enough now
    keys: pa.Array  # of these epochs
    done: set[str] = field(default_factory=set)  # files in which no compacted record has one of these keys


class Compaction:
    """Of all streams for which it was asked, one after the other."""

    def __init__(self, history: History, streams: Mapping[str, Keeping]) -> None:
        self._history = history
        self._streams = {name: keeping for name, keeping in streams.items() if keeping.compact_after is not None}
        self._looked: Timestamp | None = None
        self._rests: dict[str, Timestamp] = {}  # by stream: before that, only much that is to be done begins a pass
        self._pass: _Pass | None = None

    @property
    def is_busy(self) -> bool:
        """Whether more is to be done at once."""
        return self._pass is not None

    def run(self, snapshot: LogSnapshot, now: Timestamp, needs: Needs) -> list[str]:
        """Do a bounded part of it; returns the files that have left the table. No epoch is touched that somebody needs whole."""
        if self._pass is not None and self._pass.upto > needs.settled(self._pass.stream):
            self._pass = None
        if self._pass is None and (self._looked is None or now - self._looked >= LOOK_EVERY):
            self._pass = self._begin(snapshot, now, needs)
        if self._pass is None:
            return []
        if files := _bounded(self._not_done(snapshot, self._pass)):
            return self._supersede(snapshot, self._pass, files)
        return self._finish(snapshot, self._pass, now, needs)

    def _begin(self, snapshot: LogSnapshot, now: Timestamp, needs: Needs) -> _Pass | None:
        for stream in self._streams:
            if (found := self._portion(snapshot, stream, now, needs.settled(stream))) is not None:
                return found
        self._looked = now
        return None

    def _portion(self, snapshot: LogSnapshot, stream: str, now: Timestamp, settled: int) -> _Pass | None:
        """What is to be compacted next of a stream; None if that is nothing, or little that can wait."""
        keeping, compacted, files = self._streams[stream], snapshot.compacted.get(stream, 0), snapshot.of_stream(stream)
        old = min([settled, snapshot.upto, *(file.first - 1 for file in files if not keeping.is_old(file, now))])
        ready = [file for file in files if file.last > compacted and file.first <= old]
        if old <= compacted or not ready:
            return None
        # A pass reads all compacted keys: few records wait for more, but not for long.
        known = sum(file.rows for file in files if file.first <= compacted)
        is_much = sum(file.rows for file in ready) >= min(ROWS_PER_STEP, max(ROWS_PER_FILE, known // 4))
        if not is_much and now < self._rests.get(stream, now):
            return None
        upto = _cut(ready, compacted, old)
        index = self._index([file for file in ready if file.first <= upto], compacted, upto)
        return _Pass(stream, compacted, upto, upto == old, pc.unique(index["key"]))

    def _index(self, files: Iterable[LiveFile], compacted: int, upto: int) -> pa.Table:
        """Key and place in the log of all records of these epochs, with the number of the file and the row in it."""
        found = []
        for number, file in enumerate(files):
            table = read_file(self._history.disk, file.path, columns=["key", *(name for name, _ in ORDER)])
            rows = np.arange(table.num_rows, dtype=np.int64)
            table = table.append_column("row", pa.array(rows)).append_column("file", pa.array(np.full_like(rows, number)))
            found.append(table.filter((pc.field("epoch") > compacted) & (pc.field("epoch") <= upto)))
        return pa.concat_tables(found)

    def _not_done(self, snapshot: LogSnapshot, at: _Pass) -> list[LiveFile]:
        """Files in which a compacted record may be superseded. What was merged meanwhile is looked through again."""
        if not len(at.keys):
            return []
        return [file for file in snapshot.of_stream(at.stream) if file.first <= at.compacted and file.path not in at.done]

    def _supersede(self, snapshot: LogSnapshot, at: _Pass, files: list[LiveFile]) -> list[str]:
        """Compacted records leave these files, where the portion has newer ones."""
        keys = [read_file(self._history.disk, file.path, columns=["key", "epoch"]) for file in files]
        whole = pa.concat_tables(keys)
        gone = _mask(pc.is_in(whole["key"], value_set=at.keys)) & _mask(pc.less_equal(whole["epoch"], at.compacted))
        rewriting = _Rewriting(self._history)
        for file, part in zip(files, np.split(gone, np.cumsum([table.num_rows for table in keys])[:-1]), strict=True):
            rewriting.leave_out(file, part)
        if rewriting.removed and not self._commit(snapshot, rewriting, {}):
            return []
        at.done.update([file.path for file in files], [file.path for file in rewriting.staged])
        return rewriting.removed

    def _finish(self, snapshot: LogSnapshot, at: _Pass, now: Timestamp, needs: Needs) -> list[str]:
        """What the portion supersedes in itself goes, and its deletions; then these epochs are compacted."""
        rewriting = self._rewritten(snapshot, at)
        if not self._commit(snapshot, rewriting, {at.stream: at.upto}):
            return []
        after = self._streams[at.stream].compact_after
        assert after is not None
        if at.is_last:
            self._rests[at.stream] = now + max(after // PARTS, LOOK_EVERY)
        self._pass = None if at.is_last else self._portion(snapshot, at.stream, now, needs.settled(at.stream))
        return rewriting.removed

    def _rewritten(self, snapshot: LogSnapshot, at: _Pass) -> _Rewriting:
        """The portion with the newest record of each key, unless that is a deletion: what is older of its key is gone by now, or goes
        with the same entry."""
        rewriting = _Rewriting(self._history)
        files = [file for file in snapshot.of_stream(at.stream) if file.last > at.compacted and file.first <= at.upto]
        if not files:  # retention was there first
            return rewriting
        index = self._index(files, at.compacted, at.upto)
        of_file, rows, stays = index["file"].to_numpy(), index["row"].to_numpy(), _newest(index)
        del index
        for number, file in enumerate(files):
            ours = of_file == number
            if not ours.any():
                continue
            whole = read_file(self._history.disk, file.path)
            newest = rows[ours & stays]
            gone = np.zeros(whole.num_rows, np.bool_)
            gone[rows[ours & ~stays]] = True
            gone[newest] = _deletions(whole["value"].take(pa.array(newest)), is_table=self._streams[at.stream].is_table)
            rewriting.leave_out(file, gone, whole)
        return rewriting

    def _commit(self, snapshot: LogSnapshot, rewriting: _Rewriting, compacted: dict[str, int]) -> bool:
        """The data of the table changes: records leave it. False, and the pass comes to nothing, if another has exchanged a file."""
        added = [file.added(modified=int(was.modified) // 1000, data_change=True) for was, file in rewriting.made]
        if self._history.replace(snapshot, added, rewriting.removed, operation="DELETE", data_change=True, compacted=compacted):
            return True
        self._history.discard(rewriting.staged)
        self._pass = None
        return False


class _Rewriting:
    """Files that are written anew without some of their records, as old as they were."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.removed: list[str] = []
        self.made: list[tuple[LiveFile, StagedFile]] = []

    @property
    def staged(self) -> list[StagedFile]:
        return [file for _, file in self.made]

    def leave_out(self, file: LiveFile, gone: Mask, whole: pa.Table | None = None) -> None:
        if not gone.any():
            return
        records = read_file(self._history.disk, file.path) if whole is None else whole
        if not gone.all():
            self.made.append((file, self._history.stage_records(file.stream, records.filter(pa.array(~gone)))))
        self.removed.append(file.path)


def _cut(files: Sequence[LiveFile], compacted: int, upto: int) -> int:
    """The last epoch of a portion: of no more files than a step may look at, but of one file and epoch at least."""
    first = max(files[0].first, compacted + 1)
    rows = size = 0
    for file in files:
        rows, size = rows + file.rows, size + file.size
        if (rows > ROWS_PER_STEP or size > BYTES_PER_STEP) and file.first > first:
            return file.first - 1
    return upto


def _bounded(files: Sequence[LiveFile]) -> list[LiveFile]:
    """As many as a step may look at, but one at least."""
    part: list[LiveFile] = []
    rows = size = 0
    for file in files:
        rows, size = rows + file.rows, size + file.size
        if part and (rows > ROWS_PER_STEP or size > BYTES_PER_STEP):
            break
        part.append(file)
    return part


def _newest(index: pa.Table) -> Mask:
    """Which records are the last of their keys in the order of the log."""
    order = pc.sort_indices(index, sort_keys=ORDER)
    in_order = pa.table({"key": index["key"].take(order), "place": order})
    last = in_order.group_by("key", use_threads=False).aggregate([("place", "last")])
    found = np.zeros(index.num_rows, np.bool_)
    found[last["place_last"].to_numpy()] = True
    return found


class _Changed(msgspec.Struct):
    """Of a change, what tells a deletion."""

    after: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Changed).decode


def _deletions(values: pa.ChunkedArray, *, is_table: bool) -> list[bool]:
    return [_is_deletion(value, is_table=is_table) for value in values.to_pylist()]


def _is_deletion(value: str, *, is_table: bool) -> bool:
    """A change without a row after it; in other streams a null."""
    if not is_table:
        return value.strip() == "null"
    try:
        return bytes(_decode(value).after) == b"null"
    except msgspec.MsgspecError:  # the stream carried something else then
        return False


def _mask(array: pa.ChunkedArray) -> Mask:
    return np.asarray(array.to_numpy(), dtype=np.bool_)
