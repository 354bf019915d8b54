"""The graph of a run, laid out from left to right: injectors, computations, deliveries; streams are the lines between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millstream.core.graph import DEAD_LETTERS
from millstream.core.ledger import Ledger

INJECTOR, COMPUTATION, DELIVERY, STREAM = "injector", "computation", "delivery", "stream"


class Box(msgspec.Struct):
    """A box. `column` counts from the left, `row` from the top."""

    id: str
    kind: str
    name: str
    column: int = 0
    row: float = 0.0


class Passage(msgspec.Struct):
    """A place that is left free for a line to pass between the boxes of a column."""

    column: int
    row: float = 0.0


class Edge(msgspec.Struct):
    """A stream on its way from who brings it to who reads it, through `via`; `back` if it leads back, as on a cycle. One that nobody
    reads has no target."""

    source: str
    target: str | None
    stream: str
    back: bool = False
    via: list[Passage] = []


class Picture(msgspec.Struct):
    nodes: list[Box]
    edges: list[Edge]


def picture_of(ledger: Ledger) -> Picture:
    """As the code of the newest run has it."""
    plant = ledger.plant
    nodes = [
        *(Box(f"{INJECTOR} {name}", INJECTOR, name) for name in plant.injectors),
        *(Box(f"{COMPUTATION} {name}", COMPUTATION, name) for name in plant.computations),
        *(Box(f"{DELIVERY} {name}", DELIVERY, name) for name in plant.deliveries),
    ]
    reads: list[tuple[str, str | None]] = [
        (read.stream, f"{COMPUTATION} {reader.partition(' ← ')[0]}") for reader, read in ledger.readers.items()
    ]
    reads += [(stream, f"{DELIVERY} {delivery}") for delivery, stream in plant.deliveries.items()]
    read = {stream for stream, _ in reads}
    reads += [(stream, None) for stream in streams_of(ledger) if stream not in read]
    if DEAD_LETTERS in streams_of(ledger) or DEAD_LETTERS in read:  # anybody may bring one, so it is a box of its own
        nodes.append(Box(f"{STREAM} {DEAD_LETTERS}", STREAM, DEAD_LETTERS))
    known = {None, *(node.id for node in nodes)}
    found = dict.fromkeys((_origin(stream, plant.injectors), target, stream) for stream, target in reads)
    edges = [Edge(*each) for each in found if each[0] in known and each[1] in known]
    _place(nodes, edges)
    return Picture(nodes, edges)


def streams_of(ledger: Ledger) -> list[str]:
    """All that have had a record, or could have one."""
    return [*ledger.plant.injectors, *(stream for stream in ledger.produced if stream not in ledger.plant.injectors)]


def _origin(stream: str, injectors: Iterable[str]) -> str:
    if stream == DEAD_LETTERS:
        return f"{STREAM} {stream}"
    return f"{INJECTOR} {stream}" if stream in injectors else f"{COMPUTATION} {stream.rpartition('.')[0]}"


def _place(nodes: list[Box], edges: list[Edge]) -> None:
    """Each as far to the right as the longest way to it is long, counting no line that leads back; near to those it reads."""
    by_id = {node.id: node for node in nodes}
    ways: dict[str, list[tuple[str, Edge]]] = {node.id: [] for node in nodes}
    for edge in edges:
        if edge.target is not None:
            ways[edge.source].append((edge.target, edge))
    _mark_back(by_id, ways)
    ahead = [(target, edge) for some in ways.values() for target, edge in some if not edge.back]
    for _ in nodes:  # the longest way has no more lines than there are nodes
        moved = False
        for target, edge in ahead:
            if by_id[target].column <= by_id[edge.source].column:
                by_id[target].column = by_id[edge.source].column + 1
                moved = True
        if not moved:
            break
    _set_rows(nodes, by_id, ahead)


def _set_rows(nodes: list[Box], by_id: Mapping[str, Box], ahead: list[tuple[str, Edge]]) -> None:
    """One below the other in each column, in the order of where their lines come from."""
    columns: dict[int, list[Box | Passage]] = {}
    before: dict[int, list[Box | Passage]] = {}  # by the identity of what stands in a column: what leads to it
    for node in nodes:
        columns.setdefault(node.column, []).append(node)
    for target, edge in ahead:
        last: Box | Passage = by_id[edge.source]
        edge.via = [Passage(column) for column in range(last.column + 1, by_id[target].column)]
        for slot in edge.via:
            columns[slot.column].append(slot)
        stops: list[Box | Passage] = [*edge.via, by_id[target]]
        for each in stops:
            before.setdefault(id(each), []).append(last)
            last = each
    for _, column in sorted(columns.items()):
        wanted = {id(each): _mean([other.row for other in before.get(id(each), [])]) for each in column}
        column.sort(key=lambda each: wanted[id(each)])
        for number, each in enumerate(column):
            each.row = number - (len(column) - 1) / 2


def _mark_back(nodes: Iterable[str], ways: Mapping[str, list[tuple[str, Edge]]]) -> None:
    """A line to one that leads here."""
    done: set[str] = set()
    way: set[str] = set()

    for start in nodes:
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            node, nth = stack.pop()
            if nth == 0:
                if node in done:
                    continue
                way.add(node)
            if nth < len(ways[node]):
                stack.append((node, nth + 1))
                target, edge = ways[node][nth]
                if target in way:
                    edge.back = True
                elif target not in done:
                    stack.append((target, 0))
            else:
                way.discard(node)
                done.add(node)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
