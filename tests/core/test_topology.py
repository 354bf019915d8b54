"""A wrong topology is refused while it is being built, and the message says how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.testing import Driver
from tests.core.alone import Event, inject
from tests.core.placed import Add, Anything, Count


class Both(ms.Computation[int]):
    def process_record(self, record: ms.Record[int | Event]) -> None:
        self.state += 1


class Vague(ms.Computation[int]):
    def process_record(self, record: Any) -> None:
        self.state += 1


class Unsaid(ms.Computation[int]):
    def process_record(self, record) -> None:  # type: ignore[no-untyped-def]
        self.state += 1


@pytest.fixture
def topology() -> ms.Topology:
    return ms.Topology("test")


@pytest.fixture
def events(topology: ms.Topology) -> ms.Stream[Event]:
    return inject(topology)


def refused(message: str) -> Any:
    return pytest.raises(ms.TopologyError, match=f"^{message}$")


# Names.


@pytest.mark.parametrize("name", ["", " a", "-a", ".a", "a/b", "a'b", "a\n", "a=b", None, 5])
def test_a_name_is_letters_digits_and_a_few_marks(name: Any) -> None:
    topology = ms.Topology("test")
    stream = inject(topology)
    attempts: dict[str, Callable[[], object]] = {
        "topology": lambda: ms.Topology(name),
        "injector": lambda: inject(topology, name),
        "computation": lambda: topology.compute(name, Count()),
        "delivery": lambda: topology.deliver(name, stream, ms.memory()),
    }
    for what, attempt in attempts.items():
        with pytest.raises(ms.TopologyError) as caught:
            attempt()
        assert (
            str(caught.value)
            == f"{'an' if what == 'injector' else 'a'} {what} cannot be called {name!r}; use letters, digits, spaces, '-', '_' and '.'"
        )


@pytest.mark.parametrize("name", ["a", "per-second", "per second", "v1.2", "_a", "2nd", "größe", "鍵"])
def test_a_good_name_is_taken_as_it_is(name: str, topology: ms.Topology, events: ms.Stream[Event]) -> None:
    count = Count()
    topology.compute(name, count).reads(events)
    topology.deliver(name, count.counts, ms.memory())
    assert compile_topology(topology).nodes[name].outputs == {"counts": f"{name}.counts", "late": f"{name}.late"}


def test_two_injectors_cannot_have_one_name(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    with refused("two injectors are called 'events'; choose another name for one"):
        inject(topology)


def test_an_injector_cannot_have_the_name_of_the_fence(topology: ms.Topology) -> None:
    """Both would be writers of one table."""
    with refused("an injector cannot be called 'fence': its tables use the word themselves; choose another name"):
        inject(topology, "fence")


def test_two_computations_cannot_have_one_name(topology: ms.Topology) -> None:
    topology.compute("count", Count())
    with refused("two computations are called 'count'; a name keeps state apart: choose another"):
        topology.compute("count", Count())


def test_two_deliveries_cannot_have_one_name(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    topology.deliver("out", events, ms.memory())
    with refused("two deliveries are called 'out'; choose another name for one"):
        topology.deliver("out", events, ms.memory())


# Injectors and deliveries.


def test_a_source_is_made_by_millstream(topology: ms.Topology) -> None:
    with refused(r"injector 'it': \[1\] is not a source; make one with ms.files, ms.kafka, .*, or derive one of your own from ms.Source"):
        topology.inject("it", [1], key=str, timestamp=ms.Timestamp, low_watermark=ms.BoundedDisorder(ms.SECOND))  # type: ignore[arg-type]


def test_a_low_watermark_is_one_of_three_promises(topology: ms.Topology) -> None:
    with refused(r"injector 'it': low_watermark is ms.BoundedDisorder\(...\), ms.Explicit\(...\) or ms.Timeless\(\)"):
        topology.inject("it", ms.values([1], int), key=str, timestamp=ms.Timestamp, low_watermark=ms.SECOND)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"key": "user"}, {"timestamp": "user"}, {"partition": "user"}, {"low_watermark": ms.Explicit("user")}])
def test_a_source_without_columns_needs_functions(options: dict[str, Any], topology: ms.Topology) -> None:
    usual = {"key": str, "timestamp": ms.Timestamp, "low_watermark": ms.BoundedDisorder(ms.SECOND), **options}
    for source in (ms.values([1], int), ms.files("a.jsonl", int), ms.files("a.csv", int)):
        with refused("injector 'it': its source has no column 'user'; give a function of the value, such as lambda v: v.user"):
            topology.inject("it", source, **usual)
    topology.inject("it", ms.files("a.parquet", int), **usual)
    topology.inject("frame", ms.dataframe(lambda spark: spark.table("a"), int), **usual)
    assert set(topology.injected) == {"it", "frame"}


def test_a_file_source_must_know_its_format() -> None:
    with pytest.raises(
        ms.TopologyError, match=r"^what do the files 'a/\*' hold\? End the path in one of .jsonl, .*or say format=ms.Format.JSON_LINES$"
    ):
        ms.files("a/*", Event)
    assert ms.files("a/*", Event, format=ms.Format.CSV).format is ms.Format.CSV  # type: ignore[attr-defined]
    assert ms.files("a/*.ndjson", Event).format is ms.Format.JSON_LINES  # type: ignore[attr-defined]


def test_a_target_is_made_by_millstream(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    with refused(
        r"delivery 'it': 'folder/' is not a target; make one with ms.delta, ms.delta_rows, ms.to_files, ms.console, ms.function "
        r"or ms.memory, or derive one of your own from ms.Target"
    ):
        topology.deliver("it", events, "folder/")  # type: ignore[arg-type]


def test_files_are_not_delivered_as_csv() -> None:
    with refused("files are delivered as Format.JSON_LINES or Format.PARQUET"):
        ms.to_files("folder/", format=ms.Format.CSV)


@pytest.mark.parametrize("change", [lambda s: s.by(str), lambda s: s.map(str)], ids=["by", "map"])
def test_only_a_stream_itself_is_delivered(change: Any, topology: ms.Topology, events: ms.Stream[Event]) -> None:
    with refused(r"delivery 'it': by\(...\) and map\(...\) are for computations; deliver the stream itself"):
        topology.deliver("it", change(events), ms.memory())


def test_by_and_map_take_functions(events: ms.Stream[Event]) -> None:
    with refused(r"by\('user'\): give a function of the value that returns the key, such as lambda click: click.user"):
        events.by("user")  # type: ignore[arg-type]
    with refused(r"map\(5\): give a function of the value"):
        events.map(5)  # type: ignore[arg-type]


def test_a_topology_without_input_is_refused(topology: ms.Topology) -> None:
    with refused(r"topology 'test' has no input; bring one in with topology.inject\(...\)"):
        compile_topology(topology)


# Computations.


@pytest.mark.parametrize("it", [Count, object(), None, lambda record: None], ids=["class", "object", "None", "function"])
def test_only_an_instance_of_a_computation_is_placed(it: Any, topology: ms.Topology) -> None:
    with pytest.raises(ms.TopologyError, match=r"^'it': .* is not a ms.Computation; derive its class from it$"):
        topology.compute("it", it)


def test_one_instance_has_one_place(topology: ms.Topology) -> None:
    count = Count()
    topology.compute("one", count)
    with refused("'one' and 'other' are the same instance of Count; make one for each"):
        topology.compute("other", count)


@dataclass
class Needs:
    field: int


class NeedsState(ms.Computation[Needs]):
    def process_record(self, record: ms.Record[Event]) -> None: ...


class EitherState(ms.Computation[int | str]):
    def process_record(self, record: ms.Record[Event]) -> None: ...


def test_a_state_must_be_able_to_begin(topology: ms.Topology) -> None:
    with refused(
        r"NeedsState cannot begin: .*missing 1 required positional argument: 'field'; "
        r"give the fields of Needs defaults, keep Needs \| None, or define initial_state"
    ):
        topology.compute("it", NeedsState())
    with pytest.raises(ms.TopologyError, match=r"^EitherState cannot begin: .*or define initial_state$"):
        topology.compute("it", EitherState())
    assert topology.nodes == {}


def test_a_state_that_msgspec_cannot_keep_needs_a_codec(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    class Two(ms.Computation[Needs | dict[str, int] | None]):
        def process_record(self, record: ms.Record[Event]) -> None: ...

    topology.compute("it", Two()).reads(events)
    with pytest.raises(ms.TopologyError, match=r"^a state of .* cannot be kept: .*; define encode_state and decode_state$"):
        Driver(topology)


def test_a_codec_is_whole() -> None:
    class Half(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None: ...
        def encode_state(self, state: int) -> bytes:
            return b"x"

    with refused("Half has encode_state but no decode_state; define both"):
        Half().decode_state(b"x")


# Outputs.


def test_an_output_says_what_it_carries() -> None:
    with refused("Untyped.out: say what it carries, such as Output\\[int\\]"):

        class Untyped(ms.Computation[int]):
            out: ms.Output

            def process_record(self, record: ms.Record[Event]) -> None: ...


def test_an_output_cannot_have_a_name_of_the_computation() -> None:
    for name in ("key", "now", "state", "set_timer"):
        with refused(f"Clash.{name}: '{name}' belongs to Computation; choose another name"):
            type("Clash", (ms.Computation,), {"__annotations__": {name: ms.Output[int]}, "process_record": lambda self, record: None})


def test_the_type_of_an_output_must_be_known() -> None:
    with pytest.raises(ms.TopologyError, match=r"^Unknown: Nowhere is not known yet; define it above the class"):
        type("Unknown", (ms.Computation,), {"__annotations__": {"out": "ms.Output[Nowhere]"}, "__module__": __name__})


def test_values_that_cannot_be_carried_are_refused(topology: ms.Topology) -> None:
    stream = topology.inject(
        "it", ms.values([], Needs | dict[str, int]), key=str, timestamp=ms.Timestamp, low_watermark=ms.BoundedDisorder(ms.SECOND)
    )
    topology.compute("any", Anything()).reads(stream)
    with pytest.raises(ms.TopologyError, match=r"^values of .*Needs.* cannot be carried in a stream: "):
        Driver(topology)


# Reading.


def test_a_computation_reads_something(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    with refused(r"'it' reads nothing; name a stream in reads\(...\)"):
        topology.compute("it", Count()).reads()
    with refused(r"'it' reads nothing; add .reads\(stream\) where it is placed"):
        compile_topology(topology)


def test_all_streams_are_named_in_one_call(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    node = topology.compute("it", Count())
    node.reads(events)
    with refused(r"'it' has its streams already; name all of them in one call of reads\(...\)"):
        node.reads(events)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_stream_must_carry_what_its_reader_takes(mapped: bool, topology: ms.Topology, events: ms.Stream[Event]) -> None:
    wrong: Any = events.map(str) if mapped else events
    kind = "str" if mapped else "Event"
    with refused(f"'it' reads a stream of {kind}, but Add.process_record takes int; widen its annotation or leave the stream out"):
        topology.compute("it", Add()).reads(wrong)


def test_what_a_reader_takes_must_be_carried_by_a_stream(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    with refused("Both.process_record takes int, but no stream that 'it' reads carries it; add one, or take it out of the annotation"):
        topology.compute("it", Both()).reads(events)


def test_right_types_are_taken(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    count, add = Count(), Add()
    topology.compute("count", count).reads(events)
    topology.compute("add", add).reads(count.counts, add.sums)
    topology.compute("both", Both()).reads(events.by(lambda event: event.word), add.sums)
    topology.compute("unknown", Both()).reads(events.map(lambda event: event.at))
    anything = Anything()
    topology.compute("any", anything).reads(events, count.counts)
    topology.compute("of any", Both()).reads(anything.whatever)
    topology.compute("vague", Vague()).reads(events, count.counts)
    topology.compute("unsaid", Unsaid()).reads(events, count.counts)
    graph = compile_topology(topology)
    assert [(read.computation, read.stream.name) for read in graph.inputs] == [
        ("count", "events"),
        ("add", "count.counts"),
        ("add", "add.sums"),
        ("both", "events"),
        ("both", "add.sums"),
        ("unknown", "events"),
        ("any", "events"),
        ("any", "count.counts"),
        ("of any", "any.whatever"),
        ("vague", "events"),
        ("vague", "count.counts"),
        ("unsaid", "events"),
        ("unsaid", "count.counts"),
    ]


def test_a_stream_without_producer_is_refused(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    topology.compute("add", Add()).reads(Count().counts)
    with refused(r"computation 'add' reads Count.counts, which has no producer; place it with topology.compute\(name, count\)"):
        compile_topology(topology)


def test_a_delivery_without_producer_is_refused(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    topology.deliver("counts", Count().counts, ms.memory())
    with refused(r"delivery 'counts' reads Count.counts, which has no producer; place it with topology.compute\(name, count\)"):
        compile_topology(topology)


def test_late_records_are_diverted_to_an_output_of_the_same_computation(topology: ms.Topology, events: ms.Stream[Event]) -> None:
    with refused("'it' diverts late records to an output of another computation; give it an output of its own for them"):
        topology.compute("it", Count()).reads(events, late=ms.Divert(Count().late))
