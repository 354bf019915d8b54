"""Unions of classes, which JSON and msgpack do not tell apart by themselves: each value carries the name of its class.

msgspec refuses `A | B` of two dataclasses, or of two Structs without tags. A type that has such a union anywhere in it is
written and read by its *shape*: a value is made into what msgspec writes by itself, with the tags put in, and back. What has no
such union in it is left to msgspec, and costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from millstream.errors import TopologyError
from millstream.fields import bare, class_of, field_types, is_struct, parts_of
from millstream.stream import called, members

TAG = "type"  # as msgspec calls it for Structs


class Shape(Protocol):
    """How values of a type are made into what msgspec writes by itself, and back."""

    def dump(self, value: Any) -> Any: ...
    def load(self, raw: Any) -> Any: ...


def shape_of(kind: Any, *, strict: bool = True, text_keys: bool = True) -> Shape | None:
    """None of a type that has no union of classes in it. One that cannot be told apart is refused.

    `strict` and `text_keys` are of what is read: whether text is taken for numbers (CSV), and whether all keys are text (JSON).
    """
    return _Shapes(strict, text_keys).of(kind) if has_union(kind) else None


def has_union(kind: Any) -> bool:
    """Whether there is a union of classes anywhere in a type."""
    return any(_is_tagged(part) for part in _all_parts(kind))


def plain_parts(kind: Any) -> list[Any]:
    """Types that msgspec knows by itself, and that have all in them that `kind` has."""
    return [kind] if not has_union(kind) else [part for part in _all_parts(kind) if part is not None and not has_union(part)]


def _all_parts(kind: Any) -> list[Any]:
    """A type, what it is made of, and so on."""
    seen: list[Any] = []
    ahead = [kind]
    while ahead:
        part = bare(ahead.pop())
        if part not in seen:
            seen.append(part)
            ahead += parts_of(part)
    return seen


def _is_object(kind: Any) -> bool:
    """Whether its values are JSON objects of a class of their own."""
    cls = class_of(kind)
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or (is_struct(cls) and not _config(cls).array_like)
    )


def _is_tagged(kind: Any) -> bool:
    """Whether it is a union that msgspec does not tell apart: of Structs that all have tags it does."""
    objects = [class_of(member) for member in members(kind) if _is_object(member)]
    return len(objects) > 1 and not all(map(_has_tag, objects))


def _config(struct: Any) -> Any:
    return struct.__struct_config__


def _has_tag(cls: Any) -> bool:
    return is_struct(cls) and _config(cls).tag is not None


class _Shapes:
    """Makes shapes. One of a class is made once, for a class may have itself in it."""

    def __init__(self, strict: bool, text_keys: bool) -> None:
        self.convert = functools.partial(msgspec.convert, strict=strict, str_keys=text_keys)
        self._objects: dict[Any, _Object] = {}

    def of(self, kind: Any) -> Shape:
        kind = bare(kind)
        if not has_union(kind):
            return _Plain(self, kind)
        if len(members(kind)) > 1:
            return _Union(self, kind)
        cls, inner = class_of(kind), typing.get_args(kind)
        if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or is_struct(cls)):
            return self.of_object(kind)
        if isinstance(cls, type) and issubclass(cls, tuple) and inner and inner[-1] is not Ellipsis:
            return _Row([self.of(part) for part in inner])
        if isinstance(cls, type) and issubclass(cls, Mapping):
            if has_union(inner[0]):
                raise TopologyError(f"the keys of {called(kind)} are of a union of classes; use text or a number for them")
            return _Entries(_Plain(self, dict[inner[0], Any]), self.of(inner[1]))  # type: ignore[valid-type]
        if isinstance(cls, type) and issubclass(cls, Collection) and len(inner) >= 1:
            return _Items(self.of(inner[0]), cls if cls in (tuple, set, frozenset) else list)
        raise TopologyError(f"{called(kind)} has a union of classes in it, which cannot be told apart there; make it a dataclass")

    def of_object(self, kind: Any) -> _Object:
        if kind not in self._objects:
            self._objects[kind] = _Object(self, kind)
            self._objects[kind].look_inside()
        return self._objects[kind]


class _Plain:
    """What msgspec knows by itself."""

    def __init__(self, shapes: _Shapes, kind: Any) -> None:
        self._convert, self._kind = shapes.convert, Any if kind is None else kind

    def dump(self, value: Any) -> Any:
        return value

    def load(self, raw: Any) -> Any:
        return self._convert(raw, self._kind)


class _Items:
    """A list, or what is written as one."""

    def __init__(self, item: Shape, make: Callable[[Any], Any]) -> None:
        self._item, self._make = item, make

    def dump(self, value: Any) -> Any:
        return list(map(self._item.dump, value))

    def load(self, raw: Any) -> Any:
        return self._make(map(self._item.load, _checked(raw, list, "array")))


class _Row:
    """A tuple of so many."""

    def __init__(self, places: list[Shape]) -> None:
        self._places = places

    def dump(self, value: Any) -> Any:
        return [place.dump(each) for place, each in zip(self._places, value, strict=True)]

    def load(self, raw: Any) -> Any:
        if len(_checked(raw, list, "array")) != len(self._places):
            raise msgspec.ValidationError(f"Expected `array` of length {len(self._places)}, got {len(raw)}")
        return tuple(place.load(each) for place, each in zip(self._places, raw, strict=True))


class _Entries:
    """A dictionary."""

    def __init__(self, keys: Shape, value: Shape) -> None:
        self._keys, self._value = keys, value  # keys alone, as a dictionary: in JSON they are text

    def dump(self, value: Any) -> Any:
        return {key: self._value.dump(each) for key, each in value.items()}

    def load(self, raw: Any) -> Any:
        keys = self._keys.load(dict.fromkeys(_checked(raw, dict, "object")))
        return dict(zip(keys, map(self._value.load, raw.values()), strict=True))


class _Object:
    """A dataclass or Struct: as a member of a union, or with a union in one of its fields."""

    def __init__(self, shapes: _Shapes, kind: Any) -> None:
        self._shapes, self._kind, self.cls = shapes, kind, class_of(kind)
        self._deep = False
        self._fields: dict[str, tuple[str, Shape]] = {}  # by what they are called when written
        self._plainly: Callable[[Any], Any] | None = None  # all its fields at once, where none of them needs more

    def look_inside(self) -> None:
        self._deep, unset = has_union(self._kind), False
        written = dict(zip(self.cls.__struct_fields__, self.cls.__struct_encode_fields__, strict=True)) if is_struct(self.cls) else {}
        for name, hint in field_types(self._kind).items():
            self._fields[written.get(name, name)] = name, self._shapes.of(hint)
            unset |= msgspec.UnsetType in _all_parts(hint)
        if not self._deep and not unset and len(self._fields) > 1:
            self._plainly = operator.attrgetter(*(name for name, _ in self._fields.values()))

    @property
    def names(self) -> Collection[str]:
        return self._fields.keys()

    def dump(self, value: Any) -> Any:
        if self._plainly is not None:
            return dict(zip(self._fields, self._plainly(value), strict=True))
        found = ((written, shape, getattr(value, name)) for written, (name, shape) in self._fields.items())
        return {written: shape.dump(each) for written, shape, each in found if each is not msgspec.UNSET}

    def load(self, raw: Any) -> Any:
        if not self._deep:
            return self._shapes.convert(raw, self._kind)
        _checked(raw, dict, "object")
        given = {name: shape.load(raw[written]) for written, (name, shape) in self._fields.items() if written in raw}
        try:
            return self.cls(**given) if is_struct(self.cls) else self._made(given)
        except (TypeError, ValueError) as error:
            raise msgspec.ValidationError(str(error)) from error

    def _made(self, given: dict[str, Any]) -> Any:
        """A dataclass as msgspec makes it: its fields are set, and `__post_init__` is called."""
        made = object.__new__(self.cls)
        for field in dataclasses.fields(self.cls):
            if field.name in given:
                value = given[field.name]
            elif field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            elif field.default is not dataclasses.MISSING:
                value = field.default
            else:
                raise msgspec.ValidationError(f"Object missing required field `{field.name}`")
            object.__setattr__(made, field.name, value)
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        return made


class _Union:
    """One of several: a class by its tag, a list or a dictionary by what it is, anything else by msgspec."""

    def __init__(self, shapes: _Shapes, kind: Any) -> None:
        self._kind = kind
        self._objects = [shapes.of_object(bare(member)) for member in members(kind) if _is_object(member) and _check_class(kind, member)]
        self._field, self._tags = _tags(kind, self._objects) if len(self._objects) > 1 else (TAG, {})
        self._by_class = {shape.cls: (tag, shape) for tag, shape in self._tags.items()}
        others = [member for member in members(kind) if not _is_object(member)]
        deep = [member for member in others if has_union(member)]
        self._mapping, self._array = (self._only(shapes, deep, mapping=mapping) for mapping in (True, False))
        if self._objects and (self._mapping or any(_is_mapping(member) or bare(member) in (Any, object) for member in others)):
            raise TopologyError(f"{called(kind)} cannot be told apart: a dictionary might be one of its classes; make a dataclass of it")
        plain = [member for member in others if member not in deep]
        self._plain = _Plain(shapes, functools.reduce(operator.or_, plain)) if plain else None

    def _only(self, shapes: _Shapes, deep: list[Any], *, mapping: bool) -> Shape | None:
        found = [member for member in deep if _is_mapping(member) == mapping]
        if len(found) > 1:
            raise TopologyError(f"{called(self._kind)} cannot be told apart: {' and '.join(map(called, found))} are written alike")
        return shapes.of(found[0]) if found else None

    def dump(self, value: Any) -> Any:
        if self._tags:
            known = self._by_class.get(value.__class__)
            if known is None:
                known = next((self._by_class[base] for base in type(value).__mro__ if base in self._by_class), None)
            if known is not None:
                tag, shape = known
                return {self._field: tag, **shape.dump(value)}
        elif self._objects and isinstance(value, self._objects[0].cls):
            return self._objects[0].dump(value)
        if self._mapping is not None and isinstance(value, Mapping):
            return self._mapping.dump(value)
        if self._array is not None and isinstance(value, list | tuple | set | frozenset):
            return self._array.dump(value)
        return value  # what it should not be is noticed when it is read back

    def load(self, raw: Any) -> Any:
        if isinstance(raw, dict):
            if self._tags:
                return self._tagged(raw)
            if self._objects or self._mapping is not None:
                return (self._mapping or self._objects[0]).load(raw)
        if isinstance(raw, list) and self._array is not None:
            return self._array.load(raw)
        if self._plain is None:
            raise msgspec.ValidationError(f"Expected `{called(self._kind)}`, got `{type(raw).__name__}`")
        return self._plain.load(raw)

    def _tagged(self, raw: dict[str, Any]) -> Any:
        field, tag = self._field, raw.get(self._field)  # what is read was just decoded, and is nobody else's
        shape = self._tags.get(tag) if isinstance(tag, str | int) else None
        if shape is None:
            wanted, got = ", ".join(map(repr, self._tags)), repr(tag) if field in raw else "nothing"
            raise msgspec.ValidationError(f"Expected one of {wanted} in the field `{field}`, got {got}")
        del raw[field]
        return shape.load(raw)


def _is_mapping(kind: Any) -> bool:
    cls = class_of(kind)
    return isinstance(cls, type) and issubclass(cls, Mapping)


def _check_class(kind: Any, member: Any) -> bool:
    cls = class_of(member)
    if typing.is_typeddict(cls):
        why = f"{called(member)} is a TypedDict, whose values are plain dictionaries; make it a dataclass"
        raise TopologyError(f"{called(kind)} cannot be told apart: {why}")
    if _has_tag(cls) and _is_tagged(kind):
        raise TopologyError(
            f"{called(kind)} cannot be told apart: {called(member)} has a tag of its own, and others have none; give tags to all or none"
        )
    return True


def _tags(kind: Any, objects: list[_Object]) -> tuple[str, dict[str | int, _Object]]:
    """Where the tag is written, and what it says: the name of the class, or what Structs with tags of their own have."""
    if not _is_tagged(kind):
        return _config(objects[0].cls).tag_field, {_config(shape.cls).tag: shape for shape in objects}
    tags: dict[str | int, _Object] = {}
    for shape in objects:
        name = shape.cls.__name__
        if name in tags:
            raise TopologyError(
                f"{called(kind)} cannot be told apart: two of its classes are called {name!r}, and values carry that name; rename one"
            )
        if TAG in shape.names:
            raise TopologyError(
                f"{called(kind)} cannot be told apart: {name} has a field {TAG!r}, where the name of the class is written; "
                f"rename the field, or make all of them msgspec.Structs with a tag_field= of their own"
            )
        tags[name] = shape
    return TAG, tags


def _checked(raw: Any, wanted: type, name: str) -> Any:
    if not isinstance(raw, wanted):
        raise msgspec.ValidationError(f"Expected `{name}`, got `{type(raw).__name__}`")
    return raw
