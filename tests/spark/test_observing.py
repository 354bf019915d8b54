"""What OpenTelemetry is told of a run, by its own means in memory, and over HTTP to somebody who listens."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import millstream as ms
from millstream.core.epoch import Tally
from millstream.log.metrics import METRICS, DiskSizes, Measured
from millstream.log.samples import Sample
from millstream.log.status import ComputationStatus, Status
from millstream.mill.spending import EpochSpan
from millstream.spark import observing
from millstream.spark.observing import Observer, name_of, observer_of
from millstream.timestamp import START_OF_TIME, Timestamp
from tests.spark.clicks import Count, click, inject
from tests.waiting import wait_until


def status() -> Status:
    count = ComputationStatus(START_OF_TIME, START_OF_TIME, None, Tally(received=7, applied=6, dead=1), keys=3, timers=2, epoch=4)
    return Status("t", True, 5, Timestamp(0), {"count": count}, {}, {}, {"out": 2}, 0)


def test_metrics_are_those_of_the_table() -> None:
    reader = InMemoryMetricReader()
    observer = Observer("t", reader, None)
    sample = Sample(0, 5, phases={"run": 0.5}, restarts={"lane": 1})
    observer.observe(Measured(status(), sample, DiskSizes(journal_files=3)), [EpochSpan(5, 100.0, 0.003, 0.001, 1)])
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    assert (resource.resource.attributes["service.name"], resource.resource.attributes["millstream.topology"]) == ("t", "t")
    found = {
        (metric.name, *sorted(dict(point.attributes or {}).values())): point
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    values = {name: getattr(point, "value", None) for name, point in found.items()}
    assert values["millstream.epochs",] == 5
    assert values["millstream.computation_received", "count"] == 7
    assert values["millstream.computation_records", "applied", "count"] == 6
    assert values["millstream.delivery_behind_epochs", "out"] == 2
    assert values["millstream.epoch", "run"] == 0.5
    assert values["millstream.journal_files",] == 3
    duration = found["millstream.epoch.duration",]
    assert (duration.count, duration.sum) == (1, 0.004)  # type: ignore[union-attr]
    observer.end()


def test_no_two_metrics_share_a_name() -> None:
    names = [name_of(metric) for metric in METRICS]
    assert len(set(names)) == len(names)


def test_an_epoch_is_a_trace_of_its_phases() -> None:
    exporter = InMemorySpanExporter()
    observer = Observer("t", None, exporter)
    observer.observe(Measured(status(), None, DiskSizes()), [EpochSpan(5, 100.0, 0.25, 0.5, 2)])
    observer.end()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    times = {name: (span.start_time, span.end_time) for name, span in spans.items()}
    assert times == {
        "epoch": (100_000_000_000, 100_750_000_000),
        "lanes": (100_000_000_000, 100_250_000_000),
        "commit": (100_250_000_000, 100_750_000_000),
    }
    assert dict(spans["epoch"].attributes or {}) == {"millstream.epoch": 5, "millstream.lanes": 2}
    assert {span.parent.span_id for name, span in spans.items() if name != "epoch" and span.parent} == {spans["epoch"].context.span_id}


@contextmanager
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """Somebody who takes what is sent, on loopback."""
    taken: dict[str, list[bytes]] = {"/v1/metrics": [], "/v1/traces": []}

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken[self.path].append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *words: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.spark
def test_a_run_sends_where_the_usual_variables_say(
    at: Path, started: Callable[..., ms.Run], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with collector() as (address, taken):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "300")
        topology = ms.Topology("observed")
        topology.compute("count", Count()).reads(inject(topology, [click("a", n) for n in range(20)]))
        run = started(topology, folder=at)
        wait_until(lambda: run.status().computations["count"].tally.received == 20)
        wait_until(lambda: any(_received(body) == 20 for body in taken["/v1/metrics"]))
        wait_until(lambda: bool(taken["/v1/traces"]))
        run.stop()
    names = [
        span.name
        for body in taken["/v1/traces"]
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {"epoch", "lanes", "commit"} == set(names)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and "OpenTelemetry" in record.getMessage()]


def _received(body: bytes) -> float:
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == "millstream.computation_received":
                    return sum(point.as_double or point.as_int for point in metric.sum.data_points)
    return 0.0


def test_without_them_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in observing.WHERE:
        monkeypatch.delenv(name, raising=False)
    assert observer_of("t") is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert observer_of("t") is None


def test_where_it_is_not_installed_that_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with caplog.at_level(logging.WARNING, "millstream"):
        assert observer_of("t") is None
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, and not all of OpenTelemetry is there" in caplog.text
    assert "pip install 'millstream[otel]'" in caplog.text
