"""Every kind of class and function that user code may have, in one topology: played by a driver, or run on Spark.

Copied under other names by the tests, with text annotations and without, and started as a script, a module or a notebook: its
classes must arrive in other processes as they are here.
"""

import enum
import functools
import os
import sys
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, NewType, Optional, TypedDict, TypeVar
from uuid import UUID

import msgspec

import millstream as ms

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Plain:
    a: int
    b: str = "x"
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: dict[str, int] = field(default_factory=dict)


UserId = NewType("UserId", int)


@dataclass
class Node:
    name: str
    children: list["Node"] = field(default_factory=list)

    def size(self) -> int:
        return 1 + sum(child.size() for child in self.children)


@dataclass
class Wider(Plain):
    _: KW_ONLY
    c: float = 0.5
    kind: ClassVar[str] = "wider"

    @functools.cached_property
    def label(self) -> str:
        return f"{self.kind} {self.a}{self.b}{self.c}"


@dataclass
class Box(Generic[T]):
    content: T


class Point(NamedTuple):
    x: int
    color: Color = Color.RED


class Options(TypedDict, total=False):
    deep: bool


class Thing(msgspec.Struct):
    a: int
    tags: list[str] = []
    made: dict[str, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tags = [*self.tags, "made"]


class Named(Thing, frozen=False, rename="camel", omit_defaults=True, kw_only=True):
    first_name: str
    last_name: str = "y"
    limit: ClassVar[int] = 3

    @property
    def full(self) -> str:
        return f"{self.first_name} {self.last_name}"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.a += 1


class Tree(msgspec.Struct, frozen=True):
    v: int
    left: Optional["Tree"] = None
    right: "Tree | None" = None

    def total(self) -> int:
        return self.v + sum(side.total() for side in (self.left, self.right) if side is not None)


class Up(msgspec.Struct, tag="up"):
    by: int


class Down(msgspec.Struct, tag="down"):
    before: Up | None = None


class Pair(msgspec.Struct, Generic[T]):
    one: T
    two: T


@dataclass
class Everything:
    key: str
    at: int
    plain: Plain
    slotted: Slotted
    node: Node
    wider: Wider
    box: Box[int]
    point: Point
    options: Options
    thing: Thing
    named: Named
    tree: Tree
    move: Up | Down
    pair: Pair[str]
    level: Annotated[int, msgspec.Meta(ge=1)]
    when: datetime
    price: Decimal
    id: UUID
    user: UserId
    many: dict[str, list[Thing]] = field(default_factory=dict)
    maybe: Thing | None = None


class Seen(msgspec.Struct):
    count: int
    names: list[str]
    tree: int
    pair: Pair[str]
    color: Color
    move: str


@dataclass
class Kept:
    count: int = 0
    names: list[str] = field(default_factory=list)
    last: Thing | None = None
    plain: Plain = field(default_factory=lambda: Plain(7))


@functools.lru_cache(maxsize=100)
def shout(text: str) -> str:
    return text.upper()


@functools.cache
def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


decode_thing = msgspec.json.Decoder(Thing).decode


class Inner(msgspec.Struct):
    """In no stream and no state."""

    when: datetime
    thing: Thing | None = None


class Look(ms.Computation[Kept]):
    seen: ms.Output[Seen]

    def process_record(self, record: ms.Record[Everything]) -> None:
        value, kept = record.value, self.state
        assert isinstance(value.plain, Plain), value.plain
        assert value.plain.tags == [], value.plain
        assert value.slotted == Slotted(1), value.slotted
        assert decode_thing(b'{"a":5}').tags == ["made"]
        assert msgspec.convert({"when": "2026-01-01T00:00:00Z"}, Inner).when == START
        kept.count += 1
        kept.names.append(shout(value.named.full))
        kept.plain.tags.append(value.wider.label)
        kept.last = value.thing
        color = value.point.color
        move = f"{type(value.move).__name__} {fib(value.node.size() + 8)}"
        self.seen.produce(Seen(kept.count, kept.names, value.tree.total(), value.pair, color, move), timestamp=record.timestamp)


GOOD = (
    '{"key":"k","at":%d,"plain":{"a":1},"slotted":{"a":1},"node":{"name":"r","children":[{"name":"c"}]},"wider":{"a":1},'
    '"box":{"content":1},"point":[1,"blue"],"options":{},"thing":{"a":1},"named":{"a":1,"firstName":"ann"},'
    '"tree":{"v":1,"left":{"v":2,"right":{"v":4}}},"move":{"type":"down","before":{"type":"up","by":1}},"pair":{"one":"a","two":"b"},'
    '"level":1,"user":7,"when":"2026-01-01T00:00:00Z","price":"1.50","id":"12345678-1234-5678-1234-567812345678","many":{"t":[{"a":1}]}}'
)
WRONG = {
    '"plain":{"a":1}': '"plain":{}',
    '"tree":{"v":1,': '"tree":{',
    '"firstName"': '"first_name"',
    '"point":[1,"blue"]': '"point":[1,"green"]',
    '"level":1': '"level":0',
    '"children":[{"name":"c"}]': '"children":[{}]',
    '"type":"up","by":1': '"type":"up"',
    '"content":1': '"content":"1"',
}
START = datetime(2026, 1, 1, tzinfo=UTC)


def lines() -> list[str]:
    """Two good ones, and one with each mistake."""
    good = [GOOD % (int(START.timestamp() * 1_000_000) + n) for n in range(2)]
    return [good[0], *(good[0].replace(right, wrong) for right, wrong in WRONG.items()), good[1]]


def topology_of(base: Path) -> tuple[ms.Topology, Any, Look]:
    topology, look = ms.Topology("kinds"), Look()
    events = topology.inject(
        "events",
        ms.files(f"{base}/in/*.jsonl", Everything, bounded=True),
        key=lambda value: value.key,
        timestamp=lambda value: ms.Timestamp(value.at),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
        errors=ms.Errors.DEAD_LETTER,
    )
    topology.compute("look", look).reads(events)
    topology.deliver("seen", look.seen, ms.delta(f"{base}/seen"))
    topology.deliver("dead", topology.dead_letters, ms.to_files(f"{base}/dead"))
    return topology, events, look


base = Path(os.environ.get("KINDS_BASE", "base"))
topology, events, look = topology_of(base)


def drive() -> None:
    from millstream.testing import Driver

    driver = Driver(topology)
    driver.feed(events, [line.encode() for line in lines()])
    assert len(driver.dead_letters()) == len(WRONG), driver.dead_letters()
    print([msgspec.to_builtins(record.value) for record in driver.read(look.seen)])
    print(driver.state(look, "k"))


def main() -> None:
    ms.run(topology, at=base / "mill", until=ms.DRAINED)


if __name__ == "__main__":
    drive() if "--driver" in sys.argv else main()
