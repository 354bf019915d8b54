"""All rows that a lane holds, from epoch to epoch: of several buckets and all computations, over one store.

Three tiers: decoded pages, pages as bytes, the store. A page is read when one of its keys is first touched, and written when
it is let go for memory or at a checkpoint; what an epoch changed goes into its frame. There is no undo: what an epoch that
failed has done is thrown away with everything else that is held, and comes back by redo.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from millstream.core.apart import MemoryBudget, Store
from millstream.core.pages import Pages
from millstream.core.row import Changes, HeldRow
from millstream.core.timeline import Timeline

IDENTITY = "identity"  # no key of a row: those begin with the number of a bucket
WAITING = "/waiting"  # after the name of a computation: the rows of records that wait for their time; no name has a stroke in it

RowsByBucket = dict[int, dict[str, dict[str, HeldRow | None]]]

_decode = msgspec.msgpack.Decoder(RowsByBucket).decode


def decode_changes(part: bytes) -> Changes:
    """From the rows part of a frame, as `Changes.encode` made it."""
    changed = _decode(part)
    return Changes(changed, sum(len(of_key) for of_bucket in changed.values() for of_key in of_bucket.values()))


# Of the memory that a lane may take, how much its rows may count for: what is let go leaves holes that the allocators keep
# (`python -m bench memory`: with all of it, a lane with ten times the keys that fit took 1.6 to 1.9 times its bound).
COUNTED = 0.65


class Held:
    """The rows of a lane. `memory` bounds what decoded and encoded pages take together, in bytes."""

    def __init__(self, store: Store, *, memory: int | None) -> None:
        self._store = store
        self._room = MemoryBudget(sys.maxsize if memory is None else int(memory * COUNTED), self._make_room)
        self._pages: dict[int, dict[str, Pages]] = {}
        self._touched: dict[tuple[int, str], Pages] = {}
        self._hand, self._encoded_hand = self._round(), self._encoded_round()

    # An epoch.

    def rows(self, bucket: int, computation: str) -> Pages:
        """The rows of a computation in a bucket; the first time costs a round trip. Ask anew in each epoch: only these are settled."""
        of_bucket = self._pages.setdefault(bucket, {})
        pages = of_bucket.get(computation)
        if pages is None:
            kind = Timeline if computation.endswith(WAITING) else Pages
            pages = of_bucket[computation] = kind(self._store, f"{bucket}/{computation}/", self._room)
        self._touched[bucket, computation] = pages
        return pages

    def waiting(self, bucket: int, computation: str) -> Timeline:
        """The rows of records that wait for their time, likewise."""
        pages = self.rows(bucket, f"{computation}{WAITING}")
        assert isinstance(pages, Timeline)
        return pages

    def settle(self) -> Changes:
        """The end of an epoch: what it changed. From here on, the minima of all rows are exact."""
        all_changed: RowsByBucket = {}
        rows = 0
        for (bucket, computation), pages in self._touched.items():
            changed = pages.settle()
            if changed:
                all_changed.setdefault(bucket, {})[computation] = changed
                rows += len(changed)
        self._touched = {}
        if self._room.used > self._room.limit:
            self._make_room()
        return Changes(all_changed, rows)

    def redo(self, epochs: Iterable[Changes]) -> None:
        """Apply what committed epochs changed, the oldest first. The last image of a row wins before it is applied."""
        last: RowsByBucket = {}
        for changes in epochs:
            for bucket, of_computation in changes.changed.items():
                into = last.setdefault(bucket, {})
                for computation, of_key in of_computation.items():
                    into.setdefault(computation, {}).update(of_key)
        for bucket, of_computation in last.items():
            for computation, of_key in of_computation.items():
                self.rows(bucket, computation).redo(of_key)
        self.settle()

    def forget(self) -> None:
        """Throw away all that is held and begin cold from the store; also what was dirty."""
        self._pages, self._touched = {}, {}
        self._room.used = self._room.encoded = 0
        self._hand, self._encoded_hand = self._round(), self._encoded_round()

    # The store.

    def write_back(self, most: int | None = None) -> int:
        """Write up to `most` dirty pages, in an idle moment between epochs; returns how many. The directories stay as they are."""
        written, most = 0, sys.maxsize if most is None else most
        for pages in self._all():
            if written >= most:
                break
            written += pages.write_back(most - written)
        return written

    def checkpoint(self, identity: bytes) -> int:
        """Write all that the store does not have yet, and whose state it then is; returns how many pages were written."""
        written = sum(pages.checkpoint() for pages in self._all())
        self._store.put(IDENTITY, identity)
        return written

    def identity(self) -> bytes | None:
        """Of the checkpoint that the store holds; None if it holds none."""
        return self._store.get(IDENTITY)

    def attach(self, store: Store) -> None:
        """The same state in other hands: Spark gives a new handle with every batch. What is held stays."""
        self._store = store
        for pages in self._all():
            pages.attach(store)

    @property
    def dirty_pages(self) -> int:
        """How many round trips `write_back` would take."""
        return sum(len(pages.dirty) + len(pages.apart.dirty) for pages in self._all())

    @property
    def resident(self) -> int:
        """The bytes that all that is held takes in memory, by its own count."""
        return self._room.used

    def _all(self) -> Iterator[Pages]:
        for of_bucket in self._pages.values():
            yield from of_bucket.values()

    # Memory. Called before a page is fetched and after a row was put, never between the get and the put of a row.

    def _make_room(self) -> None:
        """Let go of what was not touched for longest, until a tenth of the memory is free.

        Decoded pages become bytes; when those take most of the memory, the ones that are so for longest go to the store.
        """
        room = self._room
        # To decode a page again costs a fifth of a round trip, and as bytes it takes down to a tenth of the memory.
        goal, most_encoded = room.limit * 9 // 10, room.limit * 3 // 4
        for _ in range(3):  # the rest of a round; one that takes the marks of what was touched; one in which it goes
            for pages, what in self._hand:
                pages.let_go(what)
                if room.encoded > most_encoded:
                    self._let_go_encoded(most_encoded * 15 // 16)
                if room.used <= goal:
                    return
            self._hand = self._round()
        self._let_go_encoded(max(0, goal - (room.used - room.encoded)))

    def _let_go_encoded(self, goal: int) -> None:
        while self._room.encoded > goal:
            for pages, number in self._encoded_hand:
                pages.let_go_encoded(number)
                if self._room.encoded <= goal:
                    return
            self._encoded_hand = self._encoded_round()

    def _round(self) -> Iterator[tuple[Pages, int | str]]:
        """One round of the clock's hand over what is held decoded. What comes meanwhile is for the next one."""
        for pages in list(self._all()):
            for what in pages.held():
                yield pages, what

    def _encoded_round(self) -> Iterator[tuple[Pages, int]]:
        for pages in list(self._all()):
            for number in list(pages.encoded):
                yield pages, number
