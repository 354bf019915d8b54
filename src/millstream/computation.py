"""The class users write: code for one key at a time, with state, timers and outputs."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from millstream import arguments
from millstream.errors import TopologyError
from millstream.expiry import Expiry
from millstream.record import Clock, Record, Timer
from millstream.stream import Output, members
from millstream.timestamp import Timestamp

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from millstream.core.turn import Turn

    S = _TypeVar("S", default=None)
else:
    S = TypeVar("S")
V = TypeVar("V")

LENT = ("key", "now", "low_watermark", "state")


class Named:
    """What `ms.output(...)` leaves in a class body: the name that an output keeps over a rename, and whether the log has it."""

    def __init__(self, name: str | None, keep: bool) -> None:
        self.name, self.keep = name, keep


def output(*, name: str | None = None, keep: bool = True) -> Any:
    """`counts: ms.Output[int] = ms.output(name="count")`: the stream keeps the name that it had before.

    With `keep=False` the log does not have it: nobody reads it but computations and deliveries.
    """
    if name is not None and (not isinstance(name, str) or not name or "." in name):
        raise TopologyError(f"output(name={name!r}): give a name without a dot; the stream is called computation.name")
    if name is not None:
        arguments.name("an output", name, dots=False)
    return Named(name, arguments.flag("output", "keep", keep))


class _Port:
    """Makes the output of an instance at its first use; found in the instance's own dictionary from then on."""

    def __init__(self, attribute: str, named: Named) -> None:
        self.attribute, self.named = attribute, named

    def __get__(self, owner: Computation[Any] | None, kind: type) -> Any:
        if owner is None:
            return self
        made = Output[Any](
            owner, self.attribute, owner.type_of(type(owner)._outputs[self.attribute]), self.named.name, keep=self.named.keep
        )
        owner.__dict__[self.attribute] = made
        return made


