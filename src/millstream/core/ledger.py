"""What the planner knows, and what each commit adds to it.

A commit holds only what its epoch changed; the ledger is all commits taken together, so it can be had from any snapshot of
it and the commits after that one: by a run that starts, by whoever asks for the status, by a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from millstream.core.epoch import BucketReport, Summary, Tally
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.parts import NO_LANE, Frame, Part
from millstream.core.row import Minima, least
from millstream.timestamp import START_OF_TIME, Timestamp

PartId = tuple[str, int]  # segment and offset: no two parts have the same


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """Which checkpoint a lane's state is: the epoch, the id of that commit, the attempt that wrote it (rule 11)."""

    epoch: int = 0
    commit: str = ""
    attempt: str = ""


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """The state that a lane joined with, and the one before it: what Spark may fall back to (rule 14)."""

    at: Identity = Identity()
    before: Identity = Identity()


class SourceProgress(msgspec.Struct):
    """What the commits say of a source."""

    marks: dict[str, Mark] = {}
    finished: bool = False
    injected: int = 0
    dead: int = 0
    batch: int = -1  # the newest batch taken of one that Spark reads
    epoch: int = -1  # the last that brought a record
    positions: dict[str, int | str] = {}  # how far it is read, in the source's own terms

    def change(self, change: SourceChange, *, number: int) -> None:
        """Take in what the commit of this number changes."""
        self.marks.update(change.marks)
        for partition in change.forgotten:
            self.marks.pop(partition, None)
        self.injected += change.injected
        self.dead += change.dead
        if change.injected:
            self.epoch = number
        if change.finished is not None:
            self.finished = change.finished
        if change.batch is not None:
            self.batch = change.batch
        self.positions.update(change.positions)


class SourceChange(msgspec.Struct, omit_defaults=True):
    """What a commit changes of a source: the marks that moved, those that are forgotten, and what came."""

    marks: dict[str, Mark] = {}
    forgotten: list[str] = []
    injected: int = 0
    dead: int = 0
    finished: bool | None = None
    batch: int | None = None
    positions: dict[str, int | str] = {}
    pieces: int = 0  # that lanes have read

    def after(self, earlier: SourceChange | None) -> SourceChange:
        """Both, one after the other, as one."""
        if earlier is None:
            return self
        return SourceChange(
            marks={**{p: mark for p, mark in earlier.marks.items() if p not in self.forgotten}, **self.marks},
            forgotten=[*(p for p in earlier.forgotten if p not in self.marks), *self.forgotten],
            injected=earlier.injected + self.injected,
            dead=earlier.dead + self.dead,
            finished=earlier.finished if self.finished is None else self.finished,
            batch=earlier.batch if self.batch is None else self.batch,
            positions={**earlier.positions, **self.positions},
            pieces=earlier.pieces + self.pieces,
        )


class Segment(msgspec.Struct, array_like=True):
    """What keeps a segment: parts that wait, and the newest epochs whose records and rows lie in it."""

    lane: int
    waiting: int = 0
    records: int = 0  # the newest epoch of which it holds records for the log; 0 for none
    unkept: dict[str, int] = {}  # by stream: the newest epoch of which it holds records that the log leaves out
    rows: int = 0


class Reader(msgspec.Struct, array_like=True, frozen=True):
    """One stream as one computation reads it. Known by its name, never by a number: code changes between starts."""

    stream: str
    rekeyed: bool  # it has parts of its own; otherwise it reads the plain ones
    since: int  # the first epoch whose records it gets


class LeftOut(msgspec.Struct, array_like=True, frozen=True):
    """Epochs (after, upto]; without an end, all after it."""

    after: int
    upto: int | None = None


class Plant(msgspec.Struct):
    """What the code of a run has: its first commit says so."""

    computations: list[str] = []
    injectors: list[str] = []
    sources: dict[str, str] = {}  # by injector, also of those that the code has no more: what it reads
    deliveries: dict[str, str] = {}  # and the stream of each
    unkept: list[str] = []  # streams that the log leaves out
    timeless: list[str] = []  # injectors without event time
    untimed: list[str] = []  # computations that read nothing else
    since: dict[str, int] = {}  # by delivery: of what the log leaves out it gets what comes after this epoch
    buckets: int = 16
    lanes: int = 1


class Free(msgspec.Struct, omit_defaults=True):
    """What a commit declares free; it is removed after it (rule 13)."""

    segments: list[str] = []
    notes: list[str] = []


