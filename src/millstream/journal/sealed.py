"""Content with its length and checksum before it, so that what is torn, cut or foreign is refused by name."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from millstream.journal.errors import Damaged

T = TypeVar("T")

_HEADER = struct.Struct("<II")  # length and checksum of what follows


def seal(content: bytes) -> bytes:
    return _HEADER.pack(len(content), zlib.crc32(content)) + content


def unseal(path: str, sealed: bytes, decode: Callable[[bytes], T]) -> T:
    """The one content of a file, decoded."""
    contents = list(unseal_all(path, sealed))
    if len(contents) != 1:
        raise Damaged(f"{path} is damaged: it holds {len(contents)} entries, not one; restore it from a copy")
    return decoded(path, contents[0], decode)


def unseal_all(path: str, sealed: bytes) -> Iterator[bytes]:
    """The contents of a file that is sealed contents one after the other."""
    offset = 0
    while offset < len(sealed):
        start = offset + _HEADER.size
        if start > len(sealed):
            raise Damaged(f"{path} is damaged: it is cut at byte {offset}; restore it from a copy")
        length, checksum = _HEADER.unpack_from(sealed, offset)
        content = sealed[start : start + length]
        if len(content) != length:
            raise Damaged(f"{path} is damaged: it is cut at byte {offset}; restore it from a copy")
        if zlib.crc32(content) != checksum:
            raise Damaged(f"{path} is damaged: the checksum at byte {offset} does not fit; restore it from a copy")
        yield content
        offset = start + length


def decoded(path: str, content: bytes, decode: Callable[[bytes], T]) -> T:
    """A content whose checksum fits."""
    try:
        return decode(content)
    except msgspec.DecodeError as error:  # a ValidationError is one
        raise Damaged(
            f"{path} is as it was written, and cannot be read: {error}; "
            "read the folder with the version of Millstream that wrote it, or restore it from a copy from before"
        ) from error
