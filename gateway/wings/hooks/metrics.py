"""Metrics count the questions to hooks, and their time."""

from __future__ import annotations

from gateway.observe.metrics import WingCounter, WingHistogram

CALLS = WingCounter(
    "gateway_hook_calls_total",
    "Calls about which a hook was asked, and records for it, by result: allowed, refused, replaced, unseen, "
    "delivered, dropped, or the fault (timeout, connection, status, too_long, invalid, circuit_open).",
    ("hook", "outcome"),
)
SECONDS = WingHistogram(
    "gateway_hook_duration_seconds",
    "How long calls waited for the answer of a hook.",
    ("hook",),
    (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
