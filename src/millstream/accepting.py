"""Whether a reader may be given values of a type, as far as types say so when they run; in doubt it may."""

from __future__ import annotations

import typing
from typing import Any, TypeVar

from millstream.fields import bare, class_of
from millstream.stream import members
from millstream.type_variables import given_to, in_classes

_ALSO_TAKEN: dict[Any, tuple[type, ...]] = {float: (int,), complex: (int, float)}  # as type checkers have it


def accepts(taken: Any, found: Any) -> bool:
    """Whether what takes `taken` takes each value of `found` too. Of containers, what they hold is looked at in the same way."""
    if found == taken or _is_anything(taken) or _is_anything(found) or taken is object:
        return True
    if len(members(found)) > 1:
        return all(accepts(taken, member) for member in members(found))
    if len(members(taken)) > 1:
        return any(accepts(member, found) for member in members(taken))
    if isinstance(taken, typing.NewType):
        return isinstance(found, typing.NewType) and accepts(taken, found.__supertype__)
    if bare(taken) != taken or bare(found) != found:
        return accepts(bare(taken), bare(found))
    if typing.get_origin(found) is typing.Literal:
        values = typing.get_args(found)
        if typing.get_origin(taken) is typing.Literal:
            return set(values) <= set(typing.get_args(taken))
        return all(accepts(taken, type(value)) for value in values)
    return _is_subclass(class_of(found), class_of(taken)) and _brackets_fit(taken, found)


def _is_anything(kind: Any) -> bool:
    return kind is Any or isinstance(kind, TypeVar)


def _is_subclass(found: Any, taken: Any) -> bool:
    if not isinstance(found, type) or not isinstance(taken, type):
        return taken is not typing.Literal
    if typing.is_typeddict(taken):  # by its entries, which are not compared
        return typing.is_typeddict(found) or issubclass(found, dict)
    try:
        return issubclass(found, (taken, *_ALSO_TAKEN.get(taken, ())))
    except TypeError:  # a protocol that does not say so at run time
        return True


def _brackets_fit(taken: Any, found: Any) -> bool:
    wanted, cls = typing.get_args(taken), class_of(taken)
    if not wanted or not isinstance(cls, type):
        return True
    variables = given_to(taken)
    if variables:
        known = in_classes(class_of(found), given_to(found)).get(cls, {})
        return all(accepts(hint, known.get(variable, Any)) for variable, hint in variables.items())
    given = typing.get_args(found)
    if class_of(found) is not cls or len(given) != len(wanted):
        return True
    return all(Ellipsis in (one, other) or accepts(one, other) for one, other in zip(wanted, given, strict=True))
