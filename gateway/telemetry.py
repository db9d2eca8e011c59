"""Every metric: its name, unit, buckets and help, and a verb to record it.

Labels are bounded. A model that is not configured is `other`, and so is a key beyond `metrics.max_keys`; a name that a
client made up is never a label.

With several processes (PROMETHEUS_MULTIPROC_DIR set by the supervisor) values live in files that the supervisor sums:
one scrape is the whole gateway, and no counter falls when a worker dies. Writing there costs more than a microsecond a
value, and a call touches fourteen; so what one turn of the event loop adds is gathered and written once at its end,
which is still before any answer ends whose call it tells of. A worker that is killed loses one turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .records import Record, Standing, Usage

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OWN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_ERROR_TOKENS = (-4096, -1024, -256, -64, -16, 0, 16, 64, 256, 1024, 4096)

_KINDS = ("prompt", "completion", "cached", "reasoning")

Defer = Callable[[Callable[[], None]], Any]
"""Runs a function at the end of this turn of the event loop: `loop.call_soon`."""


class _Value(Protocol):
    def write(self) -> None: ...


class _Gathered:
    """What was added since the last writing."""

    __slots__ = ("_defer", "_touched")

    def __init__(self, defer: Defer) -> None:
        self._defer = defer
        self._touched: list[_Value] = []

    def touch(self, value: _Value) -> None:
        self._touched.append(value)
        if len(self._touched) == 1:
            self._defer(self.write)

    def write(self) -> None:
        touched, self._touched = self._touched, []
        for value in touched:
            value.write()


class _Count:
    """One series of a counter."""

    __slots__ = ("_added", "_child", "_unwritten")

    def __init__(self, child: Counter, unwritten: _Gathered) -> None:
        self._child = child
        self._unwritten = unwritten
        self._added = 0

    def add(self, amount: int = 1) -> None:
        is_first = not self._added
        self._added += amount
        if is_first:
            self._unwritten.touch(self)

    def write(self) -> None:
        added, self._added = self._added, 0
        self._child.inc(added)


class _Distribution:
    """One series of a histogram.

    prometheus-client takes observations one by one only. Its buckets and sum are reached here by their private names,
    and tests/test_telemetry.py compares the outcome with that of its own `observe`.
    """

    __slots__ = ("_bounds", "_buckets", "_counts", "_number", "_sum", "_total", "_unwritten")

    def __init__(self, child: Histogram, unwritten: _Gathered) -> None:
        self._buckets, self._bounds, self._sum = child._buckets, child._upper_bounds, child._sum  # noqa: SLF001
        self._unwritten = unwritten
        self._counts = [0] * len(self._bounds)
        self._number = 0
        self._total = 0.0

    def observe(self, amount: float) -> None:
        self._total += amount
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._number += 1
        if self._number == 1:
            self._unwritten.touch(self)

    def write(self) -> None:
        self._sum.inc(self._total)
        for place, count in enumerate(self._counts):
            if count:
                self._buckets[place].inc(count)
                self._counts[place] = 0
        self._number, self._total = 0, 0.0


class _Level:
    """One gauge."""

    __slots__ = ("_child", "_is_touched", "_unwritten", "_value")

    def __init__(self, child: Gauge, unwritten: _Gathered) -> None:
        self._child = child
        self._unwritten = unwritten
        self._value = 0
        self._is_touched = False

    def add(self, amount: int) -> None:
        self._value += amount
        if not self._is_touched:
            self._is_touched = True
            self._unwritten.touch(self)

    def write(self) -> None:
        self._is_touched = False
        self._child.set(self._value)


@dataclass(slots=True)
class _CallSeries:
    """The series that calls of one kind add to."""

    requests: _Count
    tokens: tuple[_Count, _Count, _Count, _Count]
    """In the order of `_KINDS`."""
    duration: _Distribution
    first_token: _Distribution
    per_token: _Distribution
    overhead: _Distribution


class Telemetry:
    """The metrics of one worker. `defer` says when to write what was added; by default at once."""

    def __init__(
        self,
        key_ids: Iterable[str],
        max_keys: int,
        registry: CollectorRegistry | None = None,
        *,
        defer: Defer = lambda write: write(),
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._own_label = frozenset(islice(key_ids, max_keys))
        self._unwritten = _Gathered(defer)
        self._counts: dict[tuple[Any, ...], _Count] = {}
        self._distributions: dict[tuple[Any, ...], _Distribution] = {}
        self._calls: dict[tuple[Any, ...], _CallSeries] = {}
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
        in_flight = Gauge(
            "gateway_in_flight_requests", "Requests under way.", registry=self.registry, multiprocess_mode="livesum"
        )
        self._in_flight = _Level(in_flight, self._unwritten)
        self._pending = Gauge(
            "gateway_journal_pending_records",
            "Usage records that the store does not have yet.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._store_errors = self._counter("gateway_store_errors_total", "Failed requests to the store.")
        self._unknown = self._counter("gateway_usage_unknown_total", "Calls sent upstream whose usage nobody reported.")
        self._gone = self._counter("gateway_client_disconnects_total", "Clients that left before their answer ended.")
        estimate_error = self._histogram(
            "gateway_estimate_error_tokens", "Estimated minus reported prompt tokens.", _ERROR_TOKENS
        )
        self._estimate_error = _Distribution(estimate_error, self._unwritten)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=tuple(buckets), registry=self.registry)

    def _count(self, metric: Counter, *labels: str) -> _Count:
        found = self._counts.get((metric, *labels))
        if found is None:
            found = self._counts[(metric, *labels)] = _Count(metric.labels(*labels), self._unwritten)
        return found

    def _distribution(self, metric: Histogram, *labels: str) -> _Distribution:
        found = self._distributions.get((metric, *labels))
        if found is None:
            found = self._distributions[(metric, *labels)] = _Distribution(metric.labels(*labels), self._unwritten)
        return found

    def _call_series(self, key: str, model: str, upstream: str, endpoint: str, status: int, source: str) -> _CallSeries:
        prompt, completion, cached, reasoning = (
            self._count(self._tokens, key, model, upstream, kind, source) for kind in _KINDS
        )
        return _CallSeries(
            requests=self._count(self._requests, key, model, endpoint, upstream, str(status)),
            tokens=(prompt, completion, cached, reasoning),
            duration=self._distribution(self._duration, model, upstream),
            first_token=self._distribution(self._first_token, model, upstream),
            per_token=self._distribution(self._per_token, model, upstream),
            overhead=self._distribution(self._overhead, endpoint),
        )

    def key_label(self, key: str) -> str:
        """The key's own id, or `other` beyond `metrics.max_keys`."""
        return key if key in self._own_label or not key else "other"

    def answered(self, *, key: str, model: str, endpoint: str, upstream: str, status: int) -> None:
        """Any request of the data plane got its answer. `model` is a configured name, `other`, or empty."""
        self._count(self._requests, self.key_label(key), model, endpoint, upstream, str(status)).add()

    def recorded(
        self, record: Record, *, estimated_prompt_tokens: int, overhead_s: float, is_usage_unknown: bool
    ) -> None:
        """A call has ended and its usage record stands."""
        usage = record.usage
        labels = (
            self.key_label(record.key), record.label_model, record.upstream, record.endpoint, record.status,
            usage.source,
        )  # fmt: skip
        series = self._calls.get(labels)
        if series is None:
            series = self._calls[labels] = self._call_series(*labels)
        series.requests.add()
        for count, amount in zip(series.tokens, _kinds(usage), strict=True):
            if amount:
                count.add(amount)
        series.duration.observe(record.duration_s)
        if record.first_byte_s is not None:
            series.first_token.observe(record.first_byte_s)
            if record.stream and usage.completion_tokens > 1:
                streamed_s = record.duration_s - record.first_byte_s
                series.per_token.observe(streamed_s / (usage.completion_tokens - 1))
        series.overhead.observe(overhead_s)
        if usage.source == "reported":
            self._estimate_error.observe(estimated_prompt_tokens - usage.prompt_tokens)
        if is_usage_unknown:
            self._unknown.inc()
        if record.ended == "client_gone":
            self._gone.inc()

    def rejected(self, reason: str) -> None:
        """The gateway itself refused a call."""
        self._count(self._rejections, reason).add()

    def attempted(self, upstream: str, outcome: str) -> None:
        """One attempt at an upstream has ended: `ok`, or the fault."""
        self._count(self._attempts, upstream, outcome).add()

    def entered(self) -> None:
        """A request has begun."""
        self._in_flight.add(1)

    def left(self) -> None:
        """A request has ended."""
        self._in_flight.add(-1)

    def write(self) -> None:
        """Write what was added; at the end of a worker, for whom no turn of the loop comes any more."""
        self._unwritten.write()

    def store_failed(self) -> None:
        """The store did not answer, or refused."""
        self._store_errors.inc()

    def show_pending(self, count: int) -> None:
        """So many records wait for the store."""
        self._pending.set(count)


def _kinds(usage: Usage) -> tuple[int, int, int, int]:
    """In the order of `_KINDS`."""
    return usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens


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
            window = standing.window
            kind, _, name = window.scope.partition(":")
            if kind == "key" and self._label(name) == name and window.model is None and window.unit != "parallel":
                used.add_metric((name, window.unit, window.per), standing.used + standing.reserved)
                limit.add_metric((name, window.unit, window.per), window.limit)
        yield used
        yield limit
