"""The metric of quota alerts."""

from __future__ import annotations

from gateway.observe.metrics import Telemetry, WingCounter

ALERTS = WingCounter(
    "gateway_quota_alerts_total",
    "Quotas of a day, week or month that reached this percentage.",
    ("scope", "key", "team", "unit", "per", "level"),
)


def count_alert(telemetry: Telemetry, *, scope: str, key: str, team: str, unit: str, per: str, level: int) -> None:
    """An alert was sent for a quota of this kind of scope; people are not named in metrics."""
    telemetry.count(ALERTS, scope, telemetry.key_labels(key), team, unit, per, str(level))
