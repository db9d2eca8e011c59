"""The metrics that show what bills and records differ by."""

from __future__ import annotations

from gateway.observe.metrics import WingCounter, WingGauge

DIFFERENCE = WingGauge(
    "gateway_bill_difference_usd",
    "The provider's bill minus the records, in US dollars of the days that are read, by cause.",
    ("upstream", "cause"),
    "mostrecent",
)
LEFT = WingGauge(
    "gateway_bill_account_left_usd",
    "US dollars left of a prepaid account, where its provider states it.",
    ("upstream",),
    "mostrecent",
)
READINGS = WingCounter("gateway_bill_readings_total", "Readings of a provider's bill.", ("upstream", "outcome"))