class _Lent:
    """Stands in the class for what an instance has only while it processes; the engine puts the real one into the instance."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        raise TopologyError(f"{self.name} is there only inside process_record and process_timer of {kind.__name__}")


def initial_of(kept: Any) -> Callable[[], Any]:
    """How the state of a key is made at first, by its type."""
    if kept is None or kept is Any or type(None) in typing.get_args(kept):
        return lambda: None
    while hasattr(kept, "__supertype__"):
        kept = kept.__supertype__
    return typing.cast(Callable[[], Any], typing.get_origin(kept) or kept)


class Computation(ABC, Generic[S]):
    """User code for one key at a time. `S` is what is kept for each key; leave it out to keep nothing."""

    _turn: ClassVar[Any] = None  # lent by the engine, in the instance, while it processes
    _state_type: ClassVar[Any] = None
    _outputs: ClassVar[dict[str, Any]] = {}
    _inputs: ClassVar[tuple[Any, ...] | None] = None

    expiry: Expiry[Any] | None = None  # of a state that is a dict[ms.Timestamp, ...]: when its entries go

    if TYPE_CHECKING:

        @property
        def key(self) -> str:
            """The key being processed."""

        @property
        def now(self) -> Timestamp:
            """The wall clock of this epoch, the same for all that runs in it; it never moves back."""

        @property
        def low_watermark(self) -> Timestamp:
            """No record older than this will come any more, but late ones."""

        @property
        def state(self) -> S:
            """What is kept for this key: change it, replace it, or `del self.state`."""

        @state.setter
        def state(self, value: S) -> None: ...

        @state.deleter
        def state(self) -> None: ...

    @abstractmethod
    def process_record(self, record: Record[Any], /) -> None:
        """Called for every record of a key, in the order of their timestamps within an epoch."""

    def process_timer(self, timer: Timer, /) -> None:
        """Called when a timer of this key is due, in the order of their times."""
        raise TopologyError(f"{type(self).__name__} set the timer {timer.tag!r} but has no process_timer; define it")

    def type_arguments(self) -> dict[str, Any]:
        """For generic computations: what their type variables stand for when running."""
        return {}

    def type_of(self, hint: Any) -> Any:
        """`hint` with the type variables of this computation filled in."""
        if isinstance(hint, TypeVar):
            return self.type_arguments().get(hint.__name__, Any)
        open_ = getattr(hint, "__parameters__", ())
        if not open_:
            return hint
        known = self.type_arguments()
        return hint[tuple(known.get(variable.__name__, Any) for variable in open_)]

    def state_type(self) -> Any:
        return self.type_of(type(self)._state_type)

    def initial_state(self) -> S:
        """What a key starts with: None if the type allows it, else the type called without arguments."""
        return typing.cast(S, initial_of(self.state_type())())

    def encode_state(self, state: S) -> bytes | None:
        """A codec of your own: bytes for a state. Without it, msgspec keeps the state by its declared type."""
        return None

    def decode_state(self, stored: bytes) -> S:
        """The other half of `encode_state`."""
        raise TopologyError(f"{type(self).__name__} has encode_state but no decode_state; define both")

    def set_timer(self, tag: str, at: Timestamp, *, clock: Clock = Clock.LOW_WATERMARK, hold: Timestamp | None = None) -> None:
        """One timer a tag: setting it again replaces it. A low-watermark timer holds `at`, or an earlier `hold` if given one."""
        self._lent("set_timer").set_timer(tag, at, clock, hold)

    def cancel_timer(self, tag: str) -> None:
        """No timer of this tag any more; fine if there is none."""
        self._lent("cancel_timer").cancel_timer(tag)

    def _lent(self, what: str) -> Turn:
        turn: Turn | None = self._turn
        if turn is None:
            raise TopologyError(f"{what} is there only inside process_record and process_timer of {type(self).__name__}")
        return turn

    def __setattr__(self, name: str, value: object) -> None:
        own = self.__dict__
        if name == "state" and "_turn" in own:  # first, and without a call: it is what happens for every record
            own["state"] = value
        elif name == "state":
            self._lent("state")
        elif own.get("_turn") is not None:
            raise AttributeError(f"self.{name} would be lost after this record; keep it in self.state")
        elif name in type(self)._outputs:
            raise AttributeError(f"{name} is an output; produce to it, do not assign it")
        elif name in LENT:
            raise AttributeError(f"{name} belongs to the engine; it cannot be assigned")
        else:
            own[name] = value

    def __delattr__(self, name: str) -> None:
        if name != "state":
            super().__delattr__(name)
            return
        self._lent("state")
        self.__dict__["state"] = self.initial_state()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        try:
            hints = _own_hints(cls)
            if "process_record" in vars(cls):
                cls._inputs = _taken(cls)
        except NameError as error:
            raise TopologyError(
                f"{cls.__name__}: {error.name} is not known yet; define it above the class, outside of any function"
            ) from None
        cls._outputs = dict(cls._outputs)
        for attribute, hint in hints.items():
            _take_output(cls, attribute, hint)
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is Computation:
                (cls._state_type,) = typing.get_args(base)


def _own_hints(cls: type[Computation[Any]]) -> dict[str, Any]:
    """What the class and its mixins are annotated with. Another computation that it extends has been looked at when it was
    made; where it has come by pickle, the names in its annotations may not even be known."""
    hints: dict[str, Any] = {}
    for one in reversed(cls.__mro__):
        if one is cls or not issubclass(one, Computation):
            body = {"__annotations__": vars(one).get("__annotations__", {}), "__module__": one.__module__}
            hints |= typing.get_type_hints(type(one.__name__, (), body), localns=dict(vars(one)))
    return hints


def _take_output(cls: type[Computation[Any]], attribute: str, hint: Any) -> None:
    if hint is Output:
        raise TopologyError(f"{cls.__name__}.{attribute}: say what it carries, such as Output[int]")
    said_again = attribute in vars(cls).get("__annotations__", {})
    if typing.get_origin(hint) is not Output or (attribute in cls._outputs and not said_again):
        return
    if hasattr(Computation, attribute):
        raise TopologyError(f"{cls.__name__}.{attribute}: {attribute!r} belongs to Computation; choose another name")
    (cls._outputs[attribute],) = typing.get_args(hint)
    own = (one for one in cls.__mro__ if one is cls or not issubclass(one, Computation))
    named = next((vars(one)[attribute] for one in own if attribute in vars(one)), None)
    if named is not None and not isinstance(named, Named | _Port):
        raise TopologyError(f"{cls.__name__}.{attribute} = {named!r}: an output has no value; leave that out, or say ms.output(...)")
    setattr(cls, attribute, _Port(attribute, named if isinstance(named, Named) else Named(None, True)))


def _taken(cls: type[Computation[Any]]) -> tuple[Any, ...] | None:
    """The types that `process_record` is annotated to take; None if it is not annotated."""
    seen = [hint for name, hint in typing.get_type_hints(cls.process_record).items() if name != "return"]
    if not seen or typing.get_origin(seen[0]) is not Record:
        return None
    (taken,) = typing.get_args(seen[0])
    return members(taken)


for _name in LENT:
    setattr(Computation, _name, _Lent(_name))


class Takes(Protocol[V]):
    """Any computation whose `process_record` takes records of `V`."""

    def process_record(self, record: Record[V], /) -> None: ...
    def process_timer(self, timer: Timer, /) -> None: ...
