"""Pictures of event time: `python docs/pictures/make.py` writes them beside this file.

Nothing in them is drawn by hand: each scene is played to the operators themselves, in the driver of tests, and what they say
is drawn. So the same code makes the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import millstream as ms
from millstream import aggregate
from millstream.join import AsOf, Join, Misses
from millstream.testing import Driver
from millstream.window import Hopping, Session, Tumbling, Window, Windowed, Windows, WindowTable

NOON = ms.Timestamp(1_777_636_800_000_000)  # 2026-05-01T12:00Z
INK, SOFT, RECORD, LATE, TOLD, PROMISE, PAPER = "#2b3a42", "#8a979e", "#1b6ca8", "#c0392b", "#2e7d4f", "#d98324", "#fbfbf9"


@dataclass(frozen=True)
class Event:
    """Something that happened so many seconds after noon, of one key."""

    key: str
    second: int

    @property
    def at(self) -> ms.Timestamp:
        return NOON + self.second * ms.SECOND


@dataclass
class Picture:
    """Shapes on a plane of event time (seconds after noon, to the right) and rows (downward)."""

    title: str
    seconds: int
    height: int
    first: int = 0
    left: int = 120
    width: int = 760
    shapes: list[str] = field(default_factory=list)

    def x(self, second: float) -> float:
        return round(self.left + (self.width - self.left - 30) * (second - self.first) / (self.seconds - self.first), 1)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, *, wide: float = 1, dashes: str = "") -> None:
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.shapes.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{wide}"{dashed}/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str, *, wide: float = 2) -> None:
        steps = " ".join(f"{x},{y}" for x, y in points)
        self.shapes.append(f'<polyline points="{steps}" fill="none" stroke="{colour}" stroke-width="{wide}"/>')

    def dot(self, second: float, y: float, colour: str = RECORD) -> None:
        self.shapes.append(f'<circle cx="{self.x(second)}" cy="{y}" r="5" fill="{colour}"/>')

    def cross(self, second: float, y: float) -> None:
        x = self.x(second)
        self.line(x - 5, y - 5, x + 5, y + 5, LATE, wide=2.5)
        self.line(x - 5, y + 5, x + 5, y - 5, LATE, wide=2.5)

    def bar(self, start: float, end: float, y: float, label: str, *, colour: str = TOLD, gone: bool = False) -> None:
        x, wide = self.x(start), round(self.x(end) - self.x(start), 1)
        fill = 'fill="none" stroke-dasharray="4 3"' if gone else f'fill="{colour}" fill-opacity="0.16"'
        self.shapes.append(f'<rect x="{x}" y="{y - 9}" width="{wide}" height="18" rx="3" stroke="{colour}" {fill}/>')
        self.text(x + wide / 2, y + 4, label, colour=colour, anchor="middle", bold=True)

    def text(self, x: float, y: float, words: str, *, colour: str = INK, anchor: str = "start", bold: bool = False) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(f'<text x="{round(x, 1)}" y="{y}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(words)}</text>')

    def axis(self, every: int) -> None:
        y = self.height - 34
        self.line(self.left, y, self.width - 20, y, INK)
        for second in range(self.first, self.seconds + 1, every):
            self.line(self.x(second), 26, self.x(second), y, "#e4e4de")
            self.text(self.x(second), y + 17, clock(second), colour=SOFT, anchor="middle")
        self.text(self.width - 20, y + 31, "event time →", colour=SOFT, anchor="end")

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="sans-serif" font-size="12" role="img">'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" rx="6" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", paper, *self.shapes, "</svg>\n"])


def topology_of(disorder: ms.Duration, *names: str) -> tuple[ms.Topology, list[ms.InjectedStream[Event]]]:
    topology = ms.Topology("picture")
    return topology, [
        topology.inject(
            name,
            ms.values([], Event),
            key=lambda event: event.key,
            timestamp=lambda event: event.at,
            low_watermark=ms.BoundedDisorder(disorder),
        )
        for name in names
    ]


def clock(second: int) -> str:
    return f"{ms.to_datetime(NOON + second * ms.SECOND):%H:%M:%S}"


def seconds(at: ms.Timestamp) -> float:
    return (at - NOON) / ms.SECOND


# Windows: records come one after the other, from top to bottom; the low watermark follows.

ROW, TOP = 24, 50


@dataclass(frozen=True)
class Told:
    """What an operator said when a record came."""

    start: float
    end: float
    label: str
    gone: bool = False


@dataclass(frozen=True)
class Step:
    record: Event
    low_watermark: float  # after it
    late: bool
    told: list[Told]


def play(computation: Window[Event, int] | WindowTable[Event, int], disorder: ms.Duration, arrivals: Sequence[int]) -> list[Step]:
    """Record by record: how far the low watermark was, and what was told then."""
    topology, (events,) = topology_of(disorder, "events")
    topology.compute("windows", computation).reads(events)
    driver, steps = Driver(topology, ship=False), []
    output = computation.changes if isinstance(computation, WindowTable) else computation.results
    for second in arrivals:
        before, said, late = driver.low_watermark(computation), len(driver.read(output)), len(driver.read(computation.late))
        record = Event("a", second)
        driver.feed(events, [record])
        told = [each for found in driver.read(output)[said:] for each in tell(found.value)]
        is_late = record.at < before or len(driver.read(computation.late)) > late
        steps.append(Step(record, seconds(driver.low_watermark(computation)), is_late, told))
    return steps


def tell(value: Windowed[int] | ms.Change[Windowed[int]]) -> list[Told]:
    if isinstance(value, Windowed):
        return [Told(seconds(value.start), seconds(value.end), str(value.value))]
    if value.after is None:
        assert value.before is not None
        return [Told(seconds(value.before.start), seconds(value.before.end), "deleted", gone=True)]
    label = str(value.after.value) if value.before is None else f"{value.before.value} → {value.after.value}"
    return [Told(seconds(value.after.start), seconds(value.after.end), label)]


def windows(title: str, steps: Sequence[Step], *, span: int, every: int, first: int = 0) -> str:
    rows = sum(1 + len(step.told) for step in steps)
    picture = Picture(title, span, TOP + rows * ROW + 40, first)
    picture.axis(every)
    picture.text(16, 20, title, bold=True)
    picture.text(16, TOP, "records come", colour=SOFT)
    picture.text(16, TOP + 16, "↓ one by one", colour=SOFT)
    y, promise = TOP - 4, [(picture.x(first), TOP - 14.0)]
    for step in steps:
        picture.dot(step.record.second, y, LATE if step.late else RECORD)
        if step.late:
            picture.text(picture.x(step.record.second) - 9, y + 4, "late", colour=LATE, anchor="end")
        promise += [(promise[-1][0], y), (picture.x(max(first, step.low_watermark)), y)]
        y += ROW
        for told in step.told:
            picture.bar(told.start, told.end, y, told.label, colour=LATE if told.gone else TOLD, gone=told.gone)
            y += ROW
    promise.append((promise[-1][0], y - ROW / 2))
    picture.path(promise, PROMISE)
    picture.text(promise[-1][0], y + 2, "low watermark", colour=PROMISE, anchor="middle")
    return picture.svg()


IN_DISORDER = (5, 20, 12, 40, 55, 48, 75, 62, 95, 130, 122, 150, 200)


def windows_of(kind: Windows, title: str, *, first: int = 0) -> Callable[[], str]:
    def draw() -> str:
        steps = play(Window(Event, kind, aggregate.count()), 15 * ms.SECOND, IN_DISORDER)
        return windows(title, steps, span=210, every=30, first=first)

    return draw


def late_record() -> str:
    steps = play(Window(Event, Tumbling(ms.MINUTE), aggregate.count()), 10 * ms.SECOND, (10, 35, 50, 80, 45, 75, 140))
    return windows("A record that comes after its window was told goes to `late`", steps, span=150, every=30)


def correction() -> str:
    computation = WindowTable(Event, Session(30 * ms.SECOND), aggregate.count(), correct=ms.HOUR)
    steps = play(computation, 10 * ms.SECOND, (5, 20, 70, 85, 130, 45))
    return windows("A late record joins two sessions: one row changes, the other is deleted", steps, span=150, every=30)


# Joins: two streams, one above the other.


def interval_join() -> str:
    left, right = [Event("1", 10), Event("2", 60), Event("3", 115)], [Event("1", 32), Event("3", 130), Event("3", 148)]
    topology, (orders, payments) = topology_of(10 * ms.SECOND, "orders", "payments")
    joined = Join(Event, Event, before=0 * ms.SECOND, after=40 * ms.SECOND, misses=Misses.LEFT)
    topology.compute("joined", joined).reads(*joined.of(orders, payments))
    driver = Driver(topology, ship=False)
    driver.send(orders, *left)
    driver.send(payments, *right)
    driver.finish()

    picture = Picture("An interval join: payments up to 40 seconds after their order", 180, 230)
    picture.axis(30)
    picture.text(16, 20, picture.title, bold=True)
    picture.text(16, 74, "orders")
    picture.text(16, 154, "payments")
    for order in left:
        picture.line(picture.x(order.second), 90, picture.x(order.second + 40), 90, PROMISE, wide=3)
    for found in driver.read(joined.pairs):
        one, other = found.value.left, found.value.right
        picture.line(picture.x(one.second), 70, picture.x(other.second), 150, TOLD, wide=2)
    for each, y in [*((order, 70) for order in left), *((payment, 150) for payment in right)]:
        picture.dot(each.second, y)
        picture.text(picture.x(each.second), y + (20 if y == 150 else -12), f"#{each.key}", anchor="middle")
    for missed in driver.read(joined.unmatched_left):
        picture.cross(seconds(missed.timestamp), 90)
        picture.text(
            picture.x(seconds(missed.timestamp)) + 6, 112, f"now certain: no payment of #{missed.value.key}", colour=LATE, anchor="end"
        )
    return picture.svg()


def as_of_join() -> str:
    versions, records = [Event("a", 30), Event("a", 105)], [Event("a", second) for second in (10, 55, 95, 105, 140)]
    topology, (orders, prices) = topology_of(10 * ms.SECOND, "orders", "prices")
    priced = AsOf(Event, Event)
    topology.compute("priced", priced).reads(*priced.of(orders, versions=prices))
    driver = Driver(topology, ship=False)
    driver.send(orders, *records)
    driver.send(prices, *versions)
    driver.finish()

    picture = Picture("An as-of join: each order with the price that was valid then", 180, 210)
    picture.axis(30)
    picture.text(16, 20, picture.title, bold=True)
    picture.text(16, 74, "prices")
    picture.text(16, 144, "orders")
    for version, end in zip(versions, [*(later.second for later in versions[1:]), picture.seconds], strict=True):
        picture.bar(version.second, end, 70, f"price of {clock(version.second)}", colour=RECORD)
    for found in driver.read(priced.pairs):
        order, version = found.value.left, found.value.right
        end = next((later.second for later in versions if later.second > version.second), picture.seconds)
        assert version.second <= order.second < end  # the line leads to the bar of this version
        picture.line(picture.x(order.second), 140, picture.x(order.second), 79, TOLD, wide=2)
        picture.dot(order.second, 140, TOLD)
    for missed in driver.read(priced.unmatched):
        picture.dot(missed.value.second, 140, LATE)
        picture.text(picture.x(missed.value.second), 162, "unmatched", colour=LATE, anchor="middle")
    return picture.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "tumbling.svg": windows_of(Tumbling(ms.MINUTE), "Tumbling(ms.MINUTE): how many records in each minute"),
    "hopping.svg": windows_of(
        Hopping(ms.MINUTE, every=30 * ms.SECOND), "Hopping(ms.MINUTE, every=30 * ms.SECOND): each record in two", first=-30
    ),
    "session.svg": windows_of(Session(25 * ms.SECOND), "Session(25 * ms.SECOND): together while less than 25 seconds lie between"),
    "late-record.svg": late_record,
    "correction.svg": correction,
    "interval-join.svg": interval_join,
    "as-of-join.svg": as_of_join,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        Path(__file__).with_name(name).write_text(draw(), encoding="utf-8")
