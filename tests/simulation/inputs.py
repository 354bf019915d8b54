"""Sources that Spark reads: queries that leave a note for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from millstream.core.codec import encode_value
from millstream.core.lanes import Lanes
from millstream.core.parts import NO_LANE, Columns
from millstream.core.route import Dealer
from millstream.journal.errors import Missing
from millstream.journal.leftovers import is_taken
from millstream.journal.names import NOTED, ByTask, ByThread, prefix_of
from millstream.journal.notes import Note
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.mill import noted
from millstream.mill.actions import Fed
from millstream.timestamp import Timestamp
from tests.simulation.scene import Entry
from tests.simulation.turns import Event

if TYPE_CHECKING:
    from tests.simulation.driver import Run
    from tests.simulation.world import World


def columns_of(entries: Sequence[tuple[int, Entry]]) -> Columns:
    """The items among numbered entries."""
    items = [(number, entry.item) for number, entry in entries if entry.item is not None]
    return Columns(
        [item.key for _, item in items],
        [encode_value(item) for _, item in items],
        [Timestamp(item.at) for _, item in items],
        [number for number, _ in items],
    )


def complete_upto(entries: Sequence[tuple[int, Entry]]) -> Timestamp | None:
    found = [entry.complete for _, entry in entries if entry.complete is not None]
    return Timestamp(max(found)) if found else None


class SparkInputFolder:
    """The checkpoint of an injector's query: the ends of its batches, and how many are done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offsets: list[int] = []
        self.durable = 0
        self.done = self.durable_done = 0

    def lose_power(self, world: World) -> None:
        kept = world.rng.randint(min(self.durable, len(self.offsets)), len(self.offsets))
        del self.offsets[kept:]
        self.durable = kept
        self.done = world.rng.randint(min(self.durable_done, kept), min(self.done, kept))
        self.durable_done = self.done

    def sync_planned(self, batch: int) -> None:
        self.durable = max(self.durable, batch + 1)


class SparkInput:
    """The query in one run."""

    def __init__(self, world: World, run: Run, folder: SparkInputFolder) -> None:
        self.world, self.run, self.folder = world, run, folder
        self._dealer = Dealer(run.graph, Lanes(world.sizes.buckets, world.sizes.lanes))
        self._ran: int | None = None
        self._finished = False
        if folder.done and world.chance(world.profile.fall_back):
            folder.done -= 1
            folder.durable_done = min(folder.durable_done, folder.done)
            world.say(f"the query of {folder.name} falls back to batch {folder.done}")

    def events(self) -> Iterator[Event]:
        folder, run = self.folder, self.run
        planner = run.planner
        if self._finished:
            return
        who, name = ("inject", run.number, folder.name), f"run {run.number} query of {folder.name}"
        entries = self.world.scene.sources[folder.name]
        batch = folder.done
        if len(folder.offsets) == batch:
            begun = folder.offsets[-1] if folder.offsets else 0
            if begun < len(entries) and not run.stopping and planner.has_room:
                yield Event(1.0, f"{name} plans batch {batch}", who, run.process, lambda: self._plan(begun))
        elif self._ran != batch:
            yield Event(2.0, f"{name} runs batch {batch}", who, run.process, lambda: run.guarded(lambda: self._run(batch)))
        else:
            yield Event(2.0, f"{name} is done with batch {batch}", who, run.process, lambda: self._done(batch))
        looks = ("looks", run.number, folder.name)
        often = 0.05 if self.world.profile.lazy_notes else 0.5
        yield Event(often, f"run {run.number} looks for notes of {folder.name}", looks, run.process, lambda: run.guarded(self._look))
        source = planner.pending.sources.get(folder.name)
        complete = folder.done == len(folder.offsets) and (folder.offsets[-1] if folder.offsets else 0) == len(entries)
        if complete and (source.batch if source else -1) == folder.done - 1 and not run.stopping:
            yield Event(1.0, f"{name} has ended", who, run.process, self._end)

    def _plan(self, begun: int) -> None:
        entries = self.world.scene.sources[self.folder.name]
        self.folder.offsets.append(min(len(entries), begun + self.world.rng.choice((1, 2, 5, 9))))

    def _run(self, batch: int) -> None:
        folder, world, name = self.folder, self.world, self.folder.name
        begin = folder.offsets[batch - 1] if batch else 0
        entries = list(enumerate(world.scene.sources[name]))[begin : folder.offsets[batch]]
        self.world.point(f"batch {batch} of {name} begins")
        frames = []
        cut = world.rng.randint(0, len(entries))
        for task, some in enumerate((entries[:cut], entries[cut:])):
            columns = columns_of(some)
            columns.minors = [task << 40 | n for n in range(len(columns))]
            dealt = self._dealer.deal(name, name, batch, columns, lane=NO_LANE)
            if dealt:
                writer = SegmentWriter(world.disk, prefix_of(ByTask(name, batch)), world.unique)
                frames.append(writer.write(dealt, lane=NO_LANE))
                writer.roll()
        self.world.point(f"batch {batch} of {name} commits")
        self.sync_planned(batch)
        if not self.run.notes.known(name, batch):
            injected = sum(1 for _, entry in entries if entry.item is not None)
            complete = complete_upto(entries)
            self.run.notes.leave(Note(name, batch, self.run.fence, frames, {} if complete is None else {"": complete}, injected, 0))
        self._ran = batch
        if world.rng.random() < 0.7 and not world.profile.lazy_notes:  # else its message is lost
            self._look()

    def sync_planned(self, batch: int) -> None:
        """Spark's plan of the batch is on the disk before its note is (rule 18)."""
        self.folder.sync_planned(batch)

    def _done(self, batch: int) -> None:
        self._ran = None
        self.folder.done = batch + 1
        if self.world.rng.random() < 0.3:
            self.folder.durable_done = self.folder.done
            self.folder.durable = max(self.folder.durable, self.folder.done)

    def _look(self) -> None:
        run, name = self.run, self.folder.name
        sources = run.planner.pending.sources
        taken = sources[name].batch if name in sources else -1
        while (note := run.notes.next(name, taken)) is not None:
            taken = note.batch
            finished = True if note.finished else None
            writer = SegmentWriter(self.world.disk, prefix_of(ByThread(NOTED, run.fence)), self.world.unique)
            reader = SegmentReader(self.world.disk, sleep=lambda seconds: None, timeout=0.02)
            try:
                frames = noted.frames_of(note, fence=run.fence, dealer=self._dealer, reader=reader, writer=writer)
            except Missing:
                if is_taken(note.name, run.planner.ledger):
                    return
                raise
            run.desk.feed(Fed(name, frames, note.marks, note.injected, note.dead, batch=note.batch, note=note.name, finished=finished))

    def _end(self) -> None:
        self._finished = True
        self.run.desk.feed(Fed(self.folder.name, [], {}, finished=True))
