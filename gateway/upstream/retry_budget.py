"""Retry budget of an upstream: bounds repeated attempts to a share of its calls, so that retries do not multiply load.

Only a second attempt of one call at one upstream is a repetition. A failover is none: each upstream gets each call
once, so its load is that of the calls and not a multiple of it.
"""

from __future__ import annotations

SHARE = 0.2
"""Repetitions per call of the last window. Finagle and Envoy have the same default."""

MIN_REPEATS = 10
"""Repetitions per window in addition to `SHARE`, so that an upstream with few calls can be retried."""

SLICE_S = 5.0
"""Half a window: the window of 10 s slides in two slices."""


class RetryBudget:
    """Budget of one upstream in one worker. `now` is in seconds of one monotonic clock."""

    __slots__ = ("_calls", "_calls_before", "_repeats", "_repeats_before", "_slice_ends")

    def __init__(self) -> None:
        self._slice_ends = 0.0
        self._calls = self._calls_before = 0
        self._repeats = self._repeats_before = 0

    def note_call(self, now: float) -> None:
        """Count the first attempt of a call at this upstream."""
        if now >= self._slice_ends:
            self._slide(now)
        self._calls += 1

    def note_repeat(self, now: float) -> None:
        """Count a repetition."""
        if now >= self._slice_ends:
            self._slide(now)
        self._repeats += 1

    def is_spent(self, now: float) -> bool:
        """Whether one more repetition would exceed the budget."""
        if now >= self._slice_ends:
            self._slide(now)
        calls = self._calls + self._calls_before
        return self._repeats + self._repeats_before >= MIN_REPEATS + SHARE * calls

    def _slide(self, now: float) -> None:
        is_next = now < self._slice_ends + SLICE_S
        self._calls_before = self._calls if is_next else 0
        self._repeats_before = self._repeats if is_next else 0
        self._calls = self._repeats = 0
        self._slice_ends = now + SLICE_S
