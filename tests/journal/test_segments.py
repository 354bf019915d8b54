"""Frames are appended, synced and read back whole, or refused by name."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.parts import Dealt, Frame, Part, encode_columns
from millstream.errors import LogError
from millstream.journal import segments
from millstream.journal.errors import Damaged, Missing
from millstream.journal.segments import SegmentReader, SegmentWriter, segment_path
from tests.journal.made import counter, dealt
from tests.journal.simdisk import Crash, SimDisk


def writer_on(disk: SimDisk, prefix: str = "lane-0") -> SegmentWriter:
    return SegmentWriter(disk, prefix, counter())


def reader_on(disk: SimDisk, sleep: Callable[[float], None] = lambda seconds: None) -> SegmentReader:
    return SegmentReader(disk, sleep=sleep)


def test_parts_and_rows_are_read_back() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    one, two = dealt(b"1", b"2", lane=1), dealt(b"3", stream="visits")
    first = writer.append([one, two], rows=b"the rows", row_count=3, lane=0)
    second = writer.append([two], lane=0)
    assert first.segment == second.segment == "lane-0-u0"
    assert disk.names("segments") == ["lane-0-u0"]
    reader = reader_on(disk)
    assert encode_columns(reader.part(first.segment, first.parts[0])) == one.encoded()
    assert encode_columns(reader.part(first.segment, first.parts[1])) == two.encoded()
    assert encode_columns(reader.part(second.segment, second.parts[0])) == two.encoded()
    assert first.rows is not None
    assert first.rows.rows == 3
    assert reader.rows(first.segment, first.rows) == b"the rows"
    assert second.rows is None
    part = first.parts[0]
    assert (part.lane, part.stream, part.records, part.oldest, part.offset) == (1, "clicks", 2, 10, 0)


def test_rows_alone_are_a_frame_and_nothing_is_none() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    with pytest.raises(ValueError, match="leave it out of the report"):
        writer.append([], lane=0)
    assert disk.names("segments") == []
    frame = writer.append([], rows=b"", lane=0)
    assert frame.rows is not None
    assert reader_on(disk).rows(frame.segment, frame.rows) == b""


def test_a_new_segment_begins_when_told_or_when_one_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BYTES_PER_SEGMENT", 100)
    disk = SimDisk()
    writer = writer_on(disk)
    frames = [writer.append([], rows=bytes([n]) * 60, lane=0) for n in range(5)]
    assert [frame.segment for frame in frames] == ["lane-0-u0", "lane-0-u0", "lane-0-u1", "lane-0-u1", "lane-0-u2"]
    writer.roll()
    writer.roll()
    frames.append(writer.append([], rows=b"\5" * 60, lane=0))
    assert frames[-1].segment == "lane-0-u3"
    assert [frame.rows.offset for frame in frames if frame.rows] == [0, 60, 0, 60, 0, 0]
    assert [rows[:1] for _, rows in reader_on(disk).rows_of(enumerate(frames))] == [bytes([n]) for n in range(6)]


def test_rolling_syncs_what_was_only_written() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    frame = writer.write([dealt(b"1")], lane=0)
    writer.roll()
    disk.power_loss()
    assert len(reader_on(disk).part(frame.segment, frame.parts[0])) == 1


# A power loss.


@pytest.mark.parametrize("seed", range(40))
def test_a_synced_frame_survives_and_a_torn_one_is_refused(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    writer = writer_on(disk)
    kept = writer.append([dealt(b"kept" * 10)], rows=b"rows", lane=0)
    torn = writer.write([dealt(b"torn" * 10), dealt(b"more" * 10)], rows=b"last rows", lane=0)
    disk.power_loss()
    reader = reader_on(disk)
    assert reader.part(kept.segment, kept.parts[0]).values == [b"kept" * 10]
    assert kept.rows is not None
    assert reader.rows(kept.segment, kept.rows) == b"rows"
    for part, value in zip(torn.parts, (b"torn", b"more"), strict=True):
        written = disk.read(segment_path(torn.segment), part.offset, part.length)
        if written == dealt(value * 10).encoded():  # chance kept all of it
            assert reader.part(torn.segment, part).values == [value * 10]
            continue
        where = f"^segments/lane-0-u0 is damaged: the part of {part.length} bytes at byte {part.offset} .*; restore it from a copy$"
        with pytest.raises(Damaged, match=where):
            reader.part(torn.segment, part)


def test_every_step_of_a_first_frame_can_be_the_last_one() -> None:
    whole = SimDisk()
    writer_on(whole).append([dealt(b"1")], rows=b"rows", lane=0)
    for step in range(whole.steps):
        disk = SimDisk(random.Random(step))
        disk.crash_at(step)
        with pytest.raises(Crash):
            writer_on(disk).append([dealt(b"1")], rows=b"rows", lane=0)
        disk.power_loss()
        frame = writer_on(disk, "lane-0-again").append([dealt(b"2")], lane=0)
        disk.power_loss()
        assert reader_on(disk).part(frame.segment, frame.parts[0]).values == [b"2"]


# What the disk refuses.


def test_no_space_at_any_byte_breaks_the_writer_and_keeps_what_was_there() -> None:
    size = len(dealt(b"second").encoded()) + len(b"rows")
    for space in range(size):
        disk = SimDisk(random.Random(space))
        writer = writer_on(disk)
        kept = writer.append([dealt(b"first")], lane=0)
        disk.faults.space = space
        with pytest.raises(LogError, match=r"^segments/lane-0-u0 cannot be used: No space left on device; make room and start again$"):
            writer.append([dealt(b"second")], rows=b"rows", lane=0)
        disk.faults.space = None
        for use in (writer.sync, writer.roll, lambda writer=writer: writer.append([dealt(b"third")], lane=0)):
            with pytest.raises(LogError, match=r"nothing more is written there: start again$"):
                use()
        writer.close()
        disk.power_loss()
        assert reader_on(disk).part(kept.segment, kept.parts[0]).values == [b"first"]


@pytest.mark.parametrize("which", [0, 1])  # of the file, of the folder
def test_a_sync_that_fails_breaks_the_writer(which: int) -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    disk.faults.sync = which
    with pytest.raises(LogError, match=r"^segments/lane-0-u0 cannot be used: Input/output error; check the disk and start again$"):
        writer.append([dealt(b"1")], lane=0)
    with pytest.raises(LogError, match="nothing more is written there"):
        writer.append([dealt(b"1")], lane=0)


# What is read.


def one_frame(disk: SimDisk) -> tuple[Frame, Part]:
    frame = writer_on(disk).append([dealt(b"1")], rows=b"rows", lane=0)
    return frame, frame.parts[0]


def test_a_missing_segment_is_missing_at_once() -> None:
    disk = SimDisk()
    frame, part = one_frame(disk)
    disk.remove(segment_path(frame.segment))
    waited: list[float] = []
    with pytest.raises(Missing, match=r"^segments/lane-0-u0 is missing, and a commit names it; restore it from a copy$"):
        reader_on(disk, waited.append).part(frame.segment, part)
    assert waited == []


def test_a_wrong_byte_is_damage_after_the_timeout() -> None:
    disk = SimDisk()
    frame, part = one_frame(disk)
    disk.entries[segment_path(frame.segment)].content[part.offset] ^= 1
    waited: list[float] = []
    with pytest.raises(Damaged, match=rf"the part of {part.length} bytes at byte 0 has a wrong checksum; restore it from a copy$"):
        reader_on(disk, waited.append).part(frame.segment, part)
    assert 5 <= sum(waited) < 7
    assert frame.rows is not None
    assert reader_on(disk).rows(frame.segment, frame.rows) == b"rows"


def test_what_comes_late_is_read_through_a_fresh_open() -> None:
    disk = SimDisk()
    frame, part = one_frame(disk)
    content = disk.entries[segment_path(frame.segment)].content
    whole, content[:] = bytes(content), b""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            content[:] = whole

    reader = reader_on(disk, sleep)
    assert reader.part(frame.segment, part).values == [b"1"]
    assert len(waited) == 3
    assert disk.log.count("forget segments/lane-0-u0") == 3
    content[:] = b""
    waited.clear()
    assert [rows for _, rows in reader.rows_of([(1, frame)])] == [b"rows"]


def test_a_part_whose_checksum_fits_and_whose_content_does_not_is_damage() -> None:
    disk = SimDisk()
    frame = writer_on(disk).append([], rows=b"no columns", lane=0)
    assert frame.rows is not None
    part = dealt(b"1").placed(frame.rows.offset, frame.rows.length, frame.rows.checksum)
    with pytest.raises(Damaged, match=r"^segments/lane-0-u0 at byte 0 is as it was written, and cannot be read: "):
        reader_on(disk).part(frame.segment, part)


# Redo.


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.none() | st.integers(0, 200), st.booleans()), max_size=30),
    seed=st.integers(0, 1000),
)
def test_rows_of_frames_are_those_that_were_written(sizes: list[tuple[int, int | None, bool]], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "BYTES_PER_READ", 400)
        patch.setattr(segments, "SMALL_GAP", 100)
        disk = SimDisk(random.Random(seed))
        writer = writer_on(disk)
        frames, expected = [], []
        for epoch, (value, rows, roll) in enumerate(sizes):
            content = None if rows is None else bytes([epoch]) * rows
            parts: list[Dealt] = [dealt(b"v" * value)] if value or content is None else []
            frames.append((epoch, writer.append(parts, rows=content, lane=0)))
            if content is not None:
                expected.append((epoch, content))
            if roll:
                writer.roll()
        assert list(reader_on(disk).rows_of(frames)) == expected


def test_redo_reads_at_once_what_lies_together() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    frames = [(n, writer.append([dealt(b"v" * 1000)], rows=b"%d" % n, lane=0)) for n in range(500)]
    disk.log.clear()
    assert [rows for _, rows in reader_on(disk).rows_of(frames)] == [b"%d" % n for n in range(500)]
    assert len(disk.log) == 1


def test_redo_names_the_part_that_is_damaged() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    frames = [(n, writer.append([], rows=b"rows %d" % n, lane=0)) for n in range(5)]
    disk.entries["segments/lane-0-u0"].content[15] ^= 1
    reading = reader_on(disk).rows_of(frames)
    assert [next(reading)[0], next(reading)[0]] == [0, 1]
    with pytest.raises(Damaged, match="the part of 6 bytes at byte 12 has a wrong checksum"):
        next(reading)
