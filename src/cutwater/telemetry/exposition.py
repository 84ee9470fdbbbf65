"""Writes the metrics of a member in the formats that Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cutwater.store.status import Status
from cutwater.telemetry.definitions import COMMON_LABELS, DURATION_BUCKETS_S, METRICS, Kind, Metric
from cutwater.telemetry.measures import Histogram, Measures
from cutwater.telemetry.status_values import status_values


class MemberCollector(Collector):
    """The metrics of one member at one moment, from its measures and its last status. Nothing waits for the member."""

    def __init__(self, measures: Measures, status: Status, reported_s: float, sinks: Collection[str]) -> None:
        """`reported_s`: when the status was made, in seconds of `time.monotonic`. `sinks`: those of the member."""
        self._measures = measures
        self._status = status
        self._reported_s = reported_s
        self._sinks = sinks

    def collect(self) -> Iterator[Family]:
        common = (self._status.pipeline, self._status.member)
        values, durations = self._measures.values()
        age_s = max(0.0, time.monotonic() - self._reported_s)
        for metric, labels, value in status_values(self._status, self._sinks, age_s, time.time()):
            values.setdefault(metric.name, {})[labels] = value
        for metric in METRICS.values():
            if metric.kind is Kind.HISTOGRAM:
                yield _histogram(metric, durations, common)
                continue
            family = _family(metric)
            for labels, value in sorted(values.get(metric.name, {}).items()):
                family.add_metric([*common, *labels], value)
            yield family


def exposed(collector: MemberCollector, accept: str) -> tuple[bytes, str]:
    """The metrics as text, in the format that the header `Accept` asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=[*COMMON_LABELS, *metric.labels])


def _histogram(metric: Metric, durations: Histogram, common: tuple[str, str]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=COMMON_LABELS)
    upto, buckets = 0, []
    for bound, count in zip((*map(str, DURATION_BUCKETS_S), "+Inf"), durations.counts, strict=True):
        upto += count
        buckets.append((bound, upto))
    family.add_metric(common, buckets, durations.total)
    return family
