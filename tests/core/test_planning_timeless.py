"""Planning with inputs that have no event time: what waits of them keeps nobody back, and is taken first."""

from __future__ import annotations

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger
from millstream.core.low_watermark import Mark
from millstream.core.parts import Part
from millstream.core.planning import Backlog, Limits, SourceProgress, Waiting, idle_injectors, plan_epoch
from millstream.core.standing import Standing
from millstream.timestamp import START_OF_TIME, Timestamp
from tests.conformance.scenes import Obedient, inject
from tests.core.test_planning import LANES

TOPOLOGY = ms.Topology("test")
EVENTS, ROWS = inject(TOPOLOGY), inject(TOPOLOGY, "rows", low_watermark=ms.Timeless())
BOTH, TABLE = Obedient(), Obedient()
TOPOLOGY.compute("both", BOTH).reads(EVENTS, ROWS)
TOPOLOGY.compute("table", TABLE).reads(ROWS)
OUTLINE = compile_topology(TOPOLOGY).outline


def waits(backlog: Backlog, stream: str, oldest: int) -> None:
    backlog.add(Waiting(1, "segment", Part(0, 1, 0, 0, stream, "", stream, 0, 1, Timestamp(oldest))))


def test_the_outline_says_who_has_no_event_time() -> None:
    assert (OUTLINE.timeless, OUTLINE.untimed) == (["rows"], ["table"])
    assert [(read.computation, read.stream, read.aside) for read in OUTLINE.inputs] == [
        ("both", "events", False),
        ("both", "rows", True),
        ("table", "rows", False),
    ]


def test_what_waits_without_event_time_keeps_back_only_those_that_have_none() -> None:
    backlog = Backlog(OUTLINE)
    waits(backlog, "rows", 3)
    assert backlog.oldest() == {"table": 3}
    waits(backlog, "events", 9)
    assert backlog.oldest() == {"both": 9, "table": 3}


def test_it_is_taken_before_input_that_is_older() -> None:
    backlog = Backlog(OUTLINE)
    waits(backlog, "events", 1)
    waits(backlog, "rows", 1_000)
    taken = backlog.take(Limits(1, 100), {0})
    assert [waiting.part.stream for waiting in taken] == ["rows"]


def test_a_promise_of_one_without_event_time_is_that_it_has_ended() -> None:
    ledger, backlog = Ledger(), Backlog(OUTLINE)
    rows, events = (
        SourceProgress(marks={"": Mark(Timestamp(7), Timestamp(0))}),
        SourceProgress(marks={"": Mark(Timestamp(50), Timestamp(0))}),
    )

    def planned() -> tuple[int, int, int]:
        sources = {"rows": rows, "events": events}
        options = {"clock": Timestamp(0), "limits": Limits(9, 9), "lanes": LANES, "here": {0}, "always": True}
        plan = plan_epoch(OUTLINE, ledger, Standing(OUTLINE, ledger), backlog, sources, **options)  # type: ignore[arg-type]
        assert plan is not None
        lows = plan.low_watermarks
        return int(plan.promises["rows"]), int(lows["both"].input), int(lows["table"].input)

    assert planned() == (START_OF_TIME, 50, START_OF_TIME)
    rows.finished = True
    assert planned() == (ms.END_OF_TIME, 50, ms.END_OF_TIME)


def test_one_partition_that_speaks_keeps_an_injector_from_being_idle() -> None:
    topology = ms.Topology("test")
    events = inject(topology, low_watermark=ms.BoundedDisorder(ms.SECOND, idle_after=10 * ms.MICROSECOND))
    topology.compute("it", Obedient()).reads(events)
    outline = compile_topology(topology).outline
    source = SourceProgress(marks={"a": Mark(Timestamp(5), Timestamp(0)), "b": Mark(Timestamp(9), Timestamp(50))})
    listened = {"events": Timestamp(0)}

    def idle(clock: int, **more: object) -> list[str]:
        return idle_injectors(outline, {"events": source}, listened, clock=Timestamp(clock), **more)  # type: ignore[arg-type]

    assert (idle(60), idle(61)) == ([], ["events"])
    assert idle(61, holding={"events"}) == []
    source.finished = True
    assert idle(61) == []
