"""A topology in this process: you send, you move the clocks, you read. No Spark, and milliseconds a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import msgspec

from millstream.computation import Computation
from millstream.core.backlog import Backlog, Limits, LogFile, Position
from millstream.core.codec import StateCodec, encode_value, value_decoder
from millstream.core.epoch import Summary, Tally
from millstream.core.extract import Extractor, FarFuture, Refused
from millstream.core.graph import DEAD_LETTERS, MILL, compile_topology, table_of
from millstream.core.low_watermark import LowWatermark, merge
from millstream.core.mill import Mill
from millstream.core.pages import Bucket, bucket_of
from millstream.core.plan import Plan, Source, no_ledger, plan_epoch, read_ledger, read_source
from millstream.core.route import Router
from millstream.core.row import timers_of
from millstream.core.shelf import Shelf, Stored, Waiting, arrivals_of
from millstream.core.turn import EARLIEST, LATEST, no_moment, no_text
from millstream.errors import TopologyError
from millstream.injector import BoundedDisorder, Injected, Injection
from millstream.record import DeadLetter, Errors, Record, Timer
from millstream.stream import Output, Stream
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp, describe
from millstream.topology import Topology

V = TypeVar("V")
S = TypeVar("S")

BUCKETS = 4
BEGINNING = Timestamp(0)  # of the wall clock, unless told
MOST_EPOCHS = 10_000  # in which no low watermark moves; more is a loop, not work
SHOWN_RECORDS = 5  # of each stream, by `describe`
SHOWN_CHARACTERS = 200  # of each value


class Driver:
    """Runs the real core: the same planning, rows, timers and low watermarks as on Spark, epoch by epoch.

    The wall clock starts at `now`. Only a driver that was told the time judges the far future as an injector does.
    """

    _limits = Limits(1_000_000, 1 << 40)  # of an epoch

    def __init__(self, topology: Topology, *, now: Timestamp | None = None) -> None:
        self._graph = compile_topology(topology)
        self._mill = Mill(self._graph)
        self._routers = [Router(read) for read in self._graph.inputs]
        self._extractors = {name: Extractor(injection) for name, injection in self._graph.injections.items()}
        self._ledger = no_ledger(self._graph)
        self._read = {read.stream.name for read in self._graph.inputs}
        self._backlog = Backlog(self._graph.tables, self._read)
        self._sources = {name: Source() for name in self._graph.injections}
        self._now, self._told_time = BEGINNING if now is None else _moment("now", now), now is not None
        self._shelves = [Shelf() for _ in range(BUCKETS)]
        self._batches: dict[str, list[Stored]] = {}
        self._log: dict[str, list[Stored]] = {name: [] for name in self._graph.streams}
        self._versions = dict.fromkeys(self._graph.tables, 0)
        self._undelivered: dict[str, list[LogFile]] = {table: [] for table in self._graph.tables}
        self._planned: tuple[Plan, list[LogFile]] | None = None
        self._crashing = False
        self._holding = 0

    def send(self, stream: Injected[V], *values: V) -> None:
        """Inject values as the stream's source would: key and timestamp are extracted. The low watermark stays; `advance` moves it.

        A value that is refused raises, or goes to the dead letters if the injector was told so.
        """
        if not isinstance(stream, Injected):
            raise TopologyError("send goes to a stream made by inject; put goes to any")
        self._graph.stream_of(stream)
        _refuse_columns(stream.injection)
        table, extractor = table_of(stream.name), self._extractors[stream.name]
        epoch, now = self._versions[table], self._now if self._told_time else END_OF_TIME
        records: list[Stored] = []
        letters: list[DeadLetter] = []
        for value in values:
            try:
                found = extractor.extract(value, {}, now=now)
            except Refused as refused:
                letters.append(_refuse(stream.injection, refused, value, f"{epoch}/0/{len(letters) + 1}"))
                continue
            records.append(Stored((table, epoch, len(records)), found.key, _encoded("send", value), found.timestamp))
        # Where nobody has told the time, no letter is older than what was promised: on Spark it has the clock of that moment.
        when = self._now if self._told_time else min(max(self._now, self._promised(stream.name)), LATEST)
        dead = [Stored((table, epoch, n), "", encode_value(letter), when) for n, letter in enumerate(letters, len(records))]
        self._sources[stream.name].injected += len(records)
        self._sources[stream.name].dead += len(dead)
        self._commit(table, {stream.name: records, DEAD_LETTERS: dead})
        self.run()

    def put(self, stream: Injected[V] | Output[V], value: V, *, key: str, timestamp: Timestamp) -> None:
        """One record on any stream, as if its producer had made it."""
        plan = self._graph.stream_of(stream)
        if not EARLIEST <= _moment("timestamp", timestamp) <= LATEST:
            raise TopologyError(f"put: timestamp is {describe(timestamp)}, no time for a record; give one that a date can hold")
        if not isinstance(key, str):
            raise no_text("put", "key", key)
        table = plan.tables[-1]
        id_ = (table, self._versions[table], BUCKETS << 40 if table == MILL else 0)  # no bucket of the mill's has it
        self._commit(table, {plan.name: [Stored(id_, key, _encoded("put", value), timestamp)]})
        self.run()

    def advance(self, *, low_watermark: Timestamp | None = None, now: Timestamp | None = None, of: Stream[Any] | None = None) -> None:
        """Move the clocks on: the promise of all inputs (or of one), and the wall clock. Neither moves back."""
        if now is not None:
            self._now = max(self._now, _moment("now", now))
        if low_watermark is not None:
            _moment("low_watermark", low_watermark)
            for name in self._named(of):
                self._mark(name, "", low_watermark)
        self.run()

    def finish(self, of: Stream[Any] | None = None) -> None:
        """All input has ended, or that of one stream."""
        for name in self._named(of):
            self._sources[name].finished = True
        self.run()

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is sent, put and told inside comes in one epoch, at the end; so it does on Spark when much comes at once."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        self.run()

    def run(self) -> None:
        """Epochs until nothing is due."""
        standing, known = 0, self._ledger.plan.low_watermarks
        while not self._holding and self.epoch():
            standing, known, before = standing + 1, self._ledger.plan.low_watermarks, known
            if known != before:
                standing = 0
            if standing == MOST_EPOCHS:
                raise TopologyError(
                    f"{MOST_EPOCHS:,} epochs in which no low watermark moved, and the next is due: a cycle sends its records round "
                    f"and round; let a computation on it end that"
                )

    def epoch(self, *, always: bool = False) -> bool:
        """One epoch, if one is due or `always`; says whether there was one."""
        self._plan(always=always)
        if self._planned is None:
            return False
        plan, files = self._planned
        if self._crashing:
            self._crashing = False
            self._attempt(plan, files)
            self._forget()
            plan, files = self._planned = self._recover(plan)
        summaries, produced = self._attempt(plan, files)
        for shelf in self._shelves:
            shelf.commit()
        for file in files:
            del self._batches[file.path]
            self._undelivered[file.table].remove(file)
        self._planned = None
        self._ledger = self._ledger.after(plan, summaries, {stream: len(batch) for stream, batch in produced.items()})
        self._commit(MILL, produced)
        return True

    def crash(self) -> None:
        """The next epoch crashes at its end, just before it is committed: all that it did is gone.

        The plan of an epoch stands before it runs, so the same one runs again, with the same records and clocks. If one is
        under way that failed, it is the one that crashes.
        """
        self._crashing = True

    def _plan(self, *, always: bool = False) -> None:
        if self._planned is None:
            self._planned = plan_epoch(
                self._graph, self._ledger, self._backlog, self._sources, clock=self._now, limits=self._limits, always=always
            )

    def _recover(self, plan: Plan) -> tuple[Plan, list[LogFile]]:
        """What a new process finds: ledger, sources and plan as they are written, and the files by their positions."""
        self._mill = Mill(self._graph)
        self._ledger = read_ledger(msgspec.json.encode(self._ledger))
        self._sources = {name: read_source(msgspec.json.encode(source)) for name, source in self._sources.items()}
        self._backlog = Backlog(self._graph.tables, self._read)
        plan = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
        again: list[LogFile] = []
        for table, files in self._undelivered.items():
            first, end = (known.positions.get(table, Position()) for known in (self._ledger.plan, plan))
            again += [file for file in files if first <= file.position < end]
            self._backlog.add(table, [file for file in files if file.position >= end], Position(self._versions[table]))
        return plan, again

    def _attempt(self, plan: Plan, files: list[LogFile]) -> tuple[list[Summary], dict[str, list[Stored]]]:
        try:
            return self._work(plan, files)
        except Exception:
            self._forget()  # the run has failed; its state is that of the epoch before
            raise

    def _forget(self) -> None:
        for shelf in self._shelves:
            shelf.forget()

    def _work(self, plan: Plan, files: list[LogFile]) -> tuple[list[Summary], dict[str, list[Stored]]]:
        """Run an epoch; what it changes in the shelves is not committed yet."""
        summaries: list[Summary] = []
        produced: dict[str, list[Stored]] = {}
        for bucket, records in sorted(self._arriving(plan, files).items()):
            made, summary = self._mill.run(bucket, plan.header(), arrivals_of(sorted(records)), self._shelves[bucket])
            summaries.append(summary)
            columns = zip(made.streams, made.keys, made.values, made.timestamps, strict=True)
            for sequence, (stream, key, value, timestamp) in enumerate(columns, bucket << 40):
                produced.setdefault(stream, []).append(Stored((MILL, plan.epoch, sequence), key, value, timestamp))
        return summaries, produced

    def _arriving(self, plan: Plan, files: list[LogFile]) -> dict[int, list[Waiting]]:
        """What an epoch brings to each bucket; to one that only has a due timer, nothing."""
        arriving: dict[int, list[Waiting]] = {bucket: [] for bucket in plan.due}
        for file in files:
            batch = self._batches[file.path]
            for read in self._graph.readers(file.stream):
                keys, errors = self._routers[read.index].keys([record.key for record in batch], [record.value for record in batch])
                for n, (key, record) in enumerate(zip(keys, batch, strict=True)):
                    waiting = Waiting(record.timestamp, record.id, read.index, key, record.value, errors.get(n))
                    arriving.setdefault(bucket_of(key, BUCKETS), []).append(waiting)
        return arriving

    def read(self, stream: Stream[V]) -> list[Record[V]]:
        """All records of a stream so far."""
        plan = self._graph.stream_of(stream)
        decode = value_decoder(plan.value_type)
        return [Record(stored.key, decode(stored.value), stored.timestamp) for stored in self._log[plan.name]]

    def dead_letters(self) -> list[DeadLetter]:
        decode = value_decoder(DeadLetter)
        return [decode(stored.value) for stored in self._log[DEAD_LETTERS]]

    @overload
    def state(self, computation: Computation[S], key: str) -> S: ...
    @overload
    def state(self, computation: str, key: str) -> Any: ...

    def state(self, computation: Computation[Any] | str, key: str) -> Any:
        """What is kept for a key; its initial state if nothing is. Asked by the computation itself, it has that one's type."""
        name = self._known(computation)
        codec = StateCodec(self._graph.nodes[name].computation)
        row = self._bucket(key).pages(name).get(key)
        return codec.fresh() if row is None or row.state is None else codec.decode(row.state)

    def timers(self, computation: Computation[Any] | str, key: str) -> list[Timer]:
        """The pending timers of a key, earliest first."""
        row = self._bucket(key).pages(self._known(computation)).get(key)
        pending = [] if row is None else list(timers_of(row).values())
        return [p.timer() for p in sorted(pending, key=lambda p: (p.at, p.tag))]

    def keys(self, computation: Computation[Any] | str) -> int:
        """How many keys of a computation have a row."""
        name = self._known(computation)
        return sum(report[name].rows for report in self._ledger.reports.values() if name in report)

    def tally(self, computation: Computation[Any] | str) -> Tally:
        """Where the records of a computation went, since the beginning."""
        return self._ledger.tallies.get(self._known(computation), Tally())

    def low_watermark(self, of: Computation[Any] | Stream[Any] | str) -> Timestamp:
        """The low watermark of a computation, or that of a stream: what its readers may rely on.

        Either goes by name too; where a computation and a stream have the same, it is the computation's.
        """
        if isinstance(of, Stream):
            return self._promised(self._graph.stream_of(of).name)
        if not isinstance(of, str) or of in self._graph.nodes:
            return self._low_watermarks(self._known(of)).input
        if of not in self._graph.streams:
            there = ", ".join(map(repr, [*self._graph.nodes, *self._graph.streams]))
            raise TopologyError(f"there is no computation and no stream called {of!r}; there is {there}")
        return self._promised(of)

    def _promised(self, stream: str) -> Timestamp:
        if stream == DEAD_LETTERS:  # any computation and any injector may bring one
            return min(self._promised(other) for other in self._graph.streams if other != DEAD_LETTERS)
        if stream in self._graph.injections:
            return self._ledger.plan.promises.get(stream, START_OF_TIME)
        (producer,) = (name for name, node in self._graph.nodes.items() if stream in node.outputs.values())
        return self._low_watermarks(producer).output

    def _low_watermarks(self, computation: str) -> LowWatermark:
        return self._ledger.plan.low_watermarks.get(computation, LowWatermark(START_OF_TIME, START_OF_TIME))

    def describe(self) -> str:
        """For people: the last epoch, the low watermarks, and the last records of each stream."""
        plan = self._ledger.plan
        lines = [f"topology {self._graph.name!r} after epoch {plan.epoch}, wall clock {describe(self._now)}"]
        if self._planned is not None:
            lines.append(f"epoch {self._planned[0].epoch} has failed; it is the next to run")
        for name in self._graph.nodes:
            known, tally = self._low_watermarks(name), self.tally(name)
            counts = ", ".join(f"{count} {what}" for what, count in msgspec.structs.asdict(tally).items() if count) or "nothing received"
            lines.append(f"computation {name!r}: low watermark {describe(known.input)}, of its output {describe(known.output)}")
            lines.append(f"    {counts}; {self.keys(name)} keys kept")
        for name, records in self._log.items():
            if records or name != DEAD_LETTERS:
                until = f", low watermark {describe(self._promised(name))}" if name in self._graph.injections else ""
                lines.append(f"stream {name!r}: {len(records)} records{until}")
                lines += [f"    {describe(r.timestamp)} {r.key!r}: {_cut(r.value.decode())}" for r in records[-SHOWN_RECORDS:]]
        return "\n".join(lines)

    def _known(self, computation: Computation[Any] | str) -> str:
        if not isinstance(computation, str):
            for name, node in self._graph.nodes.items():
                if node.computation is computation:
                    return name
            raise TopologyError(f"this {type(computation).__name__} is not in the topology; ask the one that was given to compute")
        if computation not in self._graph.nodes:
            there = ", ".join(map(repr, self._graph.nodes)) or "none"
            raise TopologyError(f"there is no computation called {computation!r}; there is {there}")
        return computation

    def _named(self, of: Stream[Any] | None) -> list[str]:
        if of is None:
            return list(self._sources)
        if not isinstance(of, Injected):
            raise TopologyError("only a stream made by inject has a clock of its own; the others follow")
        self._graph.stream_of(of)
        return [of.name]

    def _bucket(self, key: str) -> Bucket:
        return Bucket(self._shelves[bucket_of(key, BUCKETS)])

    def _mark(self, injector: str, partition: str, complete: Timestamp) -> None:
        """A partition of a source says how far it has come."""
        source = self._sources[injector]
        idle_after = self._graph.injections[injector].low_watermark.idle_after
        source.marks = merge(source.marks, {partition: complete}, now=self._now, idle_after=idle_after)

    def _commit(self, table: str, batches: dict[str, list[Stored]]) -> None:
        """One version of a table: a file for each stream."""
        version = self._versions[table]
        self._versions[table] += 1
        files: list[LogFile] = []
        for stream, records in batches.items():
            file = LogFile(table, Position(version, len(files)), f"{table}/{version}/{stream}", stream, len(records), 0, _oldest(records))
            files.append(file)
            self._log[stream] += records
            if records and stream in self._read:
                self._batches[file.path] = records
                self._undelivered[table].append(file)
        self._backlog.add(table, files, Position(version + 1))


