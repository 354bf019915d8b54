"""Read your own write: wait until a delivery has what a place in a source has caused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from millstream.core.caused import Caused
from millstream.core.graph import Graph
from millstream.core.ledger import Commit, Ledger
from millstream.errors import TopologyError
from millstream.source import Position
from millstream.spark.ends import Deliveries
from millstream.spark.planning import Planning
from millstream.spark.writing import Writer

LOOK = 0.05  # seconds between two looks at a delivery of the writer's, and for the end of the run


class WriteWaiter:
    """Woken by every commit."""

    def __init__(self, graph: Graph, planner: Planning, deliveries: Deliveries, writer: Writer) -> None:
        self._graph, self._planner, self._deliveries, self._writer = graph, planner, deliveries, writer
        self._news = threading.Condition()

    def on_commit(self, commit: Commit) -> None:
        with self._news:
            self._news.notify_all()

    def wait_for(self, delivery: str, position: object, of: str | None, timeout: float | None, check: Callable[[], bool]) -> int | None:
        """The epoch up to which the delivery must have its stream, once it has; None if the time or the run is over first. `check` says
        whether the run goes on, or raises what made it fail."""
        if delivery not in self._graph.deliveries:
            there = ", ".join(map(repr, self._graph.deliveries)) or "none"
            raise TopologyError(f"wait_for: there is no delivery called {delivery!r}; there is {there}")
        stream = self._graph.stream_of(self._graph.deliveries[delivery].stream).name
        reached = self._reached(position, of)
        deadline = None if timeout is None else time.monotonic() + timeout
        following: Caused | None = None

        def look(ledger: Ledger) -> int | None:
            nonlocal following
            if following is None and reached(ledger):
                following = Caused(self._graph.outline, stream, ledger.number)
            return None if following is None else following.look(ledger)

        while (epoch := self._planner.read(look)) is None:
            if not self._wait(deadline) or not check():
                return None
        while not self._has(delivery, epoch):
            if not self._wait(deadline) or not check():
                return None
        return epoch

    def _has(self, delivery: str, epoch: int) -> bool:
        thread = self._deliveries.threads.get(delivery)
        return self._writer.has(delivery, epoch) if thread is None else thread.wait_for(epoch, LOOK)

    def _wait(self, deadline: float | None) -> bool:
        """For a commit, or a moment; False if the time is over."""
        if deadline is not None and time.monotonic() >= deadline:
            return False
        with self._news:
            self._news.wait(LOOK)
        return True

    def _reached(self, position: object, of: str | None) -> Callable[[Ledger], bool]:
        """Whether commits have a place: an epoch, or of a source what its writers get back."""
        if of is None and isinstance(position, int) and not isinstance(position, bool):
            return lambda ledger: ledger.number >= position
        injections = self._graph.injections
        if of is not None and of not in injections:
            there = ", ".join(map(repr, injections))
            raise TopologyError(f"wait_for(of={of!r}): there is no injector of that name; there is {there}")
        found: dict[str, Mapping[str, Position]] = {}
        for name in injections if of is None else [of]:
            wanted = injections[name].source.position(position)
            if wanted is not None:
                found[name] = wanted
        if len(found) != 1:
            instead = "say of=, the name of its injector" if found else "give an epoch, or what a writer to one of the sources got back"
            raise TopologyError(f"wait_for({position!r}): this is a place in {len(found) or 'no'} source of this topology; {instead}")
        ((name, places),) = found.items()
        source = injections[name].source
        return lambda ledger: name in ledger.sources and source.reached(ledger.sources[name].positions, places)
