"""What each aggregate makes of records: however they are ordered and grouped, what plain Python makes of all of them."""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import numpy
import pytest

import millstream as ms
from millstream import aggregate
from millstream.aggregate.live import alive, encode

SPAN = aggregate.Span(ms.Timestamp(0), ms.Timestamp(0) + 10 * ms.SECOND)


@dataclass(frozen=True)
class Reading:
    value: float = 0.0
    name: str = ""


@dataclass(frozen=True)
class Both:
    how_many: int
    sum: float


def records(*values: float) -> list[ms.Record[Reading]]:
    return [ms.Record("k", Reading(value, f"r{n}"), ms.Timestamp(1000 + n)) for n, value in enumerate(values)]


def number(reading: Reading) -> float:
    return reading.value


def kept_again(of: aggregate.Aggregate[Any, Any, Any], so_far: Any) -> Any:
    """As it comes back from where it is kept."""
    return msgspec.msgpack.decode(encode(so_far), type=of.kept(Reading))


def grouped(of: aggregate.Aggregate[Any, Any, Any], of_all: Sequence[ms.Record[Any]], chance: random.Random) -> Any:
    """In another order, in several parts that are merged, kept in between."""
    parts: list[Any] = [of.zero() for _ in range(chance.randrange(1, 5))]
    for record in chance.sample(of_all, len(of_all)):
        place = chance.randrange(len(parts))
        parts[place] = of.add(parts[place], record)
        if chance.random() < 0.3:
            parts[place] = kept_again(of, parts[place])
    whole = of.zero()
    for part in parts:
        before = encode(part)
        whole = of.merge(whole, part)
        assert encode(part) == before  # what is merged into another stays as it is
    return of.result(kept_again(of, whole), SPAN)


def exact_deviation(values: list[float]) -> float:
    mean = sum(map(Fraction, values), Fraction()) / len(values)
    return math.sqrt(sum(((Fraction(value) - mean) ** 2 for value in values), Fraction()) / len(values))


