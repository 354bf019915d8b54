"""Entries of the log's Delta table, as they stand in `_delta_log`: who wrote what they name, and whether a bit has turned.

They are written here and not by deltalake: an entry is then on the disk before anyone can see it, it has the number right
after the one that was read or is refused, and it costs the same however many there are (rule 16). The format is Delta's own:
any tool reads the table.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from millstream.errors import LogError

ENTRIES = "_delta_log"
APP_ID = "millstream/log"  # of every entry: its version is the last epoch that the table has
COMPACTED = "millstream/compacted/"  # before the name of a stream: up to the epoch that is its version, each key is there once
CHECKSUM = "checksum"
_UNSEALED = b'"checksum":"00000000"'


class Add(msgspec.Struct, frozen=True, rename="camel"):
    """A file comes to the table. Without `data_change` its records were there before, in other files."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int  # milliseconds: when its newest records were written
    data_change: bool
    stats: str | None = None


class RemoveFile(msgspec.Struct, frozen=True, rename="camel"):
    """A file leaves the table."""

    path: str
    deletion_timestamp: int
    data_change: bool
    partition_values: dict[str, str | None]
    size: int
    extended_file_metadata: bool = True


class Transaction(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class _Line(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    commit_info: dict[str, Any] | None = None
    protocol: dict[str, Any] | None = None
    meta_data: dict[str, Any] | None = None
    txn: Transaction | None = None
    add: Add | None = None
    remove: RemoveFile | None = None


class _Removed(msgspec.Struct, frozen=True):
    """What every tool says of a file that it removes."""

    path: str


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    """What counts in a line, whoever wrote it."""

    commit_info: dict[str, Any] | None = None
    txn: Transaction | None = None
    add: Add | None = None
    remove: _Removed | None = None


class Entry(msgspec.Struct, frozen=True):
    """What one version of the table brought."""

    version: int
    upto: int | None  # the last epoch that the table has; None in what another tool has written
    added: list[Add] = []
    removed: list[str] = []
    compacted: dict[str, int] = {}  # by stream, up to which epoch


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Read).decode


def entry_path(version: int) -> str:
    return f"{ENTRIES}/{version:020d}.json"


def version_of(name: str) -> int | None:
    """The version of an entry, by the name of its file; None for other files."""
    return int(name[:20]) if len(name) == 25 and name.endswith(".json") and name[:20].isdigit() else None


def encode_entry(
    upto: int,
    *,
    id: str,
    now: int,
    operation: str,
    added: Sequence[Add] = (),
    removed: Sequence[RemoveFile] = (),
    compacted: Mapping[str, int] | None = None,
) -> bytes:
    """The content of an entry. `id` tells it from all others; `now` is in milliseconds."""
    lines = [_Line(txn=Transaction(APP_ID, upto))]
    lines += [_Line(txn=Transaction(f"{COMPACTED}{stream}", epoch)) for stream, epoch in (compacted or {}).items()]
    lines += [_Line(remove=each) for each in removed]
    lines += [_Line(add=each) for each in added]
    return _sealed(lines, id=id, now=now, operation=operation)


def encode_first(schema: str, *, partitions: list[str], configuration: dict[str, str], id: str, now: int) -> bytes:
    """The entry that makes a table."""
    meta = {
        "id": id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partitions,
        "configuration": configuration,
        "createdTime": now,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    lines = [_Line(protocol=protocol), _Line(meta_data=meta), _Line(txn=Transaction(APP_ID, 0))]
    return _sealed(lines, id=id, now=now, operation="CREATE TABLE")


def _sealed(lines: list[_Line], *, id: str, now: int, operation: str) -> bytes:
    info = {"timestamp": now, "operation": operation, "operationParameters": {}, "engineInfo": "millstream", "id": id, CHECKSUM: "00000000"}
    content = b"\n".join(_encode(line) for line in [_Line(commit_info=info), *lines]) + b"\n"
    return content.replace(_UNSEALED, b'"checksum":"%s"' % _checksum(content).encode(), 1)


def _checksum(content: bytes) -> str:
    """Of an entry with zeros in the place of its checksum."""
    return f"{zlib.crc32(content):08x}"


def decode_entry(file: str, version: int, content: bytes) -> Entry:
    """Refuses by name what is torn, or where a bit has turned. Another tool's entry has no checksum, and is believed."""
    if not content.endswith(b"\n") and not content.endswith(b"}"):
        raise LogError(damaged(file, "it is cut"))
    added: list[Add] = []
    removed: list[str] = []
    compacted: dict[str, int] = {}
    info: dict[str, Any] | None = None
    upto = None
    try:
        for text in content.splitlines():
            line = _decode(text)
            if line.commit_info is not None:
                info = line.commit_info
            elif line.txn is not None and line.txn.app_id == APP_ID:
                upto = line.txn.version
            elif line.txn is not None and line.txn.app_id.startswith(COMPACTED):
                compacted[line.txn.app_id.removeprefix(COMPACTED)] = line.txn.version
            elif line.add is not None:
                added.append(line.add)
            elif line.remove is not None:
                removed.append(unquote(line.remove.path))
    except msgspec.MsgspecError as error:
        raise LogError(damaged(file, str(error))) from error
    seal = None if info is None else info.get(CHECKSUM)
    if seal is None:
        if upto is not None or info is None or info.get("engineInfo") == "millstream":
            raise LogError(damaged(file, "its checksum is missing"))
    elif seal != _checksum(content.replace(b'"checksum":"%s"' % str(seal).encode(), _UNSEALED, 1)):
        raise LogError(damaged(file, "its checksum does not fit"))
    return Entry(version, upto, added, removed, compacted)


def damaged(file: object, why: str) -> str:
    return f"{file} is damaged: {why}; restore it from a copy: nothing was read past it"
