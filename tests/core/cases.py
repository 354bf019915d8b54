"""Generated cases, as data: a topology, what happens to it, and by hand what it must say.

A node adds up what comes in a window, and says it once the window is complete; or it passes on what comes; or it sends a
record round a few times first. While the promises in the script are kept, what it says depends on the input alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import strategies as st

START = 10**15
SECOND = 1_000_000
KEYS = ("a", "b", "ключ", "")


# The case.


@dataclass(frozen=True)
class Item:
    """What flows. Of several, the numbers and the weights are added up."""

    key: str
    number: int
    weight: int
    at: int


@dataclass(frozen=True)
class Read:
    """A stream as a node reads it: under its own key, or under the number modulo `by`."""

    stream: str
    by: int = 0

    def key(self, key: str, item: Item) -> str:
        return f"{item.number % self.by}" if self.by else key


@dataclass(frozen=True)
class Node:
    """A computation of the topology, called n0, n1, ... by its place."""

    reads: tuple[Read, ...]
    window: int = 1  # seconds; 0 passes on what comes
    early: bool = False  # says a window at the time of its first record, and holds that; else at its end
    laps: int = 0  # how often a record goes round before it counts
    lap_by: int = 0  # and under which key it comes back
    naps: bool = False  # sets, replaces and cancels timers on both clocks beside
    late: str = "process"
    in_order: bool = False  # of event time


@dataclass(frozen=True)
class Send:
    injector: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Promise:
    injector: int
    upto: int


@dataclass(frozen=True)
class Finish:
    injector: int


@dataclass(frozen=True)
class Tick:
    """What the wall clock says now, be it earlier."""

    now: int


@dataclass(frozen=True)
class Crash:
    """The next epoch is run twice, or the whole query is torn down: as the stage has it."""


Step = Send | Promise | Finish | Tick | Crash


@dataclass(frozen=True)
class Case:
    """A topology and what happens to it. After the script, all input ends and a long time goes by.

    `limit`, `pace` and `crashes` are for a driver: the records of an epoch, the most epochs after each step, and, bit by
    bit, which of its epochs crash.
    """

    injectors: int
    nodes: tuple[Node, ...]
    script: tuple[Step, ...]
    idle: tuple[int, ...] = ()  # by injector, after how many seconds it is idle; 0: never
    timeless: tuple[bool, ...] = ()  # by injector, whether it has no event time
    limit: int = 1_000_000
    pace: tuple[int, ...] = ()
    crashes: int = 0


Said = Counter[tuple[str, int, int, int]]  # key, number, weight and timestamp


# The same by hand.


def fold(case: Case) -> dict[str, Said]:
    """What each node must say, computed from lists alone."""
    streams: dict[str, list[tuple[str, Item, int]]] = {f"in{number}": [] for number in range(case.injectors)}
    for step in case.script:
        if isinstance(step, Send):
            streams[f"in{step.injector}"] += [(item.key, item, item.at) for item in step.items]
    for number, node in enumerate(case.nodes):
        streams[f"n{number}"] = _fold_node(
            node, [(read.key(key, item), item, at) for read in node.reads for key, item, at in streams[read.stream]]
        )
    return {
        f"n{number}": Counter((key, item.number, item.weight, at) for key, item, at in streams[f"n{number}"])
        for number in range(len(case.nodes))
    }


def _fold_node(node: Node, came: list[tuple[str, Item, int]]) -> list[tuple[str, Item, int]]:
    if node.laps and node.lap_by:
        came = [(f"{item.number % node.lap_by}", item, at) for _, item, at in came]
    if not node.window:
        return [(key, Item(key, item.number, item.weight + 1, at), at) for key, item, at in came]
    said = []
    size = node.window * SECOND
    for key, start in {(key, at - at % size) for key, _, at in came}:
        within = [(item, at) for other, item, at in came if (other, at - at % size) == (key, start)]
        when = min(at for _, at in within) if node.early else start + size
        item = Item(key, sum(item.number for item, _ in within), sum(item.weight for item, _ in within), when)
        said.append((key, item, when))
    return said


# Making one up. Few draws and small ones: an integer is taken apart where several choices would do.


@st.composite
def cases(draw: st.DrawFn, *, honest: bool = True) -> Case:
    """Any topology and any script; an honest one keeps its promises."""
    injectors = draw(st.integers(1, 3))
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 5))):
        streams = [f"in{n}" for n in range(injectors)] + [f"n{n}" for n in range(number)]
        nodes.append(_node(draw(st.integers(0, 2**24 - 1)), streams, honest=honest))
    rounds = draw(st.lists(st.tuples(st.integers(0, 2**12 - 1), st.lists(st.integers(0, 2**9 - 1), max_size=5)), max_size=7))
    timeless = () if honest else tuple(draw(st.lists(st.sampled_from([False, False, True]), max_size=injectors)))
    return Case(
        injectors,
        tuple(_ordered_where_time_is(nodes, {f"in{n}" for n, without in enumerate(timeless) if without})),
        _script(rounds, injectors, honest=honest),
        idle=() if honest else tuple(draw(st.lists(st.sampled_from([0, 1, 4]), max_size=injectors))),
        timeless=timeless,
        limit=draw(st.sampled_from([1, 2, 4, 1_000_000])),
        pace=tuple(draw(st.lists(st.integers(0, 4), max_size=8))),
        crashes=draw(st.integers(0, 2**16 - 1)) & draw(st.integers(0, 2**16 - 1)),
    )


def _ordered_where_time_is(nodes: list[Node], untimed: set[str]) -> Iterator[Node]:
    """The order of event time is refused where nothing that is read has one."""
    for number, node in enumerate(nodes):
        timed = any(read.stream not in untimed for read in node.reads)
        untimed |= set() if timed else {f"n{number}"}
        yield replace(node, in_order=node.in_order and timed)


def case_of(chance: random.Random) -> Case:
    """An honest case from a seed, none of its parts small: for a stage on which few can be played."""
    injectors = chance.randint(1, 3)
    nodes: list[Node] = []
    for number in range(chance.randint(2, 4)):
        streams = [f"in{n}" for n in range(injectors)] + [f"n{n}" for n in range(number)]
        nodes.append(_node(chance.randrange(2**24), streams, honest=True))
    rounds = [(chance.randrange(2**12), [chance.randrange(2**9) for _ in range(chance.randint(2, 6))]) for _ in range(chance.randint(3, 6))]
    return Case(injectors, tuple(nodes), _script(rounds, injectors, honest=True))


def _node(choice: int, streams: list[str], *, honest: bool) -> Node:
    choice, mask = divmod(choice, 2 ** len(streams))
    choice, bys = divmod(choice, 3 ** min(len(streams), 5))
    reads = tuple(
        Read(stream, (0, 2, 3)[bys // 3**place % 3])
        for place, stream in enumerate(streams)
        if mask >> place & 1 or (not mask and place == 0)
    )
    choice, shape = divmod(choice, 4 * 2 * 2)
    window, early, naps = shape % 4, shape // 4 % 2, shape // 8
    laps = (0, 0, 0, 1, 3)[choice % 5]
    late = ("process", "drop", "divert")[choice % 3] if not honest else "drop"
    in_order = choice % 7 < 3 and not laps
    return Node(reads, window, bool(early) and not laps, laps, (0, 2)[choice % 2] if laps else 0, bool(naps), late, in_order)


def _script(rounds: list[tuple[int, list[int]]], injectors: int, *, honest: bool) -> tuple[Step, ...]:
    """Each round sends some items to one injector, and may promise, tick or crash."""
    sends: list[Send] = []
    for number, (choice, items) in enumerate(rounds):
        made = tuple(Item(KEYS[n % 4], n // 4 % 8, 1 + 10 * number + place, START + n // 32 * SECOND // 2) for place, n in enumerate(items))
        sends.append(Send(choice % injectors, made))
    script: list[Step] = []
    for number, (send, (choice, _)) in enumerate(zip(sends, rounds, strict=True)):
        choice //= 3
        choice, crashes = divmod(choice, 6)
        choice, ticks = divmod(choice, 3)
        script += [Crash()] if crashes == 0 else []
        script.append(send)
        script += [Tick((number + 1) * 3 * SECOND * (1 - choice % 2))] if ticks == 0 else []
        script += _promise(choice % 7, send.injector, sends[number + 1 :], honest=honest)
    return tuple(script)


def _promise(choice: int, injector: int, rest: list[Send], *, honest: bool) -> list[Step]:
    """Nothing, or a promise that the rest keeps (sometimes just so), or the end if nothing follows."""
    ahead = [item.at for send in rest if send.injector == injector for item in send.items]
    slack = (None, 0, 1, SECOND // 2, 2 * SECOND, 0, 0)[choice]
    if slack is None:
        return []
    if not ahead and choice == 6:
        return [Finish(injector)]
    if not honest and choice in (1, 2):
        slack = -3 * SECOND
    return [Promise(injector, min(ahead, default=START + 9 * SECOND) - slack)]
