"""What must hold, seen by one who knows everything: every commit as it is made, every byte of the disk."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.ledger import Checkpoint, Commit, Ledger
from millstream.core.parts import Columns, Part, RowsPart, decode_columns
from millstream.errors import MillstreamError
from millstream.journal.commits import Commits
from millstream.journal.follower import Follower
from millstream.journal.opening import open_ledger
from millstream.journal.segments import segment_path
from millstream.mill.held import IDENTITY, Held, decode_changes
from millstream.mill.messages import Join, Welcome
from millstream.timestamp import START_OF_TIME
from tests.core.cases import Item
from tests.core.topologies import Note
from tests.invariants import Entry, timers_in_order, write
from tests.simulation.scene import Seen, injected

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import World

Id = tuple[str, int, int]
Rows = dict[tuple[int, str, str], Any]

_decode_item = msgspec.json.Decoder(Item).decode
_decode_seen = msgspec.json.Decoder(Seen).decode
_decode_note = msgspec.json.Decoder(Note).decode
_decode_identity = msgspec.msgpack.Decoder(Checkpoint).decode


class Broken(AssertionError):
    """A law does not hold."""


class Found(msgspec.Struct, frozen=True):
    """A record as a commit named it."""

    epoch: int
    id: Id
    key: str
    value: bytes
    timestamp: int
    kept: bool = True  # as the code of that epoch said


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = Ledger()
        self.commits = Commits(world.disk)
        self.ids: list[str] = [""]  # of the chain, by number
        self.records: dict[str, list[Found]] = {}
        self.seen_ids: set[tuple[str, Id]] = set()
        self.folds: list[list[tuple[int, Rows]]] = [[(0, {})] for _ in range(world.sizes.lanes)]
        self.said: dict[str, Counter[Any]] = {}
        self.book: Any = {}
        self.shown: dict[int, str] = {}  # by a reader from outside
        self.follower: Follower | None = None
        self.expected: dict[str, list[Found]] = {}  # by reader of a probe: what it must have seen
        self.probed: dict[tuple[str, str], tuple[int, int]] = {}  # by stream and key: the last count and draw
        self._epochs_of: dict[str, list[int]] = {}
        self.places: dict[int, list[tuple[str, Part]]] = {}  # plain parts by epoch, of kept streams
        self.unkept: dict[str, list[tuple[int, str, Part]]] = {}  # by stream: those that the log leaves out
        self.first_minor: dict[tuple[str, int], int] = {}  # of those
        self.unkept_streams: list[str] = []
        self.began: dict[str, int] = {}  # by delivery: the commit in which it came
        self.rows_at: list[list[tuple[int, str, RowsPart]]] = [[] for _ in range(world.sizes.lanes)]

    def last_records(self, upto: int, stream: str | None = None) -> int:
        """The newest epoch up to this one that has records, of one stream, or of any for the log."""
        of = sorted(self.places) if stream is None else self._epochs_of.get(stream, [])
        place = bisect_right(of, upto)
        return of[place - 1] if place else 0

    # Commits.

    def claimed(self, run: Run, ledger: Ledger) -> None:
        """A run believes that it owns the journal, with this ledger. It may have slept since it made its commit."""
        with self.world.unseen():
            self._catch_up(ledger.number)
            self._is_of_chain(run, ledger.number, ledger.id)
            if ledger.number == self.ledger.number:
                self._same(ledger, f"run {run.number}")
                self.check_needed()

    def committed(self, run: Run, commit: Commit) -> None:
        """A run believes that its commit is durable."""
        with self.world.unseen():
            self._catch_up(commit.number)
            self._is_of_chain(run, commit.number, commit.id)
            self.world.clean = None

    def _catch_up(self, number: int) -> None:
        for commit in self.commits.span(self.ledger.number + 1, number):
            self._apply(commit)

    def _is_of_chain(self, run: Run, number: int, id: str) -> None:
        if self.ids[number] != id:
            raise Broken(f"run {run.number} believes that commit {number} is {id}; it is {self.ids[number]}")

    def _same(self, ledger: Ledger, who: str) -> None:
        mine, theirs = msgspec.to_builtins(self.ledger), msgspec.to_builtins(ledger)
        for name, found in mine.items():
            if theirs[name] != found:
                raise Broken(f"the ledger of {who} differs in {name}: {theirs[name]}, the commits say {found}")

    def _apply(self, commit: Commit) -> None:
        before = self.ledger
        if commit.before != before.id or commit.number != before.number + 1:
            raise Broken(f"commit {commit.number} {commit.id} follows {commit.before}, not {before.number} {before.id}")
        shown = self.shown.get(commit.number)
        if shown is not None and shown != commit.id:
            raise Broken(f"a reader was shown commit {commit.number} as {shown}; it is {commit.id}")
        lws, promises, now = dict(before.low_watermarks), dict(before.promises), before.now
        waiting = {segment: dict(offsets) for segment, offsets in before.waiting.items()}
        self._expect(commit, waiting)
        try:
            before.apply(commit)
        except LookupError as error:
            raise Broken(f"commit {commit.number} takes or frees what is not there: {error!r}") from error
        self.ids.append(commit.id)
        if commit.now < now:
            raise Broken(f"now goes back from {now} to {commit.now}")
        for name, lw in lws.items():
            if before.low_watermarks[name].input < lw.input:
                raise Broken(f"the low watermark of {name} goes back from {lw.input} to {before.low_watermarks[name].input}")
        for name, promise in promises.items():
            if before.promises[name] < promise:
                raise Broken(f"the promise of {name} goes back")
        for offsets in before.waiting.values():
            for _, part in offsets.values():
                for name in self._readers_of(part):
                    lw = before.low_watermarks.get(name)
                    if lw is not None and part.oldest < lw.input:
                        raise Broken(f"{name} is at {lw.input}, and a record of {part.oldest} waits for it")
        for name, tally in before.tallies.items():
            if tally.late:
                raise Broken(f"{tally.late} records were late for {name}: {tally}")
            if tally.received != tally.applied + tally.dropped + tally.diverted + tally.dead:
                raise Broken(f"{name} received what went nowhere: {tally}")
        if commit.logged is not None and commit.logged > self.world.table.versions[-1].upto:
            raise Broken(f"commit {commit.number} says that the log has {commit.logged}; it has {self.world.table.versions[-1].upto}")
        if commit.plant is not None:
            self.unkept_streams = commit.plant.unkept
            self.began = {name: self.began.get(name, commit.number) for name in commit.plant.deliveries}
        self._read(commit)

    def _readers_of(self, part: Part) -> set[str]:
        readers = self.ledger.readers
        if part.reader:
            return {part.reader.partition(" ← ")[0]} if part.reader in readers else set()
        return {name.partition(" ← ")[0] for name, reader in readers.items() if reader.stream == part.stream and not reader.rekeyed}

    def _read(self, commit: Commit) -> None:
        """What the frames hold: everything that a commit names must be there, whole."""
        diary: list[tuple[Id, Entry]] = []
        for frame in commit.frames:
            for part in frame.parts:
                columns = self.part(frame.segment, part)
                if len(columns) != part.records:
                    raise Broken(f"a part of {frame.segment} holds {len(columns)} records, and the commit says {part.records}")
                if part.reader:
                    continue
                if not columns.keys:
                    continue
                if part.stream in self.unkept_streams:
                    self.unkept.setdefault(part.stream, []).append((commit.number, frame.segment, part))
                    self.first_minor[frame.segment, part.offset] = columns.minors[0]
                else:
                    self.places.setdefault(commit.number, []).append((frame.segment, part))
                self._epochs_of.setdefault(part.stream, []).append(commit.number)
                self._take_records(commit, part, columns, diary)
            if frame.rows is not None and frame.lane >= 0:
                self._take_rows(commit.number, frame.lane, frame.segment, frame.rows)
        entries = [entry for _, entry in sorted(diary, key=lambda each: each[0])]
        for entry in entries:
            if entry.does == "fire":
                pending = self.book.get((entry.computation, entry.key), {}).get(entry.tag)
                if pending is None or (pending.at, pending.wall) != (entry.at, entry.wall):
                    raise Broken(f"{entry} fired in epoch {commit.number}; pending was {pending}")
            timers_in_order(self.book, [entry])
            write(self.book, entry)

    def _take_records(self, commit: Commit, part: Part, columns: Columns, diary: list[tuple[Id, Entry]]) -> None:
        stream = part.stream
        if stream not in self.world.scene.sources and part.major != commit.number:
            raise Broken(f"records of epoch {part.major} were committed in epoch {commit.number}")
        into = self.records.setdefault(stream, [])
        for key, value, timestamp, minor in zip(columns.keys, columns.values, columns.timestamps, columns.minors, strict=True):
            kept = stream not in self.unkept_streams
            found = Found(commit.number, (part.origin, part.major, minor), key, value, int(timestamp), kept)
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
                if (seen.count, seen.before) != (count + 1, drawn):
                    raise Broken(f"{stream} of key {key!r}: {seen} in epoch {commit.number} follows count {count}, draw {drawn}")
                self.probed[place] = seen.count, seen.drawn
            elif stream.endswith(".diary"):
                note, name = _decode_note(value), stream.removesuffix(".diary")
                does: Any = note.does
                if does == "fire" and note.told != note.at:
                    raise Broken(f"state and timers of {name}, key {key!r} are of two epochs: {note}")
                diary.append((found.id, Entry(name, key, does, note.tag, note.at, note.wall, note.low_watermark, note.now)))

    def _take_rows(self, epoch: int, lane: int, segment: str, part: RowsPart) -> None:
        rows = dict(self.folds[lane][-1][1])
        for bucket, of_computation in decode_changes(self.content(segment, part)).changed.items():
            for name, of_key in of_computation.items():
                for key, row in of_key.items():
                    if row is None:
                        rows.pop((bucket, name, key), None)
                    else:
                        rows[bucket, name, key] = row
        self.folds[lane].append((epoch, rows))
        self.rows_at[lane].append((epoch, segment, part))

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

    # Probes: what each must have seen.

    def _expect(self, commit: Commit, waiting: dict[str, dict[int, tuple[int, Part]]]) -> None:
        """A reader that goes loses what waits for it; one that comes gets what is named from its epoch on."""
        for name, reader in commit.readers.items():
            old = self.ledger.readers.get(name)
            if old is not None and name in self.expected:
                lost = set[Id]()
                for segment, offsets in waiting.items():
                    for number, part in offsets.values():
                        mine = part.reader == name if old.rekeyed else (not part.reader and part.stream == old.stream)
                        if mine and number >= old.since:
                            lost |= {(part.origin, part.major, minor) for minor in self.part(segment, part).minors}
                self.expected[name] = [found for found in self.expected[name] if found.id not in lost]
            if reader is not None:
                self.expected.setdefault(name, [])
        readers = {**self.ledger.readers, **commit.readers}
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

    # Lanes.

    def welcomed(self, run: Run, join: Join, welcome: Welcome) -> None:
        if self.world.clean is not None and run.fence > self.world.clean and welcome.redo:
            raise Broken(f"after a stop, lane {join.lane} has to redo {[redo.epoch for redo in welcome.redo]}")

    def fold_at(self, lane: int, epoch: int) -> Rows:
        folds = self.folds[lane]
        return folds[bisect_right(folds, epoch, key=lambda each: each[0]) - 1][1]

    def check_state(self, lane: int, state: dict[str, bytes]) -> None:
        """A batch that Spark commits is the fold of the committed frames up to the epoch that it says."""
        stored = state.get(IDENTITY)
        identity = Checkpoint() if stored is None else _decode_identity(stored)
        epoch = identity.at.epoch
        if epoch > self.ledger.number or self.ids[epoch] != identity.at.commit:
            raise Broken(f"a checkpoint of lane {lane} is of commit {epoch} {identity.at.commit}, and there is no such commit")
        rows = self.fold_at(lane, epoch)
        held = Held(_Frozen(state), memory=None)
        counts: Counter[tuple[int, str]] = Counter()
        for (bucket, name, key), row in rows.items():
            found = held.rows(bucket, name).get(key)
            counts[bucket, name] += 1
            if found != row:
                raise Broken(f"the checkpoint of lane {lane} at {epoch} has {found!r} for {name} key {key!r}, the frames say {row!r}")
        names = {name for _, rows in self.folds[lane] for _, name, _ in rows}
        for bucket in range(self.world.sizes.buckets):
            for name in names:
                if (there := held.rows(bucket, name).rows) != counts[bucket, name]:
                    raise Broken(f"the checkpoint of lane {lane} at {epoch} has {there} rows of {name}, the frames {counts[bucket, name]}")

    # What is needed is there.

    def check_needed(self) -> None:
        with self.world.unseen():
            for segment in self.ledger.segments:  # a start refuses a folder where one is missing that no commit has declared free
                if segment_path(segment) not in self.world.disk.entries:
                    raise Broken(f"{segment} is not there, and no commit has declared it free")
            for segment, offsets in self.ledger.waiting.items():
                for _, part in offsets.values():
                    self.content(segment, part)
            for lane, folder in enumerate(self.world.lanes):
                least = min(len(folder.batches), max(0, folder.proved - 1))
                stored = folder.state(least).get(IDENTITY)
                epoch = 0 if stored is None else _decode_identity(stored).at.epoch
                for number, segment, part in self.rows_at[lane]:
                    if number > epoch:
                        self.content(segment, part)
            durable = max(version.upto for version in self.world.table.versions if version.durable)
            for number, places in self.places.items():
                if number > durable:
                    for segment, part in places:
                        self.content(segment, part)
            for name, stream in self.ledger.plant.deliveries.items():
                target = self.world.targets.get(name)
                had = {each for step in target.steps for each in step} if target is not None else set()
                for number, segment, part in self.unkept.get(stream, ()):
                    first = (part.origin, part.major, self.first_minor[segment, part.offset])
                    if number > self.began[name] and first not in had:
                        self.content(segment, part)

    def power_lost(self) -> None:
        """What was believed is there still."""
        with self.world.unseen():
            if self.ledger.number:
                ledger = open_ledger(self.commits)
                if ledger.number < self.ledger.number:
                    raise Broken(f"commit {self.ledger.number} was believed, and the power took it: the journal ends with {ledger.number}")
                if (newest := max(self.shown, default=0)) > ledger.number:
                    raise Broken(f"a reader was shown commit {newest}, and the power took it")
            self.check_needed()
        self.follower = None

    # Readers.

    def reader_polls(self) -> None:
        if self.follower is None or self.world.rng.random() < 0.05:
            self.follower = Follower(self.commits)
        try:
            news = self.follower.poll()
        except MillstreamError as error:
            if "cannot be used" in str(error):
                self.follower = None
                return
            raise Broken(f"a reader found {error}") from error
        found = [(commit.number, commit.id) for commit in news.commits]
        if news.ledger is not None and news.ledger.number:
            found.append((news.ledger.number, news.ledger.id))
        for number, id in found:
            known = self.ids[number] if number < len(self.ids) else self.shown.setdefault(number, id)
            if known != id:
                raise Broken(f"a reader was shown commit {number} as {id}; it is {known}")

    def _for(self, delivery: str, stream: str) -> list[Found]:
        """What a delivery is to get: all that the log has, and of the rest what came after it."""
        return [found for found in self.records.get(stream, []) if found.kept or found.epoch > self.began[delivery]]

    def check_delivered(self, delivery: str, stream: str, ids: list[Id], a: int, b: int) -> None:
        wanted = sorted(found.id for found in self._for(delivery, stream) if a < found.epoch <= b)
        if ids != wanted:
            raise Broken(f"a step of ({a}, {b}] of {stream} has {ids}; committed are {wanted}")

    def check_ending(self, run: Run, error: BaseException) -> None:
        """A run may end by what the world did to it, by a program that is not right, or because another owns the journal."""
        kind, text, overtaken = getattr(error, "kind", type(error).__name__), str(error), self.overtaken(run)
        if run.fence and not overtaken and kind == "Fenced":
            raise Broken(f"run {run.number} ends as overtaken, and nobody owns the journal but it: {text}")
        if overtaken and kind == "Damage":
            raise Broken(f"run {run.number} blames the disk, and it is overtaken: {text}")
        if overtaken or kind in ("Fenced", "LaneLost"):
            return
        if "another run writes it" in text and len(self.world.runs) > 1:
            return  # writers of overtaken runs were faster, three times in a row
        if "this program is not right yet" in text:
            return
        if self.world.disk_faults and ("cannot be used" in text or "could not be written" in text):
            return
        raise Broken(f"run {run.number} ends: {error}")

    def overtaken(self, run: Run) -> bool:
        with self.world.unseen():
            return open_ledger(self.commits).fence > run.fence

    # The end.

    def check_end(self) -> None:
        scene = self.world.scene
        for stream, said in scene.said.items():
            if self.said.get(stream, Counter()) != said:
                missing = said - self.said.get(stream, Counter())
                raise Broken(f"{stream} does not say {dict(missing)}")
        came: Counter[Any] = Counter()
        for stream in scene.sources:
            for found in self.records.get(stream, []):
                item = _decode_item(found.value)
                came[stream, found.key, item.number, item.weight, item.at] += 1
        held = injected(scene.case)
        if came != held:
            raise Broken(f"of what the sources hold, the journal lacks {dict(held - came)} and has too much {dict(came - held)}")
        self._check_probes()
        self._check_log()
        for name, target in self.world.targets.items():
            stream = dict(scene.programs[-1].deliveries)[name]
            delivered = sorted(each for step in target.steps for each in step)
            if delivered != (wanted := sorted(found.id for found in self._for(name, stream))):
                raise Broken(f"delivery {name} has {delivered}, and {stream} {wanted}")
        if any(self.book.values()):
            due = [e for of in self.book.values() for e in of.values()]
            raise Broken(f"timers never fired: {due}")

    def _check_probes(self) -> None:
        for name in self.world.scene.programs[-1].after:
            found = self.records.get(f"{name.name}.seen", [])
            seen = Counter((each.number, each.weight, each.at) for each in (_decode_seen(found.value) for found in found))
            wanted: Counter[Any] = Counter()
            for reader, expected in self.expected.items():
                if reader.startswith(f"{name.name} "):
                    wanted.update((i.number, i.weight, i.at) for i in (_decode_item(e.value) for e in expected))
            if seen != wanted:
                raise Broken(f"{name} has seen {dict(seen - wanted)} too much, and {dict(wanted - seen)} not")

    def _check_log(self) -> None:
        for stream, records in self.records.items():
            log = [(r[0], (r[1], r[2], r[3]), r[4], r[5], int(r[6])) for r in self.world.table.found(stream)]
            journal = sorted((r.epoch, r.id, r.key, r.value, r.timestamp) for r in records if r.kept)
            if sorted(log) != journal:
                raise Broken(f"the log of {stream} has {len(log)} records, the commits {len(journal)}")


class _Frozen:
    def __init__(self, state: dict[str, bytes]) -> None:
        self._state = state

    def get(self, key: str) -> bytes | None:
        return self._state.get(key)

    def put(self, key: str, value: bytes) -> None:
        raise Broken("a look writes")

    def remove(self, key: str) -> None:
        raise Broken("a look removes")


assert START_OF_TIME < 0
