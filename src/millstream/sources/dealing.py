"""Values on their way in: decoded, keyed, timed, and dealt to the lanes of their readers; what cannot be right is set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.codec import encode_value, value_encoder
from millstream.core.extract import Extractor, FarFuture, RefusedValue
from millstream.core.graph import DEAD_LETTERS
from millstream.core.parts import NO_LANE, Columns, Dealt, Slice
from millstream.core.route import Dealer
from millstream.core.types import check_integers, has_integers, may_be_large
from millstream.errors import RecordError
from millstream.injector import Injection
from millstream.record import DeadLetter, Errors
from millstream.source import Batch
from millstream.timestamp import Timestamp

TEXT_ROLES = ("key", "partition")
SHOWN = 300  # characters of a bad value that a message shows
NO_REASONS: Mapping[int, str] = {}
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # what decoding raises of a value that is not right


class Taken(msgspec.Struct):
    """What some values became: records, dead letters, and how far each partition of the source is complete."""

    records: Columns
    letters: Columns
    marks: dict[str, Timestamp]


class Intake:
    """What an injector does with the JSON text of its values. The number of a value is the last part of its record's id."""

    def __init__(self, injection: Injection, dealer: Dealer) -> None:
        self._injection, self._dealer = injection, dealer
        self._canonical = injection.source.lenient  # what is kept is spelled by the type of the value
        self._extractor = Extractor(injection, strict=not self._canonical)
        self._encode = value_encoder(injection.source.value_type)
        self._has_integers = has_integers(injection.source.value_type)
        self._named = injection.columns

    def take(self, batch: Batch, *, now: Timestamp, arrived: Timestamp | None = None) -> Slice:
        """What a source gave, ready to be written. `arrived` is when it came, if that is not `now`."""
        self._check_lengths(batch)
        origin = f"{self._injection.name}/{batch.origin}" if batch.origin else self._injection.name
        columns = None if batch.columns is None else list(map(self._by_role, batch.columns))
        taken = self.read(
            batch.numbers,
            batch.values,
            now=now,
            major=batch.major,
            columns=columns,
            reasons=batch.reasons,
            origin=origin,
            arrived=arrived,
        )
        marks = taken.marks
        if batch.partition:
            marks = {f"{batch.partition}/{name}" if name else batch.partition: upto for name, upto in marks.items()}
        if batch.complete is not None and not self._injection.is_timeless:
            marks[batch.partition] = max(batch.complete, marks.get(batch.partition, batch.complete))
        dealt = self.deal(taken, batch.major, origin)
        return Slice(dealt, marks, len(taken.records), len(taken.letters), dict(batch.positions))

    def _check_lengths(self, batch: Batch) -> None:
        """A record without a number has no id, and one with that of another is taken for it."""
        for called, given in (("numbers", batch.numbers), ("columns", batch.columns)):
            if given is not None and len(given) != len(batch.values):
                raise RecordError(
                    f"injector {self._injection.name!r}",
                    f"{self._injection.source.describe()} gave a batch of {len(batch.values)} values with {len(given)} {called}; "
                    f"there must be one for each value",
                )

    def _by_role(self, row: dict[str, Any]) -> dict[str, Any]:
        return {role: str(row[name]) if role in TEXT_ROLES and row[name] is not None else row[name] for role, name in self._named.items()}

    def read(
        self,
        numbers: Sequence[int],
        texts: Sequence[bytes],
        *,
        now: Timestamp,
        major: int = 0,
        columns: Sequence[dict[str, Any]] | None = None,
        reasons: Mapping[int, str] = NO_REASONS,
        origin: str = "",
        arrived: Timestamp | None = None,
    ) -> Taken:
        """Under the policy FAIL the first value that is refused is an error, and none is taken. `columns` are beside the values;
        `reasons` says, by position, why whoever read a value refuses it; `origin` is that of the ids, if not the injector.
        `arrived` is when they came, if that is not `now`."""
        decode = self._extractor.decode
        if columns is None and not reasons:
            try:
                values = list(map(decode, texts))
            except UNDECODABLE:
                values = None
            chunk = None if values is None else self._extractor.extract_all(values, now=now, arrived=arrived)
            if chunk is not None and values is not None:
                kept = list(map(self._encode, values)) if self._canonical else list(texts)
                if not self._are_large(kept, values):
                    records = Columns(chunk.keys, kept, chunk.timestamps, list(numbers))
                    return Taken(records, Columns(), chunk.marks)
        return self._read_each(numbers, texts, columns, reasons, now, arrived, major, origin or self._injection.name)

    def _are_large(self, texts: list[bytes], values: list[Any]) -> bool:
        """Whether each must be looked at by itself: 0.1 µs a record for all at once."""
        if not self._has_integers or not may_be_large(b" ".join(texts)):
            return False
        return any(may_be_large(text) and _is_large(value) for text, value in zip(texts, values, strict=True))

    def deal(self, taken: Taken, major: int, origin: str = "") -> list[Dealt]:
        name = self._injection.name
        dealt = self._dealer.deal(name, origin or name, major, taken.records, lane=NO_LANE)
        return dealt + self._dealer.deal(DEAD_LETTERS, origin or name, major, taken.letters, lane=NO_LANE)

    def refuse(self, why: RefusedValue, number: int, text: str, *, now: Timestamp, major: int, letters: Columns, origin: str = "") -> None:
        """The dead letter of a value. A far future is always set aside; anything else by the injector's policy."""
        name = self._injection.name
        if self._injection.errors is Errors.FAIL and not isinstance(why, FarFuture):
            shown = text if len(text) <= SHOWN else text[:SHOWN] + "…"
            raise RecordError(
                f"injector {name!r}, value {shown}",
                f"{why}. Fix the input or the extractor, or set such values aside with inject(..., errors=ms.Errors.DEAD_LETTER)",
            )
        letters.keys.append("")
        letters.values.append(encode_value(DeadLetter(name, None, None, f"{origin or name}/{major}/{number}", str(why), text)))
        letters.timestamps.append(now)
        letters.minors = [*letters.minors, number]

    def _read_each(
        self,
        places: Sequence[int],
        texts: Sequence[bytes],
        columns: Sequence[dict[str, Any]] | None,
        reasons: Mapping[int, str],
        now: Timestamp,
        arrived: Timestamp | None,
        major: int,
        origin: str,
    ) -> Taken:
        keys, kept, timestamps, numbers = list[str](), list[bytes](), list[Timestamp](), list[int]()
        letters = Columns()
        marks: dict[str, Timestamp] = {}
        decode, extract, no_columns = self._extractor.decode, self._extractor.extract, dict[str, Any]()
        for position, (number, text) in enumerate(zip(places, texts, strict=True)):
            try:
                if position in reasons:
                    raise RefusedValue(reasons[position])
                try:
                    value = decode(text)
                    spelled = self._encode(value) if self._canonical else text
                    if self._has_integers and may_be_large(spelled):
                        check_integers(value)
                except UNDECODABLE as error:
                    raise RefusedValue(f"it cannot be decoded: {error}") from error
                found = extract(value, no_columns if columns is None else columns[position], now=now, arrived=arrived)
            except RefusedValue as refused:
                self.refuse(refused, number, text.decode(errors="replace"), now=now, major=major, letters=letters, origin=origin)
                continue
            keys.append(found.key)
            kept.append(spelled)
            timestamps.append(found.timestamp)
            numbers.append(number)
            upto = marks.get(found.partition)
            if found.complete is not None and (upto is None or found.complete > upto):
                marks[found.partition] = found.complete
        return Taken(Columns(keys, kept, timestamps, numbers), letters, marks)


def _is_large(value: Any) -> bool:
    try:
        check_integers(value)
    except ValueError:
        return True
    return False
