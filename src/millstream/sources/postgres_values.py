"""Values of PostgreSQL, as the server writes them, as JSON text: which types of Python a type of the server fits, and how."""

from __future__ import annotations

import binascii
import collections.abc
import enum
import re
import typing
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from millstream.clients.row_types import bare, without_none
from millstream.stream import called
from millstream.timestamp import Duration, Timestamp, to_timestamp

Encode = Callable[[bytes], bytes]  # ValueError says why there is no JSON for a value

# What the session must be set to, so that values read as is expected here.
AS_TEXT = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}


@dataclass(frozen=True)
class ServerType:
    """A type of the server. A domain is what it is made of."""

    name: str  # as SQL writes it, for people
    base: str = ""  # PostgreSQL's own name for it; empty where it is somebody else's
    element: ServerType | None = None  # of an array
    delimiter: str = ","
    whole: bool = False  # of numeric: without a fraction


def encoder(found: ServerType, hint: Any) -> Encode | None:
    """How values of the type become JSON for a field of this type; None if they do not fit in."""
    kind, _ = without_none(bare(hint))
    if found.base in ("json", "jsonb"):
        return _json
    if found.element is not None:
        return _array_encoder(found, found.element, kind)
    fits = _fits(found)
    if kind is Any:
        return next(iter(fits.values()))
    if typing.get_origin(kind) is typing.Union:
        return next((each for each in (encoder(found, part) for part in typing.get_args(kind)) if each is not None), None)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        kind = _common({type(member.value) for member in kind})
    elif typing.get_origin(kind) is typing.Literal:
        kind = _common({type(value) for value in typing.get_args(kind)})
    return fits.get(kind) if isinstance(kind, Hashable) else None


def suggestion(found: ServerType) -> str:
    """What a field may be declared as, for a message."""
    if found.base in ("json", "jsonb"):
        return "what its JSON is"
    if found.element is not None:
        return f"list[{suggestion(found.element)}]"
    names = [f"ms.{called(kind)}" if kind in (Timestamp, Duration) else called(kind) for kind in _fits(found)]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _fits(found: ServerType) -> dict[Any, Encode]:
    fits = _FITS.get(found.base, _TEXT)
    return {**fits, int: _as_it_is} if found.base == "numeric" and found.whole else fits


def _common(kinds: set[type]) -> Any:
    return kinds.pop() if len(kinds) == 1 else None


# One value each.


def _as_it_is(text: bytes) -> bytes:
    return text


def _number(text: bytes) -> bytes:
    if text[-1] > 57:  # no digit: NaN, Infinity
        raise ValueError(f"{text.decode()} is not a number in JSON")
    return text


def _quoted_number(text: bytes) -> bytes:
    return b'"' + _number(text) + b'"'


