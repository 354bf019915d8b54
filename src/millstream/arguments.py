"""Checks of what users give as arguments: what is wrong is refused where it is given, with what to give instead."""

from __future__ import annotations

import enum
import os
from datetime import timedelta
from typing import Any, TypeVar

from millstream.errors import TopologyError
from millstream.timestamp import Duration

E = TypeVar("E", bound=enum.Enum)


def span(call: str, name: str, value: Any, *, least: int = 1) -> Duration:
    """A `Duration` of at least so many microseconds."""
    if type(value) is int and value >= least:
        return Duration(value)
    hint = ""
    if isinstance(value, timedelta):
        hint = "; ms.to_duration(...) makes one of a timedelta"
    elif isinstance(value, float):
        hint = "; half a second is 500 * ms.MILLISECOND"
    raise TopologyError(f"{call}({name}={value!r}): give a {'positive ' if least else ''}ms.Duration, such as 5 * ms.SECOND{hint}")


def maybe_span(call: str, name: str, value: Any) -> Duration | None:
    """None, or a positive `Duration`."""
    return None if value is None else span(call, name, value)


def number(call: str, name: str, value: Any, *, least: int) -> int:
    if type(value) is not int or value < least:
        raise TopologyError(f"{call}({name}={value!r}): give a whole number, at least {least}")
    return value


def flag(call: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TopologyError(f"{call}({name}={value!r}): give True or False")
    return value


def choice(call: str, name: str, value: Any, kind: type[E]) -> E:
    if not isinstance(value, kind):
        members = [f"ms.{kind.__name__}.{member.name}" for member in kind]
        raise TopologyError(f"{call}({name}={value!r}): give {' or '.join([', '.join(members[:-1]), members[-1]])}")
    return value


def path(call: str, value: Any) -> str:
    """A path, as text."""
    if isinstance(value, bytes) or not isinstance(value, str | os.PathLike):
        raise TopologyError(f"{call}({value!r}): give a path, as text or as a pathlib.Path")
    found = os.fspath(value)
    if not found:
        raise TopologyError(f"{call}({value!r}): give a path that is not empty")
    return found


def value_type(call: str, value: Any) -> Any:
    """A type, as a class or as typing writes it."""
    if value is None or isinstance(value, str | bytes | int | float | list | dict):
        raise TopologyError(f"{call}: {value!r} is not a type; give the type of its values, such as a dataclass")
    return value
