"""The metrics of hedged calls."""

from __future__ import annotations

from gateway.observe.metrics import Telemetry, WingCounter
from gateway.records import Usage

HEDGES = WingCounter(
    "gateway_hedges_total",
    "Calls with two attempts at once, by the one that answered: first, second, failed (none), client_gone.",
    ("model", "outcome"),
)
TOKENS = WingCounter(
    "gateway_hedged_tokens_total",
    "Tokens charged for attempts that were stopped because another one answered.",
    ("model", "upstream"),
)


def count_hedge(telemetry: Telemetry, model: str, outcome: str) -> None:
    """A call had two attempts at once, and this one answered: `first`, `second`; or `failed`, `client_gone`."""
    telemetry.count(HEDGES, telemetry.model_labels(model), outcome)


def count_cost(telemetry: Telemetry, model: str, upstream: str, usage: Usage) -> None:
    """An attempt was stopped because the other one answered, and is charged this."""
    telemetry.count(TOKENS, telemetry.model_labels(model), upstream, amount=usage.total_tokens)
