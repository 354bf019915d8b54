"""The graph of computations, and the checks that refuse a wrong one while it is being built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from millstream import arguments
from millstream.accepting import accepts
from millstream.change import Change
from millstream.clocks import Arrival, OnOurClock
from millstream.computation import Computation, Takes
from millstream.delivery import Delivery, row_type
from millstream.errors import TopologyError
from millstream.expiry import check_expiry
from millstream.injector import BoundedDisorder, Explicit, InjectedStream, Injection, Timeless
from millstream.record import DeadLetter, Errors, Late, Order, Since
from millstream.source import Source
from millstream.stream import DeadLetters, Output, Stream, called, members
from millstream.target import AnyTarget, RowTarget, Target
from millstream.timestamp import DAY, Duration, Timestamp

V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)


@dataclass(frozen=True)
class Divert(Generic[V_contra]):
    """Late records go to this output instead."""

    to: Output[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.to, Output):
            raise TopologyError(f"Divert({self.to!r}): give an output of the computation")

    if TYPE_CHECKING:

        def __init__(self, to: Output[V_contra]) -> None: ...


class Node(Generic[V]):
    """A computation in its place; `reads` says from where its records come."""

    def __init__(self, topology: Topology, name: str, computation: Computation[Any], errors: Errors) -> None:
        self.topology, self.name, self.computation, self.errors = topology, name, computation, errors
        self.inputs: tuple[Stream[Any], ...] = ()
        self.late: Late | Divert[Any] = Late.PROCESS
        self.since = Since.PRESENT

    def reads(self, *streams: Stream[V], late: Late | Divert[V] = Late.PROCESS, since: Since = Since.PRESENT) -> None:
        """From these streams; `late` says what becomes of records older than the low watermark.

        `since` says where the computation begins when it is new: with what comes from now on, or with the oldest record that the
        log still has of each stream. Later starts go on where it was.
        """
        if not streams:
            raise TopologyError(f"{self.name!r} reads nothing; name a stream in reads(...)")
        if self.inputs:
            raise TopologyError(f"{self.name!r} has its streams already; name all of them in one call of reads(...)")
        for stream in streams:
            if not isinstance(stream, Stream):
                raise TopologyError(f"{self.name!r} reads {stream!r}, which is not a stream; give it an injected stream or an output")
            self.topology.check_own(f"computation {self.name!r} reads", stream)
        self._check_types(streams)
        if isinstance(late, Divert):
            self._check_divert(late, streams)
        elif not isinstance(late, Late):
            raise TopologyError(f"{self.name!r}: late is {late!r}; give ms.Late.PROCESS, ms.Late.DROP or ms.Divert(an output)")
        arguments.choice("reads", "since", since, Since)
        self.inputs, self.late, self.since = streams, late, since

    def _check_divert(self, late: Divert[Any], streams: Iterable[Stream[Any]]) -> None:
        if not isinstance(late.to, Output) or late.to.owner is not self.computation:
            raise TopologyError(
                f"{self.name!r} diverts late records to an output of another computation; give it an output of its own for them"
            )
        into = late.to.value_type
        for found in [kind for stream in streams for kind in members(stream.value_type)]:
            if found is not None and not accepts(into, found):
                raise TopologyError(
                    f"{self.name!r} diverts late {called(found)} to an output of {called(into)}; annotate it Output[{called(found)}]"
                )

    def _check_types(self, streams: Iterable[Stream[Any]]) -> None:
        kind, taken = type(self.computation).__name__, self.computation.input_types()
        if taken is None:
            return
        carried = [kind for stream in streams for kind in members(stream.value_type)]
        for found in carried:
            if found is not None and not any(accepts(t, found) for t in taken):
                raise TopologyError(
                    f"{self.name!r} reads a stream of {called(found)}, but {kind}.process_record takes "
                    f"{' | '.join(map(called, taken))}; widen its annotation or leave the stream out"
                )
        for missing in [t for t in taken if not any(found is None or accepts(t, found) for found in carried)]:
            raise TopologyError(
                f"{kind}.process_record takes {called(missing)}, but no stream that {self.name!r} reads carries it; "
                f"add one, or take it out of the annotation"
            )


class Topology:
    """Injectors, computations and deliveries, by name. The names are what a checkpoint depends on."""

    def __init__(self, name: str) -> None:
        self.name = arguments.name("a topology", name)
        self.nodes: dict[str, Node[Any]] = {}
        self.injected: dict[str, InjectedStream[Any]] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.dead_letters: Stream[DeadLetter] = DeadLetters(name)
        self.retained: list[tuple[Stream[Any], Duration | None]] = []
        self.compacted: list[tuple[Stream[Any], Duration]] = []

    def inject(
        self,
        name: str,
        source: Source[V],
        *,
        key: Callable[[V], str] | str,
        timestamp: Callable[[V], Timestamp | datetime] | str | Arrival | OnOurClock[V],
        low_watermark: BoundedDisorder | Explicit[V] | Timeless,
        partition: Callable[[V], str] | str | None = None,
        errors: Errors = Errors.FAIL,
        ahead: Duration = DAY,
        keep: bool = True,
    ) -> InjectedStream[V]:
        """Bring outside data in as the stream `name`.

        `key`, `timestamp` and `partition` are functions of the value; where the source is a DataFrame they may be
        columns, and no Python then runs for each record. A timestamp may also be `ms.Arrival()` or `ms.OnOurClock(...)`.
        `partition` tells apart the parts of the source that are in order for themselves: the low watermark is the least
        over them; one that is `ms.Timeless()` has none. What lies more than `ahead` after the wall clock is not
        believed: it goes to the dead letters. With `keep=False` the log does not have the stream.
        """
        if arguments.name("an injector", name) in self.injected:
            raise TopologyError(f"two injectors are called {name!r}; choose another name for one")
        if name == "fence":
            raise TopologyError("an injector cannot be called 'fence': its tables use the word themselves; choose another name")
        self._check_free(name)
        if not isinstance(source, Source):
            raise TopologyError(
                f"injector {name!r}: {source!r} is not a source; make one with ms.files, ms.kafka, ms.postgres_changes, ms.dataframe "
                f"or ms.values, or derive one of your own from ms.Source"
            )
        if not isinstance(low_watermark, BoundedDisorder | Explicit | Timeless):
            raise TopologyError(f"injector {name!r}: low_watermark is ms.BoundedDisorder(...), ms.Explicit(...) or ms.Timeless()")
        if isinstance(low_watermark, Timeless) and partition is not None:
            raise TopologyError(
                f"injector {name!r}: partition= tells apart what has a low watermark of its own, and with ms.Timeless() nothing has; "
                f"leave it out"
            )
        explicit = low_watermark.of if isinstance(low_watermark, Explicit) else None
        moments = timestamp.by_role().values() if isinstance(timestamp, OnOurClock) else (timestamp,)
        for what in (key, *moments, partition, explicit):
            if isinstance(what, str) and not source.has_columns:
                raise TopologyError(
                    f"injector {name!r}: its source has no column {what!r}; give a function of the value, such as lambda v: v.{what}"
                )
        for called_, what in (("key", key), ("timestamp", timestamp), ("partition", partition)):
            if called_ == "timestamp" and isinstance(what, Arrival | OnOurClock):
                continue
            if what == "" or (not callable(what) and not isinstance(what, str) and (what is not None or called_ != "partition")):
                raise TopologyError(f"injector {name!r}: {called_} is {what!r}; give a function of the value, or the name of a column")
            if callable(what):
                arguments.function(f"injector {name!r}: {called_}", what, "the value")
        arguments.choice("inject", "errors", errors, Errors)
        arguments.span("inject", "ahead", ahead, least=0)
        arguments.flag("inject", "keep", keep)
        stream: InjectedStream[V] = InjectedStream(Injection(name, source, key, timestamp, low_watermark, partition, errors, ahead, keep))
        self.injected[name] = stream
        return stream

    def compute(self, name: str, computation: Takes[V], /, *, errors: Errors = Errors.FAIL) -> Node[V]:
        """Place a computation. Its state and streams are kept under `name`: keep it when the code changes."""
        if not isinstance(computation, Computation):
            raise TopologyError(f"{name!r}: {computation!r} is not a ms.Computation; derive its class from it")
        if arguments.name("a computation", name) in self.nodes:
            raise TopologyError(f"two computations are called {name!r}; a name keeps state apart: choose another")
        if not isinstance(errors, Errors):
            raise TopologyError(f"{name!r}: errors is {errors!r}; give ms.Errors.FAIL or ms.Errors.DEAD_LETTER")
        for other in self.nodes.values():
            if other.computation is computation:
                raise TopologyError(f"{other.name!r} and {name!r} are the same instance of {type(computation).__name__}; make one for each")
        try:
            computation.initial_state()
        except TypeError as error:
            kept = called(computation.state_type())
            raise TopologyError(
                f"{type(computation).__name__} cannot begin: {error}; "
                f"give the fields of {kept} defaults, keep {kept} | None, or define initial_state"
            ) from None
        outputs = streams_of(name, computation)
        for place, output in enumerate(outputs):
            self._check_free(output, *outputs[:place])
        check_expiry(f"computation {name!r}", computation.expiry, computation.state_type())
        if not isinstance(computation.order, Order):
            raise TopologyError(
                f"computation {name!r}: its order is {computation.order!r}; give ms.Order.ARRIVAL or ms.Order.EVENT_TIME, "
                f"or call the attribute otherwise if you meant something else by it"
            )
        node: Node[V] = Node(self, name, computation, errors)
        self.nodes[name] = node
        return node

    @overload
    def deliver(self, name: str, stream: Stream[Any], target: Target) -> None: ...
    @overload
    def deliver(self, name: str, stream: Stream[Change[Any]], target: RowTarget) -> None: ...
    def deliver(self, name: str, stream: Stream[Any], target: AnyTarget) -> None:
        """Take `stream` out to `target`. How far it has come is kept under `name`."""
        if arguments.name("a delivery", name) in self.deliveries:
            raise TopologyError(f"two deliveries are called {name!r}; choose another name for one")
        if not isinstance(target, AnyTarget):
            raise TopologyError(
                f"delivery {name!r}: {target!r} is not a target; make one with ms.delta, ms.delta_rows, ms.to_files, ms.console, "
                f"ms.function or ms.memory, or derive one of your own from ms.Target"
            )
        if not isinstance(stream, Stream):
            raise TopologyError(f"delivery {name!r}: {stream!r} is not a stream; give it an injected stream or an output")
        self.check_own(f"delivery {name!r} takes", stream)
        if stream.origin() is not stream:
            raise TopologyError(f"delivery {name!r}: by(...) and map(...) are for computations; deliver the stream itself")
        if isinstance(target, RowTarget) and row_type(stream.value_type) is None:
            raise TopologyError(
                f"delivery {name!r}: the target keeps the rows of a table, and the stream carries {called(stream.value_type)}; give it a "
                f"stream of ms.Change, or deliver every record with ms.delta"
            )
        delivery = Delivery(name, stream, target)
        for other in self.deliveries.values():
            if delivery.shares_rows(other):
                raise TopologyError(
                    f"deliveries {other.name!r} and {name!r} go to the same place, and one keeps rows there; give each a path of its own"
                )
        self.deliveries[name] = delivery

    def retain(self, stream: Stream[Any], *, for_: Duration | None) -> None:
        """The log keeps this stream for so long, whatever `Options.retention` says of the others; None: for good.

        What somebody has still to read stays longer.
        """
        self._check_logged("retain", stream, self.retained)
        self.retained.append((stream, arguments.maybe_span("retain", "for_", for_)))

    def compact(self, stream: Stream[Any], *, after: Duration) -> None:
        """Of what was written to this stream longer ago than `after`, the log keeps the newest record of each key.

        One that says that there is nothing goes, too: a `ms.Change` without an `after`, in other streams a value None. What
        somebody has still to read stays whole.

            topology.compact(orders.changes, after=ms.DAY)
        """
        self._check_logged("compact", stream, self.compacted)
        self.compacted.append((stream, arguments.span("compact", "after", after)))

    def _check_logged(self, call: str, stream: Stream[Any], known: Sequence[tuple[Stream[Any], Any]]) -> None:
        """Refuse what the log does not have, or what was said before."""
        if not isinstance(stream, Stream):
            raise TopologyError(f"{call}({stream!r}): that is not a stream; give it an injected stream or an output")
        self.check_own(f"{call} takes", stream)
        if stream.origin() is not stream:
            raise TopologyError(f"{call}: by(...) and map(...) are for computations; give the stream itself")
        name = getattr(stream, "name", "")
        if (isinstance(stream, InjectedStream) and not stream.injection.keep) or (isinstance(stream, Output) and not stream.keep):
            raise TopologyError(f"{call}: the log does not have the stream {name!r}, for it has keep=False; leave out one of the two")
        if any(each is stream for each, _ in known):
            raise TopologyError(f"{call}: it was called for the stream {name!r} before; call it once")

    def check_own(self, reader: str, stream: Stream[Any]) -> None:
        """Refuse a stream of another topology. Of an output that is known only when all is placed."""
        origin = stream.origin()
        if isinstance(origin, DeadLetters) and origin is not self.dead_letters:
            raise TopologyError(f"{reader} the dead letters of another topology; give it those of {self.name!r}")
        if isinstance(origin, InjectedStream) and self.injected.get(origin.name) is not origin:
            raise TopologyError(f"{reader} the stream {origin.name!r} of another topology; inject it into {self.name!r}")

    def _check_free(self, name: str, *others: str) -> None:
        """No two streams of one name: injected ones have that of their injector, an output that of its computation before its own."""
        produced = (stream for owner, node in self.nodes.items() for stream in streams_of(owner, node.computation))
        if name in {*self.injected, DeadLetters.name, *others, *produced}:
            raise TopologyError(f"two streams are called {name!r}; rename the injector, the computation or the output of one")


def streams_of(name: str, computation: Computation[Any]) -> list[str]:
    """The streams that a computation of this name produces."""
    return [f"{name}.{getattr(computation, attribute).name}" for attribute in type(computation)._outputs]
