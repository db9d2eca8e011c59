"""The metric of what authorizes requests to upstreams."""

from __future__ import annotations

from gateway.observe.metrics import WingCounter

RENEWALS = WingCounter(
    "gateway_upstream_authorizations_total",
    "Renewals of what authorizes the requests to an upstream: renewed, refused, late.",
    ("upstream", "outcome"),
)
