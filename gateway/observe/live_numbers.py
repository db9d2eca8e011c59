"""The numbers of `/admin/api/live`: counters of the whole gateway, without the labels that are not shown.

They are sums over the samples of metrics, so they agree with `/metrics`, and no counter falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


class _Histogram:
    """Buckets, summed over their labels."""

    def __init__(self) -> None:
        self._counts: dict[float, float] = {}

    def add(self, sample: Sample) -> None:
        bound = float(sample.labels["le"])
        self._counts[bound] = self._counts.get(bound, 0) + sample.value

    def shown(self) -> dict[str, list[Any]]:
        """`le`: the bounds in seconds but for the infinite one; `counts`: calls up to each bound, the last one all."""
        bounds = sorted(self._counts)
        return {"le": bounds[:-1], "counts": [int(self._counts[bound]) for bound in bounds]}


class _Numbers:
    """Sums the samples of one call of `summed`."""

    def __init__(self, upstreams: Iterable[str]) -> None:
        self.single: dict[str, float] = {}
        self.by_status: dict[str, int] = {}
        self.tokens = dict.fromkeys(("prompt", "completion", "cached", "reasoning"), 0)
        self.rejections: dict[str, int] = {}
        self.refused: dict[tuple[str, str, str], int] = {}
        self.first_token = _Histogram()
        self.first_token_of = {name: _Histogram() for name in upstreams}
        self.attempts: dict[str, dict[str, int]] = {name: {} for name in upstreams}
        self.states = dict.fromkeys(upstreams, 0)

    def request(self, sample: Sample) -> None:
        labels, number = sample.labels, int(sample.value)
        status = labels["status"]
        self.by_status[status] = self.by_status.get(status, 0) + number
        if not labels["upstream"] and int(status) >= 400 and number:
            place = (labels["key"], labels["model"], status)
            self.refused[place] = self.refused.get(place, 0) + number

    def token(self, sample: Sample) -> None:
        self.tokens[sample.labels["type"]] += int(sample.value)

    def waited(self, sample: Sample) -> None:
        self.first_token.add(sample)
        if (own := self.first_token_of.get(sample.labels["upstream"])) is not None:
            own.add(sample)

    def attempt(self, sample: Sample) -> None:
        if (own := self.attempts.get(sample.labels["upstream"])) is not None:
            outcome = sample.labels["outcome"]
            own[outcome] = own.get(outcome, 0) + int(sample.value)

    def state(self, sample: Sample) -> None:
        if (name := sample.labels["upstream"]) in self.states:
            self.states[name] = int(sample.value)

    def rejection(self, sample: Sample) -> None:
        self.rejections[sample.labels["reason"]] = int(sample.value)

    def one(self, sample: Sample) -> None:
        self.single[sample.name] = self.single.get(sample.name, 0) + sample.value


_SINGLE: Mapping[str, str] = {
    "in_flight": "gateway_in_flight_requests",
    "journal_pending": "gateway_journal_pending_records",
    "store_errors": "gateway_store_errors_total",
    "usage_unknown": "gateway_usage_unknown_total",
    "client_disconnects": "gateway_client_disconnects_total",
    "generation": "gateway_config_generation",
}
"""Whole numbers that are shown as they are, by the metric that each comes from."""

_READ: Mapping[str, Callable[[_Numbers, Sample], None]] = {
    "gateway_requests_total": _Numbers.request,
    "gateway_tokens_total": _Numbers.token,
    "gateway_time_to_first_token_seconds_bucket": _Numbers.waited,
    "gateway_upstream_attempts_total": _Numbers.attempt,
    "gateway_upstream_state": _Numbers.state,
    "gateway_rejections_total": _Numbers.rejection,
    "gateway_cost_usd_total": _Numbers.one,
    **dict.fromkeys(_SINGLE.values(), _Numbers.one),
}


def summed(collectors: Iterable[Collector], upstreams: Iterable[str]) -> dict[str, Any]:
    """The counters of all collectors; of upstreams, those that are configured. Times in seconds, money in USD."""
    names = list(upstreams)
    found = _Numbers(names)
    for sample in [sample for each in collectors for metric in each.collect() for sample in metric.samples]:
        if (read := _READ.get(sample.name)) is not None:
            read(found, sample)
    return {
        "requests": sum(found.by_status.values()),
        "by_status": found.by_status,
        "tokens": found.tokens,
        "cost_usd": round(found.single.get("gateway_cost_usd_total", 0.0), 9),
        **{name: int(found.single.get(metric, 0)) for name, metric in _SINGLE.items()},
        "first_token": found.first_token.shown(),
        "upstreams": {
            name: {
                "state": found.states[name],
                "attempts": found.attempts[name],
                "first_token": found.first_token_of[name].shown(),
            }
            for name in names
        },
        "rejections": found.rejections,
        "refused": [
            {"key": key, "model": model, "status": int(status), "requests": number}
            for (key, model, status), number in sorted(found.refused.items())
        ],
    }
