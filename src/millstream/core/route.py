"""From a stream to its readers: which key each of them sees a record under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millstream.core.codec import value_decoder
from millstream.core.graph import InputPlan


class Router:
    """Extracts the keys of one input. The key of the stream itself costs nothing; a `by` decodes the value."""

    def __init__(self, read: InputPlan) -> None:
        self.read = read
        self._decode: Callable[[bytes | str], Any] = value_decoder(read.stream.value_type) if read.rekeyed else _undecoded

    def keys(self, keys: Sequence[str], values: Sequence[bytes]) -> tuple[list[str], dict[int, str]]:
        """The key of every record for this reader; where it cannot be had, the old key and, by position, the reason."""
        if not self.read.rekeyed:
            return list(keys), {}
        found: list[str] = []
        errors: dict[int, str] = {}
        for position, (old, stored) in enumerate(zip(keys, values, strict=True)):
            try:
                found.append(self._extract(old, stored))
            except Exception as error:  # any code of the user's: reported with the record, by its computation's policy
                found.append(old)
                errors[position] = f"its key cannot be extracted: {type(error).__name__}: {error}"
        return found, errors

    def _extract(self, key: str, stored: bytes) -> str:
        value = self._decode(stored)
        for change in self.read.changes:
            if not change.is_key:
                value = change.apply(value)
                continue
            key = change.apply(value)
            if not isinstance(key, str):
                raise TypeError(f"by(...) returned {key!r}; a key is text: return str(...)")
        return key


def _undecoded(stored: bytes | str) -> Any:
    raise AssertionError("a stream that is not rekeyed is not decoded to route it")
