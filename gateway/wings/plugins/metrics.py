"""The metrics of plug-ins. Their names are few: the configuration has them."""

from __future__ import annotations

from gateway.observe.metrics import WingCounter

FAILURES = WingCounter(
    "gateway_plugin_failures_total",
    "Faults of plug-ins: exceptions and wrong results of their methods. Each fails its call, unless that was settled.",
    ("plugin", "method"),
)
REFUSALS = WingCounter("gateway_plugin_refusals_total", "Calls that a plug-in has refused.", ("plugin",))
SLOW = WingCounter(
    "gateway_plugin_slow_total",
    "Runs of a plug-in's method that held up all calls of a worker for more than 50 ms.",
    ("plugin", "method"),
)
