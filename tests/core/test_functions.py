"""Functions that could not be called as they will be are refused where they are given; what might work passes."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict
from unittest.mock import Mock

import msgspec
import pytest

import millstream as ms
from millstream.errors import TopologyError

SECONDS = {"key": str, "timestamp": ms.Timestamp, "low_watermark": ms.BoundedDisorder(ms.SECOND)}


def inject(**changed: Any) -> ms.Stream[int]:
    arguments: dict[str, Any] = {**SECONDS, **changed}
    return ms.Topology("functions").inject("numbers", ms.values([], int), **arguments)


# Where a function is given, and how messages begin.
PLACES: dict[str, tuple[Callable[[Any], object], str]] = {
    "key": (lambda f: inject(key=f), "injector 'numbers': key"),
    "timestamp": (lambda f: inject(timestamp=f), "injector 'numbers': timestamp"),
    "partition": (lambda f: inject(partition=f), "injector 'numbers': partition"),
    "explicit": (ms.Explicit, "Explicit: what says up to when all has come"),
    "by": (lambda f: inject().by(f), "by: the key"),
    "map": (lambda f: inject().map(f), "map: the change"),
    "merge": (lambda f: ms.Expiry(roll_up={ms.HOUR: ms.HOUR}, merge=f), "Expiry: merge"),
    "values": (lambda f: ms.values(f, int), "values: what makes the values"),
    "function": (ms.function, "function: what is called"),
    "dataframe": (lambda f: ms.dataframe(f, int), "dataframe: what makes the frame"),
}


def no_argument() -> None: ...
def three(a: int, b: int, c: int) -> None: ...
def by_name(*, a: int) -> None: ...
async def asynchronous(*arguments: Any) -> None: ...
async def endless(*arguments: Any) -> AsyncIterator[int]:
    yield 1


class Called:
    def __call__(self, a: int, b: int, c: int) -> None: ...
    def method(self, a: int, b: int, c: int) -> None: ...


class CalledLater:
    async def __call__(self, *arguments: Any) -> None: ...


class Empty: ...


@pytest.mark.parametrize("place", PLACES)
def test_a_function_that_cannot_take_its_arguments_is_refused(place: str) -> None:
    give, where = PLACES[place]
    wrong = (no_argument, three, by_name, Called(), Called().method, Empty, functools.partial(three, 1, 2, 3), lambda a, b, c: a)
    for function in wrong:
        with pytest.raises(TopologyError, match=rf"^{re.escape(where)} is .*, which cannot be called with .* alone; give a function of "):
            give(function)


@pytest.mark.parametrize("place", PLACES)
def test_an_async_function_is_refused(place: str) -> None:
    give, where = PLACES[place]
    for function in (asynchronous, endless, CalledLater(), functools.partial(asynchronous, 1)):
        with pytest.raises(
            TopologyError, match=rf"^{re.escape(where)} is .*, an async function, which nobody would wait for; give a plain"
        ):
            give(function)


def test_the_message_shows_the_function_and_what_it_gets() -> None:
    with pytest.raises(TopologyError, match=re.escape("key is three(a, b, c), which cannot be called with the value alone")):
        inject(key=three)
    with pytest.raises(TopologyError, match="cannot be called with the number of a step and its records alone"):
        ms.function(lambda records: None)  # type: ignore[misc, arg-type]


@dataclass
class Left:
    value: int
    other: int = 0


class Pair(NamedTuple):
    value: int
    other: int = 0


class Struct(msgspec.Struct):
    value: int
    other: int = 0


class Dictionary(TypedDict):
    value: int


class Number(int): ...


class Fine:
    def __call__(self, *arguments: int) -> None: ...
    def method(self, a: int, b: int = 0) -> None: ...

    @classmethod
    def of(cls, a: int, b: int = 0) -> None: ...
    @staticmethod
    def made(a: int, b: int = 0) -> None: ...


@functools.cache
def cached(*arguments: int) -> None: ...


@functools.wraps(three)
def wrapping(a: int, b: int = 0) -> None: ...


@pytest.mark.parametrize("place", PLACES)
def test_what_may_work_passes(place: str) -> None:
    give, _ = PLACES[place]
    generators: list[Any] = [(lambda a, b=0: (yield a)), Mock()]
    classes: list[Any] = [Left, Pair, Struct, Dictionary, Number, str, int, dict, ms.Timestamp]
    methods: list[Any] = [Fine(), Fine().method, Fine.of, Fine.made, cached, wrapping]
    builtins: list[Any] = [
        max,
        operator.attrgetter("value"),
        operator.itemgetter(0),
        functools.partial(max),
        functools.partial(cached, 1),
    ]
    for function in [*generators, *classes, *methods, *builtins]:
        give(function)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({1, 2}, "values: a set has no order that is the same after a restart; give a list, such as sorted(...)"),
        (frozenset({1}), "values: a frozenset has no order that is the same after a restart; give a list"),
        ({1: 2}, "values: a dict would give its keys; give a list, such as list(....values())"),
    ],
)
def test_values_come_in_an_order_that_repeats(values: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=f"^{re.escape(message)}"):
        ms.values(values, int)
    ms.values(sorted(values), int)
    ms.values({1: 2}.values(), int)


def test_an_object_whose_call_is_static_passes() -> None:
    class Static:
        __call__ = staticmethod(lambda value: "k")

    topology = ms.Topology("test")
    topology.inject(
        "in", ms.values([1], int), key=Static(), timestamp=lambda n: ms.Timestamp(n), low_watermark=ms.BoundedDisorder(ms.SECOND)
    )
