"""Samples of a run: by the second for a while, by the minute for two days, and whatever a crash leaves of them."""

from __future__ import annotations

import itertools
from pathlib import Path

from millstream.log.folder import Folder
from millstream.log.samples import FILES_KEPT, MINUTES, SECONDS, read_samples, samples_folder
from tests.dashboard.made import NOON, SECOND, sampled


def test_they_come_back_oldest_first(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    sampled(folder, 90)
    found = read_samples(folder)
    assert [each.at for each in found] == [NOON + n * SECOND for n in range(90)]
    assert found[9].records == {"clicks": 90, "count.counts": 9}
    assert [each.at for each in read_samples(folder, after=NOON + 80 * SECOND)] == [NOON + n * SECOND for n in range(81, 90)]


def test_a_day_of_them_is_kept_small_and_whole(tmp_path: Path) -> None:
    """What is older than the seconds that are kept is there by the minute."""
    folder, day = Folder(tmp_path), 86_400
    sampled(folder, day // 10, every=10 * SECOND)
    found = read_samples(folder)
    assert found[0].at == NOON
    assert found[-1].at == NOON + (day - 10) * SECOND
    steps = {after.at - before.at for before, after in itertools.pairwise(found)}
    assert max(steps) <= MINUTES.every
    assert len(found) < day / 60 + FILES_KEPT * SECONDS.span / (10 * SECOND) + 1
    assert len(list(samples_folder(folder).iterdir())) <= 2 * FILES_KEPT


def test_one_that_was_torn_is_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    sampled(folder, 3)
    [path] = samples_folder(folder).glob("seconds-*")
    path.write_bytes(path.read_bytes()[:-20] + b"\n{}\nnonsense\n")
    assert [each.epoch for each in read_samples(folder)] == [0, 1]


def test_a_folder_without_any_has_none(tmp_path: Path) -> None:
    assert read_samples(Folder(tmp_path)) == []
