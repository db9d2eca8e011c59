"""Every metric: its name, unit, buckets and help, and a verb to record it.

Labels are bounded. A model that is not configured is `other`, and so is a key beyond `metrics.max_keys`; a name that a
client made up is never a label. Children are looked up once and kept, which costs a third of `labels()`.

With several processes (PROMETHEUS_MULTIPROC_DIR set by the supervisor) values live in files that the supervisor sums:
one scrape is the whole gateway, and no counter falls when a worker dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .records import Record, Standing

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OWN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_ERROR_TOKENS = (-4096, -1024, -256, -64, -16, 0, 16, 64, 256, 1024, 4096)

Child = TypeVar("Child", Counter, Gauge, Histogram)


class Telemetry:
    """The metrics of one worker."""

    def __init__(self, key_ids: Iterable[str], max_keys: int, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._own_label = frozenset(islice(key_ids, max_keys))
        self._children: dict[tuple[object, ...], Counter | Gauge | Histogram] = {}
        self._requests = self._counter(
            "gateway_requests_total", "Answered requests.", "key", "model", "endpoint", "upstream", "status"
        )
        self._tokens = self._counter(
            "gateway_tokens_total", "Tokens, by who says so.", "key", "model", "upstream", "type", "source"
        )
        self._duration = self._histogram(
            "gateway_request_duration_seconds", "Whole calls.", _SECONDS, "model", "upstream"
        )
        self._first_token = self._histogram(
            "gateway_time_to_first_token_seconds", "Until the first byte of an answer.", _SECONDS, "model", "upstream"
        )
        self._per_token = self._histogram(
            "gateway_time_per_output_token_seconds",
            "Streamed time after the first byte, for each further token.",
            _TOKEN_SECONDS, "model", "upstream",
        )  # fmt: skip
        self._overhead = self._histogram(
            "gateway_overhead_seconds", "The gateway's own time in a call.", _OWN_SECONDS, "endpoint"
        )
        self._attempts = self._counter(
            "gateway_upstream_attempts_total", "Attempts at an upstream.", "upstream", "outcome"
        )
        self._rejections = self._counter("gateway_rejections_total", "Calls refused by the gateway itself.", "reason")
        self._in_flight = Gauge(
            "gateway_in_flight_requests", "Requests under way.", registry=self.registry, multiprocess_mode="livesum"
        )
        self._pending = Gauge(
            "gateway_journal_pending_records",
            "Usage records that the store does not have yet.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._store_errors = self._counter("gateway_store_errors_total", "Failed requests to the store.")
        self._unknown = self._counter("gateway_usage_unknown_total", "Calls sent upstream whose usage nobody reported.")
        self._gone = self._counter("gateway_client_disconnects_total", "Clients that left before their answer ended.")
        self._estimate_error = self._histogram(
            "gateway_estimate_error_tokens", "Estimated minus reported prompt tokens.", _ERROR_TOKENS
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=tuple(buckets), registry=self.registry)

    def _child(self, metric: Child, *labels: str) -> Child:
        found = self._children.get((metric, *labels))
        if found is None:
            found = self._children[(metric, *labels)] = metric.labels(*labels)
        return found  # type: ignore[return-value] # the child of a metric is of its kind

    def key_label(self, key: str) -> str:
        """The key's own id, or `other` beyond `metrics.max_keys`."""
        return key if key in self._own_label or not key else "other"

    def answered(self, *, key: str, model: str, endpoint: str, upstream: str, status: int) -> None:
        """Any request of the data plane got its answer. `model` is a configured name, `other`, or empty."""
        self._child(self._requests, self.key_label(key), model, endpoint, upstream, str(status)).inc()

    def recorded(
        self, record: Record, *, estimated_prompt_tokens: int, overhead_s: float, is_usage_unknown: bool
    ) -> None:
        """A call has ended and its usage record stands."""
        key, model, upstream, usage = self.key_label(record.key), record.label_model, record.upstream, record.usage
        self.answered(key=record.key, model=model, endpoint=record.endpoint, upstream=upstream, status=record.status)
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached", usage.cached_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if count:
                self._child(self._tokens, key, model, upstream, kind, usage.source).inc(count)
        self._child(self._duration, model, upstream).observe(record.duration_s)
        if record.first_byte_s is not None:
            self._child(self._first_token, model, upstream).observe(record.first_byte_s)
            if record.stream and usage.completion_tokens > 1:
                streamed_s = record.duration_s - record.first_byte_s
                self._child(self._per_token, model, upstream).observe(streamed_s / (usage.completion_tokens - 1))
        self._child(self._overhead, record.endpoint).observe(overhead_s)
        if usage.source == "reported":
            self._estimate_error.observe(estimated_prompt_tokens - usage.prompt_tokens)
        if is_usage_unknown:
            self._unknown.inc()
        if record.ended == "client_gone":
            self._gone.inc()

    def rejected(self, reason: str) -> None:
        """The gateway itself refused a call."""
        self._child(self._rejections, reason).inc()

    def attempted(self, upstream: str, outcome: str) -> None:
        """One attempt at an upstream has ended: `ok`, or the fault."""
        self._child(self._attempts, upstream, outcome).inc()

    def entered(self) -> None:
        """A request has begun."""
        self._in_flight.inc()

    def left(self) -> None:
        """A request has ended."""
        self._in_flight.dec()

    def store_failed(self) -> None:
        """The store did not answer, or refused."""
        self._store_errors.inc()

    def show_pending(self, count: int) -> None:
        """So many records wait for the store."""
        self._pending.set(count)


class QuotaCollector(Collector):
    """How the keys' windows stand at one scrape."""

    def __init__(self, standings: Iterable[Standing], label: Callable[[str], str]) -> None:
        self._standings = standings
        self._label = label

    def collect(self) -> Iterator[Metric]:
        labels = ("key", "unit", "per")
        used = GaugeMetricFamily("gateway_quota_used", "Used and reserved units of a key's quota.", labels=labels)
        limit = GaugeMetricFamily("gateway_quota_limit", "Limit of a key's quota, in units.", labels=labels)
        for standing in self._standings:
            claim = standing.claim
            kind, _, name = claim.scope.partition(":")
            if kind == "key" and self._label(name) == name and claim.model is None and claim.unit != "parallel":
                used.add_metric((name, claim.unit, claim.per), standing.used + standing.reserved)
                limit.add_metric((name, claim.unit, claim.per), claim.limit)
        yield used
        yield limit
