"""Metrics of a run, and traces of its epochs, for OpenTelemetry: where its usual environment variables say where to send them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from millstream.core.epoch import EPOCH_BOUNDS
from millstream.log.metrics import METRICS, Measured, Metric, MetricKind
from millstream.mill.spending import EpochSpan

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger("millstream")

WHERE = tuple(f"OTEL_EXPORTER_OTLP_{what}ENDPOINT" for what in ("", "METRICS_", "TRACES_"))
END_TIMEOUT = 5.0  # seconds to send the rest at the end
NANOSECONDS = 1_000_000_000


def observer_of(topology: str) -> Observer | None:
    """None if nobody says where to send it, or that it is to be left."""
    given = [name for name in WHERE if os.environ.get(name)]
    if not given or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        return _observer(topology, given)
    except ImportError as error:
        log.warning("%s is set, and not all of OpenTelemetry is there (%s): pip install 'millstream[otel]'", given[0], error)
    except Exception as error:  # what else the variables say, the run does not depend on
        log.warning("%s is set, and OpenTelemetry cannot be begun: %s", given[0], error)
    return None


def _observer(topology: str, given: list[str]) -> Observer:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    metrics, traces = ({WHERE[0], name} & set(given) for name in WHERE[1:])
    reader = PeriodicExportingMetricReader(OTLPMetricExporter()) if metrics else None
    return Observer(topology, reader, OTLPSpanExporter() if traces else None)


class Observer:
    """Hears how the run stands about once a second. Sending is a matter of OpenTelemetry's own threads."""

    def __init__(self, topology: str, reader: MetricReader | None, spans: SpanExporter | None) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._measured: Measured | None = None
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": topology}
        resource = Resource.create({"millstream.topology": topology, **named})
        self._meters = MeterProvider([reader] if reader is not None else [], resource)
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traced = spans is not None
        if spans is not None:
            self._tracers.add_span_processor(BatchSpanProcessor(spans))
        self._tracer = self._tracers.get_tracer("millstream")
        meter = self._meters.get_meter("millstream")
        for metric in METRICS:
            make = meter.create_observable_counter if metric.kind is MetricKind.COUNTER else meter.create_observable_gauge
            make(name_of(metric), [self._callback(metric)], unit=metric.unit, description=metric.words)
        self._duration = meter.create_histogram(
            "millstream.epoch.duration",
            unit="s",
            description="How long epochs took, from plan to commit.",
            explicit_bucket_boundaries_advisory=list(EPOCH_BOUNDS),
        )

    def observe(self, measured: Measured, epochs: Iterable[EpochSpan]) -> None:
        self._measured = measured
        for epoch in epochs:
            self._duration.record(epoch.ran + epoch.wrote)
            if self._traced:
                self._trace(epoch)

    def _trace(self, epoch: EpochSpan) -> None:
        """An epoch with its phases, made when it is over."""
        from opentelemetry.trace import set_span_in_context

        began, ran = int(epoch.began * NANOSECONDS), int((epoch.began + epoch.ran) * NANOSECONDS)
        ended = ran + int(epoch.wrote * NANOSECONDS)
        numbers = {"millstream.epoch": epoch.number, "millstream.lanes": epoch.lanes}
        whole = self._tracer.start_span("epoch", start_time=began, attributes=numbers)
        inside = set_span_in_context(whole)
        self._tracer.start_span("lanes", inside, start_time=began).end(ran)
        self._tracer.start_span("commit", inside, start_time=ran).end(ended)
        whole.end(ended)

    def end(self) -> None:
        """Send the rest, within a time: a far end that is gone is tried again and again."""
        sending = threading.Thread(target=self._shut_down, name="millstream sends the last metrics", daemon=True)
        sending.start()
        sending.join(END_TIMEOUT)
        if sending.is_alive():
            log.warning("OpenTelemetry did not take the last of this run within %.0f s", END_TIMEOUT)

    def _shut_down(self) -> None:
        for shut_down in (self._tracers.shutdown, partial(self._meters.shutdown, END_TIMEOUT * 1_000)):  # which send what they have
            try:
                shut_down()
            except Exception as error:  # whatever a far end or its client does, the run ends as it should
                log.warning("OpenTelemetry did not take the last of this run: %s", error)

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            measured = self._measured
            if measured is None:
                return []
            values = metric.values(measured).items()
            return [Observation(value, dict(zip(metric.labels, of, strict=True))) for of, value in values]

        return observe


def name_of(metric: Metric) -> str:
    """As OpenTelemetry names things: with dots, and without the unit, which stands beside."""
    return metric.name.removesuffix("_seconds").removesuffix("_bytes").replace("_", ".", 1)
