"""What type variables stand for: in a class that fills those of its bases, and in an instance that says so when it is made."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Filled = dict[Any, Any]  # from a type variable to what it stands for; one that nobody fills is not in it


def fill(hint: Any, known: Mapping[Any, Any]) -> Any:
    """`hint` with the variables in it filled, as far as they are known."""
    if isinstance(hint, TypeVar):
        return known.get(hint, hint)
    variables = _variables(hint)
    return hint[tuple(known.get(variable, variable) for variable in variables)] if variables else hint


def close(hint: Any) -> Any:
    """`hint` with `Any` for the variables that are still in it."""
    if isinstance(hint, TypeVar):
        return Any
    return fill(hint, dict.fromkeys(_variables(hint), Any))


def variables_of(kind: type) -> tuple[Any, ...]:
    """The type variables of a class, in their order."""
    return getattr(kind, "__parameters__", ())


def given_to(alias: Any) -> Filled:
    """What stands in the brackets: `Pair[int, str]` fills the two variables of `Pair`."""
    variables, given = variables_of(typing.get_origin(alias)), typing.get_args(alias)
    return dict(zip(variables, given, strict=True)) if len(variables) == len(given) else {}


def in_classes(kind: type, known: Filled) -> dict[type, Filled]:
    """For a class whose own variables are `known`, and for each of its bases, near and far: what its variables stand for."""
    found: dict[type, Filled] = {kind: known}
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = typing.get_origin(base) or base
        if not isinstance(origin, type) or origin in (object, typing.Generic, typing.Protocol):
            continue
        there = {variable: fill(given, known) for variable, given in given_to(base).items()}
        for owner, filled in in_classes(origin, there).items():
            found[owner] = {**filled, **found.get(owner, {})}
    return found


def in_instance(kind: type, known: Filled, told: Mapping[str, Any], teller: type) -> dict[type, Filled]:
    """The same for an instance that also says, by name, what the variables of the class `teller`, a base or itself, stand for.

    What it says counts for that class and its bases; what follows from it for classes derived from `teller` is found by
    comparing: if `class Mid(Base[list[U]])` and `T` of `Base` is told to be `list[int]`, then `U` is `int`.
    """
    found = in_classes(kind, known)
    of_teller = {variable: told[variable.__name__] for variable in variables_of(teller) if variable.__name__ in told}
    learned: Filled = {}
    for variable, value in of_teller.items():
        _compare(found.get(teller, {}).get(variable), value, learned)
    if learned:
        found = in_classes(kind, {**learned, **known})
    for owner, filled in in_classes(teller, {**found.get(teller, {}), **of_teller}).items():
        found[owner] = {**found.get(owner, {}), **filled}
    for owner, filled in found.items():  # of a base, by its own name, if nobody else has filled it
        for variable in variables_of(owner):
            if variable.__name__ in told and close(filled.get(variable, variable)) is Any:
                filled[variable] = told[variable.__name__]
    return found


def _compare(hint: Any, value: Any, learned: Filled) -> None:
    """What the variables in `hint` must be for it to be `value`."""
    if isinstance(hint, TypeVar):
        learned.setdefault(hint, value)
    elif typing.get_origin(hint) is not None and typing.get_origin(hint) is typing.get_origin(value):
        for one, other in zip(typing.get_args(hint), typing.get_args(value), strict=False):
            _compare(one, other, learned)


def _variables(hint: Any) -> tuple[Any, ...]:
    """Those that stand in the brackets of a hint. A generic class without brackets has variables too, but none to be filled."""
    return () if isinstance(hint, type) and typing.get_origin(hint) is None else getattr(hint, "__parameters__", ())
