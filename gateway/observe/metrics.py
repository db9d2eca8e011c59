"""Every metric: its name, unit, buckets and help, and a verb to record it.

Labels are bounded. A model that is neither configured nor was ever served is `other`, and so is a model beyond
`metrics.max_models` or a key beyond `metrics.max_keys` (`BoundedLabels` decides which); a name invented by a client
is never a label.

With several processes (PROMETHEUS_MULTIPROC_DIR set by the supervisor) values live in files that the supervisor sums:
one scrape is the whole gateway, and no counter falls when a worker ends. A call changes fourteen values, and
the cost is in the functions called for each: so what calls add is gathered for `GATHER_S`, summed, and written in one
go (worker_files.py). Before a scrape the supervisor has every worker write, so that it has all that came before it.

Of a killed worker, the calls that its journal has and its files do not are counted by the worker that recovers the
journal (`recovered`); what has no journal entry, a refusal or an attempt, is lost for at most `GATHER_S`.

Which names have a label of their own in metrics: a limited number, the same ones for every worker. One object for
keys, one for models.

The names of the configuration come first, in its order; what room they leave goes to other names in the order in which
they are first used. A name keeps its label until the gateway ends, because a counter that changes its name is lost.

The workers of one gateway share a file of names, each a JSON text on a line of its own. A worker reads it when it sees
a name for the first time, and only as long as there is room: once for each name.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.quota import pricing
from gateway.records import OTHER, Record, WindowStatus
from gateway.wings import parts

from .worker_files import WorkerFiles, observe_all


class BoundedLabels:
    """The labels of one worker. `file` is shared by all workers of the gateway; None: there is one worker."""

    def __init__(self, names: Iterable[str], most: int, file: Path | None) -> None:
        self._file = file
        self._own: dict[str, None] = {}
        self.configure(names, most)

    def __call__(self, name: str) -> str:
        """The name itself, or `other`, which no key may have as its id; no name has no label. Not for names that
        strangers invent."""
        if name in self._own or not name or name == OTHER:
            return name
        if len(self._own) < self._most:
            self._claim([name])
        return name if name in self._own else OTHER

    def every(self) -> frozenset[str]:
        """The names that have a label of their own, whichever worker has given it to them."""
        if len(self._own) < self._most:
            self._claim([])
        return frozenset(self._own)

    def configure(self, names: Iterable[str], most: int) -> None:
        """Allows at most `most` labels from now on and gives them to these names first. A name that has a label keeps
        it."""
        self._most = most
        self._claim(list(islice(names, most)))

    def _claim(self, names: Iterable[str]) -> None:
        """Give these a label, as far as there is room."""
        if self._file is None:
            self._own.update(dict.fromkeys(islice(names, max(0, self._most - len(self._own)))))
            return
        try:
            with self._file.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                known = dict.fromkeys(json.loads(line) for line in file)
                wanted = [name for name in names if name not in known]
                new = wanted[: max(0, self._most - len(known))]
                size, text = file.seek(0, os.SEEK_END), "".join([f"{json.dumps(name)}\n" for name in new]).encode()
                if os.write(file.fileno(), text) < len(text):  # the disk is full: no half of a line stays
                    new = []
                    file.truncate(size)
        except OSError:
            return  # the gateway is at its end, or its disk is: what has no label is counted with the others
        self._own = dict.fromkeys([*known, *new])


SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_OWN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_ERROR_TOKENS = (-4096, -1024, -256, -64, -16, 0, 16, 64, 256, 1024, 4096)

_KINDS = ("prompt", "completion", "cached", "reasoning")
"""The kinds of tokens that are counted apart, in the order of the fields of a `Usage`."""

GATHER_S = 0.05
"""How long a worker gathers what calls add before it writes."""

Defer = Callable[[Callable[[], None]], Any]
"""Runs a function after `GATHER_S`: `partial(loop.call_later, GATHER_S)`."""

LastEnd = Callable[[], tuple[str, int]]
"""The name of a journal, and the last entry of an ended call that a killed worker would leave in it."""


class _Ended(NamedTuple):
    """A call that has ended, and what beside its record counts."""

    record: Record
    estimated_prompt_tokens: int | None = None
    overhead_s: float | None = None
    """Both None for a call that was recovered from a journal, which does not have them."""


class WingCounter(NamedTuple):
    name: str
    help: str
    labels: tuple[str, ...] = ()


class WingGauge(NamedTuple):
    """A number of a wing that goes up and down; that of all workers is their sum, or the newest one."""

    name: str
    help: str
    labels: tuple[str, ...]
    of_all: Literal["livesum", "mostrecent"] = "livesum"


class WingHistogram(NamedTuple):
    name: str
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...]


class Telemetry:
    """The metrics of one worker. `defer` schedules the writing of added values; by default it is at once. `files`: the
    files to write; None: those of prometheus-client, or none."""

    def __init__(
        self,
        key_ids: Iterable[str],
        max_keys: int,
        registry: CollectorRegistry | None = None,
        *,
        models: Iterable[str] = (),
        max_models: int = 200,
        defer: Defer = lambda write: write(),
        files: WorkerFiles | None = None,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        folder = Path(shared) if shared else None
        self.key_labels = BoundedLabels(key_ids, max_keys, folder and folder / "key-labels")
        self.model_labels = BoundedLabels(models, max_models, folder and folder / "model-labels")
        self._defer = defer
        self._is_due = False
        """Whether what was added is going to be written."""
        self._files = files
        if files is not None:
            files.on_change = self._write_soon
        self._last_end: LastEnd | None = None
        self._marks: dict[str, int] = {}
        """Up to which entry the calls of each journal are counted that this worker writes or has recovered."""
        self._added: dict[tuple[Counter, tuple[str, ...]], float] = {}
        self._ended: list[_Ended] = []
        self._under_way = self._shown_under_way = 0
        self._children: dict[tuple[Counter | Histogram, tuple[str, ...]], Any] = {}
        self._requests = self._counter(
            "gateway_requests_total",
            "Answered requests; status 0: calls of a killed worker.",
            "key", "model", "endpoint", "upstream", "status",
        )  # fmt: skip
        self._tokens = self._counter(
            "gateway_tokens_total",
            "Tokens, by source: reported by the upstream or estimated.",
            "key", "model", "upstream", "type", "source",
        )  # fmt: skip
        self._cost = self._counter(
            "gateway_cost_usd_total", "US dollars charged to calls with a known price.", "key", "model"
        )
        self._duration = self._histogram(
            "gateway_request_duration_seconds", "Duration of calls to the end.", SECONDS, "model", "upstream"
        )
        self._first_token = self._histogram(
            "gateway_time_to_first_token_seconds", "Time to the first byte of an answer.", SECONDS, "model", "upstream"
        )
        self._per_token = self._histogram(
            "gateway_time_per_output_token_seconds",
            "Duration of a stream after its first byte, per further token.",
            _TOKEN_SECONDS, "model", "upstream",
        )  # fmt: skip
        self._overhead = self._histogram(
            "gateway_overhead_seconds", "Time of a call spent in the gateway itself.", _OWN_SECONDS, "endpoint"
        )
        self._attempts = self._counter(
            "gateway_upstream_attempts_total", "Attempts at an upstream.", "upstream", "outcome"
        )
        self._state = Gauge(
            "gateway_upstream_state",
            "Circuit of an upstream, or of a model at it, in any worker: 0 closed, 1 half open, 2 open.",
            ["upstream"], registry=self.registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self._rejections = self._counter("gateway_rejections_total", "Calls refused by the gateway itself.", "reason")
        self._in_flight = Gauge(
            "gateway_in_flight_requests", "Calls under way.", registry=self.registry, multiprocess_mode="livesum"
        )
        self._pending = Gauge(
            "gateway_journal_pending_records",
            "Usage records of running workers that the store does not have yet.",
            registry=self.registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self._skew = Gauge(
            "gateway_clock_skew_seconds",
            "How far the clock of the gateway's machine is from the store's, ahead of it or behind.",
            registry=self.registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self._store_errors = self._counter("gateway_store_errors_total", "Failed requests to the store.")
        self._closed_calls = self._counter(
            "gateway_closed_calls_total",
            "Calls of silent workers, of any gateway on the store, that this gateway closed, charging their estimates. "
            "Records and reports have their tokens, gateway_tokens_total does not.",
        )
        self._restored_changes = self._counter(
            "gateway_lost_changes_total",
            "Changes of keys, teams and quotas that the store has lost, by result: restored, failed.",
            "outcome",
        )
        self._unknown = self._counter(
            "gateway_usage_unknown_total", "Calls that were sent upstream and have no reported usage."
        )
        self._implausible = self._counter(
            "gateway_usage_implausible_total",
            "Usage reports of upstreams with an impossible number of tokens of a type.",
            "upstream", "model", "type",
        )  # fmt: skip
        self._doubted: set[tuple[str, str, str]] = set()
        self._gone = self._counter("gateway_client_disconnects_total", "Clients that left before their answer ended.")
        self._estimate_error = self._histogram(
            "gateway_estimate_error_tokens", "Estimated minus reported prompt tokens.", _ERROR_TOKENS
        )
        self._of_wings = {
            each: self._counter(each.name, each.help, *each.labels) for each in parts(WingCounter, "metrics")
        }
        self._gauges_of_wings = {
            each: Gauge(each.name, each.help, each.labels, registry=self.registry, multiprocess_mode=each.of_all)
            for each in parts(WingGauge, "metrics")
        }
        self._histograms_of_wings = {
            each: self._histogram(each.name, each.help, each.buckets, *each.labels)
            for each in parts(WingHistogram, "metrics")
        }

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=tuple(buckets), registry=self.registry)

    def answered(self, *, key: str, model: str, endpoint: str, upstream: str, status: int) -> None:
        """Any request of the data plane got its answer. `model` is a configured or served name, `other`, or empty."""
        self._add(self._requests, (self.key_labels(key), self.model_labels(model), endpoint, upstream, str(status)))

    def recorded(
        self, record: Record, *, estimated_prompt_tokens: int, overhead_s: float, is_usage_unknown: bool
    ) -> None:
        """A call has ended and its usage record is final."""
        self._ended.append(_Ended(record, estimated_prompt_tokens, overhead_s))
        if not self._is_due:
            self._write_soon()
        if is_usage_unknown:
            self._add(self._unknown)
        if record.ended == "client_gone":
            self.client_left()

    def change_restored(self, outcome: str, number: int) -> None:
        """Count changes of operators that the store has lost: made again, or not."""
        self._restored_changes.labels(outcome).inc(number)

    def follow(self, last_end: LastEnd) -> None:
        """Mark in each write up to which entry of this worker's journal the calls are counted."""
        self._last_end = last_end
        self.write()

    def counted(self, journal: str) -> int | None:
        """Up to which entry of a dead worker's journal its calls are in the metrics of this gateway; None: the worker
        was not one of this gateway."""
        if journal in self._marks or self._files is None:
            return self._marks.get(journal)
        return self._files.counted(journal)

    def recovered(self, journal: str, number: int, record: Record | None) -> None:
        """Count a call out of a dead worker's journal, and that its calls are counted up to this entry."""
        self._marks[journal] = number
        if record is None:
            self.write()
            return
        self._write_soon()
        if record.ended == "lost":
            self._count_lost(record)
            return
        self._ended.append(_Ended(record))
        if record.usage.source == "estimated":
            self._add(self._unknown)
        if record.ended == "client_gone":
            self.client_left()

    def _count_lost(self, record: Record) -> None:
        """A call that was not answered has no times."""
        key, model, upstream = self.key_labels(record.key), self.model_labels(record.label_model), record.upstream
        self._add(self._requests, (key, model, record.endpoint, upstream, str(record.status)))
        for name, amount in zip(_KINDS, record.usage[:4], strict=True):
            if amount:
                self._add(self._tokens, (key, model, upstream, name, record.usage.source), amount)
        if record.cost_nusd:
            self._add(self._cost, (key, model), pricing.usd(record.cost_nusd))
        self._add(self._unknown)

    def doubted(self, upstream: str, model: str, kind: str) -> bool:
        """An upstream reported more tokens of a kind than there can have been. Returns whether it is the first time."""
        labels = (upstream, self.model_labels(model), kind)
        self._add(self._implausible, labels)
        is_first = labels not in self._doubted
        self._doubted.add(labels)
        return is_first

    def client_left(self) -> None:
        """A client did not wait for its answer."""
        self._add(self._gone)

    def rejected(self, reason: str) -> None:
        self._add(self._rejections, (reason,))

    def attempted(self, upstream: str, outcome: str) -> None:
        """One attempt at an upstream has ended: `ok`, the fault, `refused` (the request's own), `client_gone`, or
        `hedged`."""
        self._add(self._attempts, (upstream, outcome))

    def show_upstream(self, upstream: str, state: int) -> None:
        """This is the state of an upstream now: 0 closed, 1 half-open, 2 open."""
        self._state.labels(upstream).set(state)

    def count_under_way(self, change: int) -> None:
        """Change the number of calls under way: by 1 when a call begins, by -1 when it has ended."""
        self._under_way += change
        if not self._is_due:
            self._write_soon()

    def store_failed(self) -> None:
        self._add(self._store_errors)

    def calls_closed(self, number: int) -> None:
        """`number` calls of silent workers were closed at their estimates."""
        if number:
            self._closed_calls.inc(number)

    def count(self, counter: WingCounter, *labels: str, amount: float = 1) -> None:
        """Add to a counter of a wing. Labels have to be bounded: `key_labels` and `model_labels` see to it."""
        self._add(self._of_wings[counter], labels, amount)

    def change(self, gauge: WingGauge, *labels: str, by: float) -> None:
        self._gauges_of_wings[gauge].labels(*labels).inc(by)

    def observe(self, histogram: WingHistogram, value: float, *labels: str) -> None:
        self._histograms_of_wings[histogram].labels(*labels).observe(value)

    def show(self, gauge: WingGauge, value: float, *labels: str) -> None:
        """Set a gauge of a wing, whose labels have to be bounded."""
        self._gauges_of_wings[gauge].labels(*labels).set(value)

    def show_pending(self, count: int) -> None:
        """`count` records wait for the store."""
        self._pending.set(count)

    def show_skew(self, skew_s: float) -> None:
        """The machine's clock is ahead of the store's by this; behind it, where that is below 0."""
        self._skew.set(abs(skew_s))

    # ------------------------------------------------------------------------------------------------------ writing

    def _add(self, metric: Counter, labels: tuple[str, ...] = (), amount: float = 1) -> None:
        series = (metric, labels)
        self._added[series] = self._added.get(series, 0) + amount
        if not self._is_due:
            self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._defer(self.write)

    def write(self) -> None:
        try:
            self._add_up()
            if self._files is not None:
                self._files.write(dict(self._marks))
        finally:
            self._is_due = False

    def _add_up(self) -> None:
        """Bring the values up to date with what was gathered."""
        if self._last_end is not None:
            journal, number = self._last_end()
            self._marks[journal] = number
        if self._under_way != self._shown_under_way:
            self._shown_under_way = self._under_way
            self._in_flight.set(self._under_way)
        added, self._added = self._added, {}
        for (metric, of), amount in added.items():
            self._child(metric, of).inc(amount)
        ended, self._ended = self._ended, []
        kinds: dict[tuple[str, str, str, str, int, str], list[_Ended]] = {}
        for call in ended:
            record = call.record
            kind = (
                record.key, record.label_model, record.upstream, record.endpoint, record.status, record.usage.source,
            )  # fmt: skip
            kinds.setdefault(kind, []).append(call)
        for (key, model, upstream, endpoint, status, source), calls in kinds.items():
            labels = self.key_labels(key), self.model_labels(model)
            self._write_calls(*labels, upstream, endpoint, status, source, calls)

    def close(self) -> None:
        """Write what was gathered, at the end of a worker."""
        self.write()
        if self._files is not None:
            self._files.close()

    def _write_calls(
        self, key: str, model: str, upstream: str, endpoint: str, status: int, source: str, calls: list[_Ended]
    ) -> None:
        self._child(self._requests, (key, model, endpoint, upstream, str(status))).inc(len(calls))
        for name, amounts in zip(_KINDS, zip(*[call.record.usage[:4] for call in calls], strict=True), strict=True):
            if amount := sum(amounts):
                self._child(self._tokens, (key, model, upstream, name, source)).inc(amount)
        route, records = (model, upstream), [call.record for call in calls]
        if cost_nusd := sum([record.cost_nusd or 0 for record in records]):
            self._child(self._cost, (key, model)).inc(pricing.usd(cost_nusd))
        self._observe(self._duration, route, [record.duration_s for record in records])
        first = [record for record in records if record.first_byte_s is not None]
        self._observe(self._first_token, route, [record.first_byte_s or 0 for record in first])
        self._observe(
            self._per_token, route,
            [
                (record.duration_s - (record.first_byte_s or 0)) / (record.usage.completion_tokens - 1)
                for record in first
                if record.stream and record.usage.completion_tokens > 1
            ],
        )  # fmt: skip
        self._observe(self._overhead, (endpoint,), [call.overhead_s for call in calls if call.overhead_s is not None])
        if source == "reported":
            errors = [
                call.estimated_prompt_tokens - call.record.usage.prompt_tokens
                for call in calls
                if call.estimated_prompt_tokens is not None
            ]
            self._observe(self._estimate_error, (), errors)

    def _child(self, metric: Counter | Histogram, labels: tuple[str, ...]) -> Any:
        """Looked up once and kept, which costs a third of `labels()`."""
        child = self._children.get((metric, labels))
        if child is None:
            child = self._children[(metric, labels)] = metric.labels(*labels) if labels else metric
        return child

    def _observe(self, metric: Histogram, labels: tuple[str, ...], amounts: Sequence[float]) -> None:
        if amounts:
            observe_all(self._child(metric, labels), amounts)


