"""How the upstreams are doing, gathered from all workers: each makes its own experience, and the worst is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

STATES = ("closed", "half-open", "open")
"""By the numbers of `gateway_upstream_state`."""


class CredentialCooldown(NamedTuple):
    """A credential that rests."""

    number: int
    """Its place in the configuration, from 1."""
    model: str | None
    """None: for every model."""
    resting_s: float
    fault: str


class UpstreamReport(NamedTuple):
    """What one worker knows of one upstream. It travels as JSON, and is read by its place."""

    name: str
    state: int
    in_flight: int
    connections: int
    rests: Sequence[CredentialCooldown]
    models: Mapping[str, int]
    """States of its models that are not closed."""
    last_fault: str | None = None
    last_fault_ago_s: float = 0.0


def merged_status(
    reports: Iterable[Iterable[Sequence[Any]]], addresses: Mapping[str, str], credentials: Mapping[str, int]
) -> list[dict[str, Any]]:
    """One row for each upstream of `addresses`, in their order. `reports` are those of each worker that has answered;
    `credentials` is how many each upstream has."""
    by_name: dict[str, list[UpstreamReport]] = {name: [] for name in addresses}
    for worker in reports:
        for fields in worker:
            report = UpstreamReport(*fields)
            if report.name in by_name:  # else it has an older configuration, or a newer one
                by_name[report.name].append(report)
    return [_row(name, addresses[name], credentials[name], of) for name, of in by_name.items()]


def _row(name: str, address: str, credentials: int, reports: Sequence[UpstreamReport]) -> dict[str, Any]:
    faults = [report for report in reports if report.last_fault is not None]
    last = min(faults, key=lambda report: report.last_fault_ago_s, default=None)
    rests = [CredentialCooldown(*rest) for report in reports for rest in report.rests]
    models: dict[str, int] = {}
    for report in reports:
        for model, state in report.models.items():
            models[model] = max(state, models.get(model, 0))
    return {
        "name": name,
        "base_url": address,
        "state": STATES[max([report.state for report in reports], default=0)],
        "in_flight": sum([report.in_flight for report in reports]),
        "connections": sum([report.connections for report in reports]),
        "workers": len(reports),
        "credentials": [_credential(number, rests) for number in range(1, credentials + 1)],
        "models": [{"model": model, "state": STATES[state]} for model, state in sorted(models.items())],
        "last_failure": last and {"fault": last.last_fault, "seconds_ago": round(last.last_fault_ago_s, 1)},
    }


def _credential(number: int, rests: Iterable[CredentialCooldown]) -> dict[str, Any]:
    mine = [rest for rest in rests if rest.number == number]
    longest = max(mine, key=lambda rest: (rest.model is None, rest.resting_s), default=None)
    if longest is None:
        return {"number": number, "resting_s": 0.0, "model": None, "fault": None}
    return {
        "number": number, "resting_s": round(longest.resting_s, 1), "model": longest.model, "fault": longest.fault,
    }  # fmt: skip
