"""The metric of kept calls."""

from __future__ import annotations

from gateway.observe.metrics import Telemetry, WingCounter

CONTENT = WingCounter(
    "gateway_content_calls_total",
    "Calls whose content was to be kept, by store (otlp, files) and outcome: stored; failed, where the store did not "
    "take it; dropped, where too much waited, or it took too long to read.",
    ("store", "outcome"),
)


def count(telemetry: Telemetry, store: str, outcome: str, number: int = 1) -> None:
    telemetry.count(CONTENT, store, outcome, amount=number)
