from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_type

import library as lib
import millstream as ms
import sessions


@dataclass(frozen=True)
class Visit:
    page: str
    clicks: int


def add(total: int, click: sessions.Click) -> int:
    return total + len(click.page)


def visit(click: sessions.Click, session: sessions.Session) -> Visit:
    return Visit(click.page, session.clicks)


topology = sessions.topology
totals = lib.Windowed(lib.hopping(10 * ms.MINUTE, every=ms.MINUTE), lib.fold(int, add))
topology.compute("totals", totals).reads(sessions.clicks, late=ms.Divert(totals.late))
assert_type(totals.results, ms.Output[lib.Result[int]])

visits = lib.StreamJoin(visit, within=ms.HOUR)
topology.compute("visits", visits).reads(
    visits.left(sessions.clicks.by(lambda click: click.user)),
    visits.right(sessions.sessions.closed),
)
assert_type(visits.pairs, ms.Output[Visit])
if TYPE_CHECKING:
    topology.compute("swapped", visits).reads(visits.left(sessions.sessions.closed))  # type: ignore[arg-type]  # pyright: ignore

if TYPE_CHECKING:
    left_cart = lib.Matching(
        lib.first("looked", sessions.Click, lambda click: click.page == "/cart").unless(
            "paid", lambda click: click.page == "/paid", within=ms.HOUR
        )
    )
    assert_type(left_cart.matches, ms.Output[dict[str, sessions.Click]])

# What a source of a union carries is said by its annotation.
Either = sessions.Click | Visit
both: ms.Source[Either] = ms.files("both/*.jsonl", Either)
either = topology.inject(
    "both",
    both,
    key=lambda value: value.page,
    timestamp=lambda value: ms.Timestamp(0),
    low_watermark=ms.BoundedDisorder(ms.SECOND),
)
assert_type(either.by(lambda value: value.page), ms.Stream[sessions.Click | Visit])
assert_type(either.records, ms.Stream[ms.Record[sessions.Click | Visit]])
assert_type(either.records.by(lambda record: record.key[:2]), ms.Stream[ms.Record[sessions.Click | Visit]])
assert_type(either.records.by_each(lambda record: [record.key, record.value.page]).map(lambda record: record.timestamp), ms.Stream[ms.Timestamp])


class Pages(ms.Computation[list[str]]):
    late: ms.Output[ms.Record[sessions.Click | Visit]]

    def process_record(self, record: ms.Record[ms.Record[sessions.Click | Visit]]) -> None:
        self.state.append(f"{record.value.key} {record.value.value.page}")


pages = Pages()
topology.compute("pages", pages).reads(either.records.by(lambda record: record.id), late=ms.Divert(pages.late))


def words(topology: ms.Topology, name: str) -> ms.InjectedStream[str]:
    """A helper can name what inject returns."""
    return topology.inject(
        name, ms.values(["a"], str), key=str, timestamp=lambda word: ms.Timestamp(0), low_watermark=ms.BoundedDisorder(ms.SECOND)
    )


def lengths(records: list[ms.Record[bool]]) -> None:
    """A record of a bool is one of an int: it does not change."""
    numbers: list[ms.Record[int]] = [*records]
    several: list[ms.Record[int | None]] = [*numbers]
    assert_type(several[0].value, int | None)

@dataclass(frozen=True)
class Measured:
    sensor: str
    measured: ms.Timestamp
    sent: ms.Timestamp


measured = ms.Topology("clocks").inject(
    "measured",
    ms.files("measured/*.jsonl", Measured),
    key=lambda each: each.sensor,
    timestamp=ms.OnOurClock(occurred=lambda each: each.measured, sent=lambda each: each.sent),
    low_watermark=ms.Timeless(),
)
assert_type(measured.by(lambda each: each.sensor), ms.Stream[Measured])
