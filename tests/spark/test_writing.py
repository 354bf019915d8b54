"""The writer, from the driver's side: what it says reaches the log of the driver. No session is needed for that."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.ledger import Ledger, Plant
from millstream.log.folder import Folder
from millstream.spark.writing import Writer
from millstream.writer.messages import RetentionPutOff
from tests.conformance.scenes import Obedient, inject


def test_that_retention_is_put_off_is_a_warning_that_names_the_delivery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topology, it = ms.Topology("kept"), Obedient()
    topology.compute("it", it).reads(inject(topology))
    plant = Plant(deliveries={"slow": "it.said", "quick": "it.said", "other": "it.late"})
    ledger = Ledger(plant=plant, latest={"it.said": 9, "it.late": 9}, delivered={"slow": 2, "quick": 9})
    planner = SimpleNamespace(read=lambda look: look(ledger))
    writer = Writer(compile_topology(topology), Folder(tmp_path), cast(Any, None), cast(Any, planner), ms.Options(), 1)
    with caplog.at_level(logging.WARNING, "millstream"):
        writer._take(RetentionPutOff("it.said"))
    assert [record.getMessage() for record in caplog.records] == [
        "retention leaves old files of stream 'it.said' in the log: 'slow' has not got all of them yet"
    ]
    writer.end()
    assert writer.join(0.0) == []
