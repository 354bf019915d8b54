"""What a test holds in its hands: it sends, moves the clocks, and reads."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import msgspec

from millstream import arguments
from millstream.computation import Computation
from millstream.core.codec import StateCodec, encode_value, value_decoder, value_encoder
from millstream.core.epoch import Tally
from millstream.core.extract import Extractor, FarFuture, RefusedValue
from millstream.core.graph import DEAD_LETTERS, compile_topology
from millstream.core.ledger import Ledger, SourceChange
from millstream.core.low_watermark import LowWatermark
from millstream.core.parts import Columns
from millstream.core.planning import hear
from millstream.core.productions import BUCKET_SHIFT, FIRST_DATE, LAST_DATE, Fits, no_moment, no_text
from millstream.core.row import HeldRow, state_of, timers_of
from millstream.core.types import is_text
from millstream.errors import RecordError, TopologyError
from millstream.injector import InjectedStream, Injection
from millstream.record import DeadLetter, Errors, Record, Timer
from millstream.shipping.graphs import ship_there_and_back
from millstream.sources.dealing import Intake
from millstream.stream import Output, Stream, called
from millstream.testing.run import BUCKETS, MemoryRun, Stored
from millstream.timestamp import END_OF_TIME, START_OF_TIME, Timestamp, describe
from millstream.topology import Topology

V = TypeVar("V")
S = TypeVar("S")

BEGINNING = Timestamp(0)  # of the wall clock, unless given
MAX_EPOCHS = 10_000  # in which no low watermark moves; more is a loop, not work
SHOWN_RECORDS = 5  # of each stream, by `describe`
SHOWN_CHARACTERS = 200  # of each value


class Driver:
    """Runs the real core: the same planning, rows, timers, low watermarks and commits as on Spark, epoch by epoch, in one lane.

    An epoch that is not committed leaves nothing: what it took waits again, and the next one is planned afresh.
    The wall clock starts at `now`. Only a driver that was told the time judges the far future as an injector does.

    The topology goes through a second process and back, as it would to Spark's, and it is this copy that runs: what cannot
    travel is refused, and a global that user code changes is another one than the test sees. `ship=False` leaves that out.
    """

    def __init__(self, topology: Topology, *, now: Timestamp | None = None, ship: bool = True) -> None:
        if not isinstance(topology, Topology):
            raise TopologyError(f"Driver({topology!r}): give a ms.Topology")
        self._graph = compile_topology(topology)
        arguments.flag("Driver", "ship", ship)
        shipped = ship_there_and_back(self._graph) if ship else self._graph
        self._extractors = {name: Extractor(injection) for name, injection in shipped.injections.items()}
        self._encoders: dict[str, Callable[[Any], bytes]] = {}  # by stream: 60 µs each to make
        self._now, self._told_time = BEGINNING if now is None else _moment("now", now), now is not None
        self._run = MemoryRun(shipped, clock=self._now)
        self._intakes = {name: Intake(injection, self._run.dealer) for name, injection in shipped.injections.items()}
        self._puts = 0
        self._holding = 0

    @property
    def _ledger(self) -> Ledger:
        return self._run.ledger

    def _encoder(self, stream: str) -> Callable[[Any], bytes]:
        if stream not in self._encoders:
            self._encoders[stream] = value_encoder(self._graph.streams[stream].value_type)
        return self._encoders[stream]

    def send(self, stream: InjectedStream[V], *values: V) -> None:
        """Inject values as the stream's source would: key and timestamp are extracted. The low watermark stays; `advance` moves it.

        A value that is refused raises, or goes to the dead letters if the injector was told so.
        """
        if not isinstance(stream, InjectedStream):
            raise TopologyError("send goes to a stream made by inject; put goes to any")
        self._graph.stream_of(stream)
        _refuse_columns("send", stream.injection)
        name, extractor, first = stream.name, self._extractors[stream.name], self._run.taken(stream.name)
        now = self._now if self._told_time else END_OF_TIME
        encode = self._encoder(name)
        records: list[Stored] = []
        dead: list[Stored] = []
        # Where nobody has told the time, no letter is older than what was promised: on Spark it has the clock of that moment.
        when = self._now if self._told_time else min(max(self._now, self._promised(name)), LAST_DATE)
        for number, value in enumerate(values, first):
            try:
                found = extractor.extract(value, {}, now=now, arrived=self._now)
            except RefusedValue as refused:
                letter = _refuse(stream.injection, refused, value, f"{name}/0/{number}")
                dead.append(Stored((name, 0, number), "", encode_value(letter), when))
            else:
                records.append(Stored((name, 0, number), found.key, _encoded("send", encode, value), found.timestamp))
        if values:
            self._run.feed(name, records)
            self._run.feed(DEAD_LETTERS, dead)
            taken = SourceChange(injected=len(records), dead=len(dead), positions={"": first + len(values)})
            self._run.change(name, taken, clock=self._now)
        self.run()

    def feed(self, stream: InjectedStream[V], values: Iterable[V | bytes], *, per_epoch: int | None = None) -> None:
        """Bring values in as on Spark, `per_epoch` at a time or all at once: each is spelled as JSON and decoded, and the injector
        promises by them, partition by partition. So what comes too late for the promise is late. Bytes are a line as it stands.
        """
        if not isinstance(stream, InjectedStream):
            raise TopologyError("feed goes to a stream made by inject; put goes to any")
        self._graph.stream_of(stream)
        _refuse_columns("feed", stream.injection)
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise TopologyError(f"feed({_cut(repr(values))}): give an iterable of values, such as a list")
        encode = self._encoder(stream.name)
        lines = [value if isinstance(value, bytes) else _encoded("feed", encode, value) for value in values]
        size = len(lines) if per_epoch is None else arguments.number("feed", "per_epoch", per_epoch, least=1)
        for begin in range(0, len(lines), max(1, size)):
            self._take(stream.name, lines[begin : begin + size])
            self.run()

    def _take(self, name: str, lines: list[bytes]) -> None:
        first = self._run.taken(name)
        now = self._now if self._told_time else LAST_DATE
        taken = self._intakes[name].read(range(first, first + len(lines)), lines, now=now, arrived=self._now)
        self._run.feed(name, _stored(name, taken.records))
        self._run.feed(DEAD_LETTERS, _stored(name, taken.letters))
        self._mark(name, taken.marks)
        taken_in = SourceChange(injected=len(taken.records), dead=len(taken.letters), positions={"": first + len(lines)})
        self._run.change(name, taken_in, clock=self._now)

    def put(self, stream: InjectedStream[V] | Output[V], value: V, *, key: str, timestamp: Timestamp) -> None:
        """One record on any stream, as if its producer had made it."""
        name = self._graph.stream_of(stream).name
        if not FIRST_DATE <= _moment("timestamp", timestamp) <= LAST_DATE:
            raise TopologyError(f"put: timestamp is {describe(timestamp)}, out of range for a record; give one that a date can hold")
        if not is_text(key):
            raise no_text("put", "key", key)
        if name in self._run.sources:
            major, minor = 0, self._run.taken(name)
        else:
            major, minor = self._ledger.number + 1, (BUCKETS << BUCKET_SHIFT) + self._puts  # no bucket has it
        data = _encoded("put", self._encoder(name), value)
        _check_type(name, self._graph.streams[name].value_type, value, data)
        self._run.feed(name, [Stored((name, major, minor), key, data, timestamp)])
        self._puts += 1
        if name in self._run.sources:
            self._run.change(name, SourceChange(injected=1, positions={"": minor + 1}), clock=self._now)
        self.run()

    def advance(self, *, low_watermark: Timestamp | None = None, now: Timestamp | None = None, of: Stream[Any] | None = None) -> None:
        """Move the clocks on: the promise of all inputs (or of one), and the wall clock. Neither moves back."""
        if now is not None:
            self._now = max(self._now, _moment("now", now))
        if low_watermark is not None:
            _moment("low_watermark", low_watermark)
            for name in self._with_low_watermark(of):
                self._mark(name, {"": low_watermark})
        self.run()

    def finish(self, of: Stream[Any] | None = None) -> None:
        """All input has ended, or that of one stream."""
        for name in self._named(of):
            self._run.change(name, SourceChange(finished=True), clock=self._now)
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
        standing, known = 0, dict(self._ledger.low_watermarks)
        while not self._holding and self.epoch():
            standing, known, before = standing + 1, dict(self._ledger.low_watermarks), known
            if known != before:
                standing = 0
            if standing == MAX_EPOCHS:
                raise TopologyError(
                    f"{MAX_EPOCHS:,} epochs in which no low watermark moved, and the next is due: a cycle sends its records round "
                    f"and round; let a computation on it end that"
                )

    def epoch(self, *, always: bool = False) -> bool:
        """One epoch, if one is due or `always`; says whether there was one, be it one that crashed."""
        return self._run.epoch(self._now, always=always)

    def crash(self) -> None:
        """The next epoch crashes at its end, just before it is committed: all that it did is gone.

        What it took waits again, what is kept comes back from what was committed, and the next epoch is planned afresh: with
        the clocks of that moment, and with what has come meanwhile.
        """
        self._run.crashing = True

    def read(self, stream: Stream[V]) -> list[Record[V]]:
        """All records of a stream so far."""
        plan = self._graph.stream_of(stream)
        decode = value_decoder(plan.value_type)
        return [stored.record(decode) for stored in self._run.log[plan.name]]

    def dead_letters(self) -> list[DeadLetter]:
        decode = value_decoder(DeadLetter)
        return [decode(stored.value) for stored in self._run.log[DEAD_LETTERS]]

    @overload
    def state(self, computation: Computation[S], key: str) -> S: ...
    @overload
    def state(self, computation: str, key: str) -> Any: ...

    def state(self, computation: Computation[Any] | str, key: str) -> Any:
        """What is kept for a key; its initial state if nothing is. Asked by the computation itself, it has that one's type."""
        name = self._known(computation)
        codec = StateCodec(self._graph.nodes[name].computation)
        state = state_of(self._row(name, key))
        return codec.fresh() if state is None else codec.decode(state)

    def timers(self, computation: Computation[Any] | str, key: str) -> list[Timer]:
        """The pending timers of a key, earliest first."""
        pending = timers_of(self._row(self._known(computation), key)).values()
        return [p.timer() for p in sorted(pending, key=lambda p: (p.at, p.tag))]

    def keys(self, computation: Computation[Any] | str) -> int:
        """How many keys of a computation have a row."""
        name = self._known(computation)
        return sum(report.rows for report in self._ledger.reports.get(name, {}).values())

    def waiting(self, computation: Computation[Any] | str) -> int:
        """How many records of a computation in the order of event time wait for the low watermark."""
        return sum(report.waiting for report in self._ledger.reports.get(self._known(computation), {}).values())

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
            injectors = [name for name, injection in self._graph.injections.items() if not injection.is_timeless]
            made = [stream for node in self._graph.nodes.values() if node.timed for stream in node.outputs.values()]
            return min(map(self._promised, [*injectors, *made]), default=START_OF_TIME)
        if stream in self._graph.injections:
            return self._ledger.promises.get(stream, START_OF_TIME)
        (producer,) = (name for name, node in self._graph.nodes.items() if stream in node.outputs.values())
        return self._low_watermarks(producer).output

    def _low_watermarks(self, computation: str) -> LowWatermark:
        return self._ledger.low_watermarks.get(computation, LowWatermark(START_OF_TIME, START_OF_TIME))

    def describe(self) -> str:
        """For people: the last epoch, the low watermarks, and the last records of each stream."""
        lines = [f"topology {self._graph.name!r} after epoch {self._ledger.number}, wall clock {describe(self._now)}"]
        if self._run.failed is not None:
            lines.append(f"epoch {self._run.failed} has failed and left nothing; what it took waits")
        for name in self._graph.nodes:
            known, tally = self._low_watermarks(name), self.tally(name)
            counts = ", ".join(f"{count} {what}" for what, count in msgspec.structs.asdict(tally).items() if count) or "nothing received"
            lines.append(f"computation {name!r}: low watermark {describe(known.input)}, of its output {describe(known.output)}")
            lines.append(f"    {counts}; {self.keys(name)} keys kept")
        for name, records in self._run.log.items():
            if records or name != DEAD_LETTERS:
                until = self._how_far(name) if name in self._graph.injections else ""
                lines.append(f"stream {name!r}: {len(records)} records{until}")
                lines += [f"    {describe(r.timestamp)} {r.key!r}: {_cut(r.value.decode())}" for r in records[-SHOWN_RECORDS:]]
        return "\n".join(lines)

    def _how_far(self, injector: str) -> str:
        if self._graph.injections[injector].is_timeless:
            return ", timeless"
        return f", low watermark {describe(self._promised(injector))}" + (", idle" if injector in self._ledger.idle else "")

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
            return list(self._graph.injections)
        if not isinstance(of, InjectedStream):
            raise TopologyError("only a stream made by inject has a clock of its own; the others follow")
        self._graph.stream_of(of)
        return [of.name]

    def _with_low_watermark(self, of: Stream[Any] | None) -> list[str]:
        named = self._named(of)
        if of is not None and self._graph.injections[named[0]].is_timeless:
            raise TopologyError(f"{named[0]!r} is injected with ms.Timeless(): it has no low watermark; advance another, or leave out of=")
        return [name for name in named if not self._graph.injections[name].is_timeless]

    def _row(self, computation: str, key: str) -> HeldRow | None:
        if not isinstance(key, str):
            raise no_text(f"what is kept by {computation!r}", "key", key)
        return self._run.held.rows(self._run.lanes.bucket(key), computation).get(key)

    def _mark(self, injector: str, complete: dict[str, Timestamp]) -> None:
        """Partitions of a source say how far they have come."""
        idle_after = self._graph.injections[injector].idle_after
        heard = hear(self._run.sources[injector], complete, clock=self._now, idle_after=idle_after)
        self._run.change(injector, heard, clock=self._now)


