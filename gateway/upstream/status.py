"""Status of the upstreams for the admin API: the reports of all workers merged; the worst state is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

STATES = ("closed", "half-open", "open")
"""Indexed by the values of `gateway_upstream_state`."""


class CredentialCooldown(NamedTuple):
    """Reports a credential that is in cooldown, for one model or for all."""

    number: int
    """Its position in the configuration, from 1."""
    model: str | None
    """The model in cooldown; None means all models."""
    left_s: float
    fault: str


class UpstreamReport(NamedTuple):
    """The state of one upstream in one worker. Sent as a JSON array; the order of the fields is the format."""

    name: str
    state: int
    in_flight: int
    connections: int
    cooldowns: Sequence[CredentialCooldown]
    models: Mapping[str, int]
    """States of its models that are not closed."""
    last_fault: str | None = None
    last_fault_ago_s: float = 0.0
    waiting: int = 0
    """Calls that wait for room at this upstream, or at others with it."""
    state_s: float = 0.0
    """How long it has been in that state."""
    models_s: Mapping[str, float] = {}
    """How long its models that are not closed have been in theirs."""
    begun: int = 0
    """Attempts begun since the worker started."""
    failed: Sequence[Sequence[Any]] = ()
    """The last failures, each kind in its minute: `Health._note`."""


def merged_status(
    reports: Iterable[Iterable[Sequence[Any]]], addresses: Mapping[str, str], credentials: Mapping[str, int]
) -> list[dict[str, Any]]:
    """One row for each upstream of `addresses`, in their order. `reports` are those of the workers that answered;
    `credentials` is the number of keys of each upstream."""
    by_name: dict[str, list[UpstreamReport]] = {name: [] for name in addresses}
    for worker in reports:
        for fields in worker:
            report = UpstreamReport(*fields)
            if report.name in by_name:  # else the worker has an older or a newer configuration
                by_name[report.name].append(report)
    return [_row(name, addresses[name], credentials[name], of) for name, of in by_name.items()]


def _row(name: str, address: str, credentials: int, reports: Sequence[UpstreamReport]) -> dict[str, Any]:
    faults = [report for report in reports if report.last_fault is not None]
    last = min(faults, key=lambda report: report.last_fault_ago_s, default=None)
    cooldowns = [CredentialCooldown(*cooldown) for report in reports for cooldown in report.cooldowns]
    models: dict[str, tuple[int, float]] = {}
    for report in reports:
        for model, state in report.models.items():
            models[model] = max((state, report.models_s.get(model, 0.0)), models.get(model, (0, 0.0)))
    state, state_s = max([(report.state, report.state_s) for report in reports], default=(0, 0.0))
    return {
        "name": name,
        "base_url": address,
        "state": STATES[state],
        "state_s": round(state_s, 1),
        "in_flight": sum([report.in_flight for report in reports]),
        "waiting": sum([report.waiting for report in reports]),
        "connections": sum([report.connections for report in reports]),
        "workers": len(reports),
        "credentials": [_credential(number, cooldowns) for number in range(1, credentials + 1)],
        "models": [
            {"model": model, "state": STATES[state], "state_s": round(state_s, 1)}
            for model, (state, state_s) in sorted(models.items())
        ],
        "last_failure": last and {"fault": last.last_fault, "seconds_ago": round(last.last_fault_ago_s, 1)},
    }


def _credential(number: int, cooldowns: Iterable[CredentialCooldown]) -> dict[str, Any]:
    mine = [cooldown for cooldown in cooldowns if cooldown.number == number]
    longest = max(mine, key=lambda cooldown: (cooldown.model is None, cooldown.left_s), default=None)
    if longest is None:
        return {"number": number, "resting_s": 0.0, "model": None, "fault": None}
    return {
        "number": number, "resting_s": round(longest.left_s, 1), "model": longest.model, "fault": longest.fault,
    }  # fmt: skip
