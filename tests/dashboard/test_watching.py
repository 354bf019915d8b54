"""A folder that is looked at for long: it may go, come back as another, be put back to a copy, or be partly unreadable."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from millstream.dashboard import watching
from millstream.dashboard.watching import Watched
from millstream.log.folder import Folder
from millstream.log.reading import StreamReader
from millstream.log.samples import Sample, Sampling, samples_folder
from millstream.log.status import Now
from tests.dashboard.conftest import client
from tests.dashboard.made import NOON, SECOND, Made, sampled_day

DAY = 86_400 * SECOND


@pytest.mark.parametrize(("seen_gone", "epochs"), [(False, 1), (True, 1), (False, 6), (False, 9)])
def test_a_folder_that_is_begun_anew_shows_the_new_run(tmp_path: Path, seen_gone: bool, epochs: int) -> None:
    at = tmp_path / "mill"
    old = Made(at)
    for n in range(5):
        old.epoch(injected=10, at=NOON + n * SECOND)
    old.records("count.counts", ("old", 1))
    page = client(at)
    assert page.get("/api/state").json()["status"]["epoch"] == 7
    assert page.get("/api/records?stream=count.counts").json()["records"][0]["key"] == "old"
    shutil.rmtree(at)
    if seen_gone:
        assert "holds no run of Millstream yet" in page.get("/api/state").json()["problem"]
    new = Made(at, id="e" * 32, topology="other")
    for _ in range(epochs):
        new.epoch(injected=3, at=NOON)
    seen = page.get("/api/state").json()
    assert (seen["id"], seen["status"]["topology"], seen["status"]["epoch"]) == ("e" * 32, "other", epochs + 1)
    assert seen["status"]["streams"]["clicks"]["records"] == 3 * epochs
    assert list(seen["status"]["streams"]) == ["clicks", "users"]
    new.records("count.counts", ("new", 1))
    assert [record["key"] for record in page.get("/api/records?stream=count.counts").json()["records"]] == ["new"]


def test_a_folder_that_is_put_back_to_a_copy_shows_the_copy(tmp_path: Path) -> None:
    at, copy = tmp_path / "mill", tmp_path / "copy"
    made = Made(at)
    made.epoch(injected=10, at=NOON)
    shutil.copytree(at, copy)
    made.epoch(injected=10, at=NOON + SECOND)
    page = client(at)
    assert page.get("/api/state").json()["status"]["epoch"] == 3
    shutil.rmtree(at)
    shutil.copytree(copy, at)
    seen = page.get("/api/state").json()
    assert (seen["problem"], seen["status"]["epoch"], seen["status"]["streams"]["clicks"]["records"]) == ("", 2, 10)


@pytest.fixture
def running(made: Made, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(watching, "is_held", lambda folder: True)
    return made


def unreadable_samples(folder: Folder) -> None:
    Sampling(folder).add(Sample(at=NOON, epoch=1))
    for path in samples_folder(folder).iterdir():
        path.unlink()
        path.mkdir()


def test_samples_that_cannot_be_read_are_said_and_hide_nothing_else(running: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable_samples(running.folder)
    monkeypatch.setattr(watching.time, "time_ns", lambda: (NOON + SECOND) * 1000)
    page = client(running.folder.path)
    seen = page.get("/api/state").json()
    assert seen["status"]["epoch"] == 2
    assert "seconds-" in seen["problem"]
    answer = page.get("/api/history")
    assert (answer.status_code, "-" in answer.json()["problem"]) == (200, True)
    assert page.get("/metrics").status_code == 200


def test_what_a_run_says_of_itself_and_is_damaged_is_said(running: Made) -> None:
    Now.path(running.folder).parent.mkdir()
    Now.path(running.folder).write_text("{")
    seen = client(running.folder.path).get("/api/state").json()
    assert seen["status"]["epoch"] == 2
    assert "now.json is damaged" in seen["problem"]


def test_an_error_that_nobody_expects_is_said_and_logged_once(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    made.records("count.counts", ("a", 1))
    page = client(made.folder.path)
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR, "millstream"):
        broken.setattr(StreamReader, "newest", breaks)
        broken.setattr(watching, "read_samples", breaks)
        for path in ("/api/records?stream=count.counts", "/api/history", "/api/records?stream=count.counts"):
            assert page.get(path).json()["problem"].startswith("ZeroDivisionError: by zero; that is a fault of Millstream's")
        broken.setattr(watching, "status_from", breaks)
        assert "ZeroDivisionError" in page.get("/api/state").json()["problem"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert page.get("/api/state").json()["status"]["epoch"] == 3, "it may be repaired"


class TestHistory:
    STREAMS = [f"stream number {n}" for n in range(20)]

    def test_a_day_is_small_and_reaches_back(self, tmp_path: Path) -> None:
        made = Made(tmp_path)
        end = sampled_day(made.folder, streams=self.STREAMS)
        page = client(tmp_path)
        for seconds in (900, 21_600, 172_800):
            answer = page.get(f"/api/history?seconds={seconds}")
            found = answer.json()
            assert len(answer.content) < 200_000
            assert found["at"][-1] == end
            reach = min(seconds * SECOND, DAY)
            assert reach - 2 * found["step"] - 60 * SECOND <= end - found["at"][0] <= reach
            assert 100 < len(found["at"]) <= watching.POINTS + 1
            assert found["at"] == sorted(found["at"])
            assert {len(column) for column in found["records"].values()} == {len(found["at"])}

    def test_of_many_streams_those_that_had_most_and_of_computations_those_furthest_behind(self, tmp_path: Path) -> None:
        made = Made(tmp_path)
        end = sampled_day(made.folder, streams=self.STREAMS)
        found = client(tmp_path).get("/api/history?seconds=900").json()
        assert list(found["records"]) == [f"stream number {n}" for n in range(19, 11, -1)]
        assert list(found["low_watermarks"]) == [f"count {n}" for n in range(19, 11, -1)]
        seconds = (found["at"][-1] - found["at"][0]) // SECOND
        came = found["records"]["stream number 19"]
        assert came[-1] - came[0] == 2_000 * seconds, "counts, so that thinning loses nothing"
        assert found["low_watermarks"]["count 19"][-1] == end - 19 * 60 * SECOND

    def test_what_was_lost_is_of_all_or_of_one(self, tmp_path: Path) -> None:
        made = Made(tmp_path)
        sampling = Sampling(made.folder)
        for n in range(3):
            sampling.add(Sample(at=NOON + 10 * n * SECOND, epoch=n, late={"a": n, "b": 1}, dropped={"b": n}, dead={"a": 5}))
        page = client(tmp_path)
        found = page.get("/api/history").json()
        assert (found["late"], found["dropped"], found["dead"]) == ([1, 2, 3], [0, 1, 2], [5, 5, 5])
        found = page.get("/api/history?of=a").json()
        assert (found["late"], found["dropped"], found["dead"]) == ([0, 1, 2], [0, 0, 0], [5, 5, 5])

    def test_an_end_of_time_is_no_time(self, tmp_path: Path) -> None:
        made = Made(tmp_path)
        Sampling(made.folder).add(Sample(at=NOON, epoch=1, low_watermarks={"a": 2**63 - 1, "b": -(2**63), "c": NOON}))
        assert client(tmp_path).get("/api/history").json()["low_watermarks"] == {"c": [NOON]}

    def test_a_folder_without_samples_has_none(self, made: Made) -> None:
        page = client(made.folder.path)
        assert page.get("/api/history").json()["at"] == []
        assert page.get("/api/history?seconds=x").status_code == 400


def test_rates_are_those_of_the_last_seconds(running: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(running.folder)
    for n in range(10):
        sampling.add(Sample(at=NOON + n * SECOND, epoch=n, records={"clicks": 0 if n < 4 else 30 * (n - 4), "users": 7}))
    monkeypatch.setattr(watching.time, "time_ns", lambda: (NOON + 9 * SECOND) * 1000)
    assert Watched(running.folder.path).look().rates == {"clicks": 30.0}
