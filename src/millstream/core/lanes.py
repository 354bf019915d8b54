"""Which lane carries which key: a hash of the key gives its bucket for good, and lanes carry buckets side by side."""

from __future__ import annotations

from millstream.core.pages import bucket_of

CACHED_KEYS = 200_000


class Lanes:
    """Buckets over lanes. Neighbouring buckets share a lane, so that ids that hold the bucket are in order lane by lane."""

    def __init__(self, buckets: int, lanes: int) -> None:
        self.buckets, self.count = buckets, lanes
        self.of_bucket = [bucket * lanes // buckets for bucket in range(buckets)]
        self._of_key: dict[str, int] = {}

    def bucket(self, key: str) -> int:
        """The bucket of a key; those asked for last are remembered, for hashing costs more."""
        found = self._of_key.get(key)
        if found is None:
            if len(self._of_key) >= CACHED_KEYS:
                self._of_key.clear()
            found = self._of_key[key] = bucket_of(key, self.buckets)
        return found

    def of(self, key: str) -> int:
        """The lane of a key."""
        return self.of_bucket[self.bucket(key)]
