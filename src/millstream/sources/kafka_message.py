"""A record of a Kafka topic with all that is beside its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from millstream.timestamp import Timestamp

V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class Message(Generic[V_co]):
    """As Kafka has it: `ms.kafka("orders", ms.Message[Order], ...)` gives these, where `ms.kafka("orders", Order, ...)` gives orders.

    A record without a value has the value None: write `ms.Message[Order | None]` where a topic has such records. The names of
    headers may come more than once.
    """

    value: V_co
    key: str | None
    timestamp: Timestamp  # of the producer or of the broker, as the topic is set
    topic: str
    partition: int
    offset: int
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def header(self, name: str) -> bytes | None:
        """The last one of this name; None if there is none."""
        return next((value for known, value in reversed(self.headers) if known == name), None)
