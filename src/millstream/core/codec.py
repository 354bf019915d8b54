"""Typed values to bytes and back: JSON text for what flows, msgpack for what is kept."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from millstream.computation import Computation, initial_of
from millstream.core.types import custom_class, plain_class
from millstream.core.unions import Shape, shape_of
from millstream.errors import TopologyError
from millstream.fields import has_fields
from millstream.stream import called

encode_value = msgspec.json.Encoder().encode
encode_kept = msgspec.msgpack.Encoder().encode

INSTEAD_OF_CUSTOM = "use a dict, a list, a dataclass or a Struct for it"


def value_decoder(kind: Any, *, strict: bool = True) -> Callable[[bytes | str], Any]:
    """Decodes the JSON text of a value of type `kind`; with `strict=False`, text is taken for numbers too (CSV)."""
    settle(kind)
    refuse_custom(kind, "values of {} cannot be carried in a stream", INSTEAD_OF_CUSTOM)
    shape = shape_of(kind, strict=strict)
    if shape is not None:
        return _then(msgspec.json.Decoder().decode, shape.load)
    try:
        return msgspec.json.Decoder(Any if kind is None else kind, strict=strict).decode
    except TypeError as error:
        raise TopologyError(f"values of {kind} cannot be carried in a stream: {error}") from None


def value_encoder(kind: Any) -> Callable[[Any], bytes]:
    """Encodes values of type `kind` as JSON text."""
    settle(kind)
    shape = shape_of(kind)
    return encode_value if shape is None else _then(shape.dump, encode_value)


def _then(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: second(first(given))


class StateCodec:
    """How the state of a computation is kept: its own codec if it has one, else msgspec by its declared type."""

    def __init__(self, computation: Computation[Any]) -> None:
        kind = type(computation)
        encodes, decodes = kind.encode_state is not Computation.encode_state, kind.decode_state is not Computation.decode_state
        if encodes and not decodes:
            raise TopologyError(f"{kind.__name__} has encode_state but no decode_state; define both")
        self.encode: Callable[[Any], bytes] = (
            computation.encode_state if encodes else _kept_encoder(kind.__name__, computation.state_type())  # type: ignore[assignment]
        )
        # decode_state alone reads what an older version of the code kept.
        self.decode: Callable[[bytes], Any] = (
            computation.decode_state if decodes else _kept_decoder(kind.__name__, computation.state_type())
        )
        # What is kept is read once before it is kept, for a state of another type than declared could never be read again.
        # Bytes of the user's own codec are the user's: a decode_state that is put right can read them.
        self.plain = plain_class(computation.state_type())
        self.check: Callable[[bytes], Any] = _not_checked if encodes or decodes else self.decode
        # Where it is not the user's own, what the type says is looked up once, not for every new key.
        usual = kind.initial_state is Computation.initial_state
        self.fresh: Callable[[], Any] = initial_of(computation.state_type()) if usual else computation.initial_state
        try:
            self.initial: bytes = self.encode(self.fresh())
        except TypeError as error:
            raise TopologyError(f"the state of {kind.__name__} cannot be kept: {error}; define encode_state and decode_state") from None
        if not isinstance(self.initial, bytes):
            raise TopologyError(f"{kind.__name__}.encode_state returned {self.initial!r}; return bytes")


def _not_checked(kept: bytes) -> None:
    return None


def refuse_custom(kind: Any, what: str, remedy: str) -> None:
    """Of a class that msgspec does not know, it writes what it is derived from, such as a dict, and could not read it back."""
    if (custom := custom_class(kind)) is not None:
        raise TopologyError(f"{what.format(called(kind))}: values of {called(custom)} would not come back as such; {remedy}")


def _kept_decoder(owner: str, kind: Any) -> Callable[[bytes], Any]:
    settle(kind)
    refuse_custom(kind, f"the state of {owner} cannot be kept", f"define encode_state and decode_state, or {INSTEAD_OF_CUSTOM}")
    shape = _kept_shape(owner, kind)
    if shape is not None:
        return _then(msgspec.msgpack.Decoder().decode, shape.load)
    try:
        return msgspec.msgpack.Decoder(Any if kind is None else kind).decode
    except TypeError as error:
        raise TopologyError(f"a state of {kind} cannot be kept: {error}; define encode_state and decode_state") from None


def _kept_shape(owner: str, kind: Any) -> Shape | None:
    settle(kind)
    try:
        return shape_of(kind, text_keys=False)
    except TopologyError as error:
        raise TopologyError(f"the state of {owner} cannot be kept: {error}; or define encode_state and decode_state") from None


def _kept_encoder(owner: str, kind: Any) -> Callable[[Any], bytes]:
    shape = _kept_shape(owner, kind)
    return encode_kept if shape is None else _then(shape.dump, encode_kept)


def settle(kind: Any) -> None:
    """Replace text annotations of the classes with fields in `kind` by what they mean.

    Classes from `__main__` travel to Spark's workers by value, and `__main__` is another module there:
    annotations that are still text could not be looked up any more.
    """
    seen: set[Any] = set()

    def visit(part: Any) -> None:
        if part in seen:
            return
        seen.add(part)
        if has_fields(part):
            for owner in part.__mro__:
                _settle_class(owner)
            for hint in typing.get_type_hints(part).values():
                visit(hint)
        for inner in (typing.get_origin(part), *typing.get_args(part)):
            if inner is not None and not isinstance(inner, str | bytes | int):
                visit(inner)

    visit(kind)


def settle_if_known(kind: type) -> None:
    """The same for a class that no stream carries; what is not known where it is defined stays text."""
    if has_fields(kind):
        for owner in kind.__mro__:
            with suppress(TopologyError):
                _settle_class(owner)


def _has_text(hint: Any) -> bool:
    """Whether there is a name in it that stands for a type."""
    if isinstance(hint, str | typing.ForwardRef):
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return False
    return any(map(_has_text, inner[:1] if origin is typing.Annotated else inner))


def _settle_class(owner: type) -> None:
    texts = {name: hint for name, hint in vars(owner).get("__annotations__", {}).items() if _has_text(hint)}
    module = sys.modules.get(owner.__module__)
    if not texts or module is None:
        return
    names = vars(module)
    for name, text in texts.items():
        try:
            # Evaluated as typing.get_type_hints would: the class's own module is the name space.
            owner.__annotations__[name] = typing.get_type_hints(
                type("", (), {"__annotations__": {name: text}}), names, include_extras=True
            )[name]
        except NameError as error:
            raise TopologyError(f"{owner.__name__}.{name}: {error.name} is not known where the class is defined; import it there") from None
