"""Whether a disk is so slow that the event loop should not wait for it."""

from __future__ import annotations

SLOW_S = 0.02
CALM_S = 60
"""Two writes that take longer than `SLOW_S`, within this time, are a slow disk; it is quick again when none did for as
long."""


class SlowDisk:
    """What the writes of one journal have taken lately."""

    def __init__(self) -> None:
        self.is_slow = False
        self._slow_at = float("-inf")

    def note(self, took_s: float, now: float) -> bool:
        """A write was made, at the monotonic time `now`. Returns whether that changes `is_slow`."""
        before = self.is_slow
        is_calm = now - self._slow_at > CALM_S
        if took_s > SLOW_S:
            self._slow_at = now
            self.is_slow = before or not is_calm
        elif is_calm:
            self.is_slow = False
        return self.is_slow != before