PLAIN: dict[str, tuple[aggregate.Aggregate[Reading, Any, Any], Callable[[list[float]], Any]]] = {
    "count": (aggregate.count(), len),
    "rate": (aggregate.rate(), lambda values: len(values) / 10),
    "rate per minute": (aggregate.rate(per=ms.MINUTE), lambda values: len(values) * 6),
    "sum": (aggregate.sum(number), lambda values: float(sum(map(Fraction, values), Fraction()))),
    "sum of int": (aggregate.sum(lambda r: int(r.value), int), lambda values: sum(map(int, values))),
    "sum of Decimal": (aggregate.sum(lambda r: Decimal(r.value), Decimal), lambda values: sum(map(Decimal, values), Decimal())),
    "mean": (aggregate.mean(number), lambda values: float(sum(map(Fraction, values), Fraction())) / len(values)),
    "stddev": (aggregate.stddev(number), exact_deviation),
    "min": (aggregate.min(number), min),
    "max": (aggregate.max(number), max),
    "max of int": (aggregate.max(lambda r: int(r.value), int), lambda values: max(map(int, values))),
    "first": (aggregate.first(Reading), lambda values: Reading(values[0], "r0")),
    "last": (aggregate.last(Reading), lambda values: Reading(values[-1], f"r{len(values) - 1}")),
    "collect": (aggregate.collect(Reading), lambda values: [Reading(value, f"r{n}") for n, value in enumerate(values)]),
    "combine": (aggregate.combine(Both, aggregate.count(), aggregate.sum(number)), lambda values: Both(len(values), math.fsum(values))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_order_and_grouping_change_nothing(name: str) -> None:
    of, plain = PLAIN[name]
    chance = random.Random(f"{name} 5")
    for case in range(60):
        values = [chance.choice([chance.uniform(-1, 1), chance.uniform(1e6, 1e6 + 1), float(chance.randrange(-9, 9))]) for _ in range(12)]
        if "Decimal" in name:
            values = [float(round(value)) for value in values]  # decimals round too, beyond 28 digits
        found = grouped(of, records(*values), chance)
        assert found == plain(values), (case, values)
        assert isinstance(found, of.returned(Reading)) if isinstance(of.returned(Reading), type) else True


@pytest.mark.parametrize("name", ["count", "rate", "sum", "sum of int", "sum of Decimal", "mean", "stddev", "combine"])
def test_what_is_taken_out_was_never_there(name: str) -> None:
    of, plain = PLAIN[name]
    assert isinstance(of, aggregate.Reversible)
    chance = random.Random(f"{name} 6")
    for _ in range(60):
        values = [chance.choice([1e9, 1e-9, 1.0]) * chance.randrange(1, 99) for _ in range(10)]
        if "Decimal" in name:
            values = [float(round(value)) for value in values]
        so_far: Any = of.zero()
        kept, gone = records(*values), records(*(3 * value for value in values))
        for one in chance.sample([*kept, *gone], 20):
            so_far = kept_again(of, of.add(so_far, one))
        for one in chance.sample(gone, len(gone)):
            so_far = kept_again(of, of.remove(so_far, one))
        assert of.result(so_far, SPAN) == plain(values)


def test_nothing_left_is_kept_as_nothing() -> None:
    for name in ("count", "sum", "mean", "stddev", "combine"):
        of = PLAIN[name][0]
        assert isinstance(of, aggregate.Reversible)
        so_far: Any = of.zero()
        for one in records(0.1, 1e17, 0.3):
            so_far = of.add(so_far, one)
        for one in records(0.1, 1e17, 0.3):
            so_far = of.remove(so_far, one)
        assert encode(so_far) == encode(of.zero()), name


def test_digits_that_sums_of_squares_would_lose_are_kept() -> None:
    values = [1e9 + n % 2 for n in range(1000)]
    so_far: Any = (of := aggregate.stddev(number)).zero()
    for one in records(*values):
        so_far = of.add(so_far, one)
    assert of.result(so_far, SPAN) == 0.5 == statistics.pstdev(values)


def test_whole_numbers_are_added_as_whole_numbers() -> None:
    of = aggregate.sum(lambda r: int(r.value) + 2**53, int)
    so_far: Any = of.zero()
    for one in records(1, 1, 1):
        so_far = of.add(so_far, one)
    assert of.result(so_far, SPAN) == 3 * 2**53 + 3


def test_a_sum_of_floats_has_few_parts() -> None:
    chance, of = random.Random(1), aggregate.sum(number)
    so_far: Any = of.zero()
    for one in records(*(chance.uniform(-1, 1) * 10.0 ** chance.randrange(-30, 30) for _ in range(5000))):
        so_far = of.add(so_far, one)
    assert len(so_far) < 20
    so_far = of.zero()
    for one in records(*(round(chance.uniform(0, 1000), 2) for _ in range(5000))):
        so_far = of.add(so_far, one)
    assert len(so_far) < 10


@pytest.mark.parametrize("name", ["mean", "stddev", "min", "max", "first", "last"])
def test_some_have_no_value_of_nothing(name: str) -> None:
    of = PLAIN[name][0]
    with pytest.raises(aggregate.EmptySpan, match=f"there is no {name} of nothing"):
        of.result(of.zero(), SPAN)


@pytest.mark.parametrize("name", ["sum", "mean", "stddev", "min", "max"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_an_error_of_its_record(name: str, value: float) -> None:
    of = PLAIN[name][0]
    so_far = of.add(of.zero(), records(1.0)[0])
    with pytest.raises(ValueError, match="not a finite number"):
        of.add(so_far, records(value)[0])


@pytest.mark.parametrize("text", ["12", "1_0", b"3", "nan"])
@pytest.mark.parametrize("name", ["sum", "mean", "stddev"])
def test_text_is_no_number_though_it_may_be_of_digits(name: str, text: Any) -> None:
    of = PLAIN[name][0]
    with pytest.raises(TypeError, match="is not a number; give one, such as"):
        of.add(of.zero(), records(text)[0])


@pytest.mark.parametrize("value", [3, True, Decimal("0.5"), Fraction(1, 4), numpy.float32(1.5), numpy.int64(7)])
def test_numbers_of_any_kind_are_added(value: Any) -> None:
    of = aggregate.sum(number)
    assert of.result(of.add(of.zero(), records(value)[0]), SPAN) == float(value)


@pytest.mark.parametrize("value", ["NaN", "sNaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("make", [aggregate.sum, aggregate.min, aggregate.max])
def test_a_decimal_that_is_not_finite_is_an_error_of_its_record(make: Any, value: str) -> None:
    of = make(lambda r: Decimal(r.name), Decimal)
    so_far = of.zero()
    with pytest.raises(ValueError, match="not a finite number"):
        so_far = of.add(so_far, ms.Record("k", Reading(name=value), ms.Timestamp(1)))
    so_far = of.add(so_far, ms.Record("k", Reading(name="1e400"), ms.Timestamp(2)))
    assert of.result(so_far, SPAN) == Decimal("1e400")


def both(count: int, total: float) -> Both:
    return Both(count, total)


class Maker:
    def __call__(self, count: int, total: float) -> Both:
        return Both(count, total)

    @classmethod
    def made(cls, count: int, total: float) -> Both:
        return Both(count, total)


@pytest.mark.parametrize("make", [Both, both, Maker(), Maker.made, functools.partial(both), functools.partial(functools.partial(both))])
def test_what_is_combined_is_of_the_type_that_is_annotated(make: Any) -> None:
    assert aggregate.combine(make, aggregate.count(), aggregate.sum(number)).returned(Reading) is Both


def test_of_the_same_time_the_first_that_came_is_first_and_the_last_last() -> None:
    at = ms.Timestamp(5)
    one, other = ms.Record("k", Reading(name="one"), at), ms.Record("k", Reading(name="other"), at)
    first, last = aggregate.first(Reading), aggregate.last(Reading)
    assert first.result(first.add(first.add(first.zero(), one), other), SPAN).name == "one"
    assert last.result(last.add(last.add(last.zero(), one), other), SPAN).name == "other"


class Words(aggregate.Aggregate[Reading, set[str], int]):
    """One that keeps text, and works on a set."""

    loads = 0

    def zero(self) -> set[str]:
        return set()

    def add(self, so_far: set[str], record: ms.Record[Reading], /) -> set[str]:
        so_far.add(record.value.name)
        return so_far

    def merge(self, one: set[str], other: set[str], /) -> set[str]:
        return one | other

    def result(self, so_far: set[str], span: aggregate.Span, /) -> int:
        return len(so_far)

    def dump(self, so_far: set[str], /) -> str:
        return " ".join(sorted(so_far))

    def load(self, dumped: str, /) -> set[str]:
        Words.loads += 1
        return set(dumped.split())

    def kept(self, value: Any) -> Any:
        return str


def test_what_is_dumped_is_loaded_at_its_first_use_only() -> None:
    of = alive(Words())
    so_far: Any = of.zero()
    for one in records(1, 2, 3):
        so_far = of.add(so_far, one)
    so_far = kept_again(of, so_far)
    assert so_far == "r0 r1 r2"
    Words.loads = 0
    for one in records(1, 2, 3, 4):
        so_far = of.add(so_far, one)
    assert (of.result(so_far, SPAN), Words.loads) == (4, 1)


def test_parts_that_are_dumped_may_be_combined() -> None:
    of = aggregate.combine(Both, aggregate.count(), Words())
    so_far: Any = of.zero()
    for one in records(1, 2):
        so_far = kept_again(of, of.add(so_far, one))
    assert so_far == (2, "r0 r1")
    assert of.result(so_far, SPAN) == Both(2, 2)


def test_the_types_are_found() -> None:
    assert (aggregate.count().kept(Reading), aggregate.count().returned(Reading)) == (int, int)
    assert aggregate.first(Reading).returned(Reading) is Reading
    assert aggregate.collect(Reading).returned(Reading) == list[Reading]
    assert aggregate.max(lambda r: r.name, str).kept(Reading) == list[str]
    assert Words().returned(Reading) is int
    assert aggregate.combine(Both, aggregate.count(), aggregate.sum(number)).returned(Reading) is Both


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: aggregate.sum(3), r"^sum\(3\): give a function of the value"),  # type: ignore[call-overload]
        (lambda: aggregate.sum(lambda: 3.0), "cannot be called with the value alone"),  # type: ignore[call-overload]
        (lambda: aggregate.sum(number, str), "give int, decimal.Decimal, or nothing"),  # type: ignore[call-overload]
        (lambda: aggregate.max(number, "int"), "give the class of what is compared"),  # type: ignore[call-overload]
        (lambda: aggregate.rate(per=0 * ms.SECOND), "positive ms.Duration"),
        (lambda: aggregate.first(3), "not a type"),  # type: ignore[arg-type]
        (lambda: aggregate.combine(Both, aggregate.count()), "at least two"),  # type: ignore[call-overload]
        (lambda: aggregate.combine(Both, aggregate.count, aggregate.count()), "is a function that makes one: call it"),  # type: ignore[call-overload]
        (lambda: aggregate.combine(Both, aggregate.count(), aggregate.count(), aggregate.count()), "cannot be called with"),  # type: ignore[call-overload]
        (lambda: aggregate.combine(3, aggregate.count(), aggregate.count()), "give a class or a function"),  # type: ignore[call-overload]
        (lambda: aggregate.combine(lambda a, b: (a, b), aggregate.count(), aggregate.count()), "nobody says what it returns.*give a class"),
        (lambda: aggregate.combine(divmod, aggregate.count(), aggregate.count()), r"combine\(divmod, \.\.\.\): nobody says"),
    ],
)
def test_what_cannot_be_right_is_refused_while_building(make: Callable[[], object], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        make()


def test_what_is_of_another_type_is_an_error_of_its_record() -> None:
    whole = aggregate.sum(lambda r: r.value, int)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"1.5 is not an int"):
        whole.add(0, records(1.5)[0])
    greatest = aggregate.max(lambda r: r.name)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="name the type of what is compared"):
        greatest.add(greatest.zero(), records(1.5)[0])
