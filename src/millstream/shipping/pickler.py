"""What the user's own code becomes in another process: the same, though its modules may not be there.

`cloudpickle` takes functions and classes by value. What it cannot know is put right here: values of the standard library that
are one of a kind, Structs, and functions that remember their results.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import io
import sys
import sysconfig
import threading
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from millstream.core.codec import settle_if_known
from millstream.errors import TopologyError
from millstream.shipping.culprit import find_culprit
from millstream.shipping.structs import reduce_struct

# Each is compared with `is`: a copy would be taken for a value.
_ONE_OF_A_KIND = {id(getattr(dataclasses, name)): ("dataclasses", name) for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")}
_CACHED = type(functools.lru_cache(lambda: None))
NamedPiece = tuple[str, Any]

_registering = threading.RLock()  # cloudpickle's list of modules is one for the whole process

_OF_META = tuple(inspect.signature(msgspec.Meta).parameters)
_NOT_OURS = ("millstream", "pyspark", "py4j", "cloudpickle")


def pickled(what: Any, parts: Iterable[NamedPiece] = ()) -> bytes:
    """For another process: the user's own classes travel by value. What cannot travel is refused, with the way to it.

    `parts` are the parts of `what` that a user knows by a name.
    """
    with _by_value(_own_modules()):
        try:
            return _dumped(what)
        except Exception as error:  # whatever a user's own `__reduce__` may raise
            raise _refusal(what, parts) from error


def _refusal(what: Any, parts: Iterable[NamedPiece]) -> TopologyError:
    called, what = next((part for part in parts if not travels(part[1])), ("it", what))
    path, culprit = find_culprit(what, travels)
    way = " → ".join(label for label in path if label)
    kind = culprit.__qualname__ if hasattr(culprit, "__qualname__") else f"a {type(culprit).__module__}.{type(culprit).__qualname__}"
    return TopologyError(
        f"{called} cannot be taken to Spark's processes: {way + ' is ' if way else 'it is '}{kind}, which cannot be copied; "
        "make it where it is used, for example in a function under @functools.cache, which each process then calls for itself"
    )


def _dumped(what: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(what)
    return buffer.getvalue()


def travels(what: Any) -> bool:
    try:
        _dumped(what)
    except Exception:  # the same
        return False
    return True


def _own_modules() -> list[ModuleType]:
    """The user's own modules: what is not installed, and so may not be found by another process, or on another machine."""
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [
        module
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and name.partition(".")[0] not in _NOT_OURS and _is_own(module, installed)
    ]


def _is_own(module: Any, installed: tuple[str, ...]) -> bool:
    if not isinstance(module, ModuleType):  # `typing.io` is a class
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return getattr(module, "__spec__", None) is None  # nobody imported it: it was put together by hand
    return not file.startswith(installed) and not {"site-packages", "dist-packages"} & set(PurePath(file).parts)


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """They travel with what refers to them, as `__main__` does."""
    with _registering:
        known = cloudpickle.list_registry_pickle_by_value()
        ours = {module.__name__: module for module in modules if module.__name__ not in known and module.__name__ in sys.modules}
        for module in ours.values():
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in ours.values():
                cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        place = _ONE_OF_A_KIND.get(id(obj))
        if place is not None:
            return _found, place
        if isinstance(obj, type):
            if "__msgspec_cache__" in vars(obj):  # what msgspec remembers of a class does not travel, and is found anew
                delattr(obj, "__msgspec_cache__")
            if not _is_importable(obj):
                settle_if_known(obj)
                if issubclass(obj, msgspec.Struct):
                    return reduce_struct(obj)
        elif isinstance(obj, _CACHED) and not _is_importable(obj.__wrapped__):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        elif isinstance(obj, typing.NewType) and not _is_importable(obj):
            return _new_type, (obj.__name__, obj.__supertype__, obj.__module__)
        elif isinstance(obj, functools.cached_property):  # it has a lock in Python 3.11
            return _cached_property, (obj.func, obj.attrname)
        elif isinstance(obj, msgspec.Meta):
            return _meta, ({name: value for name in _OF_META if (value := getattr(obj, name)) is not None},)
        elif isinstance(obj, msgspec.json.Decoder | msgspec.msgpack.Decoder):
            return _decoder, (type(obj), obj.type, obj.strict, obj.dec_hook)
        elif isinstance(obj, msgspec.json.Encoder | msgspec.msgpack.Encoder):
            return _encoder, (type(obj), obj.enc_hook, obj.decimal_format, obj.uuid_format, obj.order)
        return super().reducer_override(obj)


def _is_importable(thing: Any) -> bool:
    """Whether another process finds it by its name: cloudpickle's own question."""
    module = sys.modules.get(thing.__module__)
    if module is None or module.__name__ == "__main__" or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return False
    found: Any = module
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing or getattr(found, "__wrapped__", None) is thing


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _cached_property(function: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _new_type(name: str, supertype: Any, module: str) -> Any:
    made = typing.NewType(name, supertype)  # type: ignore[misc]
    made.__module__ = module
    return made


def _meta(settings: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**settings)


def _decoder(kind: Any, value_type: Any, strict: bool, dec_hook: Any) -> Any:
    return kind(value_type, strict=strict, dec_hook=dec_hook)


def _encoder(kind: Any, enc_hook: Any, decimal_format: Any, uuid_format: Any, order: Any) -> Any:
    return kind(enc_hook=enc_hook, decimal_format=decimal_format, uuid_format=uuid_format, order=order)


def forget_where_classes_came_from() -> None:
    """A class that goes back to where it was made is a copy there, and the one that was made stays as it is.

    Otherwise cloudpickle would take it for the one that was made, and set that one's attributes anew.
    """
    from cloudpickle import cloudpickle as its_own

    its_own._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    its_own._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
