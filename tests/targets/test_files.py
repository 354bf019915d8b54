"""Files of a delivery: a folder of the run that is from an older copy than the files is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import LogError
from millstream.format import Format
from millstream.targets.files import FilesOutput
from millstream.targets.steps import Steps
from millstream.targets.typed import Values
from tests.log.made import columns


class Place:
    """A delivery of whole numbers into files, and the steps of its run."""

    def __init__(self, base: Path) -> None:
        self.steps, self.files = base / "steps", base / "files"

    def output(self, fence: int) -> FilesOutput:
        steps = Steps(self.steps, fence=fence)
        return FilesOutput("out", str(self.files), Format.JSON_LINES, Values("s", int), steps=steps, still_owner=lambda: True)

    def deliver(self, output: FilesOutput, *epochs: int) -> None:
        for epoch in epochs:
            output.add(epoch, "s", "s", epoch, columns([epoch]))
            output.commit(epoch)

    def kept(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.steps.iterdir()}

    def restore(self, kept: dict[str, bytes]) -> None:
        for file in self.steps.iterdir():
            file.unlink()
        for name, content in kept.items():
            (self.steps / name).write_bytes(content)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_it_goes_on_with_its_own_files_and_not_with_those_of_a_later_copy(place: Place) -> None:
    place.deliver(place.output(1), 1, 2)
    older = place.kept()
    place.deliver(place.output(2), 3)
    place.deliver(place.output(3), 4)
    assert len(list(place.files.glob("*.jsonl"))) == 4
    place.restore(older)
    with pytest.raises(LogError, match=r"files has files of step 3 of delivery 'out', and this folder has begun 2 steps: it is from"):
        place.output(4)
    for file in place.files.glob("*-00000000[23]-*"):
        file.unlink()
    place.deliver(place.output(4), 3)


def test_the_files_of_a_step_that_is_open_are_its_own(place: Place) -> None:
    output = place.output(1)
    place.deliver(output, 1)
    output._steps.begin(1, 2)
    prefix = next(place.files.glob("*.jsonl")).name.partition("-000000000-")[0]
    (place.files / f"{prefix}-000000001-0000.jsonl").touch()
    assert place.output(2).open_until() == 2


def test_files_of_other_deliveries_in_the_same_folder_count_for_nothing(place: Place) -> None:
    place.files.mkdir()
    (place.files / "other-12345678-000000099-0000.jsonl").touch()
    (place.files / "out-12345678-000000099-0000.jsonl").touch()
    place.deliver(place.output(1), 1)
