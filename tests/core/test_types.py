"""What values and states can hold: integers of 64 bits, text that UTF-8 can spell, classes that come back as they were."""

import collections
import re
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import millstream as ms
from millstream.core import types
from millstream.testing import Driver
from tests.core.alone import Alone, Event

HALF = "\ud800"
LOCK = threading.Lock()


@dataclass
class Big:
    k: str
    n: int = 0
    inner: list[int] = field(default_factory=list)


@dataclass
class Counted:
    words: collections.Counter[str]


def injected(value: type[Any], *, key: Any = lambda value: "k", errors: ms.Errors = ms.Errors.DEAD_LETTER, **options: Any) -> Driver:
    topology = ms.Topology("test")
    stream = topology.inject(
        "in",
        ms.values([], value),
        key=key,
        timestamp=lambda value: ms.Timestamp(5_000_000_000_000),
        low_watermark=ms.BoundedDisorder(ms.SECOND),
        errors=errors,
        **options,
    )

    class Reads(ms.Computation[int]):
        def process_record(self, record: ms.Record[Any]) -> None:
            self.state += 1

    topology.compute("it", Reads()).reads(stream)
    driver = Driver(topology, now=ms.Timestamp(5_000_000_000_000), ship=False)
    driver.stream = stream  # type: ignore[attr-defined]
    return driver


@pytest.mark.parametrize("large", [2**63, -(2**63) - 1, 10**40])
def test_an_integer_of_more_than_64_bits_is_refused_where_it_comes_in(large: int) -> None:
    driver = injected(Big)
    texts = [f'{{"k":"a","n":{n},"inner":[1,{m}]}}' for n, m in ((1, 1), (large, 1), (2, large), (2**63 - 1, -(2**63)))]
    driver.feed(driver.stream, [text.encode() for text in texts])  # type: ignore[attr-defined]
    assert driver.state("it", "k") == 2
    assert [f"{large} is an integer of more than 64 bits" in letter.reason for letter in driver.dead_letters()] == [True, True]


def test_digits_in_text_and_fractions_are_no_integers() -> None:
    driver = injected(Big)
    driver.feed(driver.stream, [Big("123456789012345678901234567890")] * 3)  # type: ignore[attr-defined]
    assert (driver.state("it", "k"), driver.dead_letters()) == (3, [])


def test_only_what_is_typed_as_an_integer_counts() -> None:
    """Floats, decimals and fields that nobody asked for may be as large as they are; an integer of 19 digits may be right."""

    class Wide(msgspec.Struct):
        id: int
        amount: float = 0.0
        exact: Decimal = Decimal(0)

    driver = injected(Wide)
    for text in (
        b'{"id":1790000000000000000,"amount":100000000000000000000}',
        b'{"id":9223372036854775807,"exact":12345678901234567890123}',
        b'{"id":1,"trace":17446744073709551615}',
    ):
        driver.feed(driver.stream, [text])  # type: ignore[attr-defined]
    assert (driver.state("it", "k"), driver.dead_letters()) == (3, [])
    driver = injected(dict[int, int])
    driver.feed(driver.stream, [b'{"10000000000000000000000000":1}'])  # type: ignore[attr-defined]
    assert len(driver.dead_letters()) == 1


def test_any_object_may_be_carried() -> None:
    driver = injected(dict[str, object])  # type: ignore[arg-type]
    driver.feed(driver.stream, [{"a": {"b": 1}}])  # type: ignore[attr-defined]
    assert driver.state("it", "k") == 1


def produces(kind: Any, value: Any, *, key: str | None = None) -> Alone:
    class Produces(ms.Computation[int]):
        out: ms.Output[kind]

        def process_record(self, record: ms.Record[Event]) -> None:
            self.out.produce(value, timestamp=record.timestamp, key=key)

    return Alone(Produces())


@pytest.mark.parametrize(("kind", "value"), [(int, 2**63), (Big, Big("a", 1, [-(2**63) - 1])), (dict[str, int], {"a": 2**64})])
def test_an_integer_of_more_than_64_bits_is_not_produced(kind: Any, value: Any) -> None:
    with pytest.raises(ms.RecordError, match="is an integer of more than 64 bits; carry it as text"):
        produces(kind, value).send(Event())


