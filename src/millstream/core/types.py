"""What the types of values and states can hold, found out once while a topology is compiled, and what values are too large for them."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import inspect

from millstream.core.unions import plain_parts

LEAST, GREATEST = -(2**63), 2**63 - 1  # of an integer: what a column of a table holds
_PLAIN = (int, str, bool)  # not float: JSON has no NaN
_LONG = b"0" * len(str(GREATEST))
_LARGE = re.compile(rb"[0-9]{20}|9[2-9][0-9]{17}").search  # nanoseconds of our time have nineteen, and begin with a one
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))


def plain_class(kind: Any) -> type | None:
    """The class whose instances need no look before they are kept as `kind`: as what they are written, they are read back."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind if kind in _PLAIN else None


def custom_class(kind: Any) -> Any:
    """A class in `kind` of which msgspec knows nothing, so that it could not be read back; None if there is none."""
    return next((part.cls for part in _parts(kind) if isinstance(part, inspect.CustomType) and part.cls is not object), None)


def has_integers(kind: Any) -> bool:
    """Whether values of `kind` have integers in places where they are typed."""
    return any(isinstance(part, inspect.IntType) for part in _parts(kind))


def is_text(found: Any) -> bool:
    """Whether it is text that can be written down: Python's may hold halves of characters, which UTF-8 has no bytes for."""
    if not isinstance(found, str):
        return False
    if found.isascii():
        return True
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_text(what: str, found: Any, instead: str) -> str:
    """Why it is refused, for a message that says so much of it already."""
    if isinstance(found, str):
        return f"{found!r}, which has halves of characters (surrogates) that UTF-8 cannot spell; leave them out"
    return f"{found!r}; a {what} is text: {instead} str(...)"


def may_be_large(text: bytes) -> bool:
    """Whether a number in some JSON text may be too large, by its digits: a quick look, and a second one at runs of nineteen."""
    return _LONG in text.translate(_DIGITS) and _LARGE(text) is not None


def check_integers(value: Any) -> None:
    """Refuse a value with an integer that does not fit into 64 bits: no column of a table could hold it."""

    def visit(part: Any) -> None:
        if isinstance(part, int):
            if not LEAST <= part <= GREATEST:
                raise ValueError(f"{part} is an integer of more than 64 bits; carry it as text, or as a decimal.Decimal")
        elif isinstance(part, dict):
            for key, each in part.items():
                visit(key)
                visit(each)
        elif isinstance(part, list | tuple | set | frozenset):
            for each in part:
                visit(each)

    visit(msgspec.to_builtins(value))


def reads_back(kind: Any, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Refuses the JSON text of a value that is not of `kind`, or has an integer which is too large."""
    if not has_integers(kind):
        return decode

    def check(text: bytes) -> None:
        value = decode(text)
        if len(text) >= len(_LONG) and may_be_large(text):
            check_integers(value)

    return check


def _parts(kind: Any) -> Iterator[inspect.Type]:
    """All types in a type. Those that msgspec refuses as a whole have none: whoever makes a decoder says why."""
    waiting: list[Any] = []
    for part in plain_parts(kind):
        with suppress(TypeError):
            waiting.append(inspect.type_info(Any if part is None else part))
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, inspect.Type):
            yield part
        if isinstance(part, tuple | list):
            waiting += part
        elif isinstance(part, inspect.Type | inspect.Field):
            waiting += [getattr(part, name) for name in part.__struct_fields__ if name not in ("default", "default_factory", "cls")]
