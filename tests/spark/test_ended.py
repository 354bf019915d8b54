"""Inputs that have ended: what is said of them, and of what they are given later. No session is needed for that."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger, SourceProgress
from millstream.spark.feeds import Feeds
from millstream.spark.launch import Launcher
from millstream.spark.planning import Planning
from tests.conformance.scenes import Event, Obedient, at

Made = ms.Source[Event]


def inputs(source: Made, known: SourceProgress) -> Feeds:
    """The inputs of a run that goes on where this was known of its source."""
    topology = ms.Topology("ended")
    events = topology.inject(
        "events", source, key=lambda e: e.key, timestamp=lambda e: at(e.at), low_watermark=ms.BoundedDisorder(ms.SECOND)
    )
    topology.compute("it", Obedient()).reads(events)
    folder = SimpleNamespace(inputs=Path("inputs"))
    launcher = SimpleNamespace(graph=compile_topology(topology), folder=folder, options=ms.Options())
    return Feeds(
        cast(Launcher, launcher), cast(Planning, SimpleNamespace(ledger=Ledger(sources={"events": known}))), cast(Any, None), must_end=False
    )


EVENTS = [Event("a", 1), Event("a", 2), Event("a", 3)]


@pytest.mark.parametrize(
    ("source", "level", "message"),
    [
        (
            ms.values(EVENTS, Event),
            logging.WARNING,
            "injector 'events' has ended with 2 records, and the 1 that its values have more now are not taken",
        ),
        (ms.values(EVENTS[:2], Event), logging.INFO, "injector 'events' has ended, and is asked for nothing more"),
        (ms.values(lambda taken: iter(EVENTS), Event), logging.INFO, "injector 'events' has ended, and is asked for nothing more"),
        (
            ms.dataframe(lambda spark: spark.table("events"), Event),
            logging.WARNING,
            "injector 'events' has ended with 2 records, and its DataFrame is not read again",
        ),
    ],
    ids=["a longer list", "the same list", "a function", "a DataFrame"],
)
def test_what_has_ended_is_not_read_and_that_is_said(source: Made, level: int, message: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millstream"):
        inputs(source, SourceProgress(finished=True, injected=2, positions={"": 2})).start()
    ((found, said),) = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert found == level
    assert said.startswith(message)


def test_that_values_have_ended_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    known = SourceProgress(finished=False)
    found = inputs(ms.values(EVENTS, Event), known)
    found._threads = cast(Any, {"events": SimpleNamespace(error=None, stop=lambda: None)})
    with caplog.at_level(logging.INFO, "millstream"):
        found.look()
        assert not caplog.records
        known.finished = True
        found.look()
        assert len(caplog.records) == 1
        found.stop()
    assert [record.getMessage() for record in caplog.records] == ["injector 'events' has ended: all of its input is read"]
