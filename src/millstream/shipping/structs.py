"""A `msgspec.Struct` class taken apart, and put together again in another process.

What makes a Struct is made by its metaclass, in C: a copy of its attributes is no Struct. So its fields, their defaults and its
options travel, and it is defined anew. Types may name the class itself or one another, so they follow once it is there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

Field = tuple[str, Any, Any]  # name, default, default factory; each may be NODEFAULT

_OPTIONS = (
    "array_like",
    "cache_hash",
    "dict",
    "eq",
    "forbid_unknown_fields",
    "frozen",
    "gc",
    "omit_defaults",
    "order",
    "repr_omit_defaults",
    "tag",
    "tag_field",
    "weakref",
)
_MADE_BY_MSGSPEC = {"__annotations__", "__doc__", "__match_args__", "__module__", "__msgspec_cache__", "__qualname__", "__slots__"}
_MADE_BY_PYTHON = {"__dict__", "__orig_bases__", "__parameters__", "__weakref__", "__static_attributes__", "__firstlineno__"}


def reduce_struct(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    """As pickle wants it: how to make the class, then all that may refer to it."""
    annotations, attributes = inspect.get_annotations(kind), vars(kind)
    own = [field for field in msgspec.structs.fields(kind) if field.name in annotations]
    names = {field.name for field in own}
    options = {name: getattr(kind.__struct_config__, name) for name in _OPTIONS}
    parameters = inspect.signature(kind).parameters
    options["kw_only"] = any(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in names)
    options["rename"] = {field.name: field.encode_name for field in own}
    namespace = {name: attributes[name] for name in ("__orig_bases__", "__doc__", "__qualname__") if attributes.get(name) is not None}
    made_elsewhere = names | _MADE_BY_MSGSPEC | _MADE_BY_PYTHON
    state = {name: value for name, value in attributes.items() if name not in made_elsewhere and not _is_of_struct(name)}
    if "__post_init__" in state:
        state["__post_init__"] = getattr(state["__post_init__"], "real", state["__post_init__"])
    fields: list[Field] = [(field.name, field.default, field.default_factory) for field in own]
    how = (kind.__name__, kind.__module__, kind.__bases__, fields, options, namespace, "__post_init__" in state)
    return make_struct, how, (annotations, state), None, None, complete_struct


def make_struct(
    name: str,
    module: str,
    bases: tuple[type, ...],
    fields: list[Field],
    options: dict[str, Any],
    namespace: dict[str, Any],
    has_post_init: bool,
) -> type:
    """The class with its fields, whose types are not known yet."""
    if has_post_init:  # msgspec looks for it once, while the class is made, and it may refer to the class
        namespace = {**namespace, "__post_init__": _later()}
    return msgspec.defstruct(name, [_field(*each) for each in fields], bases=bases, module=module, namespace=namespace, **options)


def complete_struct(kind: type, state: tuple[dict[str, Any], dict[str, Any]]) -> type:
    """Types, methods and all else."""
    annotations, attributes = state
    kind.__annotations__ = annotations
    for name, value in attributes.items():
        if name == "__post_init__":
            vars(kind)[name].real = value
        else:
            setattr(kind, name, value)
    return kind


def _is_of_struct(name: str) -> bool:
    return name.startswith("__struct_")


def _field(name: str, default: Any, default_factory: Any) -> tuple[Any, ...]:
    if default is not msgspec.NODEFAULT:
        return name, Any, default
    if default_factory is not msgspec.NODEFAULT:
        return name, Any, msgspec.field(default_factory=default_factory)
    return name, Any


def _later() -> Callable[[Any], None]:
    def post_init(self: Any) -> None:
        post_init.real(self)  # type: ignore[attr-defined]

    return post_init
