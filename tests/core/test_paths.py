"""Paths as users write them: `~` is the home folder everywhere, and what is no path of a file system is refused at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream import arguments
from millstream.delivery import DeltaTarget, FileTarget
from millstream.errors import TopologyError
from millstream.log.folder import Pinned, write_json
from millstream.sources.file_source import FileSource

TAKES: dict[str, Callable[[Any], Any]] = {
    "delta": ms.delta,
    "to_files": ms.to_files,
    "files": lambda path: ms.files(path, int, format=ms.Format.JSON_LINES),
    "secret": lambda path: ms.secret(file=path),
    "read": lambda path: ms.read(path, "clicks"),
    "status_of": ms.status_of,
    "start": lambda path: ms.start(ms.Topology("never"), at=path),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("given", [str, Path])
def test_a_tilde_is_the_home_folder(given: Callable[[str], Any], home: Path) -> None:
    assert ms.delta(given("~/x")) == DeltaTarget(f"{home}/x")
    assert ms.to_files(given("~/x")) == FileTarget(f"{home}/x", ms.Format.JSON_LINES)
    assert ms.secret(file=given("~/x")).file == f"{home}/x"
    files = ms.files(given("~/x/*.jsonl"), int)
    assert isinstance(files, FileSource)
    assert files.path == f"{home}/x/*.jsonl"


def test_a_run_in_the_home_folder_is_found(home: Path) -> None:
    write_json(home / "mill" / "topology.json", Pinned("clicks", "id", "mill", 4, 1, format=0))
    for ask in (ms.status_of, lambda at: ms.read(at, "clicks")):
        with pytest.raises(ms.LogError, match=f"{home}/mill was written in format 0"):
            ask("~/mill")


def test_a_run_begins_in_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.spark.run.Run", lambda topology, at, *rest: at)
    assert ms.start(ms.Topology("never"), at="~/mill") == f"{home}/mill"
    assert ms.start(ms.Topology("never"), at=Path("~/mill")) == f"{home}/mill"  # as the command gives it


@pytest.mark.parametrize("path", ["a/~/b", "./~", "~nobody-of-this-name/x", "a:b/c", "x/s3://y", "C:/x"])
def test_other_paths_stay_as_they_are(path: str, home: Path) -> None:
    assert arguments.path("delta", path) == path


@pytest.mark.parametrize(
    "url", ["s3://bucket/x", "abfss://box@account.dfs.core.windows.net/x", "gs://b/x", "hdfs://name/x", "dbfs:/x", "S3A://b"]
)
@pytest.mark.parametrize("call", TAKES)
def test_an_object_store_is_refused_where_it_is_given(call: str, url: str) -> None:
    for given in (url, Path(url)):
        told = f"{call}({given!r}): object stores and URLs are not supported; give a path of a file system that is mounted here"
        with pytest.raises(TopologyError, match=f"^{re.escape(told)}"):
            TAKES[call](given)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE:///a%20b/*.csv", "/a b/*.csv"),
        ("file://", "/"),
    ],
)
def test_a_url_of_a_file_is_said_as_a_path(url: str, path: str) -> None:
    with pytest.raises(TopologyError, match=f"^{re.escape(f'delta({url!r}): give the path {path}')}$"):
        ms.delta(url)