def _boolean(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


def _string(text: bytes) -> bytes:
    return msgspec.json.encode(text.decode())


def _quoted(text: bytes) -> bytes:
    return b'"' + text + b'"'


def _json(text: bytes) -> bytes:
    """As it stands, in one line: line breaks are between its tokens only."""
    return text.replace(b"\n", b" ").replace(b"\r", b" ")


def _bytes(text: bytes) -> bytes:
    return b'"' + binascii.b2a_base64(binascii.unhexlify(text[2:]), newline=False) + b'"'


def _date(text: bytes) -> bytes:
    if len(text) != 10:
        raise ValueError(_beyond(text))
    return b'"' + text + b'"'


def _datetime(text: bytes) -> bytes:
    if text[10:11] != b" " or text[-1] > 57:
        raise ValueError(_beyond(text))
    return b'"' + text[:10] + b"T" + text[11:] + b'"'


def _datetime_with_zone(text: bytes) -> bytes:
    if text[10:11] != b" " or not text.endswith(b"+00"):
        raise ValueError(_beyond(text))
    return b'"' + text[:10] + b"T" + text[11:-3] + b'Z"'


def _timestamp(text: bytes) -> bytes:
    """Microseconds; without a time zone, in UTC."""
    try:
        found = datetime.fromisoformat(text.decode())
    except ValueError:
        raise ValueError(_beyond(text)) from None
    return b"%d" % int(to_timestamp(found.replace(tzinfo=UTC) if found.tzinfo is None else found))


def _beyond(text: bytes) -> str:
    return f"{text.decode()} is not within the years 1 to 9999"


def _time(text: bytes) -> bytes:
    if text.startswith(b"24"):
        raise ValueError(f"{text.decode()} is not a time of day in Python, which ends before 24:00")
    return b'"' + text + b'"'


def _time_with_zone(text: bytes) -> bytes:
    return _time(text if text[-3:-2] == b":" else text + b":00")


_INTERVAL = re.compile(
    r"P(?:(?P<years>-?\d+)Y)?(?:(?P<months>-?\d+)M)?(?:(?P<days>-?\d+)D)?"
    r"(?:T(?:(?P<hours>-?\d+)H)?(?:(?P<minutes>-?\d+)M)?(?:(?P<seconds>-?[\d.]+)S)?)?"
)


def _microseconds(text: bytes) -> int:
    match = _INTERVAL.fullmatch(text.decode())
    if match is None:
        raise ValueError(f"the interval {text.decode()} has no length")
    parts = match.groupdict(default="0")
    if parts["years"] != "0" or parts["months"] != "0":
        raise ValueError(f"the interval {text.decode()} has months, which are not all of one length")
    minutes = (int(parts["days"]) * 24 + int(parts["hours"])) * 60 + int(parts["minutes"])
    return minutes * 60_000_000 + int(Decimal(parts["seconds"]) * 1_000_000)


def _duration(text: bytes) -> bytes:
    return b"%d" % _microseconds(text)


def _timedelta(text: bytes) -> bytes:
    length = _microseconds(text)
    seconds, rest = divmod(abs(length), 1_000_000)
    return b'"%sPT%d.%06dS"' % (b"-" if length < 0 else b"", seconds, rest)


_WHOLE: dict[Any, Encode] = dict.fromkeys((int, float, Decimal, Timestamp, Duration), _as_it_is)
_TEXT: dict[Any, Encode] = {str: _string}
# The first one is how a value reads where the field may be anything.
_FITS: dict[str, dict[Any, Encode]] = {
    "int2": _WHOLE,
    "int4": _WHOLE,
    "int8": _WHOLE,
    "oid": _WHOLE,
    "float4": {float: _number},
    "float8": {float: _number},
    "numeric": {Decimal: _quoted_number, float: _number, str: _quoted},
    "bool": {bool: _boolean},
    "date": {date: _date},
    "timestamp": {datetime: _datetime, Timestamp: _timestamp},
    "timestamptz": {datetime: _datetime_with_zone, Timestamp: _timestamp},
    "time": {time: _time},
    "timetz": {time: _time_with_zone},
    "interval": {timedelta: _timedelta, Duration: _duration},
    "uuid": {UUID: _quoted, str: _quoted},
    "bytea": {bytes: _bytes},
}

# Arrays.

_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set, collections.abc.Collection)


def _array_encoder(found: ServerType, element: ServerType, kind: Any) -> Encode | None:
    """An array may have any number of dimensions, whatever its column was declared as: that of the field is found by its type."""
    inner = kind
    while (typing.get_origin(inner) or inner) in _LISTS:
        parts = {each for each in typing.get_args(inner) if each is not ...}
        if len(parts) > 1:
            return None
        inner = without_none(bare(parts.pop() if parts else Any))[0]
    if inner is kind and kind is not Any:
        return None
    encode = encoder(element, inner)
    if encode is None:
        return None
    token = re.compile(rf'"((?:[^"\\]|\\.)*)"|([{{}}])|{re.escape(found.delimiter)}|([^{{}}"{re.escape(found.delimiter)}]+)', re.DOTALL)
    return lambda text: _array(text.decode(), token, encode)


def _array(text: str, token: re.Pattern[str], encode: Encode) -> bytes:
    """`{1,NULL,"a b"}`, perhaps with bounds before it: `[0:2]={…}`."""
    found: list[bytes] = []
    for match in token.finditer(text, text.index("{")):
        quoted, brace, plain = match.groups()
        if brace is not None:
            found.append(b"[" if brace == "{" else b"]")
        elif quoted is not None:
            found.append(encode(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL).encode()))
        elif plain is not None:
            found.append(b"null" if plain == "NULL" else encode(plain.encode()))
        else:
            found.append(b",")
    return b"".join(found)
