"""Of something that cannot travel to another process: what in it is to blame, and how it came to be in there."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

Child = tuple[str, Any]  # how whoever has it refers to it, and what it is

DEEPEST = 20


def find_culprit(what: Any, travels: Callable[[Any], bool]) -> tuple[list[str], Any]:
    """The innermost part that does not travel, and the way to it from the outside; `what` itself if all its parts do."""
    path: list[str] = []
    seen = {id(what)}
    while len(path) < DEEPEST:
        for label, child in _children(what):
            if id(child) not in seen and not travels(child):
                seen.add(id(child))
                path.append(label)
                what = child
                break
        else:
            break
    return path, what


def _children(what: Any) -> Iterator[Child]:
    if isinstance(what, types.FunctionType):
        yield from _of_function(what)
    elif isinstance(what, types.MethodType):
        yield f"{what.__func__.__qualname__}", what.__func__
        yield f"the object that {what.__func__.__qualname__} belongs to", what.__self__
    elif isinstance(what, type):
        for name, value in vars(what).items():
            if name == "_abc_impl":  # made anew where the class is
                continue
            yield f"{what.__qualname__}.{name}", value
        for base in what.__bases__:
            yield f"{base.__qualname__}", base
    elif isinstance(what, staticmethod | classmethod):
        yield "", what.__func__
    elif isinstance(what, property):
        yield from (("", function) for function in (what.fget, what.fset, what.fdel) if function is not None)
    elif isinstance(what, functools.partial):
        yield from (("", part) for part in (what.func, *what.args, *what.keywords.values()))
    elif hasattr(what, "__wrapped__"):  # of a decorator
        yield "", what.__wrapped__
    elif isinstance(what, dict):
        yield from ((f"under {key!r}", value) for key, value in what.items())
    elif isinstance(what, list | tuple | set | frozenset):
        yield from (("", value) for value in what)
    else:
        yield "", type(what)
        for name, value in getattr(what, "__dict__", {}).items():
            yield f"the attribute {name!r} of a {type(what).__qualname__}", value


def _of_function(function: types.FunctionType) -> Iterator[Child]:
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield f"the global {name!r} in {_place(function)}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"the variable {name!r} in {_place(function)}", _content(cell)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default of {_place(function)}", value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _place(function: types.FunctionType) -> str:
    return f"{function.__qualname__} ({function.__code__.co_filename}:{function.__code__.co_firstlineno})"
