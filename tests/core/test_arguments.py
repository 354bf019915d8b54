"""What is wrong is refused where it is given, with what to give instead: nothing is accepted that would fail later."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, NewType, TypedDict

import msgspec
import pytest

import millstream as ms
from millstream.errors import TopologyError
from millstream.testing import Driver


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
    "a span beyond all time": (
        lambda: ms.BoundedDisorder(ms.Duration(2**63)),
        "BoundedDisorder(by=9223372036854775808): that is more than a thousand years; give a ms.Duration",
    ),
    "no number": (lambda: ms.BoundedDisorder(anything_of(float("nan"))), "BoundedDisorder(by=nan): give a ms.Duration"),
    "an explicit column without a name": (lambda: ms.Explicit(""), "Explicit(''): give a function of the value, or the name of a column"),
    "explicit": (lambda: ms.Explicit(anything_of(3)), "Explicit(3): give a function of the value, or the name of a column"),
    "ahead": (lambda: inject(ahead=timedelta(days=1)), "inject(ahead=datetime.timedelta(days=1)): give a ms.Duration"),
    "errors": (
        lambda: inject(errors="fail"),
        "inject(errors='fail'): give ms.Errors.FAIL or ms.Errors.DEAD_LETTER",
    ),
    "keep": (lambda: inject(keep="no"), "inject(keep='no'): give True or False"),
    "key": (lambda: inject(key=None), "injector 'clicks': key is None; give a function of the value, or the name of a column"),
    "a column without a name": (
        lambda: named("injector", "clicks", key=""),
        "injector 'clicks': key is ''; give a function of the value, or the name of a column",
    ),
    "timestamp": (lambda: inject(timestamp=3), "injector 'clicks': timestamp is 3; give a function of the value"),
    "partition": (lambda: inject(partition=3), "injector 'clicks': partition is 3; give a function of the value"),
    "a path": (lambda: ms.files(anything_of(3), Click), "files(3): give a path, as text or as a pathlib.Path"),
    "no path": (lambda: ms.delta(""), "delta(''): give a path that is not empty"),
    "a path with NUL": (lambda: ms.delta("a\0b"), "delta('a\\x00b'): give a path without the character NUL"),
    "a format": (
        lambda: ms.files("x.jsonl", Click, format=anything_of("csv")),
        "files(format='csv'): give ms.Format.JSON_LINES, ms.Format.TEXT, ms.Format.CSV or ms.Format.PARQUET",
    ),
    "an open bracket": (
        lambda: ms.files("x/[1.jsonl", Click),
        "files('x/[1.jsonl'): the pattern has a '[' without a ']'; close it, or write [[] for the sign itself",
    ),
    "a field that is not there": (
        lambda: ms.files("x.csv", Click, columns={"user": "u", "m": "n"}),
        "files(columns={'user': 'u', 'm': 'n'}): Click has no field 'm'; it has user, at. Write what the value calls it first",
    ),
    "bounded": (lambda: ms.files("x.jsonl", Click, bounded=anything_of("no")), "files(bounded='no'): give True or False"),
    "a type": (lambda: ms.files("x.jsonl", anything_of("Click")), "files: 'Click' is not a type; give the type of its values"),
    "a value as its type": (lambda: ms.values([], anything_of(Click("ann", 1))), "values: Click(user='ann', at=1) is not a type"),
    "a function as a type": (lambda: ms.values([], anything_of(len)), "values: <built-in function len> is not a type"),
    "no type": (lambda: ms.values([], anything_of(None)), "values: None is not a type; give the type of its values"),
    "values": (lambda: ms.values(anything_of(3), Click), "values(3): give an iterable of values, or a function"),
    "text as values": (lambda: ms.values(anything_of("abc"), Click), "values('abc'): give an iterable of values"),
    "a frame": (lambda: ms.dataframe(anything_of("df"), Click), "dataframe('df'): give a Spark DataFrame, or a function"),
    "a function": (lambda: ms.function(anything_of(None)), "function(None): give a function that takes the number of a step"),
    "every": (lambda: ms.delta("x", every=anything_of(0.5)), "delta(every=0.5): give a positive ms.Duration, such as 5 * ms.SECOND"),
    "a column for the key": (
        lambda: ms.delta_rows("x", key="a b"),
        "delta_rows(key='a b'): give the name of a column, without blanks and any of ,;{}()=",
    ),
    "a format of files": (lambda: ms.to_files("x", format=anything_of("json")), "to_files(format='json'): give ms.Format.JSON_LINES"),
    "records of a console": (lambda: ms.console(at_most=0), "console(at_most=0): give a whole number, at least 1"),
    "an output": (lambda: ms.output(name=anything_of(3)), "output(name=3): give a name without a dot"),
    "an output's name": (lambda: ms.output(name="a/b"), "an output cannot be called 'a/b'; use letters, digits, spaces, '-' and '_'"),
    "an output's keep": (lambda: ms.output(keep=anything_of(1)), "output(keep=1): give True or False"),
    "dead letters": (
        lambda: inject().deliver("dead", ms.Topology("other").dead_letters, ms.console()),
        "delivery 'dead' takes the dead letters of another topology; give it those of 'arguments'",
    ),
    "lanes": (lambda: ms.Options(lanes=anything_of(True)), "Options(lanes=True): give a whole number, at least 1"),
    "buckets": (lambda: ms.Options(buckets=1 << 40), "Options(buckets=1099511627776): give a whole number, at least 1 and at most 65536"),
    "records of an epoch": (
        lambda: ms.Options(max_records_per_epoch=1 << 63),
        "Options(max_records_per_epoch=9223372036854775808): give a whole number, at most",
    ),
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
    "deliveries to begin anew": (
        lambda: start(deliver_anew=anything_of("counts")),
        "start(deliver_anew='counts'): give a list of names of deliveries, such as ['counts']",
    ),
    "no deliveries to begin anew": (lambda: start(deliver_anew=None), "start(deliver_anew=None): give a list of names of deliveries"),
    "progress": (lambda: ms.run(ms.Topology("x"), at="never", progress=anything_of("yes")), "run(progress='yes'): give True or False"),
    "a folder to read": (lambda: ms.read(anything_of(3), "clicks"), "read(3): give a path, as text or as a pathlib.Path"),
    "a stream to read": (lambda: ms.read("never", anything_of(3)), "read(stream=3): give the name of a stream"),
    "how many to read": (lambda: ms.read("never", "clicks", last=anything_of(0.5)), "read(last=0.5): give a whole number, at least 1"),
    "a type to read": (lambda: ms.read("never", "clicks", value=anything_of([])), "read: [] is not a type"),
    "a folder to ask": (lambda: ms.status_of(anything_of(None)), "status_of(None): give a path"),
    "a divert": (lambda: ms.Divert(anything_of("late")), "Divert('late'): give an output of the computation"),
    "roll_up": (lambda: ms.Expiry(after=ms.HOUR, roll_up=anything_of(3)), "Expiry: roll_up is 3; give {age: span}"),
    "a negative age": (lambda: ms.Expiry(roll_up={-ms.HOUR: ms.HOUR}, merge=max), "Expiry: the ages of roll_up must not be negative"),
    "merge": (lambda: ms.Expiry(roll_up={ms.HOUR: ms.HOUR}, merge=anything_of("sum")), "Expiry: merge is 'sum'; give a function"),
    "an endless age": (lambda: ms.Expiry(after=ms.Duration(1 << 63)), "Expiry: 9223372036854775808 is more than a thousand years"),
    "a driver": (lambda: Driver(anything_of("topology")), "Driver('topology'): give a ms.Topology"),
    "shipping": (lambda: Driver(inject(), ship=anything_of("no")), "Driver(ship='no'): give True or False"),
    "options": (lambda: start(options={}), "start(options={}): give ms.Options(...), or leave it out"),
    "a session": (lambda: start(spark="local"), "start(spark='local'): give a SparkSession, or leave it out"),
}


def anything_of(value: Any) -> Any:
    return value


def named(what: str, name: Any, **changed: Any) -> object:
    """Something of this name."""
    topology, count = inject(), Count()
    usual: dict[str, Any] = {"key": "user", "timestamp": "at", "low_watermark": ms.BoundedDisorder(ms.SECOND)}
    match what:
        case "topology":
            return ms.Topology(name)
        case "injector":
            return ms.Topology("other").inject(name, ms.files("clicks/*.parquet", Click), **{**usual, **changed})
        case "computation":
            return topology.compute(name, count)
        case _:
            topology.deliver(name, topology.injected["clicks"], ms.console())
            return None


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "a\nb", "a\tb", ".", "..", ".hidden", " a", "-a", "a ← b", None, 5, b"clicks", True])
@pytest.mark.parametrize("what", ["topology", "injector", "computation", "delivery"])
def test_a_name_that_cannot_be_one_is_refused(what: str, name: Any) -> None:
    with pytest.raises(TopologyError, match=re.escape(f"{what} cannot be called {name!r}; use letters, digits, spaces, ")):
        named(what, name)


@pytest.mark.parametrize("what", ["topology", "injector", "computation", "delivery"])
def test_a_name_is_short_enough_for_a_file(what: str) -> None:
    named(what, "é" * 60)
    with pytest.raises(TopologyError, match=rf"{what} cannot be called é{{20}}…: files have its name; use at most 120 bytes"):
        named(what, "é" * 61)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.to_timestamp(anything_of(5)), r"to_timestamp\(5\): give a datetime with a time zone"),
        (lambda: ms.to_duration(anything_of(5)), r"to_duration\(5\): give a timedelta"),
        (lambda: ms.to_datetime(anything_of(0.5)), r"to_datetime\(0\.5\): give a ms\.Timestamp"),
        (lambda: ms.to_datetime(anything_of(True)), r"to_datetime\(True\): give a ms\.Timestamp"),
    ],
)
def test_conversions_say_what_they_take(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    ("timestamp", "span", "message"),
    [
        (5, 0.5, "floor(..., 0.5): give a positive ms.Duration, such as 5 * ms.SECOND"),
        (5, 0, "floor(..., 0): give a positive ms.Duration"),
        (4, -2, "floor(..., -2): give a positive ms.Duration"),
        (5, -2, "floor(..., -2): give a positive ms.Duration"),
        (5, timedelta(seconds=1), "floor(..., datetime.timedelta(seconds=1)): give a positive ms.Duration"),
        (5.0, 2, "floor(5.0, ...): give a ms.Timestamp, which is a whole number of microseconds"),
        (datetime(2026, 1, 1, tzinfo=UTC), 2, "floor(datetime.datetime(2026"),
        (None, 2, "floor(None, ...): give a ms.Timestamp"),
    ],
)
def test_floor_says_what_it_takes(timestamp: Any, span: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=f"^{re.escape(message)}"):
        ms.floor(timestamp, span)


def test_floor_stays_within_time() -> None:
    assert ms.floor(ms.START_OF_TIME, ms.MINUTE) == ms.START_OF_TIME
    assert ms.floor(ms.START_OF_TIME + ms.SECOND, ms.HOUR) == ms.START_OF_TIME
    assert ms.floor(ms.Timestamp(-5), ms.Duration(4)) == ms.Timestamp(-8)
    assert ms.floor(ms.END_OF_TIME, ms.MICROSECOND) == ms.END_OF_TIME


def test_conversions_say_what_is_too_far() -> None:
    for span in (timedelta.max, timedelta.min):
        with pytest.raises(TopologyError, match=r"^to_duration\(datetime\.timedelta\(.*\): it is longer than all time"):
            ms.to_duration(span)
    for moment in (ms.END_OF_TIME, ms.START_OF_TIME, ms.Timestamp(2**60)):
        with pytest.raises(OverflowError, match=rf"^to_datetime\({moment}\): it lies beyond what a datetime can hold, the years 1 to 9999"):
            ms.to_datetime(moment)
    assert ms.to_duration(timedelta(days=100_000_000)) == 100_000_000 * ms.DAY


@pytest.mark.parametrize("ask", [ms.status_of, lambda at: ms.read(at, "clicks")], ids=["status_of", "read"])
@pytest.mark.parametrize("below", ["", "/more"])
def test_a_file_is_not_the_folder_of_a_run(ask: Callable[[str], object], below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ms.LogError, match=f"^{tmp_path}/file{below} holds no run of Millstream; name the folder"):
        ask(f"{tmp_path}/file{below}")


def test_a_path_that_is_too_long_is_refused_by_name() -> None:
    with pytest.raises(ms.LogError, match=r"xxx/topology\.json cannot be read: File name too long"):
        ms.status_of("x" * 300)


class Asks(ms.Computation[int]):
    """Does what a test wants while it processes a record."""

    def process_record(self, record: ms.Record[Click]) -> None:
        self.cancel_timer(anything_of(5))


def driver(computation: ms.Computation[Any]) -> tuple[Driver, Any]:
    topology = inject()
    topology.compute("it", computation).reads(topology.injected["clicks"])
    return Driver(topology, ship=False), topology.injected["clicks"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda driver, clicks: driver.feed(clicks, None), "feed(None): give an iterable of values, such as a list"),
        (lambda driver, clicks: driver.feed(clicks, [], per_epoch=0), "feed(per_epoch=0): give a whole number, at least 1"),
        (lambda driver, clicks: driver.state("it", 5), "what is kept by 'it': key is 5; a key is text: use str(...)"),
        (lambda driver, clicks: driver.timers("it", None), "what is kept by 'it': key is None; a key is text: use str(...)"),
        (lambda driver, clicks: driver.advance(now=0.5), "now is 0.5; give a ms.Timestamp"),
        (lambda driver, clicks: driver.advance(low_watermark=True), "low_watermark is True; give a ms.Timestamp"),
    ],
)
def test_a_driver_refuses_what_it_cannot_take(ask: Callable[[Any, Any], object], message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)):
        ask(*driver(Count()))


def test_a_tag_is_text_where_a_timer_is_cancelled_too() -> None:
    made, clicks = driver(Asks())
    with pytest.raises(ms.RecordError, match=r"cancel_timer: tag is 5; a tag is text: use str"):
        made.send(clicks, Click("ann", 10**15))


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


class Struct(msgspec.Struct, rename="upper"):
    user: str


class Pair(NamedTuple):
    user: str


class Dictionary(TypedDict):
    user: str


@pytest.mark.parametrize("kind", [Click, Struct, Pair, Dictionary, NewType("Named", Click)])
def test_columns_are_for_fields_that_there_are(kind: Any) -> None:
    field = "USER" if kind is Struct else "user"  # as JSON has it: what files bring is decoded by that
    ms.files("x.csv", kind, columns={field: "Kunde"})
    with pytest.raises(TopologyError, match=f"has no field 'm'; it has {field}"):
        ms.files("x.csv", kind, columns={"m": "n"})


@pytest.mark.parametrize("kind", [dict[str, str], Any, Click | None])
def test_where_fields_are_not_known_any_column_passes(kind: Any) -> None:
    ms.files("x.csv", kind, columns={"m": "n"})


@pytest.mark.parametrize("pattern", ["[ab].jsonl", "[!a]*.jsonl", "[]].jsonl", "[[]1.jsonl", "a].jsonl", "{a,[bc]}.jsonl"])
def test_brackets_that_are_closed_pass(pattern: str) -> None:
    ms.files(f"x/{pattern}", Click)


def test_an_output_has_no_value() -> None:
    with pytest.raises(TopologyError, match=r"^Assigned\.out = 5: an output has no value; leave that out, or say ms\.output\(\.\.\.\)"):

        class Assigned(ms.Computation[int]):
            out: ms.Output[int] = 5  # type: ignore[assignment]

            def process_record(self, record: ms.Record[Click]) -> None: ...

    class Mixed:
        out: ms.Output[int] = ms.output(name="renamed")

    class Mixes(Mixed, ms.Computation[int]):
        def process_record(self, record: ms.Record[Click]) -> None: ...

    assert Mixes().out.name == "renamed"


def test_a_path_is_a_path_however_it_is_given() -> None:
    assert ms.files(Path("a.jsonl"), Click) == ms.files("a.jsonl", Click)
    assert ms.delta(Path("a")) == ms.delta("a")


def test_all_public_names_are_shown() -> None:
    assert set(ms.__all__) <= set(dir(ms))


def test_only_public_names_are_shown() -> None:
    assert {name for name in dir(ms) if not name.startswith("__")} == set(ms.__all__)
    assert {"__version__", "__doc__", "__all__"} <= set(dir(ms))
