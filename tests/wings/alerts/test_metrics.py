"""The metric of quota alerts."""

from __future__ import annotations

from gateway.wings.alerts.metrics import count_alert
from tests.observe.test_metrics import telemetry, value


def test_an_alert_counts_for_its_owner_and_for_other_beyond_the_keys_with_a_label() -> None:
    made = telemetry("k", "j", max_keys=1)
    for key, team in (("k", ""), ("j", ""), ("", "crew"), ("", "")):
        count_alert(made, key=key, team=team, unit="tokens", per="day", level=100)
    of = {"unit": "tokens", "per": "day", "level": "100"}
    for key, team in (("k", ""), ("other", ""), ("", "crew"), ("", "")):
        assert value(made, "gateway_quota_alerts_total", key=key, team=team, **of) == 1
