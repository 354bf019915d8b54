"""Key and time as columns: the filter by column and the extractor are of one mind. No session is needed for that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.extract import EARLIEST, OTHER_UNITS, Extractor, RefusedValue
from millstream.core.graph import compile_topology
from millstream.errors import MillstreamError
from millstream.injector import InjectedStream
from millstream.spark import injectors
from millstream.spark.injectors import InjectorSettings, TaskWork, are_good
from millstream.spark.ship import pack

NOW = ms.Timestamp(1_700_000_000_000_000)


@dataclass
class Click:
    user: str | None
    at: int | None
    site: str | None


def topology(errors: ms.Errors = ms.Errors.DEAD_LETTER, ahead: ms.Duration = ms.DAY) -> ms.Topology:
    made = ms.Topology("columns")
    disorder = ms.BoundedDisorder(ms.SECOND)
    source = ms.files("clicks/*.parquet", Click)
    made.inject("clicks", source, key="user", timestamp="at", partition="site", low_watermark=disorder, errors=errors, ahead=ahead)
    return made


def rows(*clicks: Click) -> pa.RecordBatch:
    """What a query gives to its sink."""
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([msgspec.json.encode(click).decode() for click in clicks], pa.string()),
            "_key": pa.array([click.user for click in clicks], pa.string()),
            "_timestamp": pa.array([click.at for click in clicks], pa.int64()),
            "_partition": pa.array([click.site for click in clicks], pa.string()),
        }
    )


def work(tmp_path: Path) -> TaskWork:
    settings = InjectorSettings(str(tmp_path), "", 1, "clicks", pack(compile_topology(topology())), 1, 4, "", "")
    return TaskWork(settings, 0, 0, now=NOW)


GOOD = Click("ann", NOW, "here")
BAD = [
    Click(None, NOW, "here"),
    Click("ann", None, "here"),
    Click("ann", NOW, None),
    Click("ann", NOW + ms.DAY + ms.MICROSECOND, "here"),
    Click("ann", OTHER_UNITS.start, "here"),
    Click("ann", EARLIEST - ms.MICROSECOND, "here"),
]


def test_what_the_columns_refuse_the_extractor_refuses_and_each_row_is_counted_once(tmp_path: Path) -> None:
    made = work(tmp_path)
    made.take(rows(GOOD, *BAD, GOOD))
    left = made.finish()
    assert (left.injected, left.dead) == (2, len(BAD))
    assert left.marks == {"here": NOW - ms.SECOND}


def test_a_row_that_only_the_columns_refuse_is_an_error_that_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injectors, "are_good", lambda batch, **_: pa.array([False] * batch.num_rows))
    with pytest.raises(
        MillstreamError, match=r"^injector 'clicks': .* 2 of its values .*\"user\":\"ann\".* with key 'ann' at 2023-11-14T22"
    ):
        work(tmp_path).take(rows(GOOD, BAD[0], GOOD))


edges = [int(EARLIEST), OTHER_UNITS.start, OTHER_UNITS.stop, int(NOW), int(NOW + ms.DAY), 0, int(ms.START_OF_TIME), int(ms.END_OF_TIME)]
near_edges = st.builds(
    lambda edge, by: max(int(ms.START_OF_TIME), min(int(ms.END_OF_TIME), edge + by)), st.sampled_from(edges), st.integers(-2, 2)
)
clicks = st.builds(
    Click,
    user=st.none() | st.just("ann"),
    at=st.none() | near_edges | st.integers(int(ms.START_OF_TIME), int(ms.END_OF_TIME)),
    site=st.none() | st.just("here"),
)


@settings(deadline=None)
@given(click=clicks, now=st.sampled_from([NOW, ms.Timestamp(0), ms.Timestamp(OTHER_UNITS.start)]))
def test_filter_and_extractor_agree(click: Click, now: ms.Timestamp) -> None:
    stream = topology().injected["clicks"]
    assert isinstance(stream, InjectedStream)
    try:
        Extractor(stream.injection).extract(click, {"key": click.user, "timestamp": click.at, "partition": click.site}, now=now)
        taken = True
    except RefusedValue:
        taken = False
    assert are_good(rows(click), ahead=ms.DAY, now=now).to_pylist() == [taken]
