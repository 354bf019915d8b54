"""Metrics of a run as Prometheus reads them. Each is in docs/guide/watching.md, with what it means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from millstream.dashboard.watching import Seen
from millstream.log.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(seen: Seen) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(seen))
    return generate_latest(registry)


class _Told(Collector):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterable[Metric]:
        yield _gauge(
            "millstream_up", "1 if the folder can be read and holds a run, on or over.", {(): 0 if self._seen.status is None else 1}
        )
        if self._seen.status is not None:
            yield from _of_run(self._seen.status, self._seen)
            yield from _of_streams(self._seen.status)
            yield from _of_computations(self._seen.status)
            yield from _of_ends(self._seen.status)


def _of_run(status: Status, seen: Seen) -> Iterator[Metric]:
    yield _gauge("millstream_running", "1 while a run is on.", {(): int(status.running)})
    yield _counter("millstream_epochs", "Epochs that are committed.", {(): status.epoch})
    if seen.sample is not None:
        spent = {("lanes",): seen.sample.ran, ("commit",): seen.sample.wrote}
        yield _counter("millstream_epoch_seconds", "Time that the epochs of this run took, by phase.", spent, "phase")
    yield _gauge("millstream_troubles", "What keeps the run from working as it should, counted.", {(): len(status.troubles)})
    yield _gauge("millstream_log_behind_epochs", "Epochs that the log is behind the newest record.", {(): status.log})


def _of_streams(status: Status) -> Iterator[Metric]:
    records = {(name,): stream.records for name, stream in status.streams.items()}
    yield _counter("millstream_stream_records", "Records that a stream has had.", records, "stream")


def _of_computations(status: Status) -> Iterator[Metric]:
    of = status.computations
    outcomes = ("applied", "late", "dropped", "diverted", "dead", "unkeyed")
    told = {(name, what): getattr(c.tally, what) for name, c in of.items() for what in outcomes}
    yield _counter("millstream_computation_received", "Records that came.", {(n,): c.tally.received for n, c in of.items()}, "computation")
    words = "Records by what became of them; late ones count here, and as what became of them."
    yield _counter("millstream_computation_records", words, told, "computation", "outcome")
    yield _counter("millstream_computation_produced", "Productions.", {(n,): c.tally.produced for n, c in of.items()}, "computation")
    yield _counter("millstream_computation_timers_fired", "Timers that fired.", {(n,): c.tally.fired for n, c in of.items()}, "computation")
    lag = {(n,): int(c.lag) / 1e6 for n, c in of.items() if c.lag is not None}
    yield _gauge("millstream_low_watermark_lag_seconds", "How far a low watermark is behind the wall clock.", lag, "computation")
    yield _gauge("millstream_keys", "Keys that a computation keeps something of.", {(n,): c.keys for n, c in of.items()}, "computation")
    yield _gauge("millstream_timers", "Timers that are set.", {(n,): c.timers for n, c in of.items()}, "computation")
    yield _gauge("millstream_records_waiting", "Records that wait for their time.", {(n,): c.waiting for n, c in of.items()}, "computation")


def _of_ends(status: Status) -> Iterator[Metric]:
    of = status.injectors
    yield _counter("millstream_injected", "Records that an injector has brought in.", {(n,): i.injected for n, i in of.items()}, "injector")
    yield _counter("millstream_injector_dead", "What an injector has set aside.", {(n,): i.dead for n, i in of.items()}, "injector")
    yield _gauge(
        "millstream_injector_waiting", "Records that no epoch has taken yet.", {(n,): i.waiting for n, i in of.items()}, "injector"
    )
    yield _gauge(
        "millstream_injector_idle", "1 while nobody waits for it, for it is silent.", {(n,): int(i.idle) for n, i in of.items()}, "injector"
    )
    lag = {(n, partition): left for n, i in of.items() for partition, left in i.lag.items()}
    yield _gauge("millstream_source_lag", "What a source has that was not read, in its own unit.", lag, "injector", "partition")
    behind = {(name,): epochs for name, epochs in status.deliveries.items()}
    yield _gauge("millstream_delivery_behind_epochs", "Epochs that a delivery is behind its stream.", behind, "delivery")


def _gauge(name: str, words: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _counter(name: str, words: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = CounterMetricFamily(name, words, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family
