"""What the frames of commits hold, record by record: nothing twice, nothing that the input does not say, state and timers as one."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.ledger import Commit, Ledger
from millstream.core.parts import Columns, Part, RowsPart, decode_columns
from millstream.journal.segments import segment_path
from tests.core.cases import Item
from tests.core.topologies import Note
from tests.invariants import events_in_order, timers_in_order
from tests.observed import Entry, Reached, reach, write
from tests.simulation.scene import Seen, injected
from tests.simulation.turns import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World

Id = tuple[str, int, int]

_decode_item = msgspec.json.Decoder(Item).decode
_decode_seen = msgspec.json.Decoder(Seen).decode
_decode_note = msgspec.json.Decoder(Note).decode


class Found(msgspec.Struct, frozen=True):
    """A record as a commit named it."""

    epoch: int
    id: Id
    key: str
    value: bytes
    timestamp: int


class Records:
    """All records that commits have named, and what each reader of a probe must have seen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.of: dict[str, list[Found]] = {}  # by stream
        self.seen_ids: set[tuple[str, Id]] = set()
        self.said: dict[str, Counter[Any]] = {}
        self.book: Any = {}
        self.reached: Reached = {}
        self.expected: dict[str, list[Found]] = {}  # by reader of a probe: what it must have seen
        self.probed: dict[tuple[str, str], tuple[int, int]] = {}  # by stream and key: the last count and draw
        self.newest: dict[tuple[str, str], int] = {}  # likewise, of what comes in order: the last time
        self.places: dict[int, list[tuple[str, Part]]] = {}  # plain parts by epoch
        self.upto: dict[str, tuple[int, int]] = {}  # by origin of what sources gave: the last of its ids
        self._epochs_of: dict[str, list[int]] = {}

    def last(self, upto: int, stream: str) -> int:
        """The newest epoch up to this one that has records of a stream."""
        of = self._epochs_of.get(stream, [])
        place = bisect_right(of, upto)
        return of[place - 1] if place else 0

    def content(self, segment: str, part: Part | RowsPart) -> bytes:
        inode = self.world.disk.entries.get(segment_path(segment))
        if inode is None:
            raise Broken(f"{segment} is not there, and it is needed")
        content = bytes(inode.content[part.offset : part.offset + part.length])
        if len(content) != part.length or zlib.crc32(content) != part.checksum:
            raise Broken(f"{segment} at {part.offset} is damaged, and it is needed")
        return content

    def part(self, segment: str, part: Part) -> Columns:
        return decode_columns(self.content(segment, part))

    def read(self, commit: Commit) -> None:
        """What the frames hold: everything that a commit names must be there, whole."""
        diary: list[tuple[Id, Entry]] = []
        for frame in commit.frames:
            upto = dict(self.upto)  # as it was before this frame, which holds parts for several lanes
            for part in frame.parts:
                columns = self.part(frame.segment, part)
                if len(columns) != part.records:
                    raise Broken(f"a part of {frame.segment} holds {len(columns)} records, and the commit says {part.records}")
                if part.reader:
                    continue
                if not columns.keys:
                    continue
                self.places.setdefault(commit.number, []).append((frame.segment, part))
                self._epochs_of.setdefault(part.stream, []).append(commit.number)
                if part.stream in self.world.scene.sources:
                    self._check_order(part, columns, upto)
                self._take_records(commit, part, columns, diary)
        self._check_positions(commit)
        entries = [entry for _, entry in sorted(diary, key=lambda each: each[0])]
        for entry in entries:
            if entry.does == "fire":
                pending = self.book.get((entry.computation, entry.key), {}).get(entry.tag)
                if pending is None or (pending.at, pending.wall) != (entry.at, entry.wall):
                    raise Broken(f"{entry} fired in epoch {commit.number}; pending was {pending}")
            timers_in_order(self.book, [entry])
            events_in_order(self.book, self.reached, [entry])
            reach(self.reached, entry)
            write(self.book, entry)

    def _check_order(self, part: Part, columns: Columns, upto: dict[str, tuple[int, int]]) -> None:
        """What comes from a partition of a source comes in the order in which it is there."""
        ids = [(part.major, minor) for minor in columns.minors]
        if (before := upto.get(part.origin)) is not None and ids[0] <= before:
            raise Broken(f"of {part.origin}, {ids[0]} comes after {before}")
        self.upto[part.origin] = max(ids[-1], self.upto.get(part.origin, ids[-1]))

    def _check_positions(self, commit: Commit) -> None:
        """A position says what commits have: all before it, and nothing after it."""
        for name in commit.sources.keys() & self.world.sources.keys():
            source = self.world.sources[name]
            for partition, entries in source.partitions.items():
                position = int(self.world.oracle.ledger.sources[name].positions.get(partition, 0))
                for number, entry in enumerate(entries):
                    is_there = (name, (source.origin(partition), 0, number)) in self.seen_ids
                    if entry.item is not None and is_there != (number < position):
                        lies = "is there already" if is_there else "is not there"
                        raise Broken(f"{name} is read up to {position} of {partition!r}, and {number} {lies}")

    def _take_records(self, commit: Commit, part: Part, columns: Columns, diary: list[tuple[Id, Entry]]) -> None:
        stream = part.stream
        if stream not in self.world.scene.sources and part.major != commit.number:
            raise Broken(f"records of epoch {part.major} were committed in epoch {commit.number}")
        into = self.of.setdefault(stream, [])
        for key, value, timestamp, minor in zip(columns.keys, columns.values, columns.timestamps, columns.minors, strict=True):
            found = Found(commit.number, (part.origin, part.major, minor), key, value, int(timestamp))
            if (stream, found.id) in self.seen_ids:
                raise Broken(f"{stream} has {found} twice")
            self.seen_ids.add((stream, found.id))
            into.append(found)
            if stream in self.world.scene.said:
                item = _decode_item(value)
                said = self.said.setdefault(stream, Counter())
                place = (key, item.number, item.weight, int(timestamp))
                said[place] += 1
                if said[place] > self.world.scene.said[stream][place]:
                    raise Broken(
                        f"{stream} says {place} in epoch {commit.number}, and a fold does not: {dict(self.world.scene.said[stream])}"
                    )
            elif stream.endswith(".seen"):
                seen, place = _decode_seen(value), (stream, key)
                count, drawn = self.probed.get(place, (0, 0))
                if self.world.scene.in_order[stream]:
                    if seen.at < self.newest.get(place, seen.at):
                        raise Broken(f"{stream} of key {key!r}: {seen} in epoch {commit.number} comes after {self.newest[place]}")
                    self.newest[place] = seen.at
                if (seen.count, seen.before) != (count + 1, drawn):
                    raise Broken(f"{stream} of key {key!r}: {seen} in epoch {commit.number} follows count {count}, draw {drawn}")
                self.probed[place] = (0, 0) if self.world.scene.forgets[stream] and seen.number % 2 else (seen.count, seen.drawn)
            elif stream.endswith(".diary"):
                note, name = _decode_note(value), stream.removesuffix(".diary")
                does: Any = note.does
                if does == "fire" and note.in_state != note.at:
                    raise Broken(f"state and timers of {name}, key {key!r} are of two epochs: {note}")
                diary.append((found.id, Entry(name, key, does, note.tag, note.at, note.wall, note.low_watermark, note.now)))

    # Probes: what each must have seen.

    def expect(self, commit: Commit, before: Ledger) -> None:
        """A reader that goes loses what waits for it; one that comes gets what is named from its epoch on."""
        for name, reader in commit.readers.items():
            old = before.readers.get(name)
            if old is not None and name in self.expected:
                lost = set[Id]()
                for segment, offsets in before.waiting.items():
                    for number, part in offsets.values():
                        mine = part.reader == name if old.rekeyed else (not part.reader and part.stream == old.stream)
                        if mine and number >= old.since:
                            lost |= {(part.origin, part.major, minor) for minor in self.part(segment, part).minors}
                self.expected[name] = [found for found in self.expected[name] if found.id not in lost]
            if reader is not None:
                self.expected.setdefault(name, [])
        readers = {**before.readers, **commit.readers}
        for frame in commit.frames:
            for part in frame.parts:
                if part.reader:
                    continue
                for name, reader in readers.items():
                    if reader is not None and name.startswith("p") and reader.stream == part.stream and reader.since <= commit.number:
                        columns = self.part(frame.segment, part)
                        rows = zip(columns.keys, columns.values, columns.timestamps, columns.minors, strict=True)
                        self.expected[name] += [
                            Found(commit.number, (part.origin, part.major, minor), key, value, int(at)) for key, value, at, minor in rows
                        ]

    # The end.

    def check_end(self) -> None:
        scene = self.world.scene
        for stream, said in scene.said.items():
            if self.said.get(stream, Counter()) != said:
                missing = said - self.said.get(stream, Counter())
                raise Broken(f"{stream} does not say {dict(missing)}")
        came: Counter[Any] = Counter()
        for stream in scene.sources:
            for found in self.of.get(stream, []):
                item = _decode_item(found.value)
                came[stream, found.key, item.number, item.weight, item.at] += 1
        held = injected(scene.case)
        if came != held:
            raise Broken(f"of what the sources hold, the journal lacks {dict(held - came)} and has too much {dict(came - held)}")
        self._check_probes()
        if any(self.book.values()):
            due = [e for of in self.book.values() for e in of.values()]
            raise Broken(f"timers never fired: {due}")

    def _check_probes(self) -> None:
        for name in self.world.scene.programs[-1].after:
            found = self.of.get(f"{name.name}.seen", [])
            seen = Counter((each.number, each.weight, each.at) for each in (_decode_seen(found.value) for found in found))
            wanted: Counter[Any] = Counter()
            for reader, expected in self.expected.items():
                if reader.startswith(f"{name.name} "):
                    wanted.update((i.number, i.weight, i.at) for i in (_decode_item(e.value) for e in expected))
            if seen != wanted:
                raise Broken(f"{name} has seen {dict(seen - wanted)} too much, and {dict(wanted - seen)} not")