def _moment(what: str, told: Timestamp) -> Timestamp:
    if type(told) is not int or not START_OF_TIME <= told <= END_OF_TIME:  # type: ignore[comparison-overlap]
        raise no_moment(what, told)
    return told


def _encoded(call: str, value: object) -> bytes:
    try:
        return encode_value(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise TopologyError(f"{call}: {_cut(repr(value))} cannot be kept: {error}; give what the stream carries") from error


def _refuse_columns(injection: Injection) -> None:
    policy = injection.low_watermark
    found = [injection.key, injection.timestamp, injection.partition, None if isinstance(policy, BoundedDisorder) else policy.of]
    if columns := [how for how in found if isinstance(how, str)]:
        raise TopologyError(
            f"send: {injection.name!r} finds {', '.join(map(repr, columns))} in a column, and a value alone has none; "
            f"use put(stream, value, key=..., timestamp=...)"
        )


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _oldest(records: list[Stored]) -> Timestamp:
    return min((record.timestamp for record in records), default=END_OF_TIME)


def _refuse(injection: Injection, why: Refused, value: object, id_: str) -> DeadLetter:
    """A far future is always set aside; anything else by the injector's policy."""
    if injection.errors is Errors.FAIL and not isinstance(why, FarFuture):
        raise why
    return DeadLetter(injection.name, None, None, id_, str(why), _encoded("send", value).decode())