class QuotaRow(NamedTuple):
    """The state of a quota in its units, for usd in US dollars. `used` includes reservations."""

    key: str
    """The key's id, or the scope of another owner, which has a colon or is `gateway`."""
    unit: str
    per: str
    used: float
    limit: float


def quota_rows(statuses: Iterable[WindowStatus], label: Callable[[str], str]) -> Iterator[QuotaRow]:
    """The rows of those windows that metrics show: of all models, and of no key that has no label of its own."""
    for status in statuses:
        window = status.window
        kind, _, name = window.scope.partition(":")
        if (kind != "key" or label(name) == name) and window.model is None:
            name = name if kind == "key" else window.scope
            amounts = status.used + status.reserved, window.limit
            used, limit = [pricing.usd(units) for units in amounts] if window.unit == "usd" else amounts
            yield QuotaRow(name, window.unit, window.per, used, limit)


class KeyCollector(Collector):
    """The quota gauges of one scrape: keys with a label of their own, their teams, and those who share a quota."""

    def __init__(self, rows: Iterable[QuotaRow], teams: Mapping[str, str | None]) -> None:
        self._rows = list(rows)
        self._teams = teams

    def collect(self) -> Iterator[Metric]:
        rows = [(":" in row.key or row.key == "gateway", row) for row in self._rows]
        for is_shared, prefix, label, owner in (
            (False, "gateway_quota", "key", "a key's quota"),
            (True, "gateway_shared_quota", "scope", "a quota of several keys"),
        ):
            labels = (label, "unit", "per")
            used = GaugeMetricFamily(
                f"{prefix}_used", f"Used and reserved amount of {owner}; unit usd: US dollars.", labels=labels
            )
            limit = GaugeMetricFamily(f"{prefix}_limit", f"Limit of {owner}; unit usd: US dollars.", labels=labels)
            for row in [row for is_of_several, row in rows if is_of_several == is_shared]:
                used.add_metric(row[:3], row.used)
                limit.add_metric(row[:3], row.limit)
            yield used
            yield limit
        team = GaugeMetricFamily(
            "gateway_key_info", "Always 1; maps keys with their own label to teams.", labels=("key", "team")
        )
        for key, name in self._teams.items():
            team.add_metric((key, name or ""), 1)
        yield team
