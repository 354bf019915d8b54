"""Notes: what a batch of an injector's Spark query brought into the journal, left for the planner to take."""

from __future__ import annotations

import re

import msgspec

from millstream.core.parts import Frame
from millstream.journal.disk import Disk
from millstream.journal.errors import Damaged, explained, refusal
from millstream.journal.sealed import seal, unseal
from millstream.timestamp import Timestamp

NOTES = "notes"


class Note(msgspec.Struct, omit_defaults=True):
    """The frames of one batch, which are synced, and how far the injector's partitions are complete with it."""

    injector: str
    batch: int
    fence: int
    frames: list[Frame]
    marks: dict[str, Timestamp]  # complete up to, by partition
    injected: int
    dead: int
    finished: bool = False

    @property
    def name(self) -> str:
        """What a commit calls it when it declares it free."""
        return f"{self.injector}/{self.batch:012d}-{self.fence:06d}"


_NAME = re.compile(r"\d{12}-\d{6}")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Note).decode


class Notes:
    """The notes of a journal. A batch may have several, of different fences: Spark runs one again that it did not finish."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._made: set[str] = set()

    def leave(self, note: Note) -> bool:
        """Make the note, durable; False if the batch has one of this fence already: that one stands.

        Where the outcome is not known it is read back, as that of a commit is. The frames must have been synced (rule 19).
        """
        folder, path = f"{NOTES}/{note.injector}", f"{NOTES}/{note.name}"
        content = seal(_encode(note))
        with explained(path):
            if note.injector not in self._made:
                self._disk.make_folder(folder)
                self._made.add(note.injector)
        try:
            made = self._disk.create_whole(path, content)
        except OSError as error:
            try:
                made = self._disk.read(path) == content
            except OSError:
                made = False
            if not made:
                raise refusal(path, error) from error
        with explained(path):
            self._disk.sync_folder(folder)  # also of one that stands: who made it may have died before its sync
        return made

    def known(self, injector: str, batch: int) -> bool:
        """Whether the batch has a note for good, of any fence: whoever made it may have died before its sync, and Spark does not
        run the batch again after this."""
        if not any(_batch_and_fence(name)[0] == batch for name in self._files(injector)):
            return False
        with explained(folder := f"{NOTES}/{injector}"):
            self._disk.sync_folder(folder)
        return True

    def next(self, injector: str, after_batch: int) -> Note | None:
        """The note of the batch after this one: they are taken in order without gaps (rule 18). Of several the newest fence's."""
        fences = [fence for batch, fence in map(_batch_and_fence, self._files(injector)) if batch == after_batch + 1]
        return self.read(f"{injector}/{after_batch + 1:012d}-{max(fences):06d}") if fences else None

    def read(self, name: str) -> Note | None:
        """The note of this name; None if there is none."""
        path = f"{NOTES}/{name}"
        with explained(path):
            try:
                content = self._disk.read(path)
            except FileNotFoundError:
                return None
        note = unseal(path, content, _decode)
        if note.name != name:
            raise Damaged(f"{path} holds the note {note.name}; restore it from a copy")
        return note

    def injectors(self) -> list[str]:
        with explained(NOTES):
            return self._disk.names(NOTES)

    def names(self, injector: str) -> list[str]:
        """The names of an injector's notes, in the order of batches and fences."""
        return [f"{injector}/{name}" for name in self._files(injector)]

    def remove(self, name: str) -> None:
        """Remove a note that a commit has declared free (rule 13)."""
        with explained(f"{NOTES}/{name}"):
            self._disk.remove(f"{NOTES}/{name}")

    def _files(self, injector: str) -> list[str]:
        with explained(f"{NOTES}/{injector}"):
            names = self._disk.names(f"{NOTES}/{injector}")
        return [name for name in names if _NAME.fullmatch(name)]


def place_of(name: str) -> tuple[str, int]:
    """The injector and the batch that a note of this name is of."""
    injector, _, file = name.rpartition("/")
    return injector, _batch_and_fence(file)[0]


def _batch_and_fence(file: str) -> tuple[int, int]:
    batch, _, fence = file.partition("-")
    return int(batch), int(fence)
