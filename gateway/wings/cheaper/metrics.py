"""The metric of calls that a cheaper model served."""

from __future__ import annotations

from gateway.observe.metrics import WingCounter

CHEAPER = WingCounter(
    "gateway_cheaper_model_calls_total",
    "Calls for which a cheaper model was chosen, because a quota of money was above a share (when_above).",
    ("scope", "model"),
)
