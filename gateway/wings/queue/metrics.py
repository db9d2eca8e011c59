"""The metrics of calls that wait."""

from __future__ import annotations

from collections.abc import Collection

from gateway.observe.metrics import SECONDS, Telemetry, WingGauge, WingHistogram

DEPTH = WingGauge(
    "gateway_queue_depth",
    "Calls that wait for upstream limits; a call for several upstreams counts at each.",
    ("upstream",),
)
WAITS = WingHistogram(
    "gateway_queue_wait_seconds",
    "Time that calls waited for upstream limits, by the key's class and result.",
    ("priority", "outcome"),
    SECONDS,
)


class Waits:
    """Counts the waits of one worker."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def wait_began(self, upstreams: Collection[str]) -> None:
        """A call waits for room at one of these upstreams."""
        for upstream in upstreams:
            self._telemetry.change(DEPTH, upstream, by=1)

    def wait_ended(self, upstreams: Collection[str], priority: str, outcome: str, seconds: float) -> None:
        """It does so no longer."""
        for upstream in upstreams:
            self._telemetry.change(DEPTH, upstream, by=-1)
        self._telemetry.observe(WAITS, seconds, priority, outcome)
