"""Checks of what users give as arguments: what is wrong is refused where it is given, with what to give instead."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import os
import re
import typing
import urllib.parse
from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from millstream.errors import TopologyError
from millstream.timestamp import DAY, Duration

E = TypeVar("E", bound=enum.Enum)

LONGEST = 365_000 * DAY  # a timestamp that is moved by it is still one
LONGEST_NAME = 120  # bytes: what belongs to it is in files of this name, and of some more characters
NAME = re.compile(r"\w[\w .-]*")
NAME_WITHOUT_DOT = re.compile(r"\w[\w -]*")
BRACKETS = re.compile(r"\[!?\]?[^\]]*\]")  # of a pattern, as fnmatch reads them
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # of a URL; a pathlib.Path has made one slash of two


def span(call: str, name: str, value: Any, *, least: int = 1) -> Duration:
    """A `Duration` of at least so many microseconds, and no more than a timestamp can be moved by."""
    if type(value) is int and least <= value <= int(LONGEST):
        return Duration(value)
    hint = ""
    if type(value) is int and value > int(LONGEST):
        raise TopologyError(f"{call}({name}={value!r}): that is more than a thousand years; give a ms.Duration, such as 5 * ms.SECOND")
    if isinstance(value, timedelta):
        hint = "; ms.to_duration(...) makes one of a timedelta"
    elif isinstance(value, float):
        hint = "; half a second is 500 * ms.MILLISECOND"
    raise TopologyError(f"{call}({name}={value!r}): give a {'positive ' if least else ''}ms.Duration, such as 5 * ms.SECOND{hint}")


def signed_span(call: str, name: str, value: Any) -> Duration:
    """A `Duration` that may be negative, or nothing."""
    if type(value) is not int:
        return span(call, name, value, least=0)  # says what is wrong with it
    return span(call, name, abs(value), least=0) * (-1 if value < 0 else 1)


def maybe_span(call: str, name: str, value: Any) -> Duration | None:
    """None, or a positive `Duration`."""
    return None if value is None else span(call, name, value)


def number(call: str, name: str, value: Any, *, least: int, most: int = 1 << 60) -> int:
    if type(value) is not int or value < least:
        raise TopologyError(f"{call}({name}={value!r}): give a whole number, at least {least}")
    if value > most:
        raise TopologyError(f"{call}({name}={value!r}): give a whole number, at most {most}")
    return value


def flag(call: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TopologyError(f"{call}({name}={value!r}): give True or False")
    return value


def choice(call: str, name: str, value: Any, kind: type[E]) -> E:
    if not isinstance(value, kind):
        owner = f"ms.{kind.__name__}" if kind.__module__.count(".") == 1 else kind.__name__  # of a family of operators: from its module
        members = [f"{owner}.{member.name}" for member in kind]
        raise TopologyError(f"{call}({name}={value!r}): give {' or '.join([', '.join(members[:-1]), members[-1]])}")
    return value


def path(call: str, value: Any) -> str:
    """A path of this machine's file systems, as text; a leading `~` is the home folder, as in a shell."""
    if isinstance(value, bytes) or not isinstance(value, str | os.PathLike):
        raise TopologyError(f"{call}({value!r}): give a path, as text or as a pathlib.Path")
    found = os.fspath(value)
    if not found:
        raise TopologyError(f"{call}({value!r}): give a path that is not empty")
    if "\0" in found:
        raise TopologyError(f"{call}({value!r}): give a path without the character NUL, which no file system takes")
    if scheme := SCHEME.match(found):
        if scheme[1].lower() == "file":
            raise TopologyError(f"{call}({value!r}): give the path {_path_of_url(found)}")
        raise TopologyError(
            f"{call}({value!r}): object stores and URLs are not supported; give a path of a file system that is mounted here"
        )
    return os.path.expanduser(found)  # noqa: PTH111 (a Path would change what is not a leading ~, or raise)


def _path_of_url(url: str) -> str:
    """What `file:/a/b`, `file:///a/b` and `file://localhost/a/b` name."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path) or "/"


def name(what: str, value: Any, *, dots: bool = True) -> str:
    """What folders and streams are called after."""
    if not isinstance(value, str) or not (NAME if dots else NAME_WITHOUT_DOT).fullmatch(value):
        signs = "'-', '_' and '.'" if dots else "'-' and '_'"
        raise TopologyError(f"{what} cannot be called {value!r}; use letters, digits, spaces, {signs}")
    if len(value.encode()) > LONGEST_NAME:
        raise TopologyError(f"{what} cannot be called {value[:20]}…: files have its name; use at most {LONGEST_NAME} bytes")
    return value


def value_type(call: str, value: Any) -> Any:
    """A type, as a class or as typing writes it."""
    named = hasattr(value, "__supertype__") or hasattr(value, "__value__")  # a NewType, or what `type X = ...` makes
    if not (isinstance(value, type | TypeVar) or typing.get_origin(value) is not None or named):
        raise TopologyError(f"{call}: {value!r} is not a type; give the type of its values, such as a dataclass")
    return value


def function(what: str, value: Any, *arguments: str) -> None:
    """Refuse a function that cannot be called with these, or that nobody would wait for. One whose signature is not known passes."""
    given = " and ".join(arguments)
    if not callable(value):
        raise TopologyError(f"{what} is {value!r}; give a function of {given}")
    if any(map(inspect.iscoroutinefunction, (value, _call(value)))) or any(map(inspect.isasyncgenfunction, (value, _call(value)))):
        raise TopologyError(f"{what} is {_named(value)}, an async function, which nobody would wait for; give a plain function of {given}")
    signature = _signature(value)
    try:
        if signature is not None:
            signature.bind(*arguments)
    except TypeError:
        raise TopologyError(
            f"{what} is {_named(value)}{signature}, which cannot be called with {given} alone; give a function of {given}"
        ) from None


def _signature(value: Any) -> inspect.Signature | None:
    """Its own, not that of what it wraps; None where it is not known, as of much that is written in C."""
    plain = inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, functools.partial)
    if not plain and not inspect.isfunction(_call(value)):
        return None
    try:
        found = inspect.signature(value, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    return inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()])


def _call(value: Any) -> Any:
    """What is called where an object of a class is."""
    found = None if inspect.isclass(value) else inspect.getattr_static(type(value), "__call__", None)
    return None if isinstance(found, staticmethod | classmethod) else found


def _named(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)


def fields_of(kind: Any) -> tuple[str, ...] | None:
    """What the values of a type are made of, as JSON has it; None where that is not known."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    kind = typing.get_origin(kind) or kind
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    if typing.is_typeddict(kind):
        return tuple(kind.__annotations__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__struct_encode_fields__
    return kind._fields if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def pattern(call: str, value: str) -> None:
    """Refuse one that means nothing: the last part of a path, with what a shell knows in it."""
    if "[" in BRACKETS.sub("", PurePath(value).name):
        raise TopologyError(f"{call}({value!r}): the pattern has a '[' without a ']'; close it, or write [[] for the sign itself")


def renaming(call: str, name: str, value: Any) -> dict[str, str]:
    """From names to names, no two to the same."""
    if not isinstance(value, Mapping) or not all(isinstance(each, str) and each for pair in value.items() for each in pair):
        raise TopologyError(f"{call}({name}={value!r}): give a dictionary from names to names")
    if len(set(value.values())) < len(value):
        raise TopologyError(f"{call}({name}={value!r}): two fields cannot come from one column")
    return dict(value)
