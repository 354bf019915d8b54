"""The graph of a run, laid out from left to right: injectors, computations, deliveries; streams are the lines between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millstream.core.ledger import Ledger

INJECTOR, COMPUTATION, DELIVERY = "injector", "computation", "delivery"


class Box(msgspec.Struct):
    """A box. `column` counts from the left, `row` from the top."""

    id: str
    kind: str
    name: str
    column: int = 0
    row: float = 0.0


class Edge(msgspec.Struct):
    """A stream on its way from who brings it to who reads it; `back` if it leads back, as on a cycle."""

    source: str
    target: str
    stream: str
    back: bool = False


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
    known = {node.id for node in nodes}
    edges = []
    for reader, read in ledger.readers.items():
        edges.append(Edge(_origin(read.stream, plant.injectors), f"{COMPUTATION} {reader.partition(' ← ')[0]}", read.stream))
    for delivery, stream in plant.deliveries.items():
        edges.append(Edge(_origin(stream, plant.injectors), f"{DELIVERY} {delivery}", stream))
    edges = [edge for edge in edges if edge.source in known and edge.target in known]
    _place(nodes, edges)
    return Picture(nodes, edges)


def _origin(stream: str, injectors: Iterable[str]) -> str:
    return f"{INJECTOR} {stream}" if stream in injectors else f"{COMPUTATION} {stream.rpartition('.')[0]}"


def _place(nodes: list[Box], edges: list[Edge]) -> None:
    """Each as far to the right as the longest way to it is long, counting no line that leads back; near to those it reads."""
    by_id = {node.id: node for node in nodes}
    targets: dict[str, list[Edge]] = {node.id: [] for node in nodes}
    for edge in edges:
        targets[edge.source].append(edge)
    _mark_back(by_id, targets)
    ahead = [edge for edge in edges if not edge.back]
    for _ in nodes:  # the longest way has no more lines than there are nodes
        moved = False
        for edge in ahead:
            if by_id[edge.target].column <= by_id[edge.source].column:
                by_id[edge.target].column = by_id[edge.source].column + 1
                moved = True
        if not moved:
            break
    columns: dict[int, list[Box]] = {}
    for node in nodes:
        columns.setdefault(node.column, []).append(node)
    for _, column in sorted(columns.items()):
        wanted = {node.id: _mean([by_id[e.source].row for e in ahead if e.target == node.id]) for node in column}
        column.sort(key=lambda node: wanted[node.id])
        middle = (len(column) - 1) / 2
        for number, node in enumerate(column):
            node.row = number - middle


def _mark_back(nodes: Mapping[str, Box], targets: Mapping[str, list[Edge]]) -> None:
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
            if nth < len(targets[node]):
                stack.append((node, nth + 1))
                edge = targets[node][nth]
                if edge.target in way:
                    edge.back = True
                elif edge.target not in done:
                    stack.append((edge.target, 0))
            else:
                way.discard(node)
                done.add(node)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
