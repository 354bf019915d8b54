"""What in a folder must fit together, and finding the file that is to blame."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from millstream.core.ledger import Checkpoint, Identity, Ledger, Segment
from millstream.core.parts import Part, RowsPart
from millstream.errors import LogError
from millstream.journal.commits import Commits
from millstream.journal.disk import LocalDisk
from millstream.journal.notes import Note, Notes
from millstream.log.checks import check_injector, check_lane, check_noted, check_segments, checkpoint_of, damaged_files
from millstream.log.folder import Folder
from millstream.mill.messages import Redo
from millstream.spark.launch import Died, cause_of
from millstream.timestamp import Timestamp


def checkpoint(folder: Folder, query: str, *, offsets: int, commits: int) -> Path:
    """As Spark would leave it: so many batches planned, so many done."""
    path = folder.checkpoint(query)
    for place, count in (("offsets", offsets), ("commits", commits)):
        (path / place).mkdir(parents=True)
        for batch in range(count):
            (path / place / str(batch)).touch()
    (path / "metadata").touch()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "mill")


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (("offsets/4", "offsets/3"), r"offsets/3 is missing, but .*commits/3 is there"),
        (("commits/3",), r"commits/3 is missing, but batch 4 follows it"),
        (("metadata",), r"metadata is missing, but .*offsets/4 is there"),
    ],
)
def test_a_checkpoint_that_lacks_a_file_in_the_middle_is_refused_by_name(folder: Folder, gone: tuple[str, ...], message: str) -> None:
    path = checkpoint(folder, "lane 0", offsets=5, commits=4)
    found = checkpoint_of(folder, "lane 0")
    assert (found.done, found.planned) == (3, 4)
    for name in gone:
        (path / name).unlink()
    with pytest.raises(LogError, match=message):
        checkpoint_of(folder, "lane 0")


def test_a_lane_needs_its_checkpoint_once_the_journal_has_let_go(folder: Folder) -> None:
    ledger = Ledger(number=9, freed={0: 5})
    with pytest.raises(LogError, match=r"lane 0 is gone or empty, and the journal has let go of what it held up to epoch 5"):
        check_lane(folder, 0, ledger)
    check_lane(folder, 1, ledger)  # of this one the journal has everything
    path = checkpoint(folder, "lane 0", offsets=2, commits=2)
    with pytest.raises(LogError, match=r"lane 0/state is missing: it holds what all keys of lane 0 have kept"):
        check_lane(folder, 0, ledger)
    (path / "state" / "0" / "0").mkdir(parents=True)
    (path / "state" / "0" / "0" / "1_id.changelog").touch()
    check_lane(folder, 0, ledger)
    with pytest.raises(LogError, match=r"journal is gone or empty, and .*lane 0 is of a run that had one"):
        check_lane(folder, 0, Ledger())


def test_an_injector_that_would_take_its_source_in_again_is_refused(folder: Folder) -> None:
    with pytest.raises(LogError, match=r"inject clicks is gone or empty, but commits have batch 3 of injector 'clicks'"):
        check_injector(folder, "clicks", 3)
    checkpoint(folder, "inject clicks", offsets=3, commits=3)
    with pytest.raises(LogError, match=r"inject clicks ends with batch 2, but commits have batch 3"):
        check_injector(folder, "clicks", 3)
    check_injector(folder, "clicks", 2)


def test_what_spark_says_is_done_has_left_a_note_or_is_in_a_commit(folder: Folder) -> None:
    notes = Notes(LocalDisk(folder.journal))
    checkpoint(folder, "inject clicks", offsets=4, commits=4)
    check_noted(folder, "clicks", 3, notes)
    notes.leave(Note("clicks", 2, 1, [], {}, 0, 0))
    with pytest.raises(LogError, match=r"with batch 1 of injector 'clicks', its checkpoint with 3, and the note of batch 3 is missing"):
        check_noted(folder, "clicks", 1, notes)
    notes.leave(Note("clicks", 3, 1, [], {}, 0, 0))
    check_noted(folder, "clicks", 1, notes)


def test_segments_that_are_needed_must_be_there_and_long_enough(folder: Folder) -> None:
    commits = Commits(LocalDisk(folder.journal))
    (folder.journal / "segments").mkdir(parents=True)
    segment = folder.journal / "segments" / "lane0-7"
    part = Part(100, 50, 0, 0, "clicks", "", "clicks", 0, 3, Timestamp(0))
    ledger = Ledger(number=3, segments={"lane0-7": Segment(0)}, waiting={"lane0-7": {100: (3, part)}})
    with pytest.raises(LogError, match=r"^segments/lane0-7 is missing, and commits name it"):
        check_segments(commits, ledger, [])
    segment.write_bytes(b"x" * 149)
    with pytest.raises(LogError, match=r"^segments/lane0-7 is cut: it has 149 bytes, and commits name 150"):
        check_segments(commits, ledger, [])
    segment.write_bytes(b"x" * 150)
    check_segments(commits, ledger, [])
    with pytest.raises(LogError, match="it has 150 bytes, and commits name 180"):
        check_segments(commits, ledger, [Redo(3, "lane0-7", RowsPart(150, 30, 0, 1))])


def test_a_state_that_a_join_has_proved_is_known_without_its_commit() -> None:
    at, before, other = (Identity(epoch, f"id{epoch}", "1") for epoch in (7, 5, 6))
    ledger = Ledger(checkpoints={0: Checkpoint(at, before)})
    assert [ledger.knows(0, state) for state in (at, before, other)] == [True, True, False]
    assert not ledger.knows(1, at)


def test_a_message_of_the_journal_is_told_with_the_whole_path(folder: Folder) -> None:
    for message, where in [
        ("commits/000000000007 is missing", folder.journal),
        ("segments/lane0-7 is cut", folder.journal),
        ("_delta_log/00000000000000000003.json is damaged", folder.log),
        ("2026-01-31/000000000007-9a.parquet is damaged", folder.log),
    ]:
        assert folder.located(message) == f"{where}/{message}"
        with pytest.raises(LogError, match=f"^{where}/"), folder.naming():
            raise LogError(message)
    assert folder.located("another run holds it") == "another run holds it"


def test_a_snapshot_of_state_is_judged_whatever_bit_of_it_is_turned(tmp_path: Path) -> None:
    snapshot = tmp_path / "state" / "0" / "0" / "5_id.zip"
    snapshot.parent.mkdir(parents=True)
    with zipfile.ZipFile(snapshot, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("metadata", "what is in it " * 5)
    assert list(damaged_files(tmp_path, state=True)) == []
    content = snapshot.read_bytes()
    found = 0
    for place in range(8 * len(content)):
        turned = bytearray(content)
        turned[place // 8] ^= 1 << place % 8
        snapshot.write_bytes(turned)
        found += snapshot in damaged_files(tmp_path, state=True)
    assert found > 4 * len(content)  # dates and the like may turn unnoticed; what is in it may not


def test_a_run_ends_also_when_the_search_for_the_file_to_blame_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object, **__: object) -> None:
        raise FileNotFoundError("offsets/7")

    monkeypatch.setattr("millstream.spark.failure.damaged_files", vanish)
    message = cause_of(Died("lane 0", RuntimeError("it broke"), "lane 0"), Folder(tmp_path))
    assert message == "lane 0 stopped: it broke; what is to blame could not be looked for: offsets/7"