class Commit(msgspec.Struct, omit_defaults=True):
    """The durable word of the planner on an epoch; it is the epoch. Holds what changed."""

    number: int
    id: str
    before: str  # the id of the commit before: commits form a chain
    fence: int
    now: Timestamp
    low_watermarks: dict[str, LowWatermark] = {}
    promises: dict[str, Timestamp] = {}
    idle: list[str] | None = None  # the injectors that are left out of low watermarks, where they are others than before
    took: dict[str, list[int]] = {}  # by segment, the offsets of the parts that this epoch took
    frames: list[Frame] = []
    summaries: list[Summary] = []
    sources: dict[str, SourceChange] = {}
    readers: dict[str, Reader | None] = {}  # those that came; None for one that was removed
    checkpoints: dict[int, Checkpoint] = {}  # by lane, what a join has proved
    logged: int | None = None  # up to this epoch the log is complete and synced
    delivered: dict[str, int | None] = {}  # up to which epoch each delivery has its stream
    free: Free | None = None
    plant: Plant | None = None  # in the first of a fence

    def plain_parts(self, stream: str | None = None) -> list[tuple[str, Part]]:
        """Where the records lie that it names, under their own keys, by segment: of one stream, or of all."""
        return [(frame.segment, part) for frame in self.frames for part in frame.parts if not part.reader and stream in (None, part.stream)]