def _moment(what: str, moment: Timestamp) -> Timestamp:
    if type(moment) is not int or not START_OF_TIME <= moment <= END_OF_TIME:  # type: ignore[comparison-overlap]
        raise no_moment(what, moment)
    return moment


def _encoded(call: str, encode: Callable[[object], bytes], value: object) -> bytes:
    try:
        return encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise TopologyError(f"{call}: {_cut(repr(value))} cannot be kept: {error}; give what the stream carries") from error


def _check_type(stream: str, kind: Any, value: object, data: bytes) -> None:
    """As a production is checked, where the type can be."""
    try:
        Fits(kind).check(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TopologyError(
            f"put: {_cut(repr(value))} is not what stream {stream!r} carries, {called(kind)}: {error}; give one value of that type"
        ) from error


def _stored(name: str, columns: Columns) -> list[Stored]:
    found = zip(columns.minors, columns.keys, columns.values, columns.timestamps, strict=True)
    return [Stored((name, 0, number), key, value, timestamp) for number, key, value, timestamp in found]


def _refuse_columns(call: str, injection: Injection) -> None:
    if columns := injection.columns.values():
        raise TopologyError(
            f"{call}: {injection.name!r} finds {', '.join(map(repr, columns))} in a column, and a value alone has none; "
            f"use put(stream, value, key=..., timestamp=...)"
        )


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _refuse(injection: Injection, why: RefusedValue, value: object, id_: str) -> DeadLetter:
    """A far future is always set aside; anything else by the injector's policy."""
    if injection.errors is Errors.FAIL and not isinstance(why, FarFuture):
        several = isinstance(value, list | tuple) and typing.get_origin(injection.source.value_type) not in (list, tuple)
        hint = "; values are given one by one, as in send(stream, *values)" if several and not hasattr(value, "_fields") else ""
        raise RecordError(f"injector {injection.name!r}, {_cut(repr(value))}", f"{why}{hint}") from why
    return DeadLetter(
        injection.name, None, None, id_, str(why), _encoded("send", value_encoder(injection.source.value_type), value).decode()
    )
