"""What is wrong is refused where it is given, with what to give instead: nothing is accepted that would fail later."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import TopologyError


@dataclass
class Click:
    user: str
    at: int


class Count(ms.Computation[int]):
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1


def inject(**changed: Any) -> ms.Topology:
    topology = ms.Topology("arguments")
    usual: dict[str, Any] = {"key": lambda c: c.user, "timestamp": lambda c: c.at, "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    topology.inject("clicks", ms.values([], Click), **{**usual, **changed})
    return topology


def start(**changed: Any) -> None:
    ms.start(**{"topology": ms.Topology("never"), "at": "never", **changed})


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "half a second": (
        lambda: ms.BoundedDisorder(0.5 * anything_of(ms.SECOND)),
        "BoundedDisorder(by=500000.0): give a ms.Duration, such as 5 * ms.SECOND; half a second is 500 * ms.MILLISECOND",
    ),
    "a timedelta": (
        lambda: ms.BoundedDisorder(anything_of(timedelta(seconds=1))),
        "BoundedDisorder(by=datetime.timedelta(seconds=1)): give a ms.Duration, such as 5 * ms.SECOND; "
        "ms.to_duration(...) makes one of a timedelta",
    ),
    "a negative span": (lambda: ms.BoundedDisorder(-ms.SECOND), "BoundedDisorder(by=-1000000): give a ms.Duration"),
    "True": (lambda: ms.BoundedDisorder(anything_of(True)), "BoundedDisorder(by=True): give a ms.Duration"),
    "silence of no time": (
        lambda: ms.BoundedDisorder(ms.SECOND, idle_after=ms.Duration(0)),
        "BoundedDisorder(idle_after=0): give a positive ms.Duration",
    ),
    "explicit silence": (
        lambda: ms.Explicit(lambda v: ms.Timestamp(0), idle_after=anything_of(1.5)),
        "Explicit(idle_after=1.5): give a positive ms.Duration",
    ),
    "explicit": (lambda: ms.Explicit(anything_of(3)), "Explicit(3): give a function of the value, or the name of a column"),
    "ahead": (lambda: inject(ahead=timedelta(days=1)), "inject(ahead=datetime.timedelta(days=1)): give a ms.Duration"),
    "errors": (
        lambda: inject(errors="fail"),
        "inject(errors='fail'): give ms.Errors.FAIL or ms.Errors.DEAD_LETTER",
    ),
    "keep": (lambda: inject(keep="no"), "inject(keep='no'): give True or False"),
    "key": (lambda: inject(key=None), "injector 'clicks': key is None; give a function of the value, or the name of a column"),
    "timestamp": (lambda: inject(timestamp=3), "injector 'clicks': timestamp is 3; give a function of the value"),
    "partition": (lambda: inject(partition=3), "injector 'clicks': partition is 3; give a function of the value"),
    "a path": (lambda: ms.files(anything_of(3), Click), "files(3): give a path, as text or as a pathlib.Path"),
    "no path": (lambda: ms.delta(""), "delta(''): give a path that is not empty"),
    "a format": (
        lambda: ms.files("x.jsonl", Click, format=anything_of("csv")),
        "files(format='csv'): give ms.Format.JSON_LINES, ms.Format.CSV or ms.Format.PARQUET",
    ),
    "bounded": (lambda: ms.files("x.jsonl", Click, bounded=anything_of("no")), "files(bounded='no'): give True or False"),
    "a type": (lambda: ms.files("x.jsonl", anything_of("Click")), "files: 'Click' is not a type; give the type of its values"),
    "no type": (lambda: ms.values([], anything_of(None)), "values: None is not a type; give the type of its values"),
    "values": (lambda: ms.values(anything_of(3), Click), "values(3): give an iterable of values, or a function"),
    "text as values": (lambda: ms.values(anything_of("abc"), Click), "values('abc'): give an iterable of values"),
    "a frame": (lambda: ms.dataframe(anything_of("df"), Click), "dataframe('df'): give a Spark DataFrame, or a function"),
    "a function": (lambda: ms.function(anything_of(None)), "function(None): give a function that takes the number of a step"),
    "every": (lambda: ms.delta("x", every=anything_of(0.5)), "delta(every=0.5): give a positive ms.Duration, such as 5 * ms.SECOND"),
    "a format of files": (lambda: ms.to_files("x", format=anything_of("json")), "to_files(format='json'): give ms.Format.JSON_LINES"),
    "records of a console": (lambda: ms.console(at_most=0), "console(at_most=0): give a whole number, at least 1"),
    "an output": (lambda: ms.output(name=anything_of(3)), "output(name=3): give a name without a dot"),
    "an output's keep": (lambda: ms.output(keep=anything_of(1)), "output(keep=1): give True or False"),
    "dead letters": (
        lambda: inject().deliver("dead", ms.Topology("other").dead_letters, ms.console()),
        "delivery 'dead' takes the dead letters of another topology; give it those of 'arguments'",
    ),
    "lanes": (lambda: ms.Options(lanes=anything_of(True)), "Options(lanes=True): give a whole number, at least 1"),
    "memory": (lambda: ms.Options(lane_memory=anything_of("1g")), "Options(lane_memory='1g'): give a whole number, at least 1"),
    "an interval": (
        lambda: ms.Options(checkpoint_every=anything_of(timedelta(minutes=1))),
        "Options(checkpoint_every=datetime.timedelta(seconds=60)): give a positive ms.Duration",
    ),
    "retention": (lambda: ms.Options(retention=anything_of(1.5)), "Options(retention=1.5): give a ms.Duration"),
    "Spark's log": (lambda: ms.Options(show_spark_log=anything_of("yes")), "Options(show_spark_log='yes'): give True or False"),
    "a run": (lambda: start(topology="x"), "start('x'): give a ms.Topology"),
    "a folder": (lambda: start(at=None), "start(None): give a path"),
    "an end": (lambda: start(until="drained"), "start(until='drained'): give ms.DRAINED, or leave it out"),
    "options": (lambda: start(options={}), "start(options={}): give ms.Options(...), or leave it out"),
    "a session": (lambda: start(spark="local"), "start(spark='local'): give a SparkSession, or leave it out"),
}


def anything_of(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_it_is_refused_where_it_is_given(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)):
        make()


def test_what_is_right_is_taken() -> None:
    ms.BoundedDisorder(ms.Duration(0), idle_after=ms.MILLISECOND)
    ms.files(Path("clicks") / "*.jsonl", Click)
    ms.values((click for click in ()), Click)
    ms.values(lambda taken: iter(()), Click)
    ms.delta(Path("table"), every=ms.MILLISECOND)
    inject(partition=lambda click: click.user, ahead=ms.Duration(0), errors=ms.Errors.DEAD_LETTER, keep=False)


def test_a_path_is_a_path_however_it_is_given() -> None:
    assert ms.files(Path("a.jsonl"), Click) == ms.files("a.jsonl", Click)
    assert ms.delta(Path("a")) == ms.delta("a")


def test_all_public_names_are_shown() -> None:
    assert set(ms.__all__) <= set(dir(ms))
