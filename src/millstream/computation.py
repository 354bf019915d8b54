"""The class users write: code for one key at a time, with state, timers and outputs."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from millstream import arguments, type_variables
from millstream.errors import TopologyError
from millstream.expiry import Expiry
from millstream.record import Clock, Order, Record, Timer
from millstream.stream import Output, members
from millstream.timestamp import Timestamp

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from millstream.core.turn import Turn

    S = _TypeVar("S", default=None)
else:
    S = TypeVar("S")
V_contra = TypeVar("V_contra", contravariant=True)

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
        made = Output[Any](owner, self.attribute, owner.output_type(self.attribute), self.named.name, keep=self.named.keep)
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
    """User code for one key at a time. `S` is what is kept for each key; leave it out to keep nothing.

    A generic one is a ready-made operator. What its type variables stand for must be known when it runs, for by it state and
    outputs are read back. A class that fills them says so by its bases, near or far:

        class Account(Entity[Move, Moved, int]): ...

    One that is made with the type of its values says so in `type_arguments`, by the names of the variables of the class in
    which that stands:

        class Newest(ms.Computation[V | None], Generic[V]):
            changes: ms.Output[ms.Change[V]]

            def __init__(self, of: type[V]) -> None:
                self.of = of

            def type_arguments(self) -> dict[str, Any]:
                return {"V": self.of}

    And `Newest[Order](...)`, with brackets, fills them too. What nobody fills is `Any`: values come back as dictionaries.
    """

    _turn: ClassVar[Any] = None  # lent by the engine, in the instance, while it processes
    _outputs: ClassVar[dict[str, Any]] = {}
    _input: ClassVar[Any] = None  # what process_record is annotated to take

    expiry: Expiry[Any] | None = None  # of a state that is a dict[ms.Timestamp, ...]: when its entries go
    order: Order = Order.ARRIVAL  # with Order.EVENT_TIME, records and timers of a key come in one sequence of event time

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
        """Called for every record of a key: as they arrive, in the order of their timestamps within an epoch; with
        `order = ms.Order.EVENT_TIME`, once the low watermark has passed it, after all that is older."""

    def process_timer(self, timer: Timer, /) -> None:
        """Called when a timer of this key is due, in the order of their times."""
        raise TopologyError(f"{type(self).__name__} set the timer {timer.tag!r} but has no process_timer; define it")

    def type_arguments(self) -> dict[str, Any]:
        """For generic computations that are made with a type: what their type variables stand for, by name."""
        return {}

    def type_of(self, hint: Any, within: type | None = None) -> Any:
        """`hint` with the type variables filled in that it has where it stands: in the class `within`, a base of this one."""
        known = self._filled().get(within or type(self), {})
        return type_variables.close(type_variables.fill(hint, known))

    def state_type(self) -> Any:
        """What is kept for a key; None if nothing is said."""
        kept = self._filled()[Computation].get(_KEPT)
        return None if kept is None else type_variables.close(kept)

    def output_type(self, attribute: str) -> Any:
        """What the output that is called `attribute` carries."""
        where = next(one for one in type(self).__mro__ if attribute in vars(one).get("__annotations__", {}))
        return self.type_of(type(self)._outputs[attribute], where)

    def input_types(self) -> tuple[Any, ...] | None:
        """What `process_record` is annotated to take; None if it is not annotated."""
        where = next(one for one in type(self).__mro__ if "_input" in vars(one))
        taken = vars(where)["_input"]
        return None if taken is None else members(self.type_of(taken, where))

    def _filled(self) -> dict[type, type_variables.Filled]:
        kind, told = type(self), self.type_arguments()
        teller = next(one for one in kind.__mro__ if "type_arguments" in vars(one))
        known = {variable.__name__ for one in kind.__mro__ for variable in type_variables.variables_of(one)}
        if unknown := sorted(set(told) - known):
            raise TopologyError(
                f"{teller.__name__}.type_arguments names {unknown[0]!r}, which is no type variable of it; "
                f"it has {', '.join(sorted(known - {_KEPT.__name__})) or 'none'}"
            )
        in_brackets = self.__dict__.get("__orig_class__")
        given = type_variables.given_to(in_brackets) if typing.get_origin(in_brackets) is kind else {}
        return type_variables.in_instance(kind, given, told, teller)

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
            if name == "__orig_class__":  # comes after __init__, which may have looked at its outputs
                for attribute in type(self)._outputs.keys() & own.keys():
                    own[attribute].value_type = self.output_type(attribute)

    def __delattr__(self, name: str) -> None:
        if name != "state":
            super().__delattr__(name)
            return
        self.__dict__["state"] = self._lent("state").fresh()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        try:
            hints = _own_hints(cls)
            if "process_record" in vars(cls):
                cls._input = _taken(cls)
        except NameError as error:
            raise TopologyError(
                f"{cls.__name__}: {error.name} is not known yet; define it above the class, outside of any function"
            ) from None
        cls._outputs = dict(cls._outputs)
        for attribute, hint in hints.items():
            _take_output(cls, attribute, hint)


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


def _taken(cls: type[Computation[Any]]) -> Any:
    """The type that `process_record` is annotated to take; None if it is not annotated."""
    seen = [hint for name, hint in typing.get_type_hints(cls.process_record).items() if name != "return"]
    if not seen or typing.get_origin(seen[0]) is not Record:
        return None
    (taken,) = typing.get_args(seen[0])
    return taken


_KEPT = typing.cast(Any, Computation).__parameters__[0]

for _name in LENT:
    setattr(Computation, _name, _Lent(_name))


class Takes(Protocol[V_contra]):
    """Any computation whose `process_record` takes records of `V_contra`."""

    def process_record(self, record: Record[V_contra], /) -> None: ...
    def process_timer(self, timer: Timer, /) -> None: ...
