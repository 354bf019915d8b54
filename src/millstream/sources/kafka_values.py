"""Records of Kafka as values of a source: their JSON text, their ids, and the columns beside them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core.codec import encode_value, value_encoder
from millstream.source import Batch
from millstream.sources.kafka_message import Message
from millstream.sources.kafka_survey import Fetched, KafkaPartition, place

NULL = b"null"
is_json = msgspec.json.Decoder(msgspec.Raw).decode  # 0.1 µs for a small value; raises where it is not

# By name of a column: what it holds of each record.
COLUMNS: dict[str, Callable[[Sequence[Fetched]], list[Any]]] = {
    "key": lambda messages: list(map(_key, messages)),
    "timestamp": lambda messages: [message.timestamp()[1] * 1000 for message in messages],
    "topic": lambda messages: [message.topic() for message in messages],
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
}


class Envelope(msgspec.Struct):
    """A `Message` on its way: the value is JSON already."""

    value: msgspec.Raw
    key: str | None
    timestamp: int
    topic: str
    partition: int
    offset: int
    headers: list[tuple[str, bytes | None]] | tuple[()]


class KafkaValues:
    """What an injector is given of the records of a partition."""

    def __init__(self, value_type: Any, decode: Callable[[bytes], Any] | None, columns: frozenset[str]) -> None:
        self._decode, self._enveloped = decode, is_message(value_type)
        # Of a Message, what it holds is decoded; one that does not say what that is holds anything.
        self._encode = value_encoder(next(iter(typing.get_args(value_type)), None) if self._enveloped else value_type)
        self._columns = sorted(columns & COLUMNS.keys())
        self._plain = not (decode or self._enveloped or self._columns)

    def batch(self, partition: KafkaPartition, messages: Sequence[Fetched], offsets: Sequence[int], upto: int, known: int) -> Batch:
        """Of records in their order; `upto` is the offset up to which the partition is read with them, `known` where it is known to end."""
        values, reasons = [message.value() for message in messages], dict[int, str]()
        columns: list[dict[str, Any]] | None = None
        if not self._plain:
            values = [self._text(place, message, reasons) for place, message in enumerate(messages)]
            if self._columns:
                columns = self._beside(messages, reasons)
        elif None in values:
            values = [NULL if value is None else value for value in values]
        texts = typing.cast(list[bytes], values)
        positions = place(partition, upto, known)
        return Batch(texts, offsets, positions, partition.name, partition.topic, partition.number, columns, reasons)

    def _text(self, place: int, message: Fetched, reasons: dict[int, str]) -> bytes:
        """JSON; what cannot be made so is left as it is, with the reason."""
        found: bytes = NULL if (raw := message.value()) is None else raw
        if self._decode is not None and raw is not None:
            try:
                found = self._encode(self._decode(raw))
            except Exception as error:  # the user's own function
                reasons[place] = f"decode raised {type(error).__name__}: {error}"
                return raw
        if not self._enveloped:
            return found
        try:
            value, key = is_json(found), _key(message)
        except UnicodeDecodeError:
            reasons[place] = _not_text(message)
            return found
        except msgspec.DecodeError as error:
            reasons[place] = f"it cannot be decoded: {error}"
            return found
        topic, number, offset, headers = message.topic(), message.partition(), message.offset(), message.headers()
        return encode_value(Envelope(value, key, message.timestamp()[1] * 1000, topic, number, offset, headers or ()))

    def _beside(self, messages: Sequence[Fetched], reasons: dict[int, str]) -> list[dict[str, Any]]:
        try:
            return self._rows(messages)
        except UnicodeDecodeError:
            found = []
            for place, message in enumerate(messages):
                try:
                    found += self._rows([message])
                except UnicodeDecodeError:
                    reasons.setdefault(place, _not_text(message))
                    found.append(dict.fromkeys(self._columns))
            return found

    def _rows(self, messages: Sequence[Fetched]) -> list[dict[str, Any]]:
        names = self._columns
        return [dict(zip(names, row, strict=True)) for row in zip(*(COLUMNS[name](messages) for name in names), strict=True)]


def is_message(value_type: Any) -> bool:
    return value_type is Message or typing.get_origin(value_type) is Message


def _key(message: Fetched) -> str | None:
    key = message.key()
    return key.decode() if isinstance(key, bytes) else key


def _not_text(message: Fetched) -> str:
    return f"its key is {message.key()!r}, which is not UTF-8; a key is text"
