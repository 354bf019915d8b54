"""Metrics of a run as Prometheus reads them. Each is in docs/guide/watching.md, with what it means."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from millstream.dashboard.watching import Seen
from millstream.log.metrics import DURATION, METRICS, UP, DiskSizes, Measured, Metric, MetricKind, took

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(seen: Seen, sizes: DiskSizes = DiskSizes()) -> bytes:  # noqa: B008  (it does not change)
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(seen, sizes))
    return generate_latest(registry)


class _Told(Collector):
    def __init__(self, seen: Seen, sizes: DiskSizes) -> None:
        self._seen, self._sizes = seen, sizes

    def collect(self) -> Iterable[Family]:
        status = self._seen.status
        yield GaugeMetricFamily(*UP, value=0 if status is None else 1)
        if status is None:
            return
        measured = Measured(status, self._seen.sample, self._sizes)
        yield from (_family(metric, measured) for metric in METRICS)
        counts, seconds = took(self._seen.sample)
        if counts:
            buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in counts]
            yield HistogramMetricFamily(*DURATION, buckets=buckets, sum_value=seconds)


def _family(metric: Metric, measured: Measured) -> Family:
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.words, labels=metric.labels)
    for of, value in metric.values(measured).items():
        family.add_metric(of, value)
    return family
