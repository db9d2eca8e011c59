"""The metrics of the whole gateway in the Prometheus text format, written by the supervisor for each scrape.

The workers' counts are in shared files (`metrics.py`) and are summed here; the supervisor's own metrics are added. A
gauge of a worker cannot be removed from its file, so gauges that a reload has removed are filtered here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway import __version__

from .live_counters import UPSTREAM_STATE
from .metrics import KeyCollector, QuotaRow


class Reloads(NamedTuple):
    """The results of reloads so far."""

    generation: int
    results: Mapping[str, int]
    restarts: int = 0
    """Number of replaced workers that ended unexpectedly."""


class _Workers(Collector):
    """The sums over all workers, of upstreams that there are."""

    def __init__(self, folder: str, upstreams: Collection[str]) -> None:
        self._files = MultiProcessCollector(None, path=folder)  # type: ignore[no-untyped-call]
        self._upstreams = upstreams

    def collect(self) -> Iterator[Metric]:
        for metric in self._files.collect():  # type: ignore[no-untyped-call]
            if metric.name == UPSTREAM_STATE:
                metric.samples = [each for each in metric.samples if each.labels["upstream"] in self._upstreams]
            yield metric


class SupervisorMetrics(Collector):
    """Collects the metrics that only the supervisor has."""

    def __init__(self, reloads: Reloads) -> None:
        self._reloads = reloads

    def collect(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("gateway_build_info", "The running version.", labels=["version"])
        version.add_metric([__version__], 1)
        yield version
        number = self._reloads.generation
        yield GaugeMetricFamily("gateway_config_generation", "Number of the configuration in use.", number)
        text = "Reloads of the configuration, by result: applied, refused."
        reloads = CounterMetricFamily("gateway_config_reloads", text, labels=["result"])
        for result, count in self._reloads.results.items():
            reloads.add_metric([result], count)
        yield reloads
        yield CounterMetricFamily(
            "gateway_worker_restarts", "Workers that ended unexpectedly and were replaced.", self._reloads.restarts
        )


def write(
    folder: str,
    upstreams: Collection[str],
    reloads: Reloads,
    quotas: Sequence[Sequence[Any]],
    teams: Mapping[str, str | None],
) -> str:
    """Write all of it into a new file of this folder, which is the workers' own, and return its path.

    Raises the error if a new worker is creating its files meanwhile.
    """
    collector = KeyCollector([QuotaRow(*row) for row in quotas], teams)
    return _write(folder, _Workers(folder, upstreams), SupervisorMetrics(reloads), collector)


def _write(folder: str, *collectors: Collector) -> str:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    descriptor, path = tempfile.mkstemp(prefix="scrape-", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(generate_latest(registry))
    return path
