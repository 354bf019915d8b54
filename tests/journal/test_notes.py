"""Notes are left once, survive, and are taken in order."""

from __future__ import annotations

import random

import pytest

from millstream.core.parts import NO_LANE
from millstream.errors import LogError
from millstream.journal.errors import Damaged
from millstream.journal.notes import Note, Notes
from millstream.journal.segments import SegmentReader, SegmentWriter
from millstream.timestamp import Timestamp
from tests.journal.made import counter, dealt
from tests.journal.simdisk import Crash, SimDisk


def note(batch: int, *, fence: int = 1, injected: int = 5, injector: str = "clicks") -> Note:
    return Note(injector, batch, fence, [], {"0": Timestamp(100)}, injected, 0)


def test_a_note_is_read_back_with_its_frames() -> None:
    disk = SimDisk()
    frame = SegmentWriter(disk, "inject-clicks", counter()).append([dealt(b"1")], lane=NO_LANE)
    left = Note("clicks", 0, 3, [frame], {"0": Timestamp(100)}, 1, 2, finished=True)
    assert Notes(disk).leave(left)
    disk.power_loss()
    found = Notes(disk).next("clicks", -1)
    assert found == left
    assert SegmentReader(disk, sleep=lambda seconds: None).part(frame.segment, found.frames[0].parts[0]).values == [b"1"]


def test_notes_are_taken_in_order_without_gaps() -> None:
    notes = Notes(SimDisk())
    assert notes.next("clicks", -1) is None
    for batch in (0, 1, 3):
        notes.leave(note(batch))
    assert notes.next("clicks", -1) == note(0)
    assert notes.next("clicks", 0) == note(1)
    assert notes.next("clicks", 1) is None
    assert notes.next("clicks", 2) == note(3)
    assert notes.next("visits", -1) is None
    assert [notes.known("clicks", batch) for batch in range(4)] == [True, True, False, True]


def test_of_two_notes_of_a_batch_the_newest_fence_is_given() -> None:
    notes = Notes(SimDisk())
    for fence in (2, 10, 9):
        assert notes.leave(note(0, fence=fence))
    found = notes.next("clicks", -1)
    assert found is not None
    assert found.fence == 10
    assert notes.names("clicks") == [f"clicks/000000000000-{fence:06d}" for fence in (2, 9, 10)]


def test_a_note_that_is_there_stands() -> None:
    notes = Notes(SimDisk())
    assert notes.leave(note(0, injected=5))
    assert not notes.leave(note(0, injected=6))
    assert notes.next("clicks", -1) == note(0, injected=5)


def test_a_note_goes_when_it_is_free() -> None:
    notes = Notes(SimDisk())
    notes.leave(note(0))
    notes.leave(note(0, injector="page visits"))
    assert notes.injectors() == ["clicks", "page visits"]
    assert notes.names("page visits") == [note(0, injector="page visits").name]
    notes.remove(note(0).name)
    notes.remove(note(0).name)
    assert not notes.known("clicks", 0)
    assert notes.read(note(0).name) is None


def test_a_note_that_is_known_survives_though_who_left_it_was_killed() -> None:
    """Before its sync of the folder; Spark counts the batch as done once it is known, and does not run it again."""
    for seed in range(20):
        disk = SimDisk(random.Random(seed))

        def kill(what: str) -> None:
            if what == "sync notes/clicks/":
                raise Crash(what)

        disk.on_step = kill
        with pytest.raises(Crash):
            Notes(disk).leave(note(0))
        disk.crash()
        assert Notes(disk).known("clicks", 0)
        disk.power_loss()
        assert Notes(disk).known("clicks", 0)


def test_every_step_can_be_the_last_one() -> None:
    step = 0
    while True:
        disk = SimDisk(random.Random(step))
        Notes(disk).leave(note(0))
        disk.crash_at(step)
        try:
            Notes(disk).leave(note(1))
        except Crash:
            disk.power_loss()
        else:
            break
        assert Notes(disk).next("clicks", -1) == note(0)
        assert Notes(disk).next("clicks", 0) in (None, note(1))
        Notes(disk).leave(note(1))
        disk.power_loss()
        assert Notes(disk).next("clicks", 0) == note(1)
        step += 1
    assert step > 5


def test_a_note_whose_maker_was_killed_is_durable_when_it_is_left_again() -> None:
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        disk.crash_at(7)
        with pytest.raises(Crash, match="sync notes/clicks/"):
            Notes(disk).leave(note(0))
        disk.crash()
        assert not Notes(disk).leave(note(0))
        disk.power_loss()
        assert Notes(disk).known("clicks", 0)


def test_an_unknown_outcome_is_read_back() -> None:
    disk = SimDisk()
    disk.faults.answer = True
    assert Notes(disk).leave(note(0))
    disk.power_loss()
    assert Notes(disk).next("clicks", -1) == note(0)


def test_no_space_at_any_byte_leaves_no_note() -> None:
    disk = SimDisk()
    notes = Notes(disk)
    notes.leave(note(0))
    for space in range(disk.size("notes/clicks/000000000000-000001")):
        disk.faults.space = space
        with pytest.raises(LogError, match=r"^notes/clicks/000000000001-000001 cannot be used: .*; make room and start again$"):
            notes.leave(note(1))
        disk.faults.space = None
        assert notes.names("clicks") == [note(0).name]


def test_damage_is_refused_by_name() -> None:
    disk = SimDisk()
    notes = Notes(disk)
    notes.leave(note(0))
    notes.leave(note(1))
    content = disk.entries["notes/clicks/000000000000-000001"].content
    content[-1] ^= 1
    with pytest.raises(Damaged, match=r"^notes/clicks/000000000000-000001 is damaged: .*; restore it from a copy$"):
        notes.next("clicks", -1)
    disk.entries["notes/clicks/000000000002-000001"] = disk.entries["notes/clicks/000000000001-000001"]
    with pytest.raises(Damaged, match=r"^notes/clicks/000000000002-000001 holds the note clicks/000000000001-000001; restore it"):
        notes.next("clicks", 1)


def test_what_somebody_else_put_there_is_left_alone() -> None:
    disk = SimDisk()
    notes = Notes(disk)
    notes.leave(note(0))
    disk.create_whole("notes/clicks/readme", b"")
    assert notes.names("clicks") == [note(0).name]
