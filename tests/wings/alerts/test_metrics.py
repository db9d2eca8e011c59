"""The metric of quota alerts."""

from __future__ import annotations

from gateway.wings.alerts.metrics import count_alert
from tests.observe.test_metrics import telemetry, value

SCOPES = (
    ("key", "k", ""), ("key", "j", ""), ("team", "", "crew"), ("member", "", "crew"), ("person", "", ""),
    ("gateway", "", ""),
)  # fmt: skip


def test_an_alert_counts_for_its_owner_and_for_other_beyond_the_keys_with_a_label() -> None:
    made = telemetry("k", "j", max_keys=1)
    for scope, key, team in SCOPES:
        count_alert(made, scope=scope, key=key, team=team, unit="tokens", per="day", level=100)
    of = {"unit": "tokens", "per": "day", "level": "100"}
    for scope, key, team in SCOPES:
        shown = "other" if key == "j" else key
        assert value(made, "gateway_quota_alerts_total", scope=scope, key=shown, team=team, **of) == 1
