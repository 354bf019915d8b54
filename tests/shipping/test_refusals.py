"""What cannot travel to another process is refused while the topology is tried, with its place and what to do."""

from __future__ import annotations

import functools
import importlib
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.errors import TopologyError
from millstream.shipping.pickler import pickled
from millstream.shipping.second import SecondProcess
from millstream.spark.ship import pack, unpack
from millstream.testing import Driver

LOCK = threading.Lock()


@dataclass
class Click:
    user: str
    at: int


def locked(text: str) -> str:
    with LOCK:
        return text


class Count(ms.Computation[int]):
    counts: ms.Output[int]

    def process_record(self, record: ms.Record[Click]) -> None:
        self.state += 1
        self.counts.produce(self.state, timestamp=record.timestamp)


class Careful(Count):
    def process_record(self, record: ms.Record[Click]) -> None:
        locked(record.value.user)


class Connected(Count):
    def __init__(self) -> None:
        super().__init__()
        self.connection = socket.socket()


def topology_of(computation: Count | None = None, **changed: Any) -> ms.Topology:
    topology = ms.Topology("travels")
    usual: dict[str, Any] = {
        "key": lambda click: click.user,
        "timestamp": lambda click: ms.Timestamp(click.at),
        "low_watermark": ms.BoundedDisorder(ms.SECOND),
        **changed,
    }
    clicks = topology.inject("clicks", ms.values([], Click), **usual)
    topology.compute("count", computation or Count()).reads(clicks.by(changed["by"]) if "by" in changed else clicks)
    return topology


def with_key(key: Callable[[Click], str]) -> ms.Topology:
    return topology_of(key=key)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: topology_of(Careful()),
            r"computation 'count' cannot be taken to Spark's processes: Careful\.process_record → the global 'locked' in "
            r"Careful\.process_record \(.*test_refusals\.py:\d+\) → the global 'LOCK' in locked \(.*:\d+\) is a _thread\.lock",
        ),
        (
            lambda: topology_of(Connected()),
            r"computation 'count' cannot be taken to Spark's processes: the attribute 'connection' of a Connected is a socket\.socket",
        ),
        (
            lambda: with_key(lambda click: locked(click.user)),
            r"key of injector 'clicks' cannot be taken to Spark's processes: the global 'locked' in .*<lambda>.* → the global 'LOCK' in ",
        ),
    ],
)
def test_the_place_is_named(make: Callable[[], ms.Topology], message: str) -> None:
    remedy = r".*, which cannot be copied; make it where it is used, for example in a function under @functools\.cache"
    for ship in (Driver, lambda topology: pack(compile_topology(topology))):
        with pytest.raises(TopologyError, match=message + remedy):
            ship(make())


def test_what_the_message_says_to_do_is_right() -> None:
    @functools.cache
    def lock() -> threading.Lock:
        return threading.Lock()

    def key(click: Click) -> str:
        with lock():
            return click.user

    lock()  # what a process has made stays there
    driver = Driver(with_key(key))
    assert driver.keys("count") == 0


def test_the_driver_runs_what_came_back() -> None:
    seen: list[str] = []

    def key(click: Click) -> str:
        seen.append(click.user)
        return click.user

    for ship, expected in ((True, []), (False, ["anna"])):
        topology, click = with_key(key), Click("anna", 1_700_000_000_000_000)
        driver = Driver(topology, ship=ship)
        driver.put(topology.injected["clicks"], click, key="anna", timestamp=ms.Timestamp(click.at))
        driver.send(topology.injected["clicks"], click)
        assert driver.state("count", "anna") == 2
        assert seen == expected, "a global of the test's is another one in Spark's processes"


def test_the_users_classes_stay_as_they_are() -> None:
    methods = dict(vars(Count))
    Driver(topology_of())
    assert {name: vars(Count)[name] for name in methods} == methods
    assert unpack(pack(compile_topology(topology_of()))).streams["clicks"].value_type is not None


class Poison:
    """Kills whoever loads it."""

    def __reduce__(self) -> Any:
        return __import__("os")._exit, (7,)


class Grumpy:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_what_happens_in_the_second_process_is_told_and_the_next_one_is_served() -> None:
    second = SecondProcess()
    with pytest.raises(TopologyError, match="cannot be put together again in another process: ValueError: invalid literal"):
        second.through(pickled(Grumpy()))
    with pytest.raises(TopologyError, match="another process died when this topology was put together there; ship=False leaves that out"):
        second.through(pickled(Poison()))
    assert second.through(pickled(1)) == pickled(1)


class Talks:
    """Says something where it is loaded."""

    def __reduce__(self) -> Any:
        return print, ("hello there",)


def test_what_is_printed_in_the_second_process_is_no_answer() -> None:
    second = SecondProcess()
    assert second.through(pickled(Talks())) == pickled(None)
    assert second.through(pickled(1)) == pickled(1)


def test_after_an_interrupt_nobody_gets_the_answer_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    second = SecondProcess()
    assert second.through(pickled(1)) == pickled(1)

    def interrupted(of: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("millstream.shipping.second._read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.through(pickled(2))
    assert second.through(pickled(3)) == pickled(3)


def test_what_is_installed_anywhere_is_not_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the user alone, by the system, or in an environment that this one stands on."""
    for place in ("site-packages", "mine"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"of_{place[0]}.py").write_text("import threading\nlock = threading.Lock()\ndef f(): return lock\n")
        monkeypatch.syspath_prepend(str(tmp_path / place))
    of_m, of_s = importlib.import_module("of_m"), importlib.import_module("of_s")
    try:
        pickled(of_s.f)
        with pytest.raises(TopologyError, match="the global 'lock' in f"):
            pickled(of_m.f)
    finally:
        del sys.modules["of_m"], sys.modules["of_s"]
