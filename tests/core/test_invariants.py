"""Generated topologies, inputs, splits and crashes: the invariants hold after every epoch, and the end equals a plain fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

import millstream as ms
from millstream.core.codec import StateCodec
from millstream.core.epoch import BucketReport, Tally
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger, SourceProgress, decode_ledger, encode_ledger
from millstream.core.low_watermark import LowWatermark, Mark
from millstream.core.parts import Part
from millstream.core.planning import Limits
from millstream.core.row import HeldRow, Minima, state_of, timers_of
from millstream.testing import Driver
from millstream.testing.run import BUCKETS
from tests import invariants as law
from tests.core.cases import SECOND, Case, Item, Node, Read, cases, fold
from tests.core.topologies import Adding, Kept, Lap, Sum, build, diary_of, play
from tests.watch import Watch

_decode = msgspec.json.Decoder(Item).decode
_decode_lap = msgspec.json.Decoder(Lap).decode


class Watched(Driver):
    """Checks the invariants after every epoch, and that one which crashed has left nothing."""

    def __init__(self, topology: ms.Topology, case: Case) -> None:
        super().__init__(topology)
        self._run.limits = Limits(case.limit, 1 << 40)
        self._pace, self._crashes = iter(case.pace), case.crashes
        self._watch = Watch(self._graph, self._copied())
        self._codecs = {name: StateCodec(node.computation) for name, node in self._graph.nodes.items()}
        self._folded: dict[tuple[str, str, int], Sum] = {}
        self._put_off: list[law.Given] = []

    def run(self) -> None:
        """As many epochs as the case allows; the rest waits for what comes next."""
        most = next(self._pace, None)
        if most is None:
            super().run()
        else:
            any(not self.epoch() for _ in range(most))

    def jump(self, now: ms.Timestamp) -> None:
        """The wall clock says this, be it earlier."""
        self._now = now
        self.run()

    def finish(self, of: ms.Stream[Any] | None = None) -> None:
        if of is None:
            self._pace = iter(())
        super().finish(of)

    def epoch(self, *, always: bool = False) -> bool:
        self._crashes, crashes = divmod(self._crashes, 2)
        if crashes:
            self.crash()
        crashing, seen = self._run.crashing, self._visible()
        coming = {part.offset: self._given(part) for part in self._waiting_parts()}
        ran = super().epoch(always=always)
        if not ran or crashing:
            law.uncommitted_leaves_nothing(seen, self._visible())
        else:
            self._check(seen, coming)
        return ran

    def end(self) -> None:
        self._reread(self._run.log)
        self._watch.end()

    def _check(self, seen: law.Visible, coming: dict[int, list[law.Given]]) -> None:
        still = {part.offset for part in self._waiting_parts()}
        taken = [given for offset, some in coming.items() if offset not in still for given in some]
        waiting = [given for part in self._waiting_parts() for given in self._given(part)]
        made = [
            law.Logged(record.id, stream, *record[1:])
            for stream, records in self._run.log.items()
            if stream not in self._graph.injections
            for record in records[len(seen.records[stream]) :]
        ]
        arrived = {stream: len(records) for stream, records in self._run.log.items()}
        diary = diary_of(made)
        self._watch.see(law.Epoch(self._copied(), made, taken, waiting, arrived), [entry for entry, _ in diary])
        law.one_epoch_per_row(
            law.Row(e.computation, e.key, {e.tag: in_state or 0}, {e.tag: e.at}) for e, in_state in diary if e.does == "fire"
        )
        self._reread({record.stream for record in made})
        self._fold(taken, seen.ledger)
        self._check_rows()

    def _copied(self) -> Ledger:
        return decode_ledger(encode_ledger(self._ledger))

    def _visible(self) -> law.Visible:
        run = self._run
        waiting = [list(run._backlog._queues[place].parts) for place in sorted(run._backlog._queues)]
        rows = {**self._rows(), **self._waiting_rows()}
        return law.Visible(self._copied(), deepcopy(run.sources), rows, {name: list(log) for name, log in run.log.items()}, waiting)

    def _waiting_parts(self) -> list[Part]:
        committed = [part for offsets in self._ledger.waiting.values() for _, part in offsets.values()]
        fed = [part for frame in self._run._fed for part in frame.parts]
        return committed + [part for part in fed if self._ledger.awaited(part, self._ledger.number + 1)]

    def _given(self, part: Part) -> list[law.Given]:
        columns = self._run._journal.part(part)
        rows = zip(columns.minors, columns.keys, columns.values, columns.timestamps, strict=True)
        records = [law.Logged((part.origin, part.major, minor), part.stream, *rest) for minor, *rest in rows]
        return [law.Given(self._graph.inputs[read].computation, r) for r in records for read in self._run._inputs[part.stream, part.reader]]

    def _reread(self, streams: Iterable[str]) -> None:
        for stream in streams:
            self._watch.read(stream, [law.Logged(record.id, stream, *record[1:]) for record in self._run.log[stream]])

    def _rows(self) -> dict[tuple[str, str], HeldRow]:
        rows = {}
        for bucket in range(BUCKETS):
            for name in self._graph.nodes:
                pages = self._run.held.rows(bucket, name)
                for number in range(pages.count):
                    for key in list(pages.decoded[number] if number in pages.decoded else pages._fetch(number)):
                        row = pages.get(key)
                        assert row is not None
                        rows[name, key] = row
        return rows

    def _waiting_rows(self) -> dict[tuple[str, str], HeldRow | None]:
        names = [name for name, node in self._graph.nodes.items() if node.in_event_time]
        timelines = [(name, self._run.held.waiting(bucket, name)) for name in names for bucket in range(BUCKETS)]
        return {(f"{name}/waiting", key): of.get(key) for name, of in timelines for _, key in of.earliest(ms.END_OF_TIME, 1_000_000)}

    def _check_rows(self) -> None:
        rows, sums = [], {}
        for (name, key), row in self._rows().items():
            state = state_of(row)
            codec = self._codecs[name]
            kept: Kept = codec.fresh() if state is None else codec.decode(state)
            rows.append(law.Row(name, key, kept.pending, {tag: int(pending.at) for tag, pending in timers_of(row).items()}))
            sums.update({(name, key, start): found for start, found in kept.sums.items()})
        law.one_epoch_per_row(rows)
        law.state_equals_fold(sums, self._folded)

    def _fold(self, taken: Iterable[law.Given], before: Ledger) -> None:
        """What an epoch brought to the open windows, by hand; those that are complete are reported and closed."""
        reached = self._ledger.low_watermarks
        coming, self._put_off = [*self._put_off, *taken], []
        for name, record in coming:
            it = self._graph.nodes[name].computation
            assert isinstance(it, Adding)
            if it.node.in_order and record.timestamp >= reached[name].input:
                self._put_off.append(law.Given(name, record))
                continue
            round_ = record.stream.endswith(".again")
            on_its_way = _decode_lap(record.value).left > 1 if round_ else it.node.laps > 0
            known = before.low_watermarks.get(name)
            read = next(read for read in self._graph.nodes[name].inputs if read.stream.name == record.stream)
            lost = known is not None and record.timestamp < known.input and it.node.late != "process" and not read.timeless
            if not (on_its_way or lost) and it.node.window:
                item = _decode_lap(record.value).item if round_ else _decode(record.value)
                place = (name, record.key, record.timestamp - record.timestamp % (it.node.window * SECOND))
                old = self._folded.get(place, Sum(0, 0, record.timestamp))
                self._folded[place] = Sum(old.number + item.number, old.weight + item.weight, min(old.first, record.timestamp))
        sizes = {name: node.computation.node.window * SECOND for name, node in self._graph.nodes.items()}  # type: ignore[attr-defined]
        self._folded = {place: found for place, found in self._folded.items() if place[2] + sizes[place[0]] > reached[place[0]].input}


@settings(max_examples=500, deadline=None)
@given(cases())
def test_whatever_happens_the_invariants_hold_and_the_end_is_a_fold(case: Case) -> None:
    played = play(case, lambda topology: Watched(topology, case))
    played.stage.end()
    law.state_equals_fold(played.said, fold(case))
    assert all(played.stage.tally(name).late == 0 for name in played.built.computations)
    assert all(played.stage.keys(name) == 0 for name in played.built.computations)


@settings(max_examples=250, deadline=None)
@given(cases(honest=False))
def test_the_invariants_hold_when_promises_are_broken(case: Case) -> None:
    played = play(case, lambda topology: Watched(topology, case))
    played.stage.end()
    assert all(played.stage.keys(name) == 0 for name in played.built.computations)


# Each invariant is able to fail: an honest history that it accepts, and doctored ones that it refuses.

GRAPH = compile_topology(build(Case(1, (Node((Read("in0"),)), Node((Read("n0"),))), ())).topology)


def ledger(number: int = 3, *, tally: Tally | None = None, report: BucketReport | None = None, produced: int = 2, **fields: Any) -> Ledger:
    usual: dict[str, Any] = {
        "now": 10,
        "low_watermarks": lows((50, 40)),
        "promises": {"in0": 50},
        "reports": {"n0": {0: report or BucketReport(Minima(hold=ms.Timestamp(45)), 1, 1)}},
        "tallies": {"n0": tally or Tally(received=5, applied=4, late=1, dropped=1, produced=2), "n1": Tally(received=1, applied=1)},
        "produced": {"n0.sums": produced},
        "sources": {"in0": SourceProgress(injected=6, positions={"": 7}, batch=2)},
    }
    return Ledger(number=number, **{**usual, **fields})


def lows(n0: tuple[int, int], n1: tuple[int, int] = (40, 40)) -> dict[str, LowWatermark]:
    return {"n0": LowWatermark(*n0), "n1": LowWatermark(*n1)}  # type: ignore[arg-type]


def logged(place: int, stream: str = "in0", timestamp: int = 60, *, epoch: int = 3, value: bytes = b"1") -> law.Logged:
    return law.Logged((stream, epoch, place), stream, "k", value, timestamp)


def given_to(computation: str, timestamp: int = 60) -> law.Given:
    return law.Given(computation, logged(0, timestamp=timestamp))


def epoch(number: int = 3, **fields: Any) -> law.Epoch:
    whole = {name: fields.pop(name) for name in ("made", "taken", "waiting", "arrived") if name in fields}
    usual: dict[str, Any] = {"waiting": [given_to("n0"), given_to("n1", 40)], "arrived": {"in0": 6, "n0.sums": 2}}
    return law.Epoch(ledger(number, **fields), **{**usual, **whole})


BEFORE = epoch(2, low_watermarks=lows((30, 30), (30, 30)), promises={"in0": 30}, now=5)
ENDED = LowWatermark(ms.END_OF_TIME, ms.END_OF_TIME)


def entry(does: Any, tag: str, at: int, *, wall: bool = False, low_watermark: int = 50) -> law.Entry:
    return law.Entry("n0", "k", does, tag, at, wall, low_watermark, 10)


def ended(**fields: Any) -> law.Epoch:
    report = BucketReport(Minima(wall=ms.Timestamp(fields.pop("wall", 11))), 1, 1)
    return epoch(**{"waiting": [], "report": report, "low_watermarks": {"n0": ENDED, "n1": ENDED}, **fields})


def visible(**fields: Any) -> law.Visible:
    source = SourceProgress(marks={"": Mark(ms.Timestamp(50), ms.Timestamp(10))})
    usual: dict[str, Any] = {"sources": {"in0": source}, "rows": {("n0", "k"): b"5"}, "records": {"in0": [logged(0)]}}
    return law.Visible(**{"ledger": ledger(), "waiting": ["a", "b"], **usual, **fields})


PENDING = {("n0", "k"): {"a": entry("set", "a", 45), "b": entry("set", "b", 60)}}
ROW = law.Row("n0", "k", {"t": 1}, {"t": 1})


# The honest arguments first, then what must be refused.
def changed(key: str, before: int | None, after: int | None, *, at: int = 0) -> ms.Record[ms.Change[int]]:
    return ms.Record(key, ms.Change(before, after), ms.Timestamp(at))


HISTORIES: dict[Callable[..., None], list[tuple[Any, ...]]] = {
    law.conservation: [
        (GRAPH, epoch()),
        (GRAPH, epoch(tally=Tally(received=5, applied=5, dropped=1))),
        (GRAPH, epoch(report=BucketReport(Minima(hold=ms.Timestamp(45)), 1, 1, waiting=1))),
        (GRAPH, epoch(arrived={"in0": 7, "n0.sums": 2})),
        (GRAPH, epoch(waiting=[given_to("n0")])),
        (GRAPH, epoch(produced=3)),
        (GRAPH, epoch(sources={"in0": SourceProgress(injected=5)})),
    ],
    law.state_equals_fold: [({"k": 1}, {"k": 1}), ({"k": 1}, {"k": 2}), ({}, {"k": 1}), ({"k": 1}, {})],
    law.productions_unique_and_gap_free: [
        (3, [logged(1, "n0.sums"), logged(0, "n0.late"), logged(1 << 40)]),
        (3, [logged(0), logged(2)]),
        (3, [logged(0), logged(0)]),
        (3, [logged(1 << 40), logged(2 + (1 << 40))]),
        (3, [logged(0, epoch=2)]),
    ],
    law.same_bytes_for_the_same_id: [
        ([logged(0)], [logged(0), logged(1)]),
        ([logged(0)], [logged(0, value=b"2")]),
        ([logged(0)], [logged(0, timestamp=61)]),
        ([logged(0)], []),
    ],
    law.one_epoch_per_row: [
        ([ROW],),
        ([ROW, law.Row("n0", "k", {"t": 1}, {})],),
        ([law.Row("n0", "k", {}, {"t": 1})],),
        ([law.Row("n0", "k", {"t": 1}, {"t": 2})],),
    ],
    law.low_watermarks_monotone: [
        (BEFORE.ledger, ledger()),
        (BEFORE.ledger, ledger(now=4)),
        (BEFORE.ledger, ledger(low_watermarks=lows((29, 29)))),
        (BEFORE.ledger, ledger(promises={"in0": 29})),
    ],
    law.outputs_move_back_only_for_cause: [
        (BEFORE, epoch(low_watermarks=lows((50, 29), (40, 28)), taken=[given_to("n0", 29), given_to("n1", 28)])),
        (BEFORE, epoch(low_watermarks=lows((50, 29)))),
        (BEFORE, epoch(low_watermarks=lows((50, 29)), taken=[given_to("n0", 30), given_to("n1", 29)])),
    ],
    law.low_watermarks_below_pending_work: [
        (GRAPH, BEFORE, epoch()),
        (GRAPH, BEFORE, epoch(promises={"in0": 49})),
        (GRAPH, BEFORE, epoch(low_watermarks=lows((50, 40), (41, 40)))),
        (GRAPH, BEFORE, epoch(waiting=[given_to("n0", 49)])),
        (GRAPH, BEFORE, epoch(waiting=[given_to("n1", 39)])),
        (GRAPH, BEFORE, epoch(taken=[given_to("n0", 39)])),
        (GRAPH, BEFORE, epoch(low_watermarks=lows((50, 46)))),
        (GRAPH, BEFORE, epoch(low_watermarks=lows((50, 29), (30, 29)), taken=[given_to("n0", 29)])),
        (GRAPH, BEFORE, epoch(tally=Tally(received=5, applied=5, late=2))),
    ],
    law.timers_in_order: [
        (PENDING, [entry("fire", "a", 45), entry("fire", "b", 60, low_watermark=60)]),
        (PENDING, [entry("fire", "b", 60)]),
        (PENDING, [entry("fire", "b", 60, low_watermark=60)]),
        (PENDING, [entry("set", "c", 45, wall=True), entry("fire", "c", 45, wall=True)]),
        ({}, [entry("set", "y", 45), entry("set", "x", 45), entry("fire", "y", 45)]),
    ],
    law.events_in_order: [
        (PENDING, {("n0", "k"): 44}, [entry("record", "", 44), entry("fire", "a", 45), entry("record", "", 45), entry("set", "c", 40)]),
        (PENDING, {("n0", "k"): 44}, [entry("record", "", 43)]),
        (PENDING, {}, [entry("record", "", 45)]),
        (PENDING, {}, [entry("fire", "a", 45), entry("record", "", 44)]),
        ({}, {}, [entry("record", "", 44), entry("record", "", 43)]),
        ({}, {}, [entry("set", "w", 9, wall=True), entry("record", "", 44)]),
        ({}, {}, [entry("record", "", 51)]),
    ],
    law.every_timer_once: [
        (PENDING, [entry("fire", "a", 45)], ledger()),
        (PENDING, [entry("fire", "a", 45), entry("fire", "a", 45)], ledger()),
        (PENDING, [entry("fire", "a", 44)], ledger()),
        (PENDING, [entry("cancel", "a", 45), entry("fire", "a", 45)], ledger()),
        (PENDING, [], ledger(report=BucketReport(Minima(), 1, 2))),
        (PENDING, [entry("fire", "a", 45)], ledger(report=BucketReport(Minima(), 1, 2))),
        (PENDING, [entry("fire", "a", 45)], ledger(report=BucketReport(Minima(), 0, 0))),
    ],
    law.contiguous_ledger: [
        (BEFORE.ledger, ledger()),
        (BEFORE.ledger, ledger(4)),
        (BEFORE.ledger, ledger(2)),
        (BEFORE.ledger, ledger(sources={"in0": SourceProgress(injected=6, positions={"": 6}, batch=2)})),
        (BEFORE.ledger, ledger(sources={"in0": SourceProgress(injected=6, positions={"": 7}, batch=1)})),
        (BEFORE.ledger, ledger(sources={"in0": SourceProgress(injected=5, positions={"": 7}, batch=2)})),
        (BEFORE.ledger, ledger(tally=Tally(received=4, applied=3, late=1, dropped=1))),
    ],
    law.uncommitted_leaves_nothing: [
        (visible(), visible()),
        (visible(), visible(ledger=ledger(4))),
        (visible(), visible(sources={"in0": SourceProgress(marks={"": Mark(ms.Timestamp(51), ms.Timestamp(10))})})),
        (visible(), visible(rows={("n0", "k"): b"6"})),
        (visible(), visible(records={"in0": [logged(0), logged(1)]})),
        (visible(), visible(waiting=["b", "a"])),
    ],
    law.readers_see_prefixes: [
        ([("t", 0, 0)], [("t", 0, 0), ("t", 0, 1)]),
        ([("t", 0, 0)], []),
        ([("t", 0, 0)], [("t", 0, 1), ("t", 0, 0)]),
    ],
    law.lag_returns_to_zero: [
        (GRAPH, ended()),
        (GRAPH, ended(waiting=[given_to("n0")])),
        (GRAPH, ended(low_watermarks={"n0": ENDED, "n1": LowWatermark(ms.END_OF_TIME, ms.Timestamp(9))})),
        (GRAPH, ended(wall=10)),
        (GRAPH, ended(report=BucketReport(Minima(), 0, 0, waiting=1))),
    ],
    law.changes_join_up: [
        ([changed("a", None, 1), changed("b", None, 5), changed("a", 1, 2), changed("a", 2, None), changed("a", None, 3)],),
        ([changed("a", 1, 2)],),
        ([changed("a", None, 1), changed("a", None, 2)],),
        ([changed("a", None, 1), changed("b", 1, 2)],),
        ([changed("a", None, 1), changed("a", 1, None), changed("a", 1, 2)],),
    ],
    law.changes_never_go_back: [
        ([changed("a", None, 1, at=5), changed("b", None, 1, at=3), changed("a", 1, 2, at=5), changed("a", 2, 3, at=6)],),
        ([changed("a", None, 1, at=5), changed("a", 1, 2, at=4)],),
        ([changed("a", None, 1, at=5), changed("b", None, 1, at=7), changed("a", 1, None, at=4)],),
    ],
}


def test_every_invariant_has_its_histories() -> None:
    assert set(HISTORIES) == set(law.INVARIANTS)


@pytest.mark.parametrize("invariant", law.INVARIANTS, ids=lambda invariant: invariant.__name__)
def test_an_honest_history_is_accepted_and_doctored_ones_are_refused(invariant: Callable[..., None]) -> None:
    honest, *doctored = HISTORIES[invariant]
    invariant(*honest)
    for history in doctored:
        with pytest.raises(law.Broken, match=f"^{invariant.__name__}: "):
            invariant(*history)