@pytest.mark.parametrize(
    ("kind", "value"), [(int, 2**63 - 1), (Big, Big("9" * 30, -(2**63))), (str, "9" * 30), (Decimal, Decimal("9" * 30)), (float, 1e30)]
)
def test_what_fits_is_produced(kind: Any, value: Any) -> None:
    it = produces(kind, value)
    it.send(Event())
    assert it.tally.produced == 1


# Text.


@pytest.mark.parametrize("options", [{"key": lambda value: HALF}, {"partition": lambda value: HALF}])
def test_a_key_or_partition_that_cannot_be_spelled_is_refused(options: dict[str, Any]) -> None:
    driver = injected(Big, **options)
    driver.feed(driver.stream, [Big("a")])  # type: ignore[attr-defined]
    (letter,) = driver.dead_letters()
    assert re.search(r"its (key|partition) is '\\ud800', which has halves of characters", letter.reason)


def test_a_key_of_a_record_or_a_tag_that_cannot_be_spelled_is_refused() -> None:
    class Tags(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None:
            self.set_timer(HALF, at=record.timestamp + ms.DAY)

    with pytest.raises(ms.RecordError, match=r"set_timer: tag is '\\ud800', which has halves of characters"):
        Alone(Tags()).send(Event())
    with pytest.raises(ms.RecordError, match=r"out.produce: key is '\\ud800', which has halves of characters"):
        produces(int, 1, key=HALF).send(Event())
    it = Alone(Tags())
    with pytest.raises(ms.TopologyError, match=r"put: key is '\\ud800'"):
        it.driver.put(it.events, Event(), key=HALF, timestamp=ms.Timestamp(1))
    with pytest.raises(ms.RecordError, match=r"by\(...\) returned '\\ud800'"):
        Alone(Tags(), read=lambda stream: stream.by(lambda event: HALF)).send(Event())


def test_other_characters_are_text() -> None:
    assert all(map(types.is_text, ["", "a", "ä", "日本", "\U0001f600"]))
    assert not any(map(types.is_text, [HALF, None, 3, b"a"]))


# Classes that do not come back as they were.


@pytest.mark.parametrize(
    "kind", [collections.Counter[str], collections.OrderedDict[str, int], collections.defaultdict[str, int], Counted, complex | None]
)
def test_a_class_that_would_not_come_back_is_refused_at_the_start(kind: Any) -> None:
    class Keeps(ms.Computation[kind]):
        def initial_state(self) -> Any:
            return None

        def process_record(self, record: ms.Record[Event]) -> None: ...

    with pytest.raises(
        ms.TopologyError, match=r"the state of Keeps cannot be kept: values of \w+ would not come back as such; define encode_state"
    ):
        Alone(Keeps())
    with pytest.raises(
        ms.TopologyError, match=r"stream 'it.out' cannot carry values of .*: values of \w+ would not come back as such; use a dict"
    ):
        produces(kind, None)
    with pytest.raises(ms.TopologyError, match=r"stream 'in' cannot carry values of .*: values of \w+ would not come back as such"):
        injected(kind)


# Unions.


@pytest.mark.parametrize("kind", [int | None, int | str, int | str | None])
def test_a_stream_of_a_union_can_be_read(kind: Any) -> None:
    class Reads(ms.Computation[list[str]]):
        def process_record(self, record: ms.Record[kind]) -> None:
            self.state.append(str(record.value))

    it = produces(kind, 5)
    it.topology.compute("reads", Reads()).reads(it.topology.nodes["it"].computation.out)  # type: ignore[attr-defined]
    driver = Driver(it.topology, ship=False)
    driver.send(it.events, Event())
    driver.advance()
    assert driver.state("reads", "k") == ["5"]


def test_one_member_too_many_is_named() -> None:
    class Reads(ms.Computation[int]):
        def process_record(self, record: ms.Record[int]) -> None: ...

    it = produces(int | None, 5)
    with pytest.raises(ms.TopologyError, match=r"'reads' reads a stream of None, but Reads.process_record takes int; widen"):
        it.topology.compute("reads", Reads()).reads(it.topology.nodes["it"].computation.out)  # type: ignore[attr-defined]


# What travels.


def test_a_lock_that_a_base_class_uses_is_found_where_it_is() -> None:
    class Locked(ms.Computation[int]):
        def process_record(self, record: ms.Record[Event]) -> None:
            with LOCK:
                self.state += 1

    class Derived(Locked):
        pass

    topology = Alone(Derived()).topology
    with pytest.raises(ms.TopologyError, match=r"the global 'LOCK' in .*Locked.process_record"):
        Driver(topology)