class Ledger(msgspec.Struct, dict=True):  # for what is worked out of the fields, and is not one
    """All commits taken together."""

    number: int = 0
    id: str = ""
    fence: int = 0
    now: Timestamp = START_OF_TIME
    low_watermarks: dict[str, LowWatermark] = {}
    promises: dict[str, Timestamp] = {}
    idle: list[str] = []  # injectors that are left out of low watermarks: silent, and listened to
    reports: dict[str, dict[int, BucketReport]] = {}  # by computation, then bucket
    tallies: dict[str, Tally] = {}
    produced: dict[str, int] = {}  # records of each stream that computations produce
    latest: dict[str, int] = {}  # by stream, the last epoch that brought it a record
    worked: dict[str, int] = {}  # by computation, the last epoch in which it had something to do; it may be called as a stream is
    sources: dict[str, SourceProgress] = {}
    readers: dict[str, Reader] = {}
    checkpoints: dict[int, Checkpoint] = {}
    logged: int = 0
    delivered: dict[str, int] = {}
    plant: Plant = msgspec.field(default_factory=Plant)
    left_out: dict[str, list[LeftOut]] = {}  # by stream that is not kept, or was not for a while: the epochs that the log leaves out
    first: list[int] = []  # the first commit of every fence: never removed (rule 1)
    segments: dict[str, Segment] = {}
    waiting: dict[str, dict[int, tuple[int, Part]]] = {}  # by segment and offset: the epoch that named it, and the part
    freed: dict[int, int] = {}  # by lane, the epoch up to which its rows are not needed any more; Spark may fall back, this does not
    touched: dict[int, int] = {}  # by lane, the newest epoch that changed a row of it
    untouched: dict[int, int] = {}  # by lane, up to this epoch it had nothing to redo when it was next touched

    def apply(self, commit: Commit) -> None:
        """Take in the next commit. Costs what it changed, not what there is."""
        number = commit.number
        if commit.plant is not None:
            self.plant = commit.plant
            self._leave_out(commit.plant.unkept, number)
        if commit.fence != self.fence:
            self.first.append(number)
        self.number, self.id, self.fence, self.now = number, commit.id, commit.fence, commit.now
        self.low_watermarks.update(commit.low_watermarks)
        self.promises.update(commit.promises)
        if commit.idle is not None:
            self.idle = commit.idle
        for name, change in commit.sources.items():
            self.sources.setdefault(name, SourceProgress()).change(change, number=number)
        for name, reader in commit.readers.items():
            if reader is None:
                self.readers.pop(name, None)
            else:
                self.readers[name] = reader
        if commit.readers:
            self.__dict__.pop("_plain_since", None)
            self._drop_unawaited()
        for frame in commit.frames:
            self._name(frame, number)
        for segment, offsets in commit.took.items():
            self._take(segment, offsets)
        for summary in commit.summaries:
            self._summarise(summary, number)
        for lane, checkpoint in commit.checkpoints.items():
            self.checkpoints[lane] = checkpoint
            self.freed[lane] = max(self.freed.get(lane, 0), checkpoint.before.epoch)
        if commit.logged is not None:
            self.logged = commit.logged
        for name, upto in commit.delivered.items():
            if upto is None:
                self.delivered.pop(name, None)
            else:
                self.delivered[name] = upto
        if commit.free is not None:
            for segment in commit.free.segments:
                self.segments.pop(segment, None)
                self.waiting.pop(segment, None)

    def _leave_out(self, unkept: list[str], number: int) -> None:
        """Whether a stream is kept is a matter of each epoch, said by the code that ran it: what comes after this commit is as
        it says, and what came before stays as it was, also where log and deliveries are behind."""
        for stream in dict.fromkeys([*self.left_out, *unkept]):
            spans = self.left_out.get(stream, [])
            leaves_out = bool(spans) and spans[-1].upto is None
            if stream in unkept and not leaves_out:
                self.left_out[stream] = [*spans, LeftOut(number)]
            elif stream not in unkept and leaves_out:
                self.left_out[stream] = [*spans[:-1], LeftOut(spans[-1].after, number)]

    def leaves_out(self, stream: str, epoch: int) -> bool:
        """Whether the log never has what an epoch brought of a stream."""
        spans = self.left_out.get(stream, ())
        return any(span.after < epoch and (span.upto is None or epoch <= span.upto) for span in spans)

    def next_left_out(self, stream: str, after: int) -> LeftOut | None:
        """The first span that the log leaves out and that is not over with this epoch."""
        return next((span for span in self.left_out.get(stream, ()) if span.upto is None or span.upto > after), None)

    def _name(self, frame: Frame, number: int) -> None:
        segment = self.segments.get(frame.segment)
        if segment is None:
            segment = self.segments[frame.segment] = Segment(frame.lane, unkept={})
        for part in frame.parts:
            if not part.reader:
                if part.stream not in self.sources:
                    self.produced[part.stream] = self.produced.get(part.stream, 0) + part.records
                self.latest[part.stream] = number
                if self.leaves_out(part.stream, number):
                    segment.unkept[part.stream] = number
                else:
                    segment.records = number
            if self.awaited(part, number):
                self.waiting.setdefault(frame.segment, {})[part.offset] = (number, part)
                segment.waiting += 1
        if frame.rows is not None:
            segment.rows = number
            if frame.lane != NO_LANE:
                if self.redo_after(frame.lane) is None:
                    self.untouched[frame.lane] = number - 1
                self.touched[frame.lane] = number

    def awaited(self, part: Part, number: int) -> bool:
        """Whether a reader that is there reads a part of this epoch."""
        if part.reader:
            return part.reader in self.readers and self.readers[part.reader].since <= number
        since = self._plain_since.get(part.stream)
        return since is not None and since <= number

    @cached_property
    def _plain_since(self) -> dict[str, int]:
        """By stream, the first epoch whose plain parts anybody reads. Asked of every part: it must not cost by the readers."""
        found: dict[str, int] = {}
        for reader in self.readers.values():
            if not reader.rekeyed:
                found[reader.stream] = min(reader.since, found.get(reader.stream, reader.since))
        return found

    def _drop_unawaited(self) -> None:
        """Parts that waited for readers that were removed wait no longer."""
        for segment, waiting in list(self.waiting.items()):
            if gone := [offset for offset, (number, part) in waiting.items() if not self.awaited(part, number)]:
                self._take(segment, gone)

    def _take(self, segment: str, offsets: Iterable[int]) -> None:
        waiting = self.waiting[segment]
        for offset in offsets:
            del waiting[offset]
            self.segments[segment].waiting -= 1
        if not waiting:
            del self.waiting[segment]

    def _summarise(self, summary: Summary, number: int) -> None:
        for name, report in summary.reports.items():
            self.reports.setdefault(name, {})[summary.bucket] = report
        for name, tally in summary.tallies.items():
            self.tallies[name] = self.tallies[name].plus(tally) if name in self.tallies else tally
            self.worked[name] = number

    def free_rows(self, lane: int) -> int:
        """Up to this epoch no changed row of a lane is needed any more (rule 14)."""
        return self.freed.get(lane, 0)

    def has_upto(self, delivery: str) -> int:
        """Up to this epoch a delivery needs nothing any more of what the log leaves out."""
        return max(self.delivered.get(delivery, 0), self.plant.since.get(delivery, 0))

    def redo_after(self, lane: int) -> int | None:
        """The changed rows of a lane that no checkpoint has for sure come after this epoch; None if there are none.

        Commits up to here may be gone: while a lane has nothing to redo, it keeps none of them.
        """
        after = max(self.freed.get(lane, 0), self.untouched.get(lane, 0))
        return after if self.touched.get(lane, 0) > after else None

    def knows(self, lane: int, state: Identity) -> bool:
        """Whether a join has proved a state of this commit, or the one before that was: the chain need not reach back to it."""
        known = self.checkpoints.get(lane)
        return known is not None and any((of.epoch, of.commit) == (state.epoch, state.commit) for of in (known.at, known.before))


class Minimum:
    """The least of the minima of a computation's buckets, kept as reports come in."""

    def __init__(self, reports: Mapping[int, BucketReport]) -> None:
        self.of_bucket = {bucket: report.minima for bucket, report in reports.items()}
        self.all: Minima = least(list(self.of_bucket.values()))

    def put(self, bucket: int, minima: Minima) -> None:
        self.of_bucket[bucket] = minima
        self.all = least(list(self.of_bucket.values()))


encode_commit = msgspec.msgpack.Encoder().encode
decode_commit = msgspec.msgpack.Decoder(Commit).decode
encode_ledger = msgspec.msgpack.Encoder().encode
decode_ledger = msgspec.msgpack.Decoder(Ledger).decode
