"""The metric of people whose access ends."""

from __future__ import annotations

from gateway.observe.metrics import WingCounter

LEAVERS = WingCounter(
    "gateway_people_inactive_total",
    "People without a sign-in for so long that their access ends soon (warned) or has ended (ended).",
    ("outcome",),
)
