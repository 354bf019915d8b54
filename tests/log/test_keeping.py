"""How long the log keeps a stream, as a topology says it: what is wrong is refused while it is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import Retention, compile_topology


@dataclass(frozen=True)
class Click:
    user: str
    at: int


class Count(ms.Computation[int]):
    counts: ms.Output[int]
    passing: ms.Output[int] = ms.output(keep=False)

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1


def inject(topology: ms.Topology, name: str = "clicks", *, keep: bool = True) -> ms.InjectedStream[Click]:
    return topology.inject(
        name,
        ms.values([], Click),
        key=lambda click: click.user,
        timestamp=lambda click: click.at,
        low_watermark=ms.BoundedDisorder(ms.SECOND),
        keep=keep,
    )


def retain(topology: ms.Topology, stream: Any, span: Any = ms.HOUR) -> None:
    topology.retain(stream, for_=span)


def compact(topology: ms.Topology, stream: Any, span: Any = ms.HOUR) -> None:
    topology.compact(stream, after=span)


CALLS = pytest.mark.parametrize("call", [retain, compact])


def test_each_stream_has_its_own() -> None:
    topology, count = ms.Topology("shop"), Count()
    topology.retain(count.counts, for_=ms.HOUR)  # it is placed below
    clicks, views = inject(topology), inject(topology, "views")
    topology.compute("count", count).reads(clicks, views)
    topology.retain(views, for_=None)
    topology.compact(views, after=ms.DAY)
    topology.compact(topology.dead_letters, after=ms.MINUTE)
    graph = compile_topology(topology)
    assert {name: (plan.retention, plan.compact_after) for name, plan in graph.streams.items() if plan.is_kept_otherwise} == {
        "count.counts": (Retention(ms.HOUR), None),
        "views": (Retention(None), ms.DAY),
        "dead letters": (None, ms.MINUTE),
    }
    assert [read.stream for read in graph.inputs] == [graph.streams["clicks"], graph.streams["views"]]


@CALLS
@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda topology: "clicks", "('clicks'): that is not a stream; give it an injected stream or an output"),
        (lambda topology: inject(topology).by(lambda click: click.user), ": by(...) and map(...) are for computations; give the stream"),
        (lambda topology: inject(topology).by_each(lambda click: [click.user]), ": by(...) and map(...) are for computations"),
        (lambda topology: inject(topology).map(lambda click: click.at), ": by(...) and map(...) are for computations"),
        (lambda topology: inject(ms.Topology("other")), " takes the stream 'clicks' of another topology; inject it into 'shop'"),
        (lambda topology: ms.Topology("other").dead_letters, " takes the dead letters of another topology; give it those of 'shop'"),
        (lambda topology: inject(topology, keep=False), ": the log does not have the stream 'clicks', for it has keep=False; leave out"),
        (lambda topology: Count().passing, ": the log does not have the stream 'passing', for it has keep=False"),
    ],
)
def test_a_stream_that_cannot_be_meant_is_refused(call: Callable[..., None], give: Callable[[ms.Topology], object], message: str) -> None:
    topology = ms.Topology("shop")
    with pytest.raises(ms.TopologyError, match=re.escape(f"{call.__name__}{message}")):
        call(topology, give(topology))


@CALLS
def test_it_is_said_once(call: Callable[..., None]) -> None:
    topology, count = ms.Topology("shop"), Count()
    clicks = inject(topology)
    for stream, name in ((clicks, "clicks"), (count.counts, "counts")):
        call(topology, stream)
        with pytest.raises(ms.TopologyError, match=f"{call.__name__}: it was called for the stream '{name}' before; call it once"):
            call(topology, stream, 2 * ms.HOUR)


@CALLS
@pytest.mark.parametrize("span", [0, -ms.HOUR, 1.5, True, "1 h", ms.Duration(1 << 62)])
def test_a_span_that_is_none_is_refused(call: Callable[..., None], span: object) -> None:
    topology = ms.Topology("shop")
    with pytest.raises(ms.TopologyError, match=rf"^{call.__name__}\((for_|after)={re.escape(repr(span))}\): "):
        call(topology, inject(topology), span)
    assert not topology.retained + topology.compacted


def test_only_retention_has_no_end() -> None:
    topology = ms.Topology("shop")
    clicks = inject(topology)
    retain(topology, clicks, None)
    with pytest.raises(ms.TopologyError, match=r"compact\(after=None\): give a positive ms\.Duration"):
        compact(topology, clicks, None)


@CALLS
def test_an_output_that_nobody_produces_is_refused_when_all_is_placed(call: Callable[..., None]) -> None:
    topology = ms.Topology("shop")
    topology.compute("count", Count()).reads(inject(topology))
    call(topology, Count().counts)  # of another one, that is placed elsewhere or nowhere
    with pytest.raises(ms.TopologyError, match=r"Count\.counts, which has no producer; place it with topology\.compute"):
        compile_topology(topology)
