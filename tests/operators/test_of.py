"""What operators are made with and read is checked while building, with what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType, Optional

import pytest

import millstream as ms
from millstream import aggregate
from millstream.join import AsOf, Join, Lookup
from millstream.table import Grouped, Newest, TableJoin, View


@dataclass(frozen=True)
class Order:
    id: str
    customer: str


@dataclass(frozen=True)
class Rush(Order):
    """One that is urgent."""


@dataclass(frozen=True)
class Customer:
    id: str


def stream(kind: Any, name: str = "in") -> Any:
    topology = ms.Topology("shop")
    return topology.inject(
        name, ms.values([], kind), key=lambda _: "", timestamp=lambda _: ms.Timestamp(0), low_watermark=ms.BoundedDisorder(ms.SECOND)
    )


def table(kind: Any) -> Any:
    return Newest(kind).changes


def joined() -> TableJoin[Order, Customer]:
    return TableJoin(
        Order, Customer, left_key=lambda order: order.id, reference=lambda order: order.customer, right_key=lambda customer: customer.id
    )


JOIN = Join(Order, Customer, before=ms.SECOND, after=ms.SECOND)
LOOKUP, AS_OF = Lookup(Order, Customer), AsOf(Order, Customer)
GROUPED = Grouped(Order, lambda order: order.customer, aggregate.count())

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: JOIN.of(stream(Customer), stream(Order)), r"Join.of: the left side is a stream of Customer; give one of Order, or map it"),
    (lambda: JOIN.of(stream(Order), stream(Order)), r"Join.of: the right side is a stream of Order; give one of Customer"),
    (lambda: JOIN.of(stream(Order), table(Customer)), r"the right side is a stream of .*Change.*; give one of Customer"),
    (lambda: JOIN.of(stream(Order), [Customer("a")]), r"the right side is \[.*\], which is not a stream; give one of Customer"),  # type: ignore[arg-type]
    (lambda: LOOKUP.of(stream(Customer), table=table(Customer)), r"Lookup.of: the stream is a stream of Customer; give one of Order"),
    (
        lambda: LOOKUP.of(stream(Order), table=stream(Customer)),
        r"Lookup.of: table= is a stream of Customer; give a table of Customer, .* stream of ms.Change\[Customer\]; Newest makes one",
    ),
    (lambda: LOOKUP.of(stream(Order), table=table(Order)), r"Lookup.of: table= is .*Order.*; give a table of Customer"),
    (lambda: AS_OF.of(stream(Customer), versions=stream(Customer)), r"AsOf.of: the stream is a stream of Customer; give one of Order"),
    (lambda: AS_OF.of(stream(Order), versions=stream(Order)), r"AsOf.of: versions= is a stream of Order; give one of Customer"),
    (lambda: AS_OF.of(stream(Order), versions=table(Customer)), r"AsOf.of: versions= is a stream of .*Change.*; give one of Customer"),
    (lambda: AS_OF.of(stream(Order), table=stream(Customer)), r"AsOf.of: table= is a stream of Customer; give a table of Customer"),
    (lambda: GROUPED.of(stream(Order)), r"Grouped.of: the table is a stream of Order; give a table of Order"),
    (lambda: GROUPED.of(table(Customer)), r"Grouped.of: the table is .*Customer.*; give a table of Order"),
    (lambda: joined().of(table(Customer), table(Order)), r"TableJoin.of: the left side is .*Customer.*; give a table of Order"),
    (
        lambda: joined().of(table(Order), stream(Customer)),
        r"TableJoin.of: the right side is a stream of Customer; give a table of Customer",
    ),
]


@pytest.mark.parametrize(("build", "why"), WRONG)
def test_a_stream_of_another_type_is_refused(build: Callable[[], object], why: str) -> None:
    with pytest.raises(ms.TopologyError, match=why):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: JOIN.of(stream(Rush), stream(Customer).map(lambda customer: customer)),
        lambda: LOOKUP.of(stream(Rush), table=stream(ms.Change[Customer])),
        lambda: LOOKUP.of(stream(Order).by(lambda order: order.customer), table=table(Customer).by(lambda change: "")),
        lambda: AS_OF.of(stream(Order), versions=stream(Any)),
        lambda: AS_OF.of(stream(Rush), table=table(Customer)),
        lambda: GROUPED.of(table(Rush)),
        lambda: joined().of(table(Rush), table(Customer)),
        lambda: Join(object, Any, before=ms.SECOND, after=ms.SECOND).of(stream(int), stream(str)),  # type: ignore[arg-type]
    ],
)
def test_one_that_a_type_checker_would_take_is_not(build: Callable[[], object]) -> None:
    build()


Maybe = NewType("Maybe", Optional[int])  # type: ignore[valid-newtype]  # noqa: UP045


class Balances(View[Order, int | None]):
    def apply(self, row: int | None, record: ms.Record[Order]) -> int | None:
        return row


class MaybeSum(aggregate.Reversible[Order, int, int | None]):
    def zero(self) -> int:
        return 0

    def add(self, so_far: int, record: ms.Record[Order], /) -> int:
        return so_far

    def remove(self, so_far: int, record: ms.Record[Order], /) -> int:
        return so_far

    def merge(self, one: int, other: int, /) -> int:
        return one

    def result(self, so_far: int, span: aggregate.Span, /) -> int | None:
        return None


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Newest(int | None), r"Newest: int \| None"),  # type: ignore[arg-type]
        (lambda: Newest(Maybe), r"Newest: Maybe"),
        (lambda: Lookup(Order, int | None), r"Lookup: int \| None"),  # type: ignore[arg-type]
        (lambda: AsOf(Order, int | None), r"AsOf: int \| None"),  # type: ignore[arg-type]
        (lambda: Grouped(int | None, str, aggregate.count()), r"Grouped: int \| None"),  # type: ignore[arg-type]
        (lambda: Grouped(Order, lambda order: order.id, MaybeSum()), r"Grouped: what MaybeSum returns: int \| None"),
        (lambda: TableJoin(int | None, int, left_key=str, reference=str, right_key=str), r"TableJoin: int \| None"),  # type: ignore[arg-type]
        (lambda: TableJoin(int, int | None, left_key=str, reference=str, right_key=str), r"TableJoin: int \| None"),  # type: ignore[arg-type]
        (lambda: ms.Topology("t").compute("balances", Balances()), r"Balances: int \| None"),
    ],
)
def test_rows_that_may_be_none_are_refused(build: Callable[[], object], what: str) -> None:
    with pytest.raises(ms.TopologyError, match=f"{what} may be None, which is how a table says that there is no row; give a type without"):
        build()


def test_values_that_are_no_rows_may_be_none() -> None:
    Lookup(int | None, Order)  # type: ignore[arg-type]
    AsOf(int | None, Order)  # type: ignore[arg-type]
    Join(int | None, str | None, before=ms.SECOND, after=ms.SECOND)  # type: ignore[arg-type]
