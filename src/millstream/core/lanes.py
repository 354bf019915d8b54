"""Which lane carries which key: a hash of the key gives its bucket for good, and lanes carry buckets side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millstream.core.pages import bucket_of

CACHED_KEYS = 200_000


class Lanes:
    """Buckets over lanes. Neighbouring buckets share a lane, so that ids that hold the bucket are in order lane by lane."""

    def __init__(self, buckets: int, lanes: int) -> None:
        self.buckets, self.count = buckets, lanes
        self.of_bucket = [bucket * lanes // buckets for bucket in range(buckets)]
        # The bucket of a key. That of one asked for before is found without a call of Python's: it is asked for every record.
        self.bucket: Callable[[str], int] = _Buckets(buckets).__getitem__

    def of_all(self, keys: Iterable[str]) -> list[int]:
        """The lane of each key."""
        return list(map(self.of_bucket.__getitem__, map(self.bucket, keys)))


class _Buckets(dict[str, int]):
    """The buckets of the keys that were asked for last."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def __missing__(self, key: str) -> int:
        if len(self) >= CACHED_KEYS:
            self.clear()
        found = self[key] = bucket_of(key, self._buckets)
        return found
