"""The metric of quota alerts."""

from __future__ import annotations

from gateway.observe.metrics import Telemetry, WingCounter

ALERTS = WingCounter(
    "gateway_quota_alerts_total",
    "Quotas of a day, week or month that reached this percentage.",
    ("key", "team", "unit", "per", "level"),
)


def count_alert(telemetry: Telemetry, *, key: str, team: str, unit: str, per: str, level: int) -> None:
    """An alert was sent for a quota of this key or this team; neither: of the whole gateway."""
    telemetry.count(ALERTS, telemetry.key_labels(key), team, unit, per, str(level))
