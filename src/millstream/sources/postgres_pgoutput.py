"""The messages of pgoutput, PostgreSQL's own plugin for logical decoding, in version 1 of its protocol: bytes in, values out.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import enum
import struct
from typing import TypeAlias

import msgspec

from millstream.errors import LogError
from millstream.timestamp import Timestamp

EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, from which PostgreSQL counts


class Unsent(enum.Enum):
    """A value that is not in the message: it is large, kept apart (TOAST), and was not changed."""

    UNCHANGED = "unchanged"


UNCHANGED = Unsent.UNCHANGED

Cell: TypeAlias = bytes | Unsent | None  # of a row: text as the server writes it, NULL, or not sent


class TransactionBegin(msgspec.Struct, frozen=True):
    """A transaction follows, whole: it was committed before anything of it is sent."""

    commit: int  # where its commit stands in the WAL
    time: Timestamp


class TransactionEnd(msgspec.Struct, frozen=True):
    """It ends."""

    commit: int
    end: int  # of the record of its commit: from there the WAL is read on


class RelationColumn(msgspec.Struct, frozen=True):
    name: str
    type: int  # its oid
    modifier: int


class Relation(msgspec.Struct, frozen=True):
    """A table as it was at the changes that follow."""

    oid: int
    schema: str
    table: str
    identity: bytes  # what of an old row is sent: b"f", all of it
    columns: tuple[RelationColumn, ...]


class RowChange(msgspec.Struct, frozen=True):
    """A row that came, changed or went."""

    relation: int
    kind: int  # the letter of the message: I, U, D
    before: list[Cell] | None
    after: list[Cell] | None
    whole: bool = True  # `before` is the old row, and not its key alone


class Truncated(msgspec.Struct, frozen=True):
    relations: tuple[int, ...]


class Other(msgspec.Struct, frozen=True):
    """Of no concern here: where a transaction came from, what a type is called, what a program has put in."""


Decoded: TypeAlias = TransactionBegin | TransactionEnd | Relation | RowChange | Truncated | Other

OTHER = Other()

_BEGIN = struct.Struct(">xQq")  # the number of the transaction follows
_COMMIT = struct.Struct(">xxQQ")  # the time follows
_COLUMN = struct.Struct(">Ii")
_INSERT, _UPDATE, _DELETE, _NEW, _OLD = b"IUDNO"
_TEXT, _NULL, _SAME = b"tnu"


def decode(message: bytes) -> Decoded:
    """One message. `ms.LogError` for what is none of this version."""
    try:
        kind = message[0]
        if kind in (_INSERT, _UPDATE, _DELETE):
            return _row(message, kind)
        match chr(kind):
            case "B":
                commit, time = _BEGIN.unpack_from(message)
                return TransactionBegin(commit, Timestamp(time + EPOCH))
            case "C":
                return TransactionEnd(*_COMMIT.unpack_from(message))
            case "R":
                return _relation(message)
            case "T":
                count = int.from_bytes(message[1:5], "big")
                return Truncated(struct.unpack_from(f">{count}I", message, 6))
            case "O" | "Y" | "M":
                return OTHER
    except (IndexError, struct.error, ValueError):
        raise LogError(
            f"pgoutput sent a message {message[:1]!r} of {len(message)} bytes that ends too early or is not as it should"
        ) from None
    raise LogError(f"pgoutput sent a message {message[:1]!r}, which its protocol does not have in version 1")


def _row(message: bytes, kind: int) -> RowChange:
    relation = int.from_bytes(message[1:5], "big")
    if kind == _INSERT:
        return RowChange(relation, kind, None, _cells(message, 6)[0])
    first = message[5]
    if first == _NEW:  # an update without the old row
        return RowChange(relation, kind, None, _cells(message, 6)[0], False)
    before, at = _cells(message, 6)
    if kind == _DELETE:
        return RowChange(relation, kind, before, None, first == _OLD)
    return RowChange(relation, kind, before, _cells(message, at + 1)[0], first == _OLD)


def _cells(message: bytes, at: int) -> tuple[list[Cell], int]:
    """The values of a row that begins there, and where it ends. Called for every row, and goes over all its columns."""
    found: list[Cell] = []
    add = found.append
    count = message[at] << 8 | message[at + 1]
    at += 2
    for _ in range(count):
        kind = message[at]
        if kind == _TEXT:
            begin = at + 5
            at = begin + (message[at + 1] << 24 | message[at + 2] << 16 | message[at + 3] << 8 | message[at + 4])
            add(message[begin:at])
        else:
            at += 1
            if kind != _NULL and kind != _SAME:
                raise ValueError(kind)
            add(None if kind == _NULL else UNCHANGED)
    if at > len(message):
        raise ValueError(at)
    return found, at


def _relation(message: bytes) -> Relation:
    oid = int.from_bytes(message[1:5], "big")
    schema, at = _name(message, 5)
    table, at = _name(message, at)
    identity, count = message[at : at + 1], int.from_bytes(message[at + 1 : at + 3], "big")
    at += 3
    columns = []
    for _ in range(count):
        name, at = _name(message, at + 1)  # after a flag
        columns.append(RelationColumn(name, *_COLUMN.unpack_from(message, at)))
        at += _COLUMN.size
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _name(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
